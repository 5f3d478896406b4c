//! Commands that the engine is asked about: `TG.CHECK` and its relatives, `TG.RESET`, and `CL.THROTTLE` where its keys are shared with other
//! servers. Those that follow each other in a pipeline are asked about together: one round trip for all of them.

use tollgate::redis_cell::Throttle;
use tollgate::{Cost, Nanos, Outcome, Retry};
use tollgate_engine::{Decision, EngineError, Entry, Item, Request, SentLimits, Store};

use super::translate;
use super::wire::{Parsed, Replies, integer, parse};
use crate::front::accept::Protocol;
use crate::gate::{Gate, Lent, Verb};

/// The most commands that are asked about together.
const TOGETHER: usize = 64;

/// Which command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Check,
    Peek,
    TakeUpTo,
    Charge,
    Drain,
    Reset,
    Throttle,
}

impl Asked {
    /// The command of this name, if it is one of these.
    pub(super) fn find(name: &[u8]) -> Option<Self> {
        let names = [
            ("TG.CHECK", Self::Check),
            ("TG.PEEK", Self::Peek),
            ("TG.TAKEUPTO", Self::TakeUpTo),
            ("TG.CHARGE", Self::Charge),
            ("TG.DRAIN", Self::Drain),
            ("TG.RESET", Self::Reset),
            ("CL.THROTTLE", Self::Throttle),
        ];
        let found = names.into_iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(_, asked)| asked)
    }

    /// How it is decided; none for what is no decision.
    const fn verb(self) -> Option<Verb> {
        match self {
            Self::Check | Self::Throttle => Some(Verb::Check),
            Self::Peek => Some(Verb::Peek),
            Self::TakeUpTo => Some(Verb::TakeUpTo),
            Self::Charge => Some(Verb::Charge),
            Self::Drain => Some(Verb::Drain),
            Self::Reset => None,
        }
    }
}

/// One command: what is asked, or what is wrong with it.
enum Question<'a> {
    Rules {
        domain: &'a [u8],
        cost: Cost,
        entries: Vec<Entry<'a>>,
    },
    Throttle {
        throttle: Box<Throttle>,
        key: &'a [u8],
        cost: Cost,
        limits: SentLimits,
    },
    /// The reply is known: nothing ever passes.
    Closed([i64; 5]),
    Wrong(String),
}

/// Answers the commands at the beginning of `input` that are of one verb, at least one, and tells how many bytes they were.
pub(super) async fn decide<S: Store>(gate: &Gate<S>, input: &[u8], replies: &mut Replies) -> usize {
    let (questions, verb, used) = read(gate, input);
    let Some(verb) = verb else {
        for question in &questions {
            reset(gate, question, replies).await;
        }
        return used;
    };
    let items: Vec<Option<Item<'_>>> = questions.iter().map(Question::item).collect();
    let requests: Vec<Request<'_>> = questions
        .iter()
        .zip(&items)
        .filter_map(|(question, item)| {
            let domain = if let Question::Rules { domain, .. } = question { domain } else { &[][..] };
            item.as_ref().map(|item| Request { domain, items: std::slice::from_ref(item) })
        })
        .collect();
    let mut decisions = Lent::take();
    if !requests.is_empty() {
        gate.decide(Protocol::Resp, verb, &requests, &mut decisions).await;
    }
    let mut decided = decisions.iter();
    for question in &questions {
        let decision = if question.item().is_some() { decided.next() } else { None };
        match (question, decision) {
            (Question::Wrong(error), _) => {
                gate.mistaken(Protocol::Resp);
                replies.error(error);
            }
            (Question::Closed(reply), _) => replies.five(*reply),
            (Question::Rules { .. }, Some(Ok(decision))) => write_decision(replies, &decision, verb.tells_taken()),
            (Question::Throttle { throttle, .. }, Some(Ok(decision))) => replies.five(five(throttle, &decision)),
            (Question::Rules { .. } | Question::Throttle { .. }, Some(Err(error))) => {
                gate.mistaken(Protocol::Resp);
                replies.error(&format!("ERR {error}"));
            }
            (Question::Rules { .. } | Question::Throttle { .. }, None) => {
                replies.error("ERR the request was not decided");
            }
        }
    }
    used
}

/// `TG.RESET domain cost [name value …]`: how many counters were made as new.
async fn reset<S: Store>(gate: &Gate<S>, question: &Question<'_>, replies: &mut Replies) {
    let (Question::Rules { domain, .. }, Some(item)) = (question, question.item()) else {
        gate.mistaken(Protocol::Resp);
        return replies.error(question.error());
    };
    let request = Request { domain, items: &[item] };
    match gate.engine.reset(&request, &mut Lent::take()).await {
        Ok(counters) => replies.integer(counters.try_into().unwrap_or(i64::MAX)),
        Err(EngineError::Request(error)) => {
            gate.mistaken(Protocol::Resp);
            replies.error(&format!("ERR {error}"));
        }
        Err(EngineError::Store(error)) => {
            tracing::warn!(%error, "a reset was not carried out");
            replies.error("ERR the store did not answer, so it may or may not have been done");
        }
    }
}

/// The questions at the beginning of `input`, as far as they have one verb.
fn read<'a, S: Store>(gate: &Gate<S>, input: &'a [u8]) -> (Vec<Question<'a>>, Option<Verb>, usize) {
    let (mut questions, mut args, mut at) = (Vec::new(), Vec::new(), 0);
    let mut verb = None;
    while questions.len() < TOGETHER
        && let Ok(Parsed::Command(len)) = parse(&input[at..], &mut args)
        && let Some(asked) = args.first().and_then(|name| Asked::find(name))
        && *verb.get_or_insert(asked.verb()) == asked.verb()
    {
        let question = match asked {
            Asked::Check | Asked::Peek | Asked::TakeUpTo | Asked::Charge | Asked::Reset => by_rules(&args),
            Asked::Drain => all_by_rules(&args),
            Asked::Throttle => throttle(gate, &args),
        };
        questions.push(question.unwrap_or_else(Question::Wrong));
        at += len;
    }
    (questions, verb.flatten(), at)
}

/// `TG.CHECK domain cost [name value …]`.
fn by_rules<'a>(args: &[&'a [u8]]) -> Result<Question<'a>, String> {
    let usage = || {
        let name = args.first().map_or("tg.check".into(), |name| String::from_utf8_lossy(name).to_lowercase());
        format!("ERR usage: {name} <domain> <cost> [<name> <value> ...]")
    };
    let [_, domain, cost, attributes @ ..] = args else { return Err(usage()) };
    let (pairs, []) = attributes.as_chunks::<2>() else { return Err(usage()) };
    let cost = integer(cost).and_then(|cost| u64::try_from(cost).ok()).ok_or_else(|| {
        let cost = String::from_utf8_lossy(&cost[..cost.len().min(64)]);
        format!("ERR the cost is '{cost}', it must be a whole number, such as 1")
    })?;
    let entries = pairs.iter().map(|[name, value]| Entry { name, value }).collect();
    Ok(Question::Rules { domain, cost: Cost::new(cost), entries })
}

/// `TG.DRAIN domain [name value …]`.
fn all_by_rules<'a>(args: &[&'a [u8]]) -> Result<Question<'a>, String> {
    let usage = || "ERR usage: tg.drain <domain> [<name> <value> ...]".to_owned();
    let [_, domain, attributes @ ..] = args else { return Err(usage()) };
    let (pairs, []) = attributes.as_chunks::<2>() else { return Err(usage()) };
    let entries = pairs.iter().map(|[name, value]| Entry { name, value }).collect();
    Ok(Question::Rules { domain, cost: Cost::MAX, entries })
}

/// `CL.THROTTLE key max_burst count period [quantity]`.
fn throttle<'a, S: Store>(gate: &Gate<S>, args: &[&'a [u8]]) -> Result<Question<'a>, String> {
    let numbers = translate::throttle_numbers(args)?;
    let throttle = Box::new(translate::throttle(numbers)?);
    let Ok(cost) = u64::try_from(numbers[3]) else {
        return Err("Cell error: Store error: a negative quantity cannot be given back to a shared store".into());
    };
    match gate.throttle_limits(&throttle) {
        Some(Ok(limits)) => Ok(Question::Throttle { throttle, key: args[1], cost: Cost::new(cost), limits }),
        Some(Err(error)) => Err(format!("Cell error: Store error: {error}")),
        None => Ok(Question::Closed(throttle.reply(Outcome::Deny(Retry::Never), Nanos::ZERO))),
    }
}

impl Question<'_> {
    /// What the engine is asked, if it is.
    fn item(&self) -> Option<Item<'_>> {
        match self {
            Self::Rules { cost, entries, .. } => Some(Item { entries, cost: Some(*cost), limit: None }),
            Self::Throttle { key, cost, limits, .. } => Some(Item { cost: Some(*cost), ..Item::sent(key, limits) }),
            Self::Closed(_) | Self::Wrong(_) => None,
        }
    }

    /// What is wrong with it.
    fn error(&self) -> &str {
        match self {
            Self::Wrong(error) => error,
            Self::Rules { .. } | Self::Throttle { .. } | Self::Closed(_) => "ERR the request was not understood",
        }
    }
}

/// A decision as the five numbers of redis-cell.
fn five(throttle: &Throttle, decision: &Decision<'_>) -> [i64; 5] {
    let reset = decision.reports().next().map_or(Nanos::ZERO, |limit| limit.report.reset);
    throttle.reply(decision.outcome(), reset)
}

/// A decision under the names it has in JSON.
fn write_decision(replies: &mut Replies, decision: &Decision<'_>, tells_taken: bool) {
    replies.map(6 + usize::from(tells_taken));
    replies.bulk("allowed");
    replies.integer(decision.is_allowed().into());
    replies.bulk("outcome");
    replies.bulk(match decision.outcome() {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    });
    replies.bulk("rule");
    name(replies, decision.rule().unwrap_or_default());
    replies.bulk("standing");
    replies.bulk(decision.standing().as_str());
    replies.bulk("retry_after_ms");
    let wait = match decision.outcome() {
        Outcome::Delay(wait) => Retry::After(wait),
        Outcome::Allow | Outcome::Deny(_) => decision.retry().unwrap_or(Retry::NOW),
    };
    replies.integer(millis(wait));
    if tells_taken {
        replies.bulk("taken");
        replies.integer(decision.taken().get().try_into().unwrap_or(i64::MAX));
    }
    replies.bulk("limits");
    replies.array(decision.reports().count());
    for limit in decision.reports() {
        replies.map(5);
        replies.bulk("rule");
        name(replies, limit.rule);
        replies.bulk("limit");
        replies.integer(limit.report.limit.try_into().unwrap_or(i64::MAX));
        replies.bulk("remaining");
        replies.integer(limit.report.remaining.try_into().unwrap_or(i64::MAX));
        replies.bulk("retry_after_ms");
        replies.integer(millis(limit.report.retry));
        replies.bulk("reset_after_ms");
        replies.integer(millis(Retry::After(limit.report.reset)));
    }
}

fn name(replies: &mut Replies, rule: &str) {
    match rule {
        "" => replies.null(),
        rule => replies.bulk(rule),
    }
}

/// Milliseconds, rounded up; -1 where no wait helps.
fn millis(retry: Retry) -> i64 {
    match retry {
        Retry::After(wait) => wait.as_millis_ceil().try_into().unwrap_or(i64::MAX),
        Retry::OnRelease | Retry::Never => -1,
    }
}
