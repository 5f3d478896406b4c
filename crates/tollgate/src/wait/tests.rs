use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::clock::ManualClock;
use crate::testing::{DAY, Rng, SECOND, bucket, clock, daily_window, on_threads, two_word_bucket};
use crate::{Concurrency, Keyed, LeakyBucket, Limiter, SlidingLog, TokenBucket};
use tollgate_core::Algorithm;

mod real;

type TestLimiter<A> = Arc<Limiter<A, Arc<ManualClock>>>;
type WaitingFuture<'a, A> = Acquire<'a, Limiter<A, Arc<ManualClock>>>;

const TENTH_OF_SECOND: Nanos = Nanos::from_millis(100);

fn limiter<A: Algorithm>(limit: A, clock: &Arc<ManualClock>) -> TestLimiter<A> {
    Arc::new(Limiter::with_clock(limit, Arc::clone(clock)))
}

/// Returns a drained limiter of 10/s.
fn drained_limiter(burst: u64, clock: &Arc<ManualClock>) -> TestLimiter<TokenBucket> {
    let limiter = limiter(bucket(burst), clock);
    limiter.drain();
    limiter
}

#[derive(Default)]
struct CountingWaker(AtomicU64);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls each future once, removes the ready futures and returns their indices.
fn take_ready<G: Waitable>(futures: &mut [Option<Acquire<'_, G>>]) -> Vec<usize> {
    let mut done = Vec::new();
    for (place, slot) in futures.iter_mut().enumerate() {
        if slot.as_mut().is_some_and(|future| poll(future).is_some_and(|answer| answer.is_ok())) {
            *slot = None;
            done.push(place);
        }
    }
    done
}

/// Returns `count` futures that have entered the queue in order.
fn queue_waiters<A>(limiter: &TestLimiter<A>, count: usize) -> Vec<Option<WaitingFuture<'_, A>>>
where
    A: Algorithm + Send + Sync + 'static,
{
    let join = |_| {
        let mut future = limiter.acquire(1);
        assert!(poll(&mut future).is_none());
        Some(future)
    };
    (0..count).map(join).collect()
}

#[test]
fn owned_future_waits_without_borrowing_the_limiter() {
    fn assert_static<T: Send + 'static>(future: T) -> T {
        future
    }
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut owned = assert_static(Arc::clone(&limiter).acquire_owned(1));
    assert!(poll(&mut owned).is_none());
    let mut permit = Box::pin(assert_static(Arc::clone(&limiter).acquire_owned(1).held()));
    assert!(poll(&mut permit).is_none());
    clock.advance_through_alarms(TENTH_OF_SECOND);
    assert!(poll(&mut owned).is_some_and(|answer| answer.is_ok()));
    clock.advance_through_alarms(TENTH_OF_SECOND);
    drop(poll(&mut permit).unwrap().unwrap());
    assert_eq!(limiter.report(1).remaining, 1);
}

#[test]
fn jitter_delays_only_waiters_and_never_beyond_the_deadline() {
    let clock = clock();
    let limiter = limiter(bucket(1), &clock);
    let jitter = Duration::from_millis(50);
    let mut at_once = limiter.acquire(1).jitter(jitter);
    assert!(poll(&mut at_once).is_some(), "a request that passes immediately is not delayed");
    let mut delays = std::collections::BTreeSet::new();
    for _ in 0..32 {
        limiter.drain();
        let mut future = limiter.acquire(1).jitter(jitter);
        assert!(poll(&mut future).is_none());
        clock.advance_through_alarms(TENTH_OF_SECOND);
        let turn = clock.mono();
        let mut woken = 0;
        while poll(&mut future).is_none() {
            clock.advance_through_alarms(Nanos::from_micros(100));
            woken += 1;
        }
        assert!(clock.mono().since(turn) <= Nanos::from_millis(51), "{:?} late", clock.mono().since(turn));
        delays.insert(woken);
    }
    assert!(delays.len() > 4, "32 delays have only {} lengths", delays.len());
    limiter.drain();
    let mut urgent = limiter.acquire(1).jitter(Duration::from_secs(3_600)).within(Duration::from_millis(120));
    assert!(poll(&mut urgent).is_none());
    clock.advance_through_alarms(Nanos::from_millis(120));
    // The first poll after the grant chooses the delay, which ends at the deadline at the latest.
    assert!(poll(&mut urgent).is_some_and(|answer| answer.is_ok()));
}

#[test]
fn cancelled_jitter_gives_the_turn_back() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let count = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut future = limiter.acquire(1).jitter(Duration::from_secs(3_600));
    assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance_through_alarms(TENTH_OF_SECOND);
    assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((limiter.report(1).remaining, count.0.load(Ordering::Relaxed)), (0, 1));
    drop(future);
    assert_eq!(limiter.report(1).remaining, 1);
    // The alarm wakes the task when the delay is over.
    let mut future = limiter.acquire(1);
    assert!(poll(&mut future).is_some());
    let mut future = limiter.acquire(1).jitter(Duration::from_secs(1));
    assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance_through_alarms(TENTH_OF_SECOND);
    if Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending() {
        let before = count.0.load(Ordering::Relaxed);
        clock.advance_through_alarms(Nanos::SECOND);
        assert_eq!(count.0.load(Ordering::Relaxed), before + 1);
        assert!(poll(&mut future).is_some());
    }
}

#[test]
fn waiters_are_served_in_order_at_the_exact_time() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut waiting = queue_waiters(&limiter, 5);
    for turn in 0..5 {
        clock.advance(TENTH_OF_SECOND.saturating_sub(Nanos::from_nanos(1)));
        assert_eq!(take_ready(&mut waiting), [], "one nanosecond early");
        clock.advance(Nanos::from_nanos(1));
        assert_eq!(take_ready(&mut waiting), [turn]);
    }
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn new_waiter_does_not_overtake_even_if_it_would_fit() {
    let clock = clock();
    let limiter = drained_limiter(5, &clock);
    let mut large = limiter.acquire(5);
    assert!(poll(&mut large).is_none());
    clock.advance(TENTH_OF_SECOND);
    let mut small = limiter.acquire(1);
    assert!(poll(&mut small).is_none());
    assert!(matches!(limiter.acquire(1).at_once().wait(), Err(AcquireError::TooLate { .. })));
    clock.advance_through_alarms(Nanos::from_millis(400));
    assert_eq!((poll(&mut large).is_some(), poll(&mut small).is_some()), (true, false));
    clock.advance(TENTH_OF_SECOND);
    assert!(poll(&mut small).is_some());
}

#[test]
fn cancelled_waiter_takes_nothing_and_the_others_move_up() {
    for gone in 0..4 {
        let clock = clock();
        let limiter = drained_limiter(1, &clock);
        let mut waiting = queue_waiters(&limiter, 4);
        waiting[gone] = None;
        let mut served = Vec::new();
        for _ in 0..3 {
            clock.advance(TENTH_OF_SECOND);
            served.extend(take_ready(&mut waiting));
        }
        assert_eq!(served, (0..4).filter(|place| *place != gone).collect::<Vec<_>>());
        clock.advance(TENTH_OF_SECOND);
        assert!(limiter.check(1).is_allowed(), "the token that the departed waiter did not take");
    }
}

#[test]
fn grant_of_a_cancelled_waiter_goes_to_the_next_waiter() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut waiting = queue_waiters(&limiter, 2);
    clock.advance(TENTH_OF_SECOND);
    // The first waiter has the grant but is never polled.
    assert!(!limiter.peek(1).is_allowed());
    waiting[0] = None;
    assert_eq!(take_ready(&mut waiting), [1]);
}

#[test]
fn request_that_would_wait_too_long_is_refused_immediately_and_takes_nothing() {
    let clock = clock();
    let limiter = drained_limiter(3, &clock);
    let _ahead = queue_waiters(&limiter, 4);
    let patience = |nanos| limiter.acquire(2).within(Duration::from_nanos(nanos));
    let needed = 600_000_000;
    let retry = Retry::After(Nanos::from_nanos(needed));
    assert_eq!(patience(needed - 1).wait(), Err(AcquireError::TooLate { retry }));
    assert_eq!(limiter.acquire(4).wait(), Err(AcquireError::NeverFits));
    assert_eq!(limiter.waiters(), 4);
    let mut just = patience(needed);
    assert!(poll(&mut just).is_none());
    clock.advance_through_alarms(Nanos::from_nanos(needed));
    assert!(matches!(poll(&mut just), Some(Ok(_))));
}

#[test]
fn advertised_wait_is_the_actual_wait() {
    let mut dice = Rng::new(7);
    for round in 0..200 {
        let clock = clock();
        let rate: crate::Rate = dice.pick(&["10/s", "7/s", "3/s"]).parse().unwrap();
        let leaky = LeakyBucket::new(rate, 10).unwrap().free(dice.below(11)).unwrap();
        let limit: crate::Limit =
            if round % 2 == 0 { TokenBucket::new(rate, 10).unwrap().into() } else { leaky.into() };
        let limiter = limiter(limit, &clock);
        let mut ahead: Vec<_> = (0..dice.below(20)).map(|_| limiter.acquire(1 + dice.below(10))).collect();
        ahead.retain_mut(|future| poll(future).is_none());
        clock.advance(Nanos::from_nanos(dice.below(100_000_000)));
        let cost = 1 + dice.below(10);
        let Err(AcquireError::TooLate { retry: Retry::After(wait) }) = limiter.acquire(cost).at_once().wait() else {
            continue;
        };
        let mut last = limiter.acquire(cost);
        assert!(poll(&mut last).is_none());
        clock.advance_through_alarms(wait.saturating_sub(Nanos::from_nanos(1)));
        assert!(poll(&mut last).is_none(), "too early");
        // If the ticks of a request are not a whole number of nanoseconds, each waiter ahead may add a rounding error
        // below 1 ns.
        clock.advance_through_alarms(Nanos::from_nanos(if rate.to_string() == "10/s" {
            1
        } else {
            1 + ahead.len() as u64
        }));
        assert!(poll(&mut last).is_some(), "too late");
    }
}

#[test]
fn deadline_passes_when_another_caller_took_the_tokens() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut future = limiter.acquire(1).within(Duration::from_millis(150));
    assert!(poll(&mut future).is_none());
    clock.advance(Nanos::from_millis(99));
    let _ = limiter.charge(1);
    clock.advance_through_alarms(Nanos::from_millis(50));
    assert!(poll(&mut future).is_none());
    clock.advance_through_alarms(Nanos::from_millis(1));
    assert_eq!(poll(&mut future), Some(Err(AcquireError::TimedOut)));
    clock.advance(Nanos::from_millis(50));
    assert!(limiter.check(1).is_allowed());
}

#[test]
fn wait_queue_is_bounded() {
    let clock = clock();
    let limiter = Arc::new(Limiter::with_clock(bucket(1), Arc::clone(&clock)).max_waiters(2));
    limiter.drain();
    let mut waiting = queue_waiters(&limiter, 2);
    assert_eq!(limiter.acquire(1).wait(), Err(AcquireError::Full));
    waiting.pop();
    assert!(poll(&mut limiter.acquire(1)).is_none());
    let keyed = Arc::new(Keyed::with_clock(bucket(1), 100, clock).unwrap().max_waiters(3, 2));
    for key in ["a", "b"] {
        keyed.drain(key);
    }
    let mut seats: Vec<_> = ["a", "a", "b"].iter().map(|key| keyed.acquire(*key, 1)).collect();
    assert!(seats.iter_mut().all(|seat| poll(seat).is_none()));
    assert_eq!(keyed.acquire("b", 1).wait(), Err(AcquireError::Full), "at most three in total");
    seats.pop();
    assert_eq!(keyed.acquire("a", 1).wait(), Err(AcquireError::Full), "at most two per key");
    assert!(poll(&mut keyed.acquire("b", 1)).is_none());
}

#[test]
fn waiter_beyond_a_million_is_refused() {
    let clock = clock();
    let limiter = Arc::new(Limiter::with_clock(bucket(1), Arc::clone(&clock)).max_waiters(1_000_000));
    limiter.drain();
    let mut waiting = queue_waiters(&limiter, 1_000_000);
    assert_eq!((limiter.acquire(1).wait(), limiter.waiters()), (Err(AcquireError::Full), 1_000_000));
    clock.advance(TENTH_OF_SECOND);
    assert!(poll(waiting[0].as_mut().unwrap()).is_some());
    drop(waiting);
    assert_eq!(limiter.waiters(), 0);
    clock.advance(TENTH_OF_SECOND);
    assert!(limiter.acquire(1).at_once().wait().is_ok());
}

#[test]
fn refund_goes_to_waiters() {
    let clock = clock();
    let limiter = limiter(bucket(2), &clock);
    let taken = limiter.check(2);
    let mut waiting = queue_waiters(&limiter, 3);
    limiter.refund(&taken);
    assert_eq!(take_ready(&mut waiting), [0, 1]);
    limiter.reset();
    assert_eq!(take_ready(&mut waiting), [2]);
}

#[test]
fn slots_go_to_the_next_waiter_when_released_or_expired() {
    let clock = clock();
    let slots = limiter(Concurrency::new(2, SECOND).unwrap(), &clock);
    let held = slots.check(1);
    clock.advance(TENTH_OF_SECOND);
    assert!(slots.check(1).is_allowed());
    let mut waiting = queue_waiters(&slots, 3);
    assert_eq!(slots.refund(&held), 1);
    assert_eq!(take_ready(&mut waiting), [0]);
    clock.advance_through_alarms(SECOND.saturating_sub(Nanos::from_nanos(1)));
    assert_eq!(take_ready(&mut waiting), []);
    clock.advance_through_alarms(Nanos::from_nanos(1));
    assert_eq!(take_ready(&mut waiting), [1, 2], "both leases were taken at the same moment");
}

#[test]
fn waiting_is_not_counted_as_a_refusal() {
    let clock = clock();
    let limit = SlidingLog::new(1, SECOND).unwrap().count_refused();
    let limiter = limiter(limit, &clock);
    assert!(limiter.check(1).is_allowed());
    let mut waiting = queue_waiters(&limiter, 1);
    clock.advance_through_alarms(SECOND);
    assert_eq!(take_ready(&mut waiting), [0]);
}

#[test]
fn clock_jump_serves_waiters_in_order() {
    let clock = clock();
    let limiter = drained_limiter(2, &clock);
    let mut waiting = queue_waiters(&limiter, 4);
    let mut hasty = limiter.acquire(1).within(Duration::from_millis(500));
    assert!(poll(&mut hasty).is_none());
    clock.advance(DAY);
    assert_eq!(take_ready(&mut waiting), [0, 1], "the jump grants at most a burst");
    assert_eq!(poll(&mut hasty), Some(Err(AcquireError::TimedOut)));
    clock.advance_through_alarms(Nanos::from_millis(200));
    assert_eq!(take_ready(&mut waiting), [2, 3]);
}

#[test]
fn clock_set_back_delays_no_waiter_by_more_than_burst_and_debt() {
    let clock = clock();
    let limiter = drained_limiter(2, &clock);
    let mut waiting = queue_waiters(&limiter, 1);
    clock.set(0);
    assert_eq!(take_ready(&mut waiting), []);
    clock.advance_through_alarms(Nanos::from_millis(300));
    assert_eq!(take_ready(&mut waiting), [0]);

    let limiter = Arc::new(Limiter::with_clock(daily_window(1), Arc::clone(&clock)));
    assert!(limiter.check(1).is_allowed());
    let mut waiting = queue_waiters(&limiter, 1);
    clock.step_wall(20 * DAY.as_nanos() as i64);
    clock.advance_through_alarms(SECOND);
    assert_eq!(
        take_ready(&mut waiting),
        [0],
        "the wall clock stepped into another day, which is noticed within a second"
    );
    let mut waiting = queue_waiters(&limiter, 1);
    clock.step_wall(-(10 * DAY.as_nanos() as i64));
    clock.advance_through_alarms(DAY);
    assert_eq!(take_ready(&mut waiting), [0], "after setting the clock forward again");
}

#[test]
fn unpolled_future_delays_no_other_waiter() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut waiting = queue_waiters(&limiter, 3);
    // The leaked future simulates an executor that stopped without dropping it.
    std::mem::forget(waiting[0].take());
    clock.advance_through_alarms(Nanos::from_millis(300));
    assert_eq!(take_ready(&mut waiting), [1, 2]);
}

#[test]
fn executor_that_is_shut_down_leaves_no_waiter() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for _ in 0..3 {
        let limiter = Arc::clone(&limiter);
        tasks.push(Box::pin(async move { assert!(limiter.acquire(1).await.is_ok()) }));
    }
    assert!(tasks.iter_mut().all(|task| poll(task).is_none()));
    drop(tasks);
    assert_eq!((limiter.waiters(), Arc::strong_count(&limiter)), (0, 1));
    clock.advance(TENTH_OF_SECOND);
    assert!(limiter.check(1).is_allowed());
}

#[test]
fn limiter_may_be_dropped_before_the_alarm_fires() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    drop(queue_waiters(&limiter, 1));
    drop(limiter);
    clock.advance(SECOND);
}

#[test]
fn panicking_waker_does_not_prevent_other_wakeups() {
    struct PanickingWaker;
    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let clock = clock();
    let limiter = limiter(bucket(2), &clock);
    limiter.drain();
    let (mut first, mut second) = (limiter.acquire(1), limiter.acquire(1));
    let woken = Arc::new(CountingWaker::default());
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&Arc::new(PanickingWaker).into())).is_pending());
    assert!(Pin::new(&mut second).poll(&mut Context::from_waker(&Arc::clone(&woken).into())).is_pending());
    let leap = catch_unwind(AssertUnwindSafe(|| clock.advance(SECOND)));
    assert!(leap.is_ok() && woken.0.load(Ordering::Relaxed) == 1);
    assert!(poll(&mut first).is_some() && poll(&mut second).is_some());
}

/// A waker may own the last reference to its task. Dropping the waker then drops the task and its futures.
#[test]
fn dropping_a_waker_that_leaves_the_same_queue_does_not_deadlock() {
    #[expect(dead_code, reason = "the content is only dropped")]
    struct Task(Mutex<Option<WaitingFuture<'static, TokenBucket>>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let clock = clock();
    let limiter: &'static TestLimiter<TokenBucket> = Box::leak(Box::new(drained_limiter(1, &clock)));
    let task = |mut other: WaitingFuture<'static, TokenBucket>| {
        assert!(poll(&mut other).is_none());
        Waker::from(Arc::new(Task(Mutex::new(Some(other)))))
    };
    let (mut first, mut second) = (limiter.acquire(1), limiter.acquire(1));
    for future in [&mut first, &mut second] {
        assert!(Pin::new(future).poll(&mut Context::from_waker(&task(limiter.acquire(1)))).is_pending());
    }
    assert_eq!(limiter.waiters(), 4);
    // A waker is dropped when it is replaced, when its waiter is served, and when its waiter leaves.
    assert!(poll(&mut first).is_none());
    assert_eq!(limiter.waiters(), 3);
    drop(second);
    assert_eq!(limiter.waiters(), 1);
    clock.advance(TENTH_OF_SECOND);
    assert!(poll(&mut first).is_some());
}

#[test]
fn last_registered_waker_is_woken() {
    let clock = clock();
    let limiter = drained_limiter(1, &clock);
    let mut future = limiter.acquire(1);
    let wakers = [(); 2].map(|()| Arc::new(CountingWaker::default()));
    for waker in &wakers {
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&Arc::clone(waker).into())).is_pending());
    }
    clock.advance(TENTH_OF_SECOND);
    assert_eq!(wakers.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn each_key_has_its_own_queue() {
    for limit in [bucket(1), two_word_bucket(1)] {
        let clock = clock();
        let keyed = Arc::new(Keyed::with_clock(limit, 1_000, Arc::clone(&clock)).unwrap());
        let keys: Vec<String> = (0..100).map(|number| format!("key {number}")).collect();
        keys.iter().for_each(|key| assert!(keyed.check(key, 1).is_allowed()));
        let mut waiting: Vec<_> = keys.iter().chain(&keys).map(|key| Some(keyed.acquire(key, 1))).collect();
        assert_eq!(take_ready(&mut waiting), []);
        let wait = match keyed.peek("key 0", 1).outcome() {
            Outcome::Deny(Retry::After(wait)) => wait,
            other => panic!("{other:?}"),
        };
        clock.advance_through_alarms(wait);
        assert_eq!(take_ready(&mut waiting), (0..100).collect::<Vec<_>>());
        assert!(keyed.acquire("nobody else", 1).at_once().wait().is_ok());
        waiting[100] = None;
        keyed.reset("key 1");
        assert_eq!(take_ready(&mut waiting), [101]);
        clock.advance_through_alarms(wait);
        assert_eq!(take_ready(&mut waiting), (102..200).collect::<Vec<_>>());
        assert_eq!(keyed.waiters(), 0);
    }
}

/// Compares the queue with a model: a plain list that is checked every millisecond, and a limiter without waiters.
#[test]
fn joining_leaving_and_waiting_at_random_agrees_with_a_plain_list() {
    for seed in 0..50 {
        let mut dice = Rng::new(seed + 1);
        let clock = clock();
        let limiter = limiter(bucket(5), &clock);
        let plain = separate_limiter(&clock);
        let mut waiting: Vec<(u64, Acquire<'_, _>)> = Vec::new();
        let mut list: Vec<(u64, u64)> = Vec::new();
        let (mut served, mut expected) = (Vec::new(), Vec::new());
        for number in 0..300 {
            match dice.below(4) {
                0 | 1 => {
                    let cost = 1 + dice.below(5);
                    let mut future = limiter.acquire(cost);
                    match poll(&mut future) {
                        Some(answer) => served.push((number, answer.is_ok())),
                        None => waiting.push((number, future)),
                    }
                    list.push((number, cost));
                    serve_plain_list(&plain, &mut list, &mut expected);
                }
                2 if !waiting.is_empty() => {
                    let place = dice.below(waiting.len() as u64) as usize;
                    drop(waiting.remove(place));
                    list.remove(place);
                    serve_plain_list(&plain, &mut list, &mut expected);
                }
                _ => {
                    for _ in 0..dice.below(300) {
                        clock.advance_through_alarms(Nanos::from_millis(1));
                        serve_plain_list(&plain, &mut list, &mut expected);
                    }
                }
            }
            waiting.retain_mut(|(number, future)| {
                poll(future).is_none_or(|answer| {
                    served.push((*number, answer.is_ok()));
                    false
                })
            });
            assert_eq!(served, expected, "seed {seed}, step {number}");
        }
        assert!(served.len() > 10);
    }
}

fn separate_limiter(clock: &Arc<ManualClock>) -> Limiter<TokenBucket, Arc<ManualClock>> {
    Limiter::with_clock(bucket(5), Arc::clone(clock))
}

fn serve_plain_list(
    plain: &Limiter<TokenBucket, Arc<ManualClock>>,
    list: &mut Vec<(u64, u64)>,
    served: &mut Vec<(u64, bool)>,
) {
    while let Some((number, cost)) = list.first().copied() {
        if !plain.check(cost).is_allowed() {
            return;
        }
        list.remove(0);
        served.push((number, true));
    }
}
