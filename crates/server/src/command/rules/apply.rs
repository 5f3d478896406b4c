//! `tollgate rules apply`: files looked through, planned, shown, and carried out as shown.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::bail;
use reqwest::{Method, StatusCode};
use tollgate_engine::rules::{Source, entry};

use super::history::word;
use crate::command::files::{self, File};
use crate::command::remote::show::{self, Paint, clean, count};
use crate::command::remote::{Refused, Remote, with_comment};
use crate::command::{report, tell};
use crate::config::remote::rules::ApplyArgs;
use crate::control::model::{Action, Plan, Planned};

/// More rules than this that come or go are named, without their text.
const WHOLE: usize = 20;
/// How often it is tried again when something else was changed in between, which does not matter here.
const TRIES: usize = 20;

/// Applies, or only plans. A plan that cannot be made is not a plan with changes, so its status is another, as with `diff`.
pub(super) fn run(remote: &Remote, args: &ApplyArgs) -> ExitCode {
    match attempt(remote, args) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Differs) => ExitCode::FAILURE,
        Ok(Outcome::Mistakes) => failed(args),
        Err(error) => {
            report(&error);
            failed(args)
        }
    }
}

fn failed(args: &ApplyArgs) -> ExitCode {
    if args.plan { ExitCode::from(2) } else { ExitCode::FAILURE }
}

enum Outcome {
    Done,
    Differs,
    Mistakes,
}

fn attempt(remote: &Remote, args: &ApplyArgs) -> anyhow::Result<Outcome> {
    let files = files::read(&args.paths)?;
    let Some(text) = checked(&files)? else { return Ok(Outcome::Mistakes) };
    let proposal = Proposal { remote, args, text };
    let mut plan = proposal.plan()?;
    show_plan(&plan, args)?;
    let nothing = plan.changes.is_empty();
    if args.plan || nothing {
        if args.shown.json {
            show::json(&plan)?;
        }
        return Ok(if nothing { Outcome::Done } else { Outcome::Differs });
    }
    if !args.yes && io::stdin().is_terminal() && !confirmed(proposal.remote)? {
        bail!("nothing was changed");
    }
    for _ in 0..TRIES {
        match proposal.apply(&plan) {
            Ok(applied) => {
                if args.shown.json {
                    show::json(&applied)?;
                } else {
                    writeln!(io::stdout(), "applied, revision {}", applied.revision)?;
                }
                return Ok(Outcome::Done);
            }
            Err(error) if is_conflict(&error) => {
                // Somebody changed something. If what was shown would still be done, it is none of our business.
                let again = proposal.plan()?;
                if again.changes != plan.changes {
                    show_plan(&again, args)?;
                    return Err(error.context(
                        "nothing was applied: the rules were changed after the plan was shown, and this is what would be \
                         done now; run it again if that is right",
                    ));
                }
                plan = again;
            }
            Err(error) => return Err(error),
        }
    }
    bail!("nothing was applied: others change rules all the time; try again")
}

fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::PRECONDITION_FAILED)
}

/// Looks through the files as `tollgate check` does; returns what is sent if there are no mistakes.
fn checked(files: &[File]) -> anyhow::Result<Option<Vec<u8>>> {
    let sources: Vec<Source<'_>> = files.iter().map(File::source).collect();
    let taken = match entry::take_apart(&sources) {
        Ok(taken) => taken,
        Err(mistakes) => {
            tell(&mistakes)?;
            return Ok(None);
        }
    };
    if let [only] = files {
        // The server then tells what is left out and probably not meant by the lines of the file.
        return Ok(Some(only.text.clone()));
    }
    taken.rules.left_out().map_or(Ok(()), tell)?;
    let mut rules: HashMap<&str, Vec<&str>> = HashMap::new();
    for rule in &taken.entries {
        rules.entry(&rule.domain).or_default().push(&rule.json);
    }
    let domains = taken.domains.iter().map(|domain| (&**domain, rules.remove(&**domain).unwrap_or_default()));
    Ok(Some(entry::to_json(domains).into_bytes()))
}

/// What is to be done.
struct Proposal<'a> {
    remote: &'a Remote,
    args: &'a ApplyArgs,
    text: Vec<u8>,
}

impl Proposal<'_> {
    fn plan(&self) -> anyhow::Result<Plan> {
        let request = self.request()?.query(&[("plan", "true")]);
        self.remote.send(request, "planning")?.parse()
    }

    /// Exactly what was planned, or nothing.
    fn apply(&self, plan: &Plan) -> anyhow::Result<Plan> {
        let request = self.request()?.header("if-match", format!("\"{}\"", plan.revision));
        self.remote.send(with_comment(request, self.args.comment.as_deref()), "applying")?.parse()
    }

    fn request(&self) -> anyhow::Result<reqwest::RequestBuilder> {
        let others = if self.args.prune { "delete" } else { "keep" };
        let request = self.remote.request(Method::POST, &["v1", "apply"])?.query(&[("others", others)]);
        Ok(request.header("content-type", "application/yaml").body(self.text.clone()))
    }
}

/// Shows a plan to people; scripts get it as it is.
fn show_plan(plan: &Plan, args: &ApplyArgs) -> io::Result<()> {
    for warning in &plan.warnings {
        writeln!(io::stderr(), "warning: {}", clean(&of_file(warning, args)))?;
    }
    if !args.shown.json {
        let out = io::stdout().lock();
        let paint = Paint::new(&out);
        write_plan(plan, paint, out)
    } else if !args.plan && !args.yes && io::stdin().is_terminal() {
        // Whoever is asked has to see what about.
        let err = io::stderr().lock();
        let paint = Paint::new(&err);
        write_plan(plan, paint, err)
    } else {
        Ok(())
    }
}

/// A warning with the name of the file that it is about. Of several files put together, the places mean nothing to anybody.
fn of_file(warning: &str, args: &ApplyArgs) -> String {
    let placed = |text: &str| {
        let (name, rest) = text.split_once(':')?;
        let (line, rest) = rest.split_once(':')?;
        let (column, rest) = rest.split_once(": ")?;
        let is_place = !name.contains(' ') && [line, column].iter().all(|number| number.parse::<u32>().is_ok());
        is_place.then(|| (format!("{line}:{column}"), rest.to_owned()))
    };
    match (placed(warning), &*args.paths) {
        (None, _) => warning.to_owned(),
        (Some((place, rest)), [only]) if !only.is_dir() => format!("{}:{place}: {rest}", only.display()),
        (Some((_, rest)), _) => rest,
    }
}

fn write_plan(plan: &Plan, paint: Paint, mut out: impl Write) -> io::Result<()> {
    let many = plan.changes.iter().filter(|change| comes_or_goes(change)).count() > WHOLE;
    for change in &plan.changes {
        let sign = match change.action {
            Action::Create => '+',
            Action::Delete => '-',
            Action::Update | Action::Rollback | Action::Enable | Action::Disable => '~',
        };
        let line = format!("{sign} {} {}/{}", word(change.action), change.domain, change.id);
        writeln!(out, "{}", paint.diff_line(&line))?;
        if many && comes_or_goes(change) {
            continue;
        }
        if change.diff.is_empty() {
            writeln!(out, "    only its place in the order")?;
        }
        for line in change.diff.lines() {
            writeln!(out, "    {}", paint.diff_line(line))?;
        }
    }
    let of = |wanted: fn(Action) -> bool| plan.changes.iter().filter(|change| wanted(change.action)).count();
    let created = of(|action| action == Action::Create);
    let deleted = of(|action| action == Action::Delete);
    let changed = plan.changes.len() - created - deleted;
    let same = count(plan.unchanged, "rule");
    if plan.changes.is_empty() {
        return writeln!(out, "nothing to change: {same} as in the files");
    }
    writeln!(out, "{created} to create, {changed} to change, {deleted} to delete, {} unchanged", plan.unchanged)
}

fn comes_or_goes(change: &Planned) -> bool {
    matches!(change.action, Action::Create | Action::Delete)
}

fn confirmed(remote: &Remote) -> io::Result<bool> {
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
    fn warnings_are_about_files_of_this_machine() {
        let args = |paths: &[&str]| ApplyArgs {
            paths: paths.iter().map(Into::into).collect(),
            plan: true,
            prune: false,
            yes: false,
            comment: None,
            shown: crate::config::remote::Shown { json: false },
        };
        for (warning, paths, expected) in [
            ("rules:3:7: too much", &["a.yaml"][..], "a.yaml:3:7: too much"),
            ("rules:3:7: too much", &["a.yaml", "b.yaml"], "too much"),
            ("rules:3:7: too much", &["/"], "too much"),
            ("too much: 3:7: indeed", &["a.yaml"], "too much: 3:7: indeed"),
        ] {
            assert_eq!(of_file(warning, &args(paths)), expected);
        }
    }

    #[test]
    fn a_plan_is_shown_change_by_change() {
        let change =
            |id: &str, action, diff: &str| Planned { domain: "api".into(), id: id.into(), action, diff: diff.into() };
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
            write_plan(plan, Paint::new(&std::fs::File::open("/dev/null").unwrap()), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            shown(&plan),
            "+ create api/a\n    + limit: 1/s\n~ update api/b\n    - limit: 1/s\n    + limit: 2/s\n- delete api/c\n    \
             - limit: 1/s\n1 to create, 1 to change, 1 to delete, 2 unchanged\n"
        );
        plan.changes.extend((0..20).map(|n| change(&format!("n{n}"), Action::Create, "+ limit: 1/s\n")));
        assert_eq!(shown(&plan).matches("limit:").count(), 2, "only what changes is shown whole");
        plan.changes.clear();
        assert_eq!(shown(&plan), "nothing to change: 2 rules as in the files\n");
    }
}
