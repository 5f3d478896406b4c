//! The law of changed parameters: how a limit decides on a state that was charged under other parameters.
//!
//! A state belongs to its *own* parameters: the parameters of its last charge. A request may have new parameters
//! because of an override, an edited rule or another node's rule version. Then:
//!
//! 1. The state changes with time (refill, window end, lease expiry) under its own parameters, until a request under
//!    the new parameters is admitted.
//! 2. `used` is the exact amount used at the instant of the request, including debt ([`Limit::used`]).
//! 3. The request passes exactly when `used + cost ≤ capacity` of the new parameters (`capacity + max_debt` for a
//!    charge). A `max_wait` or a minimum gap of the new parameters applies as well. The wait is the time until `used`
//!    has decreased far enough under the state's own parameters ([`Limit::until_used_at_most`]). A retry after this
//!    wait succeeds; a retry one nanosecond earlier does not.
//! 4. Only an admitted request that takes something writes. The request converts the state to the new parameters
//!    ([`Algorithm::convert`]) with the same used amount, rounded up to their precision. The precision is a tick for
//!    token and leaky buckets (at most a nanosecond of refill) and a whole token for the other algorithms. Logs,
//!    leases, and windows or slices with the same boundaries keep their counts without rounding.
//! 5. A peek, a refusal or a cost of zero changes neither the words nor their own parameters. The only exceptions are
//!    clock-step repairs and the refused attempts that a log counts; both are written under the state's own parameters.
//!
//! **No truncation**: every state can hold the used amount after an admitted request. This amount is at most `capacity`
//! for a check or a partial take, and at most `capacity + max_debt` for a charge. Buckets with a `max_wait` can also
//! hold the tokens that requests take in advance within that wait. A cost of zero is not written.
//!
//! **Bound**: if a parameter change is followed by a charge, rounding takes less than one token from the caller. If the
//! new limit is a token or leaky bucket, rounding takes less than one tick of the new rate. A parameter change that is
//! not followed by a charge takes nothing.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Cells, CellsMut};
use crate::limit::Limit;
use crate::quantity::{Cost, Nanos, Now};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Stamp, Verdict};

/// Returns the instant to use with the parameters `own`. The calendar windows in `now` belong to `new`. If `own` has
/// other windows, the result contains no windows, and the windows of `own` continue at their average length.
pub(crate) fn now_for_own_parameters<'a, S: Cells + ?Sized>(
    new: &Limit,
    own: &Limit,
    state: &S,
    now: &Now<'a>,
) -> Now<'a> {
    match (new, own) {
        (Limit::FixedWindow(new), Limit::FixedWindow(own)) if new.has_same_windows(own, state, now) => *now,
        (_, Limit::FixedWindow(_)) => now.without_windows(),
        _ => *now,
    }
}

/// Returns the time until `ask` passes under `new`, for a state that was last charged under `own`. Zero if `ask` passes
/// now.
fn retry_under_new_limit<S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'_>, ask: Ask) -> Retry {
    let own_now = now_for_own_parameters(new, own, state, now);
    let wait = |at_most| own.until_used_at_most(state, &own_now, at_most);
    let wait_for = |room: Option<Tokens>| room.map_or(Retry::Never, wait);
    // `UpTo` passes as soon as one unit is available.
    let ask = match ask {
        Ask::UpTo(cost) => Ask::Exactly(cost.min(Cost::ONE)),
        Ask::Exactly(_) | Ask::Regardless(_) => ask,
    };
    match new {
        Limit::Unlimited => Retry::NOW,
        Limit::DenyAll => Retry::Never,
        Limit::TokenBucket(limit) => wait_for(limit.max_used_for(ask)),
        Limit::LeakyBucket(limit) => wait_for(limit.max_used_for(ask)),
        Limit::IntervalBucket(limit) => limit.retry_from(limit.elapsed_from(own, state, now), ask, wait),
        Limit::FixedWindow(limit) => wait_for(limit.max_used_for(ask)),
        Limit::SlidingWindow(limit) => wait_for(limit.max_used_for(ask)),
        Limit::SlidingSlices(limit) => wait_for(limit.max_used_for(ask)),
        Limit::Concurrency(limit) => wait_for(limit.max_used_for(ask)),
        Limit::SlidingLog(limit) => {
            let gap = match (ask, own) {
                (Ask::Exactly(cost), Limit::SlidingLog(own)) if cost > Cost::ZERO => {
                    own.until_gap_ends(state, now, limit.gap())
                }
                // Only a log records the time of the previous request.
                _ => Retry::NOW,
            };
            wait_for(limit.max_used_for(ask)).max(gap)
        }
    }
}

pub(crate) fn weigh<S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
    if new == own || new.words() == 0 {
        return new.weigh(state, now, ask);
    }
    if ask == Ask::UpTo(Cost::ZERO) {
        return Verdict::allow(Cost::ZERO);
    }
    match retry_under_new_limit(new, own, state, now, ask) {
        Retry::NOW => with_copy(state, new.words().max(own.words()), |copy| {
            new.convert(own, copy, now);
            without_minimum_gap(new, own).weigh(copy, now, ask)
        }),
        Retry::Never => Verdict::deny(Retry::Never),
        retry => match (new, own) {
            (Limit::SlidingLog(log), Limit::SlidingLog(_)) if log.counts_refused() => {
                let fits = log.limit().saturating_sub(own.used(state, now).ceil()).max(1);
                let (units, again) = match ask {
                    Ask::UpTo(cost) => (cost.get().min(fits), Ask::Exactly(Cost::ONE)),
                    Ask::Exactly(cost) | Ask::Regardless(cost) => (cost.get(), ask),
                };
                let refused = Verdict::with_outcome(Outcome::Deny(retry), Cost::ZERO, Stamp::from_bits(units));
                // The wait already counts this attempt as recorded in the log, so it is exact for a caller that sends
                // nothing else.
                let retry = retry.max(with_copy(state, own.words(), |copy| {
                    own.commit(copy, now, &refused);
                    retry_under_new_limit(new, own, &*copy, now, again)
                }));
                Verdict::with_outcome(Outcome::Deny(retry), Cost::ZERO, Stamp::from_bits(units))
            }
            _ => Verdict::deny(retry),
        },
    }
}

/// Returns `new` without the minimum gap of a log, for weighing a converted state. The gap was already checked, and the
/// conversion may move the last log entry.
fn without_minimum_gap(new: &Limit, own: &Limit) -> Limit {
    match (new, own) {
        (Limit::SlidingLog(log), Limit::SlidingLog(_)) => log.minimum_gap(Nanos::ZERO).map_or(*new, Limit::from),
        _ => *new,
    }
}

/// Applies a verdict of [`weigh`]. Returns whether the state belongs to `new` from now on.
pub(crate) fn commit<S: CellsMut + ?Sized>(
    new: &Limit,
    own: &Limit,
    state: &mut S,
    now: &Now<'_>,
    verdict: &Verdict,
) -> bool {
    if verdict.taken() > Cost::ZERO && new.words() > 0 {
        new.convert(own, state, now);
        new.commit(state, now, verdict);
        return true;
    }
    // A verdict that takes nothing has a stamp only if a log counts the refusal.
    let counted = match (new, own) {
        (Limit::SlidingLog(_), Limit::SlidingLog(_)) => verdict.stamp(),
        _ => Stamp::NONE,
    };
    // Writes counted refusals and clock-step repairs under the state's own parameters.
    let own_now = now_for_own_parameters(new, own, state, now);
    own.commit(state, &own_now, &Verdict::with_outcome(Outcome::Deny(Retry::Never), Cost::ZERO, counted));
    false
}

pub(crate) fn report<S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'_>, cost: Cost) -> Report {
    if new == own || new.words() == 0 {
        return new.report(state, now, cost);
    }
    let own_now = now_for_own_parameters(new, own, state, now);
    let used = own.used(state, &own_now);
    let remaining = match new {
        Limit::LeakyBucket(limit) => limit.remaining_after(used),
        Limit::IntervalBucket(limit) => limit.remaining_after(used, limit.elapsed_from(own, state, now)),
        _ => new.capacity().saturating_sub(used.ceil()),
    };
    Report {
        limit: new.capacity(),
        remaining,
        retry: retry_under_new_limit(new, own, state, now, Ask::Exactly(cost)),
        reset: own.report(state, &own_now, Cost::ZERO).reset,
    }
}

/// Runs `visit` on a copy of the state, extended to `words` words.
pub(crate) fn with_copy<S: Cells + ?Sized, R>(state: &S, words: usize, visit: impl FnOnce(&mut [u64]) -> R) -> R {
    let (mut short, mut long) = ([0; 8], Vec::new());
    let copy = match short.get_mut(..words) {
        Some(copy) => copy,
        None => {
            long.resize(words, 0);
            &mut *long
        }
    };
    copy.iter_mut().enumerate().for_each(|(index, word)| *word = state.get(index));
    visit(copy)
}

/// Implements the [`Algorithm`] methods for a single limit whose state belongs to other parameters.
macro_rules! changed_parameter_methods {
    () => {
        fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
            crate::change::weigh(&(*self).into(), &(*own).into(), state, now, ask)
        }

        fn commit_from<S: CellsMut + ?Sized>(
            &self,
            own: &Self,
            state: &mut S,
            now: &Now<'_>,
            verdict: &Verdict,
        ) -> bool {
            crate::change::commit(&(*self).into(), &(*own).into(), state, now, verdict)
        }

        fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
            crate::change::report(&(*self).into(), &(*own).into(), state, now, cost)
        }
    };
}

pub(crate) use changed_parameter_methods;

#[cfg(test)]
mod tests;
