//! The source of the rules in force: files, this server's own database, a rules service, or an xDS server.
//!
//! All sources use the module `install`. The module compiles the rules on a thread that makes no decisions, and then
//! installs all of them or none. The rules in force stay until new rules are installed.

pub mod database;
pub mod file;
pub mod folder;
pub mod include;
mod install;
pub mod poll;
pub mod status;
pub mod watch;
pub mod xds;

pub use install::{InstallOutcome, install_snapshot};
