//! `tollgate fmt FILE…`: rule files in their canonical form.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tollgate_engine::rules::{FormatError, Source, format};

use crate::config::raw::FmtArgs;
use crate::retrieve::file::Watched;

/// Formats files in their place, or tells which are not in their form.
///
/// # Errors
/// When a file cannot be read or written.
pub fn run(args: &FmtArgs) -> anyhow::Result<ExitCode> {
    let mut fine = true;
    for path in &args.files {
        let name = path.display().to_string();
        let text = Watched::new(path.clone()).read().with_context(|| format!("cannot read {name}"))?;
        match format(&Source { name: &name, text: &text }) {
            Ok(formatted) if formatted.as_bytes() == text => {}
            Ok(_) if args.check => {
                writeln!(std::io::stderr(), "{name}: not in its canonical form; run `tollgate fmt {name}`")?;
                fine = false;
            }
            Ok(formatted) => replace(path, &formatted).with_context(|| format!("cannot write {name}"))?,
            Err(FormatError::Mistakes(mistakes)) => {
                super::tell(&mistakes)?;
                fine = false;
            }
            Err(FormatError::Loses { line, what }) => {
                writeln!(std::io::stderr(), "{name}:{line}: {what} would be lost, so nothing was changed")?;
                fine = false;
            }
        }
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Puts a new file in the place of one, whole or not at all: a server may be looking at it.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // A link stays a link.
    let path = path.canonicalize()?;
    let beside = path.with_extension(format!("tollgate-{}.tmp", std::process::id()));
    let write = || {
        std::fs::write(&beside, text)?;
        std::fs::set_permissions(&beside, std::fs::metadata(&path)?.permissions())?;
        std::fs::rename(&beside, &path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}
