//! The subcommands, one file each. Their errors are for people: a sentence with what to do.

pub mod check;
pub mod explain;
pub mod serve;

use std::io::Write;

/// Tells why a command failed, on the standard error stream.
pub fn report(error: &anyhow::Error) {
    // If even that cannot be written, nobody is listening.
    let _ = writeln!(std::io::stderr(), "tollgate: {error:#}");
}
