//! `tollgate rules apply`: checks files, shows the plan, and applies exactly that plan.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use reqwest::{Method, StatusCode};
use tollgate_engine::rules::{Source, entry};

use crate::cli::files::{self, RuleFile};
use crate::cli::remote::output::{self, DiffColours, OutputArgs, replace_control_characters};
use crate::cli::remote::{CommentArgs, ErrorAnswer, Remote, with_comment};
use crate::cli::{count_with_noun, print_error, print_mistakes};
use crate::control::model::{Action, Plan, PlanEntry};

#[derive(Clone, Debug, Args)]
pub(super) struct ApplyArgs {
    /// Rule files, or folders with *.yaml, *.yml and *.json; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Only show the changes; the exit status is 0 if there are none, 1 if there are some, 2 if the plan failed
    #[arg(long)]
    plan: bool,

    /// Delete rules that are missing from the files, in the domains of the files
    #[arg(long)]
    prune: bool,

    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,

    #[command(flatten)]
    comment: CommentArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate rules apply rules.yaml
  tollgate rules apply --plan rules/                        the changes, for a review
  tollgate rules apply --yes --prune -m \"$COMMIT\" rules/     from continuous integration
  tollgate rules export | tollgate rules apply --plan -     nothing would change

The files are checked first, as by `tollgate check`. Then the plan is shown and, on a terminal, confirmed. It is applied only if \
the rules on the server have not changed since. All files are applied together, all of them or none.";

/// Maximum number of created or deleted rules whose text is shown. If there are more, only their ids are shown.
const MAX_SHOWN_TEXTS: usize = 20;
/// Maximum number of attempts while other authors make changes that do not affect the plan.
const MAX_ATTEMPTS: usize = 20;

/// Applies the files. With `--plan`, only shows the changes; the exit status is 1 if there are changes and 2 if the plan
/// failed, as with `diff`.
pub(super) fn run(remote: &Remote, args: &ApplyArgs) -> ExitCode {
    match try_apply(remote, args) {
        Ok(ApplyOutcome::Done) => ExitCode::SUCCESS,
        Ok(ApplyOutcome::Differs) => ExitCode::FAILURE,
        Ok(ApplyOutcome::Mistakes) => exit_code_of_failure(args),
        Err(error) => {
            print_error(&error);
            exit_code_of_failure(args)
        }
    }
}

fn exit_code_of_failure(args: &ApplyArgs) -> ExitCode {
    if args.plan { ExitCode::from(2) } else { ExitCode::FAILURE }
}

enum ApplyOutcome {
    Done,
    Differs,
    Mistakes,
}

fn try_apply(remote: &Remote, args: &ApplyArgs) -> anyhow::Result<ApplyOutcome> {
    let files = files::read_paths(&args.paths)?;
    let Some(text) = check_files(&files)? else { return Ok(ApplyOutcome::Mistakes) };
    let proposal = ApplyRequest { remote, args, text };
    let mut plan = proposal.plan()?;
    show_plan(&plan, args)?;
    let nothing = plan.changes.is_empty();
    if args.plan || nothing {
        if args.output.json {
            output::print_json(&plan)?;
        }
        return Ok(if nothing { ApplyOutcome::Done } else { ApplyOutcome::Differs });
    }
    if !args.yes && io::stdin().is_terminal() && !ask_to_confirm(proposal.remote)? {
        bail!("nothing was changed");
    }
    for _ in 0..MAX_ATTEMPTS {
        match proposal.apply(&plan) {
            Ok(applied) => {
                if args.output.json {
                    output::print_json(&applied)?;
                } else {
                    writeln!(io::stdout(), "applied, revision {}", applied.revision)?;
                }
                return Ok(ApplyOutcome::Done);
            }
            Err(error) if is_conflict(&error) => {
                // Another author changed something. Try again if the plan is still the same.
                let again = proposal.plan()?;
                if again.changes != plan.changes {
                    show_plan(&again, args)?;
                    return Err(error.context(
                        "nothing was applied: the rules were changed after the plan was shown; the new plan is printed, \
                         run the command again to apply it",
                    ));
                }
                plan = again;
            }
            Err(error) => return Err(error),
        }
    }
    bail!("nothing was applied: the rules change too often; try again")
}

fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ErrorAnswer>().is_some_and(|answer| answer.status == StatusCode::PRECONDITION_FAILED)
}

/// Checks the files for mistakes. Returns the text to send, or `None` if there are mistakes.
fn check_files(files: &[RuleFile]) -> anyhow::Result<Option<Vec<u8>>> {
    let sources: Vec<Source<'_>> = files.iter().map(RuleFile::as_source).collect();
    let taken = match entry::split_files(&sources) {
        Ok(taken) => taken,
        Err(mistakes) => {
            print_mistakes(&mistakes)?;
            return Ok(None);
        }
    };
    if let [only] = files {
        // A single file is sent unchanged, so that line numbers in warnings match the file.
        return Ok(Some(only.text.clone()));
    }
    taken.rules.left_out().map_or(Ok(()), print_mistakes)?;
    let mut rules: HashMap<&str, Vec<&str>> = HashMap::new();
    for rule in &taken.entries {
        rules.entry(&rule.domain).or_default().push(&rule.json);
    }
    let domains = taken.domains.iter().map(|domain| (&**domain, rules.remove(&**domain).unwrap_or_default()));
    Ok(Some(entry::to_json(domains).into_bytes()))
}

/// A request to apply files: the server, the options and the text to send.
struct ApplyRequest<'a> {
    remote: &'a Remote,
    args: &'a ApplyArgs,
    text: Vec<u8>,
}

impl ApplyRequest<'_> {
    fn plan(&self) -> anyhow::Result<Plan> {
        let request = self.request()?.query(&[("plan", "true")]);
        self.remote.send(request, "planning")?.parse()
    }

    /// Applies the plan. Changes nothing if the server's rules have changed since the plan was made.
    fn apply(&self, plan: &Plan) -> anyhow::Result<Plan> {
        let request = self.request()?.header("if-match", format!("\"{}\"", plan.revision));
        self.remote.send(with_comment(request, &self.args.comment), "applying")?.parse()
    }

    fn request(&self) -> anyhow::Result<reqwest::RequestBuilder> {
        let others = if self.args.prune { "delete" } else { "keep" };
        let request = self.remote.request(Method::POST, &["v1", "apply"])?.query(&[("others", others)]);
        Ok(request.header("content-type", "application/yaml").body(self.text.clone()))
    }
}

/// Prints the warnings and the plan as text. With `--json`, prints the plan only if a confirmation follows.
fn show_plan(plan: &Plan, args: &ApplyArgs) -> io::Result<()> {
    for warning in &plan.warnings {
        writeln!(io::stderr(), "warning: {}", replace_control_characters(&relocate_warning(warning, args)))?;
    }
    if !args.output.json {
        let out = io::stdout().lock();
        let paint = DiffColours::new(&out);
        write_plan(plan, paint, out)
    } else if !args.plan && !args.yes && io::stdin().is_terminal() {
        // Standard output is reserved for the JSON, so the plan to be confirmed goes to standard error.
        let err = io::stderr().lock();
        let paint = DiffColours::new(&err);
        write_plan(plan, paint, err)
    } else {
        Ok(())
    }
}

/// Rewrites the position at the start of a warning. For one file, inserts its name. For several files, removes the
/// position, because it refers to their combined text.
fn relocate_warning(warning: &str, args: &ApplyArgs) -> String {
    let positioned = |text: &str| {
        let (name, rest) = text.split_once(':')?;
        let (line, rest) = rest.split_once(':')?;
        let (column, rest) = rest.split_once(": ")?;
        let is_position = !name.contains(' ') && [line, column].iter().all(|number| number.parse::<u32>().is_ok());
        is_position.then(|| (format!("{line}:{column}"), rest.to_owned()))
    };
    match (positioned(warning), &*args.paths) {
        (None, _) => warning.to_owned(),
        (Some((position, rest)), [only]) if !only.is_dir() => format!("{}:{position}: {rest}", only.display()),
        (Some((_, rest)), _) => rest,
    }
}

fn write_plan(plan: &Plan, paint: DiffColours, mut out: impl Write) -> io::Result<()> {
    let many = plan.changes.iter().filter(|change| is_new_or_deleted(change)).count() > MAX_SHOWN_TEXTS;
    for change in &plan.changes {
        let sign = match change.action {
            Action::Create => '+',
            Action::Delete => '-',
            Action::Update | Action::Rollback | Action::Enable | Action::Disable => '~',
        };
        let line = format!("{sign} {} {}/{}", change.action.as_str(), change.domain, change.id);
        writeln!(out, "{}", paint.colour_diff_line(&line))?;
        if many && is_new_or_deleted(change) {
            continue;
        }
        if change.diff.is_empty() {
            writeln!(out, "    only its position changes")?;
        }
        for line in change.diff.lines() {
            writeln!(out, "    {}", paint.colour_diff_line(line))?;
        }
    }
    let of = |wanted: fn(Action) -> bool| plan.changes.iter().filter(|change| wanted(change.action)).count();
    let created = of(|action| action == Action::Create);
    let deleted = of(|action| action == Action::Delete);
    let changed = plan.changes.len() - created - deleted;
    let same = count_with_noun(plan.unchanged, "rule");
    if plan.changes.is_empty() {
        return writeln!(out, "nothing to change: {same} unchanged");
    }
    writeln!(out, "{created} to create, {changed} to change, {deleted} to delete, {} unchanged", plan.unchanged)
}

fn is_new_or_deleted(change: &PlanEntry) -> bool {
    matches!(change.action, Action::Create | Action::Delete)
}

fn ask_to_confirm(remote: &Remote) -> io::Result<bool> {
    let mut err = io::stderr().lock();
    write!(err, "apply this to {}? [y/N] ", remote.url())?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_name_local_files() {
        let args = |paths: &[&str]| ApplyArgs {
            paths: paths.iter().map(Into::into).collect(),
            plan: true,
            prune: false,
            yes: false,
            comment: CommentArgs { comment: None },
            output: OutputArgs { json: false },
        };
        for (warning, paths, expected) in [
            ("rules:3:7: too much", &["a.yaml"][..], "a.yaml:3:7: too much"),
            ("rules:3:7: too much", &["a.yaml", "b.yaml"], "too much"),
            ("rules:3:7: too much", &["/"], "too much"),
            ("too much: 3:7: indeed", &["a.yaml"], "too much: 3:7: indeed"),
        ] {
            assert_eq!(relocate_warning(warning, &args(paths)), expected);
        }
    }

    #[test]
    fn plan_is_shown_change_by_change() {
        let change =
            |id: &str, action, diff: &str| PlanEntry { domain: "api".into(), id: id.into(), action, diff: diff.into() };
        let mut plan = Plan {
            revision: 7,
            applied: false,
            changes: vec![
                change("a", Action::Create, "+ limit: 1/s\n"),
                change("b", Action::Update, "- limit: 1/s\n+ limit: 2/s\n"),
                change("c", Action::Delete, "- limit: 1/s\n"),
            ],
            unchanged: 2,
            warnings: Vec::new(),
        };
        let shown = |plan: &Plan| {
            let mut out = Vec::new();
            write_plan(plan, DiffColours::new(&std::fs::File::open("/dev/null").unwrap()), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            shown(&plan),
            "+ create api/a\n    + limit: 1/s\n~ update api/b\n    - limit: 1/s\n    + limit: 2/s\n- delete api/c\n    \
             - limit: 1/s\n1 to create, 1 to change, 1 to delete, 2 unchanged\n"
        );
        plan.changes.extend((0..20).map(|n| change(&format!("n{n}"), Action::Create, "+ limit: 1/s\n")));
        assert_eq!(shown(&plan).matches("limit:").count(), 2, "only updates are shown in full");
        plan.changes.clear();
        assert_eq!(shown(&plan), "nothing to change: 2 rules unchanged\n");
    }
}
