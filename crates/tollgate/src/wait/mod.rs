//! Waiting: taking a cost as soon as there is room for it, first come first served.
//!
//! What happens to whom is told at [`Acquire`]; how it is done in `room.rs` and `book.rs`.

mod book;
mod line;
mod room;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tollgate_core::{Cost, Nanos, Now, Outcome, Retry, Verdict};

use crate::clock::Clock;
use book::Joined;
use line::{Seat, Waiter};
pub(crate) use room::Rooms;

/// What can be waited for: a [`Limiter`](crate::Limiter), or a key of a [`Keyed`](crate::Keyed). Not to be implemented
/// elsewhere.
pub trait Gate: Send + Sync + Sized + 'static {
    /// What tells lines apart.
    type Key: Copy + Ord + Send + Sync + 'static;
    /// What undoes a taking.
    type Stamp: Copy + Default + Send + Sync + 'static;
    /// Where time comes from.
    type Clock: Clock;

    /// Where those wait who have to.
    fn rooms(&self) -> &Rooms<Self::Key, Self::Stamp>;
    /// The room for a key, as any number.
    fn room_of(key: Self::Key) -> usize;
    /// The clock.
    fn clock(&self) -> &Self::Clock;
    /// The present.
    fn now(&self) -> Now<'static>;
    /// The instant to decide by for the first of a line that was due at `due` and is looked at `now`. By the clock, unless
    /// being late must not slow everybody behind it down.
    fn as_of<'a>(&self, due: Option<u64>, now: &Now<'a>) -> Now<'a> {
        let _ = due;
        *now
    }
    /// Whether waits may change because somebody sets the clock on the wall.
    fn uses_wall_clock(&self) -> bool;
    /// [`take`](Self::take), by its own reading of the clock and the shortest way.
    fn take_now(&self, key: Self::Key, cost: Cost) -> Verdict<Self::Stamp>;
    /// Takes `cost` if it passes undelayed; a refusal is written down only to `repair` a state after the clock went back.
    fn take(&self, key: Self::Key, cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<Self::Stamp>;
    /// How long `cost` has to wait behind `ahead`.
    fn wait_behind(&self, key: Self::Key, ahead: Cost, cost: Cost, now: &Now<'_>) -> Retry;
    /// How long until time alone may help somebody who waits for a release.
    fn look_again(&self, key: Self::Key, now: &Now<'_>) -> Option<Nanos>;
    /// Gives back up to `cost` of what `verdict` took.
    fn give_back(&self, key: Self::Key, verdict: &Verdict<Self::Stamp>, cost: Cost) -> u64;
    /// Takes `cost` whether it fits or not.
    fn charge(&self, key: Self::Key, cost: Cost) -> Verdict<Self::Stamp>;
}

/// Why there is nothing to wait for any more. In every case nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is above what ever passes at once. Told at once, or when the numbers changed.
    NeverFits,
    /// The deadline is before the turn would come. Told at once.
    TooLate {
        /// How long it would have taken, at least.
        retry: Retry,
    },
    /// The deadline came first: somebody took what was counted on, or what is waited for has no known time.
    TimedOut,
    /// As many wait as may. Told at once.
    Full,
    /// No thread could be started to wake those who wait. Told at once.
    NoTimer,
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverFits => f.write_str("the cost is above what ever passes at once"),
            Self::TooLate { retry: Retry::After(wait) } => write!(f, "the turn comes in {wait}, after the deadline"),
            Self::TooLate { retry: Retry::OnRelease | Retry::Never } => {
                f.write_str("nothing is free before the deadline")
            }
            Self::TimedOut => f.write_str("the deadline came before the turn"),
            Self::Full => f.write_str("as many wait as may"),
            Self::NoTimer => f.write_str("no thread could be started to wake those who wait"),
        }
    }
}

impl std::error::Error for AcquireError {}

/// A cost that is taken as soon as there is room for it: a future to await, or to [`wait`](Self::wait) for.
///
/// Nothing happens before it is first polled; then it takes its place behind all who came before. Dropping it gives the place
/// up. It needs no particular executor, and allocates nothing unless it has to wait.
///
/// | happens while somebody waits | outcome |
/// |---|---|
/// | its turn comes | the cost is taken for it and it is woken; nothing was held before |
/// | it leaves (the future is dropped) | those behind move up; what was already taken for it is given back |
/// | its deadline comes | [`AcquireError::TimedOut`], nothing taken |
/// | the numbers change so that it no longer fits | [`AcquireError::NeverFits`], nothing taken |
/// | somebody gives back, or the limiter is reset | the first in line is looked at again at once |
/// | the clock leaps forward | the first ones get what there is by then, also those whose deadline was skipped over |
/// | the clock goes back | everybody is looked at again; nobody waits longer than one burst or window for that |
/// | its executor is shut down | as leaving, if it drops the future; else the future gets what it asked for, and nobody waits for it |
/// | waking it panics | the others are woken all the same |
///
/// [`check`](crate::Limiter::check) does not look at the line: what is there when it asks, it takes. Who wants everybody in
/// the line asks with [`at_once`](Self::at_once) instead. The guarantee of the limit holds for what passes by the clock: a
/// turn that is noticed late, by some ten microseconds with the timer's thread, is late for those behind it as well, which
/// shows where a limit has a burst of one and a high rate; a [`Pacer`](crate::Pacer) catches up instead.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{AcquireError, Limiter, TokenBucket};
///
/// let limiter = Arc::new(Limiter::new(TokenBucket::new("100/s".parse()?, 1)?));
/// # pollster(async {
/// limiter.acquire(1).await?;
/// limiter.acquire(1).within(Duration::from_secs(1)).await?;
/// # Ok::<(), AcquireError>(()) })?;
/// // The same for a thread.
/// limiter.acquire(1).within(Duration::from_secs(1)).wait()?;
/// // What cannot be in time, or never can be, is refused at once.
/// let hourly = Arc::new(Limiter::new(TokenBucket::new("1/h".parse()?, 1)?));
/// hourly.acquire(1).wait()?;
/// let refused = hourly.acquire(1).within(Duration::from_secs(60)).wait();
/// assert!(matches!(refused, Err(AcquireError::TooLate { .. })));
/// assert_eq!(hourly.acquire(2).wait(), Err(AcquireError::NeverFits));
/// # fn pollster<T>(future: impl Future<Output = T>) -> T {
/// #     let (mut future, mut cx) = (Box::pin(future), std::task::Context::from_waker(std::task::Waker::noop()));
/// #     loop { if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut cx) { return out; } }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is taken until it is awaited or waited for"]
pub struct Acquire<'a, G: Gate> {
    gate: &'a Arc<G>,
    key: G::Key,
    cost: u64,
    patience: Nanos,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    New,
    Seated(Seat),
    Done,
}

impl<'a, G: Gate> Acquire<'a, G> {
    #[inline]
    pub(crate) fn new(gate: &'a Arc<G>, key: G::Key, cost: u64) -> Self {
        Self { gate, key, cost, patience: Nanos::MAX, stage: Stage::New }
    }

    /// What is waited for.
    pub(crate) fn gate(&self) -> (&'a Arc<G>, G::Key) {
        (self.gate, self.key)
    }

    /// With a deadline so long after it is first polled. What cannot be in time is refused without waiting.
    #[inline]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience.into();
        self
    }

    /// Without waiting: as `check`, but behind all who wait.
    #[inline]
    pub fn at_once(mut self) -> Self {
        self.patience = Nanos::ZERO;
        self
    }

    /// Blocks the thread until the turn comes.
    ///
    /// # Errors
    /// See [`AcquireError`]; nothing was taken then.
    #[inline]
    pub fn wait(mut self) -> Result<Verdict<G::Stamp>, AcquireError> {
        match self.try_now() {
            Some(result) => result,
            None => self.block(),
        }
    }

    /// Takes the cost if nobody waits and there is room for it.
    #[inline]
    fn try_now(&mut self) -> Option<Result<Verdict<G::Stamp>, AcquireError>> {
        if !self.gate.rooms().room(G::room_of(self.key)).is_empty() {
            return None;
        }
        let verdict = self.gate.take_now(self.key, Cost::new(self.cost));
        let result = match verdict.outcome() {
            Outcome::Allow => Ok(verdict),
            Outcome::Deny(Retry::Never) => Err(AcquireError::NeverFits),
            Outcome::Delay(_) | Outcome::Deny(_) => return None,
        };
        self.stage = Stage::Done;
        Some(result)
    }

    #[inline(never)]
    fn join_or_collect(&mut self, waker: &Waker) -> Poll<Result<Verdict<G::Stamp>, AcquireError>> {
        let room = self.gate.rooms().room(G::room_of(self.key));
        let result = match self.stage {
            Stage::New => {
                let waiter = Waiter::new(self.key, self.cost, 0, waker.clone());
                match room.join(self.gate, waiter, self.patience) {
                    Joined::AtOnce(result) => Some(result),
                    Joined::Seated(seat) => {
                        self.stage = Stage::Seated(seat);
                        None
                    }
                }
            }
            Stage::Seated(seat) => room.collect(&**self.gate, seat, waker),
            Stage::Done => None,
        };
        match result {
            Some(result) => {
                self.stage = Stage::Done;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }

    #[inline(never)]
    fn block(&mut self) -> Result<Verdict<G::Stamp>, AcquireError> {
        block_on(self)
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<G: Gate> Future for Acquire<'_, G> {
    type Output = Result<Verdict<G::Stamp>, AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::New = self.stage
            && let Some(result) = self.try_now()
        {
            return Poll::Ready(result);
        }
        self.join_or_collect(context.waker())
    }
}

// Nothing points into it.
impl<G: Gate> Unpin for Acquire<'_, G> {}

impl<G: Gate> Drop for Acquire<'_, G> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Seated(seat) = self.stage {
            self.gate.rooms().room(G::room_of(self.key)).leave(&**self.gate, seat);
        }
    }
}

impl<G: Gate> fmt::Debug for Acquire<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("cost", &self.cost).field("stage", &self.stage).finish_non_exhaustive()
    }
}
