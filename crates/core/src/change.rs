//! The law of changed parameters: how a limit decides about a state that was charged under other parameters.
//!
//! A state belongs to the parameters under which it was last *charged*: its own. A request may have other parameters:
//! those of another override, of an edited rule, or of another node's version of the rules. Then:
//!
//! 1. Time acts on the state under its own parameters (refill, end of a window, end of a lease) until a request under the new
//!    ones is admitted.
//! 2. `used` is what the state has used up at the instant of the request, exactly and with debt ([`Limit::used`]).
//! 3. The request passes exactly when `used + cost ≤ capacity` of the new parameters (`capacity + max_debt` for a
//!    charge). The remainder and the wait follow from this: the wait is the time until `used`, under its own
//!    parameters, has fallen far enough ([`Limit::until_used`]), so waiting as advertised succeeds and one tick less
//!    does not.
//! 4. Only an admitted request that takes something writes. The state is then converted to the new parameters
//!    ([`Algorithm::convert`]) with the same amount used, rounded up to their precision: a tick for the buckets, which
//!    is less than a nanosecond of refill, and a whole token for algorithms that count whole tokens. Windows with the
//!    same boundaries, slices, logs and leases keep their counts and round nothing.
//! 5. A peek, a refusal and a cost of zero change neither the words nor the parameters they belong to. Only the repair
//!    of a clock step and the refused attempts that a log counts are written, under the state's own parameters.
//!
//! **Nothing is cut off**: an admitted request leaves at most `capacity + max_debt` used, which every state holds:
//! `used + cost` is at most `capacity` for a check and for taking up to an amount, `capacity + max_debt` for a charge,
//! and for buckets with a `max_wait` also what can be taken ahead within that wait, which their states can hold. A cost
//! of zero is not written.
//!
//! **Bound**: each *charged* change of parameters costs the caller less than one tick of the new rate between buckets, and less
//! than one token where the new parameters count whole tokens. Changes that nothing is charged under cost nothing.

use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Cells, CellsMut};
use crate::limit::Limit;
use crate::quantity::{Cost, Nanos, Now};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Stamp, Verdict};

/// Returns the instant to use with `own`. Calendar windows are given for the new parameters; if `own` has other
/// windows, these continue by their length.
pub(crate) fn now_of<'a, S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'a>) -> Now<'a> {
    match (new, own) {
        (Limit::FixedWindow(new), Limit::FixedWindow(own)) if new.has_windows_of(own, state, now) => *now,
        (_, Limit::FixedWindow(_)) => now.without_windows(),
        _ => *now,
    }
}

/// Returns how long until `ask` passes under `new`, for a state that belongs to `own`; zero if it passes now.
fn retry_under<S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'_>, ask: Ask) -> Retry {
    let own_now = now_of(new, own, state, now);
    let wait = |at_most| own.until_used(state, &own_now, at_most);
    let wait_for = |room: Option<Tokens>| room.map_or(Retry::Never, wait);
    // Taking up to an amount passes as soon as one unit fits.
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
                    own.until_gap(state, now, limit.gap())
                }
                // Only a log knows when the previous request came.
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
    match retry_under(new, own, state, now, ask) {
        Retry::NOW => with_copy(state, new.words().max(own.words()), |copy| {
            new.convert(own, copy, now);
            without_gap(new, own).weigh(copy, now, ask)
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
                // The wait is correct for a caller that sends nothing meanwhile: it includes this attempt in the log.
                let retry = retry.max(with_copy(state, own.words(), |copy| {
                    own.commit(copy, now, &refused);
                    retry_under(new, own, &*copy, now, again)
                }));
                Verdict::with_outcome(Outcome::Deny(retry), Cost::ZERO, Stamp::from_bits(units))
            }
            _ => Verdict::deny(retry),
        },
    }
}

/// Returns the limit to weigh a converted state by. The minimum gap of a log was checked before the conversion, which
/// may move the last entry.
fn without_gap(new: &Limit, own: &Limit) -> Limit {
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
    // Of the verdicts that take nothing, only a refusal that a log counts has a stamp.
    let counted = match (new, own) {
        (Limit::SlidingLog(_), Limit::SlidingLog(_)) => verdict.stamp(),
        _ => Stamp::NONE,
    };
    // Written under the state's own parameters: counted refusals and the repair of a clock step.
    let own_now = now_of(new, own, state, now);
    own.commit(state, &own_now, &Verdict::with_outcome(Outcome::Deny(Retry::Never), Cost::ZERO, counted));
    false
}

pub(crate) fn report<S: Cells + ?Sized>(new: &Limit, own: &Limit, state: &S, now: &Now<'_>, cost: Cost) -> Report {
    if new == own || new.words() == 0 {
        return new.report(state, now, cost);
    }
    let own_now = now_of(new, own, state, now);
    let used = own.used(state, &own_now);
    let remaining = match new {
        Limit::LeakyBucket(limit) => limit.remaining_beside(used),
        Limit::IntervalBucket(limit) => limit.remaining_beside(used, limit.elapsed_from(own, state, now)),
        _ => new.capacity().saturating_sub(used.ceil()),
    };
    Report {
        limit: new.capacity(),
        remaining,
        retry: retry_under(new, own, state, now, Ask::Exactly(cost)),
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

/// The methods of [`Algorithm`] for a state of other parameters, for a single limit.
macro_rules! changed_parameters {
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

pub(crate) use changed_parameters;

#[cfg(test)]
mod tests;
