//! Commands that are carried out one at a time: about receipts, resets and explanations.

use std::time::Duration;

use tollgate_engine::{EngineError, Item, Lent, Receipt, Request, Settled, Store};

use super::asked::{Act, Asked};
use super::decide::{ByRules, by_rules, cost_of};
use super::replay::{Keyed, Turn, begin, take_key};
use super::translate::{whole, write_decision};
use super::wire::{Replies, integer};
use crate::app::{App, Verb};
use crate::control::auth::{Access, Place};
use crate::control::model::Role;
use crate::http::words;
use crate::net::accept::Protocol;
use crate::ops::acquire::MAX_WAIT;

/// Carries out a command, whose name is the first of `args`.
pub(super) async fn act<S: Store>(
    app: &App<S>,
    access: &Access,
    act: Act,
    mut args: Vec<&[u8]>,
    replies: &mut Replies,
) {
    let key = take_key(Asked::Act(act), &mut args);
    match once(app, access, act, key, &args, replies).await {
        Ok(()) => {}
        Err(Failed::Mistake(error)) => {
            app.mistaken(Protocol::Resp);
            replies.error(&error);
        }
        Err(Failed::Engine(EngineError::Request(error))) => {
            app.mistaken(Protocol::Resp);
            replies.error(&format!("ERR {error}"));
        }
        Err(Failed::Engine(EngineError::Store(error))) => {
            tracing::warn!(%error, "what is no decision was not carried out");
            replies.error("ERR the store did not answer, so it may or may not have been done");
        }
    }
}

/// Carries it out, or tells what came of it before.
async fn once<S: Store>(
    app: &App<S>,
    access: &Access,
    act: Act,
    key: Option<&[u8]>,
    args: &[&[u8]],
    replies: &mut Replies,
) -> Result<(), Failed> {
    let keyed = begin(app, Asked::Act(act), key, args).map_err(Failed::Mistake)?;
    if let Keyed::Again(replay) = &keyed {
        replay.write(replies);
        return Ok(());
    }
    let done = match act {
        Act::Refund => refund(app, args).await,
        Act::Renew => renew(app, args).await,
        Act::Commit => commit(app, args).await,
        Act::Acquire => acquire(app, args).await,
        Act::Reset => reset(app, access, args).await,
        Act::Explain => explain(app, args).await,
    }?;
    done.write(replies, Turn::First)?;
    if done.took_something() {
        // What could be written once can be written again.
        keyed.answered(|replies| drop(done.write(replies, Turn::Again)));
    }
    Ok(())
}

/// What came of it.
enum Done {
    Number(u64),
    Settled(Settled),
    Decided(Box<Lent>),
    Text(String),
}

impl Done {
    /// A refusal took nothing, and whoever asks again wants to know how things stand by then.
    fn took_something(&self) -> bool {
        match self {
            Self::Decided(decisions) => decisions.get(0).is_ok_and(|decision| decision.is_allowed()),
            Self::Number(_) | Self::Settled(_) | Self::Text(_) => true,
        }
    }

    fn write(&self, replies: &mut Replies, turn: Turn) -> Result<(), Failed> {
        match self {
            // There is no room for a mark.
            Self::Number(number) => replies.integer(whole(*number)),
            Self::Text(text) => replies.bulk(text),
            Self::Decided(decisions) => write_decision(replies, &decisions.get(0)?, Verb::Reserve, turn),
            Self::Settled(Settled { refunded, charged, unpaid }) => {
                let amounts = [("refunded", refunded), ("charged", charged), ("unpaid", unpaid)];
                replies.map(amounts.len() + usize::from(turn == Turn::Again));
                for (name, amount) in amounts {
                    replies.bulk(name);
                    replies.integer(whole(amount.get()));
                }
                if turn == Turn::Again {
                    replies.bulk("replayed");
                    replies.integer(1);
                }
            }
        }
        Ok(())
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
async fn refund<S: Store>(app: &App<S>, args: &[&[u8]]) -> Result<Done, Failed> {
    let [_, text] = args else { return Err(usage(args, "<receipt> [ONCE <key>]")) };
    let refunded = app.engine.refund(&receipt(text)?).await?;
    Ok(Done::Number(refunded.get()))
}

/// `TG.RENEW receipt`: 1 if all slots were still held, and are for longer now.
async fn renew<S: Store>(app: &App<S>, args: &[&[u8]]) -> Result<Done, Failed> {
    let [_, text] = args else { return Err(usage(args, "<receipt> [ONCE <key>]")) };
    let renewed = app.engine.renew(&receipt(text)?).await?;
    Ok(Done::Number(renewed.into()))
}

/// `TG.COMMIT receipt cost`: what was given back, charged, and not charged for want of room.
async fn commit<S: Store>(app: &App<S>, args: &[&[u8]]) -> Result<Done, Failed> {
    let [_, text, cost] = args else { return Err(usage(args, "<receipt> <cost> [ONCE <key>]")) };
    let (receipt, cost) = (receipt(text)?, cost_of(cost).map_err(Failed::Mistake)?);
    let settled = app.engine.commit(&receipt, cost).await?;
    Ok(Done::Settled(settled))
}

/// `TG.ACQUIRE domain cost wait_ms [name value …]`: the decision with a receipt, when it is let in or the time is over.
async fn acquire<S: Store>(app: &App<S>, args: &[&[u8]]) -> Result<Done, Failed> {
    let [name, domain, cost, wait, attributes @ ..] = args else {
        return Err(usage(args, "<domain> <cost or -> <wait_ms> [ONCE <key>] [<name> <value> ...]"));
    };
    let asked = [&[*name, *domain, *cost], attributes].concat();
    let ByRules { domain, cost, entries } = by_rules(&asked).map_err(|error| match attributes.len() % 2 {
        0 => Failed::Mistake(error),
        _ => usage(args, "<domain> <cost or -> <wait_ms> [ONCE <key>] [<name> <value> ...]"),
    })?;
    let wait = integer(wait).and_then(|wait| u64::try_from(wait).ok()).map(Duration::from_millis);
    let Some(wait) = wait.filter(|wait| *wait <= MAX_WAIT) else {
        let most = MAX_WAIT.as_millis();
        return Err(Failed::Mistake(format!("ERR the wait must be a number of milliseconds, at most {most}")));
    };
    let item = Item { entries: &entries, cost, limit: None };
    let mut decisions = Lent::take();
    app.acquire(Protocol::Resp, &Request { domain, items: &[item] }, wait, &mut decisions).await;
    Ok(Done::Decided(Box::new(decisions)))
}

/// `TG.RESET domain cost [name value …]`: how many counters were made as new.
async fn reset<S: Store>(app: &App<S>, access: &Access, args: &[&[u8]]) -> Result<Done, Failed> {
    let ByRules { domain, cost, entries } = by_rules(args).map_err(Failed::Mistake)?;
    let name = String::from_utf8_lossy(domain);
    let denied = access.require(Role::Operator, Place::Domain(&name));
    denied.map_err(|denied| Failed::Mistake(format!("NOPERM {denied}")))?;
    let item = Item { entries: &entries, cost, limit: None };
    let counters = app.engine.reset(&Request { domain, items: &[item] }, &mut Lent::take()).await?;
    app.note(access, "key", "reset", Some(&name), &words(&entries));
    Ok(Done::Number(counters as u64))
}

/// `TG.EXPLAIN domain cost [name value …]`: why `TG.CHECK` would say what it would, as text.
async fn explain<S: Store>(app: &App<S>, args: &[&[u8]]) -> Result<Done, Failed> {
    let ByRules { domain, cost, entries } = by_rules(args).map_err(Failed::Mistake)?;
    let item = Item { entries: &entries, cost, limit: None };
    let explanation = app.engine.explain(domain, &item, &mut Lent::take()).await?;
    Ok(Done::Text(explanation.to_string()))
}

fn receipt(text: &[u8]) -> Result<Receipt, Failed> {
    let wrong = || Failed::Mistake("ERR this is not a receipt; send what tg.reserve gave under `receipt`".into());
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)
}

fn usage(args: &[&[u8]], expected: &str) -> Failed {
    let name = args.first().map_or(String::new(), |name| String::from_utf8_lossy(name).to_lowercase());
    Failed::Mistake(format!("ERR usage: {name} {expected}"))
}
