//! Waiting for the capacity of a key.

use std::sync::Arc;

#[cfg(feature = "stream")]
use futures_core::Stream;
use tollgate_core::{Algorithm, Ask, Concurrency, Cost, Nanos, Now, Outcome, Retry, Stamp, Verdict};

use super::{Keyed, shard_of};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
#[cfg(feature = "stream")]
use crate::stream::LimitedStream;
use crate::table::{State, Table};
use crate::wait::{Acquire, Shards, Waitable};

impl<A, C> Keyed<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    /// Takes `cost` for the key as soon as its limit has capacity, in FIFO order per key; see [`Acquire`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{Keyed, TokenBucket};
    ///
    /// let per_user = Arc::new(Keyed::new(TokenBucket::new("1000/s".parse()?, 1)?, 1_000)?);
    /// per_user.acquire("alice", 1).wait()?;
    /// per_user.acquire("alice", 1).wait()?; // A millisecond later.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn acquire<K: Key + ?Sized>(self: &Arc<Self>, key: &K, cost: u64) -> Acquire<'_, Self> {
        Acquire::new(self, key.fingerprint(&self.secret), cost)
    }

    /// Like [`acquire`](Self::acquire), but the future owns the limiter, so it can be moved to a spawned task.
    pub fn acquire_owned<K: Key + ?Sized>(self: Arc<Self>, key: &K, cost: u64) -> Acquire<'static, Self> {
        let fingerprint = key.fingerprint(&self.secret);
        Acquire::owned(self, fingerprint, cost)
    }

    /// Takes a cost of 1 from the limit of `key` before each item of `stream` is yielded. If the stream is not `Unpin`,
    /// pin it first.
    #[cfg(feature = "stream")]
    pub fn limit_stream<K: Key + ?Sized, S: Stream + Unpin>(
        self: &Arc<Self>,
        key: &K,
        stream: S,
    ) -> LimitedStream<S, Self> {
        LimitedStream::new(stream, self, key.fingerprint(&self.secret))
    }
}

impl<C: Clock> Keyed<Concurrency, C> {
    pub(crate) fn renew(&self, fingerprint: Fingerprint, stamp: Stamp) -> bool {
        let now = self.now();
        let renewed = self
            .find(fingerprint, now, |account| account.own_limit().renew(&mut account.state, &account.now, stamp))
            .unwrap_or(false);
        renewed
            || self.overflow_charges().has(fingerprint)
                && self.visit_overflow_entry(now, |account| {
                    account.own_limit().renew(&mut account.state, &account.now, stamp)
                })
    }
}

impl<A, C> Waitable for Keyed<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    type Key = Fingerprint;
    type Stamp = A::Stamp;
    type Clock = C;

    #[inline]
    fn shards(&self) -> &Shards<Fingerprint, A::Stamp> {
        &self.shards
    }

    #[inline]
    fn shard_of(fingerprint: Fingerprint) -> usize {
        shard_of(fingerprint)
    }

    fn clock(&self) -> &C {
        &self.clock
    }

    fn now(&self) -> Now<'static> {
        self.now()
    }

    fn uses_wall_clock(&self) -> bool {
        let changes = self.changes();
        self.reader(&changes, Now::at(0)).limit().uses_wall_clock()
    }

    #[inline]
    fn try_take_fast(&self, fingerprint: Fingerprint, cost: Cost) -> bool {
        let now = self.now();
        let take = |state: &mut State<'_>| state.take(&self.limit, &now, cost);
        let Table::SingleWord(buckets) = &self.table else { return false };
        buckets.try_visit_home(fingerprint, self.flags(), take).is_some()
    }

    fn take(&self, fingerprint: Fingerprint, cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<A::Stamp> {
        if let Some(verdict) = self.find(fingerprint, *now, |account| account.take_undelayed(cost, repair)) {
            return verdict;
        }
        let ask = Ask::Exactly(cost);
        let (as_new, alone) = self.read_new(fingerprint, *now, |account| {
            // A request whose delay is caused only by its own cost passes immediately.
            (account.weigh(ask), account.wait_in_queue(Cost::ZERO, cost))
        });
        if !as_new.is_admitted() {
            return as_new;
        }
        if alone > Retry::NOW {
            return Verdict::new_refused(alone);
        }
        let verdict = self.decide_at(fingerprint, *now, ask, |_, verdict| verdict);
        match verdict.outcome() {
            Outcome::Delay(_) if verdict.outcome() == as_new.outcome() => {
                Verdict::new_allowed_with_stamp(verdict.taken(), verdict.stamp())
            }
            // Another thread has charged the entry since the weighing, or the overflow entry decided. The request's own
            // cost does not cause the whole delay, so the charge is undone.
            Outcome::Delay(_) => {
                self.refund_without_notifying(fingerprint, &verdict, cost);
                verdict
            }
            Outcome::Allow | Outcome::Deny(_) => verdict,
        }
    }

    fn wait_in_queue(&self, fingerprint: Fingerprint, ahead: Cost, cost: Cost, now: &Now<'_>) -> Retry {
        self.read_at(fingerprint, *now, |entry| entry.wait_in_queue(ahead, cost))
    }

    fn recheck_after(&self, fingerprint: Fingerprint, now: &Now<'_>) -> Option<Nanos> {
        self.read_at(fingerprint, *now, |entry| entry.recheck_after())
    }

    fn give_back(&self, fingerprint: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        self.refund_part(fingerprint, verdict, cost)
    }

    fn charge(&self, fingerprint: Fingerprint, cost: Cost) -> Verdict<A::Stamp> {
        self.decide_at(fingerprint, self.now(), Ask::Regardless(cost), |_, verdict| verdict)
    }
}
