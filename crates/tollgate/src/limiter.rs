//! One limit for everybody.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_core::{Algorithm, Ask, CellsMut, Cost, Nanos, Now, Outcome, Report, Retry, TokenBucket, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::sync::{AtomicU64, Ordering, relax};
use crate::wait::{Acquire, Gate, Rooms};

/// One limit, or several together, shared by all callers.
///
/// Where the state is a single word, as it is for a token bucket of most rates, a decision is lock-free: it reads the
/// clock, computes, and swaps the word in. A refusal writes nothing at all.
///
/// ```
/// use tollgate::{Limiter, TokenBucket};
///
/// let limiter = Limiter::new(TokenBucket::new("100/s".parse()?, 20)?);
/// let verdict = limiter.check(1);
/// assert!(verdict.is_allowed());
/// assert_eq!(limiter.report(1).remaining, 19);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct Limiter<A: Algorithm = TokenBucket, C = PreciseClock> {
    pub(crate) limit: A,
    pub(crate) state: Shared,
    pub(crate) clock: C,
    pub(crate) rooms: Rooms<(), A::Stamp>,
}

pub(crate) enum Shared {
    Word(AtomicU64),
    /// A mutex, because the states that do not fit a word take longer to compute and their holder may be preempted.
    Words(Mutex<Box<[u64]>>),
}

impl<A: Algorithm> Limiter<A> {
    /// A limiter with a precise clock of its own.
    pub fn new(limit: A) -> Self {
        Self::with_clock(limit, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Limiter<A, C> {
    /// A limiter that takes its time from `clock`.
    pub fn with_clock(limit: A, clock: C) -> Self {
        let now = clock.now_for(&limit);
        let mut words = vec![0; limit.words()].into_boxed_slice();
        limit.fresh(&mut *words, &now);
        let state = match &*words {
            [word] => Shared::Word(AtomicU64::new(*word)),
            _ => Shared::Words(Mutex::new(words)),
        };
        Self { limit, state, clock, rooms: Rooms::new(1) }
    }

    /// Takes `cost` or refuses, spending nothing.
    #[inline]
    pub fn check(&self, cost: u64) -> Verdict<A::Stamp> {
        let cost = Cost::new(cost);
        let now = self.clock.now_for(&self.limit);
        if let Shared::Word(word) = &self.state {
            let before = word.load(Ordering::Relaxed);
            if let Some(after) = self.limit.take_from_word(before, &now, cost)
                && word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return Verdict::granted(cost);
            }
        }
        self.write(now, |limit, state, now| limit.decide(state, now, Ask::Exactly(cost)))
    }

    /// Takes `cost` or refuses, as [`check`](Self::check) does, and returns the state of the limit after that.
    pub fn check_and_report(&self, cost: u64) -> (Verdict<A::Stamp>, Report) {
        let cost = Cost::new(cost);
        self.write(self.now(), |limit, state, now| {
            let verdict = limit.decide(state, now, Ask::Exactly(cost));
            (verdict, limit.report(&*state, now, cost))
        })
    }

    /// Takes as much of `cost` as fits; [`Verdict::taken`] says how much.
    pub fn take_up_to(&self, cost: u64) -> Verdict<A::Stamp> {
        self.decide(Ask::UpTo(Cost::new(cost)))
    }

    /// Takes `cost` whether it fits or not, into debt as far as the limit allows.
    pub fn charge(&self, cost: u64) -> Verdict<A::Stamp> {
        self.decide(Ask::Regardless(Cost::new(cost)))
    }

    /// Takes all that is left.
    pub fn drain(&self) -> Verdict<A::Stamp> {
        self.decide(Ask::UpTo(Cost::MAX))
    }

    /// What [`check`](Self::check) would say. Changes nothing.
    pub fn peek(&self, cost: u64) -> Verdict<A::Stamp> {
        let ask = Ask::Exactly(Cost::new(cost));
        self.read(|limit, state, now| limit.weigh(state, now, ask))
    }

    /// What may be told about the limit, with `retry` for a request of `cost`. Changes nothing.
    pub fn report(&self, cost: u64) -> Report {
        self.read(|limit, state, now| limit.report(state, now, Cost::new(cost)))
    }

    /// Gives back what `verdict` took, as far as the limit still holds it against the caller; returns how much that was.
    pub fn refund(&self, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(verdict, verdict.taken())
    }

    /// As good as new.
    pub fn reset(&self) {
        self.write(self.now(), |limit, state, now| limit.fresh(state, now));
        self.rooms.look_at(0, ());
    }

    /// With another bound on how many may wait at the same time, instead of 65,536; a waiter takes some hundred bytes.
    #[must_use]
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.rooms.max = max;
        self
    }

    /// How many wait.
    pub fn waiters(&self) -> usize {
        self.rooms.waiting()
    }

    /// Puts other numbers in force. What was spent stays spent.
    pub fn set_limit(&mut self, limit: A) {
        let now = self.clock.now();
        let mut words = vec![0; self.limit.words().max(limit.words())].into_boxed_slice();
        match &mut self.state {
            Shared::Word(word) => words[0] = word.load(Ordering::Relaxed),
            Shared::Words(old) => {
                let old = old.get_mut().unwrap_or_else(PoisonError::into_inner);
                words[..old.len()].copy_from_slice(old);
            }
        }
        limit.convert(&self.limit, &mut *words, &now);
        self.state = match limit.words() {
            1 => Shared::Word(AtomicU64::new(words[0])),
            n => Shared::Words(Mutex::new(words[..n].into())),
        };
        self.limit = limit;
    }

    /// The numbers in force.
    pub fn limit(&self) -> &A {
        &self.limit
    }

    fn refund_part(&self, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let stamp = Some(verdict.stamp());
        let refunded = self.write(self.now(), |limit, state, now| limit.refund(state, now, cost, stamp)).get();
        if refunded > 0 {
            self.rooms.look_at(0, ());
        }
        refunded
    }

    fn decide(&self, ask: Ask) -> Verdict<A::Stamp> {
        self.write(self.now(), |limit, state, now| limit.decide(state, now, ask))
    }

    pub(crate) fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    fn read<R>(&self, read: impl FnOnce(&A, &[u64], &Now<'_>) -> R) -> R {
        let now = self.clock.now_for(&self.limit);
        match &self.state {
            Shared::Word(word) => read(&self.limit, &[word.load(Ordering::Relaxed)], &now),
            Shared::Words(words) => read(&self.limit, &words.lock().unwrap_or_else(PoisonError::into_inner), &now),
        }
    }

    /// Runs `write` on the state and keeps what it wrote. It runs again if another caller came in between, so it must have
    /// no effect but on the state.
    #[inline(never)]
    pub(crate) fn write<R>(&self, now: Now<'_>, write: impl Fn(&A, &mut [u64], &Now<'_>) -> R) -> R {
        let word = match &self.state {
            Shared::Word(word) => word,
            Shared::Words(words) => {
                return write(&self.limit, &mut words.lock().unwrap_or_else(PoisonError::into_inner), &now);
            }
        };
        let mut turn = 0;
        let mut before = word.load(Ordering::Relaxed);
        loop {
            let mut state = [before];
            let result = write(&self.limit, &mut state, &now);
            if state[0] == before {
                return result;
            }
            // Relaxed: the word is the whole state and publishes nothing else.
            match word.compare_exchange_weak(before, state[0], Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return result,
                Err(now_there) => before = now_there,
            }
            relax(turn);
            turn += 1;
        }
    }
}

impl<A, C> Limiter<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    /// Takes `cost` as soon as there is room for it, behind all who wait already; see [`Acquire`].
    ///
    /// Of an `Arc`, since the clock's bell has to find the limiter when the turn comes.
    #[inline]
    pub fn acquire(self: &Arc<Self>, cost: u64) -> Acquire<'_, Self> {
        Acquire::new(self, (), cost)
    }
}

impl<A, C> Gate for Limiter<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    type Key = ();
    type Stamp = A::Stamp;
    type Clock = C;

    #[inline]
    fn rooms(&self) -> &Rooms<(), A::Stamp> {
        &self.rooms
    }

    #[inline]
    fn room_of((): ()) -> usize {
        0
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
    fn take_now(&self, (): (), cost: Cost) -> Verdict<A::Stamp> {
        let now = self.now();
        if let Shared::Word(word) = &self.state {
            let before = word.load(Ordering::Relaxed);
            if let Some(after) = self.limit.take_from_word(before, &now, cost)
                && word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return Verdict::granted(cost);
            }
        }
        self.take((), cost, &now, false)
    }

    fn take(&self, (): (), cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<A::Stamp> {
        self.write(*now, |limit, state, now| take_undelayed(limit, state, now, cost, repair))
    }

    fn wait_behind(&self, (): (), ahead: Cost, cost: Cost, _: &Now<'_>) -> Retry {
        self.read(|limit, state, now| limit.wait_behind(state, now, ahead, cost))
    }

    fn look_again(&self, (): (), _: &Now<'_>) -> Option<Nanos> {
        self.read(|limit, state, now| limit.look_again(state, now))
    }

    fn give_back(&self, (): (), verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        self.refund_part(verdict, cost)
    }

    fn charge(&self, (): (), cost: Cost) -> Verdict<A::Stamp> {
        self.decide(Ask::Regardless(cost))
    }
}

/// Takes `cost` if it passes undelayed; see [`Gate::take`].
#[inline]
pub(crate) fn take_undelayed<A: Algorithm, S: CellsMut + ?Sized>(
    limit: &A,
    state: &mut S,
    now: &Now<'_>,
    cost: Cost,
    repair: bool,
) -> Verdict<A::Stamp> {
    let verdict = limit.weigh(state, now, Ask::Exactly(cost));
    match verdict.outcome() {
        Outcome::Allow => limit.commit(state, now, &verdict),
        Outcome::Deny(_) if repair => limit.commit(state, now, &verdict),
        Outcome::Delay(_) | Outcome::Deny(_) => {}
    }
    verdict
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Limiter<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
