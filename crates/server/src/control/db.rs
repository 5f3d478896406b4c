//! The connection: SQLite or PostgreSQL through one interface, and the one way in which writes are made.
//!
//! Every write is a transaction that changes the row of `head` first. On PostgreSQL that row is locked by it, on SQLite the
//! whole file is by `BEGIN IMMEDIATE`: either way writers go one after the other, also those of other processes, and what a
//! transaction reads after that is what it will replace.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Any, AnyPool, ConnectOptions, Connection, Executor, Row, SqlSafeStr, Transaction};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::error::ControlError;
use super::{Result, model::Change};
use crate::percent;

/// How long to wait for a connection: a database that is away is told soon.
const ACQUIRE: Duration = Duration::from_secs(3);
/// How long one write or read of something small may take.
pub(super) const SHORT: Duration = Duration::from_secs(10);
/// How long reading or writing everything may take.
pub(super) const LONG: Duration = Duration::from_secs(300);
/// Connections at most.
const CONNECTIONS: u32 = 6;
/// How often tables are tried to be made, if another process is at it, too.
const MIGRATE_TRIES: u32 = 5;

/// The changes to the tables, in order. A released one is never edited: databases remember its checksum.
const MIGRATIONS: [(i64, &str, &str); 2] = [
    (1, "rules", include_str!("../../migrations/0001_rules.sql")),
    (2, "overrides outlive rules", include_str!("../../migrations/0002_overrides_outlive_rules.sql")),
];
static DRIVERS: Once = Once::new();

/// Which database it is, for the little in which they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgres,
}

/// A database, ready to be asked.
#[derive(Debug)]
pub(super) struct Db {
    pool: AnyPool,
    kind: Kind,
    /// Writers of this process wait here, in turn: SQLite would have them try again and again, and the unlucky starve.
    turn: Mutex<()>,
}

impl Db {
    pub(super) async fn open(url: &str) -> Result<Self> {
        DRIVERS.call_once(sqlx::any::install_default_drivers);
        let kind = match url.split(':').next() {
            Some("sqlite") => Kind::Sqlite,
            Some("postgres" | "postgresql") => Kind::Postgres,
            _ => return Err(ControlError::Invalid("a database is given as `sqlite:PATH` or `postgres://…`".into())),
        };
        if kind == Kind::Sqlite {
            prepare_file(url).map_err(sqlx::Error::Io)?;
        }
        let options: AnyConnectOptions = url.parse()?;
        let options = options.disable_statement_logging();
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    for statement in kind.settings() {
                        connection.execute(*statement).await?;
                    }
                    Ok(())
                })
            })
            // SQLite ends a transaction by itself when its disk is full, and undoing it then fails: the connection would count as
            // being in one for good.
            .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
            .connect_with(options)
            .await?;
        let db = Self { pool, kind, turn: Mutex::new(()) };
        db.migrate().await?;
        Ok(db)
    }

    async fn migrate(&self) -> Result<()> {
        let migrations = MIGRATIONS.map(|(version, description, sql)| {
            Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
        });
        let migrator = Migrator::with_migrations(migrations.into());
        let mut tries = 0;
        loop {
            let outcome = within(LONG, async { Ok(migrator.run(&self.pool).await) }).await?;
            let Err(error) = outcome else { return Ok(()) };
            tries += 1;
            // Another process that starts at the same time may be making the same tables.
            if tries == MIGRATE_TRIES {
                return Err(sqlx::Error::Migrate(Box::new(error)).into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Begins a transaction that sees one state of everything and changes nothing.
    pub(super) async fn read(&self) -> Result<Transaction<'static, Any>> {
        Ok(match self.kind {
            Kind::Sqlite => self.pool.begin().await?,
            Kind::Postgres => self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?,
        })
    }

    /// Begins a change, after those that came before.
    pub(super) async fn write(&self, change: &Change) -> Result<Write<'_>> {
        if change.comment.as_ref().is_some_and(|comment| comment.chars().count() > MAX_COMMENT_CHARS) {
            return Err(ControlError::Invalid(format!("a comment has at most {MAX_COMMENT_CHARS} characters")));
        }
        if change.comment.as_ref().is_some_and(|comment| !storable(comment)) || !storable(&change.author) {
            return Err(ControlError::Invalid("a comment has no characters of the value zero".into()));
        }
        let turn = self.turn.lock().await;
        let mut tx = match self.kind {
            Kind::Sqlite => self.pool.begin_with("BEGIN IMMEDIATE").await?,
            Kind::Postgres => self.pool.begin().await?,
        };
        let head = sqlx::query("UPDATE head SET revision = revision + 1 RETURNING revision, rules, weight, audit")
            .fetch_one(&mut *tx)
            .await?;
        Ok(Write {
            tx,
            _turn: turn,
            author: change.author.clone(),
            comment: change.comment.clone(),
            at_ms: now_ms(),
            revision: head.try_get(0)?,
            rules: head.try_get(1)?,
            weight: head.try_get(2)?,
            audit: head.try_get(3)?,
        })
    }

    /// The revision of what is there.
    pub(super) async fn revision(&self) -> Result<i64> {
        within(SHORT, async {
            let row = sqlx::query("SELECT revision FROM head").fetch_one(&self.pool).await?;
            Ok(row.try_get(0)?)
        })
        .await
    }

    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }
}

/// The longest comment of a change.
pub(super) const MAX_COMMENT_CHARS: usize = 1000;

/// A change that is being made. Dropped, it never was.
pub(super) struct Write<'d> {
    pub(super) tx: Transaction<'static, Any>,
    _turn: MutexGuard<'d, ()>,
    pub(super) author: String,
    pub(super) comment: Option<String>,
    pub(super) at_ms: i64,
    /// The one that this makes.
    pub(super) revision: i64,
    pub(super) rules: i64,
    pub(super) weight: i64,
    pub(super) audit: i64,
}

impl Write<'_> {
    /// Makes it so, and returns the revision. It is on disk after that, and only then.
    pub(super) async fn commit(mut self) -> Result<i64> {
        sqlx::query("UPDATE head SET revision = $1, rules = $2, weight = $3, audit = $4")
            .bind(self.revision)
            .bind(self.rules)
            .bind(self.weight)
            .bind(self.audit)
            .execute(&mut *self.tx)
            .await?;
        self.tx.commit().await?;
        Ok(self.revision)
    }

    /// Undoes it, before anybody else goes on.
    pub(super) async fn undo(self) -> Result<()> {
        Ok(self.tx.rollback().await?)
    }
}

impl Kind {
    /// What is set on every connection.
    fn settings(self) -> &'static [&'static str] {
        match self {
            // What was acknowledged is on disk, also if the power fails.
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

/// The address of a SQLite database in a file, whatever characters its path has.
pub fn sqlite_url(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
    format!("sqlite:{}?mode=rwc", percent::encode(path.as_os_str().as_encoded_bytes(), plain))
}

/// Makes the directory and the file, which nobody else may read: it has digests of tokens in it.
fn prepare_file(url: &str) -> io::Result<()> {
    let Some(path) = path_of(url) else { return Ok(()) };
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

/// The file of a SQLite database, if it is one.
fn path_of(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path == ":memory:" || path.is_empty() || options.contains("mode=memory") {
        return None;
    }
    Some(PathBuf::from(String::from_utf8(percent::decode(path.as_bytes())).ok()?))
}

/// Gives up after a while: a database that does not answer is as good as away.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        let why = format!("it did not answer within {} s", limit.as_secs());
        Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why)).into())
    })
}

/// Whether both databases can hold a text: PostgreSQL has none with a zero in it.
pub(super) fn storable(text: &str) -> bool {
    !text.contains('\0')
}

pub(super) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A truth, which is kept as a number: the two databases have no type for it in common.
pub(super) fn truth(row: &AnyRow, column: &str) -> Result<bool> {
    Ok(row.try_get::<i64, _>(column)? != 0)
}
