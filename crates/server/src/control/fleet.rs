//! The fleet-wide kill switch: one setting in the database that every node follows.

use sqlx::AnyConnection;

use super::Result;
use super::audit::{NewEntry, NotedAction};
use super::db::{Db, SHORT_TIMEOUT, read_boolean, with_timeout};
use super::model::{Change, FleetMode};
use super::sql::Sql;

/// The fleet-wide kill switch.
#[derive(Debug)]
pub struct FleetEnforcement<'c> {
    pub(super) db: &'c Db,
}

impl FleetEnforcement<'_> {
    /// Returns whether the fleet enforces refusals.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable.
    pub async fn mode(&self) -> Result<FleetMode> {
        with_timeout(SHORT_TIMEOUT, async { read_mode(&mut *self.db.pool().acquire().await?).await }).await
    }

    /// Sets whether the fleet enforces refusals. A change creates a revision, so nodes receive it immediately.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable. Nothing is changed then, except possibly if the connection
    /// broke during the commit.
    pub async fn set_mode(&self, change: &Change, mode: FleetMode) -> Result<()> {
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.db.begin_write(change).await?;
            if read_mode(&mut write.tx).await? == mode {
                return write.rollback().await;
            }
            let observing = i64::from(mode == FleetMode::Observe);
            Sql::new("UPDATE head SET observing = ").bind(observing).execute(&mut *write.tx).await?;
            let action = NotedAction::from(mode);
            write
                .append_to_audit_log(&[NewEntry {
                    kind: action.subject_kind(),
                    action: action.as_str(),
                    domain: None,
                    subject: "fleet".to_owned(),
                    before: None,
                    after: None,
                }])
                .await?;
            write.commit().await.map(drop)
        })
        .await
    }
}

/// Reads the mode on the given connection.
pub(super) async fn read_mode(connection: &mut AnyConnection) -> Result<FleetMode> {
    let row = sqlx::query("SELECT observing FROM head").fetch_one(connection).await?;
    Ok(if read_boolean(&row, "observing")? { FleetMode::Observe } else { FleetMode::Enforce })
}
