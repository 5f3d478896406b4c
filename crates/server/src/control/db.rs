//! The database (SQLite or PostgreSQL, behind one interface), and the only code path for writes.
//!
//! Every write is a transaction that first updates the row of `head`. PostgreSQL locks that row; SQLite locks the whole
//! file with `BEGIN IMMEDIATE`. Writers in all processes therefore run one after the other, and the values that a
//! transaction has read cannot change before it commits.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Any, AnyConnection, AnyPool, ConnectOptions, Connection, Executor, Row, SqlSafeStr, Transaction};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::error::ControlError;
use super::model::{Change, ExpectedVersion};
use super::sql::Sql;
use super::{Result, audit};

/// Timeout for getting a connection. The timeout is short, so that an unreachable database is reported soon.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for a small read or write.
pub(super) const SHORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for an operation that reads or writes all rules.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between polls for writes by other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of connections in the pool.
const MAX_CONNECTIONS: u32 = 6;
/// Maximum number of migration attempts. An attempt may fail because another process migrates the same database.
const MAX_MIGRATION_ATTEMPTS: u32 = 5;
/// Maximum length of a change's comment, in characters.
const MAX_COMMENT_CHARS: usize = 1000;

/// The migrations, in order. A released migration must never be edited, because databases store its checksum.
const MIGRATIONS: [(i64, &str, &str); 3] = [
    (1, "rules", include_str!("../../migrations/0001_rules.sql")),
    (2, "overrides outlive rules", include_str!("../../migrations/0002_overrides_outlive_rules.sql")),
    (3, "fleet switch", include_str!("../../migrations/0003_fleet_switch.sql")),
];
static INSTALL_DRIVERS: Once = Once::new();

/// The kind of database. Some statements differ between the two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Db {
    pool: AnyPool,
    kind: DatabaseKind,
    /// Queues the writers of this process in FIFO order. Without this queue, SQLite writers would retry in any order,
    /// and some could starve.
    writer_queue: Mutex<()>,
    /// The last known revision.
    revision: watch::Sender<i64>,
}

impl Db {
    pub(super) async fn open(url: &str) -> Result<Self> {
        INSTALL_DRIVERS.call_once(sqlx::any::install_default_drivers);
        let kind = match url.split(':').next() {
            Some("sqlite") => DatabaseKind::Sqlite,
            Some("postgres" | "postgresql") => DatabaseKind::Postgres,
            _ => return Err(ControlError::Invalid("not a database URL: write sqlite:PATH or postgres://…".into())),
        };
        if kind == DatabaseKind::Sqlite {
            create_private_file(url).map_err(sqlx::Error::Io)?;
        }
        let options: AnyConnectOptions = url.parse()?;
        let options = options.disable_statement_logging();
        // Opens the first connection without the pool, because the pool would retry and hide the cause of a failure.
        let mut first =
            with_timeout(ACQUIRE_TIMEOUT, async { Ok(AnyConnection::connect_with(&options).await?) }).await?;
        for statement in kind.connection_settings() {
            first.execute(*statement).await?;
        }
        first.close().await?;
        let pool = AnyPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    for statement in kind.connection_settings() {
                        connection.execute(*statement).await?;
                    }
                    Ok(())
                })
            })
            // Drops connections that sqlx believes to be in a transaction. When the disk is full, SQLite ends the
            // transaction itself, the later rollback fails, and sqlx never learns that the transaction has ended.
            .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
            .connect_with(options)
            .await?;
        let db = Self { pool, kind, writer_queue: Mutex::new(()), revision: watch::Sender::new(0) };
        db.migrate().await?;
        db.revision.send_replace(db.read_revision().await?);
        Ok(db)
    }

    async fn migrate(&self) -> Result<()> {
        let migrations = MIGRATIONS.map(|(version, description, sql)| {
            Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
        });
        let migrator = Migrator::with_migrations(migrations.into());
        let mut tries = 0;
        loop {
            let outcome = with_timeout(LONG_TIMEOUT, async { Ok(migrator.run(&self.pool).await) }).await?;
            let Err(error) = outcome else { return Ok(()) };
            tries += 1;
            // Retries, because another process that starts at the same time may be creating the same tables.
            if tries == MAX_MIGRATION_ATTEMPTS {
                return Err(sqlx::Error::Migrate(Box::new(error)).into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Begins a read-only transaction that sees one consistent state of all tables.
    pub(super) async fn begin_read(&self) -> Result<Transaction<'static, Any>> {
        Ok(match self.kind {
            DatabaseKind::Sqlite => self.pool.begin().await?,
            DatabaseKind::Postgres => self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?,
        })
    }

    /// Begins a write transaction, in FIFO order with the other writers of this process.
    pub(super) async fn begin_write<'d>(&'d self, change: &Change) -> Result<Write<'d>> {
        let Change { author, comment, expected } = change;
        if comment.as_ref().is_some_and(|comment| comment.chars().count() > MAX_COMMENT_CHARS) {
            return Err(ControlError::Invalid(format!("comment too long (maximum {MAX_COMMENT_CHARS} characters)")));
        }
        if !are_storable([author, comment.as_deref().unwrap_or_default()]) {
            return Err(ControlError::Invalid("a comment cannot contain NUL characters".into()));
        }
        let writer_queue = self.writer_queue.lock().await;
        let mut tx = match self.kind {
            DatabaseKind::Sqlite => self.pool.begin_with("BEGIN IMMEDIATE").await?,
            DatabaseKind::Postgres => self.pool.begin().await?,
        };
        let head = sqlx::query("UPDATE head SET revision = revision + 1 RETURNING revision, rules, weight, audit")
            .fetch_one(&mut *tx)
            .await?;
        Ok(Write {
            db: self,
            tx,
            _queue_guard: writer_queue,
            authorship: Authorship { author: author.clone(), at_ms: now_ms(), comment: comment.clone() },
            expected: *expected,
            revision: head.try_get(0)?,
            rules: head.try_get(1)?,
            size: head.try_get(2)?,
            audit: head.try_get(3)?,
        })
    }

    /// Reads the current revision.
    async fn read_revision(&self) -> Result<i64> {
        with_timeout(SHORT_TIMEOUT, async { revision(&mut *self.pool.acquire().await?).await }).await
    }

    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Subscribes to the revision.
    pub(super) fn watch_revision(&self) -> watch::Receiver<i64> {
        self.revision.subscribe()
    }

    /// Publishes a revision, unless a newer revision is known.
    pub(super) fn publish_revision(&self, revision: i64) {
        self.revision.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
    }

    /// Polls for writes by other processes and publishes their revisions. While the database is unreachable, publishes
    /// nothing.
    pub(super) async fn poll_revision(self: Arc<Self>) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unreachable = false;
        loop {
            ticks.tick().await;
            let before = *self.revision.borrow();
            match self.read_revision().await {
                Ok(revision) => {
                    if unreachable {
                        tracing::info!(revision, "rules database reachable again");
                    }
                    unreachable = false;
                    // If this process wrote during the poll, it has already published a newer revision. That revision
                    // stays. Otherwise the polled revision is published, even if it is lower (after a backup was
                    // restored).
                    self.revision.send_if_modified(|known| {
                        let changed = *known == before && revision != before;
                        *known = if changed { revision } else { *known };
                        changed
                    });
                }
                Err(error) if !unreachable => {
                    unreachable = true;
                    tracing::warn!(%error, "rules database unreachable; nodes keep their rules");
                }
                Err(_) => {}
            }
        }
    }
}

/// Reads the current revision on the given connection.
pub(super) async fn revision(connection: &mut AnyConnection) -> Result<i64> {
    Ok(sqlx::query("SELECT revision FROM head").fetch_one(connection).await?.try_get(0)?)
}

/// The author, time and comment of a change, which are stored with every version.
#[derive(Clone, Debug)]
pub(super) struct Authorship {
    pub(super) author: String,
    pub(super) at_ms: i64,
    pub(super) comment: Option<String>,
}

impl Authorship {
    pub(super) fn from_row(row: &AnyRow) -> Result<Self> {
        Ok(Self { author: row.try_get("author")?, at_ms: row.try_get("at_ms")?, comment: row.try_get("comment")? })
    }
}

/// A write transaction. Dropping a `Write` without a commit rolls back the transaction.
pub(super) struct Write<'d> {
    db: &'d Db,
    pub(super) tx: Transaction<'static, Any>,
    _queue_guard: MutexGuard<'d, ()>,
    pub(super) authorship: Authorship,
    pub(super) expected: ExpectedVersion,
    /// The revision that this write creates.
    pub(super) revision: i64,
    /// Number of rules.
    pub(super) rules: i64,
    /// The total size of all rules and overrides (see `size.rs`).
    pub(super) size: i64,
    /// The sequence number of the last audit entry.
    pub(super) audit: i64,
}

impl Write<'_> {
    /// Commits the transaction to disk, and publishes and returns its revision.
    pub(super) async fn commit(mut self) -> Result<i64> {
        Sql::new("UPDATE head SET revision = ")
            .bind(self.revision)
            .push(", rules = ")
            .bind(self.rules)
            .push(", weight = ")
            .bind(self.size)
            .push(", audit = ")
            .bind(self.audit)
            .execute(&mut *self.tx)
            .await?;
        self.tx.commit().await?;
        self.db.publish_revision(self.revision);
        Ok(self.revision)
    }

    /// Raises the idle-in-transaction timeout of PostgreSQL to [`LONG_TIMEOUT`], for long computations between two
    /// statements.
    pub(super) async fn allow_idle(&mut self) -> Result<()> {
        if self.db.kind == DatabaseKind::Postgres {
            self.tx.execute("SET LOCAL idle_in_transaction_session_timeout = '300s'").await?;
        }
        Ok(())
    }

    /// Rolls back and waits for the rollback, so that it is complete before the next writer begins.
    pub(super) async fn rollback(self) -> Result<()> {
        Ok(self.tx.rollback().await?)
    }

    /// Appends entries to the audit log.
    pub(super) async fn append_to_audit_log(&mut self, entries: &[audit::NewEntry<'_>]) -> Result<()> {
        audit::append_entries(self, entries).await
    }
}

impl DatabaseKind {
    /// Returns the statements that run on every new connection.
    fn connection_settings(self) -> &'static [&'static str] {
        match self {
            // `synchronous = FULL` keeps acknowledged writes on disk even if the power fails.
            Self::Sqlite => &[
                "PRAGMA busy_timeout = 5000",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = FULL",
                "PRAGMA foreign_keys = ON",
            ],
            Self::Postgres => &[
                "SET statement_timeout = '60s'",
                "SET lock_timeout = '10s'",
                "SET idle_in_transaction_session_timeout = '60s'",
                "SET synchronous_commit = on",
            ],
        }
    }
}

/// Characters that are percent-encoded in the path of a SQLite URL.
const ENCODED_IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// Returns the URL of a SQLite database file. The path may contain any characters.
pub fn sqlite_url(path: &Path) -> String {
    format!("sqlite:{}?mode=rwc", percent_encode(path.as_os_str().as_encoded_bytes(), ENCODED_IN_PATH))
}

/// Creates the directory and the file of a SQLite URL. Only the owner may read the directory and the file, because the
/// file contains token digests.
fn create_private_file(url: &str) -> io::Result<()> {
    let Some(path) = sqlite_file_path(url) else { return Ok(()) };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(directory)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// Returns the file path in a SQLite URL, or `None` for an in-memory database and for other URLs.
fn sqlite_file_path(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path == ":memory:" || path.is_empty() || options.contains("mode=memory") {
        return None;
    }
    Some(PathBuf::from(percent_decode(path.as_bytes()).decode_utf8().ok()?.into_owned()))
}

/// Runs a database operation and fails if it takes longer than `limit`.
pub(super) async fn with_timeout<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", limit.as_secs());
        Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why)).into())
    })
}

/// Returns whether both kinds of database can store these strings. PostgreSQL refuses NUL characters.
pub(super) fn are_storable<const N: usize>(texts: [&str; N]) -> bool {
    texts.iter().all(|text| !text.contains('\0'))
}

pub(super) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Reads a boolean column. Booleans are stored as integers, because the two databases have no common boolean type.
pub(super) fn read_boolean(row: &AnyRow, column: &str) -> Result<bool> {
    Ok(row.try_get::<i64, _>(column)? != 0)
}
