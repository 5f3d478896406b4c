//! `tollgate explain`: why a request is decided as it is, by a rule file or by a server that runs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use reqwest::Method;
use serde_json::Value;
use tollgate::Cost;
use tollgate_engine::{Decisions, Engine, Entry, Item, MemoryStore};

use super::remote::{Remote, attributes, question};
use crate::config::raw::ExplainArgs;
use crate::retrieve::file::{Watched, parse};

/// Room for the keys of one request.
const KEYS: usize = 1_000;

/// Prints the explanation.
///
/// # Errors
/// When the rules cannot be read, the server cannot be asked, or the request cannot be understood.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let attributes = attributes(&args.attributes)?;
    let text = match &args.rules {
        Some(_) => by_rules(args, &attributes)?,
        None => by_server(args, &attributes)?,
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// By a file, with nothing spent.
fn by_rules(args: &ExplainArgs, attributes: &[(&str, &str)]) -> anyhow::Result<String> {
    let mut file = Watched::new(args.rules.clone().unwrap_or_default());
    let name = file.path().display().to_string();
    let text = file.read().with_context(|| format!("cannot read {name}"))?;
    let rules = parse(&name, &text).with_context(|| format!("{name} has mistakes; `tollgate check` shows them"))?;
    let engine = Engine::new(MemoryStore::new(KEYS)?)?;
    engine.put(&rules)?;
    let entries: Vec<Entry<'_>> = attributes.iter().map(|(name, value)| Entry::new(*name, *value)).collect();
    let item = Item { cost: args.cost.map(Cost::new), ..Item::new(&entries) };
    let mut decisions = Decisions::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let explanation = runtime.block_on(engine.explain(args.domain.as_bytes(), &item, &mut decisions))?;
    Ok(explanation.to_string())
}

/// By the rules and the state of a server.
fn by_server(args: &ExplainArgs, attributes: &[(&str, &str)]) -> anyhow::Result<String> {
    let remote = Remote::new(&args.server)?;
    let request = remote.request(Method::POST, &["v1", "explain"])?.header("content-type", "application/json");
    let answer = remote.send(request.body(question(&args.domain, attributes, args.cost)), "asking")?;
    let answer: Value = answer.parse()?;
    let text = answer["text"].as_str().with_context(|| format!("{} is no server of ours", remote.url()))?;
    Ok(text.to_owned())
}
