//! Opens the place rules come from, puts them in force, and follows it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use tollgate_engine::Store;

use crate::app::App;
use crate::config::{Access, Config, DatabaseConfig, RulesConfig};
use crate::control::Control;
use crate::control::api::Service;
use crate::control::model::Role;
use crate::control::origin::Source;
use crate::net::background::BackgroundThread;
use crate::retrieve::file::{self, RuleFile};
use crate::retrieve::{database, poll};

/// Opens what the configuration names. The app it returns decides by rules, unless there are to be none; on the thread it returns
/// with it, they are followed.
///
/// # Errors
/// When the rules cannot be had, or tokens are asked for and there are none.
pub(super) async fn open<S: Store + 'static>(
    config: &Config,
    app: App<S>,
) -> anyhow::Result<(Arc<App<S>>, BackgroundThread)> {
    let aside = BackgroundThread::start("tollgate-rules").context("cannot start the thread for rules")?;
    let app = match &config.rules {
        RulesConfig::Nowhere => Arc::new(app.with_source(Source::Sent)),
        RulesConfig::File(path) => {
            let app = Arc::new(app.with_source(Source::File(path.clone())));
            let mut watched = RuleFile::new(path.clone());
            file::load(&app, &mut watched)?;
            drop(aside.handle().spawn(file::watch(app.clone(), watched)));
            app
        }
        RulesConfig::Database(database) => {
            let control = Arc::new(open_database(&aside, database).await?);
            let service = Service::new(control.clone(), aside.handle().clone(), app.connections.clone());
            let app = Arc::new(app.with_source(Source::Service(Box::new(service))));
            let (loading, from) = (app.clone(), control.clone());
            let (changes, set) = aside.run(async move { database::load(&loading, &from).await }).await??;
            if config.access == Access::Tokens && !set.tokens.iter().any(|token| token.role == Role::Admin) {
                let place = match &database.data {
                    Some(data) => format!("--data {}", data.display()),
                    None => "--database postgres://…".to_owned(),
                };
                bail!(
                    "tokens are asked for, since other machines can connect or --tokens required was given, and there is no token \
                     yet that may make others; make one with: tollgate tokens create --role admin {place}"
                );
            }
            drop(aside.handle().spawn(database::follow(app.clone(), control, changes)));
            app
        }
        RulesConfig::Service(service) => {
            if service.client.shows_its_token() {
                tracing::warn!("the token is sent to the rules service in the clear; use https:// in --rules");
            }
            let app = Arc::new(app.with_source(Source::Followed(service.client.url().to_string())));
            let follower = aside.run(poll::Follower::start(app.clone(), service.clone())).await??;
            drop(aside.handle().spawn(follower.follow()));
            app
        }
    };
    Ok((app, aside))
}

async fn open_database(aside: &BackgroundThread, config: &DatabaseConfig) -> anyhow::Result<Control> {
    if let Some(data) = &config.data {
        make_directory(data)?;
    }
    let url = config.url.clone();
    let opened = aside.run(async move { Control::open(url.reveal()).await }).await?;
    opened.with_context(|| match &config.data {
        Some(data) => format!("cannot open the database in the data directory {}", data.display()),
        None => "cannot open the database of --database".to_owned(),
    })
}

fn make_directory(data: &Path) -> anyhow::Result<()> {
    // Digests of tokens and who did what are nobody else's business.
    DirBuilder::new().recursive(true).mode(0o700).create(data).with_context(|| {
        format!(
            "cannot make the data directory {}; choose another with --data DIR, or --data off to keep no rules",
            data.display()
        )
    })
}
