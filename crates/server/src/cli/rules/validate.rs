//! `tollgate rules validate`: checks files on a server.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tollgate_engine::rules::{Mistake, Position, Source, entry};

use crate::cli::files::{self, RuleFile};
use crate::cli::remote::Remote;
use crate::cli::remote::output::{self, OutputArgs};
use crate::cli::{count_with_noun, exit_code, print_mistakes};
use crate::control::model::{Finding, Validation};

#[derive(Clone, Debug, Args)]
pub(super) struct ValidateArgs {
    /// Rule files, or folders with *.yaml, *.yml and *.json; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Checks each file alone and then all files together, and prints the mistakes. The exit status is 1 if there are any.
pub(super) fn run(remote: &Remote, args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let files = files::read_paths(&args.paths)?;
    let mut answers: Vec<Value> = Vec::new();
    let mut success = true;
    for file in &files {
        let request = remote.request(Method::POST, &["v1", "validate"])?.header("content-type", "application/yaml");
        let answer = remote.send(request.body(file.text.clone()), "validating")?;
        let validation: Validation = answer.parse()?;
        success &= validation.mistakes.is_empty();
        if args.output.json {
            let mut found: Value = answer.parse()?;
            found["file"] = json!(file.name);
            answers.push(found);
        } else {
            print_validation(file, &validation)?;
        }
    }
    if args.output.json {
        // For one file, prints the server's answer. For several files, prints a list of answers with file names.
        match (files.len(), answers.pop()) {
            (1, Some(mut only)) => {
                only.as_object_mut().map(|members| members.remove("file"));
                output::print_json(&only)?;
            }
            (_, last) => {
                answers.extend(last);
                output::print_json(&answers)?;
            }
        }
    }
    let sources: Vec<Source<'_>> = files.iter().map(RuleFile::as_source).collect();
    if success
        && sources.len() > 1
        && let Err(mistakes) = entry::split_files(&sources)
    {
        print_mistakes(&mistakes)?;
        success = false;
    }
    Ok(exit_code(success))
}

fn print_validation(file: &RuleFile, validation: &Validation) -> anyhow::Result<()> {
    let mut err = std::io::stderr().lock();
    for warning in &validation.warnings {
        write!(err, "warning: {}", format_finding(file, warning))?;
    }
    for mistake in &validation.mistakes {
        write!(err, "{}", format_finding(file, mistake))?;
    }
    if validation.more_mistakes > 0 {
        writeln!(err, "and {} more", validation.more_mistakes)?;
    }
    if validation.mistakes.is_empty() {
        writeln!(std::io::stdout(), "{}: {}, no mistakes", file.name, count_with_noun(validation.rules, "rule"))?;
    }
    Ok(())
}

/// Formats a finding as `tollgate check` does.
fn format_finding(file: &RuleFile, finding: &Finding) -> String {
    let Finding { line, column, problem, help } = finding.clone();
    let position = Position { line, column };
    let mistake = Mistake { file: (*file.name).into(), position, problem, help, snippet: None };
    mistake.with_source_line(&file.text).to_detailed_text()
}
