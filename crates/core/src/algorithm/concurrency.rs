//! Concurrency: at most N at a time, with leases, so that the slot of a crashed holder is freed without any action.
//!
//! **The naive method** increments a counter when work begins and decrements it when the work ends. A holder that
//! crashes never decrements it, and after `limit` crashes no request is admitted again; a holder that decrements it
//! twice, or late, admits one request too many. A sweeper that looks for lost holders needs a list of all holders and a
//! timer.
//!
//! **The idea** is to hand out *leases*: each has a weight, an end and a unique number. A lease that has ended does not
//! count, without any action. All leases last equally long, so they end in the order in which they were taken or
//! renewed: kept in that order, the ended ones are always at the front. The number makes releasing safe: it identifies
//! one lease, so a second release does nothing, and neither does one after the lease has ended and its slot has another
//! holder.
//!
//! **Example**: 3 at a time, leases of 30 s. At 0 s A takes 2, at 10 s B takes 1: C is refused until one of them releases. At
//! 20 s A renews, and its lease ends at 50 s. B hangs. At 40 s its lease has ended, and C takes 1, in the slot of B. At 45 s B
//! continues and releases: the number in the slot is that of C, so nothing is given back.
//!
//! ```text
//!            first                    last
//!     ┌────────┴────────┐      ┌────────┴────────┐
//!     │ B, 1 until 40 s │ ───▶ │ A, 2 until 50 s │        now = 40 s: the first counts no more
//!     └─────────────────┘      └─────────────────┘
//! ```
//!
//! **Guarantee**: at any instant the weight of all leases taken and neither released nor ended is at most `limit`
//! (`limit + max_debt` with charges), and a request is refused only if it would break that. A lease ends `lease` after
//! it was taken or last renewed, so the slots of a crashed holder are free by then; and a number releases at most once
//! what it took. A refusal says [`Retry::OnRelease`], since only the end of a lease is known, not when its holder
//! releases it.
//!
//! **State**: a word with the weight in use and where the lists begin, a word with the last number given, and three
//! words for each unit of limit and debt: number, end, and weight with its neighbours. Zero words are a new state.
//! Numbers increase with the clock. A key without leases may be forgotten; when it is used again its numbers are new,
//! unless that is within a microsecond of its last lease or it had more than a million leases a second. **Cost**:
//! taking, renewing and releasing touch a few slots, whatever the limit. Every decision that needs their capacity skips
//! ended leases, until the next lease taken frees them all. Only a release or renewal of a lease that has ended, or was
//! moved because the limit changed, searches all slots.
//!
//! **Poor choice** for limiting a rate: short jobs can start and end at any rate. Also for work that may outlast its
//! lease without renewing it: more jobs then run than are counted.

mod leases;

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, STALE};
use crate::change::changed_parameters;
use crate::error::LimitError;
use crate::params::Params;
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::quota::{check_length, max_used_for};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};
use leases::{Lease, LeaseList};

/// N at a time.
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
    /// Maximum number of leases, limit and debt together.
    pub const MAX_LEASES: u64 = 1024;

    /// Makes a limit of at most `limit` at a time, each for `lease` unless renewed. Debt may be as large again as the
    /// limit, within the maximum number of slots.
    ///
    /// # Errors
    /// When either is zero, `limit` is above [`Concurrency::MAX_LEASES`] or `lease` above [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub fn new(limit: u64, lease: impl Into<Duration>) -> Result<Self, LimitError> {
        LimitError::check_range("the limit of leases at a time", limit, 1, Self::MAX_LEASES)?;
        let lease = check_length(lease.into().into(), "the length of a lease")?;
        Ok(Self { limit, lease, max_debt: limit.min(Self::MAX_LEASES - limit) })
    }

    /// Sets the maximum `max_debt` taken beyond the limit by [`Ask::Regardless`]. Each unit adds three words of state.
    ///
    /// # Errors
    /// When limit and debt together are above [`Concurrency::MAX_LEASES`].
    pub const fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let max = Self::MAX_LEASES - self.limit;
        if max_debt > max {
            return Err(LimitError::OutOfRange { what: "the debt of leases", given: max_debt, min: 0, max });
        }
        Ok(Self { max_debt, ..self })
    }

    /// Returns the most that can be held at a time.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how long a lease lasts unless renewed.
    pub const fn lease(&self) -> Nanos {
        self.lease
    }

    pub(crate) const fn params(&self) -> Params {
        Params::Concurrency { limit: self.limit, lease: self.lease, max_debt: self.max_debt }
    }

    /// Gives back the lease that the stamp names and returns its weight: zero if it was given back before or has ended.
    pub fn release<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, stamp: Stamp) -> Cost {
        self.refund(state, now, Cost::MAX, Some(stamp))
    }

    /// Restarts the lease of this stamp now; never shortens it. Returns `false` if it was released or has ended: its holder no
    /// longer counts, and must take a new lease to go on.
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

    /// Leases keep their numbers, so that their holders can still release them.
    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        LeaseList::load(state, self.slots()).rebase(state, from, to);
    }

    /// Returns whether a lease ends later than it could by this clock: the clock stepped back.
    fn stepped_back<S: Cells + ?Sized>(&self, leases: &LeaseList, state: &S, now: Time<Mono>) -> bool {
        leases.last_lease(state).is_some_and(|last| last.ends.since(now) > self.lease.saturating_add(STALE))
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::whole(LeaseList::load(state, self.slots()).weight_held(state, now.mono()))
    }

    pub(crate) fn until_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        if self.used(state, now).ceil() <= at_most.floor() { Retry::NOW } else { Retry::OnRelease }
    }

    /// Returns the most that may be held for `ask` to fit; `None` if it never does.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        max_used_for(ask, self.limit, self.slots())
    }

    /// Writes a state with one lease of weight `used`, rounded up. No holder has its number, so it counts until it ends.
    pub(crate) fn start_with<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
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
            Ask::UpTo(Cost::ZERO) => (0, Self::MAX_LEASES),
            Ask::UpTo(cost) => {
                let available = self.limit.saturating_sub(leases.weight_held(state, now));
                // With nothing left it asks for 1, which is refused.
                (cost.get().min(available.max(1)), self.limit)
            }
        };
        if cost > ceiling {
            return Verdict::deny(Retry::Never);
        }
        // Looks for ended leases only as far as their weight is needed, which is usually not at all.
        let missing = (leases.in_use + cost).saturating_sub(ceiling);
        if missing > 0 && leases.weight_ended(state, now, missing) < missing {
            return Verdict::deny(Retry::OnRelease);
        }
        if cost == 0 {
            return Verdict::allow(Cost::ZERO);
        }
        match leases.vacant_slot(state, now) {
            Some(link) => Verdict::with_outcome(Outcome::Allow, Cost::new(cost), leases.next_stamp(state, now, link)),
            // Each lease weighs at least one, so if the weight fits there is a slot, unless the words are damaged.
            None => Verdict::deny(Retry::OnRelease),
        }
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        let (at, mut leases) = (now.mono(), LeaseList::load(state, self.slots()));
        // Even a refusal writes the repair of a clock step, so that leases last from this instant on.
        if self.stepped_back(&leases, state, at) {
            leases.shorten_leases(state, at.saturating_add(self.lease));
        }
        if verdict.taken() == Cost::ZERO {
            return;
        }
        let Some(link) = leases.vacant_slot(state, at) else { return };
        leases.occupy_slot(state, link);
        leases.free_ended(state, at);
        let stamp = verdict.stamp();
        let weight = verdict.taken().get().min(Self::MAX_LEASES) as u16;
        leases.in_use += u64::from(weight);
        leases.insert(state, link, Lease::new(stamp, at.saturating_add(self.lease), weight));
        leases.store(state);
        leases::set_last_stamp(state, stamp);
    }

    /// With a stamp, releases up to `cost` of that lease, which ends when nothing of it is left. Releases nothing
    /// without a stamp: only the holder of a lease may release it.
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
            leases.free_slot(state, link);
        }
        leases.store(state);
        Cost::new(given)
    }

    /// `reset` is the end of the last lease, which may be released earlier.
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
            reset: if self.stepped_back(&leases, state, now.mono()) {
                self.lease
            } else {
                leases.last_lease(state).map_or(Nanos::ZERO, |last| last.time_left(now.mono()))
            },
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(LeaseList::load(state, self.slots()).weight_held(state, now.mono()).into(), self.limit.into())
    }

    /// Returns the time until the next lease ends.
    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        LeaseList::load(state, self.slots()).next_end(state, now.mono())
    }

    /// No lease lasts longer than the new length from now: its holder has that long to renew it. Leases that have not ended
    /// fit the slots of the new limit, since each weighs at least one.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        let leases = LeaseList::load(state, own.slots());
        leases.shorten_leases(state, now.mono().saturating_add(self.lease));
        if self.slots() < own.slots() {
            leases.move_to(state, now.mono(), self.slots());
        }
    }

    changed_parameters!();
}

#[cfg(test)]
mod tests;
