//! The databases of the test cases. A SQLite database is deleted when its case ends. A PostgreSQL database is
//! deleted when the last concurrent case ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;
use tollgate_server::control::model::{Change, StoredRule, WriteOutcome};
use tollgate_server::control::{Control, sqlite_url};
use tollgate_testkit::servers::Postgres;

/// Runs each case on SQLite and on PostgreSQL.
macro_rules! on_both_databases {
    ($($case:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[test] fn $case() { crate::test_database::on_sqlite(|database| super::$case(database)); })*
        }
        mod on_postgres {
            $(#[test] fn $case() { crate::test_database::on_postgres(|database| super::$case(database)); })*
        }
    };
}

/// An empty database.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    _directory: Option<TempDir>,
    _server: Option<Arc<Postgres>>,
}

impl TestDatabase {
    pub(crate) async fn open(&self) -> Control {
        Control::open(&self.url).await.unwrap()
    }
}

fn next_database_number() -> u32 {
    static DATABASE_COUNT: AtomicU32 = AtomicU32::new(0);
    DATABASE_COUNT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn sqlite() -> TestDatabase {
    let directory = tempfile::tempdir().unwrap();
    // The path contains characters that are special in URLs, and a directory that does not exist.
    let url = sqlite_url(&directory.path().join("a b%20?#").join("rules.db"));
    TestDatabase { url, _directory: Some(directory), _server: None }
}

/// Returns a new database on a PostgreSQL server that concurrent tests share. The last test stops the server.
pub(crate) fn postgres() -> TestDatabase {
    static SHARED_POSTGRES: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
    let mut shared = SHARED_POSTGRES.lock().unwrap_or_else(PoisonError::into_inner);
    let server = shared.upgrade().unwrap_or_else(|| Arc::new(Postgres::start()));
    *shared = Arc::downgrade(&server);
    drop(shared);
    TestDatabase {
        url: server.create_database(&format!("case{}", next_database_number())),
        _directory: None,
        _server: Some(server),
    }
}

pub(crate) fn on_sqlite<F: Future<Output = ()>>(case: impl FnOnce(Arc<TestDatabase>) -> F) {
    run_case(sqlite(), case);
}

pub(crate) fn on_postgres<F: Future<Output = ()>>(case: impl FnOnce(Arc<TestDatabase>) -> F) {
    run_case(postgres(), case);
}

pub(crate) fn run_case<F: Future<Output = ()>>(database: TestDatabase, case: impl FnOnce(Arc<TestDatabase>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(case(Arc::new(database)));
}

pub(crate) fn change_by(author: &str) -> Change {
    Change::by_author(author)
}

pub(crate) async fn put_rule(control: &Control, domain: &str, id: &str, text: &str) -> WriteOutcome<StoredRule> {
    control.rules().put(&change_by("ann"), domain, id, text.as_bytes()).await.unwrap()
}
