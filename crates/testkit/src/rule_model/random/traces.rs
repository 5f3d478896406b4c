//! Traces: requests and their times. To reach the edge cases of limits, a time may be the advertised retry or reset of
//! the last answer, or one tick earlier. An amount may be the remaining amount, or one more.

use super::super::Verb;
use super::super::calendar::days_since_1970;
use super::super::rules::{Request, RuleSet};
use super::{Rng, any_versions};

/// Rule versions, and the steps that run under them.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Start in nanoseconds since 1970.
    pub start: u64,
    /// Versions of the rules. The first version is initially in force.
    pub versions: Vec<RuleSet>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A wait followed by an operation.
#[derive(Clone, Debug)]
pub struct Step {
    /// The wait.
    pub pause: Pause,
    /// The operation.
    pub act: Act,
}

/// A wait.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// No wait.
    None,
    /// A number of ticks.
    Ticks(u64),
    /// A number of nanoseconds, rounded to ticks.
    Nanos(u64),
    /// Until one tick before the last advertised retry.
    BeforeRetry,
    /// Until the last advertised retry.
    Retry,
    /// Until one tick before the reset of this limit in the last answer.
    BeforeReset(usize),
    /// Until the reset of this limit in the last answer.
    Reset(usize),
}

/// An operation.
#[derive(Clone, Debug)]
pub enum Act {
    /// Decides a request. The amount determines the cost of the request.
    Ask(Verb, Request, Amount),
    /// Decides the last request again.
    Again,
    /// Peeks with the last request.
    PeekAgain,
    /// Refunds the charge made this many charges ago.
    Refund(usize),
    /// Settles the charge made this many charges ago, at this amount if it is [`Amount::Exactly`], otherwise at 3.
    Commit(usize, Amount),
    /// Renews the leases of the charge made this many charges ago.
    Renew(usize),
    /// Resets the counters of a request.
    Reset(Request),
    /// Puts this version of the rules in force.
    Put(usize),
}

/// An amount.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// No amount in the request: each rule uses its own cost.
    Unsaid,
    /// Fixed amount.
    Exactly(u64),
    /// The remaining amount of the tightest limit plus an offset.
    Remaining(i64),
    /// The largest possible amount.
    All,
}

impl Trace {
    /// Returns a trace of `steps` steps.
    pub fn random(rng: &mut Rng, tick: u64, steps: usize) -> Self {
        let versions = any_versions(rng, tick);
        let steps = (0..steps).map(|_| any_step(rng, versions.len())).collect();
        Self { start: any_start(rng, tick), versions, steps }
    }
}

/// Returns a start time, often near a clock change.
fn any_start(rng: &mut Rng, tick: u64) -> u64 {
    let (year, month, day) =
        rng.pick(&[(2026, 9, 21), (2027, 3, 27), (2027, 3, 13), (2027, 10, 30), (2027, 11, 6), (2028, 2, 28)]);
    let second = days_since_1970(year, month, day) as u64 * 86_400 + rng.below(2 * 86_400);
    (second * 1_000_000_000 + rng.below(1_000_000_000)).next_multiple_of(tick)
}

fn any_step(rng: &mut Rng, versions: usize) -> Step {
    let pause = match rng.below(16) {
        0..5 => Pause::None,
        5 => Pause::Ticks(rng.between(1, 3)),
        6 => Pause::Nanos(rng.between(1, 1_000_000)),
        7 | 8 => Pause::Nanos(rng.between(1, 3_000_000_000)),
        9 => Pause::Nanos(rng.between(1, 4_000_000_000_000)),
        10 => Pause::BeforeReset(rng.below(4) as usize),
        11 => Pause::Reset(rng.below(4) as usize),
        12 | 13 => return Step { pause: Pause::BeforeRetry, act: rng.pick(&[Act::Again, Act::PeekAgain]) },
        _ => return Step { pause: Pause::Retry, act: rng.pick(&[Act::Again, Act::PeekAgain]) },
    };
    Step { pause, act: any_act(rng, versions) }
}

fn any_act(rng: &mut Rng, versions: usize) -> Act {
    match rng.below(40) {
        0..21 => any_request_act(rng, Verb::Check),
        21..24 => any_request_act(rng, Verb::Peek),
        24..27 => any_request_act(rng, Verb::TakeUpTo),
        27..30 => any_request_act(rng, Verb::Charge),
        30 | 31 => Act::Again,
        32..34 => Act::Refund(rng.below(4) as usize),
        34..36 => Act::Commit(rng.below(3) as usize, any_amount(rng)),
        36 => Act::Renew(rng.below(3) as usize),
        37 => Act::Reset(any_request(rng)),
        _ => Act::Put(rng.below(versions as u64) as usize),
    }
}

fn any_request_act(rng: &mut Rng, verb: Verb) -> Act {
    let amount = match (verb, any_amount(rng)) {
        (Verb::TakeUpTo, Amount::Unsaid) => Amount::All,
        (_, amount) => amount,
    };
    Act::Ask(verb, any_request(rng), amount)
}

fn any_amount(rng: &mut Rng) -> Amount {
    match rng.below(10) {
        0..3 => Amount::Unsaid,
        3..5 => Amount::Exactly(rng.between(1, 5)),
        5 => Amount::Exactly(rng.below(400)),
        6 => Amount::Exactly(0),
        7 => Amount::Remaining(rng.pick(&[0, 1, 2])),
        8 => Amount::Remaining(-(rng.between(0, 3) as i64)),
        _ => rng.pick(&[Amount::All, Amount::Remaining(0)]),
    }
}

fn any_request(rng: &mut Rng) -> Request {
    let mut attributes = vec![("user", rng.pick(&["a", "a", "b"]).to_owned())];
    if rng.one_in(2) {
        attributes.push(("path", rng.pick(&["x", "y"]).to_owned()));
    }
    if rng.one_in(2) {
        attributes.push(("plan", rng.pick(&["pro", "pro", "own"]).to_owned()));
    }
    if rng.one_in(3) {
        attributes.push(("weight", rng.pick(&["0", "2", "5", "12", "many"]).to_owned()));
    }
    Request { attributes, cost: None }
}
