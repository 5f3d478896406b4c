//! Permits and reservations: taken tokens that can still be given back or settled at the real cost. A permit gives its
//! tokens back when it is dropped. The tokens of a reservation stay charged when it expires, unless it is set to refund
//! them.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tollgate_core::{Concurrency, Cost, Mono, Time, Verdict};

use crate::clock::{Alarm, Clock};
use crate::keyed::Keyed;
use crate::limiter::Limiter;
use crate::wait::{Acquire, AcquireError, Waitable};

/// Tokens that are given back on drop, such as a slot for work in flight, or a login attempt that counts only if it
/// fails.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{Concurrency, Limiter};
/// use tollgate::core::Nanos;
///
/// let slots = Arc::new(Limiter::new(Concurrency::new(2, Nanos::from_secs(30))?));
/// let slot = slots.acquire(1).wait_held()?;
/// assert_eq!(slots.report(1).remaining, 1);
/// slot.renew(); // The work takes longer than the lease.
/// drop(slot);
/// assert_eq!(slots.report(1).remaining, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it gives back the taken tokens"]
pub struct Permit<G: Waitable> {
    limiter: Arc<G>,
    key: G::Key,
    verdict: Verdict<G::Stamp>,
    /// The amount given back on drop.
    refund_on_drop: Cost,
}

impl<G: Waitable> Acquire<'_, G> {
    /// Waits until the cost is taken, and returns a permit that gives the cost back on drop.
    ///
    /// # Errors
    /// Returns an [`AcquireError`] if the cost was not taken.
    pub async fn held(mut self) -> Result<Permit<G>, AcquireError> {
        let grant = (&mut self).await?;
        let (limiter, key) = self.limiter();
        Ok(Permit::new(limiter, key, *grant))
    }

    /// Blocks the thread until the cost is taken, and returns a permit that gives the cost back on drop.
    ///
    /// # Errors
    /// Returns an [`AcquireError`] if the cost was not taken.
    pub fn wait_held(mut self) -> Result<Permit<G>, AcquireError> {
        let grant = self.wait_for_turn()?;
        let (limiter, key) = self.limiter();
        Ok(Permit::new(limiter, key, *grant))
    }
}

impl<G: Waitable> Permit<G> {
    fn new(limiter: &Arc<G>, key: G::Key, verdict: Verdict<G::Stamp>) -> Self {
        Self { limiter: Arc::clone(limiter), key, refund_on_drop: verdict.taken(), verdict }
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> &Verdict<G::Stamp> {
        &self.verdict
    }

    /// Keeps the charge permanently.
    pub fn forget(mut self) {
        self.refund_on_drop = Cost::ZERO;
    }

    /// Settles at the real cost, and returns the final charge. If the real cost is lower, gives back the excess. If the
    /// real cost is higher, charges the difference, as debt if necessary. If the debt would exceed its maximum, the
    /// difference is not charged.
    pub fn settle(mut self, cost: u64) -> u64 {
        let taken = self.verdict.taken().get();
        self.refund_on_drop = Cost::new(taken.saturating_sub(cost));
        match cost.checked_sub(taken) {
            Some(more @ 1..) => taken + self.limiter.charge(self.key, Cost::new(more)).taken().get(),
            _ => cost,
        }
    }

    /// Converts the permit to a [`Reservation`], whose charge becomes permanent after `length`.
    pub fn expires_after(self, length: Duration) -> Reservation<G> {
        let expires = self.limiter.clock().mono().saturating_add(length.into());
        let permit = Mutex::new(Some(self));
        let open = Arc::new_cyclic(|alarm: &Weak<OpenReservation<G>>| OpenReservation {
            permit,
            expires,
            alarm: alarm.clone(),
        });
        Reservation { open, refunds_on_expiry: false }
    }
}

impl<C: Clock + Send + Sync + 'static> Permit<Limiter<Concurrency, C>> {
    /// Renews the lease for a full duration. Returns `false` if the lease has expired and the slot is no longer held.
    pub fn renew(&self) -> bool {
        self.limiter.renew(self.verdict.stamp())
    }
}

impl<C: Clock + Send + Sync + 'static> Permit<Keyed<Concurrency, C>> {
    /// Renews the lease for a full duration. Returns `false` if the lease has expired and the slot is no longer held.
    pub fn renew(&self) -> bool {
        self.limiter.renew(self.key, self.verdict.stamp())
    }
}

impl<G: Waitable> Drop for Permit<G> {
    fn drop(&mut self) {
        if self.refund_on_drop > Cost::ZERO {
            self.limiter.give_back(self.key, &self.verdict, self.refund_on_drop);
        }
    }
}

impl<G: Waitable> fmt::Debug for Permit<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("taken", &self.verdict.taken()).finish_non_exhaustive()
    }
}

/// Tokens taken in advance for work whose cost is known only afterwards, or that may not happen.
///
/// Commit the reservation with the real cost, or cancel it. An expired or dropped reservation counts as committed at
/// its full cost, because its owner may have done the work; [`refund_unless_committed`](Self::refund_unless_committed)
/// changes this.
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
#[must_use = "dropping it counts as committing it"]
pub struct Reservation<G: Waitable> {
    open: Arc<OpenReservation<G>>,
    refunds_on_expiry: bool,
}

struct OpenReservation<G: Waitable> {
    /// A mutex, because the holder and the clock's alarm may run concurrently, and only one of them may take the
    /// permit.
    permit: Mutex<Option<Permit<G>>>,
    expires: Time<Mono>,
    /// Reference to itself, to set the clock's alarm.
    alarm: Weak<Self>,
}

impl<G: Waitable> OpenReservation<G> {
    fn take(&self) -> Option<Permit<G>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sets the alarm to the expiry, or gives the tokens back if the expiry has passed.
    fn set_expiry_alarm(&self) -> io::Result<()> {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        let limiter = permit.as_ref().map(|permit| Arc::clone(&permit.limiter));
        drop(permit);
        let (Some(limiter), Some(alarm)) = (limiter, self.alarm.upgrade()) else { return Ok(()) };
        let expired = || limiter.clock().mono() >= self.expires;
        if !expired() {
            limiter.clock().wake_at(self.expires, &(alarm as Arc<dyn Alarm>))?;
        }
        // Reads the clock again, because the expiry may have passed before the alarm was set.
        if expired() {
            drop(self.take());
        }
        Ok(())
    }
}

impl<G: Waitable> Alarm for OpenReservation<G> {
    fn fire(&self) {
        // An alarm may fire early, so it is set again. Errors are ignored, because the timer thread already exists.
        let _: io::Result<()> = self.set_expiry_alarm();
    }
}

impl<G: Waitable> Reservation<G> {
    /// Makes the reservation refund its tokens when it expires or is dropped, instead of counting as committed.
    ///
    /// # Errors
    /// Returns an error if the timer thread cannot be started.
    pub fn refund_unless_committed(mut self) -> io::Result<Self> {
        self.open.set_expiry_alarm()?;
        self.refunds_on_expiry = true;
        Ok(self)
    }

    /// Settles at the real cost, and returns the final charge. Returns `None` and changes nothing if the reservation
    /// has expired.
    pub fn commit(self, cost: u64) -> Option<u64> {
        self.take_unexpired().map(|permit| permit.settle(cost))
    }

    /// Gives the tokens back. Returns `false` and changes nothing if the reservation has expired.
    pub fn cancel(self) -> bool {
        self.take_unexpired().is_some()
    }

    fn take_unexpired(&self) -> Option<Permit<G>> {
        let permit = self.open.take()?;
        if permit.limiter.clock().mono() < self.open.expires {
            return Some(permit);
        }
        self.expire_permit(permit);
        None
    }

    fn expire_permit(&self, permit: Permit<G>) {
        if !self.refunds_on_expiry {
            permit.forget();
        }
    }
}

impl<G: Waitable> Drop for Reservation<G> {
    fn drop(&mut self) {
        if let Some(permit) = self.open.take() {
            self.expire_permit(permit);
        }
    }
}

impl<G: Waitable> fmt::Debug for Reservation<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("expires", &self.open.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::testing::{SECOND, bucket, clock};
    use tollgate_core::Nanos;

    type TokenLimiter = Arc<Limiter<crate::TokenBucket, Arc<ManualClock>>>;

    fn bucket_of_ten() -> (Arc<ManualClock>, TokenLimiter) {
        let clock = clock();
        (Arc::clone(&clock), Arc::new(Limiter::with_clock(bucket(10), clock)))
    }

    fn tokens_left(tokens: &TokenLimiter) -> u64 {
        tokens.report(1).remaining
    }

    #[test]
    fn permit_gives_back_on_drop_unless_kept_or_settled() {
        let (_clock, tokens) = bucket_of_ten();
        drop(tokens.acquire(4).wait_held().unwrap());
        assert_eq!(tokens_left(&tokens), 10);
        tokens.acquire(1).wait_held().unwrap().forget();
        assert_eq!(tokens_left(&tokens), 9);
        assert_eq!((tokens.acquire(4).wait_held().unwrap().settle(1), tokens_left(&tokens)), (1, 8));
        assert_eq!((tokens.acquire(4).wait_held().unwrap().settle(6), tokens_left(&tokens)), (6, 2));
        // One token is left and the maximum debt is 10, so the difference of 12 is not charged.
        assert_eq!((tokens.acquire(1).wait_held().unwrap().settle(13), tokens_left(&tokens)), (1, 1));
    }

    #[test]
    fn lease_can_be_renewed_until_it_expires() {
        let clock = clock();
        let limit = Concurrency::new(1, SECOND).unwrap();
        let slots = Arc::new(Limiter::with_clock(limit, Arc::clone(&clock)));
        let keyed = Arc::new(Keyed::with_clock(limit, 10, Arc::clone(&clock)).unwrap());
        let (slot, held_for_key) = (slots.acquire(1).wait_held().unwrap(), keyed.acquire("a", 1).wait_held().unwrap());
        clock.advance(Nanos::from_millis(900));
        assert!(slot.renew() && held_for_key.renew());
        clock.advance(Nanos::from_millis(900));
        assert!(!slots.check(1).is_allowed() && !keyed.check("a", 1).is_allowed());
        clock.advance(Nanos::from_millis(100));
        assert!(!slot.renew() && !held_for_key.renew());
        let next = slots.check(1);
        drop(slot);
        assert!(next.is_allowed() && slots.report(1).remaining == 0, "an expired lease gives nothing back");
    }

    #[test]
    fn reservation_is_committed_cancelled_or_expires_as_committed() {
        let (clock, tokens) = bucket_of_ten();
        let reserve = |cost| tokens.acquire(cost).wait_held().unwrap().expires_after(Duration::from_millis(10));
        assert!(reserve(5).cancel());
        assert_eq!((reserve(5).commit(2), tokens_left(&tokens)), (Some(2), 8));
        drop(reserve(1));
        assert_eq!(tokens_left(&tokens), 7);
        let (late, later) = (reserve(1), reserve(1));
        clock.advance(Nanos::from_millis(10));
        assert_eq!((late.commit(0), later.cancel(), tokens_left(&tokens)), (None, false, 5));
    }

    #[test]
    fn expired_reservation_that_gives_back_serves_the_waiters() {
        let (clock, tokens) = bucket_of_ten();
        let hold = |cost| {
            let held = tokens.acquire(cost).wait_held().unwrap().expires_after(Duration::from_millis(10));
            held.refund_unless_committed().unwrap()
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
        assert_eq!((reserved.commit(3), tokens_left(&tokens)), (None, 3));
        drop(hold(3));
        assert_eq!(tokens_left(&tokens), 3);
    }

    #[test]
    fn alarm_that_fires_early_is_set_again() {
        let (clock, tokens) = bucket_of_ten();
        let held = tokens.acquire(10).wait_held().unwrap().expires_after(Duration::from_millis(10));
        let reserved = held.refund_unless_committed().unwrap();
        // A step of a manual wall clock fires all alarms.
        clock.step_wall(1);
        assert_eq!(tokens_left(&tokens), 0);
        clock.advance(Nanos::from_millis(10));
        assert_eq!((tokens_left(&tokens), reserved.cancel()), (10, false));
    }
}
