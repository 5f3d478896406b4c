//! Limits that change while they are in use.

use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Nanos, Now, Report, Retry, Spent, Verdict};

use crate::clock::Clock;
use crate::limiter::{Limiter, SharedState};

/// A limit that is changed through a shared reference, with [`Limiter::change`].
///
/// A [`Limiter`] with a plain limit is changed through a unique reference (`set_limit`), and decides without a lock if
/// its state is one word. With an adjustable limit every decision takes a lock, which costs about 20 ns. A change
/// applies to all users of the limiter, including its waiters.
///
/// ```
/// use tollgate::{Limiter, Adjustable, TokenBucket};
///
/// let limiter = Limiter::new(Adjustable::new(TokenBucket::new("10/s".parse()?, 10)?));
/// assert!(limiter.check(8).is_allowed());
/// limiter.change(TokenBucket::new("10/s".parse()?, 20)?);
/// assert_eq!(limiter.report(1).remaining, 12); // The used amount is kept.
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct Adjustable<A> {
    /// Written only under the lock of the state, so that a state is always read with its own parameters.
    limit: RwLock<A>,
}

impl<A: Algorithm> Adjustable<A> {
    /// Makes `limit` adjustable.
    pub fn new(limit: A) -> Self {
        Self { limit: RwLock::new(limit) }
    }

    fn read(&self) -> RwLockReadGuard<'_, A> {
        self.limit.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Algorithm + Clone, C: Clock> Limiter<Adjustable<A>, C> {
    /// Returns the current limit.
    pub fn current(&self) -> A {
        self.limit.read().clone()
    }

    /// Replaces the limit, for waiters as well. The used amount is kept.
    pub fn change(&self, limit: A) {
        self.replace(limit);
        self.notify_waiters();
    }

    /// Replaces the limit. The caller must [notify](Self::notify_waiters) the waiters afterwards.
    pub(crate) fn replace(&self, limit: A) {
        if let SharedState::Words(owned) = &self.state {
            let mut owned = owned.lock().unwrap_or_else(PoisonError::into_inner);
            let mut current = self.limit.limit.write().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *current, limit.clone());
            drop(current);
            owned.replace_limit(Adjustable::new(before), &Adjustable::new(limit), &self.clock.now());
        }
    }

    /// Retries the waiters under the new limit. The caller must not hold a lock, because wakers run foreign code.
    pub(crate) fn notify_waiters(&self) {
        self.shards.notify(0, ());
    }
}

impl<A: Algorithm> Algorithm for Adjustable<A> {
    type Stamp = A::Stamp;

    /// Returns at least 3, because a [`Limiter`] stores parameters only with states of three or more words.
    fn words(&self) -> usize {
        self.read().words().max(3)
    }

    fn capacity(&self) -> u64 {
        self.read().capacity()
    }

    /// Returns `true`, because a later limit may use the wall clock.
    fn uses_wall_clock(&self) -> bool {
        true
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.read().init(state, now);
    }

    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<A::Stamp> {
        self.read().weigh(state, now, ask)
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict<A::Stamp>) {
        self.read().commit(state, now, verdict);
    }

    fn decide<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, ask: Ask) -> Verdict<A::Stamp> {
        self.read().decide(state, now, ask)
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<A::Stamp>) -> Cost {
        self.read().refund(state, now, cost, stamp)
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        self.read().report(state, now, cost)
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        self.read().spent(state, now)
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.read().is_unused(state, now)
    }

    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        self.read().convert(&own.read(), state, now);
    }

    fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<A::Stamp> {
        self.read().weigh_from(&own.read(), state, now, ask)
    }

    fn commit_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        verdict: &Verdict<A::Stamp>,
    ) -> bool {
        self.read().commit_from(&own.read(), state, now, verdict)
    }

    fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        self.read().report_from(&own.read(), state, now, cost)
    }

    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        self.read().wait_in_queue(state, now, ahead, cost)
    }

    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        self.read().recheck_after(state, now)
    }
}

impl<A: Algorithm + fmt::Debug> fmt::Debug for Adjustable<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adjustable").field(&*self.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOUR, bucket, clock, limits_of_ten, on_threads};
    use crate::{AcquireError, Limits};
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn spent_tokens_stay_spent_under_every_other_limit() {
        for from in limits_of_ten(HOUR) {
            for to in limits_of_ten(HOUR) {
                let clock = clock();
                let limiter = Limiter::with_clock(Adjustable::new(Limits::from(from)), clock);
                assert!(limiter.check(4).is_allowed());
                limiter.change(to.into());
                assert_eq!(limiter.current(), to.into());
                assert_eq!(limiter.report(1).remaining, 6, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn waiters_see_the_change() {
        let limiter = Arc::new(Limiter::with_clock(Adjustable::new(bucket(5)), clock()));
        limiter.drain();
        let (mut first, mut second) = (limiter.acquire(3), limiter.acquire(5));
        let poll = |future: &mut crate::acquire::Acquire<'_, _>| {
            Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).map(|answer| answer.map(|_| ()))
        };
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        limiter.change(bucket(3));
        assert!(poll(&mut first).is_pending());
        limiter.change(bucket(10));
        limiter.change(bucket(4));
        limiter.reset();
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())));
        assert_eq!(poll(&mut second), Poll::Ready(Err(AcquireError::NeverFits)));
    }

    #[test]
    fn concurrent_change_loses_nothing() {
        let limiter = Limiter::with_clock(Adjustable::new(bucket(100_000)), clock());
        let taken: u64 = on_threads(4, |thread| {
            let step = |turn: u64| match thread {
                0 => {
                    limiter.change(bucket(100_000 + turn % 7));
                    0
                }
                _ => limiter.check(1).taken().get(),
            };
            (0..5_000).map(step).sum::<u64>()
        })
        .into_iter()
        .sum();
        limiter.change(bucket(100_000));
        assert_eq!((taken, limiter.report(1).remaining), (15_000, 85_000));
    }
}
