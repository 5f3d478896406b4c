//! `tollgate check FILE`: what `serve --rules FILE` would say, without serving.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tollgate_engine::{Engine, MemoryStore};

use crate::config::raw::CheckArgs;
use crate::retrieve::file::{Watched, parse};

/// Prints every mistake with its place, or what is probably not meant; fails if there is a mistake.
///
/// # Errors
/// When the file cannot be read.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut file = Watched::new(args.file.clone());
    let name = file.path().display().to_string();
    let text = file.read().with_context(|| format!("cannot read {name}"))?;
    match parse(&name, &text) {
        Ok(rules) => {
            rules.left_out().map_or(Ok(()), super::tell)?;
            let engine = Engine::new(MemoryStore::new(1)?)?;
            for warning in engine.warnings(&rules) {
                write!(std::io::stderr(), "warning: {}", warning.detailed())?;
            }
            let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
            let (rules, domains) = (count(rules.len(), "rule"), count(rules.domains().len(), "domain"));
            writeln!(std::io::stdout(), "{name}: {rules} in {domains}, no mistakes")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            super::tell(&mistakes)?;
            Ok(ExitCode::FAILURE)
        }
    }
}
