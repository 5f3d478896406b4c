//! One limit that all callers share.

mod two_words;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "stream")]
use futures_core::Stream;
use tollgate_core::{
    Algorithm, Ask, CellsMut, Concurrency, Cost, Mono, Nanos, Now, Report, Retry, Stamp, Time, TokenBucket, Verdict,
    Wall,
};

use crate::account::Account;
use crate::clock::{Clock, PreciseClock};
#[cfg(feature = "stream")]
use crate::stream::LimitedStream;
use crate::sync::{AtomicU64, Ordering, spin_or_yield};
use crate::wait::{Acquire, Shards, Waitable};
use two_words::TwoWords;

/// One limit, or a combination of several, shared by all callers.
///
/// If the state is a single word, as for token buckets of most rates, a decision is lock-free: it reads the clock,
/// computes the new word, and stores it with a compare-and-swap. A refusal writes nothing. Longer states are locked
/// briefly.
///
/// ```
/// use tollgate::{Limiter, TokenBucket};
///
/// let limiter = Limiter::new(TokenBucket::new("100/s".parse()?, 20)?);
/// let verdict = limiter.check(1);
/// assert!(verdict.is_admitted());
/// assert_eq!(limiter.report(1).remaining, 19);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct Limiter<A: Algorithm = TokenBucket, C = PreciseClock> {
    pub(crate) limit: A,
    pub(crate) state: SharedState<A>,
    pub(crate) clock: C,
    pub(crate) shards: Shards<(), A::Stamp>,
}

pub(crate) enum SharedState<A> {
    Word(AtomicU64),
    TwoWords(TwoWords),
    /// A mutex instead of a spin lock, because longer states take longer to compute, and the lock holder may be
    /// preempted.
    Words(Mutex<StateWithParams<A>>),
}

impl<A: Algorithm> SharedState<A> {
    fn new(limit: &A, owned: StateWithParams<A>) -> Self {
        match (&*owned.words, &owned.own, limit.words()) {
            ([word, ..], None, 1) => Self::Word(AtomicU64::new(*word)),
            ([low, high, ..], None, 2) => Self::TwoWords(TwoWords::new([*low, *high])),
            _ => Self::Words(Mutex::new(owned)),
        }
    }
}

/// The words of a state, and the parameters under which it was last charged.
pub(crate) struct StateWithParams<A> {
    pub(crate) words: Box<[u64]>,
    /// The parameters of the last charge; `None` if they are the current limit.
    pub(crate) own: Option<A>,
}

impl<A: Algorithm> StateWithParams<A> {
    /// Replaces the limit `before` by `limit`. A used state keeps its own parameters until it is charged under `limit`.
    /// An unused state is converted to `limit` immediately.
    pub(crate) fn replace_limit(&mut self, before: A, limit: &A, now: &Now<'_>) {
        let mut words = std::mem::take(&mut self.words).into_vec();
        words.resize(limit.words().max(words.len()), 0);
        let own = self.own.take().unwrap_or(before);
        if own.is_unused(&*words, now) {
            limit.convert(&own, &mut *words, now);
        } else {
            self.own = Some(own);
        }
        self.words = words.into();
    }
}

impl<A: Algorithm> Limiter<A> {
    /// Creates a limiter with its own precise clock.
    pub fn new(limit: A) -> Self {
        Self::with_clock(limit, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Limiter<A, C> {
    /// Creates a limiter that reads the time from `clock`.
    pub fn with_clock(limit: A, clock: C) -> Self {
        let now = clock.now_for(&limit);
        let mut words = vec![0; limit.words()].into_boxed_slice();
        limit.init(&mut *words, &now);
        let state = SharedState::new(&limit, StateWithParams { words, own: None });
        Self { limit, state, clock, shards: Shards::new(1) }
    }

    /// Takes `cost`, or refuses it and takes nothing.
    #[inline(always)]
    pub fn check(&self, cost: u64) -> Verdict<A::Stamp> {
        let cost = Cost::new(cost);
        let now = self.clock.now_for(&self.limit);
        if let Some(verdict) = self.try_decide_word(&now, cost) {
            return verdict;
        }
        match self.try_take_two_words(now.mono(), now.wall(), cost) {
            Some(stamp) => Verdict::new_allowed_with_stamp(cost, stamp),
            None => self.check_slow(now.mono(), now.wall(), cost),
        }
    }

    /// The fastest path: takes `cost` from a single-word state, or refuses it. `None`: this path does not apply, and
    /// nothing was taken. This path reduces an admitted check from 163 to 36 instructions (callgrind), and a refusal
    /// from 160 to 39.
    #[inline]
    fn try_decide_word(&self, now: &Now<'_>, cost: Cost) -> Option<Verdict<A::Stamp>> {
        let SharedState::Word(word) = &self.state else { return None };
        let before = word.load(Ordering::Relaxed);
        match self.limit.try_take_from_word(before, now, cost) {
            Some(after) => {
                word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).ok()?;
                Some(Verdict::new_allowed(cost))
            }
            // A refusal writes nothing, so reading the word once is enough.
            None => self.limit.try_refuse_from_word(before, now, cost).map(Verdict::new_refused),
        }
    }

    /// The fast path for two-word states: returns the stamp of the charge. `None`: this path does not apply, and
    /// nothing was taken. The arguments and the result fit in registers; a `Now` or a `Verdict` would be passed in
    /// memory. This path reduces a check from 215 to 56 instructions (callgrind).
    #[inline(never)]
    fn try_take_two_words(&self, mono: Time<Mono>, wall: Time<Wall>, cost: Cost) -> Option<A::Stamp> {
        let SharedState::TwoWords(two_words) = &self.state else { return None };
        self.limit.try_take_from_words(&mut two_words.try_lock()?, &Now::new(mono, wall), cost)
    }

    #[inline(never)]
    fn check_slow(&self, mono: Time<Mono>, wall: Time<Wall>, cost: Cost) -> Verdict<A::Stamp> {
        self.write(Now::new(mono, wall), |account| account.decide(Ask::Exactly(cost)))
    }

    /// Decides like [`check`](Self::check), and also returns a report of the limit after the decision.
    pub fn check_and_report(&self, cost: u64) -> (Verdict<A::Stamp>, Report) {
        let cost = Cost::new(cost);
        self.write(self.now(), |account| {
            let verdict = account.decide(Ask::Exactly(cost));
            (verdict, account.report(cost))
        })
    }

    /// Takes as much of `cost` as is available. [`Verdict::taken`] returns the amount taken.
    pub fn take_up_to(&self, cost: u64) -> Verdict<A::Stamp> {
        self.decide(Ask::UpTo(Cost::new(cost)))
    }

    /// Takes `cost` even if less is available, and goes into debt up to the maximum debt of the limit.
    pub fn charge(&self, cost: u64) -> Verdict<A::Stamp> {
        self.decide(Ask::Regardless(Cost::new(cost)))
    }

    /// Takes the whole remaining capacity, and returns the amount taken.
    pub fn drain(&self) -> u64 {
        self.decide(Ask::UpTo(Cost::MAX)).taken().get()
    }

    /// Returns the verdict that [`check`](Self::check) would return, without changing anything.
    pub fn peek(&self, cost: u64) -> Verdict<A::Stamp> {
        let ask = Ask::Exactly(Cost::new(cost));
        self.read(|account| account.weigh(ask))
    }

    /// Returns a report of the limit, with `retry` for a request of `cost`. Changes nothing.
    pub fn report(&self, cost: u64) -> Report {
        self.read(|account| account.report(Cost::new(cost)))
    }

    /// Gives back the part of the `verdict`'s charge that still counts, and returns that amount.
    pub fn refund(&self, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(verdict, verdict.taken())
    }

    /// Resets the limit to its initial state.
    pub fn reset(&self) {
        self.write(self.now(), |account| account.reset());
        self.shards.notify(0, ());
    }

    /// Sets the maximum number of waiters (default 65,536). A waiter takes about 100 bytes.
    #[must_use]
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.shards.max = max;
        self
    }

    /// Returns the number of waiters.
    pub fn waiters(&self) -> usize {
        self.shards.waiter_count()
    }

    /// Replaces the limit and keeps the used amount. Until a request is admitted under the new limit, the used amount
    /// refills at the old rate and counts against the capacity of the new limit.
    ///
    /// If anything was used before the change, later decisions take a short lock.
    pub fn set_limit(&mut self, limit: A) {
        let now = self.clock.now();
        let mut owned = match &mut self.state {
            SharedState::Word(word) => StateWithParams { words: [word.load(Ordering::Relaxed)].into(), own: None },
            SharedState::TwoWords(two_words) => StateWithParams { words: two_words.load().into(), own: None },
            SharedState::Words(owned) => {
                let owned = owned.get_mut().unwrap_or_else(PoisonError::into_inner);
                StateWithParams { words: std::mem::take(&mut owned.words), own: owned.own.take() }
            }
        };
        let before = std::mem::replace(&mut self.limit, limit);
        owned.replace_limit(before, &self.limit, &now);
        self.state = SharedState::new(&self.limit, owned);
    }

    /// Returns the limit.
    pub fn limit(&self) -> &A {
        &self.limit
    }

    fn refund_part(&self, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let stamp = Some(verdict.stamp());
        let refunded = self.write(self.now(), |account| account.refund(cost, stamp)).get();
        if refunded > 0 {
            self.shards.notify(0, ());
        }
        refunded
    }

    fn decide(&self, ask: Ask) -> Verdict<A::Stamp> {
        self.write(self.now(), |account| account.decide(ask))
    }

    pub(crate) fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    fn read<R>(&self, read: impl FnOnce(&Account<'_, A, &mut [u64]>) -> R) -> R {
        let (limit, now) = (&self.limit, self.now());
        match &self.state {
            SharedState::Word(word) => {
                read(&Account { limit, own: None, state: &mut [word.load(Ordering::Relaxed)], now })
            }
            SharedState::TwoWords(two_words) => read(&Account { limit, own: None, state: &mut two_words.load(), now }),
            SharedState::Words(owned) => {
                let StateWithParams { words, own } = &mut *owned.lock().unwrap_or_else(PoisonError::into_inner);
                let now = self.now_for(own.as_ref(), now);
                read(&Account { limit, own: own.as_ref(), state: words, now })
            }
        }
    }

    /// Adds a wall-clock reading if the state belongs to earlier parameters. Earlier parameters may need the wall clock
    /// even if the current limit does not.
    fn now_for<'a>(&self, own: Option<&A>, now: Now<'a>) -> Now<'a> {
        if own.is_some() { Now::new(now.mono(), self.clock.wall(now.mono())) } else { now }
    }

    /// Runs `write` on the state and stores the result. `write` runs again if another thread has changed the state
    /// concurrently, so it must not have other effects.
    #[inline(never)]
    pub(crate) fn write<R>(&self, now: Now<'_>, write: impl Fn(&mut Account<'_, A, &mut [u64]>) -> R) -> R {
        let limit = &self.limit;
        let word = match &self.state {
            SharedState::Word(word) => word,
            SharedState::TwoWords(two_words) => {
                let mut locked = two_words.lock();
                let mut words = locked.load();
                let result = write(&mut Account { limit, own: None, state: &mut words, now });
                words.iter().enumerate().for_each(|(index, word)| locked.set(index, *word));
                return result;
            }
            SharedState::Words(owned) => {
                let StateWithParams { words, own } = &mut *owned.lock().unwrap_or_else(PoisonError::into_inner);
                let now = self.now_for(own.as_ref(), now);
                let mut account = Account { limit, own: own.as_ref(), state: &mut **words, now };
                let result = write(&mut account);
                if account.own.is_none() {
                    *own = None;
                }
                return result;
            }
        };
        let mut turn = 0;
        let mut before = word.load(Ordering::Relaxed);
        loop {
            let mut state = [before];
            let result = write(&mut Account { limit, own: None, state: &mut state, now });
            if state[0] == before {
                return result;
            }
            // Relaxed, because the word is the whole state and publishes nothing else.
            match word.compare_exchange_weak(before, state[0], Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return result,
                Err(now_there) => before = now_there,
            }
            spin_or_yield(turn);
            turn += 1;
        }
    }
}

impl<A, C> Limiter<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    /// Takes `cost` as soon as the limit has capacity for it, in FIFO order; see [`Acquire`].
    ///
    /// Needs an `Arc`, because the clock's alarm keeps a weak reference to the limiter.
    #[inline]
    pub fn acquire(self: &Arc<Self>, cost: u64) -> Acquire<'_, Self> {
        Acquire::new(self, (), cost)
    }

    /// Like [`acquire`](Self::acquire), but the future owns the limiter, so it can be moved to a spawned task.
    pub fn acquire_owned(self: Arc<Self>, cost: u64) -> Acquire<'static, Self> {
        Acquire::owned(self, (), cost)
    }

    /// Takes a cost of 1 before each item of `stream` is yielded. If the stream is not `Unpin`, pin it first.
    #[cfg(feature = "stream")]
    pub fn limit_stream<S: Stream + Unpin>(self: &Arc<Self>, stream: S) -> LimitedStream<S, Self> {
        LimitedStream::new(stream, self, ())
    }
}

impl<C: Clock> Limiter<Concurrency, C> {
    /// Renews the lease with this stamp for a full duration. Returns `false` if the lease has expired or was given
    /// back.
    pub fn renew(&self, stamp: Stamp) -> bool {
        self.write(self.now(), |account| account.own_limit().renew(&mut account.state, &account.now, stamp))
    }
}

impl<A, C> Waitable for Limiter<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    type Key = ();
    type Stamp = A::Stamp;
    type Clock = C;

    #[inline]
    fn shards(&self) -> &Shards<(), A::Stamp> {
        &self.shards
    }

    #[inline]
    fn shard_of((): ()) -> usize {
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
    fn try_take_fast(&self, (): (), cost: Cost) -> bool {
        self.try_decide_word(&self.now(), cost).is_some_and(|verdict| verdict.is_allowed())
    }

    fn take(&self, (): (), cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<A::Stamp> {
        self.write(*now, |account| account.take_undelayed(cost, repair))
    }

    fn wait_in_queue(&self, (): (), ahead: Cost, cost: Cost, _: &Now<'_>) -> Retry {
        self.read(|account| account.wait_in_queue(ahead, cost))
    }

    fn recheck_after(&self, (): (), _: &Now<'_>) -> Option<Nanos> {
        self.read(|account| account.recheck_after())
    }

    fn give_back(&self, (): (), verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        self.refund_part(verdict, cost)
    }

    fn charge(&self, (): (), cost: Cost) -> Verdict<A::Stamp> {
        self.decide(Ask::Regardless(cost))
    }
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Limiter<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
