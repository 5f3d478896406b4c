//! Where rules come from: a file, this server's own database, or another server. Whichever it is, rules are compiled off the threads
//! that decide, put in force whole, and refused whole; those in force stay until better ones come.

pub mod database;
pub mod file;
pub mod include;
mod land;
pub mod poll;

pub use land::{Landed, land};
