//! Opens the source of rules, installs its rules, and follows its changes.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use tollgate_engine::Store;

use super::config::Config;
use super::source::{DatabaseConfig, RulesConfig};
use crate::app::App;
use crate::control::Control;
use crate::control::api::{AuditQueues, AuditSink, RulesService};
use crate::control::auth::TokenPolicy;
use crate::control::model::Role;
use crate::net::background::BackgroundThread;
use crate::rules_source::file::{self, WatchedFiles};
use crate::rules_source::status::{FollowedService, RulesSource};
use crate::rules_source::xds::XdsFollower;
use crate::rules_source::{database, poll};

/// Installs the rules of the configured source and follows its changes on the returned background thread.
///
/// # Errors
/// Returns an error if the rules cannot be loaded, or tokens are required and there is no admin token.
pub(super) async fn start<S: Store + 'static>(
    config: &Config,
    app: App<S>,
) -> anyhow::Result<(Arc<App<S>>, BackgroundThread)> {
    let background = BackgroundThread::start("tollgate-rules").context("cannot start the thread for rules")?;
    let app = match &config.rules {
        RulesConfig::Inline => Arc::new(app.with_rules_source(RulesSource::Inline)),
        RulesConfig::File(path) => {
            let app = Arc::new(app.with_rules_source(RulesSource::File(path.clone())));
            let mut watched = WatchedFiles::new(path.clone());
            file::load_files(&app, &mut watched)?;
            drop(background.handle().spawn(file::watch_files(app.clone(), watched)));
            app
        }
        RulesConfig::Database(database) => {
            let control = Arc::new(open_database(&background, database).await?);
            let service = RulesService::new(control.clone(), background.handle().clone(), app.connections.clone());
            let app = Arc::new(app.with_rules_source(RulesSource::Database(Box::new(service))));
            let (loading, from) = (app.clone(), control.clone());
            let (changes, set) =
                background.run_task(async move { database::load_rules(&loading, &from).await }).await??;
            if config.tokens == TokenPolicy::Required && !set.tokens.iter().any(|token| token.grant.role == Role::Admin)
            {
                let place = match &database.data {
                    Some(data) => format!("--data {}", data.display()),
                    None => "--database postgres://…".to_owned(),
                };
                bail!(
                    "tokens are required, because other machines can connect or --tokens required was given, but there is no admin token \
                     yet; create one with: tollgate tokens create --role admin {place}"
                );
            }
            drop(background.handle().spawn(database::follow_revisions(app.clone(), control, changes)));
            app
        }
        RulesConfig::Service(service) => {
            if service.client.exposes_token() {
                tracing::warn!("token sent to the rules service without encryption; use https:// in --rules");
            }
            let (url, node) = (service.client.url().to_string(), service.node.clone());
            let sink = AuditSink::Service { client: service.client.clone(), node };
            let audit = AuditQueues::start(sink, background.handle());
            let app = Arc::new(app.with_rules_source(RulesSource::Service(FollowedService { url, audit })));
            let follower = background.run_task(poll::Follower::start(app.clone(), service.clone())).await??;
            drop(background.handle().spawn(follower.follow()));
            app
        }
        RulesConfig::Xds(server) => {
            let app = Arc::new(app.with_rules_source(RulesSource::Xds(server.to_string())));
            let follower = background.run_task(XdsFollower::start(app.clone(), server.clone())).await??;
            drop(background.handle().spawn(follower.follow()));
            app
        }
    };
    Ok((app, background))
}

async fn open_database(background: &BackgroundThread, config: &DatabaseConfig) -> anyhow::Result<Control> {
    if let Some(data) = &config.data {
        make_directory(data)?;
    }
    let url = config.url.clone();
    let opened = background.run_task(async move { Control::open(url.reveal()).await }).await?;
    opened.with_context(|| match &config.data {
        Some(data) => format!("cannot open the database in the data directory {}", data.display()),
        None => "cannot open the database of --database".to_owned(),
    })
}

fn make_directory(data: &Path) -> anyhow::Result<()> {
    // The directory contains the audit log and digests of tokens, so only its owner may read it.
    DirBuilder::new().recursive(true).mode(0o700).create(data).with_context(|| {
        format!(
            "cannot create the data directory {}; choose another with --data DIR, or --data off to keep no rules",
            data.display()
        )
    })
}
