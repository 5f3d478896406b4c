//! The rules service over HTTP on real sockets, with a real database: roles, conflicts, unusual input
//! and long polls.
#![allow(missing_docs, unreachable_pub, reason = "a test")]

use std::path::Path;

use tollgate_server::control::sqlite_url;
use tollgate_testkit::eventually;

mod changes;
mod description;
mod replay;
mod resp;
mod roles;
mod test_server;
mod unusual_input;
mod waiting;

/// Keeps the database of a test alive. Empty, because SQLite needs no database server.
type DatabaseOwner = ();

/// Returns the URL of a SQLite database. `api_on_postgres` runs the same tests on PostgreSQL.
fn new_database(folder: &Path, _number: u32) -> (String, DatabaseOwner) {
    (sqlite_url(&folder.join("rules.db")), ())
}
