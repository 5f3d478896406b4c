//! What is done to a limiter, as data that proptest can make up and shrink.
//!
//! Random numbers alone would almost never meet an edge, so steps may refer to what the limiter last said: wait exactly the
//! advertised time, or one nanosecond less; ask for exactly what remains, or one more.

use std::env;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate_core::{Nanos, Rate, Report, Retry};

use super::lockstep::HORIZON;

const DAY: u64 = 86_400_000_000_000;

/// How long to wait before acting.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// This many nanoseconds.
    Nanos(u64),
    /// As long as the last answer said for the same cost, and this much longer.
    Retry(i64),
    /// Until as good as new, and this much longer.
    Reset(i64),
}

/// How much.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// This much.
    Of(u64),
    /// What remains, and this much more.
    Remaining(i64),
    /// What the limit holds at most, and this much more.
    Capacity(i64),
    /// What the limit holds twice, and this much more: where debt ends, unless it was chosen.
    Twice(i64),
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// All or nothing.
    Check(Amount),
    /// Only ask.
    Peek(Amount),
    /// As much as fits.
    TakeUpTo(Amount),
    /// Everything that fits.
    Drain,
    /// Regardless, into debt.
    Charge(Amount),
    /// Give back, to the taking so many takings ago if there is one.
    Refund(Amount, Option<usize>),
    /// Start again as new.
    Reset,
}

/// Wait, then act.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How long to wait before acting.
    pub pause: Pause,
    /// What to do then.
    pub act: Act,
}

impl Pause {
    /// The nanoseconds to wait, after the limiter said `last`.
    pub fn nanos(self, last: &Report) -> u64 {
        match (self, last.retry) {
            (Self::Nanos(n), _) => n,
            (Self::Retry(more), Retry::After(wait)) => wait.as_nanos().saturating_add_signed(more),
            (Self::Retry(_), Retry::OnRelease | Retry::Never) => 0,
            (Self::Reset(more), _) => last.reset.as_nanos().saturating_add_signed(more),
        }
    }
}

impl Amount {
    /// The units, where the limiter says `seen`.
    pub fn units(self, seen: &Report) -> u64 {
        match self {
            Self::Of(n) => n,
            Self::Remaining(more) => seen.remaining.saturating_add_signed(more),
            Self::Capacity(more) => seen.limit.saturating_add_signed(more),
            Self::Twice(more) => seen.limit.saturating_mul(2).saturating_add_signed(more),
        }
    }
}

/// This many cases, unless `PROPTEST_CASES` says otherwise; what failed once is kept beside the test and tried first.
pub fn cases(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..default
    }
}

/// Numbers of every size equally often, up to `max`.
pub fn any_size(max: u64) -> impl Strategy<Value = u64> {
    (0..=max.leading_zeros().abs_diff(64), any::<u64>())
        .prop_map(move |(bits, n)| if bits == 0 { 0 } else { (n >> (64 - bits)).min(max) })
}

/// Numbers of every size, and often the largest there are.
pub fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![4 => any_size(u64::MAX), 1 => Just(u64::MAX), 1 => any_size(16).prop_map(|n| u64::MAX - n)]
}

/// Where scripts may start for every state to be exact.
pub fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any_size(HORIZON)]
}

/// Amounts from one up, small ones as often as any.
pub fn some() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), 1_u64..20, any_size(u64::MAX).prop_map(|n| n.max(1))]
}

/// Rates that divide badly, rates that divide well, and any other.
pub fn rates() -> impl Strategy<Value = Rate> {
    let named = ["7777/s", "86399/day", "999983/s", "1000000007/day", "1/week", "3G/s", "10/s", "1/s", "3/s", "20/h"]
        .map(|text| text.parse::<Rate>().expect("a rate"));
    prop_oneof![
        3 => proptest::sample::select(named.to_vec()),
        1 => (any_size(u64::from(u32::MAX)), any_size(Rate::MAX_PERIOD.as_nanos())).prop_map(|(count, per)| {
            Rate::new(count.max(1), Nanos::from_nanos(per.max(1))).expect("within the bounds of a rate")
        }),
    ]
}

fn off_by_one() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 1 => Just(-1), 1 => Just(1)]
}

fn pauses() -> impl Strategy<Value = Pause> {
    prop_oneof![
        3 => Just(Pause::Nanos(0)),
        3 => any_size(100 * DAY).prop_map(Pause::Nanos),
        3 => off_by_one().prop_map(Pause::Retry),
        1 => off_by_one().prop_map(Pause::Reset),
    ]
}

fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        1 => Just(Amount::Of(0)),
        3 => Just(Amount::Of(1)),
        2 => (2_u64..10).prop_map(Amount::Of),
        2 => off_by_one().prop_map(Amount::Remaining),
        2 => off_by_one().prop_map(Amount::Capacity),
        1 => off_by_one().prop_map(Amount::Twice),
        2 => any_size(u64::MAX).prop_map(Amount::Of),
        1 => Just(Amount::Of(u64::MAX)),
    ]
}

/// Acts that only take: what an interval admitted can be read off their answers.
fn takings() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => amounts().prop_map(Act::Check),
        1 => amounts().prop_map(Act::Peek),
        2 => amounts().prop_map(Act::TakeUpTo),
        1 => Just(Act::Drain),
    ]
}

/// Every act there is.
fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => takings(),
        2 => amounts().prop_map(Act::Charge),
        2 => (amounts(), proptest::option::of(0_usize..4)).prop_map(|(amount, ago)| Act::Refund(amount, ago)),
        1 => Just(Act::Reset),
    ]
}

/// Up to `length` steps of any kind.
pub fn scripts(length: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((pauses(), acts()).prop_map(|(pause, act)| Step { pause, act }), 1..length)
}

/// Up to `length` steps that only take.
pub fn greedy_scripts(length: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((pauses(), takings()).prop_map(|(pause, act)| Step { pause, act }), 1..length)
}
