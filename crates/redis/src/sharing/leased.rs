//! `consistency: leased`: this node spends tokens that the store granted it in advance.
//!
//! The protocol is [`tollgate_share::lease`], with one [`Holder`] per key on this node and the pool in `exchange.lua`.
//! This module contains the clock, the locks and the decisions; `exchange.rs` contains the messages. Only charges of an
//! exact amount above zero are decided locally. Before the store decides an `UpTo` or `Regardless` charge, the node
//! returns the leases of the key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Algorithm, Ask, Cost, Limit, Limits, Nanos, Outcome, Report, Retry, Stamp, Stamps, Time, Wall};
use tollgate_engine::Exactness;
use tollgate_engine::store::{Answers, Charge, StoreError};
use tollgate_share::hash::BuildKeyHasher;
use tollgate_share::lease::{Holder, Need, PoolLimit, Reservation, TakeResult};

use super::Sharing;
use super::eventual::LocalDecision;
use super::exchange::ExchangeResult;
use crate::lanes::{SHARDS, local_shard_of};
use crate::params::EncodedLimits;
use crate::request::spread_number;

/// Maximum number of keys with leases. The store decides the charges of further keys.
const MAX_KEYS: usize = 1 << 18;

/// The leases of this node.
pub(super) struct Leases {
    /// In a cluster, each shard is in one lane. With a single server, shards only reduce lock contention.
    shards: Box<[Mutex<Shard>]>,
    /// Store time minus local time at the last answer, in nanoseconds.
    offset: AtomicI64,
    /// Whether the sweep task was started.
    pub(super) is_swept: AtomicBool,
}

/// The leases of one shard, by key.
pub(super) type Shard = HashMap<Arc<[u8]>, Entry, BuildKeyHasher>;

/// The leases of one key.
pub(super) struct Entry {
    pub(super) holder: Holder,
    pub(super) encoded: Arc<EncodedLimits>,
    pool_limits: Box<[PoolLimit]>,
    /// Notified when an exchange ends.
    pub(super) answered: Arc<Notify>,
}

/// A decision about a charge.
pub(super) struct LeaseDecision {
    pub(super) decision: LocalDecision,
    /// The amount taken from leases, so that it can be put back. `None` if nothing was taken, or if the store took the
    /// amount.
    pub(super) reservation: Option<Reservation>,
}

/// Reason why a charge cannot be decided locally.
pub(super) enum NoLease {
    /// The store must decide, for example because the charge is not for an exact amount, the parameters differ, or too
    /// many keys have leases.
    Strict,
    Failed(StoreError),
}

/// The next step of a request.
enum NextStep {
    Decided(LeaseDecision),
    Wait(OwnedNotified),
    Asked(oneshot::Receiver<ExchangeResult>),
}

/// The result of a locally decided charge.
enum LocalResult {
    Held(Reservation),
    /// Taken by the store at this store time, in nanoseconds.
    Spent(u64),
    /// Refused, with this wait in nanoseconds; `u64::MAX` means forever.
    Refused(u64),
}

impl Entry {
    /// Returns whether this cost under these limits can be charged to the leases.
    fn can_lease(&self, limits: &Limits, cost: u64) -> bool {
        self.encoded.limits() == limits && self.pool_limits.iter().all(|pool_limit| cost <= pool_limit.capacity())
    }
}

impl Leases {
    pub(super) fn new(is_cluster: bool) -> Self {
        let count = if is_cluster { SHARDS } else { SHARDS / 8 };
        Self {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            offset: AtomicI64::new(0),
            is_swept: AtomicBool::new(false),
        }
    }

    pub(super) fn shard_of(&self, charge: &Charge<'_>) -> u8 {
        local_shard_of(charge, self.shards.len())
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.shards.len() as u8
    }

    pub(super) fn lock(&self, shard: u8) -> MutexGuard<'_, Shard> {
        self.shards[usize::from(shard)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the store time, in nanoseconds, of an answer that just arrived.
    pub(super) fn record_store_time(&self, time: u64) {
        let offset = i128::from(time) - i128::from(now());
        self.offset.store(i64::try_from(offset).unwrap_or(0), Ordering::Relaxed);
    }

    /// Estimates the store time at local time `now`.
    fn estimate_store_time(&self, now: u64) -> Time<Wall> {
        Time::from_nanos(now.saturating_add_signed(self.offset.load(Ordering::Relaxed)))
    }

    /// Returns the number of keys with leases and the number of held tokens.
    pub(super) fn count_held(&self) -> (usize, u64) {
        let of_shard = |shard| {
            let entries = self.lock(shard);
            let holders = entries.values().map(|entry| &entry.holder).filter(|holder| holder.has_leases());
            holders.fold((0, 0_u64), |(keys, tokens), holder| (keys + 1, tokens.saturating_add(holder.held())))
        };
        self.shards()
            .map(of_shard)
            .fold((0, 0), |(keys, tokens), (more, held)| (keys + more, tokens.saturating_add(held)))
    }

    /// Adds the answer to a locally decided charge.
    fn push_answer(
        &self,
        entry: Option<&Entry>,
        charge: &Charge<'_>,
        decided: LocalResult,
        at: u64,
        answers: &mut Answers,
    ) -> LeaseDecision {
        let remaining = entry.map_or(0, |entry| entry.holder.remaining());
        let reset = Nanos::from_nanos(entry.map_or(0, |entry| entry.holder.nanos_until_full(at)));
        let cost = charge.ask.cost();
        let stamps = |window_at: u64| entry.map(|entry| stamps_of(&entry.pool_limits, window_at)).unwrap_or_default();
        let (outcome, taken, stamps) = match &decided {
            // A lease ends within the window in which it was granted.
            LocalResult::Held(from) => (Outcome::Allow, cost, stamps(from.slice_expiry().saturating_sub(1))),
            LocalResult::Spent(time) => (Outcome::Allow, cost, stamps(*time)),
            LocalResult::Refused(u64::MAX) => (Outcome::Deny(Retry::Never), Cost::ZERO, Stamps::default()),
            LocalResult::Refused(wait) => {
                (Outcome::Deny(Retry::After(Nanos::from_nanos((*wait).max(1)))), Cost::ZERO, Stamps::default())
            }
        };
        let retry = match outcome {
            Outcome::Deny(retry) => retry,
            Outcome::Allow | Outcome::Delay(_) if cost.get() <= remaining => Retry::NOW,
            Outcome::Allow | Outcome::Delay(_) => Retry::After(reset),
        };
        let report = |limit: &Limit| {
            let capacity = limit.capacity();
            Report { limit: capacity, remaining: remaining.min(capacity), retry, reset }
        };
        answers.push_answer_of_exactness(
            Exactness::Leased,
            outcome,
            taken,
            stamps,
            charge.limits.as_slice().iter().map(report),
        );
        let reservation = if let LocalResult::Held(reservation) = decided { Some(reservation) } else { None };
        LeaseDecision {
            decision: LocalDecision { taken, stamps, outcome, at: self.estimate_store_time(at) },
            reservation,
        }
    }

    /// Forgets the last refusal of a key, so that the next request asks the store. Used after tokens were returned to
    /// the store.
    pub(super) fn forget_refusal(&self, charge: &Charge<'_>) {
        if let Some(entry) = self.lock(self.shard_of(charge)).get_mut(charge.key) {
            entry.holder.forget_refusal();
        }
    }

    /// Puts a reservation back into its leases.
    pub(super) fn put_back(&self, charge: &Charge<'_>, reservation: &Reservation) {
        if let Some(entry) = self.lock(self.shard_of(charge)).get_mut(charge.key) {
            entry.holder.put_back(reservation);
        }
    }
}

/// Returns the refund stamps of a charge at store time `at`. A window's stamp is its end, because a window accepts
/// refunds only until then.
fn stamps_of(pool_limits: &[PoolLimit], at: u64) -> Stamps {
    Stamps::from_stamps(pool_limits.iter().map(|pool_limit| match pool_limit {
        PoolLimit::Bucket { .. } => Stamp::NONE,
        PoolLimit::Window { .. } => Stamp::from_bits(pool_limit.window_end(at)),
    }))
}

/// Returns the time of a monotonic clock that keeps running while the machine sleeps, in nanoseconds. With a clock that
/// stops during sleep, a lease could outlast its slice.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(LEASE_CLOCK);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(target_os = "linux")]
const LEASE_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS, this clock also runs while the machine sleeps.
#[cfg(not(target_os = "linux"))]
const LEASE_CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Sharing {
    /// Decides a charge from leases, and asks the pool if the held tokens are not enough. With `holds`, the pool adds
    /// the needed amount to a lease instead of spending it, for a group that may still be refused. Adds the answer to
    /// `answers`.
    pub(super) async fn take_leased(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        holds: bool,
        deadline: Option<Instant>,
        answers: &mut Answers,
    ) -> Result<LeaseDecision, NoLease> {
        let Ask::Exactly(cost) = charge.ask else {
            self.settle_lease(charge).await;
            return Err(NoLease::Strict);
        };
        // A zero cost is refused only by a limit in debt, and only the store knows the debt.
        if cost == Cost::ZERO {
            return Err(NoLease::Strict);
        }
        let mut deadline = deadline;
        loop {
            let step = self.try_lease(charge, holds, answers)?;
            let limit = || Instant::now() + self.config.deadline;
            match step {
                NextStep::Decided(decision) => return Ok(decision),
                NextStep::Wait(answered) => {
                    if timeout_at(*deadline.get_or_insert_with(limit), answered).await.is_err() {
                        let why = format!("no lease within {:?}", self.config.deadline);
                        return Err(NoLease::Failed(StoreError::Unavailable { why }));
                    }
                }
                NextStep::Asked(answer) => {
                    let result = timeout_at(*deadline.get_or_insert_with(limit), answer).await;
                    let unknown = |why: String| NoLease::Failed(StoreError::Unknown { why });
                    let late = |_| unknown(format!("no answer about a lease within {:?}", self.config.deadline));
                    let gone = |_| unknown("the runtime of the connection has ended".to_owned());
                    let granted = result.map_err(late)?.map_err(gone)??;
                    let decided = match granted.grant.refused {
                        Some(wait) => LocalResult::Refused(wait),
                        None if holds => continue,
                        None => LocalResult::Spent(granted.at),
                    };
                    let entries = self.leases.lock(self.leases.shard_of(charge));
                    return Ok(self.leases.push_answer(entries.get(charge.key), charge, decided, now(), answers));
                }
            }
        }
    }

    fn try_lease(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        holds: bool,
        answers: &mut Answers,
    ) -> Result<NextStep, NoLease> {
        let leases = &self.leases;
        let shard = leases.shard_of(charge);
        let mut entries = leases.lock(shard);
        if let Some(entry) = entries.get_mut(charge.key) {
            return self.take_from_entry(entry, shard, charge, holds, answers);
        }
        if entries.len() >= MAX_KEYS / leases.shards.len() {
            return Err(NoLease::Strict);
        }
        self.start_sweeping();
        let mut entry = self.new_entry(charge)?;
        let step = self.take_from_entry(&mut entry, shard, charge, holds, answers);
        entries.insert(Arc::from(charge.key), entry);
        step
    }

    /// Takes a charge from held leases. If the held tokens are not enough, changes nothing and returns `None`.
    pub(super) fn try_take_held(self: &Arc<Self>, charge: &Charge<'_>, answers: &mut Answers) -> Option<LocalDecision> {
        let cost = charge.ask.cost().get();
        if !matches!(charge.ask, Ask::Exactly(_)) || cost == 0 {
            return None;
        }
        let (leases, at) = (&self.leases, now());
        let shard = leases.shard_of(charge);
        let mut entries = leases.lock(shard);
        let entry = entries.get_mut(charge.key).filter(|entry| entry.can_lease(charge.limits, cost))?;
        let reservation = entry.holder.try_take(at, cost)?;
        self.renew_if_due(entry, shard, charge, at);
        Some(leases.push_answer(Some(entry), charge, LocalResult::Held(reservation), at, answers).decision)
    }

    /// Starts an exchange without an immediate need, if the holder reports that an exchange is due.
    fn renew_if_due(self: &Arc<Self>, entry: &mut Entry, shard: u8, charge: &Charge<'_>, at: u64) {
        if entry.holder.is_exchange_due(at) {
            drop(self.start_exchange(shard, &Arc::from(charge.key), entry, Need::default(), false));
        }
    }

    fn take_from_entry(
        self: &Arc<Self>,
        entry: &mut Entry,
        shard: u8,
        charge: &Charge<'_>,
        holds: bool,
        answers: &mut Answers,
    ) -> Result<NextStep, NoLease> {
        let (leases, cost, at) = (&self.leases, charge.ask.cost().get(), now());
        // A lease is valid only for the parameters under which it was granted. An unused lease is returned after one
        // second.
        if entry.encoded.limits() != charge.limits {
            return Err(NoLease::Strict);
        }
        if entry.pool_limits.iter().any(|pool_limit| pool_limit.capacity() < cost) {
            return Ok(NextStep::Decided(leases.push_answer(
                Some(entry),
                charge,
                LocalResult::Refused(u64::MAX),
                at,
                answers,
            )));
        }
        let decided = match entry.holder.take(at, cost) {
            TakeResult::Held(reservation) => {
                self.renew_if_due(entry, shard, charge, at);
                LocalResult::Held(reservation)
            }
            TakeResult::Refused(wait) => LocalResult::Refused(wait),
            TakeResult::Wait => return Ok(NextStep::Wait(entry.answered.clone().notified_owned())),
            TakeResult::Ask => {
                let need = if holds { Need::Hold(cost) } else { Need::Spend(cost) };
                return Ok(NextStep::Asked(self.start_exchange(shard, &Arc::from(charge.key), entry, need, false)));
            }
        };
        Ok(NextStep::Decided(leases.push_answer(Some(entry), charge, decided, at, answers)))
    }

    fn new_entry(&self, charge: &Charge<'_>) -> Result<Entry, NoLease> {
        let encoded = self.encoded.get(charge).map_err(|why| NoLease::Failed(StoreError::Rejected { why }))?;
        let offset = spread_number(charge.key).wrapping_mul(1_000);
        // An override may have limits without a state (`Unlimited`, `DenyAll`), which cannot be leased.
        let pool_limits =
            charge.limits.as_slice().iter().map(|limit| PoolLimit::new(limit, offset)).collect::<Option<_>>();
        let pool_limits = pool_limits.ok_or(NoLease::Strict)?;
        Ok(Entry { holder: Holder::default(), encoded, pool_limits, answered: Arc::default() })
    }

    /// Returns the decision that [`take_leased`](Self::take_leased) would make from held leases, without taking. Fails
    /// if the store must decide, for example because the held tokens are not enough.
    pub(super) fn peek_leased(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<LeaseDecision, NoLease> {
        let (leases, at) = (&self.leases, now());
        let entries = leases.lock(leases.shard_of(charge));
        let Some(entry) = entries.get(charge.key) else { return Err(NoLease::Strict) };
        let is_exact = matches!(charge.ask, Ask::Exactly(cost) if cost > Cost::ZERO);
        if !is_exact || charge.ask.cost().get() > entry.holder.held() || entry.encoded.limits() != charge.limits {
            return Err(NoLease::Strict);
        }
        let decision = leases.push_answer(Some(entry), charge, LocalResult::Held(Reservation::default()), at, answers);
        Ok(LeaseDecision { reservation: None, ..decision })
    }

    /// Reports and returns the leases of a key, so that the store has the complete state of the key.
    pub(super) async fn settle_lease(self: &Arc<Self>, charge: &Charge<'_>) {
        self.return_lease(self.leases.shard_of(charge), charge.key).await;
    }

    /// Reports and returns the leases of a key. If that fails, the leases expire and count as spent.
    pub(super) async fn return_lease(self: &Arc<Self>, shard: u8, key: &[u8]) {
        let deadline = Instant::now() + self.config.deadline;
        loop {
            let step = {
                let mut entries = self.leases.lock(shard);
                let Some(entry) = entries.get_mut(key) else { return };
                // The next request must ask the store, which then has the returned tokens.
                entry.holder.forget_refusal();
                if entry.holder.has_exchange_in_flight() {
                    NextStep::Wait(entry.answered.clone().notified_owned())
                } else if entry.holder.has_leases() {
                    NextStep::Asked(self.start_exchange(shard, &Arc::from(key), entry, Need::default(), true))
                } else {
                    return;
                }
            };
            let is_settled = match step {
                NextStep::Wait(answered) => timeout_at(deadline, answered).await.is_err(),
                NextStep::Asked(answer) => {
                    // Without an answer, the leases expire.
                    let _ = timeout_at(deadline, answer).await;
                    true
                }
                NextStep::Decided(_) => true,
            };
            if is_settled {
                return;
            }
        }
    }
}
