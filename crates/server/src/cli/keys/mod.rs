//! `tollgate keys`: shows and resets counters.

mod bans;
mod hints;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};

use super::remote::output::{self, OutputArgs, TextTable, format_span};
use super::remote::{Remote, RequestArgs, ServerArgs};
use super::{count_with_noun, exit_code};
use crate::observe::top_keys::{TopKey, TopKeysPage};
use bans::Bans;

#[derive(Clone, Debug, Args)]
pub(super) struct KeysArgs {
    #[command(flatten)]
    server: ServerArgs,

    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum KeysCommand {
    /// Show how many tokens remain for a request, without taking any; the exit status is 1 if the request would be
    /// refused.
    Peek(KeyArgs),
    /// Reset the counters of a request, and lift bans.
    Reset(KeyArgs),
    /// Refund the tokens that a decision took.
    Refund(RefundArgs),
    /// Show the heaviest keys, by rule.
    Top(TopArgs),
}

#[derive(Clone, Debug, Args)]
struct KeyArgs {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
struct RefundArgs {
    /// The `receipt` of the decision
    #[arg(value_name = "RECEIPT")]
    receipt: String,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
struct TopArgs {
    /// Only rules of this domain
    #[arg(value_name = "DOMAIN")]
    domain: Option<String>,

    /// Only this rule
    #[arg(value_name = "RULE")]
    rule: Option<String>,

    /// The maximum number of keys of each rule
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    limit: usize,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate keys peek api path=/login client_ip=192.0.2.1
  tollgate keys reset api path=/login client_ip=192.0.2.1
  tollgate keys top api";

/// Runs the command.
///
/// # Errors
/// Returns an error if the server cannot be reached or refuses the request.
pub(super) fn run(args: &KeysArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    match &args.command {
        KeysCommand::Peek(args) => return peek(&remote, args),
        KeysCommand::Reset(args) => {
            let answer = remote.post(&["v1", "reset"], args.request.to_json()?);
            let answer = answer.map_err(|error| args.request.with_hint(error))?;
            answer.print(args.output, |answer: Value| {
                let counters = usize::try_from(answer["reset"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
                writeln!(std::io::stdout(), "{} reset", count_with_noun(counters, "counter"))?;
                Ok(print_hints(&remote, &args.request, counters == 0)?)
            })?;
        }
        KeysCommand::Refund(args) => {
            let answer = remote.post(&["v1", "refund"], json!({"receipt": args.receipt}).to_string())?;
            answer.print(args.output, |answer: Value| {
                Ok(writeln!(std::io::stdout(), "{} refunded", answer["refunded"])?)
            })?;
        }
        KeysCommand::Top(args) => {
            remote.get(&["v1", "top"])?.print(args.output, |page| print_top(args, page))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints hints about attributes that rules need and the request lacks.
fn print_hints(remote: &Remote, request: &RequestArgs, none_matched: bool) -> std::io::Result<()> {
    let mut err = std::io::stderr().lock();
    hints::attribute_hints(remote, request, none_matched).iter().try_for_each(|hint| writeln!(err, "{hint}"))
}

/// The members of a decision that are printed.
#[derive(Deserialize)]
struct Decision {
    allowed: bool,
    rule: Option<String>,
    standing: String,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    banned: bool,
    limits: Vec<LimitLine>,
}

#[derive(Deserialize)]
struct LimitLine {
    rule: Option<String>,
    limit: u64,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    #[serde(default)]
    shadow: bool,
}

fn peek(remote: &Remote, args: &KeyArgs) -> anyhow::Result<ExitCode> {
    let answer = remote.post(&["v1", "peek"], args.request.to_json()?);
    let answer = answer.map_err(|error| args.request.with_hint(error))?;
    let decision: Decision = answer.parse()?;
    let status = exit_code(decision.allowed);
    if args.output.json {
        output::print_json(&answer.parse::<Value>()?)?;
        return Ok(status);
    }
    let bans = if decision.banned { Bans::fetch(remote, &args.request) } else { Bans::default() };
    let mut out = std::io::stdout().lock();
    bans.print(&decision, &mut out)?;
    if decision.standing == "fallback" {
        writeln!(out, "the store is unreachable, so `on_fault` of the rules decided")?;
    }
    let mut table = TextTable::new(&["RULE", "LIMIT", "LEFT", "NEXT IN", "FULL IN", ""]);
    for left in decision.limits.into_iter().filter(|limit| !bans.outlast(limit)) {
        let next = match left.retry_after_ms {
            Some(0) => "now".to_owned(),
            Some(wait) => format_span(wait),
            None => "after a release".to_owned(),
        };
        let (rule, note) = (left.rule.unwrap_or_default(), if left.shadow { "shadow" } else { "" });
        let reset = format_span(left.reset_after_ms);
        table.add_row([rule, left.limit.to_string(), left.remaining.to_string(), next, reset, note.to_owned()]);
    }
    let none_matched = table.is_empty() && decision.allowed;
    match (table.is_empty(), decision.allowed) {
        (true, true) => writeln!(out, "no limit applies to the request")?,
        // No limit is printed if the request was refused without being counted, or if the bans outlast all limits.
        (true, false) => {}
        (false, _) => table.write(&mut out)?,
    }
    drop(out);
    print_hints(remote, &args.request, none_matched)?;
    Ok(status)
}

fn print_top(args: &TopArgs, page: TopKeysPage) -> anyhow::Result<()> {
    let mut table = TextTable::new(&["DOMAIN", "RULE", "", "KEY", "COUNT"]);
    for top in page.rules {
        let rule = top.rule.unwrap_or_default();
        let wanted = args.domain.as_ref().is_none_or(|domain| *domain == top.domain)
            && args.rule.as_ref().is_none_or(|wanted| *wanted == rule);
        if !wanted {
            continue;
        }
        for (what, keys) in [("charged", &top.charged), ("refused", &top.refused)] {
            for TopKey { key, count, error } in keys.iter().take(args.limit) {
                // Apart from sampling errors, the count is too high by at most `error`, and never too low.
                let count = if *error == 0 { count.to_string() } else { format!("{}–{count}", count - error) };
                table.add_row([top.domain.clone(), rule.clone(), what.to_owned(), key.clone(), count]);
            }
        }
    }
    table.print("no decisions were counted recently")
}
