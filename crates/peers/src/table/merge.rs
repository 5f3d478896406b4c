//! How charges of other nodes change a state.
//!
//! A delta is charged as of the instant at which it was taken, `age` ago, so that a bucket refills from then on. Core takes
//! an instant long before the state for a clock that was set back, and repairs the state; so a delta that lies before what
//! the state still knows is dropped here, where it can no longer count, or charged to the earliest instant where it does.

use tollgate_core::{
    Algorithm, Ask, Cost, DecodedState, Limit, Limits, Nanos, Now, Offset, Params, Phase, Time, WindowParams,
};
use tollgate_share::tally::RECENT;

/// What is used of one limit, as it travels in a snapshot: rounded up to a fraction of 2⁻³² tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Whole tokens.
    pub whole: u64,
    /// The rest, in units of 2⁻³² tokens.
    pub part: u32,
}

/// The parts of a token in [`Used`].
const UNIT: u64 = 1 << 32;

/// The result of a delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// By how much more than before the key owes beyond its capacity.
    pub(super) overshoot: u64,
    /// What was too old to be charged in full.
    pub(super) forgiven: u64,
}

/// Returns the instant `age` before `now`.
pub(super) fn as_of<'a>(now: &Now<'a>, age: Nanos) -> Now<'a> {
    let back = |nanos: u64| nanos.saturating_sub(age.as_nanos());
    Now::new(Time::from_nanos(back(now.mono().as_nanos())), Time::from_nanos(back(now.wall().as_nanos())))
        .with_spread(now.spread())
}

/// Charges what another node took `age` ago, or gives it back if it is negative. What is older than a second
/// takes only what is left.
pub(super) fn apply(limits: &Limits, words: &mut [u64], now: &Now<'_>, age: Nanos, cost: i64) -> Merged {
    let mut merged = Merged::default();
    let mut first = 0;
    for limit in limits.as_slice() {
        let mut cells = Offset { cells: &mut *words, first };
        first += limit.words();
        if cost < 0 {
            give_back(limit, &mut cells, now, age, cost.unsigned_abs());
            continue;
        }
        let before = beyond_capacity(limit, &cells, now);
        let charged = charge(limit, &mut cells, now, age, cost.unsigned_abs());
        let risen = beyond_capacity(limit, &cells, now).saturating_sub(before);
        merged.overshoot = merged.overshoot.max(risen);
        merged.forgiven = merged.forgiven.max(cost.unsigned_abs() - charged);
    }
    merged
}

type Cells<'a> = Offset<&'a mut [u64]>;

/// Returns what was charged.
fn charge(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, age: Nanos, cost: u64) -> u64 {
    let is_recent = age.as_nanos() <= RECENT;
    let then = as_of(now, age);
    let at = match limit.params() {
        Params::FixedWindow { window, phase } => match start_of(limit, cells, window) {
            // The window of the delta has ended.
            Some(start) if clock(&then, phase) < start => return 0,
            _ => then,
        },
        Params::SlidingWindow(window) if !is_recent => match start_of(limit, cells, window) {
            Some(start) if then.wall().as_nanos() < start => {
                return charge_previous(limit, cells, now, &then, cost);
            }
            _ => then,
        },
        // Slices are counted from now on: longer than they should be by their age.
        Params::SlidingSlices { window, .. } if !is_recent => {
            if age.as_nanos() > window.length.as_nanos() {
                return 0;
            }
            *now
        }
        Params::TokenBucket(_) if !is_recent => {
            if limit.window().is_none_or(|window| age.as_nanos() > window.as_nanos().saturating_mul(2)) {
                return 0;
            }
            then
        }
        _ => then,
    };
    let used = limit.used(cells, &at).ceil();
    let ask = if is_recent {
        Ask::Regardless(Cost::new(cost.min(most(limit).saturating_sub(used))))
    } else {
        Ask::UpTo(Cost::new(cost))
    };
    let verdict = limit.decide(cells, &at, ask);
    if verdict.is_admitted() { verdict.taken().get() } else { 0 }
}

/// Charges the window before that of the state, as far as that leaves the limit unused.
fn charge_previous(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, then: &Now<'_>, cost: u64) -> u64 {
    let Some(DecodedState::Windows { end, previous, used }) = limit.decode(cells) else { return 0 };
    let length = limit.window().map_or(0, Nanos::as_nanos);
    if then.wall().as_nanos().saturating_add(length.saturating_mul(2)) < end {
        return 0;
    }
    let left = limit.capacity().saturating_sub(limit.used(cells, now).ceil());
    let charged = cost.min(left);
    limit.encode(cells, DecodedState::Windows { end, previous: previous.saturating_add(charged), used });
    charged
}

fn give_back(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, age: Nanos, cost: u64) {
    // An old refund would add tokens to those that have refilled since.
    if age.as_nanos() > RECENT {
        return;
    }
    let then = as_of(now, age);
    let window = match limit.params() {
        Params::FixedWindow { window, phase } => Some((window, phase)),
        Params::SlidingWindow(window) => Some((window, Phase::Epoch)),
        _ => None,
    };
    // What was taken in an earlier window is not given back to this one.
    if let Some((window, phase)) = window
        && start_of(limit, cells, window).is_some_and(|start| clock(&then, phase) < start)
    {
        return;
    }
    limit.refund(cells, now, Cost::new(cost), None);
}

/// Returns the clock that windows of this phase go by.
fn clock(now: &Now<'_>, phase: Phase) -> u64 {
    if phase == Phase::FirstRequest { now.mono().as_nanos() } else { now.wall().as_nanos() }
}

/// Returns the first instant of the window that a state counts.
fn start_of(limit: &Limit, cells: &Cells<'_>, window: WindowParams) -> Option<u64> {
    match limit.decode(cells)? {
        DecodedState::Window { end, .. } | DecodedState::Windows { end, .. } => {
            Some(end.saturating_sub(window.length.as_nanos()))
        }
        DecodedState::Bucket { .. } | DecodedState::Interval { .. } => None,
    }
}

/// Returns the most that can be used of a limit, with its debt.
fn most(limit: &Limit) -> u64 {
    let debt = match limit.params() {
        Params::TokenBucket(bucket) => bucket.max_debt,
        Params::FixedWindow { window, .. } | Params::SlidingWindow(window) | Params::SlidingSlices { window, .. } => {
            window.max_debt
        }
        _ => 0,
    };
    limit.capacity().saturating_add(debt)
}

fn beyond_capacity(limit: &Limit, cells: &Cells<'_>, now: &Now<'_>) -> u64 {
    limit.used(cells, now).floor().saturating_sub(limit.capacity())
}

/// Returns what is used of each limit.
pub(super) fn used(limits: &Limits, words: &[u64], now: &Now<'_>) -> Vec<Used> {
    let mut first = 0;
    let each = limits.as_slice().iter().map(|limit| {
        let units = limit.used(&Offset { cells: words, first }, now).units_ceil(UNIT);
        first += limit.words();
        let (whole, part) = (units / u128::from(UNIT), units % u128::from(UNIT));
        Used { whole: u64::try_from(whole).unwrap_or(u64::MAX), part: part as u32 }
    });
    each.collect()
}

/// Raises what is used of each limit to what another node knows; what is used more here stays. For a bucket this is the later of the
/// two instants at which it is full.
pub(super) fn raise(limits: &Limits, words: &mut [u64], now: &Now<'_>, used: &[Used]) {
    let mut first = 0;
    for (limit, other) in limits.as_slice().iter().zip(used) {
        let mut cells = Offset { cells: &mut *words, first };
        first += limit.words();
        if let (Params::TokenBucket(bucket), Some(DecodedState::Bucket { ticks })) =
            (limit.params(), limit.decode(&cells))
        {
            // In ticks, since what is used of a bucket is seldom whole.
            let per = u128::from(bucket.rate.per().as_nanos());
            let owed = u128::from(other.whole) * per + (u128::from(other.part) * per).div_ceil(UNIT.into());
            let most = u128::from(most(limit)) * per;
            let instant = u128::from(now.mono().as_nanos()) * u128::from(bucket.rate.count());
            let raised = instant.saturating_add(owed.min(most));
            if raised > ticks {
                limit.encode(&mut cells, DecodedState::Bucket { ticks: raised });
            }
            continue;
        }
        let here = limit.used(&cells, now).ceil();
        let there = other.whole.saturating_add(u64::from(other.part > 0)).min(most(limit));
        if there > here {
            let _ = limit.decide(&mut cells, now, Ask::Regardless(Cost::new(there - here)));
        }
    }
}
