//! Opens the source of rules, installs them, and follows changes.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use tollgate_engine::Store;

use super::access::Access;
use super::config::Config;
use super::source::{DatabaseConfig, RulesConfig};
use crate::app::App;
use crate::control::Control;
use crate::control::api::Service;
use crate::control::model::Role;
use crate::net::background::BackgroundThread;
use crate::rules_source::file::{self, RuleFile};
use crate::rules_source::status::RulesSource;
use crate::rules_source::{database, poll};

/// Opens what the configuration names. The app it returns decides by rules, unless there are to be none; on the thread it returns
/// with it, they are followed.
///
/// # Errors
/// When the rules cannot be had, or tokens are asked for and there are none.
pub(super) async fn start<S: Store + 'static>(
    config: &Config,
    app: App<S>,
) -> anyhow::Result<(Arc<App<S>>, BackgroundThread)> {
    let aside = BackgroundThread::start("tollgate-rules").context("cannot start the thread for rules")?;
    let app = match &config.rules {
        RulesConfig::Inline => Arc::new(app.with_source(RulesSource::Inline)),
        RulesConfig::File(path) => {
            let app = Arc::new(app.with_source(RulesSource::File(path.clone())));
            let mut watched = RuleFile::new(path.clone());
            file::load(&app, &mut watched)?;
            drop(aside.handle().spawn(file::watch(app.clone(), watched)));
            app
        }
        RulesConfig::Database(database) => {
            let control = Arc::new(open_database(&aside, database).await?);
            let service = Service::new(control.clone(), aside.handle().clone(), app.connections.clone());
            let app = Arc::new(app.with_source(RulesSource::Service(Box::new(service))));
            let (loading, from) = (app.clone(), control.clone());
            let (changes, set) = aside.run(async move { database::load(&loading, &from).await }).await??;
            if config.access == Access::Tokens && !set.tokens.iter().any(|token| token.role == Role::Admin) {
                let place = match &database.data {
                    Some(data) => format!("--data {}", data.display()),
                    None => "--database postgres://…".to_owned(),
                };
                bail!(
                    "tokens are required, because other machines can connect or --tokens required was given, but there is no admin token \
                     yet; create one with: tollgate tokens create --role admin {place}"
                );
            }
            drop(aside.handle().spawn(database::follow(app.clone(), control, changes)));
            app
        }
        RulesConfig::Service(service) => {
            if service.client.exposes_token() {
                tracing::warn!("token sent to the rules service without encryption; use https:// in --rules");
            }
            let app = Arc::new(app.with_source(RulesSource::Followed(service.client.url().to_string())));
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
    // The directory contains digests of tokens and the audit log, so only its owner may read it.
    DirBuilder::new().recursive(true).mode(0o700).create(data).with_context(|| {
        format!(
            "cannot create the data directory {}; choose another with --data DIR, or --data off to keep no rules",
            data.display()
        )
    })
}
