//! Tests waiting with real threads, mostly on the real clock.

use super::*;

/// Checks that the amount admitted in the time `T` of the whole run is at most `burst + rate × T`, and that every
/// waiter is served.
#[test]
fn threads_that_wait_and_cancel_at_random_stay_within_the_limit() {
    let rate = 20_000;
    let limiter = Arc::new(Limiter::new(TokenBucket::new(crate::Rate::per_second(rate).unwrap(), 10).unwrap()));
    let start = limiter.clock().now();
    let passed: u64 = on_threads(8, |thread| {
        let mut dice = Rng::new(thread + 1);
        let mut passed = 0;
        for _ in 0..500 {
            let cost = 1 + dice.below(3);
            match dice.below(4) {
                0 => passed += limiter.acquire(cost).wait().unwrap().taken().get(),
                1 => {
                    let patience = Duration::from_micros(dice.below(500));
                    passed += limiter.acquire(cost).within(patience).wait().map_or(0, |verdict| verdict.taken().get());
                }
                // Joins the queue and leaves it again, granted or not.
                2 => {
                    if let Some(Ok(verdict)) = poll(&mut limiter.acquire(cost)) {
                        passed += verdict.taken().get();
                    }
                }
                _ => {
                    let verdict = limiter.acquire(cost).wait().unwrap();
                    limiter.refund(&verdict);
                }
            }
        }
        passed
    })
    .into_iter()
    .sum();
    let time = limiter.clock().now().mono().since(start.mono());
    let most = 10 + u64::try_from(u128::from(time.as_nanos()) * u128::from(rate) / 1_000_000_000).unwrap();
    assert!(passed <= most, "{passed} passed in {time} (maximum {most})");
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn waiting_threads_never_hold_more_slots_than_the_limit() {
    let slots = Arc::new(Limiter::new(Concurrency::new(3, Nanos::from_secs(3_600)).unwrap()));
    let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
    on_threads(8, |_| {
        for _ in 0..300 {
            let slot = slots.acquire(1).wait().unwrap();
            most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            held.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(slots.refund(&slot), 1);
        }
    });
    assert!(most.into_inner() <= 3);
    assert_eq!(slots.report(1).remaining, 3);
}

/// Each thread joins the queue before the next thread starts. In FIFO order, the threads are served in the order of
/// their numbers.
#[test]
fn threads_are_served_in_order_of_arrival() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let (served, order) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..16_u64 {
            let (limiter, served, order) = (&limiter, &served, &order);
            scope.spawn(move || {
                limiter.acquire(1).wait().unwrap();
                order.lock().unwrap().push(number);
                served.fetch_add(1, Ordering::SeqCst);
            });
            while limiter.waiters() as u64 <= number {
                std::thread::yield_now();
            }
        }
        for turn in 1..=16 {
            clock.advance(TENTH_OF_SECOND);
            while served.load(Ordering::SeqCst) < turn {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(order.into_inner().unwrap(), (0..16).collect::<Vec<_>>());
}

#[test]
fn clock_moved_by_another_thread_wakes_waiters() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let served = AtomicU64::new(0);
    on_threads(3, |thread| {
        while served.load(Ordering::SeqCst) < 2_000 {
            if thread == 0 {
                assert!(limiter.acquire(1).wait().is_ok());
                served.fetch_add(1, Ordering::SeqCst);
            } else {
                clock.advance(TENTH_OF_SECOND);
                std::thread::yield_now();
            }
        }
    });
}

/// At this rate, the next waiter can often pass before the previous waiter has been handled.
#[test]
fn extreme_rate_serves_all_waiters() {
    let limiter = Arc::new(Limiter::new(TokenBucket::new("1/50ns".parse().unwrap(), 1).unwrap()));
    on_threads(4, |_| (0..5_000).for_each(|_| assert!(limiter.acquire(1).wait().is_ok())));
    let _ = limiter.charge(1);
    let mut waiting: Vec<_> = (0..50_000).map(|_| limiter.acquire(1)).collect();
    let mut left: Vec<_> = waiting.iter_mut().filter_map(|future| poll(future).is_none().then_some(future)).collect();
    while !left.is_empty() {
        left.retain_mut(|future| poll(future).is_none());
        std::thread::yield_now();
    }
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn waiting_threads_get_no_more_than_the_limit_of_each_key() {
    let keyed = Arc::new(Keyed::new(TokenBucket::new("5k/s".parse().unwrap(), 3).unwrap(), 1_000).unwrap());
    let start = keyed.clock().mono();
    let passed: Vec<[u64; 4]> = on_threads(8, |thread| {
        let mut dice = Rng::new(thread + 1);
        let mut passed = [0; 4];
        for _ in 0..300 {
            let key = dice.below(4) as usize;
            let patience = Duration::from_micros(dice.below(3_000));
            let acquire = keyed.acquire([b'a' + key as u8].as_slice(), 1).within(patience);
            passed[key] += acquire.wait().map_or(0, |verdict| verdict.taken().get());
        }
        passed
    });
    let most = 3 + keyed.clock().mono().since(start).as_nanos() * 5 / 1_000_000;
    for key in 0..4 {
        let passed: u64 = passed.iter().map(|passed| passed[key]).sum();
        assert!((1..=most).contains(&passed), "{passed} passed (maximum {most})");
    }
    assert_eq!(keyed.waiters(), 0);
}

#[test]
fn cached_clock_wakes_waiters() {
    let clock = crate::clock::CachedClock::start(Duration::from_millis(1)).unwrap();
    let limiter = Arc::new(Limiter::with_clock(TokenBucket::new("500/s".parse().unwrap(), 1).unwrap(), clock));
    (0..5).for_each(|_| assert!(limiter.acquire(1).wait().is_ok()));
}
