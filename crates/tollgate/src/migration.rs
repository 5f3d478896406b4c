//! Calls of other rate limiters and their equivalents in Tollgate. Every call in a right-hand column is compiled and
//! run in the code below its table.
//!
//! Common differences: a cost above the capacity is refused instead of waiting forever. A wait that would end after its
//! deadline is refused immediately. Waiters are served in FIFO order, and a dropped wait consumes nothing.
//!
//! # governor
//!
//! | governor | Tollgate |
//! |---|---|
//! | `RateLimiter::direct(Quota::per_second(50).allow_burst(10))` | `Limiter::new(TokenBucket::new("50/s".parse()?, 10)?)` |
//! | `limiter.check().is_ok()` | `limiter.check(1).is_allowed()` |
//! | `limiter.check_n(n)` | `limiter.check(n)` |
//! | `limiter.until_ready().await` | `limiter.acquire(1).await` |
//! | `limiter.until_n_ready(n).await` | `limiter.acquire(n).await` |
//! | `not_until.wait_time_from(now)` | `limiter.check(1).retry_after()` |
//! | `limiter.until_ready_with_jitter(jitter).await` | `limiter.acquire(1).jitter(jitter).await` |
//! | `RateLimiter::keyed(quota)` | `Keyed::new(TokenBucket::new("50/s".parse()?, 10)?, 100_000)?` |
//! | `limiter.check_key(&key)` | `keyed.check(&key, 1)` |
//! | `limiter.until_key_ready(&key).await` | `keyed.acquire(&key, 1).await` |
//! | `limiter.retain_recent()` | not needed: the table has a fixed size |
//! | `FakeRelativeClock` | `ManualClock::default()` |
//!
//! ```
//! # use std::sync::Arc;
//! # use tollgate::{Keyed, Limiter, TokenBucket};
//! # use tollgate::clock::ManualClock;
//! let limiter = Arc::new(Limiter::new(TokenBucket::new("50/s".parse()?, 10)?));
//! let keyed = Arc::new(Keyed::new(TokenBucket::new("50/s".parse()?, 10)?, 100_000)?);
//! let (n, key, clock) = (2, "alice", ManualClock::default());
//! assert!(limiter.check(1).is_allowed());
//! # let _ = (
//! limiter.check(n),
//! limiter.check(1).retry_after(),
//! keyed.check(&key, 1),
//! # clock);
//! # block_on(async {
//! limiter.acquire(1).await?;
//! limiter.acquire(n).await?;
//! # let jitter = std::time::Duration::from_millis(1);
//! limiter.acquire(1).jitter(jitter).await?;
//! keyed.acquire(&key, 1).await?;
//! # Ok::<(), tollgate::AcquireError>(()) })?;
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut future = std::pin::pin!(future);
//! #     loop {
//! #         let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #         if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut context) { return out; }
//! #         std::thread::yield_now();
//! #     }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # leaky-bucket
//!
//! | leaky-bucket | Tollgate |
//! |---|---|
//! | `RateLimiter::builder().max(10).initial(0).refill(5).interval(1 s).build()` | `Limiter::new(IntervalBucket::new(5, Duration::from_secs(1))?.burst(10)?.initial(0)?)` |
//! | the same limiter, refilled evenly | `Limiter::new(TokenBucket::new("5/s".parse()?, 10)?.initial(0)?)` |
//! | `limiter.acquire(n).await` | `limiter.acquire(n).await` |
//! | `limiter.acquire_one().await` | `limiter.acquire(1).await` |
//! | `limiter.try_acquire(n)` | `limiter.acquire(n).at_once().wait().is_ok()` |
//! | `limiter.acquire_owned(n)` | `limiter.acquire_owned(n)` |
//! | `limiter.balance()` | `limiter.report(1).remaining` |
//! | `builder.fair(true)` | always fair |
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tollgate::{IntervalBucket, Limiter, TokenBucket};
//! let stepwise = Limiter::new(IntervalBucket::new(5, Duration::from_secs(1))?.burst(10)?.initial(0)?);
//! # let _ = stepwise;
//! let evenly = Limiter::new(TokenBucket::new("5/s".parse()?, 10)?.initial(0)?);
//! # assert_eq!(evenly.report(1).remaining, 0);
//! # let limiter = Arc::new(Limiter::new(TokenBucket::new("500/s".parse()?, 10)?));
//! # let n = 2;
//! limiter.acquire(n).at_once().wait().is_ok();
//! let left = limiter.report(1).remaining;
//! # let _ = left;
//! # block_on(async {
//! limiter.acquire(n).await?;
//! limiter.acquire(1).await?;
//! # Ok::<(), tollgate::AcquireError>(()) })?;
//! let task = limiter.acquire_owned(n);
//! # block_on(task)?;
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut future = std::pin::pin!(future);
//! #     loop {
//! #         let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #         if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut context) { return out; }
//! #         std::thread::yield_now();
//! #     }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guava's `RateLimiter`
//!
//! | Guava | Tollgate |
//! |---|---|
//! | `RateLimiter.create(500)` | `Pacer::new("500/s".parse()?)` |
//! | `RateLimiter.create(500, 3, SECONDS)` | `Pacer::warming_up("500/s".parse()?, Duration::from_secs(3))?` |
//! | `limiter.acquire()` | `pacer.acquire(1).wait()?` |
//! | `limiter.acquire(n)` | `pacer.acquire(n).wait()?` |
//! | `limiter.tryAcquire()` | `pacer.acquire(1).at_once().wait().is_ok()` |
//! | `limiter.tryAcquire(n, 1, SECONDS)` | `pacer.acquire(n).within(Duration::from_secs(1)).wait().is_ok()` |
//! | `limiter.setRate(100)` | `pacer.set_rate("100/s".parse()?)` |
//! | `limiter.getRate()` | `pacer.rate()` |
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tollgate::Pacer;
//! # let n = 2;
//! let cold = Pacer::warming_up("500/s".parse()?, Duration::from_secs(3))?;
//! # let _ = cold;
//! let pacer = Arc::new(Pacer::new("500/s".parse()?));
//! pacer.acquire(1).wait()?;
//! pacer.acquire(n).wait()?;
//! pacer.acquire(1).at_once().wait().is_ok();
//! pacer.acquire(n).within(Duration::from_secs(1)).wait().is_ok();
//! pacer.set_rate("100/s".parse()?);
//! assert_eq!(pacer.rate(), "100/s".parse()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # resilience4j's `RateLimiter`
//!
//! | resilience4j | Tollgate |
//! |---|---|
//! | `custom().limitForPeriod(50).limitRefreshPeriod(500 ms).timeoutDuration(5 s)` | `Periodic::new(50, Duration::from_millis(500))?.timeout(Duration::from_secs(5))` |
//! | `limiter.acquirePermission()` | `periodic.acquire(1).wait().is_ok()` |
//! | `limiter.reservePermission(n)` | `periodic.acquire(n).await` |
//! | `limiter.changeLimitForPeriod(60)` | `periodic.set_limit(60)?` |
//! | `limiter.changeTimeoutDuration(1 s)` | `periodic.set_timeout(Duration::from_secs(1))` |
//! | `limiter.drainPermissions()` | `periodic.drain()` |
//! | `metrics.getAvailablePermissions()` | `periodic.available()` |
//! | `metrics.getNumberOfWaitingThreads()` | `periodic.waiters()` |
//! | `RateLimiterRegistry.of(config)` | `Registry::new().on_event(hook)` |
//! | `registry.rateLimiter("backend")` | `registry.limiter("backend", "default")?` |
//! | `eventPublisher.onEvent(hook)` | `Registry::new().on_event(hook)` |
//! | `Bulkhead.of("backend", maxConcurrentCalls 10)` | `Limiter::new(Concurrency::new(10, Duration::from_secs(60))?)` |
//! | `bulkhead.executeSupplier(work)` | `bulkhead.acquire(1).wait_held()?` |
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tollgate::{Concurrency, Limit, Limiter, Periodic, TokenBucket};
//! # use tollgate::registry::{Event, Registry};
//! # let n = 2;
//! let periodic = Periodic::new(50, Duration::from_millis(500))?.timeout(Duration::from_secs(5));
//! assert!(periodic.acquire(1).wait().is_ok());
//! periodic.set_limit(60)?;
//! periodic.set_timeout(Duration::from_secs(1));
//! # block_on(async {
//! periodic.acquire(n).await?;
//! # Ok::<(), tollgate::AcquireError>(()) })?;
//! periodic.drain();
//! periodic.available();
//! periodic.waiters();
//! let hook = |event: &Event<'_>| println!("{event:?}");
//! let registry = Registry::new().on_event(hook);
//! registry.configure("default", Limit::from(TokenBucket::new("50/s".parse()?, 10)?));
//! let backend = registry.limiter("backend", "default")?;
//! # let _ = backend;
//! let bulkhead = Arc::new(Limiter::new(Concurrency::new(10, Duration::from_secs(60))?));
//! let slot = bulkhead.acquire(1).wait_held()?; // Until it is dropped.
//! # drop(slot);
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut future = std::pin::pin!(future);
//! #     loop {
//! #         let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #         if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut context) { return out; }
//! #         std::thread::yield_now();
//! #     }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
mod tests {
    /// The code below a table compiles the table's calls, so it must contain every call of the table.
    #[test]
    fn every_call_of_a_table_is_in_the_code_below_it() {
        // Prose and code alternate.
        let parts: Vec<&str> = include_str!("migration.rs").split("//! ```\n").collect();
        let mut rows = 0;
        for pair in parts.chunks_exact(2) {
            let (table, code) = (pair[0], pair[1]);
            for row in table.lines().filter(|line| line.starts_with("//! |")).skip(2) {
                let ours = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
                if let Some(call) = ours.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
                    assert!(code.contains(call), "{call} is in a table and not in its code");
                    rows += 1;
                }
            }
        }
        assert!(rows > 35, "only {rows} rows were found");
    }
}
