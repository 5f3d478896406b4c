//! The subcommands, one file each. Their errors are for people: a sentence with what to do.

pub mod audit;
pub mod check;
pub mod decide;
pub mod explain;
mod files;
pub mod fmt;
pub mod import;
pub mod keys;
mod remote;
pub mod rules;
pub mod serve;
pub mod tokens;

use std::io::Write;

use tollgate_engine::rules::Mistakes;

/// Tells why a command failed, on the standard error stream.
pub fn report(error: &anyhow::Error) {
    // Whoever closed the pipe, such as `head`, has seen enough.
    let closed = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(closed) {
        return;
    }
    // If even that cannot be written, nobody is listening.
    let _ = writeln!(std::io::stderr(), "tollgate: {error:#}");
}

/// Tells mistakes in a file over several lines each, on the standard error stream.
fn tell(mistakes: &Mistakes) -> std::io::Result<()> {
    let mut out = std::io::stderr().lock();
    for mistake in mistakes.as_slice() {
        write!(out, "{}", mistake.detailed())?;
    }
    if mistakes.left_out() > 0 {
        writeln!(out, "and {} more", mistakes.left_out())?;
    }
    Ok(())
}
