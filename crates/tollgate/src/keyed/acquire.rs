//! Waiting for a key.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, Concurrency, Cost, Nanos, Now, Outcome, Retry, Stamp, Verdict};

use super::{Keyed, room_of, with_fresh};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::limiter::take_undelayed;
use crate::table::State;
use crate::wait::{Acquire, Gate, Rooms};

impl<A, C> Keyed<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    /// Takes `cost` for the key as soon as there is room for it, behind all who wait for the same key; see [`Acquire`].
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
}

impl<C: Clock> Keyed<Concurrency, C> {
    pub(crate) fn renew(&self, print: Fingerprint, stamp: Stamp) -> bool {
        self.find(print, self.now(), |limit, state, now| limit.renew(state, now, stamp)).unwrap_or(false)
    }
}

impl<A, C> Gate for Keyed<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    type Key = Fingerprint;
    type Stamp = A::Stamp;
    type Clock = C;

    #[inline]
    fn rooms(&self) -> &Rooms<Fingerprint, A::Stamp> {
        &self.rooms
    }

    #[inline]
    fn room_of(print: Fingerprint) -> usize {
        room_of(print)
    }

    fn clock(&self) -> &C {
        &self.clock
    }

    fn now(&self) -> Now<'static> {
        self.now()
    }

    fn uses_wall_clock(&self) -> bool {
        self.limit.uses_wall_clock()
    }

    #[inline]
    fn take_now(&self, print: Fingerprint, cost: Cost) -> Verdict<A::Stamp> {
        let now = self.now();
        let take = |word| self.limit.take_from_word(word, &now, cost);
        if self.table.take_at_home(print, self.earlier.len() as u64, take) {
            return Verdict::granted(cost);
        }
        self.take(print, cost, &now, false)
    }

    fn take(&self, print: Fingerprint, cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<A::Stamp> {
        let take = |limit: &A, state: &mut State<'_>, now: &Now<'_>| take_undelayed(limit, state, now, cost, repair);
        if let Some(verdict) = self.find(print, *now, take) {
            return verdict;
        }
        let ask = Ask::Exactly(cost);
        let of_key = now.with_spread(print.low);
        let as_new = with_fresh(&self.limit, &of_key, |state| self.limit.weigh(&state, &of_key, ask));
        if as_new.outcome() != Outcome::Allow {
            return as_new;
        }
        let verdict = self.decide_at(print, *now, ask, |_, verdict| verdict);
        // Somebody else made the entry meanwhile, and put us behind them: what was taken for a later time is not wanted.
        if let Outcome::Delay(_) = verdict.outcome() {
            self.find(print, *now, |limit, state, now| limit.refund(state, now, cost, Some(verdict.stamp())));
        }
        verdict
    }

    fn wait_behind(&self, print: Fingerprint, ahead: Cost, cost: Cost, now: &Now<'_>) -> Retry {
        self.read_at(print, *now, |entry| entry.limit.wait_behind(entry.state, entry.now, ahead, cost))
    }

    fn look_again(&self, print: Fingerprint, now: &Now<'_>) -> Option<Nanos> {
        self.read_at(print, *now, |entry| entry.limit.look_again(entry.state, entry.now))
    }

    fn give_back(&self, print: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        self.refund_part(print, verdict, cost)
    }

    fn charge(&self, print: Fingerprint, cost: Cost) -> Verdict<A::Stamp> {
        self.decide_at(print, self.now(), Ask::Regardless(cost), |_, verdict| verdict)
    }
}
