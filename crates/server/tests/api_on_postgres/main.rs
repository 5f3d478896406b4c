//! The `api` tests with a real PostgreSQL.
#![allow(missing_docs, unreachable_pub, reason = "a test")]

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tollgate_testkit::eventually;
use tollgate_testkit::servers::Postgres;

#[path = "../api/changes.rs"]
mod changes;
#[path = "../api/replay.rs"]
mod replay;
#[path = "../api/resp.rs"]
mod resp;
#[path = "../api/roles.rs"]
mod roles;
#[path = "../api/test_server.rs"]
mod test_server;
#[path = "../api/unusual_input.rs"]
mod unusual_input;
#[path = "../api/waiting.rs"]
mod waiting;

/// Keeps the database server of a test running.
type DatabaseOwner = Arc<Postgres>;

/// Creates a database on a PostgreSQL server that concurrent tests share.
fn new_database(_folder: &Path, number: u32) -> (String, DatabaseOwner) {
    static SHARED_POSTGRES: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
    let mut running = SHARED_POSTGRES.lock().unwrap_or_else(PoisonError::into_inner);
    let server = running.upgrade().unwrap_or_else(|| Arc::new(Postgres::start()));
    *running = Arc::downgrade(&server);
    (server.create_database(&format!("server{number}")), server)
}
