//! Acquire: a check that waits until the request is admitted or its deadline passes.
//!
//! A refused request joins the queue of the counter that refused it. Only the head of a queue retries, when the
//! counter's retry time has passed. The other requests wait for their turn, so admission by a counter is FIFO within
//! this node. A retry peeks before it takes, and peeks are not counted and do not lead to a ban. A whole wait therefore
//! counts as one decision instead of many refusals, unless another request takes the capacity between peek and take.
//!
//! Waiting is bounded: at most [`MAX_WAITERS`] requests wait, each for at most [`MAX_WAIT`]. If the future is dropped
//! during such a wait, the request leaves the queue and consumes nothing.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};
use tollgate_engine::{Decisions, Request, Store};

use super::Verb;
use super::run::decide_requests;
use crate::app::App;
use crate::net::protocol::Protocol;

/// Maximum number of waiting requests. Further requests are decided without waiting.
pub const MAX_WAITERS: usize = 10_000;
/// Maximum wait of a request.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// Retry interval for a concurrency slot. Another node may release the slot, so there is no local event to wait for.
const SLOT_RETRY_INTERVAL: Duration = Duration::from_millis(25);
/// Interval at which a waiting request checks for shutdown.
const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The waiting requests, with one queue per counter.
#[derive(Debug, Default)]
pub struct Waiters {
    queues: Mutex<HashMap<Box<[u8]>, CounterQueue>>,
    waiting: AtomicUsize,
    turned_away: AtomicU64,
    jitter_hasher: RandomState,
}

/// The requests that wait for one counter.
#[derive(Debug, Default)]
struct CounterQueue {
    /// Held by the head of the queue. The mutex is fair, so members acquire it in order of arrival.
    head_lock: Arc<tokio::sync::Mutex<()>>,
    member_count: usize,
}

/// A request in a queue. The request leaves the queue when this value is dropped.
struct QueueMember<'w> {
    waiters: &'w Waiters,
    counter: Box<[u8]>,
    /// Present while this member is the head of the queue.
    head_guard: Option<OwnedMutexGuard<()>>,
}

/// One of the [`MAX_WAITERS`] waiter slots. Dropping this value frees the slot.
struct WaiterSlot<'w>(&'w Waiters);

impl Waiters {
    /// Returns the number of waiting requests.
    pub fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that could not wait because all waiter slots were taken.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    fn acquire_slot(&self) -> Option<WaiterSlot<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITERS {
            return Some(WaiterSlot(self));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn lock_queues(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, CounterQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a counter has a queue.
    fn has_queue(&self, counter: &[u8]) -> bool {
        self.waiting_count() > 1 && self.lock_queues().contains_key(counter)
    }

    /// Joins the queue of a counter and waits to become its head. Returns `None` if the deadline passes first.
    async fn join_queue(&self, counter: &[u8], deadline: Instant) -> Option<QueueMember<'_>> {
        let head_lock = {
            let mut queues = self.lock_queues();
            let queue = queues.entry(counter.into()).or_default();
            queue.member_count += 1;
            queue.head_lock.clone()
        };
        let mut member = QueueMember { waiters: self, counter: counter.into(), head_guard: None };
        member.head_guard = Some(timeout_at(deadline, head_lock.lock_owned()).await.ok()?);
        Some(member)
    }

    /// Adds jitter to a wait, so that nodes with the same wait do not retry at the same instant.
    fn with_jitter(&self, wait: Duration) -> Duration {
        let max = (wait / 16).min(Duration::from_millis(20)).as_nanos() as u64;
        wait + Duration::from_nanos(self.jitter_hasher.hash_one(Instant::now()) % (max + 1))
    }
}

impl Drop for QueueMember<'_> {
    fn drop(&mut self) {
        // Let the next member become the head, then leave. The last member removes the queue.
        self.head_guard = None;
        let mut queues = self.waiters.lock_queues();
        if let Some(queue) = queues.get_mut(&self.counter) {
            queue.member_count -= 1;
            if queue.member_count == 0 {
                queues.remove(&self.counter);
            }
        }
    }
}

impl Drop for WaiterSlot<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Decides a request. If the request would be refused, waits up to `wait` for capacity. Does not wait if no capacity
/// can become available within `wait`.
pub async fn acquire<S: Store>(
    app: &App<S>,
    protocol: Protocol,
    request: &Request<'_>,
    wait: Duration,
    decisions: &mut Decisions,
) {
    let deadline = Instant::now() + wait.min(MAX_WAIT);
    let requests = std::slice::from_ref(request);
    let admitted = match app.waiters.acquire_slot() {
        Some(_slot) => tokio::select! {
            admitted = wait_for_admission(app, protocol, requests, deadline, decisions) => admitted,
            () = wait_for_shutdown(app) => false,
        },
        None => false,
    };
    if !admitted {
        decide_requests(app, protocol, Verb::Check, requests, decisions, app.now()).await;
    }
    // Sleep here if the decision is a delay that ends before the deadline.
    if let Ok(Outcome::Delay(wait)) = decisions.get(0).map(|decision| decision.outcome())
        && Instant::now() + Duration::from(wait) <= deadline
    {
        tokio::select! {
            () = sleep(wait.into()) => decisions.finish_delays(),
            // On shutdown, the reply reports the delay, and the caller waits.
            () = wait_for_shutdown(app) => {}
        }
    }
}

/// Waits for admission. Returns true if `decisions` contains the final result: the request was admitted or is invalid.
async fn wait_for_admission<S: Store>(
    app: &App<S>,
    protocol: Protocol,
    requests: &[Request<'_>],
    deadline: Instant,
    decisions: &mut Decisions,
) -> bool {
    let waiters = &app.waiters;
    let mut member: Option<QueueMember<'_>> = None;
    loop {
        app.engine.peek_batch(requests, decisions).await;
        let Ok(decision) = decisions.get(0) else { return true };
        // Requests that already wait for this counter have priority.
        if let Some(counter) = decision.deciding_key().filter(|counter| member.is_none() && waiters.has_queue(counter))
        {
            match waiters.join_queue(counter, deadline).await {
                Some(joined) => member = Some(joined),
                None => return false,
            }
            continue;
        }
        let mut refused = decision.retry();
        if refused.is_none() {
            decide_requests(app, protocol, Verb::Check, requests, decisions, app.now()).await;
            match decisions.get(0) {
                Ok(decision) if !decision.is_admitted() => refused = decision.retry(),
                Ok(_) | Err(_) => return true,
            }
        }
        let pause = match refused {
            Some(Retry::After(wait)) => Duration::from(wait.max(Nanos::from_millis(1))),
            Some(Retry::OnRelease) => SLOT_RETRY_INTERVAL,
            Some(Retry::Never) | None => return false,
        };
        if Instant::now() + pause > deadline {
            return false;
        }
        let counter = decisions.get(0).ok().and_then(|decision| decision.deciding_key());
        match (&member, counter) {
            (None, Some(counter)) => match waiters.join_queue(counter, deadline).await {
                Some(joined) => member = Some(joined),
                None => return false,
            },
            (Some(_), _) | (None, None) => {
                sleep_until((Instant::now() + waiters.with_jitter(pause)).min(deadline)).await;
            }
        }
    }
}

async fn wait_for_shutdown<S: Store>(app: &App<S>) {
    while !app.connections.is_stopping() {
        sleep(SHUTDOWN_CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::clock::Clock;
    use tollgate::core::{Mono, Time, Wall};
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Attribute, Engine, Item, MemoryStore};

    /// A clock that follows tokio's paused test clock.
    #[derive(Debug)]
    struct PausedClock(Instant);

    impl Clock for PausedClock {
        fn mono(&self) -> Time<Mono> {
            Time::from_nanos(1_000_000_000 + self.0.elapsed().as_nanos() as u64)
        }

        fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
            Time::from_nanos(mono.as_nanos())
        }
    }

    fn app_with_rules(rules: &str) -> Arc<App<MemoryStore<PausedClock>>> {
        let store = MemoryStore::with_clock(1_000, Arc::new(PausedClock(Instant::now()))).expect("a table");
        let engine = Engine::new(store).expect("an engine");
        let text = format!("domain: d\nrules:\n{rules}");
        engine.put(&Rules::read(&[Source { name: "r", text: text.as_bytes() }]).expect("rules")).expect("numbers");
        Arc::new(App::new(engine, None))
    }

    /// Acquires capacity for a user. Returns whether the request was admitted, and the wait in milliseconds.
    async fn acquire_for(app: &App<MemoryStore<PausedClock>>, user: &str, wait: u64) -> (bool, u128) {
        let start = Instant::now();
        let attributes = [Attribute::new("user", user)];
        let items = [Item::new(&attributes)];
        let mut decisions = Decisions::default();
        let wait = Duration::from_millis(wait);
        acquire(app, Protocol::Http, &Request::new("d", &items), wait, &mut decisions).await;
        (decisions.get(0).expect("a request").is_admitted(), start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_for_capacity_but_not_longer_than_its_maximum_wait() {
        let app = app_with_rules("- {id: r, per: [user], limit: 1/s}\n");
        assert_eq!(acquire_for(&app, "a", 5_000).await, (true, 0));
        let (allowed, waited) = acquire_for(&app, "a", 5_000).await;
        assert!(allowed && (1_000..=1_020).contains(&waited), "{waited} ms");
        assert_eq!(acquire_for(&app, "a", 900).await, (false, 0), "a wait that cannot succeed is not started");
        assert_eq!(acquire_for(&app, "b", 0).await, (true, 0));
        let counts = app.engine.rules().rules()[0].meter().counts();
        assert_eq!((counts.allowed, counts.refused), (3, 1), "each request counts once");
        assert_eq!((app.waiters.waiting_count(), app.waiters.queues.lock().expect("no thread panicked").len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn admission_is_fifo_and_a_cancelled_waiter_leaves_the_queue() {
        let app = app_with_rules("- {id: r, limit: 1/s}\n");
        assert!(acquire_for(&app, "a", 0).await.0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..5 {
            let (app, order) = (app.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let (allowed, _) = acquire_for(&app, &n.to_string(), 30_000).await;
                order.lock().expect("no thread panicked").push((n, allowed));
            }));
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(app.waiters.waiting_count(), 5);
        tasks[1].abort();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_ok(), n != 1);
        }
        assert_eq!(*order.lock().expect("no thread panicked"), [(0, true), (2, true), (3, true), (4, true)]);
        assert_eq!(app.waiters.waiting_count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn delay_is_awaited_and_shutdown_ends_every_wait() {
        let app = app_with_rules(
            "- {id: slow, when: {user: s}, limit: 1/s, burst: 1, on_exceed: {delay: {max_wait: 9s}}}\n\
             - {id: slots, when: {user: c}, limit: 1, algorithm: concurrency}\n",
        );
        assert_eq!(acquire_for(&app, "s", 5_000).await, (true, 0));
        assert_eq!(acquire_for(&app, "s", 5_000).await, (true, 1_000));
        assert_eq!(acquire_for(&app, "c", 5_000).await, (true, 0));
        let (allowed, waited) = acquire_for(&app, "c", 2_000).await;
        assert!(!allowed && (1_950..=2_000).contains(&waited), "{waited} ms");
        for _ in 0..5 {
            assert_eq!(acquire_for(&app, "s", 0).await.1, 0, "each adds a second to the delay of the next");
        }
        let [waiting, delayed] = ["c", "s"].map(|user| {
            let app = app.clone();
            tokio::spawn(async move { acquire_for(&app, user, 50_000).await })
        });
        sleep(Duration::from_millis(100)).await;
        app.connections.stop();
        let (allowed, waited) = waiting.await.expect("an answer");
        assert!(!allowed && waited <= 1_000, "{waited} ms");
        let (_, waited) = delayed.await.expect("an answer");
        assert!(waited <= 1_000, "{waited} ms of a delay of several seconds");
    }
}
