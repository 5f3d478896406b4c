//! The rules service: stores rules, their history, overrides, tokens and the audit log, and publishes the rules, the
//! overrides and the tokens to nodes.
//!
//! ```text
//!  put, patch, apply ─▶ one transaction: head, rules, versions, audit ─▶ revision ─▶ watch_revision() ─▶ snapshot() ─▶ nodes
//! ```
//!
//! - [`Control`] is the service without HTTP and access checks. Each resource has its own repository ([`Rules`],
//!   [`Overrides`], [`History`], [`RuleFiles`], [`Tokens`], [`AuditLog`], [`FleetEnforcement`]).
//! - Rules are stored in the rule language, one line of JSON each. A rule is validated before it is written, both
//!   without and with its overrides. The total size of all rules is bounded by the largest rule file that a node can
//!   read.
//! - A write is atomic, and is acknowledged when it is on disk. Each change gets the next revision of the database.
//!   Each rule has its own version numbers, which continue when the rule is deleted and created again.

pub mod api;
mod apply;
mod audit;
pub mod auth;
mod db;
pub mod error;
mod fleet;
mod history;
pub mod model;
mod orphans;
mod overrides;
mod paging;
mod plan;
mod rules;
mod size;
mod snapshot;
mod sql;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use apply::{Preview, RuleFiles};
pub use audit::{ActionNote, AuditLog, NotedAction};
use db::Db;
pub use db::sqlite_url;
pub use error::{Conflict, ControlError};
pub use fleet::FleetEnforcement;
pub use history::History;
use model::Snapshot;
pub use overrides::Overrides;
pub use rules::{MAX_RULE_BYTES, Rules};
pub use tokens::{MAX_TOKENS, Tokens};

/// A result of the rules service.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// The rules service with its database, without HTTP and access checks.
#[derive(Debug)]
pub struct Control {
    db: Arc<Db>,
    /// The last revision that this server installed or refused, or `None` if it does not install rules.
    installed: watch::Sender<Option<i64>>,
    /// The task that polls for writes by other processes.
    poller: AbortHandle,
    /// The last snapshot. The lock is held while a snapshot is built, so that concurrent requests build it only once.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
}

/// Maximum time to wait for this server to install a token change before the change is acknowledged.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(1);

impl Control {
    /// Opens the database at `sqlite:PATH?mode=rwc` (see [`sqlite_url`]) or `postgres://…` and migrates its tables.
    /// Must be called within a Tokio runtime, because the function spawns a task that polls for writes by other
    /// processes.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable or was written by a later version of this program.
    pub async fn open(url: &str) -> Result<Self> {
        let db = Arc::new(Db::open(url).await?);
        let poller = tokio::spawn(db.clone().poll_revision()).abort_handle();
        Ok(Self { db, installed: watch::Sender::new(None), poller, snapshot: Mutex::new(None) })
    }

    /// Returns the repository of single rules.
    pub fn rules(&self) -> Rules<'_> {
        Rules { db: &self.db }
    }

    /// Returns the repository of overrides.
    pub fn overrides(&self) -> Overrides<'_> {
        Overrides { db: &self.db }
    }

    /// Returns the repository of rule versions.
    pub fn history(&self) -> History<'_> {
        History { db: &self.db }
    }

    /// Returns the operations on whole rule files.
    pub fn rule_files(&self) -> RuleFiles<'_> {
        RuleFiles { db: &self.db }
    }

    /// Returns the repository of tokens.
    pub fn tokens(&self) -> Tokens<'_> {
        Tokens { control: self }
    }

    /// Returns the audit log.
    pub fn audit(&self) -> AuditLog<'_> {
        AuditLog { db: &self.db }
    }

    /// Returns the fleet-wide kill switch.
    pub fn fleet(&self) -> FleetEnforcement<'_> {
        FleetEnforcement { db: &self.db }
    }

    /// Subscribes to the revision, including changes by other processes.
    pub fn watch_revision(&self) -> watch::Receiver<i64> {
        self.db.watch_revision()
    }

    /// Returns the snapshot for nodes. The last snapshot is cached, so another call at the same revision does not need
    /// the database.
    ///
    /// # Errors
    /// Returns an error if the snapshot is not cached and the database is unreachable.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let mut last = self.snapshot.lock().await;
        let revision = *self.db.watch_revision().borrow();
        if let Some(last) = last.as_ref().filter(|last| last.revision == revision) {
            return Ok(last.clone());
        }
        let snapshot = Arc::new(snapshot::build_snapshot(&self.db).await?);
        *last = Some(snapshot.clone());
        drop(last);
        self.db.publish_revision(snapshot.revision);
        Ok(snapshot)
    }

    /// Records that this server has handled a revision: it installed the rules or refused them.
    pub fn set_installed(&self, revision: i64) {
        self.installed.send_replace(Some(revision));
    }

    /// Waits until this server has installed the last write, so that a new token works as soon as its creator receives
    /// it. After [`INSTALL_TIMEOUT`], returns without an error, because the write is already committed. Returns
    /// immediately if this server does not install rules.
    async fn wait_until_installed(&self) {
        let written = *self.db.watch_revision().borrow();
        let mut installed = self.installed.subscribe();
        let current = installed.wait_for(|installed| installed.is_none_or(|revision| revision >= written));
        let _ = timeout(INSTALL_TIMEOUT, current).await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.poller.abort();
    }
}

/// Returns the SHA-256 digest of `bytes` in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
