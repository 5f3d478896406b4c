//! `tollgate explain`: explains how a request is decided, by a rule file or by a running server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;
use tollgate::core::Cost;
use tollgate_engine::rules::Source;
use tollgate_engine::{Attribute, Decisions, Engine, Item, MatchResult, MemoryStore};

use super::faults::FaultArgs;
use super::files::{self, RuleFile};
use super::remote::{Remote, RequestArgs, ServerArgs};
use crate::rules_source::file::parse_all;

#[derive(Clone, Debug, Args)]
pub(super) struct ExplainArgs {
    /// Use this rule file (or folder of rule files) instead of a server, as if no request had been counted
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    faults: FaultArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate explain api path=/login client_ip=192.0.2.1
  tollgate explain --rules rules.yaml api path=/login client_ip=192.0.2.1
  tollgate explain --faults --nodes 5 --rules rules.yaml api path=/login client_ip=192.0.2.1

It takes no tokens. Rules that match are marked with + and shown with their key, the override that applies and why, and the state \
of each limit. Other rules are marked with - and shown with the first condition that does not hold. With --faults, it also prints \
how much each limit of the matching rules may admit in excess while something fails.";

/// Maximum number of keys in memory. Explaining one request needs only a few.
const MAX_KEYS: usize = 1_000;

/// Prints the explanation.
///
/// # Errors
/// Returns an error if the rules cannot be read, the server cannot be reached, or the request is invalid.
pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    match &args.rules {
        Some(path) => explain_with_rules(path, args)?,
        None if args.faults.is_given() => bail!("--faults needs the rules: add --rules PATH"),
        None => write!(std::io::stdout(), "{}", explain_with_server(args)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Explains how the rule files at `path` decide the request, as if no request had been counted.
fn explain_with_rules(path: &Path, args: &ExplainArgs) -> anyhow::Result<()> {
    let request = &args.request;
    let attributes = request.attributes()?;
    let files = files::read_path(path)?;
    let sources: Vec<Source<'_>> = files.iter().map(RuleFile::as_source).collect();
    let name = path.display();
    let rules = parse_all(&sources).with_context(|| format!("{name} has mistakes; `tollgate check` shows them"))?;
    let engine = Engine::new(MemoryStore::new(MAX_KEYS)?)?;
    engine.put(&rules)?;
    let attributes: Vec<Attribute<'_>> = attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
    let item = Item { cost: request.cost.map(Cost::new), ..Item::new(&attributes) };
    let mut decisions = Decisions::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let explanation = runtime.block_on(engine.explain(request.domain.as_bytes(), &item, &mut decisions));
    let explanation = explanation.map_err(|error| request.with_hint(error.into()))?;
    write!(std::io::stdout(), "{explanation}")?;
    let matches =
        |id: &str| explanation.rules.iter().any(|rule| rule.rule == id && matches!(rule.why, MatchResult::Matches(_)));
    args.faults.print_bounds(&rules, |domain, id| domain == request.domain && matches(id))
}

/// Returns a server's explanation, which is based on the server's rules and current counters.
fn explain_with_server(args: &ExplainArgs) -> anyhow::Result<String> {
    let remote = Remote::new(&args.server)?;
    let answer = remote.post(&["v1", "explain"], args.request.to_json()?);
    let answer: Value = answer.map_err(|error| args.request.with_hint(error))?.parse()?;
    let text = answer["text"].as_str().with_context(|| format!("{} is not a tollgate server", remote.url()))?;
    Ok(text.to_owned())
}
