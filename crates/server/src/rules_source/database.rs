//! Rules from this server's own database.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::watch;
use tollgate_engine::Store;

use super::{InstallOutcome, install_snapshot};
use crate::app::App;
use crate::control::Control;
use crate::control::model::Snapshot;

/// Delay before a failed read is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Installs the rules that are in the database. Returns a receiver for later revisions, and the installed snapshot.
///
/// # Errors
/// Returns an error if the database is unreachable or its rules are refused. In this case the server must not
/// start, because a server without its rules would admit every request.
pub async fn load_rules<S: Store + 'static>(
    app: &Arc<App<S>>,
    control: &Control,
) -> anyhow::Result<(watch::Receiver<i64>, Arc<Snapshot>)> {
    let mut revisions = control.watch_revision();
    // The revision is marked as seen before the rules are read, so that a change in between is not missed.
    revisions.borrow_and_update();
    let snapshot = control.snapshot().await.context("cannot read the rules from the database")?;
    let installed = install_snapshot(app, &snapshot).await;
    control.set_installed(snapshot.revision);
    match installed {
        InstallOutcome::New | InstallOutcome::Unchanged => Ok((revisions, snapshot)),
        InstallOutcome::Refused(why) | InstallOutcome::Damaged(why) => {
            bail!("the rules in the database cannot be used: {why}")
        }
    }
}

/// Installs later changes, until `revisions` is closed. While the database is unreachable, the rules in force stay.
pub async fn follow_revisions<S: Store + 'static>(
    app: Arc<App<S>>,
    control: Arc<Control>,
    mut revisions: watch::Receiver<i64>,
) {
    let mut failed = false;
    loop {
        if !failed && revisions.changed().await.is_err() {
            tracing::error!("rules database no longer watched; the rules in force stay");
            return;
        }
        revisions.borrow_and_update();
        match control.snapshot().await {
            Ok(snapshot) => {
                if failed {
                    tracing::info!("rules database reachable again");
                }
                failed = false;
                install_snapshot(&app, &snapshot).await;
                control.set_installed(snapshot.revision);
            }
            Err(error) => {
                if !failed {
                    tracing::error!(%error, "cannot read the rules from the database; the rules in force stay");
                }
                failed = true;
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}
