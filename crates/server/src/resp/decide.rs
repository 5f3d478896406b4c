//! Commands that end in a decision: `TG.CHECK` and its relatives, and `CL.THROTTLE` where its keys are shared with other servers.
//! Those that follow each other in a pipeline are asked about together: one round trip for all of them.

use tollgate::redis_cell::Throttle;
use tollgate::{Cost, Nanos, Outcome, Retry};
use tollgate_engine::{Decision, Entry, Item, Lent, Request, SentLimits, Store};

use super::act::act;
use super::asked::{Act, Asked};
use super::replay::{Keyed, Turn, begin, take_key};
use super::translate::{self, write_decision};
use super::wire::{Parsed, Replies, integer, parse};
use crate::app::{App, Verb};
use crate::control::auth::Access;
use crate::net::accept::Protocol;

/// The most commands that are asked about together.
const TOGETHER: usize = 64;

/// One command: what is asked, or what is wrong with it.
enum Question<'a> {
    Rules(ByRules<'a>, Keyed<'a>),
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
pub(super) async fn decide<S: Store>(app: &App<S>, access: &Access, input: &[u8], replies: &mut Replies) -> usize {
    let mut args = Vec::new();
    if let Ok(Parsed::Command(used)) = parse(input, &mut args)
        && let Some(Asked::Act(what)) = args.first().and_then(|name| Asked::find(name))
    {
        act(app, access, what, args, replies).await;
        return used;
    }
    let (questions, verb, used) = read(app, input);
    let items: Vec<Option<Item<'_>>> = questions.iter().map(Question::item).collect();
    let requests: Vec<Request<'_>> = questions
        .iter()
        .zip(&items)
        .filter_map(|(question, item)| {
            let domain = if let Question::Rules(asked, _) = question { asked.domain } else { &[][..] };
            item.as_ref().map(|item| Request { domain, items: std::slice::from_ref(item) })
        })
        .collect();
    let mut decisions = Lent::take();
    if !requests.is_empty() {
        app.decide(Protocol::Resp, verb, &requests, &mut decisions).await;
    }
    drop(requests);
    drop(items);
    let mut decided = decisions.iter();
    for question in questions {
        let decision = if question.item().is_some() { decided.next() } else { None };
        match (question, decision) {
            (Question::Wrong(error), _) => {
                app.mistaken(Protocol::Resp);
                replies.error(&error);
            }
            (Question::Closed(reply), _) => replies.five(reply),
            (Question::Rules(_, Keyed::Again(replay)), _) => replay.write(replies),
            (Question::Rules(_, keyed), Some(Ok(decision))) => {
                write_decision(replies, &decision, verb, Turn::First);
                // A refusal took nothing, and whoever asks again wants to know how things stand by then.
                if decision.is_allowed() {
                    keyed.answered(|replies| write_decision(replies, &decision, verb, Turn::Again));
                }
            }
            (Question::Throttle { throttle, .. }, Some(Ok(decision))) => replies.five(five(&throttle, &decision)),
            (Question::Rules(..) | Question::Throttle { .. }, Some(Err(error))) => {
                app.mistaken(Protocol::Resp);
                replies.error(&format!("ERR {error}"));
            }
            (Question::Rules(..) | Question::Throttle { .. }, None) => {
                replies.error("ERR the request was not decided");
            }
        }
    }
    used
}

/// Whether the first command may take long.
pub(super) fn waits(input: &[u8]) -> bool {
    let mut args = Vec::new();
    parse(input, &mut args).is_ok() && args.first().and_then(|name| Asked::find(name)) == Some(Asked::Act(Act::Acquire))
}

/// The questions at the beginning of `input`, as far as they have one verb. Calls of `CL.THROTTLE` whose keys are kept in this
/// process are not among them: these have counters of their own.
fn read<'a, S: Store>(app: &'a App<S>, input: &'a [u8]) -> (Vec<Question<'a>>, Verb, usize) {
    let (mut questions, mut args, mut at) = (Vec::new(), Vec::new(), 0);
    let (mut common, mut keys) = (None, Vec::new());
    while questions.len() < TOGETHER
        && let Ok(Parsed::Command(len)) = parse(&input[at..], &mut args)
        && let Some(asked) = args.first().and_then(|name| Asked::find(name))
        && !(asked == Asked::Throttle && app.throttles_here())
        && let Some(verb) = asked.verb()
        && *common.get_or_insert(verb) == verb
    {
        let key = take_key(asked, &mut args);
        // What comes again in one pipeline is answered by what came of it the first time, which is not known yet.
        if key.is_some_and(|key| keys.contains(&key)) {
            break;
        }
        keys.extend(key);
        let question = match asked {
            Asked::Throttle => throttle(app, &args),
            Asked::Decide(Verb::Drain) => all_by_rules(&args).map(|asked| Question::Rules(asked, Keyed::Unkeyed)),
            Asked::Decide(_) | Asked::Act(_) => by_rules(&args).map(|asked| Question::Rules(asked, Keyed::Unkeyed)),
        };
        let question = question.and_then(|question| match question {
            Question::Rules(by, Keyed::Unkeyed) => Ok(Question::Rules(by, begin(app, asked, key, &args)?)),
            other => Ok(other),
        });
        questions.push(question.unwrap_or_else(Question::Wrong));
        at += len;
    }
    (questions, common.unwrap_or(Verb::Check), at)
}

/// A question to the rules.
pub(super) struct ByRules<'a> {
    pub(super) domain: &'a [u8],
    /// None is what the rules say.
    pub(super) cost: Option<Cost>,
    pub(super) entries: Vec<Entry<'a>>,
}

/// `TG.CHECK domain cost [name value …]`, without its key.
pub(super) fn by_rules<'a>(args: &[&'a [u8]]) -> Result<ByRules<'a>, String> {
    let usage = || {
        let name = args.first().map_or("tg.check".into(), |name| String::from_utf8_lossy(name).to_lowercase());
        format!("ERR usage: {name} <domain> <cost or -> [ONCE <key>] [<name> <value> ...]")
    };
    let [_, domain, cost, attributes @ ..] = args else { return Err(usage()) };
    let (pairs, []) = attributes.as_chunks::<2>() else { return Err(usage()) };
    let entries = pairs.iter().map(|[name, value]| Entry { name, value }).collect();
    // Whatever its place is, a word stands there, so that no attribute is taken for a cost.
    let cost = if *cost == AS_RULED { None } else { Some(number(cost).ok_or_else(|| no_cost(cost, OR_AS_RULED))?) };
    Ok(ByRules { domain, cost, entries })
}

/// The cost of a request that weighs what the rules say: `cost` of each rule, or 1.
const AS_RULED: &[u8] = b"-";
const OR_AS_RULED: &str = ", or - for what the rules say";

/// What something weighs of which no rule says it.
pub(super) fn cost_of(text: &[u8]) -> Result<Cost, String> {
    number(text).ok_or_else(|| no_cost(text, ""))
}

fn number(text: &[u8]) -> Option<Cost> {
    integer(text).and_then(|cost| u64::try_from(cost).ok()).map(Cost::new)
}

fn no_cost(text: &[u8], or: &str) -> String {
    let cost = String::from_utf8_lossy(&text[..text.len().min(64)]);
    format!("ERR the cost is '{cost}', it must be a whole number, such as 1{or}")
}

/// `TG.DRAIN domain [name value …]`, without its key.
fn all_by_rules<'a>(args: &[&'a [u8]]) -> Result<ByRules<'a>, String> {
    let usage = || "ERR usage: tg.drain <domain> [ONCE <key>] [<name> <value> ...]".to_owned();
    let [_, domain, attributes @ ..] = args else { return Err(usage()) };
    let (pairs, []) = attributes.as_chunks::<2>() else { return Err(usage()) };
    let entries = pairs.iter().map(|[name, value]| Entry { name, value }).collect();
    Ok(ByRules { domain, cost: Some(Cost::MAX), entries })
}

/// `CL.THROTTLE key max_burst count period [quantity]`.
fn throttle<'a, S: Store>(app: &App<S>, args: &[&'a [u8]]) -> Result<Question<'a>, String> {
    let numbers = translate::throttle_numbers(args)?;
    let throttle = Box::new(translate::throttle(numbers)?);
    let Ok(cost) = u64::try_from(numbers[3]) else {
        return Err("Cell error: Store error: a negative quantity cannot be given back to a shared store".into());
    };
    match app.throttle_limits(&throttle) {
        Some(Ok(limits)) => Ok(Question::Throttle { throttle, key: args[1], cost: Cost::new(cost), limits }),
        Some(Err(error)) => Err(format!("Cell error: Store error: {error}")),
        None => Ok(Question::Closed(throttle.reply(Outcome::Deny(Retry::Never), Nanos::ZERO))),
    }
}

impl Question<'_> {
    /// What the engine is asked, if it is.
    fn item(&self) -> Option<Item<'_>> {
        match self {
            Self::Rules(_, Keyed::Again(_)) | Self::Closed(_) | Self::Wrong(_) => None,
            Self::Rules(asked, _) => Some(Item { entries: &asked.entries, cost: asked.cost, limit: None }),
            Self::Throttle { key, cost, limits, .. } => Some(Item { cost: Some(*cost), ..Item::sent(key, limits) }),
        }
    }
}

/// A decision as the five numbers of redis-cell.
fn five(throttle: &Throttle, decision: &Decision<'_>) -> [i64; 5] {
    let reset = decision.reports().next().map_or(Nanos::ZERO, |limit| limit.report.reset);
    throttle.reply(decision.outcome(), reset)
}
