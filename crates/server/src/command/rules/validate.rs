//! What a server would say about files.

use std::io::Write;
use std::process::ExitCode;

use reqwest::Method;
use serde_json::{Value, json};
use tollgate_engine::rules::{Mistake, Place, Source, entry};

use crate::command::files::{self, File};
use crate::command::remote::Remote;
use crate::command::remote::show::{self, count};
use crate::command::tell;
use crate::config::remote::rules::ValidateArgs;
use crate::control::model::{Finding, Validation};

/// Prints what is wrong with files, each by itself and then all together; fails if there is something.
pub(super) fn run(remote: &Remote, args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let files = files::read(&args.paths)?;
    let mut answers: Vec<Value> = Vec::new();
    let mut fine = true;
    for file in &files {
        let request = remote.request(Method::POST, &["v1", "validate"])?.header("content-type", "application/yaml");
        let answer = remote.send(request.body(file.text.clone()), "validating")?;
        let validation: Validation = answer.parse()?;
        fine &= validation.mistakes.is_empty();
        if args.shown.json {
            let mut found: Value = answer.parse()?;
            found["file"] = json!(file.name);
            answers.push(found);
        } else {
            print(file, &validation)?;
        }
    }
    if args.shown.json {
        // One file: as it was sent; several: a list with their names.
        match (files.len(), answers.pop()) {
            (1, Some(mut only)) => {
                only.as_object_mut().map(|members| members.remove("file"));
                show::json(&only)?;
            }
            (_, last) => {
                answers.extend(last);
                show::json(&answers)?;
            }
        }
    }
    let sources: Vec<Source<'_>> = files.iter().map(File::source).collect();
    if fine
        && sources.len() > 1
        && let Err(mistakes) = entry::take_apart(&sources)
    {
        tell(&mistakes)?;
        fine = false;
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(file: &File, validation: &Validation) -> anyhow::Result<()> {
    let mut err = std::io::stderr().lock();
    for warning in &validation.warnings {
        write!(err, "warning: {}", shown(file, warning))?;
    }
    for mistake in &validation.mistakes {
        write!(err, "{}", shown(file, mistake))?;
    }
    if validation.mistakes.is_empty() {
        writeln!(std::io::stdout(), "{}: {}, no mistakes", file.name, count(validation.rules, "rule"))?;
    }
    Ok(())
}

/// As `tollgate check` shows it.
fn shown(file: &File, finding: &Finding) -> String {
    let Finding { line, column, problem, help } = finding.clone();
    let place = Place { line, column };
    let mistake = Mistake { file: (*file.name).into(), place, problem, help, snippet: None };
    mistake.in_text(&file.text).detailed()
}
