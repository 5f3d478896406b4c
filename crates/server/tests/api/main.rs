//! The rules service over HTTP on real sockets, against a real database: who may do what, conflicts, odd input, waiting.
#![allow(missing_docs, unreachable_pub, reason = "a test")]

mod changes;
mod description;
mod odd;
mod resp;
mod roles;
mod town;
mod waiting;
