//! `tollgate fmt FILE…`: formats rule files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tollgate_engine::rules::{FormatterError, format};

use super::{exit_code, files, print_mistakes};

#[derive(Clone, Debug, Args)]
pub(super) struct FmtArgs {
    /// The rule files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Change nothing, and fail if a file is not formatted
    #[arg(long)]
    check: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate fmt rules.yaml
  tollgate fmt --check rules/*.yaml      for continuous integration

Comments stay with the keys that they describe. A file that would lose something, such as anchors and aliases, is \
reported and left unchanged. The exit status is 1 in that case, and with --check if a file is not formatted.";

/// Formats files in place, or reports the files that are not formatted.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub(super) fn run(args: &FmtArgs) -> anyhow::Result<ExitCode> {
    let mut success = true;
    for path in &args.files {
        let file = files::read_file(path)?;
        let name = &file.name;
        match format(&file.as_source()) {
            Ok(formatted) if formatted.as_bytes() == file.text => {}
            Ok(_) if args.check => {
                writeln!(std::io::stderr(), "{name}: not in its canonical form; run `tollgate fmt {name}`")?;
                success = false;
            }
            Ok(formatted) => replace_atomically(path, &formatted).with_context(|| format!("cannot write {name}"))?,
            Err(FormatterError::Mistakes(mistakes)) => {
                print_mistakes(&mistakes)?;
                success = false;
            }
            Err(FormatterError::Loses { line, what }) => {
                writeln!(std::io::stderr(), "{name}:{line}: {what} would be lost, so nothing was changed")?;
                success = false;
            }
        }
    }
    Ok(exit_code(success))
}

/// Replaces a file atomically, because a server may be watching it.
fn replace_atomically(path: &Path, text: &str) -> std::io::Result<()> {
    // Resolves a symbolic link, so that its target is replaced and the link stays.
    let path = path.canonicalize()?;
    let temporary = path.with_extension(format!("tollgate-{}.tmp", std::process::id()));
    let write = || {
        std::fs::write(&temporary, text)?;
        std::fs::set_permissions(&temporary, std::fs::metadata(&path)?.permissions())?;
        std::fs::rename(&temporary, &path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}
