//! `tollgate explain`: why a request is decided as it is, by a rule file or by a server that runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tollgate::Cost;
use tollgate_engine::{Decisions, Engine, Entry, Item, MemoryStore};

use crate::config::raw::ExplainArgs;
use crate::retrieve::file::{Watched, parse};

/// How long a server is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const MAX_ANSWER: u64 = 4 * 1024 * 1024;
/// Room for the keys of one request.
const KEYS: usize = 1_000;

/// Prints the explanation.
///
/// # Errors
/// When the rules cannot be read, the server cannot be asked, or the request cannot be understood.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let attributes = args.attributes.iter().map(|attribute| {
        let pair = attribute.split_once('=').filter(|(name, _)| !name.is_empty());
        pair.with_context(|| format!("`{attribute}` is no attribute; write it like client_ip=192.0.2.1"))
    });
    let attributes: Vec<(&str, &str)> = attributes.collect::<anyhow::Result<_>>()?;
    let text = match (&args.rules, &args.server) {
        (Some(_), _) => by_rules(args, &attributes)?,
        (None, Some(url)) => by_server(url, args, &attributes)?,
        (None, None) => bail!("give the rules with --rules FILE, or a server that runs with --server URL"),
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
fn by_server(url: &str, args: &ExplainArgs, attributes: &[(&str, &str)]) -> anyhow::Result<String> {
    let host = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    ensure!(!host.contains('/'), "`{url}` is no address of a server; write it like http://127.0.0.1:8080");
    let mut values: serde_json::Map<String, Value> = serde_json::Map::new();
    for (name, value) in attributes {
        let list = values.entry(*name).or_insert_with(|| json!([]));
        list.as_array_mut().into_iter().for_each(|list| list.push(json!(value)));
    }
    let mut body = json!({"domain": args.domain, "attributes": values});
    if let Some(cost) = args.cost {
        body["cost"] = json!(cost);
    }
    let (status, answer) = post(host, "/v1/explain", &body.to_string()).with_context(|| format!("cannot ask {url}"))?;
    let answer: Value = serde_json::from_str(&answer).with_context(|| format!("{url} is no server of ours"))?;
    match (status, answer["text"].as_str(), answer["detail"].as_str()) {
        (200, Some(text), _) => Ok(text.to_owned()),
        (_, _, Some(detail)) => bail!("{detail}"),
        _ => bail!("{url} answers {status}"),
    }
}

/// One question over HTTP, with all of it read before anybody looks at it.
fn post(host: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("it does not speak HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("it does not speak HTTP")?;
    Ok((status, body.to_owned()))
}
