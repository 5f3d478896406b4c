//! Tests of the rules service. The same cases run on SQLite and on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and print")]

use tollgate_testkit::eventually;

#[macro_use]
mod test_database;

mod bulk;
mod concurrent_writers;
mod history;
mod killed;
mod overrides;
mod rules;
mod tokens;
