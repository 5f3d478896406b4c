//! Applies charges of other nodes to a state.
//!
//! A delta is charged as of the instant `age` ago, so that a bucket refills from that instant. If that instant is long
//! before the instants in a state, the core assumes that the clock was set back, and would discard usage. So this
//! module, not the core, handles deltas from before the state's window. Charges that no longer count are dropped, and
//! the others are added to the earliest window that still counts. In sliding slices, the others are added to the
//! current slice.

use tollgate_core::{
    Algorithm, Ask, Cost, DecodedState, Limit, Limits, Nanos, Now, OffsetCells, Params, Phase, Time, WindowParams,
};
use tollgate_share::tally::RECENT_NANOS;

/// Used amount of one limit in a snapshot, rounded up to a multiple of 2⁻³² tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedAmount {
    /// Whole tokens.
    pub whole: u64,
    /// Fraction in units of 2⁻³² tokens.
    pub part: u32,
}

/// Units per token in [`UsedAmount::part`].
const UNITS_PER_TOKEN: u64 = 1 << 32;

/// Result of applying a delta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MergeResult {
    /// Increase of the amount used beyond the capacity.
    pub(super) overshoot: u64,
    /// Amount that was too old to be charged.
    pub(super) forgiven: u64,
}

/// Returns the instant `age` before `now`.
pub(super) fn as_of<'a>(now: &Now<'a>, age: Nanos) -> Now<'a> {
    let back = |nanos: u64| nanos.saturating_sub(age.as_nanos());
    Now::new(Time::from_nanos(back(now.mono().as_nanos())), Time::from_nanos(back(now.wall().as_nanos())))
        .with_spread(now.spread())
}

/// Applies a charge that another node made `age` ago. A negative cost is a refund. A charge that is older than a
/// second takes at most the remaining tokens.
pub(super) fn apply(limits: &Limits, words: &mut [u64], now: &Now<'_>, age: Nanos, cost: i64) -> MergeResult {
    let mut merged = MergeResult::default();
    let mut first = 0;
    for limit in limits.as_slice() {
        let mut cells = OffsetCells { cells: &mut *words, first };
        first += limit.words();
        if cost < 0 {
            give_back(limit, &mut cells, now, age, cost.unsigned_abs());
            continue;
        }
        let before = used_beyond_capacity(limit, &cells, now);
        let charged = charge(limit, &mut cells, now, age, cost.unsigned_abs());
        let risen = used_beyond_capacity(limit, &cells, now).saturating_sub(before);
        merged.overshoot = merged.overshoot.max(risen);
        merged.forgiven = merged.forgiven.max(cost.unsigned_abs() - charged);
    }
    merged
}

type Cells<'a> = OffsetCells<&'a mut [u64]>;

/// Charges one limit and returns the charged amount.
fn charge(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, age: Nanos, cost: u64) -> u64 {
    let is_recent = age.as_nanos() <= RECENT_NANOS;
    let then = as_of(now, age);
    let at = match limit.params() {
        Params::FixedWindow { window, phase } => match window_start(limit, cells, window) {
            // The delta's window has ended.
            Some(start) if clock_reading(&then, phase) < start => return 0,
            _ => then,
        },
        Params::SlidingWindow(window) if !is_recent => match window_start(limit, cells, window) {
            Some(start) if then.wall().as_nanos() < start => {
                return charge_previous_window(limit, cells, now, &then, cost);
            }
            _ => then,
        },
        // Old charges go into the current slice. Each of them therefore counts for its age longer than it should.
        Params::SlidingSlices { window, .. } if !is_recent => {
            if age.as_nanos() > window.length.as_nanos() {
                return 0;
            }
            *now
        }
        Params::TokenBucket(_) if !is_recent => {
            if limit.full_refill_time().is_none_or(|window| age.as_nanos() > window.as_nanos().saturating_mul(2)) {
                return 0;
            }
            then
        }
        // Recent charges. The remaining algorithms have no state or are refused by `check_limits`.
        Params::SlidingWindow(_)
        | Params::SlidingSlices { .. }
        | Params::TokenBucket(_)
        | Params::Unlimited
        | Params::DenyAll
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. }
        | Params::SlidingLog { .. }
        | Params::Concurrency { .. } => then,
    };
    let used = limit.used(cells, &at).ceil();
    let ask = if is_recent {
        Ask::Regardless(Cost::new(cost.min(max_used(limit).saturating_sub(used))))
    } else {
        Ask::UpTo(Cost::new(cost))
    };
    let verdict = limit.decide(cells, &at, ask);
    if verdict.is_admitted() { verdict.taken().get() } else { 0 }
}

/// Charges the previous window, up to the limit's remaining amount.
fn charge_previous_window(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, then: &Now<'_>, cost: u64) -> u64 {
    let Some(DecodedState::Windows { end, previous, used }) = limit.decode(cells) else { return 0 };
    let length = limit.full_refill_time().map_or(0, Nanos::as_nanos);
    if then.wall().as_nanos().saturating_add(length.saturating_mul(2)) < end {
        return 0;
    }
    let left = limit.capacity().saturating_sub(limit.used(cells, now).ceil());
    let charged = cost.min(left);
    limit.encode(cells, DecodedState::Windows { end, previous: previous.saturating_add(charged), used });
    charged
}

fn give_back(limit: &Limit, cells: &mut Cells<'_>, now: &Now<'_>, age: Nanos, cost: u64) {
    // An old refund would add to tokens that have already refilled.
    if age.as_nanos() > RECENT_NANOS {
        return;
    }
    let then = as_of(now, age);
    let window = match limit.params() {
        Params::FixedWindow { window, phase } => Some((window, phase)),
        Params::SlidingWindow(window) => Some((window, Phase::Epoch)),
        Params::Unlimited
        | Params::DenyAll
        | Params::TokenBucket(_)
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. }
        | Params::SlidingSlices { .. }
        | Params::SlidingLog { .. }
        | Params::Concurrency { .. } => None,
    };
    // A charge in an earlier window is not refunded to the current window.
    if let Some((window, phase)) = window
        && window_start(limit, cells, window).is_some_and(|start| clock_reading(&then, phase) < start)
    {
        return;
    }
    limit.refund(cells, now, Cost::new(cost), None);
}

/// Returns the reading of the clock that windows of this phase follow: monotonic for [`Phase::FirstRequest`], wall
/// otherwise.
fn clock_reading(now: &Now<'_>, phase: Phase) -> u64 {
    if phase == Phase::FirstRequest { now.mono().as_nanos() } else { now.wall().as_nanos() }
}

/// Returns the start of the state's current window.
fn window_start(limit: &Limit, cells: &Cells<'_>, window: WindowParams) -> Option<u64> {
    match limit.decode(cells)? {
        DecodedState::Window { end, .. } | DecodedState::Windows { end, .. } => {
            Some(end.saturating_sub(window.length.as_nanos()))
        }
        DecodedState::Bucket { .. } | DecodedState::Interval { .. } => None,
    }
}

/// Returns the maximum used amount: the capacity plus the debt.
fn max_used(limit: &Limit) -> u64 {
    let debt = match limit.params() {
        Params::TokenBucket(bucket) => bucket.max_debt,
        Params::FixedWindow { window, .. } | Params::SlidingWindow(window) | Params::SlidingSlices { window, .. } => {
            window.max_debt
        }
        Params::Unlimited
        | Params::DenyAll
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. }
        | Params::SlidingLog { .. }
        | Params::Concurrency { .. } => 0,
    };
    limit.capacity().saturating_add(debt)
}

fn used_beyond_capacity(limit: &Limit, cells: &Cells<'_>, now: &Now<'_>) -> u64 {
    limit.used(cells, now).floor().saturating_sub(limit.capacity())
}

/// Returns the used amount of each limit.
pub(super) fn used(limits: &Limits, words: &[u64], now: &Now<'_>) -> Vec<UsedAmount> {
    let mut first = 0;
    let each = limits.as_slice().iter().map(|limit| {
        let units = limit.used(&OffsetCells { cells: words, first }, now).units_ceil(UNITS_PER_TOKEN);
        first += limit.words();
        let (whole, part) = (units / u128::from(UNITS_PER_TOKEN), units % u128::from(UNITS_PER_TOKEN));
        UsedAmount { whole: u64::try_from(whole).unwrap_or(u64::MAX), part: part as u32 }
    });
    each.collect()
}

/// Raises the used amount of each limit to another node's value. A larger local value is kept. A bucket keeps the
/// later of the two times at which it is full again.
pub(super) fn raise_used(limits: &Limits, words: &mut [u64], now: &Now<'_>, used: &[UsedAmount]) {
    let mut first = 0;
    for (limit, other) in limits.as_slice().iter().zip(used) {
        let mut cells = OffsetCells { cells: &mut *words, first };
        first += limit.words();
        if let (Params::TokenBucket(bucket), Some(DecodedState::Bucket { ticks })) =
            (limit.params(), limit.decode(&cells))
        {
            // Computes in ticks, because a bucket's used amount is rarely a whole number of tokens.
            let per = u128::from(bucket.rate.per().as_nanos());
            let owed = u128::from(other.whole) * per + (u128::from(other.part) * per).div_ceil(UNITS_PER_TOKEN.into());
            let most = u128::from(max_used(limit)) * per;
            let instant = u128::from(now.mono().as_nanos()) * u128::from(bucket.rate.count());
            let raised = instant.saturating_add(owed.min(most));
            if raised > ticks {
                limit.encode(&mut cells, DecodedState::Bucket { ticks: raised });
            }
            continue;
        }
        let here = limit.used(&cells, now).ceil();
        let there = other.whole.saturating_add(u64::from(other.part > 0)).min(max_used(limit));
        if there > here {
            let _ = limit.decide(&mut cells, now, Ask::Regardless(Cost::new(there - here)));
        }
    }
}
