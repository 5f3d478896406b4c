//! `tollgate check PATH…`: what `serve --rules` would say of a file, or a server of several that are applied, without serving.

use std::io::Write;
use std::process::ExitCode;

use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use super::files::{self, File};
use super::remote::show::count;
use crate::config::raw::CheckArgs;
use crate::retrieve::file::{parse_all, parse_sound};

/// Prints every mistake with its place, and what is probably not meant; fails if there is a mistake.
///
/// # Errors
/// When a file cannot be read.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let files = files::read(&args.paths)?;
    let sources: Vec<Source<'_>> = files.iter().map(File::source).collect();
    match parse_all(&sources) {
        Ok(rules) => {
            warn(&files, &rules)?;
            rules.left_out().map_or(Ok(()), super::tell)?;
            let what = match &*files {
                [only] => only.name.clone(),
                several => count(several.len(), "file"),
            };
            let (rules, domains) = (count(rules.len(), "rule"), count(rules.domains().len(), "domain"));
            writeln!(std::io::stdout(), "{what}: {rules} in {domains}, no mistakes")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            super::tell(&mistakes)?;
            warn(&files, &parse_sound(&sources))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Prints what is probably not meant.
fn warn(files: &[File], rules: &Rules) -> anyhow::Result<()> {
    let engine = Engine::new(MemoryStore::new(1)?)?;
    for warning in engine.warnings(rules) {
        // Several files are looked at together, and each line is in one of them.
        let text = files.iter().find(|file| *file.name == *warning.file).map_or(&[][..], |file| &file.text);
        write!(std::io::stderr(), "warning: {}", warning.in_text(text).detailed())?;
    }
    Ok(())
}
