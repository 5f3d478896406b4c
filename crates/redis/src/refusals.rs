//! A cache of refusals, so that a refused group can be refused again without asking the store.
//!
//! A refused group is refused again until its wait has passed, for at most one second. Repeating the refusal is
//! correct, because only time restores capacity, and further charges only use up more capacity. A key under attack
//! therefore costs the store almost nothing. A refusal is not repeated if the release of a lease could end it.
//!
//! A remembered refusal is dropped when capacity may have been restored earlier. Capacity may be restored by a refund,
//! a renewal or a reset of one of its keys, or by a charge of one of its keys under other parameters. Capacity may also
//! be restored by a reconnect, because the store may have lost its state. The cache sees only the operations of this
//! node. Another node may perform such an operation, or another client may delete the key. This node then refuses
//! requests for up to one second although the store would admit them.
//!
//! A refusal applies only to groups with the same keys, limits and amounts. A refusal of cost 5 does not refuse cost 1.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Ask, Cost, Limits, Nanos, Outcome, Report, Retry, Stamps, Time, Wall, Window};
use tollgate_engine::store::{Answers, Charge, Group, GroupAnswer, StoreVerb};

/// Number of cache slots. Each slot keeps the newest refusal among the groups that hash to it.
const CACHE_SLOTS: usize = 4_096;
/// Number of change marks (see [`Refusals::marks`]). Keys that share a mark invalidate each other's refusals, which is
/// harmless.
const MARK_COUNT: usize = 1 << 16;
/// Maximum time for which a refusal is repeated.
const MAX_REPEAT_TIME: Duration = Duration::from_secs(1);
/// A refusal is not repeated during the last 1/64 of its wait, because the clocks of the store and of this node may run
/// at slightly different rates.
const UNREPEATED_WAIT_DIVISOR: u32 = 64;

/// The cache.
pub(crate) struct Refusals {
    refusals: Box<[Mutex<Option<Refusal>>]>,
    /// Change marks. The hash of a key selects its mark. The upper half of a mark is the number of changes that may
    /// have restored capacity. The lower half is the id of the limits of the last charge.
    marks: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// A refused group.
struct Refusal {
    charges: Arc<[RefusedCharge]>,
    marks: u64,
    /// The refusal is repeated until this instant. The wait is added to an instant before the request was sent, so the
    /// store would also refuse until this instant.
    until: Instant,
    /// When the answer arrived. Repeated waits are computed from this instant, so they are never too short.
    answered: Instant,
    at: Time<Wall>,
}

#[derive(Debug)]
struct RefusedCharge {
    key: Box<[u8]>,
    limits: Limits,
    ask: Ask,
    windows: Box<[Window]>,
    outcome: Outcome,
    reports: Box<[Report]>,
}

/// The slot of a group, and the marks of its keys at lookup time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusalLookup {
    index: usize,
    marks: u64,
    asked: Instant,
}

impl Refusals {
    pub(crate) fn new() -> Self {
        Self {
            refusals: (0..CACHE_SLOTS).map(|_| Mutex::new(None)).collect(),
            marks: (0..MARK_COUNT).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Prepares for sending a group. Invalidates refusals that the group may make obsolete, and returns a lookup if the
    /// group's own refusal may be remembered. `connections` is the number of connections made so far.
    pub(crate) fn prepare(&self, group: &Group<'_>, connections: u64, now: Instant) -> Option<RefusalLookup> {
        match group.verb {
            StoreVerb::Peek => return None,
            StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Reset => {
                self.invalidate_group(group);
                return None;
            }
            StoreVerb::Check => {}
        }
        let mut hasher = self.hasher.build_hasher();
        let mut marks = connections;
        for charge in group.charges {
            let mark = self.mark(charge.key);
            let mut seen = mark.load(Ordering::Relaxed);
            if seen as u32 != charge.limits_id {
                // A lost race only invalidates more refusals than necessary.
                seen = ((seen >> 32) + 1) << 32 | u64::from(charge.limits_id);
                mark.store(seen, Ordering::Relaxed);
            }
            marks = marks.rotate_left(9) ^ (seen >> 32);
            charge.key.hash(&mut hasher);
            charge.limits_id.hash(&mut hasher);
            charge.ask.cost().get().hash(&mut hasher);
        }
        Some(RefusalLookup { index: hasher.finish() as usize % CACHE_SLOTS, marks, asked: now })
    }

    /// Invalidates refusals of the group's keys if its verb can restore capacity. Call this method before the group is
    /// sent, for earlier refusals, and again after the group's answer, for refusals that arrived in the meantime.
    pub(crate) fn invalidate_group(&self, group: &Group<'_>) {
        match group.verb {
            StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Reset => {
                group.charges.iter().for_each(|charge| self.invalidate(charge.key));
            }
            StoreVerb::Check | StoreVerb::Peek => {}
        }
    }

    /// Invalidates the refusals of a key whose capacity may have been restored.
    pub(crate) fn invalidate(&self, key: &[u8]) {
        self.mark(key).fetch_add(1 << 32, Ordering::Relaxed);
    }

    fn mark(&self, key: &[u8]) -> &AtomicU64 {
        &self.marks[self.hasher.hash_one(key) as usize % MARK_COUNT]
    }

    fn lock_slot(&self, lookup: &RefusalLookup) -> MutexGuard<'_, Option<Refusal>> {
        self.refusals[lookup.index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the remembered refusal of the group if it is still valid.
    pub(crate) fn find(&self, group: &Group<'_>, lookup: &RefusalLookup) -> Option<Repetition> {
        let slot = self.lock_slot(lookup);
        let refusal = slot.as_ref().filter(|refusal| {
            lookup.asked < refusal.until && refusal.marks == lookup.marks && refusal.is_for(group.charges)
        })?;
        let passed = Nanos::from(lookup.asked.saturating_duration_since(refusal.answered));
        Some(Repetition { charges: refusal.charges.clone(), passed, at: refusal.at.saturating_add(passed) })
    }

    /// Remembers the store's answer if it is a refusal, unless the release of a lease could end the refusal.
    pub(crate) fn remember(&self, group: &Group<'_>, lookup: &RefusalLookup, answer: &GroupAnswer<'_>, now: Instant) {
        let wait = match answer.outcome() {
            Outcome::Deny(Retry::After(wait)) => MAX_REPEAT_TIME.min(wait.into()),
            Outcome::Deny(Retry::Never) => MAX_REPEAT_TIME,
            Outcome::Deny(Retry::OnRelease) | Outcome::Allow | Outcome::Delay(_) => return,
        };
        let charge = |(charge, answer_to): (&Charge<'_>, &tollgate_engine::store::Answer)| RefusedCharge {
            key: charge.key.into(),
            limits: charge.limits.clone(),
            ask: charge.ask,
            windows: charge.windows.into(),
            outcome: answer_to.outcome,
            reports: answer.reports(answer_to).into(),
        };
        let refusal = Refusal {
            charges: group.charges.iter().zip(answer.charges()).map(charge).collect(),
            marks: lookup.marks,
            until: lookup.asked + (wait - wait / UNREPEATED_WAIT_DIVISOR),
            answered: now,
            at: answer.decided_at(),
        };
        *self.lock_slot(lookup) = Some(refusal);
    }
}

/// A refusal to be repeated.
#[derive(Debug)]
pub(crate) struct Repetition {
    charges: Arc<[RefusedCharge]>,
    passed: Nanos,
    at: Time<Wall>,
}

impl Repetition {
    /// Adds the refusal as the answer to the group, with shortened waits.
    pub(crate) fn add_to(&self, answers: &mut Answers) {
        let left = |wait: Nanos| wait.saturating_sub(self.passed);
        for charge in &*self.charges {
            let outcome = match charge.outcome {
                // The wait of a refusal is never zero.
                Outcome::Deny(Retry::After(wait)) => Outcome::Deny(Retry::After(left(wait).max(Nanos::from_micros(1)))),
                other => other,
            };
            let reports = charge.reports.iter().map(|report| Report {
                retry: match report.retry {
                    Retry::After(wait) => Retry::After(left(wait)),
                    other => other,
                },
                reset: left(report.reset),
                ..*report
            });
            answers.push_answer(outcome, Cost::ZERO, Stamps::default(), reports);
        }
        answers.end_group(self.at);
    }
}

impl Refusal {
    fn is_for(&self, charges: &[Charge<'_>]) -> bool {
        let same = |(refused, charge): (&RefusedCharge, &Charge<'_>)| {
            *refused.key == *charge.key
                && refused.ask == charge.ask
                && *refused.windows == *charge.windows
                && refused.limits == *charge.limits
        };
        self.charges.len() == charges.len() && self.charges.iter().zip(charges).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Limit, TokenBucket};
    use tollgate_engine::store::Consistency;

    fn sample_limits() -> Limits {
        Limit::from(TokenBucket::new("1/s".parse().unwrap(), 5).unwrap()).into()
    }

    fn charge<'a>(key: &'a str, limits: &'a Limits, limits_id: u32, cost: u64) -> [Charge<'a>; 1] {
        let (key, ask) = (key.as_bytes(), Ask::Exactly(Cost::new(cost)));
        [Charge {
            key,
            limits_id,
            limits,
            earlier: &[],
            ask,
            stamps: None,
            windows: &[],
            consistency: Consistency::Strict,
        }]
    }

    /// Remembers a refusal of cost 3 for key `k`: sent at `start`, answered after 10 ms, with a wait of 640 ms.
    fn with_remembered_refusal(start: Instant) -> Refusals {
        let refusals = Refusals::new();
        remember_refusal(&refusals, start);
        refusals
    }

    fn remember_refusal(refusals: &Refusals, start: Instant) {
        let limits = sample_limits();
        let charges = charge("k", &limits, 1, 3);
        let group = Group { verb: StoreVerb::Check, charges: &charges };
        let mut answers = Answers::default();
        let wait = Retry::After(Nanos::from_millis(640));
        let report = Report { limit: 5, remaining: 2, retry: wait, reset: Nanos::SECOND };
        answers.push_answer(Outcome::Deny(wait), Cost::ZERO, Stamps::default(), [report]);
        answers.end_group(Time::from_nanos(7));
        let lookup = refusals.prepare(&group, 1, start).unwrap();
        refusals.remember(&group, &lookup, &answers.group(0).unwrap(), start + Duration::from_millis(10));
    }

    /// Asks again `millis` after `start`. Returns the wait in milliseconds if the refusal is repeated.
    fn repeated_wait(refusals: &Refusals, charges: &[Charge<'_>], start: Instant, millis: u64) -> Option<u64> {
        let group = Group { verb: StoreVerb::Check, charges };
        let lookup = refusals.prepare(&group, 1, start + Duration::from_millis(millis)).unwrap();
        let mut answers = Answers::default();
        refusals.find(&group, &lookup)?.add_to(&mut answers);
        match answers.group(0).unwrap().outcome() {
            Outcome::Deny(Retry::After(wait)) => Some(wait.as_nanos() / 1_000_000),
            outcome => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn refusal_is_repeated_until_its_wait_has_passed() {
        let (start, limits) = (Instant::now(), sample_limits());
        let refusals = with_remembered_refusal(start);
        let charges = charge("k", &limits, 1, 3);
        let waits = [10, 110, 629, 630, 700].map(|millis| repeated_wait(&refusals, &charges, start, millis));
        assert_eq!(waits, [Some(640), Some(540), Some(21), None, None]);
    }

    #[test]
    fn other_costs_keys_and_limits_are_not_refused() {
        let (start, limits) = (Instant::now(), sample_limits());
        for (key, cost) in [("k", 1), ("k", 2), ("k", 4), ("j", 3)] {
            assert_eq!(
                repeated_wait(&with_remembered_refusal(start), &charge(key, &limits, 1, cost), start, 20),
                None,
                "{key} {cost}"
            );
        }
        let other: Limits = Limit::from(TokenBucket::new("2/s".parse().unwrap(), 5).unwrap()).into();
        assert_eq!(repeated_wait(&with_remembered_refusal(start), &charge("k", &other, 1, 3), start, 20), None);
        assert_eq!(repeated_wait(&with_remembered_refusal(start), &charge("k", &limits, 2, 3), start, 20), None);
    }

    #[test]
    fn operations_that_may_restore_capacity_invalidate_refusals() {
        let (start, limits) = (Instant::now(), sample_limits());
        let charges = charge("k", &limits, 1, 3);
        for verb in [StoreVerb::Refund, StoreVerb::Renew, StoreVerb::Reset] {
            let refusals = with_remembered_refusal(start);
            assert!(refusals.prepare(&Group { verb, charges: &charges }, 1, start).is_none());
            assert_eq!(repeated_wait(&refusals, &charges, start, 20), None, "{verb:?}");
        }
        let refusals = with_remembered_refusal(start);
        let group = Group { verb: StoreVerb::Check, charges: &charges };
        assert!(refusals.prepare(&Group { verb: StoreVerb::Peek, charges: &charges }, 1, start).is_none());
        assert_eq!(repeated_wait(&refusals, &charges, start, 20), Some(630), "a peek changes nothing");
        // A charge of the same key under other limits invalidates the refusal.
        assert_eq!(repeated_wait(&refusals, &charge("k", &limits, 2, 1), start, 20), None);
        assert_eq!(repeated_wait(&refusals, &charges, start, 20), None);
        // A refusal that arrives while a refund is in flight is invalidated by the refund's answer.
        let refund = Group { verb: StoreVerb::Refund, charges: &charges };
        let refusals = Refusals::new();
        assert!(refusals.prepare(&refund, 1, start).is_none());
        remember_refusal(&refusals, start);
        assert_eq!(repeated_wait(&refusals, &charges, start, 20), Some(630), "the store has not answered yet");
        refusals.invalidate_group(&refund);
        assert_eq!(repeated_wait(&refusals, &charges, start, 20), None);
        let refusals = with_remembered_refusal(start);
        let reconnected = refusals.prepare(&group, 2, start).unwrap();
        assert!(refusals.find(&group, &reconnected).is_none());
    }
}
