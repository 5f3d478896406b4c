//! `tollgate keys`: what was spent, and giving it back.

mod bans;
mod missing;

use std::io::Write;
use std::process::ExitCode;

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::remote::show::{self, Table, count, span};
use super::remote::{Answer, Remote, attributes, question};
use crate::config::remote::keys::{KeyArgs, KeysArgs, KeysCommand, TopArgs};
use bans::Bans;

/// Does what was asked.
///
/// # Errors
/// When the server cannot be asked, or says no.
pub fn run(args: &KeysArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    match &args.command {
        KeysCommand::Peek(args) => peek(&remote, args),
        KeysCommand::Reset(args) => {
            let answer: Value = ask(&remote, "reset", &of(args)?)?.parse()?;
            if args.shown.json {
                show::json(&answer)?;
            } else {
                let counters = usize::try_from(answer["reset"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
                writeln!(std::io::stdout(), "{} reset", count(counters, "counter"))?;
                tell_missing(&remote, args, counters == 0)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        KeysCommand::Refund(args) => {
            let answer: Value = ask(&remote, "refund", &json!({"receipt": args.receipt}).to_string())?.parse()?;
            if args.shown.json {
                show::json(&answer)?;
            } else {
                writeln!(std::io::stdout(), "{} given back", answer["refunded"])?;
            }
            Ok(ExitCode::SUCCESS)
        }
        KeysCommand::Top(args) => top(&remote, args),
    }
}

fn of(args: &KeyArgs) -> anyhow::Result<String> {
    Ok(question(&args.domain, &attributes(&args.attributes)?, args.cost))
}

/// Tells what rules want to know about a request and were not told.
fn tell_missing(remote: &Remote, args: &KeyArgs, none_met: bool) -> std::io::Result<()> {
    let mut err = std::io::stderr().lock();
    missing::hints(remote, args, none_met).iter().try_for_each(|hint| writeln!(err, "{hint}"))
}

fn ask(remote: &Remote, verb: &str, body: &str) -> anyhow::Result<Answer> {
    let request = remote.request(Method::POST, &["v1", verb])?.header("content-type", "application/json");
    remote.send(request.body(body.to_owned()), "asking")
}

/// A decision, as far as it is shown.
#[derive(Deserialize)]
struct Decision {
    allowed: bool,
    rule: Option<String>,
    standing: String,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    banned: bool,
    limits: Vec<Left>,
}

#[derive(Deserialize)]
struct Left {
    rule: Option<String>,
    limit: u64,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    #[serde(default)]
    shadow: bool,
}

fn peek(remote: &Remote, args: &KeyArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(remote, "peek", &of(args)?)?;
    let decision: Decision = answer.parse()?;
    let status = if decision.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.shown.json {
        show::json(&answer.parse::<Value>()?)?;
        return Ok(status);
    }
    let bans = if decision.banned { Bans::of(remote, args) } else { Bans::default() };
    let mut out = std::io::stdout().lock();
    bans.tell(&decision, &mut out)?;
    if decision.standing != "exact" {
        writeln!(out, "the store does not answer: this is the rules' `on_fault`")?;
    }
    let mut table = Table::new(&["RULE", "LIMIT", "LEFT", "NEXT IN", "FULL IN", ""]);
    for left in decision.limits.into_iter().filter(|left| !bans.outlast(left)) {
        let next = match left.retry_after_ms {
            Some(0) => "now".to_owned(),
            Some(wait) => span(wait),
            None => "never by itself".to_owned(),
        };
        let (rule, note) = (left.rule.unwrap_or_default(), if left.shadow { "only tells" } else { "" });
        let reset = span(left.reset_after_ms);
        table.row([rule, left.limit.to_string(), left.remaining.to_string(), next, reset, note.to_owned()]);
    }
    let none_met = table.is_empty() && decision.allowed;
    match (table.is_empty(), decision.allowed) {
        (true, true) => writeln!(out, "no limit applies to it")?,
        // It is denied without being counted, or banned for longer than any limit lasts.
        (true, false) => {}
        (false, _) => table.write(&mut out)?,
    }
    drop(out);
    tell_missing(remote, args, none_met)?;
    Ok(status)
}

#[derive(Deserialize)]
struct Tops {
    rules: Vec<Top>,
}

#[derive(Deserialize)]
struct Top {
    domain: String,
    rule: Option<String>,
    charged: Vec<Heavy>,
    refused: Vec<Heavy>,
}

#[derive(Deserialize)]
struct Heavy {
    key: String,
    count: u64,
    error: u64,
}

fn top(remote: &Remote, args: &TopArgs) -> anyhow::Result<ExitCode> {
    let answer = remote.get(&["v1", "top"], "asking")?;
    if args.shown.json {
        show::json(&answer.parse::<Value>()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let tops: Tops = answer.parse()?;
    let mut table = Table::new(&["DOMAIN", "RULE", "", "KEY", "COUNT"]);
    for top in tops.rules {
        let rule = top.rule.unwrap_or_default();
        let wanted = args.domain.as_ref().is_none_or(|domain| *domain == top.domain)
            && args.rule.as_ref().is_none_or(|wanted| *wanted == rule);
        if !wanted {
            continue;
        }
        for (what, heavy) in [("charged", &top.charged), ("refused", &top.refused)] {
            for Heavy { key, count, error } in heavy.iter().take(args.limit) {
                // The count may be too high by the error, never too low.
                let count = if *error == 0 { count.to_string() } else { format!("{}–{count}", count - error) };
                table.row([top.domain.clone(), rule.clone(), what.to_owned(), key.clone(), count]);
            }
        }
    }
    let mut out = std::io::stdout().lock();
    match table.is_empty() {
        true => writeln!(out, "nothing was counted lately")?,
        false => table.write(&mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}
