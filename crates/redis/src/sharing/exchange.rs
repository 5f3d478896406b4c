//! Exchanges of leases with the store, and the background task that reports and returns leases.
//!
//! Each exchange runs in its own task, so that its outcome is recorded even if the request that needed it gives up.

#[cfg(test)]
mod traces;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tollgate_core::{Algorithm, Cost, Limits, Now, Retry};
use tollgate_engine::store::{StoreError, rule_of_key};
use tollgate_share::lease::{Exchange, Grant, Need};

use super::Sharing;
use super::leased::{Entry, NoLease, now};
use crate::answer::{ByteCursor, TooShort, instant_nanos};
use crate::batcher::ReplyPart;
use crate::own_state::OwnState;
use crate::params::EncodedLimits;
use crate::request::{GroupKind, QueuedExchange, QueuedGroup, Route, spread_number};

/// Interval between sweeps, which find leases to report or return.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of exchanges started by one sweep. The limit leaves most of the queue to requests. The next sweep
/// continues with the remaining leases.
const MAX_EXCHANGES_PER_SWEEP: usize = 1_024;
/// Maximum number of concurrent exchanges while a stopping node returns its leases.
const MAX_CONCURRENT_RETURNS: usize = 256;

/// A grant, with the time at which the store made it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedGrant {
    pub(super) grant: Grant,
    /// Store time, in nanoseconds.
    pub(super) at: u64,
}

pub(super) type ExchangeResult = Result<TimedGrant, NoLease>;

/// The store's answer to an exchange.
#[derive(Debug)]
enum ExchangeAnswer {
    Granted(Grant),
    /// The leases are settled, but nothing is granted because the state has other parameters. Contains the epoch.
    Settled(u64),
    /// The key has another type, or its value is not a valid state.
    NotOurs,
}

impl Sharing {
    /// Starts an exchange. No other exchange may be in flight for this key. With `drains`, all leases are returned.
    pub(super) fn start_exchange(
        self: &Arc<Self>,
        shard: u8,
        key: &Arc<[u8]>,
        entry: &mut Entry,
        need: Need,
        drains: bool,
    ) -> oneshot::Receiver<ExchangeResult> {
        let at = now();
        let exchange = if drains { entry.holder.drain(at, need) } else { entry.holder.exchange(at, need) };
        let (done, answer) = oneshot::channel();
        let (sharing, key, encoded) = (self.clone(), key.clone(), entry.encoded.clone());
        self.runtime.spawn(async move {
            let result = sharing.send_exchange(shard, &key, &encoded, &exchange).await;
            let result = sharing.record_outcome(shard, &key, result);
            // The reply channel is closed only if the caller gave up.
            let _ = done.send(result);
        });
        answer
    }

    async fn send_exchange(
        &self,
        shard: u8,
        key: &[u8],
        encoded: &Arc<EncodedLimits>,
        exchange: &Exchange,
    ) -> Result<(ExchangeAnswer, u64), StoreError> {
        let gone = || StoreError::Unavailable { why: "the store is closed".to_owned() };
        let servers = self.servers.upgrade().ok_or_else(gone)?;
        let lane = servers.lane_of_shard(shard);
        let name = servers.key_name(&self.config.namespace, key, lane);
        let queued = QueuedExchange::new(key, name, encoded.clone(), exchange);
        let route = Route { lane, ..Route::default() };
        let group = QueuedGroup { charges: Vec::new(), route, kind: GroupKind::Exchange(queued), unsent: None };
        let replies = servers.send(&self.config, vec![group], Instant::now() + self.config.deadline).await.pop();
        let unknown = |why: &str| StoreError::Unknown { why: why.to_owned() };
        let part = replies.unwrap_or_else(|| Err(unknown("no reply for an exchange")))?;
        let exchanged = decode_answer(&part, key, encoded.limits(), exchange.need);
        let exchanged = exchanged.map_err(|_| unknown("the reply of the script is too short"))?;
        Ok((exchanged, instant_nanos(part.now)))
    }

    /// Records the outcome of an exchange.
    fn record_outcome(
        &self,
        shard: u8,
        key: &[u8],
        result: Result<(ExchangeAnswer, u64), StoreError>,
    ) -> ExchangeResult {
        let mut entries = self.leases.lock(shard);
        let Some(entry) = entries.get_mut(key) else { return Err(NoLease::Strict) };
        let holder = &mut entry.holder;
        let result = match result {
            Ok((ExchangeAnswer::Granted(grant), at)) => {
                self.leases.record_store_time(at);
                holder.on_grant(now(), &grant);
                Ok(TimedGrant { grant, at })
            }
            Ok((ExchangeAnswer::Settled(epoch), _)) => {
                holder.on_no_grant(now(), epoch);
                Err(NoLease::Strict)
            }
            Ok((ExchangeAnswer::NotOurs, _)) => {
                holder.on_unavailable();
                let why = "the key of a limit holds another type or a value of another program";
                let why = format!("{why} (rule: {})", rule_of_key(key).1);
                Err(NoLease::Failed(StoreError::Rejected { why }))
            }
            Err(error) => {
                match error {
                    StoreError::Unavailable { .. } | StoreError::Rejected { .. } => holder.on_unavailable(),
                    StoreError::Unknown { .. } | StoreError::Stale { .. } => holder.on_unknown(),
                }
                Err(NoLease::Failed(error))
            }
        };
        entry.answered.notify_waiters();
        result
    }

    /// Returns all leases to the store. Used when this node stops.
    pub(super) async fn return_leases(self: &Arc<Self>) {
        let mut open = Vec::new();
        for shard in self.leases.shards() {
            open.extend(self.leases.lock(shard).keys().map(|key| (shard, key.clone())));
        }
        for some in open.chunks(MAX_CONCURRENT_RETURNS) {
            let start = |(shard, key): &(u8, Arc<[u8]>)| {
                let (sharing, shard, key) = (self.clone(), *shard, key.clone());
                self.runtime.spawn(async move { sharing.return_lease(shard, &key).await })
            };
            let returning: Vec<_> = some.iter().map(start).collect();
            for task in returning {
                // A task fails only if the runtime ends; its leases then expire.
                let _ = task.await;
            }
        }
    }

    pub(super) fn start_sweeping(self: &Arc<Self>) {
        if !self.leases.is_swept.swap(true, Ordering::Relaxed) {
            self.runtime.spawn(sweep_leases(Arc::downgrade(self)));
        }
    }
}

/// Reports and returns leases periodically, until the store is dropped.
async fn sweep_leases(sharing: Weak<Sharing>) {
    loop {
        sleep(SWEEP_EVERY).await;
        let Some(sharing) = sharing.upgrade().filter(|sharing| sharing.servers.strong_count() > 0) else { return };
        let mut started = 0;
        for shard in sharing.leases.shards() {
            let mut entries = sharing.leases.lock(shard);
            let at = now();
            entries.retain(|_, entry| !entry.holder.is_idle(at));
            for (key, entry) in entries.iter_mut() {
                if started < MAX_EXCHANGES_PER_SWEEP && entry.holder.is_exchange_due(at) {
                    started += 1;
                    drop(sharing.start_exchange(shard, key, entry, Need::default(), false));
                }
            }
        }
    }
}

/// Decodes the reply to an exchange; `exchange.lua` describes the format.
fn decode_answer(part: &ReplyPart, key: &[u8], limits: &Limits, need: Need) -> Result<ExchangeAnswer, TooShort> {
    let time = instant_nanos(part.now);
    let now = Now::at(time).with_spread(spread_number(key).wrapping_mul(1_000));
    let mut bytes = ByteCursor::new(part.bytes());
    let status = bytes.take_number(1)?;
    if status > 2 {
        return Ok(ExchangeAnswer::NotOurs);
    }
    let epoch = bytes.take_number(7)?;
    if status == 2 {
        return Ok(ExchangeAnswer::Settled(epoch));
    }
    let (leased, slice_expiry) = (bytes.take_number(7)?, instant_nanos(bytes.take_number(7)?));
    let (hungry, count) = (bytes.take_number(1)? == 1, bytes.take_number(1)?);
    let mut slices = Vec::with_capacity(count as usize);
    for _ in 0..count {
        slices.push((instant_nanos(bytes.take_number(7)?), bytes.take_number(7)?));
    }
    let Ok(own) = OwnState::decode(bytes.remaining(), limits, &now) else { return Ok(ExchangeAnswer::NotOurs) };
    let amount = need.amount();
    let reports = || limits.reports(&*own.words, &now, Cost::new(amount));
    let refill = reports().fold(0, |wait, report| match report.retry {
        Retry::After(after) => after.as_nanos().max(wait),
        Retry::Never | Retry::OnRelease => u64::MAX,
    });
    let wait_until_slices_expire = |capacity: u64| wait_until_slices_expire(capacity, amount, &slices, time);
    let wait = limits.as_slice().iter().map(|limit| wait_until_slices_expire(limit.capacity())).fold(refill, u64::max);
    Ok(ExchangeAnswer::Granted(Grant {
        taken: if status == 0 { amount } else { 0 },
        refused: (status == 1).then_some(wait),
        leased,
        slice_expiry,
        lasts: slice_expiry.saturating_sub(time),
        epoch,
        left: reports().map(|report| report.remaining).min().unwrap_or(0),
        reset: reports().map(|report| report.reset.as_nanos()).max().unwrap_or(0),
        hungry,
    }))
}

/// Returns the time until enough slices have expired for `need` to be granted in addition to the remaining leases.
/// `slices` contains expiries and amounts, earliest first. Returns `u64::MAX` if the need exceeds the capacity.
fn wait_until_slices_expire(capacity: u64, need: u64, slices: &[(u64, u64)], now: u64) -> u64 {
    let Some(most) = capacity.checked_sub(need) else { return u64::MAX };
    let mut outstanding: u64 = slices.iter().map(|(_, sum)| sum).sum();
    let mut wait = 0;
    for (expiry, sum) in slices {
        if outstanding <= most {
            break;
        }
        outstanding -= sum;
        wait = expiry.saturating_sub(now);
    }
    wait
}
