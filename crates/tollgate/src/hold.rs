//! Holding what was taken: given back on drop, settled by what it really cost, or lost to an expiry.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tollgate_core::{Concurrency, Cost, Mono, Stamp, Time, Verdict};

use crate::clock::{Bell, Clock};
use crate::keyed::Keyed;
use crate::limiter::Limiter;
use crate::wait::{Acquire, AcquireError, Gate};

/// What a limiter granted, given back when dropped: a slot while work is in flight, an attempt that counts only if it fails.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{Concurrency, Limiter, Nanos};
///
/// let slots = Arc::new(Limiter::new(Concurrency::new(2, Nanos::from_secs(30))?));
/// let slot = slots.acquire(1).wait_held()?;
/// assert_eq!(slots.report(1).remaining, 1);
/// slot.renew(); // The work takes longer than the lease.
/// drop(slot);
/// assert_eq!(slots.report(1).remaining, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, it gives back what was taken"]
pub struct Permit<G: Gate> {
    gate: Arc<G>,
    key: G::Key,
    verdict: Verdict<G::Stamp>,
    /// What is given back on drop.
    returns: Cost,
}

impl<G: Gate> Acquire<'_, G> {
    /// Awaits the turn, and gives back on drop what was taken.
    ///
    /// # Errors
    /// See [`AcquireError`]; nothing was taken then.
    pub async fn held(self) -> Result<Permit<G>, AcquireError> {
        let (gate, key) = self.gate();
        self.await.map(|verdict| Permit::new(gate, key, verdict))
    }

    /// Blocks the thread until the turn comes, and gives back on drop what was taken.
    ///
    /// # Errors
    /// See [`AcquireError`]; nothing was taken then.
    pub fn wait_held(self) -> Result<Permit<G>, AcquireError> {
        let (gate, key) = self.gate();
        self.wait().map(|verdict| Permit::new(gate, key, verdict))
    }
}

impl<G: Gate> Permit<G> {
    fn new(gate: &Arc<G>, key: G::Key, verdict: Verdict<G::Stamp>) -> Self {
        Self { gate: Arc::clone(gate), key, returns: verdict.taken(), verdict }
    }

    /// What was granted.
    pub fn verdict(&self) -> &Verdict<G::Stamp> {
        &self.verdict
    }

    /// Keeps what was taken for good: nothing is given back.
    pub fn keep(mut self) {
        self.returns = Cost::ZERO;
    }

    /// Settles for what it really cost, and returns what was charged in the end. What was taken beyond it is given back; what
    /// it lacks is charged, into debt as far as the limit allows.
    pub fn settle(mut self, cost: u64) -> u64 {
        let taken = self.verdict.taken().get();
        self.returns = Cost::new(taken.saturating_sub(cost));
        match cost.checked_sub(taken) {
            Some(more @ 1..) => taken + self.gate.charge(self.key, Cost::new(more)).taken().get(),
            _ => cost,
        }
    }

    /// With a time after which it counts as kept, whatever becomes of the holder; see [`Reservation`].
    pub fn expires_after(self, length: Duration) -> Reservation<G> {
        let expires = self.gate.clock().mono().saturating_add(length.into());
        let permit = Mutex::new(Some(self));
        let open = Arc::new_cyclic(|bell: &Weak<Open<G>>| Open { permit, expires, bell: bell.clone() });
        Reservation { open, gives_back: false }
    }
}

impl<C: Clock + Send + Sync + 'static> Permit<Limiter<Concurrency, C>> {
    /// Lets the lease last from now. `false` if it has ended: its holder no longer counts.
    pub fn renew(&self) -> bool {
        self.gate.renew(self.verdict.stamp())
    }
}

impl<C: Clock + Send + Sync + 'static> Permit<Keyed<Concurrency, C>> {
    /// Lets the lease last from now. `false` if it has ended: its holder no longer counts.
    pub fn renew(&self) -> bool {
        self.gate.renew(self.key, self.verdict.stamp())
    }
}

impl<C: Clock> Limiter<Concurrency, C> {
    /// Lets the lease that the stamp names last from now; `false` if it has ended or was given back.
    pub fn renew(&self, stamp: Stamp) -> bool {
        self.write(self.now(), |account| account.owner().renew(&mut account.state, &account.now, stamp))
    }
}

impl<G: Gate> Drop for Permit<G> {
    fn drop(&mut self) {
        if self.returns > Cost::ZERO {
            self.gate.give_back(self.key, &self.verdict, self.returns);
        }
    }
}

impl<G: Gate> fmt::Debug for Permit<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("taken", &self.verdict.taken()).finish_non_exhaustive()
    }
}

/// A cost taken in advance for something whose cost is known afterwards, or that may not happen.
///
/// It is committed with the real cost or cancelled. Once expired it counts as committed, and so does one that is dropped:
/// a holder that got lost may have spent it. [`or_gives_back`](Self::or_gives_back) says otherwise.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{Limiter, TokenBucket};
///
/// let tokens = Arc::new(Limiter::new(TokenBucket::new("1000/m".parse()?, 1_000)?));
/// let reserved = tokens.acquire(400).wait_held()?.expires_after(Duration::from_secs(60));
/// assert_eq!(tokens.report(1).remaining, 600);
/// assert_eq!(reserved.commit(150), Some(150)); // The answer was shorter than it might have been.
/// assert_eq!(tokens.report(1).remaining, 850);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped, it counts as committed"]
pub struct Reservation<G: Gate> {
    open: Arc<Open<G>>,
    gives_back: bool,
}

struct Open<G: Gate> {
    /// A mutex: the holder and the clock's bell may come at the same time, and one of them gets it.
    permit: Mutex<Option<Permit<G>>>,
    expires: Time<Mono>,
    /// Itself, to be rung.
    bell: Weak<Self>,
}

impl<G: Gate> Open<G> {
    fn take(&self) -> Option<Permit<G>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Has the bell rung at the expiry; gives back what was taken if that has come.
    fn arm(&self) -> io::Result<()> {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = permit.as_ref().map(|permit| Arc::clone(&permit.gate));
        drop(permit);
        let (Some(gate), Some(bell)) = (gate, self.bell.upgrade()) else { return Ok(()) };
        let expired = || gate.clock().mono() >= self.expires;
        if !expired() {
            gate.clock().ring_at(self.expires, &(bell as Arc<dyn Bell>))?;
        }
        // Asked again once the bell is set: the clock may have passed the expiry just before that.
        if expired() {
            drop(self.take());
        }
        Ok(())
    }
}

impl<G: Gate> Bell for Open<G> {
    fn ring(&self) {
        // It may ring early. It was set before, so the thread that rings is there.
        let _: io::Result<()> = self.arm();
    }
}

impl<G: Gate> Reservation<G> {
    /// What it took is given back when it expires or is dropped, instead of counting as committed.
    ///
    /// # Errors
    /// When no thread can be started to see to it.
    pub fn or_gives_back(mut self) -> io::Result<Self> {
        self.open.arm()?;
        self.gives_back = true;
        Ok(self)
    }

    /// Settles for what it really cost, and returns what was charged in the end; `None` if it had expired, and then nothing
    /// changes any more.
    pub fn commit(self, cost: u64) -> Option<u64> {
        self.unexpired().map(|permit| permit.settle(cost))
    }

    /// Gives back what it took; `false` if it had expired, and then nothing changes any more.
    pub fn cancel(self) -> bool {
        self.unexpired().is_some()
    }

    fn unexpired(&self) -> Option<Permit<G>> {
        let permit = self.open.take()?;
        if permit.gate.clock().mono() < self.open.expires {
            return Some(permit);
        }
        self.expire(permit);
        None
    }

    fn expire(&self, permit: Permit<G>) {
        if !self.gives_back {
            permit.keep();
        }
    }
}

impl<G: Gate> Drop for Reservation<G> {
    fn drop(&mut self) {
        if let Some(permit) = self.open.take() {
            self.expire(permit);
        }
    }
}

impl<G: Gate> fmt::Debug for Reservation<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("expires", &self.open.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;
    use crate::clock::ManualClock;
    use crate::testing::{SECOND, bucket, clock};

    type Tokens = Arc<Limiter<crate::TokenBucket, Arc<ManualClock>>>;

    fn ten() -> (Arc<ManualClock>, Tokens) {
        let clock = clock();
        (Arc::clone(&clock), Arc::new(Limiter::with_clock(bucket(10), clock)))
    }

    fn left(tokens: &Tokens) -> u64 {
        tokens.report(1).remaining
    }

    #[test]
    fn what_is_held_comes_back_on_drop_unless_it_is_kept_or_settled() {
        let (_clock, tokens) = ten();
        drop(tokens.acquire(4).wait_held().unwrap());
        assert_eq!(left(&tokens), 10);
        tokens.acquire(1).wait_held().unwrap().keep();
        assert_eq!(left(&tokens), 9);
        assert_eq!((tokens.acquire(4).wait_held().unwrap().settle(1), left(&tokens)), (1, 8));
        assert_eq!((tokens.acquire(4).wait_held().unwrap().settle(6), left(&tokens)), (6, 2));
        // Two left and ten of debt: what goes beyond is not charged.
        assert_eq!((tokens.acquire(1).wait_held().unwrap().settle(13), left(&tokens)), (1, 1));
    }

    #[test]
    fn slots_are_renewed_and_a_lost_one_is_told() {
        let clock = clock();
        let limit = Concurrency::new(1, SECOND).unwrap();
        let slots = Arc::new(Limiter::with_clock(limit, Arc::clone(&clock)));
        let keyed = Arc::new(Keyed::with_clock(limit, 10, Arc::clone(&clock)).unwrap());
        let (slot, of_key) = (slots.acquire(1).wait_held().unwrap(), keyed.acquire("a", 1).wait_held().unwrap());
        clock.advance(Nanos::from_millis(900));
        assert!(slot.renew() && of_key.renew());
        clock.advance(Nanos::from_millis(900));
        assert!(!slots.check(1).is_allowed() && !keyed.check("a", 1).is_allowed());
        clock.advance(Nanos::from_millis(100));
        assert!(!slot.renew() && !of_key.renew());
        let next = slots.check(1);
        drop(slot);
        assert!(next.is_allowed() && slots.report(1).remaining == 0, "the lost one gives back nothing of another's");
    }

    #[test]
    fn a_reservation_is_committed_cancelled_or_expires_as_committed() {
        let (clock, tokens) = ten();
        let reserve = |cost| tokens.acquire(cost).wait_held().unwrap().expires_after(Duration::from_millis(10));
        assert!(reserve(5).cancel());
        assert_eq!((reserve(5).commit(2), left(&tokens)), (Some(2), 8));
        drop(reserve(1));
        assert_eq!(left(&tokens), 7);
        let (late, later) = (reserve(1), reserve(1));
        clock.advance(Nanos::from_millis(10));
        assert_eq!((late.commit(0), later.cancel(), left(&tokens)), (None, false, 5));
    }

    #[test]
    fn told_otherwise_it_comes_back_when_it_expires_and_those_who_wait_get_it() {
        let (clock, tokens) = ten();
        let hold = |cost| {
            let held = tokens.acquire(cost).wait_held().unwrap().expires_after(Duration::from_millis(10));
            held.or_gives_back().unwrap()
        };
        let reserved = hold(10);
        let mut next = tokens.acquire(7);
        let poll = |next: &mut Acquire<'_, _>| {
            use std::task::{Context, Waker};
            std::pin::Pin::new(next).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!poll(&mut next));
        clock.advance(Nanos::from_millis(10));
        assert!(poll(&mut next));
        assert_eq!((reserved.commit(3), left(&tokens)), (None, 3));
        drop(hold(3));
        assert_eq!(left(&tokens), 3);
    }
    #[test]
    fn a_bell_that_rings_early_is_set_again() {
        let (clock, tokens) = ten();
        let held = tokens.acquire(10).wait_held().unwrap().expires_after(Duration::from_millis(10));
        let reserved = held.or_gives_back().unwrap();
        // A step makes every bell ring, whenever it is due.
        clock.step_wall(1);
        assert_eq!(left(&tokens), 0);
        clock.advance(Nanos::from_millis(10));
        assert_eq!((left(&tokens), reserved.cancel()), (10, false));
    }
}
