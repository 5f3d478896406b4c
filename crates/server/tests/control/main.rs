//! The rules service, the same cases on SQLite and on a real PostgreSQL.

#[macro_use]
mod place;

mod bulk;
mod costs;
mod history;
mod killed;
mod overrides;
mod rules;
mod together;
mod tokens;
