//! `tollgate import FILE`: rules of limits that were written for something else.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tollgate_engine::rules::{Dialect, Imported, Source};

use crate::config::raw::{ImportArgs, ImportFrom};
use crate::retrieve::file::Watched;
use crate::retrieve::include::included_by;

/// Prints the rules, and tells what they cannot say.
///
/// # Errors
/// When the file cannot be read.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let mut file = Watched::new(args.file.clone());
    let name = file.path().display().to_string();
    let text = file.read().with_context(|| format!("cannot read {name}"))?;
    let dialect = args.from.map(|from| match from {
        ImportFrom::Envoy => Dialect::Envoy,
        ImportFrom::Nginx => Dialect::Nginx,
    });
    let source = Source { name: &name, text: &text };
    match Imported::read_with(&source, dialect, &args.domain, &|pattern| included_by(&args.file, pattern)) {
        Ok(imported) => {
            std::io::stdout().write_all(imported.yaml.as_bytes())?;
            imported.left_out.as_ref().map_or(Ok(()), super::tell)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            super::tell(&mistakes)?;
            Ok(ExitCode::FAILURE)
        }
    }
}
