//! Rules from this server's own database.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::watch;
use tollgate_engine::Store;

use super::{Landed, land};
use crate::app::App;
use crate::control::Control;
use crate::control::model::Snapshot;

/// How long to wait before a database that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Puts in force what is in the database, and gives it, with what tells of changes since.
///
/// # Errors
/// When the database does not answer, or has rules that cannot run here: a start without rules is an open app.
pub async fn load<S: Store + 'static>(
    app: &Arc<App<S>>,
    control: &Control,
) -> anyhow::Result<(watch::Receiver<i64>, Arc<Snapshot>)> {
    let mut changes = control.watch();
    // Before they are read: what changes meanwhile is read again.
    changes.borrow_and_update();
    let set = control.snapshot().await.context("cannot read the rules from the database")?;
    let landed = land(app, &set).await;
    control.landed(set.revision);
    match landed {
        Landed::InForce | Landed::Same => Ok((changes, set)),
        Landed::Refused(why) | Landed::Damaged(why) => bail!("the rules in the database cannot be used: {why}"),
    }
}

/// Puts every change in force, for ever. While the database does not answer, the rules in force stay.
pub async fn follow<S: Store + 'static>(app: Arc<App<S>>, control: Arc<Control>, mut changes: watch::Receiver<i64>) {
    let mut failed = false;
    loop {
        if !failed && changes.changed().await.is_err() {
            tracing::error!("the database is not watched any more, the rules in force stay");
            return;
        }
        changes.borrow_and_update();
        match control.snapshot().await {
            Ok(set) => {
                if failed {
                    tracing::info!("the database answers again");
                }
                failed = false;
                land(&app, &set).await;
                control.landed(set.revision);
            }
            Err(error) => {
                if !failed {
                    tracing::error!(%error, "the rules cannot be read from the database, those in force stay");
                }
                failed = true;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
