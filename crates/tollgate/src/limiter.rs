//! One limit for everybody.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tollgate_core::{Algorithm, Ask, Cost, Now, Report, TokenBucket, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::sync::{AtomicU64, Ordering, relax};

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
pub struct Limiter<A = TokenBucket, C = PreciseClock> {
    limit: A,
    state: Shared,
    clock: C,
}

enum Shared {
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
        Self { limit, state, clock }
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
        self.write(self.now(), |limit, state, now| limit.refund(state, now, verdict.taken(), Some(verdict.stamp())))
            .get()
    }

    /// As good as new.
    pub fn reset(&self) {
        self.write(self.now(), |limit, state, now| limit.fresh(state, now));
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

    fn decide(&self, ask: Ask) -> Verdict<A::Stamp> {
        self.write(self.now(), |limit, state, now| limit.decide(state, now, ask))
    }

    fn now(&self) -> Now<'static> {
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
    fn write<R>(&self, now: Now<'_>, write: impl Fn(&A, &mut [u64], &Now<'_>) -> R) -> R {
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

impl<A: fmt::Debug, C> fmt::Debug for Limiter<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
