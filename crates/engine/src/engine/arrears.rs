//! Arrears: requests that this node admitted during a store outage and still has to charge to the store.
//!
//! Only a request that the store certainly did not carry out causes arrears. If the outcome is unknown, the request
//! counts as spent in the store, and a repayment might charge it twice. A request that the store rejected causes no
//! arrears either: the store would also reject the repayment, and the key would stay in arrears permanently.
//!
//! This node charges the arrears of a key just before its next request for the key. [`Engine::repay`] charges the
//! arrears of all keys. A repayment is sent at most once: if no answer arrives, it counts as charged. If the caller
//! gives up while a repayment is in flight, the arrears are put back only if the store reports that nothing was sent.
//! The debt limit is raised for repayments; a repayment that exceeds even the raised limit is retried later.
//!
//! If the outcome of the last request to a place (server or lane) is unknown, this node sends its next request to that
//! place without arrears, and continues so until the place answers or is known to be unreachable. An unreachable place
//! receives no arrears.
//!
//! A request that was repaid can still be refunded. The table remembers the latest repayment of each key, so that the
//! refund is also sent to the store.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use smallvec::SmallVec;
use tollgate::core::{Ask, Cost, Nanos, Stamps, Window};
use tollgate::{Limits, Report};
use tollgate_share::shares::{Arrears, can_have_arrears, with_debt_for_arrears};

use super::plan::{Plan, PlannedCharge, to_usize_range};
use super::{Engine, FALLBACK_KEYS, RulesInForce};
use crate::inline::InternedLimits;
use crate::key;
use crate::rules::Consistency;
use crate::store::{Answer, Answers, Batch, Charge, Group, GroupAnswer, Store, StoreError, StoreVerb};

/// Number of shards, each with its own lock.
const SHARD_COUNT: usize = 16;
/// Maximum number of keys with arrears. Admissions for further keys are never charged to the store. The table also
/// remembers the latest repayments of up to this number of keys.
const MAX_ARREARS_KEYS: usize = FALLBACK_KEYS;
/// Minimum interval between sweeps of a shard while the table is full. A sweep visits every key of the shard. It drops
/// either the keys with nothing to charge, or the repayments that can no longer be refunded.
const MIN_SWEEP_INTERVAL: Nanos = Nanos::SECOND;
/// Maximum number of keys that [`Engine::repay`] charges in one call to the store.
const MAX_REPAID_PER_CALL: usize = 64;
/// Interval between attempts to charge arrears that exceed the debt limit.
const RETRY_INTERVAL: Nanos = Nanos::SECOND;

/// The arrears of all keys.
pub(super) struct ArrearsTable {
    shards: [Mutex<ArrearsShard>; SHARD_COUNT],
    hasher: RandomState,
    keys: AtomicUsize,
    /// One bit per place of the store: whether the outcome of the last request to the place is unknown.
    in_doubt: AtomicU64,
}

/// The arrears of the keys that share a lock.
#[derive(Default)]
struct ArrearsShard {
    keys: HashMap<Box<[u8]>, KeyArrears>,
    /// The latest repayments.
    repaid: HashMap<Box<[u8]>, Repayment>,
    /// Earliest time of the next sweep, in nanoseconds of the monotonic clock.
    next_sweep: u64,
}

/// A repayment that the store accepted and that can still be refunded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repayment {
    pub(super) cost: Cost,
    pub(super) stamps: Stamps,
    /// The time at which the store has forgotten the whole repayment, in nanoseconds of the monotonic clock.
    until: u64,
}

/// The arrears of one key, per limit.
#[derive(Debug)]
pub(super) struct KeyArrears {
    limits_id: u32,
    limits: Limits,
    share: InternedLimits,
    windows: SmallVec<[Window; 1]>,
    per_limit: SmallVec<[Arrears; 1]>,
    /// Earliest time of the next attempt to charge these arrears, in nanoseconds of the monotonic clock.
    retry_at: u64,
}

/// A charge that the fallback admitted.
pub(super) struct Admission<'a> {
    pub(super) key: &'a [u8],
    pub(super) limits_id: u32,
    pub(super) limits: &'a Limits,
    pub(super) share: &'a InternedLimits,
    pub(super) windows: &'a [Window],
    pub(super) taken: Cost,
    /// Whether the charge may have put the share into debt.
    pub(super) into_debt: bool,
    pub(super) reports: &'a [Report],
}

impl ArrearsTable {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            keys: AtomicUsize::new(0),
            in_doubt: AtomicU64::new(0),
        }
    }

    /// Returns whether no key has arrears.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // No ordering needed: a request may miss arrears that another thread adds at the same time.
        self.keys.load(Ordering::Relaxed) == 0
    }

    /// Returns whether the outcome of the last request to any place is unknown.
    #[inline]
    pub(super) fn has_doubts(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed) != 0
    }

    /// Adds the arrears of a charge that the fallback admitted at `now`.
    pub(super) fn add(&self, admitted: &Admission<'_>, now: u64) {
        if admitted.taken == Cost::ZERO || !can_have_arrears(admitted.limits) {
            return;
        }
        let mut shard = self.lock_shard(admitted.key);
        if !shard.keys.contains_key(admitted.key) && !self.make_space(&mut shard, now) {
            return;
        }
        let new = || KeyArrears {
            limits_id: admitted.limits_id,
            limits: admitted.limits.clone(),
            share: admitted.share.clone(),
            windows: admitted.windows.into(),
            per_limit: SmallVec::new(),
            retry_at: 0,
        };
        let known = shard.keys.entry(admitted.key.into()).or_insert_with(|| {
            self.keys.fetch_add(1, Ordering::Relaxed);
            new()
        });
        let (per_limit, retry_at) = (std::mem::take(&mut known.per_limit), known.retry_at);
        *known = KeyArrears { per_limit, retry_at, ..new() };
        known.per_limit.resize(admitted.reports.len(), Arrears::default());
        let shares = admitted.share.entry().limits.as_slice();
        for ((arrears, share), report) in known.per_limit.iter_mut().zip(shares).zip(admitted.reports) {
            arrears.add(share, admitted.taken.get(), admitted.into_debt, report, now);
        }
    }

    /// Subtracts a refund from the arrears of a key.
    pub(super) fn subtract_refund(&self, key: &[u8], cost: Cost) {
        if let Some(known) = self.lock_shard(key).keys.get_mut(key) {
            known.per_limit.iter_mut().for_each(|arrears| arrears.subtract_refund(cost.get()));
        }
    }

    /// Drops the arrears of a key and its latest repayment.
    pub(super) fn forget(&self, key: &[u8]) {
        let mut shard = self.lock_shard(key);
        shard.repaid.remove(key);
        self.keys.fetch_sub(shard.keys.remove(key).is_some().into(), Ordering::Relaxed);
    }

    /// Removes and returns the arrears of a key, unless the next attempt to charge them is later than `now`.
    fn take_arrears(&self, key: &[u8], now: u64) -> Option<(Box<[u8]>, KeyArrears)> {
        let mut shard = self.lock_shard(key);
        shard.keys.get(key).filter(|known| known.retry_at <= now)?;
        self.keys.fetch_sub(1, Ordering::Relaxed);
        shard.keys.remove_entry(key)
    }

    /// Records a repayment that the store accepted. An earlier repayment of the key is added to it if a single refund
    /// can undo both. Otherwise, the earlier repayment is forgotten. If the shard has no space, the new repayment is
    /// not recorded.
    fn add_repayment(&self, key: Box<[u8]>, mut repayment: Repayment, now: u64) {
        let mut shard = self.lock_shard(&key);
        if let Some(earlier) = shard.repaid.get(&key).filter(|it| it.until > now && it.stamps == repayment.stamps) {
            repayment.cost = Cost::new(repayment.cost.get().saturating_add(earlier.cost.get()));
        } else if shard.repaid.len() >= MAX_ARREARS_KEYS / SHARD_COUNT {
            if now >= shard.next_sweep {
                shard.next_sweep = now.saturating_add(MIN_SWEEP_INTERVAL.as_nanos());
                shard.repaid.retain(|_, earlier| earlier.until > now);
            }
            if shard.repaid.len() >= MAX_ARREARS_KEYS / SHARD_COUNT {
                return;
            }
        }
        shard.repaid.insert(key, repayment);
    }

    /// Removes up to `cost` from the latest repayment of a key. The caller refunds the removed part in the store.
    pub(super) fn take_repayment(&self, key: &[u8], cost: Cost, now: u64) -> Option<Repayment> {
        let mut shard = self.lock_shard(key);
        let repaid = shard.repaid.get_mut(key).filter(|repaid| repaid.until > now)?;
        let taken = Repayment { cost: repaid.cost.min(cost), ..*repaid };
        repaid.cost = Cost::new(repaid.cost.get() - taken.cost.get());
        if repaid.cost == Cost::ZERO {
            shard.repaid.remove(key);
        }
        (taken.cost > Cost::ZERO).then_some(taken)
    }

    /// Puts back a repayment whose refund was not sent.
    pub(super) fn restore_repayment(&self, key: &[u8], unsent: Repayment) {
        let mut shard = self.lock_shard(key);
        let repaid = shard.repaid.entry(key.into()).or_insert(Repayment { cost: Cost::ZERO, ..unsent });
        repaid.cost = Cost::new(repaid.cost.get().saturating_add(unsent.cost.get()));
    }

    /// Puts back arrears that were not sent or not accepted.
    fn restore_arrears(&self, key: Box<[u8]>, unsent: KeyArrears) {
        let mut shard = self.lock_shard(&key);
        match shard.keys.get_mut(&key) {
            Some(known) => {
                known.retry_at = known.retry_at.max(unsent.retry_at);
                known
                    .per_limit
                    .iter_mut()
                    .zip(&unsent.per_limit)
                    .for_each(|(arrears, earlier)| arrears.restore(earlier));
            }
            None => {
                self.keys.fetch_add(1, Ordering::Relaxed);
                shard.keys.insert(key, unsent);
            }
        }
    }

    /// Returns whether the table has space for another key. If the table is full, sweeps the shard first, at most once
    /// per [`MIN_SWEEP_INTERVAL`].
    fn make_space(&self, shard: &mut ArrearsShard, now: u64) -> bool {
        if self.keys.load(Ordering::Relaxed) >= MAX_ARREARS_KEYS && now >= shard.next_sweep {
            shard.next_sweep = now.saturating_add(MIN_SWEEP_INTERVAL.as_nanos());
            let before = shard.keys.len();
            shard.keys.retain(|_, known| known.amount_due(now) > 0);
            self.keys.fetch_sub(before - shard.keys.len(), Ordering::Relaxed);
        }
        self.keys.load(Ordering::Relaxed) < MAX_ARREARS_KEYS
    }

    fn lock_shard(&self, key: &[u8]) -> MutexGuard<'_, ArrearsShard> {
        lock_mutex(&self.shards[self.hasher.hash_one(key) as usize % SHARD_COUNT])
    }
}

fn lock_mutex<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeyArrears {
    /// Returns the amount to charge. A charge takes the same amount from all limits of a key, so this is the smallest
    /// of the arrears of these limits. A limit that refills within a second must not be charged for the arrears of a
    /// daily limit.
    fn amount_due(&self, now: u64) -> u64 {
        let shares = self.share.entry().limits.as_slice();
        self.per_limit.iter().zip(shares).map(|(arrears, share)| arrears.due(share, now)).min().unwrap_or(0)
    }
}

/// Returns the bit of the place that stores a key.
fn place_bit<S: Store, F: Store>(engine: &Engine<S, F>, key: &[u8]) -> u64 {
    1 << (engine.store.place_of(key::partition_key(key)) % 64)
}

/// Sets or clears the in-doubt bit of every place that the enforced charges of the requests use.
pub(super) fn set_in_doubt<S: Store, F: Store>(
    engine: &Engine<S, F>,
    plan: &Plan,
    requests: impl IntoIterator<Item = u32>,
    in_doubt: bool,
) {
    for request in requests {
        let charges = &plan.charges[to_usize_range(&plan.requests[request as usize].charges)];
        for planned in charges.iter().filter(|planned| is_enforced(planned)) {
            let bit = place_bit(engine, plan.key(planned));
            // No ordering needed: the bit is only a hint.
            if in_doubt {
                engine.arrears.in_doubt.fetch_or(bit, Ordering::Relaxed);
            } else {
                engine.arrears.in_doubt.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }
}

fn is_enforced(planned: &PlannedCharge) -> bool {
    planned.is_sent() && !planned.shadow
}

/// Charges the arrears of the planned keys concurrently with `requests`. The repayments are polled first, so the store
/// receives them first.
pub(super) async fn repay_first<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    plan: &Plan,
    requests: impl Future<Output = ()>,
) {
    let (in_doubt, now) = (engine.arrears.in_doubt.load(Ordering::Relaxed), (engine.mono)().as_nanos());
    let keys = plan.charges.iter().filter(|planned| is_enforced(planned)).map(|planned| plan.key(planned));
    let keys = keys.filter(|key| in_doubt == 0 || in_doubt & place_bit(engine, key) == 0);
    let owed = keys.filter_map(|key| engine.arrears.take_arrears(key, now));
    // Each key is charged in its own call, so that the answer says whether this repayment was sent.
    let charge_one = |one| Some(Box::pin(charge_arrears(engine, running, vec![one], Answers::with_unsent_flag())));
    let (mut repaying, mut requests) = (owed.map(charge_one).collect::<SmallVec<[_; 2]>>(), pin!(requests));
    let mut is_answered = false;
    poll_fn(|context| {
        for one in &mut repaying {
            if one.as_mut().is_some_and(|one| one.as_mut().poll(context).is_ready()) {
                *one = None;
            }
        }
        is_answered = is_answered || requests.as_mut().poll(context).is_ready();
        if is_answered && repaying.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Charges all arrears to the store; see [`Engine::repay`].
pub(super) async fn repay<S: Store, F: Store>(engine: &Engine<S, F>) {
    // Places that are in doubt now are skipped in this call and tried in the next call.
    let mut silent = engine.arrears.in_doubt.swap(0, Ordering::Relaxed);
    for shard in &engine.arrears.shards {
        if engine.arrears.is_empty() {
            return;
        }
        let keys: Vec<Box<[u8]>> = lock_mutex(shard).keys.keys().cloned().collect();
        let mut keys = keys.into_iter();
        loop {
            let now = (engine.mono)().as_nanos();
            let answering = keys.by_ref().filter(|key| silent == 0 || silent & place_bit(engine, key) == 0);
            let owed: Vec<_> =
                answering.filter_map(|key| engine.arrears.take_arrears(&key, now)).take(MAX_REPAID_PER_CALL).collect();
            if owed.is_empty() {
                break;
            }
            silent |= charge_arrears(engine, &engine.running.load_full(), owed, Answers::default()).await;
        }
    }
}

/// Arrears that are being charged to the store.
struct ArrearsInFlight<'e> {
    table: &'e ArrearsTable,
    owed: Vec<(Box<[u8]>, KeyArrears)>,
    answers: Answers,
}

impl Drop for ArrearsInFlight<'_> {
    /// Puts the arrears back if the caller gave up before they were sent. Arrears that were sent count as charged.
    fn drop(&mut self) {
        if self.answers.is_unsent() {
            self.owed.drain(..).for_each(|(key, arrears)| self.table.restore_arrears(key, arrears));
        }
    }
}

/// Charges arrears to the store. Arrears that were not sent or not accepted are put back. Returns the bits of the
/// places that did not answer.
async fn charge_arrears<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    owed: Vec<(Box<[u8]>, KeyArrears)>,
    answers: Answers,
) -> u64 {
    let now = (engine.mono)().as_nanos();
    let owed: Vec<_> = owed.into_iter().filter(|(_, arrears)| arrears.amount_due(now) > 0).collect();
    if owed.is_empty() {
        return 0;
    }
    let in_debt = |limits: &Limits| engine.intern_limits(&with_debt_for_arrears(limits)?).ok();
    let under: Vec<Option<InternedLimits>> = owed.iter().map(|(_, arrears)| in_debt(&arrears.limits)).collect();
    let mut in_flight = ArrearsInFlight { table: &engine.arrears, owed, answers };
    let ArrearsInFlight { owed, answers, .. } = &mut in_flight;
    let charges: Vec<Charge<'_>> = owed
        .iter()
        .zip(&under)
        .map(|((key, arrears), under)| {
            let (due, windows) = (Cost::new(arrears.amount_due(now)), &*arrears.windows);
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
    engine.store.run(Batch { limit_table: running, groups: &groups }, answers).await;
    let (mut unavailable, mut unknown, mut answered) = (0, 0, 0);
    for (index, (key, mut arrears)) in std::mem::take(owed).into_iter().enumerate() {
        match answers.group(index) {
            Err(StoreError::Unavailable { .. }) => {
                unavailable |= place_bit(engine, &key);
                engine.arrears.restore_arrears(key, arrears);
            }
            Err(StoreError::Unknown { .. }) => unknown |= place_bit(engine, &key),
            Ok(group) => {
                answered |= place_bit(engine, &key);
                if let [answer] = group.charges()
                    && answer.outcome.is_admitted()
                {
                    let repayment = repayment_from_answer(&group, answer, &arrears.limits, now);
                    engine.arrears.add_repayment(key, repayment, now);
                } else {
                    // The debt limit is reached, because other nodes charged their arrears or because the key was
                    // already in debt.
                    arrears.retry_at = now.saturating_add(RETRY_INTERVAL.as_nanos());
                    engine.arrears.restore_arrears(key, arrears);
                }
            }
            Err(StoreError::Stale { .. } | StoreError::Rejected { .. }) => answered |= place_bit(engine, &key),
        }
    }
    unavailable & !answered | unknown
}

fn repayment_from_answer(group: &GroupAnswer<'_>, answer: &Answer, limits: &Limits, now: u64) -> Repayment {
    let reset = group.reports(answer).iter().map(|report| report.reset).max().unwrap_or_default();
    let stamps = group.stamps(answer).with_count(limits.as_slice().len());
    Repayment { cost: answer.taken, stamps, until: now.saturating_add(reset.as_nanos()) }
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
            per_limit: SmallVec::new(),
            retry_at: 0,
        };
        let mut shard = ArrearsShard::default();
        for (now, has_space) in [(SECOND, true), (2 * SECOND - 1, false), (2 * SECOND, true)] {
            table.keys.store(MAX_ARREARS_KEYS, Ordering::Relaxed);
            shard.keys.insert(Box::from(*b"key"), owes_nothing());
            assert_eq!(table.make_space(&mut shard, now), has_space, "{now}");
            assert_eq!(shard.keys.is_empty(), has_space, "{now}");
        }
    }
}
