//! Shaping: work that arrives as it likes leaves at a constant rate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate_core::{Cost, Mono, Nanos, Pacing, Rate, Time, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::paced::Pacer;
use crate::wait::{AcquireError, Gate, block_on};

/// A bounded queue of jobs that are let out at a constant rate: the leaky bucket as a queue.
///
/// Jobs weigh 1, or what they are said to: bytes, rows. One that weighs `n` keeps the next one waiting for `n` units of the
/// rate. Where more comes than leaves, the bound decides which is turned away, the newest or the oldest; and a job that has
/// waited longer than the maximum age is dropped instead of let out, so that old work, which nobody may want any more, never
/// starves new.
///
/// Any number of threads and tasks may push, and any number may take what is let out, in the order of arrival.
///
/// ```
/// use tollgate::{Pushed, Shaper};
///
/// let shaper = Shaper::new("1000/s".parse()?, 2);
/// assert_eq!(shaper.push("first"), Pushed::Queued);
/// assert_eq!(shaper.push("second"), Pushed::Queued);
/// assert_eq!(shaper.push("third"), Pushed::TurnedAway("third"));
/// assert_eq!(shaper.wait_next(), Some("first"));
/// assert_eq!(shaper.wait_next(), Some("second")); // A millisecond later.
/// shaper.close();
/// assert_eq!(shaper.wait_next(), None);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub struct Shaper<T, C = PreciseClock> {
    pacer: Arc<Pacer<C>>,
    capacity: usize,
    overflow: Overflow,
    max_age: Nanos,
    /// A mutex, held to put in or take out one job.
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    jobs: VecDeque<Job<T>>,
    /// Those who found nothing to take, by a number of their own; all are woken when there is something.
    idle: BTreeMap<u64, Waker>,
    /// The number given last.
    idle_number: u64,
    expired: u64,
    closed: bool,
}

struct Job<T> {
    job: T,
    cost: u64,
    pushed: Time<Mono>,
}

/// Which job is turned away when there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The one that comes.
    #[default]
    Newest,
    /// The one that has waited longest.
    Oldest,
}

/// What became of a job that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It is in the queue.
    Queued,
    /// It is in the queue, and this one, which had waited longest, is no more.
    Displaced(T),
    /// There is no room for it, or the shaper is closed.
    TurnedAway(T),
}

impl<T> Shaper<T> {
    /// Lets jobs out at `rate`, and keeps at most `capacity` of them.
    pub fn new(rate: Rate, capacity: usize) -> Self {
        Self::with_clock(rate, capacity, PreciseClock::new())
    }
}

/// Nothing is stored: what is not used is gone.
fn constant(rate: Rate) -> Pacing {
    Pacing::bursty(rate, Nanos::ZERO).expect("no time is shorter than the longest time to store")
}

impl<T, C: Clock + Send + Sync + 'static> Shaper<T, C> {
    /// The same with a clock of choice.
    pub fn with_clock(rate: Rate, capacity: usize, clock: C) -> Self {
        let pacer = Pacer::with_clock(constant(rate), clock).max_waiters(usize::MAX);
        let (jobs, idle) = (VecDeque::new(), BTreeMap::new());
        let queue = Queue { jobs, idle, idle_number: 0, expired: 0, closed: false };
        Self {
            pacer: Arc::new(pacer),
            capacity,
            overflow: Overflow::default(),
            max_age: Nanos::MAX,
            queue: Mutex::new(queue),
        }
    }

    /// With another choice of who is turned away.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// With jobs dropped that have waited longer than `max_age`.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age: max_age.into(), ..self }
    }

    /// Puts a job in, which weighs 1.
    pub fn push(&self, job: T) -> Pushed<T> {
        self.push_weighing(job, 1)
    }

    /// Puts a job in that weighs `cost`.
    pub fn push_weighing(&self, job: T, cost: u64) -> Pushed<T> {
        let now = self.pacer.clock().mono();
        let mut queue = self.lock();
        if queue.closed || self.capacity == 0 {
            return Pushed::TurnedAway(job);
        }
        let aged = self.drop_aged(&mut queue, now);
        let mut displaced = None;
        if queue.jobs.len() >= self.capacity {
            match self.overflow {
                Overflow::Newest => return Pushed::TurnedAway(job),
                Overflow::Oldest => displaced = queue.jobs.pop_front(),
            }
        }
        queue.jobs.push_back(Job { job, cost, pushed: now });
        let idle = std::mem::take(&mut queue.idle);
        drop(queue);
        drop(aged);
        idle.into_values().for_each(Waker::wake);
        displaced.map_or(Pushed::Queued, |oldest| Pushed::Displaced(oldest.job))
    }

    /// Awaits the next job, at its moment. `None` once the shaper is closed and empty, or if no thread could be started to
    /// wake those who wait.
    ///
    /// A future that is dropped takes no job with it.
    pub async fn next(&self) -> Option<T> {
        loop {
            let cost = Waiting { shaper: self, number: None }.await?;
            let turn = match self.pacer.acquire(cost).await {
                Ok(turn) => turn,
                Err(AcquireError::NoTimer) => return None,
                Err(_) => continue,
            };
            if let Some(job) = self.take(&turn) {
                return Some(job);
            }
        }
    }

    /// Blocks the thread until the next job has its moment; see [`next`](Self::next).
    pub fn wait_next(&self) -> Option<T> {
        block_on(self.next())
    }

    /// Takes no more jobs in. Those that are in are let out as before.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let idle = std::mem::take(&mut queue.idle);
        drop(queue);
        idle.into_values().for_each(Waker::wake);
    }

    /// Puts another rate in force, behind the job let out last.
    pub fn set_rate(&self, rate: Rate) {
        self.pacer.set_rate(rate);
    }

    /// How many jobs are in the queue.
    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many jobs were dropped because of their age.
    pub fn expired(&self) -> u64 {
        self.lock().expired
    }

    /// Takes the first job out for a turn that was taken for it, or for one that is gone meanwhile.
    fn take(&self, turn: &Verdict<u64>) -> Option<T> {
        let now = self.pacer.clock().mono();
        let mut queue = self.lock();
        let aged = self.drop_aged(&mut queue, now);
        let first = queue.jobs.pop_front();
        drop(queue);
        drop(aged);
        let cost = first.as_ref().map_or(0, |first| first.cost);
        if cost != turn.taken().get() {
            // As if the turn had been taken for this one.
            self.pacer.give_back((), turn, turn.taken());
            self.pacer.charge((), Cost::new(cost));
        }
        first.map(|first| first.job)
    }

    /// Takes those out that are too old. They are dropped by the caller, after the lock: they are somebody else's code.
    fn drop_aged(&self, queue: &mut Queue<T>, now: Time<Mono>) -> Vec<Job<T>> {
        let mut aged = Vec::new();
        while queue.jobs.front().is_some_and(|first| now.since(first.pushed) > self.max_age) {
            aged.extend(queue.jobs.pop_front());
            queue.expired += 1;
        }
        aged
    }
}

impl<T, C> Shaper<T, C> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the first job weighs, once there is one.
struct Waiting<'a, T, C> {
    shaper: &'a Shaper<T, C>,
    /// Its number among those who found nothing.
    number: Option<u64>,
}

impl<T, C: Clock + Send + Sync + 'static> Future for Waiting<'_, T, C> {
    type Output = Option<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        // Both wakers are dropped after the lock.
        let waker = context.waker().clone();
        let now = self.shaper.pacer.clock().mono();
        let mut queue = self.shaper.lock();
        let before = self.number.take().and_then(|number| queue.idle.remove(&number));
        let aged = self.shaper.drop_aged(&mut queue, now);
        let waiting = match queue.jobs.front() {
            Some(first) => Poll::Ready(Some(first.cost)),
            None if queue.closed => Poll::Ready(None),
            None => {
                queue.idle_number += 1;
                let number = queue.idle_number;
                self.number = Some(number);
                queue.idle.insert(number, waker);
                Poll::Pending
            }
        };
        drop(queue);
        drop((before, aged));
        waiting
    }
}

impl<T, C> Drop for Waiting<'_, T, C> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.shaper.lock().idle.remove(&number);
            drop(waker);
        }
    }
}

impl<T, C> fmt::Debug for Shaper<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper").field("pacer", &self.pacer).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// Lets callers through at a constant rate: a bounded number of them wait for their turn, the rest are turned away. The
/// leaky bucket for those who do the work themselves.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{AcquireError, Funnel};
///
/// // At most ten wait, none longer than a second.
/// let funnel = Funnel::new("1000/s".parse()?, 10).max_wait(Duration::from_secs(1));
/// for _ in 0..3 {
///     funnel.wait(1)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Funnel<C = PreciseClock> {
    pacer: Arc<Pacer<C>>,
    max_wait: Duration,
}

impl Funnel {
    /// `rate` going through, with at most `waiters` waiting for it.
    pub fn new(rate: Rate, waiters: usize) -> Self {
        Self::with_clock(rate, waiters, PreciseClock::new())
    }
}

impl<C: Clock + Send + Sync + 'static> Funnel<C> {
    /// The same with a clock of choice.
    pub fn with_clock(rate: Rate, waiters: usize, clock: C) -> Self {
        let pacer = Pacer::with_clock(constant(rate), clock).max_waiters(waiters);
        Self { pacer: Arc::new(pacer), max_wait: Duration::MAX }
    }

    /// With callers turned away at once who would wait longer than this.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Blocks the thread until its turn comes, unless it is turned away. A cost of `n` keeps the next one waiting `n` times
    /// as long as one of 1.
    ///
    /// # Errors
    /// [`AcquireError::Full`] if as many wait as may, [`AcquireError::TooLate`] if it would take too long; both at once.
    pub fn wait(&self, cost: u64) -> Result<(), AcquireError> {
        self.pacer.acquire(cost).within(self.max_wait).wait().map(|_| ())
    }

    /// The same for a task.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn pass(&self, cost: u64) -> Result<(), AcquireError> {
        self.pacer.acquire(cost).within(self.max_wait).await.map(|_| ())
    }

    /// How many wait.
    pub fn waiters(&self) -> usize {
        self.pacer.waiters()
    }
}

#[cfg(test)]
mod tests;
