//! `tollgate check PATH…`: applies the checks of `serve --rules` to rule files, without a server.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use super::faults::FaultArgs;
use super::files::{self, RuleFile};
use super::{count_with_noun, print_mistakes};
use crate::rules_source::file::{parse_all, parse_valid};

#[derive(Clone, Debug, Args)]
pub(super) struct CheckArgs {
    /// Rule files, or folders with *.yaml, *.yml and *.json; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    faults: FaultArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate check rules.yaml
  tollgate check rules/ login.yaml      all together, as for `rules apply`
  tollgate check --faults --nodes 5 rules.yaml

Each mistake is printed with its file, line and column. The exit status is 1 if there are any.";

/// Prints every mistake and warning with its position. The exit status is 1 if there is a mistake.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let files = files::read_paths(&args.paths)?;
    let sources: Vec<Source<'_>> = files.iter().map(RuleFile::as_source).collect();
    match parse_all(&sources) {
        Ok(rules) => {
            print_warnings(&files, &rules)?;
            rules.left_out().map_or(Ok(()), print_mistakes)?;
            let what = match &*files {
                [only] => only.name.clone(),
                several => count_with_noun(several.len(), "file"),
            };
            let (number, domains) =
                (count_with_noun(rules.len(), "rule"), count_with_noun(rules.domains().len(), "domain"));
            writeln!(std::io::stdout(), "{what}: {number} in {domains}, no mistakes")?;
            args.faults.print_bounds(&rules, |_, _| true)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            print_mistakes(&mistakes)?;
            print_warnings(&files, &parse_valid(&sources))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn print_warnings(files: &[RuleFile], rules: &Rules) -> anyhow::Result<()> {
    let engine = Engine::new(MemoryStore::new(1)?)?;
    for warning in engine.warnings(rules) {
        // A warning may be about any of the files, so the text of its file is looked up by name.
        let text = files.iter().find(|file| *file.name == *warning.file).map_or(&[][..], |file| &file.text);
        write!(std::io::stderr(), "warning: {}", warning.with_source_line(text).to_detailed_text())?;
    }
    Ok(())
}
