//! The rules service over HTTP on real sockets, against a real database: who may do what, conflicts, odd input, waiting.
#![allow(missing_docs, unreachable_pub, reason = "a test")]

use std::path::Path;

use tollgate_server::control::sqlite_url;

mod changes;
mod description;
#[path = "../common/eventually.rs"]
mod eventually;
mod odd;
mod resp;
mod roles;
mod test_server;
mod waiting;

/// What keeps the database of a server.
type Keeper = ();

/// A database for a server, in SQLite; the same tests are made on PostgreSQL in `api_on_postgres`.
fn database(folder: &Path, _number: u32) -> (String, Keeper) {
    (sqlite_url(&folder.join("rules.db")), ())
}
