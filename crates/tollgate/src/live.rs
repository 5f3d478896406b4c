//! Numbers that change while they are in use.

use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Nanos, Now, Report, Retry, Spent, Verdict};

use crate::clock::Clock;
use crate::limiter::{Limiter, Shared};

/// A limit whose numbers can be changed behind a shared reference, with [`Limiter::change`].
///
/// A [`Limiter`] of a plain limit is changed by whoever has it for themselves (`set_limit`), and its decisions need no
/// lock. With this one every decision takes a lock, some twenty nanoseconds, and in return the change reaches everybody who
/// holds the limiter, those who wait included.
///
/// ```
/// use tollgate::{Limiter, Live, TokenBucket};
///
/// let limiter = Limiter::new(Live::new(TokenBucket::new("10/s".parse()?, 10)?));
/// assert!(limiter.check(8).is_allowed());
/// limiter.change(TokenBucket::new("10/s".parse()?, 20)?);
/// assert_eq!(limiter.report(1).remaining, 12); // What was spent stays spent.
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct Live<A> {
    /// Changed only by who holds the lock of the state, so that no state is ever read with other numbers than it was
    /// written with.
    numbers: RwLock<A>,
}

impl<A: Algorithm> Live<A> {
    /// `limit`, to be changed later.
    pub fn new(limit: A) -> Self {
        Self { numbers: RwLock::new(limit) }
    }

    fn read(&self) -> RwLockReadGuard<'_, A> {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Algorithm + Clone, C: Clock> Limiter<Live<A>, C> {
    /// The numbers in force now.
    pub fn numbers(&self) -> A {
        self.limit.read().clone()
    }

    /// Puts other numbers in force, for those who wait as well. What was spent stays spent.
    pub fn change(&self, limit: A) {
        self.put(limit);
        self.tell_waiting();
    }

    /// Puts other numbers in force, and leaves it to the caller to [tell](Self::tell_waiting) those who wait.
    pub(crate) fn put(&self, limit: A) {
        if let Shared::Words(owned) = &self.state {
            let mut owned = owned.lock().unwrap_or_else(PoisonError::into_inner);
            let mut numbers = self.limit.numbers.write().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *numbers, limit.clone());
            drop(numbers);
            owned.change(Live::new(before), &Live::new(limit), &self.clock.now());
        }
    }

    /// Those who wait may pass under the numbers put in force. They are woken, which is somebody else's code: no lock is held.
    pub(crate) fn tell_waiting(&self) {
        self.rooms.look_at(0, ());
    }
}

impl<A: Algorithm> Algorithm for Live<A> {
    type Stamp = A::Stamp;

    /// Never a single word, which would be decided on without a lock.
    fn words(&self) -> usize {
        self.read().words().max(2)
    }

    fn capacity(&self) -> u64 {
        self.read().capacity()
    }

    /// The next numbers may.
    fn uses_wall_clock(&self) -> bool {
        true
    }

    fn fresh<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.read().fresh(state, now);
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

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.read().is_new(state, now)
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

    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        self.read().wait_behind(state, now, ahead, cost)
    }

    fn look_again<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        self.read().look_again(state, now)
    }
}

impl<A: Algorithm + fmt::Debug> fmt::Debug for Live<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Live").field(&*self.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOUR, bucket, clock, on_threads, ten_of_each};
    use crate::{AcquireError, Limits};
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn what_was_spent_stays_spent_under_every_other_limit() {
        for from in ten_of_each(HOUR) {
            for to in ten_of_each(HOUR) {
                let clock = clock();
                let limiter = Limiter::with_clock(Live::new(Limits::from(from)), clock);
                assert!(limiter.check(4).is_allowed());
                limiter.change(to.into());
                assert_eq!(limiter.numbers(), to.into());
                assert_eq!(limiter.report(1).remaining, 6, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn who_waits_sees_the_change() {
        let limiter = Arc::new(Limiter::with_clock(Live::new(bucket(5)), clock()));
        limiter.drain();
        let (mut first, mut second) = (limiter.acquire(3), limiter.acquire(5));
        let poll = |future: &mut crate::Acquire<'_, _>| {
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
    fn changing_while_others_decide_loses_nothing() {
        let limiter = Limiter::with_clock(Live::new(bucket(100_000)), clock());
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
