//! Scripts of operations on a limiter, as data that proptest generates and shrinks.
//!
//! Random numbers alone would rarely hit an edge case, so steps may refer to the limiter's last result. A step may wait
//! exactly the advertised time or one nanosecond less, and may ask for exactly the remaining amount or one more.

use std::env;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate_core::{Nanos, Rate, Report, Retry};

use super::lockstep::LATEST_INSTANT;

const DAY: u64 = 86_400_000_000_000;

/// The wait before an operation.
#[derive(Clone, Copy, Debug)]
pub enum ScriptPause {
    /// Fixed duration in nanoseconds.
    Nanos(u64),
    /// The wait advertised in the last report, plus an offset.
    Retry(i64),
    /// The reset of the last report (the time until the key is unused), plus an offset.
    Reset(i64),
}

/// Amount of an operation.
#[derive(Clone, Copy, Debug)]
pub enum ScriptAmount {
    /// Fixed amount.
    Of(u64),
    /// The remaining amount plus an offset.
    Remaining(i64),
    /// The capacity plus an offset.
    Capacity(i64),
    /// Twice the capacity plus an offset. With the default debt, this is the largest used amount.
    Twice(i64),
}

/// Operation on a limiter.
#[derive(Clone, Copy, Debug)]
pub enum ScriptAct {
    /// Takes the whole amount or nothing.
    Check(ScriptAmount),
    /// Decides without taking anything.
    Peek(ScriptAmount),
    /// Takes as much as possible, up to this amount.
    TakeUpTo(ScriptAmount),
    /// Takes as much as possible.
    Drain,
    /// Takes the amount regardless of the limit, into debt.
    Charge(ScriptAmount),
    /// Refunds the charge made this number of charges ago. `None`: refunds without a receipt.
    Refund(ScriptAmount, Option<usize>),
    /// Resets the key.
    Reset,
}

/// A wait followed by an operation.
#[derive(Clone, Copy, Debug)]
pub struct ScriptStep {
    /// Wait before the operation.
    pub pause: ScriptPause,
    /// Operation to perform.
    pub act: ScriptAct,
}

impl ScriptPause {
    /// Returns the wait in nanoseconds, given the limiter's last report.
    pub fn to_nanos(self, last: &Report) -> u64 {
        match (self, last.retry) {
            (Self::Nanos(n), _) => n,
            (Self::Retry(more), Retry::After(wait)) => wait.as_nanos().saturating_add_signed(more),
            (Self::Retry(_), Retry::OnRelease | Retry::Never) => 0,
            (Self::Reset(more), _) => last.reset.as_nanos().saturating_add_signed(more),
        }
    }
}

impl ScriptAmount {
    /// Returns the amount, given the limiter's current report.
    pub fn to_units(self, seen: &Report) -> u64 {
        match self {
            Self::Of(n) => n,
            Self::Remaining(more) => seen.remaining.saturating_add_signed(more),
            Self::Capacity(more) => seen.limit.saturating_add_signed(more),
            Self::Twice(more) => seen.limit.saturating_mul(2).saturating_add_signed(more),
        }
    }
}

/// Returns a configuration with `cases` cases, unless `PROPTEST_CASES` sets another number. Failing cases are stored
/// next to the test and run first.
pub fn config_with_cases(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..default
    }
}

/// Generates numbers up to `max`, with every order of magnitude equally likely.
pub fn any_number_up_to(max: u64) -> impl Strategy<Value = u64> {
    (0..=max.leading_zeros().abs_diff(64), any::<u64>())
        .prop_map(move |(bits, n)| if bits == 0 { 0 } else { (n >> (64 - bits)).min(max) })
}

/// Generates numbers of every order of magnitude, and often values near the maximum.
pub fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => any_number_up_to(u64::MAX),
        1 => Just(u64::MAX),
        1 => any_number_up_to(16).prop_map(|n| u64::MAX - n),
    ]
}

/// Generates start times at which every state is exact.
pub fn any_start() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any_number_up_to(LATEST_INSTANT)]
}

/// Generates amounts of at least 1, of every order of magnitude, often below 20.
pub fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), 1_u64..20, any_number_up_to(u64::MAX).prop_map(|n| n.max(1))]
}

/// Generates rates that divide a second evenly, rates that do not, and arbitrary rates.
pub fn any_rate() -> impl Strategy<Value = Rate> {
    let named = ["7777/s", "86399/day", "999983/s", "1000000007/day", "1/week", "3G/s", "10/s", "1/s", "3/s", "20/h"]
        .map(|text| text.parse::<Rate>().expect("a rate"));
    prop_oneof![
        3 => proptest::sample::select(named.to_vec()),
        1 => (any_number_up_to(u64::from(u32::MAX)), any_number_up_to(Rate::MAX_PERIOD.as_nanos()))
            .prop_map(|(count, per)| {
                Rate::new(count.max(1), Nanos::from_nanos(per.max(1))).expect("within the bounds of a rate")
            }),
    ]
}

fn any_offset() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 1 => Just(-1), 1 => Just(1)]
}

fn any_pause() -> impl Strategy<Value = ScriptPause> {
    prop_oneof![
        3 => Just(ScriptPause::Nanos(0)),
        3 => any_number_up_to(100 * DAY).prop_map(ScriptPause::Nanos),
        3 => any_offset().prop_map(ScriptPause::Retry),
        1 => any_offset().prop_map(ScriptPause::Reset),
    ]
}

fn any_script_amount() -> impl Strategy<Value = ScriptAmount> {
    prop_oneof![
        1 => Just(ScriptAmount::Of(0)),
        3 => Just(ScriptAmount::Of(1)),
        2 => (2_u64..10).prop_map(ScriptAmount::Of),
        2 => any_offset().prop_map(ScriptAmount::Remaining),
        2 => any_offset().prop_map(ScriptAmount::Capacity),
        1 => any_offset().prop_map(ScriptAmount::Twice),
        2 => any_number_up_to(u64::MAX).prop_map(ScriptAmount::Of),
        1 => Just(ScriptAmount::Of(u64::MAX)),
    ]
}

/// Generates operations that only take or peek, so that their results alone determine the admitted amounts.
fn any_taking_act() -> impl Strategy<Value = ScriptAct> {
    prop_oneof![
        4 => any_script_amount().prop_map(ScriptAct::Check),
        1 => any_script_amount().prop_map(ScriptAct::Peek),
        2 => any_script_amount().prop_map(ScriptAct::TakeUpTo),
        1 => Just(ScriptAct::Drain),
    ]
}

/// Generates operations of every kind.
fn any_act() -> impl Strategy<Value = ScriptAct> {
    prop_oneof![
        8 => any_taking_act(),
        2 => any_script_amount().prop_map(ScriptAct::Charge),
        2 => (any_script_amount(), proptest::option::of(0_usize..4))
            .prop_map(|(amount, ago)| ScriptAct::Refund(amount, ago)),
        1 => Just(ScriptAct::Reset),
    ]
}

/// Generates fewer than `length` steps of any kind.
pub fn any_script(length: usize) -> impl Strategy<Value = Vec<ScriptStep>> {
    proptest::collection::vec((any_pause(), any_act()).prop_map(|(pause, act)| ScriptStep { pause, act }), 1..length)
}

/// Generates fewer than `length` steps that only take or peek.
pub fn any_taking_script(length: usize) -> impl Strategy<Value = Vec<ScriptStep>> {
    proptest::collection::vec(
        (any_pause(), any_taking_act()).prop_map(|(pause, act)| ScriptStep { pause, act }),
        1..length,
    )
}
