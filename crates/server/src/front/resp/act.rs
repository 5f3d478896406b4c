//! Commands that are carried out one at a time: about receipts, resets and explanations.

use std::time::Duration;

use tollgate::Cost;
use tollgate_engine::{EngineError, Item, Receipt, Request, Store};

use super::asked::Act;
use super::decide::{ByRules, by_rules, cost_of, write_decision};
use super::wire::{Replies, integer};
use crate::acquire::MAX_WAIT;
use crate::control::auth::{Access, Place};
use crate::control::model::Role;
use crate::front::accept::Protocol;
use crate::front::http::words;
use crate::gate::{Gate, Lent, Verb};

/// Carries out a command, whose name is the first of `args`.
pub(super) async fn act<S: Store>(gate: &Gate<S>, access: &Access, act: Act, args: &[&[u8]], replies: &mut Replies) {
    let outcome = match act {
        Act::Refund => refund(gate, args, replies).await,
        Act::Renew => renew(gate, args, replies).await,
        Act::Commit => commit(gate, args, replies).await,
        Act::Acquire => acquire(gate, args, replies).await,
        Act::Reset => reset(gate, access, args, replies).await,
        Act::Explain => explain(gate, args, replies).await,
    };
    match outcome {
        Ok(()) => {}
        Err(Failed::Mistake(error)) => {
            gate.mistaken(Protocol::Resp);
            replies.error(&error);
        }
        Err(Failed::Engine(EngineError::Request(error))) => {
            gate.mistaken(Protocol::Resp);
            replies.error(&format!("ERR {error}"));
        }
        Err(Failed::Engine(EngineError::Store(error))) => {
            tracing::warn!(%error, "what is no decision was not carried out");
            replies.error("ERR the store did not answer, so it may or may not have been done");
        }
    }
}

/// Why nothing was done.
enum Failed {
    Mistake(String),
    Engine(EngineError),
}

impl<E: Into<EngineError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

/// `TG.REFUND receipt`, `TG.CANCEL receipt` and `TG.RELEASE receipt`: how much was given back.
async fn refund<S: Store>(gate: &Gate<S>, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let [_, text] = args else { return Err(usage(args, "<receipt>")) };
    let refunded = gate.engine.refund(&receipt(text)?).await?;
    replies.integer(whole(refunded));
    Ok(())
}

/// `TG.RENEW receipt`: 1 if all slots were still held, and are for longer now.
async fn renew<S: Store>(gate: &Gate<S>, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let [_, text] = args else { return Err(usage(args, "<receipt>")) };
    let renewed = gate.engine.renew(&receipt(text)?).await?;
    replies.integer(renewed.into());
    Ok(())
}

/// `TG.COMMIT receipt cost`: what was given back, charged, and not charged for want of room.
async fn commit<S: Store>(gate: &Gate<S>, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let [_, text, cost] = args else { return Err(usage(args, "<receipt> <cost>")) };
    let (receipt, cost) = (receipt(text)?, cost_of(cost).map_err(Failed::Mistake)?);
    let settled = gate.engine.commit(&receipt, cost).await?;
    replies.map(3);
    for (name, amount) in [("refunded", settled.refunded), ("charged", settled.charged), ("unpaid", settled.unpaid)] {
        replies.bulk(name);
        replies.integer(whole(amount));
    }
    Ok(())
}

/// `TG.ACQUIRE domain cost wait_ms [name value …]`: the decision with a receipt, when it is let in or the time is over.
async fn acquire<S: Store>(gate: &Gate<S>, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let [name, domain, cost, wait, attributes @ ..] = args else {
        return Err(usage(args, "<domain> <cost> <wait_ms> [<name> <value> ...]"));
    };
    let asked = [&[*name, *domain, *cost], attributes].concat();
    let ByRules { domain, cost, entries } = by_rules(&asked).map_err(|error| match attributes.len() % 2 {
        0 => Failed::Mistake(error),
        _ => usage(args, "<domain> <cost> <wait_ms> [<name> <value> ...]"),
    })?;
    let wait = integer(wait).and_then(|wait| u64::try_from(wait).ok()).map(Duration::from_millis);
    let Some(wait) = wait.filter(|wait| *wait <= MAX_WAIT) else {
        let most = MAX_WAIT.as_millis();
        return Err(Failed::Mistake(format!("ERR the wait must be a number of milliseconds, at most {most}")));
    };
    let item = Item { entries: &entries, cost: Some(cost), limit: None };
    let mut decisions = Lent::take();
    gate.acquire(Protocol::Resp, &Request { domain, items: &[item] }, wait, &mut decisions).await;
    write_decision(replies, &decisions.get(0)?, Verb::Reserve);
    Ok(())
}

/// `TG.RESET domain cost [name value …]`: how many counters were made as new.
async fn reset<S: Store>(gate: &Gate<S>, access: &Access, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let ByRules { domain, cost, entries } = by_rules(args).map_err(Failed::Mistake)?;
    let name = String::from_utf8_lossy(domain);
    let denied = access.require(Role::Operator, Place::Domain(&name));
    denied.map_err(|denied| Failed::Mistake(format!("NOPERM {denied}")))?;
    let item = Item { entries: &entries, cost: Some(cost), limit: None };
    let counters = gate.engine.reset(&Request { domain, items: &[item] }, &mut Lent::take()).await?;
    gate.note(access, "key", "reset", Some(&name), &words(&entries));
    replies.integer(counters.try_into().unwrap_or(i64::MAX));
    Ok(())
}

/// `TG.EXPLAIN domain cost [name value …]`: why `TG.CHECK` would say what it would, as text.
async fn explain<S: Store>(gate: &Gate<S>, args: &[&[u8]], replies: &mut Replies) -> Result<(), Failed> {
    let ByRules { domain, cost, entries } = by_rules(args).map_err(Failed::Mistake)?;
    let item = Item { entries: &entries, cost: Some(cost), limit: None };
    let explanation = gate.engine.explain(domain, &item, &mut Lent::take()).await?;
    replies.bulk(explanation.to_string());
    Ok(())
}

fn receipt(text: &[u8]) -> Result<Receipt, Failed> {
    let wrong = || Failed::Mistake("ERR this is not a receipt; send what tg.reserve gave under `receipt`".into());
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)
}

fn usage(args: &[&[u8]], expected: &str) -> Failed {
    let name = args.first().map_or(String::new(), |name| String::from_utf8_lossy(name).to_lowercase());
    Failed::Mistake(format!("ERR usage: {name} {expected}"))
}

fn whole(cost: Cost) -> i64 {
    cost.get().try_into().unwrap_or(i64::MAX)
}
