//! The rules service: owners of services define rules, this keeps them, and nodes follow.
//!
//! ```text
//!  put, patch, apply ─▶ one transaction: head, rules, versions, audit ─▶ revision ─▶ watch() ─▶ snapshot() ─▶ nodes
//! ```
//!
//! - [`Control`] is everything that can be asked of it, and knows nothing of HTTP, tokens in headers or who may do what.
//! - Rules are kept as text in the language of rule files, one line of JSON each. They are checked before they are written,
//!   alone and with their overrides, and all together stay small enough for a node to read.
//! - A write is made whole or not at all, and acknowledged when it is on disk. The database numbers writes by a revision; each
//!   rule numbers its versions, and goes on where it was when it is deleted and made again.

pub mod api;
mod apply;
mod audit;
pub mod auth;
mod cut;
mod db;
pub mod error;
pub(crate) mod hex;
mod history;
pub mod model;
pub mod origin;
mod outlive;
mod overrides;
mod plan;
mod rules;
mod snapshot;
mod sql;
mod tokens;
mod weight;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use db::Db;
pub use db::sqlite_url;
pub use error::{Conflict, ControlError};
use model::Snapshot;
pub use rules::MAX_RULE_BYTES;
pub use tokens::{MAX_TOKENS, digest};

/// What is returned.
pub type Result<T> = std::result::Result<T, ControlError>;

/// What a write came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Written<T> {
    /// What is there now.
    pub now: T,
    /// Whether there was nothing before.
    pub created: bool,
    /// Whether anything changed: writing what is there already does nothing.
    pub changed: bool,
}

/// Whether rules that a file does not have are deleted, in the domains it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They stay.
    Keep,
    /// They are deleted.
    Delete,
}

/// Rules, their history, tokens and the audit log in a database.
#[derive(Debug)]
pub struct Control {
    db: Arc<Db>,
    told: Arc<watch::Sender<i64>>,
    /// The revision that this server itself goes by; none if it does not follow.
    landed: watch::Sender<Option<i64>>,
    /// Looks for writes of other processes.
    watcher: AbortHandle,
    /// The last one that was made. Held while one is made, so that a thousand nodes that ask at once have it made once.
    made: Mutex<Option<Arc<Snapshot>>>,
}

/// How long a write is kept from being acknowledged until it is in force here.
const LANDS_WITHIN: Duration = Duration::from_secs(1);

/// How often other processes' writes are looked for.
const LOOK: Duration = Duration::from_millis(250);

impl Control {
    /// Opens the database at `sqlite:PATH?mode=rwc` (see [`sqlite_url`]) or `postgres://…` and brings its tables up to date. Needs
    /// a runtime, and stays with it.
    ///
    /// # Errors
    /// When the database cannot be asked, or was made by a later version of this program.
    pub async fn open(url: &str) -> Result<Self> {
        let db = Arc::new(Db::open(url).await?);
        let told = Arc::new(watch::Sender::new(db.revision().await?));
        let watcher = tokio::spawn(look(db.clone(), told.clone())).abort_handle();
        Ok(Self { db, told, landed: watch::Sender::new(None), watcher, made: Mutex::new(None) })
    }

    /// The revision, whenever it changes, whoever changed it.
    pub fn watch(&self) -> watch::Receiver<i64> {
        self.told.subscribe()
    }

    /// Notes that this server goes by a revision, as far as it can.
    pub fn landed(&self, revision: i64) {
        self.landed.send_replace(Some(revision));
    }

    /// Waits for this server itself to go by what was just written, if it follows: whoever is given a token uses it at once. Not for
    /// ever, since what was written is written.
    async fn until_landed(&self) {
        let written = *self.told.borrow();
        let mut landed = self.landed.subscribe();
        let goes_by_it = landed.wait_for(|landed| landed.is_none_or(|revision| revision >= written));
        let _ = timeout(LANDS_WITHIN, goes_by_it).await;
    }

    /// Tells of a write of our own.
    fn tell(&self, revision: i64) {
        self.told.send_if_modified(|told| {
            let newer = revision > *told;
            *told = revision.max(*told);
            newer
        });
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Looks for writes of other processes, for as long as there is somebody to tell. While the database is away, nothing is told.
async fn look(db: Arc<Db>, told: Arc<watch::Sender<i64>>) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut away = false;
    loop {
        ticks.tick().await;
        let before = *told.borrow();
        match db.revision().await {
            Ok(revision) => {
                if away {
                    tracing::info!(revision, "the database of the rules is back");
                }
                away = false;
                // A write of our own while we looked has told what is newer. Otherwise what was read counts, also if it is older:
                // then somebody has put back a backup.
                told.send_if_modified(|told| {
                    let changed = *told == before && revision != before;
                    *told = if changed { revision } else { *told };
                    changed
                });
            }
            Err(error) if !away => {
                away = true;
                tracing::warn!(%error, "the database of the rules is away; nodes keep the rules they have");
            }
            Err(_) => {}
        }
    }
}
