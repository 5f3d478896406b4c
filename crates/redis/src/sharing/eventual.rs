//! `consistency: eventual`: this node decides from its views of keys, and syncs the views with the store.
//!
//! This module adds clocks and locks to the state machine in [`tollgate_share::tally`]. The rules with the same
//! `sync_every` share a tally, which one task syncs. A tally is divided into shards, so requests for different keys
//! rarely wait for each other.

use std::collections::hash_map;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tollgate::clock::{Clock, PreciseClock};
use tollgate_core::{Ask, Cost, Limits, Now, Outcome, Stamps, Time, Verdict, Wall};
use tollgate_engine::Exactness;
use tollgate_engine::store::{Answers, Charge, StoreError, SyncEvery};
use tollgate_share::tally::{self, Bounds, RECENT_NANOS, ReadReason, Tally, with_debt_that_fits};

use crate::batcher::ReplyPart;
use crate::lanes::{SHARDS, local_shard_of};
use crate::params::EncodedLimits;
use crate::request::spread_number;

/// Maximum number of views in a tally, over all shards.
const MAX_VIEWS: usize = 1 << 20;
/// Maximum number of unsent entries in a tally, over all shards.
const MAX_UNSENT: usize = 1 << 18;
/// Maximum number of cached encodings per shard.
const MAX_ENCODED: usize = 1 << 10;

/// The tally of all rules with the same `sync_every`, divided into shards.
pub(super) struct ShardedTally {
    pub(super) every: SyncEvery,
    pub(super) shards: Box<[Mutex<TallyShard>]>,
    /// Notified when a sync should start before the interval has passed.
    pub(super) urgent: Notify,
    clock: Arc<PreciseClock>,
    /// Held during a sync, so that only one task at a time sends a payload.
    pub(super) syncing: tokio::sync::Mutex<()>,
}

/// One shard of a [`ShardedTally`], with the views of its keys.
pub(super) struct TallyShard {
    pub(super) tally: Tally,
    /// Store time minus local time at the last answer, in nanoseconds.
    offset: i64,
    indebted: DebtLimitsCache,
}

/// The limits of a rule, and the same limits with a larger maximum debt, which views and merges use.
pub(super) struct DebtLimits {
    limits: Limits,
    pub(super) with_debt: Arc<Limits>,
    pub(super) encoded: Arc<EncodedLimits>,
}

impl DebtLimits {
    fn new(limits: &Limits) -> Result<Self, StoreError> {
        let why = || StoreError::Rejected { why: "these limits cannot be merged".to_owned() };
        let with_debt = with_debt_that_fits(limits, |limits| EncodedLimits::new(limits).is_ok()).ok_or_else(why)?;
        let encoded = EncodedLimits::new(&with_debt).map_err(|why| StoreError::Rejected { why })?;
        Ok(Self { limits: limits.clone(), with_debt: Arc::new(with_debt), encoded: Arc::new(encoded) })
    }
}

/// Cache of [`DebtLimits`] by limits id.
#[derive(Default)]
struct DebtLimitsCache(FxHashMap<u32, Arc<DebtLimits>>);

impl DebtLimitsCache {
    fn get(&mut self, charge: &Charge<'_>) -> Result<&Arc<DebtLimits>, StoreError> {
        if self.0.len() >= MAX_ENCODED && !self.0.contains_key(&charge.limits_id) {
            self.0.clear();
        }
        match self.0.entry(charge.limits_id) {
            hash_map::Entry::Occupied(known) if known.get().limits == *charge.limits => Ok(known.into_mut()),
            entry => Ok(entry.insert_entry(Arc::new(DebtLimits::new(charge.limits)?)).into_mut()),
        }
    }
}

impl TallyShard {
    /// Estimates the store time at local time `at`, both in nanoseconds.
    fn estimate_store_time(&self, at: u64) -> u64 {
        at.saturating_add_signed(self.offset)
    }

    /// Records the store time of an answer that arrives at local time `at`. Returns the store time in nanoseconds.
    pub(super) fn record_store_time(&mut self, part: &ReplyPart, at: u64) -> u64 {
        let time = part.now.saturating_mul(1_000);
        self.offset = i64::try_from(i128::from(time) - i128::from(at)).unwrap_or(0);
        time
    }
}

/// Reason why a charge was not decided locally.
pub(super) enum ViewError {
    /// The key must be read from the store first.
    Unread,
    /// The charge cannot be decided.
    Failed(StoreError),
}

fn to_view_error(_: ReadReason) -> ViewError {
    ViewError::Unread
}

/// A decision about a charge, with everything needed to undo it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalDecision {
    pub(super) taken: Cost,
    pub(super) stamps: Stamps,
    pub(super) outcome: Outcome,
    /// Estimated store time.
    pub(super) at: Time<Wall>,
}

impl ShardedTally {
    /// Creates a tally: 64 shards in a cluster, 8 with a single server.
    pub(super) fn new(every: SyncEvery, is_cluster: bool, clock: Arc<PreciseClock>) -> Self {
        // With a single server, shards only reduce lock contention.
        let count = if is_cluster { SHARDS } else { SHARDS / 8 };
        let stale_after = every.length().as_nanos().saturating_mul(2).max(RECENT_NANOS);
        let bounds = Bounds { keys: MAX_VIEWS / count, unsent: MAX_UNSENT / count, stale_after };
        let shard =
            || Mutex::new(TallyShard { tally: Tally::new(bounds), offset: 0, indebted: DebtLimitsCache::default() });
        Self {
            every,
            shards: (0..count).map(|_| shard()).collect(),
            urgent: Notify::new(),
            clock,
            syncing: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the local monotonic time, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        // The tally marks a stale view with renewal time 0. No view is renewed at 0, because this clock starts years above 0.
        self.clock.mono().as_nanos()
    }

    pub(super) fn shard_of(&self, charge: &Charge<'_>) -> u8 {
        local_shard_of(charge, self.shards.len())
    }

    pub(super) fn lock(&self, shard: u8) -> MutexGuard<'_, TallyShard> {
        self.shards[usize::from(shard)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a charge from the view of its key, and takes the cost if it is admitted. Adds the answer to `answers`.
    pub(super) fn take(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<LocalDecision, ViewError> {
        let mut shard = self.lock(self.shard_of(charge));
        let at = self.now();
        let now = now_for(charge, shard.estimate_store_time(at));
        let TallyShard { tally, indebted, .. } = &mut *shard;
        if let Some(refused) = refuse_debt(tally, charge, &now, at, answers)? {
            return Ok(refused);
        }
        let limits = &indebted.get(charge).map_err(ViewError::Failed)?.with_debt;
        let taken = tally.decide(&tally_charge(charge, limits, &now, at), |verdict, own, words| {
            push_answer(charge, limits, verdict, own, words, &now, answers)
        });
        self.wake_if_urgent(tally);
        taken.map_err(to_view_error)
    }

    /// Fast path of [`take`](Self::take), for a key that was charged under these limits before. Returns the outcome and
    /// the estimated store time. `None`: the fast path does not apply and nothing has changed.
    ///
    /// The fast path looks up no limits, and does not compute the spread number of the key, because no limit that the fast
    /// path covers has spread windows.
    pub(super) fn try_take(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<(Outcome, Time<Wall>)> {
        let (Ask::Exactly(cost), []) = (charge.ask, charge.windows) else { return None };
        let mut shard = self.lock(self.shard_of(charge));
        let at = self.now();
        let now = Now::at(shard.estimate_store_time(at));
        let (outcome, report) = shard.tally.try_take(charge.key, charge.limits_id, cost, &now, at)?;
        self.wake_if_urgent(&mut shard.tally);
        let taken = if outcome.is_admitted() { cost } else { Cost::ZERO };
        answers.push_answer_of_exactness(Exactness::Eventual, outcome, taken, Stamps::default(), [report]);
        Some((outcome, now.wall()))
    }

    /// Decides a charge of a group that may still be refused. The amount is only reserved: it is sent to the store
    /// after [`confirm`](Self::confirm), or given back by [`release`](Self::release).
    pub(super) fn reserve(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<LocalDecision, ViewError> {
        let (mut shard, at) = (self.lock(self.shard_of(charge)), self.now());
        let now = now_for(charge, shard.estimate_store_time(at));
        let TallyShard { tally, indebted, .. } = &mut *shard;
        if let Some(refused) = refuse_debt(tally, charge, &now, at, answers)? {
            return Ok(refused);
        }
        let limits = &indebted.get(charge).map_err(ViewError::Failed)?.with_debt;
        let taken = tally.reserve(&tally_charge(charge, limits, &now, at), |verdict, own, words| {
            push_answer(charge, limits, verdict, own, words, &now, answers)
        });
        taken.map_err(to_view_error)
    }

    /// Schedules a reserved amount to be sent to the store.
    pub(super) fn confirm(&self, charge: &Charge<'_>, taken: Cost) {
        let mut shard = self.lock(self.shard_of(charge));
        shard.tally.confirm(charge.key, self.now(), taken);
        self.wake_if_urgent(&mut shard.tally);
    }

    /// Gives back a reserved amount.
    pub(super) fn release(&self, charge: &Charge<'_>, taken: Cost, stamps: Stamps) {
        let mut shard = self.lock(self.shard_of(charge));
        let now = now_for(charge, shard.estimate_store_time(self.now()));
        shard.tally.release(charge.key, &now, taken, stamps);
    }

    fn wake_if_urgent(&self, tally: &mut Tally) {
        if tally.take_urgent_flag() {
            self.urgent.notify_one();
        }
    }

    /// Returns the decision that [`take`](Self::take) would make, without taking.
    pub(super) fn peek(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<LocalDecision, ViewError> {
        let mut shard = self.lock(self.shard_of(charge));
        let at = self.now();
        let now = now_for(charge, shard.estimate_store_time(at));
        let peeked = shard.tally.peek(&tally_charge(charge, charge.limits, &now, at), |verdict, own, words| {
            push_answer(charge, charge.limits, verdict, own, words, &now, answers)
        });
        peeked.map_err(to_view_error)
    }

    /// Refunds up to `taken` tokens that were not sent to the store yet. Returns the refunded amount.
    pub(super) fn put_back(&self, charge: &Charge<'_>, taken: Cost, stamps: Stamps) -> u64 {
        let mut shard = self.lock(self.shard_of(charge));
        let now = now_for(charge, shard.estimate_store_time(self.now()));
        shard.tally.put_back(charge.key, &now, taken, stamps)
    }

    /// Returns the limits for reading the key from the store, or `None` if the key has a usable view.
    pub(super) fn limits_to_read(&self, charge: &Charge<'_>) -> Result<Option<Arc<DebtLimits>>, StoreError> {
        let mut shard = self.lock(self.shard_of(charge));
        if !shard.tally.must_be_read(charge.key, self.now()) {
            return Ok(None);
        }
        shard.indebted.get(charge).map(|indebted| Some(indebted.clone()))
    }
}

/// Checks an `Ask::Regardless` charge against the debt that its rule allows, which is less than the debt that a view
/// allows. Returns `None` if the charge passes this check.
fn refuse_debt(
    tally: &mut Tally,
    charge: &Charge<'_>,
    now: &Now<'_>,
    at: u64,
    answers: &mut Answers,
) -> Result<Option<LocalDecision>, ViewError> {
    let Ask::Regardless(_) = charge.ask else { return Ok(None) };
    let refused = tally.peek(&tally_charge(charge, charge.limits, now, at), |verdict, own, words| {
        (!verdict.is_admitted()).then(|| push_answer(charge, charge.limits, verdict, own, words, now, answers))
    });
    refused.map_err(to_view_error)
}

/// Adds the answer to a charge under `limits`. The state `words` has the parameters `own`.
fn push_answer(
    charge: &Charge<'_>,
    limits: &Limits,
    verdict: &Verdict<Stamps>,
    own: &Limits,
    words: &[u64],
    now: &Now<'_>,
    answers: &mut Answers,
) -> LocalDecision {
    let (outcome, cost) = (verdict.outcome(), charge.ask.cost());
    let (taken, stamps) =
        if outcome.is_admitted() { (verdict.taken(), verdict.stamp()) } else { (Cost::ZERO, Stamps::default()) };
    let is_same = std::ptr::eq(limits, own) || limits == own;
    if is_same && limits.as_slice().len() == 1 {
        answers.push_answer_of_exactness(
            Exactness::Eventual,
            outcome,
            taken,
            stamps,
            [limits.report_single(&words, now, cost)],
        );
    } else if is_same {
        answers.push_answer_of_exactness(Exactness::Eventual, outcome, taken, stamps, limits.reports(words, now, cost));
    } else {
        answers.push_answer_of_exactness(
            Exactness::Eventual,
            outcome,
            taken,
            stamps,
            limits.reports_from(own, words, now, cost),
        );
    }
    LocalDecision { taken, stamps, outcome, at: now.wall() }
}

/// Returns the charge for the tally: under `limits`, at the estimated store time `now` and the local time `at`.
fn tally_charge<'a, L>(charge: &Charge<'a>, limits: &'a L, now: &'a Now<'a>, at: u64) -> tally::Charge<'a, L> {
    tally::Charge { key: charge.key, limits, limits_id: Some(charge.limits_id), ask: charge.ask, now, at }
}

fn now_for<'a>(charge: &Charge<'a>, estimate: u64) -> Now<'a> {
    Now::at(estimate).with_spread(spread_number(charge.key).wrapping_mul(1_000)).with_windows(charge.windows)
}
