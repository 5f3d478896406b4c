//! Tests waiting under a real executor, with the real clock.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{AcquireError, Keyed, Limiter, Pacer, TokenBucket};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("an executor of one thread")
}

#[test]
fn concurrent_tasks_are_served_in_order() {
    let limiter = Arc::new(Limiter::new(TokenBucket::new("1k/s".parse().unwrap(), 1).unwrap()));
    let keyed = Arc::new(Keyed::new(TokenBucket::new("1k/s".parse().unwrap(), 1).unwrap(), 10).unwrap());
    let pacer = Arc::new(Pacer::new("1k/s".parse().unwrap()));
    let served = runtime().block_on(async {
        let task = |number: u32| {
            let (limiter, keyed, pacer) = (Arc::clone(&limiter), Arc::clone(&keyed), Arc::clone(&pacer));
            async move {
                limiter.acquire(1).await.unwrap();
                keyed.acquire("a", 1).await.unwrap();
                pacer.acquire(1).await.unwrap();
                number
            }
        };
        let tasks: Vec<_> = (0..20).map(|number| tokio::spawn(task(number))).collect();
        let mut served = Vec::new();
        for task in tasks {
            served.push(task.await.unwrap());
        }
        served
    });
    assert_eq!(served, (0..20).collect::<Vec<_>>());
}

#[test]
fn timeout_of_the_executor_leaves_the_queue() {
    let limiter = Arc::new(Limiter::new(TokenBucket::new("1/h".parse().unwrap(), 1).unwrap()));
    runtime().block_on(async {
        limiter.acquire(1).await.unwrap();
        let gave_up = tokio::time::timeout(Duration::from_millis(5), limiter.acquire(1)).await;
        assert!(gave_up.is_err() && limiter.waiters() == 0);
        let refused = limiter.acquire(1).within(Duration::from_secs(60)).await;
        assert!(matches!(refused, Err(AcquireError::TooLate { .. })));
    });
}

#[test]
fn executor_shutdown_leaves_nothing_in_the_queue() {
    let limiter = Arc::new(Limiter::new(TokenBucket::new("1/h".parse().unwrap(), 1).unwrap()));
    limiter.drain();
    let runtime = runtime();
    for _ in 0..100 {
        let limiter = Arc::clone(&limiter);
        runtime.spawn(async move { limiter.acquire(1).await });
    }
    runtime.block_on(async {
        while limiter.waiters() < 100 {
            tokio::task::yield_now().await;
        }
    });
    drop(runtime);
    assert_eq!((limiter.waiters(), Arc::strong_count(&limiter)), (0, 1));
    // Nothing was taken, and the queue still works.
    limiter.reset();
    assert!(limiter.acquire(1).wait().is_ok());
}
