//! Concurrency: at most N slots held at a time. Slots are leased, so the slots of a crashed holder become free again.
//!
//! **The naive method** increments a counter when work begins and decrements it when the work ends. A holder that
//! crashes never decrements the counter, and after `limit` crashes no request is admitted again. If a holder decrements
//! the counter twice, one request too many is admitted. A sweep for crashed holders needs a list of all holders and a
//! timer.
//!
//! **The idea** is to grant *leases*. Each lease has a weight, an expiry and a unique number. An expired lease does not
//! count, so no action is needed when it expires. All leases have the same duration, so they expire in the order in
//! which they were taken or renewed. A list in this order has the expired leases at its front. The number makes
//! releasing safe, because it identifies one lease. A second release does nothing. A release after the lease has
//! expired also does nothing, even if the lease's slot has a new holder.
//!
//! **Example**: 3 at a time, leases of 30 s. At 0 s A takes 2, and at 10 s B takes 1. C is refused until A or B
//! releases. At 20 s A renews, so its lease expires at 50 s. B hangs. At 40 s B's lease has expired, and C takes 1. At
//! 45 s B continues and releases. No lease has B's number any more, so nothing is released.
//!
//! ```text
//!            first                    last
//!     ┌────────┴────────┐      ┌────────┴────────┐
//!     │ B, 1 until 40 s │ ───▶ │ A, 2 until 50 s │        now = 40 s: the first has expired
//!     └─────────────────┘      └─────────────────┘
//! ```
//!
//! **Guarantee**: at any instant, the total weight of all held leases is at most `limit` (`limit + max_debt` with
//! charges). A lease is held until it is released or expires. A request is refused only if it would break this bound. A
//! lease expires when `lease` has passed since it was taken or last renewed. The slots of a crashed holder are then
//! free. Each lease is released at most once. If a cost within the limit is refused, the verdict contains
//! [`Retry::OnRelease`], because the time of a release is unknown.
//!
//! **State**: one word with the weight in use and the list heads, one word with the last number, and three words per
//! unit of limit and debt: number, expiry, and weight with links. A state of zeros belongs to a key without leases.
//!
//! Lease numbers increase with the clock. A key without leases may be forgotten. The key's later numbers are still
//! unique, unless the key is used again within a microsecond of its last lease, or took more than a million leases per
//! second.
//!
//! **Cost**: taking, renewing and releasing touch a few slots, whatever the limit. A decision that needs the capacity
//! of expired leases iterates over them. Taking the next lease frees all expired leases. All slots are searched only to
//! release or renew a lease that is no longer held, or that was moved because the limit changed.
//!
//! **Poor choice** for limiting a rate, because short jobs can start and end at any rate. A concurrency limit is also a
//! poor choice for work that may outlast its lease without renewing it, because more jobs then run than are counted.

mod leases;

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, MAX_READING_AGE};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::Params;
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::quota::{check_length, max_used_for};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};
use leases::{Lease, LeaseList};

/// Limits the number of slots that are held at the same time.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Concurrency, Cost, Nanos, Now};
///
/// let limit = Concurrency::new(1, Nanos::from_secs(30))?;
/// let mut state = [0; 5];
/// limit.init(&mut state, &Now::at(0));
/// let mine = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ONE));
/// assert!(!limit.decide(&mut state, &Now::at(5), Ask::Exactly(Cost::ONE)).is_admitted());
/// assert_eq!(limit.release(&mut state, &Now::at(7), mine.stamp()), Cost::ONE);
/// assert!(limit.decide(&mut state, &Now::at(8), Ask::Exactly(Cost::ONE)).is_admitted());
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
    lease: Nanos,
    max_debt: u64,
}

impl Concurrency {
    /// Maximum number of slots: limit plus debt.
    pub const MAX_SLOTS: u64 = 1024;

    /// Creates a limit of at most `limit` slots at a time. A lease expires after `lease` unless it is renewed. The
    /// maximum debt defaults to `limit`, or less if limit plus debt would exceed [`Concurrency::MAX_SLOTS`].
    ///
    /// # Errors
    /// Returns an error if an argument is zero, if `limit` is above [`Concurrency::MAX_SLOTS`], or if `lease` is above
    /// [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub fn new(limit: u64, lease: impl Into<Duration>) -> Result<Self, LimitError> {
        LimitError::check_range("the concurrency limit", limit, 1, Self::MAX_SLOTS)?;
        let lease = check_length(lease.into().into(), "the length of a lease")?;
        Ok(Self { limit, lease, max_debt: limit.min(Self::MAX_SLOTS - limit) })
    }

    /// Sets the maximum weight beyond the limit that [`Ask::Regardless`] may take. Each unit adds three words of state.
    ///
    /// # Errors
    /// Returns an error if the limit plus `max_debt` is above [`Concurrency::MAX_SLOTS`].
    pub const fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let max = Self::MAX_SLOTS - self.limit;
        if max_debt > max {
            let what = "the maximum debt of a concurrency limit";
            return Err(LimitError::OutOfRange { what, given: max_debt, min: 0, max });
        }
        Ok(Self { max_debt, ..self })
    }

    /// Returns the maximum weight held at one time.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the duration of a lease.
    pub const fn lease(&self) -> Nanos {
        self.lease
    }

    pub(crate) const fn params(&self) -> Params {
        Params::Concurrency { limit: self.limit, lease: self.lease, max_debt: self.max_debt }
    }

    /// Releases the stamp's lease and returns its weight; zero if it was already released or has expired.
    pub fn release<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, stamp: Stamp) -> Cost {
        self.refund(state, now, Cost::MAX, Some(stamp))
    }

    /// Extends the stamp's lease to a full duration from now; never shortens it. Returns `false` if the lease was
    /// released or has expired. The holder is then no longer counted, and must take a new lease to continue.
    pub fn renew<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, stamp: Stamp) -> bool {
        let mut leases = LeaseList::load(state, self.slots());
        let Some(link) = leases.find(state, now.mono(), stamp) else { return false };
        let mut lease = leases.read_lease(state, link);
        leases.unlink(state, lease);
        lease.ends = lease.ends.max(now.mono().saturating_add(self.lease));
        leases.insert(state, link, lease);
        leases.store(state);
        true
    }

    /// Translates the expiry of every lease to another clock. Leases keep their numbers, so their holders can still
    /// release them.
    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        LeaseList::load(state, self.slots()).rebase(state, from, to);
    }

    /// Returns whether the clock stepped back: a lease expires later than a lease taken at `now` could.
    fn clock_stepped_back<S: Cells + ?Sized>(&self, leases: &LeaseList, state: &S, now: Time<Mono>) -> bool {
        leases.last_lease(state).is_some_and(|last| last.ends.since(now) > self.lease.saturating_add(MAX_READING_AGE))
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::whole(LeaseList::load(state, self.slots()).weight_held(state, now.mono()))
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        if self.used(state, now).ceil() <= at_most.floor() { Retry::NOW } else { Retry::OnRelease }
    }

    /// Returns the largest held weight at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        max_used_for(ask, self.limit, self.slots())
    }

    /// Writes a state with one lease of weight `used`, rounded up. No holder knows the lease's number, so the lease
    /// counts until it expires.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        self.init(state, now);
        let used = Cost::new(used.ceil().min(self.slots()));
        let _ = self.decide(state, now, Ask::Regardless(used));
    }

    const fn slots(&self) -> u64 {
        self.limit + self.max_debt
    }
}

impl Algorithm for Concurrency {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        leases::words(self.slots())
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, _: &Now<'_>) {
        LeaseList::with_no_leases(self.slots()).store(state);
        leases::set_last_stamp(state, Stamp::NONE);
    }

    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let (now, leases) = (now.mono(), LeaseList::load(state, self.slots()));
        let (cost, ceiling) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.limit),
            Ask::Regardless(cost) => (cost.get(), self.slots()),
            Ask::UpTo(Cost::ZERO) => (0, Self::MAX_SLOTS),
            Ask::UpTo(cost) => {
                let available = self.limit.saturating_sub(leases.weight_held(state, now));
                // If nothing is available, asks for one unit, which is refused.
                (cost.get().min(available.max(1)), self.limit)
            }
        };
        if cost > ceiling {
            return Verdict::deny(Retry::Never);
        }
        // Counts expired leases only if their weight is needed, and only until it suffices.
        let missing = (leases.in_use + cost).saturating_sub(ceiling);
        if missing > 0 && leases.expired_weight(state, now, missing) < missing {
            return Verdict::deny(Retry::OnRelease);
        }
        if cost == 0 {
            return Verdict::allow(Cost::ZERO);
        }
        match leases.vacant_slot(state, now) {
            Some(link) => Verdict::with_outcome(Outcome::Allow, Cost::new(cost), leases.next_stamp(state, now, link)),
            // Each lease weighs at least 1, so there is a free slot if the limit admits the weight, unless the words
            // are corrupt.
            None => Verdict::deny(Retry::OnRelease),
        }
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        let (at, mut leases) = (now.mono(), LeaseList::load(state, self.slots()));
        // Even a refusal repairs the state after the clock stepped back, so that no lease lasts longer than its
        // duration from now.
        if self.clock_stepped_back(&leases, state, at) {
            leases.shorten_leases(state, at.saturating_add(self.lease));
        }
        if verdict.taken() == Cost::ZERO {
            return;
        }
        let Some(link) = leases.vacant_slot(state, at) else { return };
        leases.occupy_slot(state, link);
        leases.free_expired_leases(state, at);
        let stamp = verdict.stamp();
        let weight = verdict.taken().get().min(Self::MAX_SLOTS) as u16;
        leases.in_use += u64::from(weight);
        leases.insert(state, link, Lease::new(stamp, at.saturating_add(self.lease), weight));
        leases.store(state);
        leases::set_last_stamp(state, stamp);
    }

    /// With a stamp, releases up to `cost` of that lease; a lease without remaining weight ends. Without a stamp,
    /// releases nothing: only the holder of a lease may release it.
    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let mut leases = LeaseList::load(state, self.slots());
        let Some(link) = stamp.and_then(|stamp| leases.find(state, now.mono(), stamp)) else { return Cost::ZERO };
        let mut lease = leases.read_lease(state, link);
        let given = cost.get().min(lease.weight.into());
        leases.in_use = leases.in_use.saturating_sub(given);
        if given < u64::from(lease.weight) {
            lease.weight -= given as u16;
            leases.write(state, link, lease);
        } else {
            leases.unlink(state, lease);
            leases.add_to_free_list(state, link);
        }
        leases.store(state);
        Cost::new(given)
    }

    /// `reset` is the time until the last lease expires; its holder may release it earlier.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let leases = LeaseList::load(state, self.slots());
        let held = leases.weight_held(state, now.mono());
        Report {
            limit: self.limit,
            remaining: self.limit.saturating_sub(held),
            retry: match cost.get() {
                cost if cost > self.limit => Retry::Never,
                cost if held + cost <= self.limit => Retry::NOW,
                _ => Retry::OnRelease,
            },
            reset: if self.clock_stepped_back(&leases, state, now.mono()) {
                self.lease
            } else {
                leases.last_lease(state).map_or(Nanos::ZERO, |last| last.time_left(now.mono()))
            },
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(LeaseList::load(state, self.slots()).weight_held(state, now.mono()).into(), self.limit.into())
    }

    /// Returns the time until the next lease expires.
    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        LeaseList::load(state, self.slots()).until_next_expiry(state, now.mono())
    }

    /// Shortens a lease that has more time left than the new duration to one new duration from now, so that its holder
    /// has that time to renew it. The new limit has a slot for every unexpired lease, because every lease weighs at
    /// least 1.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        let leases = LeaseList::load(state, own.slots());
        leases.shorten_leases(state, now.mono().saturating_add(self.lease));
        if self.slots() < own.slots() {
            leases.move_to_fewer_slots(state, now.mono(), self.slots());
        }
    }

    changed_parameter_methods!();
}

#[cfg(test)]
mod tests;
