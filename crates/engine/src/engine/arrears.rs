//! Arrears: requests that this node admitted during a store outage and still has to charge to the store.
//!
//! Only a request that the store certainly did not carry out causes arrears. A request with an unknown outcome counts
//! as spent in the store, and charging it again might charge it twice. A request that the store rejected causes none
//! either: the store would also reject the repayment, and the key would stay in arrears permanently.
//!
//! The arrears of a key are charged together with this node's next request for the key, and before it.
//! [`Engine::repay`] charges the arrears of all other keys. A repayment is sent at most once: without an answer it
//! counts as charged, like a request. While the outcome of the last request is unknown, no repayments are sent. The
//! next request ends this state: either the store answers it, or the store is known to be unreachable and nothing is
//! sent at all.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use smallvec::SmallVec;
use tollgate::core::{Ask, Cost, Nanos, Window};
use tollgate::{Limits, Report};
use tollgate_share::shares::{Arrears, has_arrears, with_arrears};

use super::plan::{Plan, PlannedCharge};
use super::{Engine, FALLBACK_KEYS, RulesInForce};
use crate::inline::InlineLimits;
use crate::rules::Consistency;
use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, StoreVerb};

/// Number of shards, each with its own lock.
const SHARDS: usize = 16;
/// Maximum number of keys with arrears. Admissions for further keys are never charged to the store.
const MAX_KEYS: usize = FALLBACK_KEYS;
/// Minimum interval between sweeps of a shard while the table is full. A sweep visits every key of the shard and drops
/// those without arrears.
const SWEEP_EVERY: Nanos = Nanos::SECOND;
/// Maximum number of keys that [`Engine::repay`] charges in one call.
const REPAY_BATCH: usize = 64;

/// The arrears of all keys.
pub(super) struct ArrearsTable {
    shards: [Mutex<ArrearsShard>; SHARDS],
    hasher: RandomState,
    keys: AtomicUsize,
    /// First shard that [`Engine::repay`] visits. It rotates, so that keys that cannot be charged do not starve the
    /// others.
    first_shard: AtomicUsize,
    /// Whether the outcome of the last request is unknown.
    in_doubt: AtomicBool,
}

/// The arrears of the keys that share a lock.
#[derive(Default)]
struct ArrearsShard {
    keys: HashMap<Box<[u8]>, KeyArrears>,
    /// Earliest time of the next sweep, in nanoseconds of the monotonic clock.
    next_sweep: u64,
}

/// The arrears of the limits of one key.
#[derive(Debug)]
pub(super) struct KeyArrears {
    limits_id: u32,
    limits: Limits,
    share: InlineLimits,
    windows: SmallVec<[Window; 1]>,
    each: SmallVec<[Arrears; 1]>,
}

/// A charge that the fallback admitted.
pub(super) struct Admission<'a> {
    pub(super) key: &'a [u8],
    pub(super) limits_id: u32,
    pub(super) limits: &'a Limits,
    pub(super) share: &'a InlineLimits,
    pub(super) windows: &'a [Window],
    pub(super) taken: Cost,
    /// Whether the charge may have put the share into debt.
    pub(super) owes: bool,
    pub(super) reports: &'a [Report],
}

impl ArrearsTable {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            keys: AtomicUsize::new(0),
            first_shard: AtomicUsize::new(0),
            in_doubt: AtomicBool::new(false),
        }
    }

    /// Returns whether no key has arrears.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // No ordering needed: a request may miss arrears that another thread adds at the same time.
        self.keys.load(Ordering::Relaxed) == 0
    }

    /// Records whether the outcome of the last request is unknown.
    pub(super) fn note_doubt(&self, in_doubt: bool) {
        self.in_doubt.store(in_doubt, Ordering::Relaxed);
    }

    /// Adds an admission by the fallback at `now`.
    pub(super) fn add(&self, admitted: &Admission<'_>, now: u64) {
        if admitted.taken == Cost::ZERO || !has_arrears(admitted.limits) {
            return;
        }
        let mut shard = self.lock(admitted.key);
        if !shard.keys.contains_key(admitted.key) && !self.has_space(&mut shard, now) {
            return;
        }
        let new = || KeyArrears {
            limits_id: admitted.limits_id,
            limits: admitted.limits.clone(),
            share: admitted.share.clone(),
            windows: admitted.windows.into(),
            each: SmallVec::new(),
        };
        let known = shard.keys.entry(admitted.key.into()).or_insert_with(|| {
            self.keys.fetch_add(1, Ordering::Relaxed);
            new()
        });
        let each = std::mem::take(&mut known.each);
        *known = KeyArrears { each, ..new() };
        known.each.resize(admitted.reports.len(), Arrears::default());
        let shares = admitted.share.entry().limits.as_slice();
        for ((arrears, share), report) in known.each.iter_mut().zip(shares).zip(admitted.reports) {
            arrears.add(share, admitted.taken.get(), admitted.owes, report, now);
        }
    }

    /// Subtracts a refund.
    pub(super) fn give_back(&self, key: &[u8], cost: Cost) {
        if let Some(known) = self.lock(key).keys.get_mut(key) {
            known.each.iter_mut().for_each(|arrears| arrears.give_back(cost.get()));
        }
    }

    /// Drops the arrears of a key.
    pub(super) fn forget(&self, key: &[u8]) {
        if !self.is_empty() {
            drop(self.take(key));
        }
    }

    fn take(&self, key: &[u8]) -> Option<(Box<[u8]>, KeyArrears)> {
        let taken = self.lock(key).keys.remove_entry(key)?;
        self.keys.fetch_sub(1, Ordering::Relaxed);
        Some(taken)
    }

    fn take_some(&self, most: usize) -> Vec<(Box<[u8]>, KeyArrears)> {
        let mut taken = Vec::new();
        let (before, from_first) = self.shards.split_at(self.first_shard.fetch_add(1, Ordering::Relaxed) % SHARDS);
        for shard in from_first.iter().chain(before) {
            let keys: Vec<Box<[u8]>> = lock(shard).keys.keys().take(most - taken.len()).cloned().collect();
            taken.extend(keys.iter().filter_map(|key| self.take(key)));
        }
        taken
    }

    /// Puts back arrears that were not sent.
    fn restore(&self, key: Box<[u8]>, unsent: KeyArrears) {
        let mut shard = self.lock(&key);
        match shard.keys.get_mut(&key) {
            Some(known) => {
                known.each.iter_mut().zip(&unsent.each).for_each(|(arrears, earlier)| arrears.restore(earlier));
            }
            None => {
                self.keys.fetch_add(1, Ordering::Relaxed);
                shard.keys.insert(key, unsent);
            }
        }
    }

    /// Returns whether another key fits. If the table is full, sweeps the shard first, at most once per
    /// [`SWEEP_EVERY`].
    fn has_space(&self, shard: &mut ArrearsShard, now: u64) -> bool {
        if self.keys.load(Ordering::Relaxed) >= MAX_KEYS && now >= shard.next_sweep {
            shard.next_sweep = now.saturating_add(SWEEP_EVERY.as_nanos());
            let before = shard.keys.len();
            shard.keys.retain(|_, known| known.due(now) > 0);
            self.keys.fetch_sub(before - shard.keys.len(), Ordering::Relaxed);
        }
        self.keys.load(Ordering::Relaxed) < MAX_KEYS
    }

    fn lock(&self, key: &[u8]) -> MutexGuard<'_, ArrearsShard> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % SHARDS])
    }
}

fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeyArrears {
    /// Returns the amount due. A charge takes the same amount from all limits of a key, so this is the smallest amount
    /// due to any of them: a limit that refills within a second must not be charged for the arrears of a daily limit.
    fn due(&self, now: u64) -> u64 {
        let shares = self.share.entry().limits.as_slice();
        self.each.iter().zip(shares).map(|(arrears, share)| arrears.due(share, now)).min().unwrap_or(0)
    }
}

/// Repays the arrears of the planned keys concurrently with `requests`. The repayment is polled first, so the store
/// receives it first.
pub(super) async fn repay_first<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    plan: &Plan,
    requests: impl Future<Output = ()>,
) {
    let mut owed = Vec::new();
    if !engine.arrears.in_doubt.load(Ordering::Relaxed) {
        let charged = |planned: &&PlannedCharge| planned.has_limits() && !planned.shadow;
        owed.extend(plan.charges.iter().filter(charged).filter_map(|planned| engine.arrears.take(plan.key(planned))));
    }
    let (mut repaying, mut requests) = (pin!(charge(engine, running, owed)), pin!(requests));
    let (mut is_repaid, mut is_answered) = (false, false);
    poll_fn(|context| {
        is_repaid = is_repaid || repaying.as_mut().poll(context).is_ready();
        is_answered = is_answered || requests.as_mut().poll(context).is_ready();
        if is_repaid && is_answered { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Charges all arrears to the store; see [`Engine::repay`].
pub(super) async fn repay<S: Store, F: Store>(engine: &Engine<S, F>) {
    while !engine.arrears.is_empty() {
        let owed = engine.arrears.take_some(REPAY_BATCH);
        if !charge(engine, &engine.running.load_full(), owed).await {
            return;
        }
    }
}

/// Charges arrears to the store, and puts back those that were not sent. Returns whether to continue: the store
/// answered at least one charge, and no outcome is unknown.
async fn charge<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    owed: Vec<(Box<[u8]>, KeyArrears)>,
) -> bool {
    let now = (engine.mono)().as_nanos();
    let owed: Vec<_> = owed.into_iter().filter(|(_, arrears)| arrears.due(now) > 0).collect();
    if owed.is_empty() {
        return true;
    }
    let in_debt = |limits: &Limits| engine.intern_limits(&with_arrears(limits)?).ok();
    let under: Vec<Option<InlineLimits>> = owed.iter().map(|(_, arrears)| in_debt(&arrears.limits)).collect();
    let charges: Vec<Charge<'_>> = owed
        .iter()
        .zip(&under)
        .map(|((key, arrears), under)| {
            let (due, windows) = (Cost::new(arrears.due(now)), &*arrears.windows);
            let (limits_id, limits, ask) = match under {
                Some(under) => (under.entry().id, &under.entry().limits, Ask::Regardless(due)),
                None => (arrears.limits_id, &arrears.limits, Ask::UpTo(due)),
            };
            let consistency = Consistency::Strict;
            Charge { key, limits_id, limits, earlier: &[], ask, stamps: None, windows, consistency }
        })
        .collect();
    let group = |charge| Group { verb: StoreVerb::Check, charges: std::slice::from_ref(charge) };
    let groups: Vec<Group<'_>> = charges.iter().map(group).collect();
    let mut answers = Answers::default();
    engine.store.run(Batch { limit_table: running, groups: &groups }, &mut answers).await;
    let (mut is_answered, mut in_doubt) = (false, false);
    for (place, (key, arrears)) in owed.into_iter().enumerate() {
        match answers.group(place) {
            Err(StoreError::Unavailable { .. }) => engine.arrears.restore(key, arrears),
            Err(StoreError::Unknown { .. }) => in_doubt = true,
            Ok(_) | Err(StoreError::Stale { .. } | StoreError::Rejected { .. }) => is_answered = true,
        }
    }
    is_answered && !in_doubt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shares::Shares;
    use crate::rules::LimitText;

    #[test]
    fn full_shard_is_swept_at_most_once_per_second() {
        const SECOND: u64 = Nanos::SECOND.as_nanos();
        let limits = LimitText { limit: "10/s", burst: None, algorithm: None }.read().unwrap();
        let (table, share) = (ArrearsTable::new(), Shares::new().share_of_node(&limits, 1));
        let owes_nothing = || KeyArrears {
            limits_id: 0,
            limits: limits.clone(),
            share: share.clone(),
            windows: SmallVec::new(),
            each: SmallVec::new(),
        };
        let mut shard = ArrearsShard::default();
        for (now, has_space) in [(SECOND, true), (2 * SECOND - 1, false), (2 * SECOND, true)] {
            table.keys.store(MAX_KEYS, Ordering::Relaxed);
            shard.keys.insert(Box::from(*b"key"), owes_nothing());
            assert_eq!(table.has_space(&mut shard, now), has_space, "{now}");
            assert_eq!(shard.keys.is_empty(), has_space, "{now}");
        }
    }
}
