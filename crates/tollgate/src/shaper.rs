//! Traffic shaping: jobs arrive at any time and leave at a constant rate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate_core::{Cost, Mono, Nanos, Rate, Time, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::paced::{Pacer, constant};
use crate::wait::{AcquireError, Waitable, block_on};

/// A bounded queue of jobs that leave at a constant rate: the leaky bucket as a queue.
///
/// A job has a cost of 1 or a given cost, such as its number of bytes or rows. A job of cost `n` delays the next job by
/// the time in which the rate admits `n` units. A full queue discards the newest or the oldest job. A job that has
/// waited longer than the maximum age is dropped, so that stale work does not delay new work.
///
/// Any number of threads and tasks may add and remove jobs. Jobs leave in FIFO order.
///
/// ```
/// use tollgate::shaper::{PushResult, Shaper};
///
/// let shaper = Shaper::new("1000/s".parse()?, 2);
/// assert_eq!(shaper.push("first"), PushResult::Queued);
/// assert_eq!(shaper.push("second"), PushResult::Queued);
/// assert_eq!(shaper.push("third"), PushResult::Rejected("third"));
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
    /// Locked briefly, never while a job is dropped or a waker is woken.
    queue: Mutex<JobQueue<T>>,
}

struct JobQueue<T> {
    jobs: VecDeque<Job<T>>,
    /// Tasks that found the queue empty, by serial number. The next job wakes all these tasks.
    idle_wakers: BTreeMap<u64, Waker>,
    /// The latest serial number.
    last_waker_number: u64,
    expired: u64,
    closed: bool,
}

struct Job<T> {
    job: T,
    cost: u64,
    pushed_at: Time<Mono>,
}

/// The job that a full queue discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The new one.
    #[default]
    Newest,
    /// The oldest one.
    Oldest,
}

/// The result of pushing a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushResult<T> {
    /// The job is in the queue.
    Queued,
    /// The job is in the queue, and the oldest job, returned here, was removed.
    Displaced(T),
    /// The job was not queued, because the queue is full or the shaper is closed.
    Rejected(T),
}

impl<T> Shaper<T> {
    /// Creates a queue of at most `capacity` jobs that leave at `rate`.
    pub fn new(rate: Rate, capacity: usize) -> Self {
        Self::with_clock(rate, capacity, PreciseClock::new())
    }
}

impl<T, C: Clock + Send + Sync + 'static> Shaper<T, C> {
    /// Like [`new`](Shaper::new), but reads the time from `clock`.
    pub fn with_clock(rate: Rate, capacity: usize, clock: C) -> Self {
        let pacer = Pacer::with_clock(constant(rate), clock).max_waiters(usize::MAX);
        let (jobs, idle_wakers) = (VecDeque::new(), BTreeMap::new());
        let queue = JobQueue { jobs, idle_wakers, last_waker_number: 0, expired: 0, closed: false };
        Self {
            pacer: Arc::new(pacer),
            capacity,
            overflow: Overflow::default(),
            max_age: Nanos::MAX,
            queue: Mutex::new(queue),
        }
    }

    /// Sets which job a full queue discards.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Drops jobs that have waited longer than `max_age`.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        Self { max_age: max_age.into(), ..self }
    }

    /// Inserts a job of cost 1.
    pub fn push(&self, job: T) -> PushResult<T> {
        self.push_with_cost(job, 1)
    }

    /// Inserts a job of this cost.
    pub fn push_with_cost(&self, job: T, cost: u64) -> PushResult<T> {
        let now = self.pacer.clock().mono();
        let mut queue = self.lock();
        if queue.closed || self.capacity == 0 {
            return PushResult::Rejected(job);
        }
        let aged = self.remove_expired(&mut queue, now);
        let mut displaced = None;
        if queue.jobs.len() >= self.capacity {
            match self.overflow {
                Overflow::Newest => return PushResult::Rejected(job),
                Overflow::Oldest => displaced = queue.jobs.pop_front(),
            }
        }
        queue.jobs.push_back(Job { job, cost, pushed_at: now });
        let idle_wakers = std::mem::take(&mut queue.idle_wakers);
        drop(queue);
        drop(aged);
        idle_wakers.into_values().for_each(Waker::wake);
        displaced.map_or(PushResult::Queued, |oldest| PushResult::Displaced(oldest.job))
    }

    /// Awaits the next job. Returns `None` once the shaper is closed and empty, or if the timer thread cannot be
    /// started.
    ///
    /// Dropping the future loses no job.
    pub async fn next(&self) -> Option<T> {
        loop {
            let cost = NextJob { shaper: self, waker_number: None }.await?;
            let turn = match self.pacer.acquire(cost).await {
                Ok(turn) => turn,
                Err(AcquireError::NoTimer) => return None,
                Err(_) => continue,
            };
            if let Some(job) = self.take_first_job(&turn) {
                return Some(job);
            }
        }
    }

    /// Blocks the thread until the next job leaves; see [`next`](Self::next).
    pub fn wait_next(&self) -> Option<T> {
        block_on(self.next())
    }

    /// Closes the queue for new jobs. The queued jobs still leave at the same rate.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let idle_wakers = std::mem::take(&mut queue.idle_wakers);
        drop(queue);
        idle_wakers.into_values().for_each(Waker::wake);
    }

    /// Sets the rate. The wait for the last job's cost still uses the old rate.
    pub fn set_rate(&self, rate: Rate) {
        self.pacer.set_rate(rate);
    }

    /// Returns the number of jobs in the queue.
    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of jobs dropped because of their age.
    pub fn expired_jobs(&self) -> u64 {
        self.lock().expired
    }

    /// Removes the first job. `turn` is the pacer's grant. The grant may have been requested for an earlier job that is
    /// no longer in the queue.
    fn take_first_job(&self, turn: &Verdict<u64>) -> Option<T> {
        let now = self.pacer.clock().mono();
        let mut queue = self.lock();
        let aged = self.remove_expired(&mut queue, now);
        let first = queue.jobs.pop_front();
        drop(queue);
        drop(aged);
        let cost = first.as_ref().map_or(0, |first| first.cost);
        if cost != turn.taken().get() {
            // Replaces the grant's charge by the cost of this job.
            self.pacer.give_back((), turn, turn.taken());
            let _ = self.pacer.charge((), Cost::new(cost));
        }
        first.map(|first| first.job)
    }

    /// Removes jobs that are too old. The caller drops them after unlocking, because dropping runs foreign code.
    fn remove_expired(&self, queue: &mut JobQueue<T>, now: Time<Mono>) -> Vec<Job<T>> {
        let mut aged = Vec::new();
        while queue.jobs.front().is_some_and(|first| now.since(first.pushed_at) > self.max_age) {
            aged.extend(queue.jobs.pop_front());
            queue.expired += 1;
        }
        aged
    }
}

impl<T, C> Shaper<T, C> {
    fn lock(&self) -> MutexGuard<'_, JobQueue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until there is a job, and returns its cost.
struct NextJob<'a, T, C> {
    shaper: &'a Shaper<T, C>,
    /// Serial number of the registered waker.
    waker_number: Option<u64>,
}

impl<T, C: Clock + Send + Sync + 'static> Future for NextJob<'_, T, C> {
    type Output = Option<u64>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        // Wakers are foreign code, so they are cloned before locking and dropped after unlocking.
        let waker = context.waker().clone();
        let now = self.shaper.pacer.clock().mono();
        let mut queue = self.shaper.lock();
        let before = self.waker_number.take().and_then(|waker_number| queue.idle_wakers.remove(&waker_number));
        let aged = self.shaper.remove_expired(&mut queue, now);
        let waiting = match queue.jobs.front() {
            Some(first) => Poll::Ready(Some(first.cost)),
            None if queue.closed => Poll::Ready(None),
            None => {
                queue.last_waker_number += 1;
                let waker_number = queue.last_waker_number;
                self.waker_number = Some(waker_number);
                queue.idle_wakers.insert(waker_number, waker);
                Poll::Pending
            }
        };
        drop(queue);
        drop((before, aged));
        waiting
    }
}

impl<T, C> Drop for NextJob<'_, T, C> {
    fn drop(&mut self) {
        if let Some(waker_number) = self.waker_number {
            let waker = self.shaper.lock().idle_wakers.remove(&waker_number);
            drop(waker);
        }
    }
}

impl<T, C> fmt::Debug for Shaper<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper").field("pacer", &self.pacer).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
