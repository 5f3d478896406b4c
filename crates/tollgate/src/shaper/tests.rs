use std::pin::pin;

use super::*;
use crate::clock::ManualClock;
use crate::testing::on_threads;

const MILLI: u64 = 1_000_000;

fn shaper(capacity: usize) -> (Arc<ManualClock>, Shaper<u64, Arc<ManualClock>>) {
    let clock = Arc::new(ManualClock::at(1_000 * MILLI));
    (Arc::clone(&clock), Shaper::with_clock("10/s".parse().unwrap(), capacity, clock))
}

fn poll<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Returns the jobs that leave within `millis`, with their times in milliseconds from now.
fn jobs_leaving_within(clock: &ManualClock, shaper: &Shaper<u64, Arc<ManualClock>>, millis: u64) -> Vec<(u64, u64)> {
    let start = clock.mono();
    let mut out = Vec::new();
    let mut next = Box::pin(shaper.next());
    for step in 0..=millis {
        clock.advance_through_alarms(Time::from_nanos(start.as_nanos() + step * MILLI).since(clock.mono()));
        while let Poll::Ready(Some(job)) = next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            out.push((job, step));
            next = Box::pin(shaper.next());
        }
    }
    out
}

#[test]
fn jobs_leave_at_a_constant_rate_in_order_of_arrival() {
    let (clock, shaper) = shaper(10);
    (1..=4).for_each(|job| assert_eq!(shaper.push(job), PushResult::Queued));
    assert_eq!(jobs_leaving_within(&clock, &shaper, 350), [(1, 0), (2, 100), (3, 200), (4, 300)]);
    // Unused capacity is not stored.
    clock.advance(Nanos::from_secs(100));
    (5..=6).for_each(|job| assert_eq!(shaper.push(job), PushResult::Queued));
    assert_eq!(jobs_leaving_within(&clock, &shaper, 150), [(5, 0), (6, 100)]);
}

#[test]
fn job_with_a_high_cost_delays_the_next_job() {
    let (clock, shaper) = shaper(10);
    shaper.push_with_cost(1, 5);
    shaper.push_with_cost(2, 1);
    shaper.push_with_cost(3, 2);
    assert_eq!(jobs_leaving_within(&clock, &shaper, 1_000), [(1, 0), (2, 500), (3, 600)]);
}

#[test]
fn full_queue_drops_the_newest_or_the_oldest_job() {
    let (clock, newest) = shaper(2);
    assert_eq!(
        [1, 2, 3].map(|job| newest.push(job)),
        [PushResult::Queued, PushResult::Queued, PushResult::Rejected(3)]
    );
    assert_eq!(jobs_leaving_within(&clock, &newest, 200), [(1, 0), (2, 100)]);
    let (clock, oldest) = shaper(2);
    let oldest = oldest.overflow(Overflow::Oldest);
    assert_eq!(
        [1, 2, 3].map(|job| oldest.push(job)),
        [PushResult::Queued, PushResult::Queued, PushResult::Displaced(1)]
    );
    assert_eq!(jobs_leaving_within(&clock, &oldest, 200), [(2, 0), (3, 100)]);
    assert_eq!(shaper(0).1.push(1), PushResult::Rejected(1));
}

#[test]
fn expired_jobs_make_space_for_new_jobs() {
    let (clock, shaper) = shaper(100);
    let shaper = shaper.max_age(Duration::from_millis(250));
    (0..100).for_each(|job| assert_eq!(shaper.push(job), PushResult::Queued));
    assert_eq!(jobs_leaving_within(&clock, &shaper, 251), [(0, 0), (1, 100), (2, 200)]);
    assert_eq!(shaper.push(100), PushResult::Queued, "the queue has space again");
    assert_eq!((shaper.expired_jobs(), shaper.len()), (97, 1));
    assert_eq!(jobs_leaving_within(&clock, &shaper, 100), [(100, 49)]);
}

#[test]
fn dropped_future_removes_no_other_job() {
    let (clock, shaper) = shaper(10);
    (1..=2).for_each(|job| assert_eq!(shaper.push(job), PushResult::Queued));
    assert_eq!((poll(shaper.next()), poll(shaper.next())), (Some(Some(1)), None));
    let mut waiting = Box::pin(shaper.next());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    clock.advance(Nanos::from_millis(100));
    drop(waiting);
    assert_eq!((shaper.len(), poll(shaper.next())), (1, Some(Some(2))));
}

#[test]
fn grant_of_a_dropped_job_serves_the_next_job() {
    let (clock, shaper) = shaper(1);
    let shaper = shaper.overflow(Overflow::Oldest);
    shaper.push(0);
    assert_eq!(poll(shaper.next()), Some(Some(0)));
    shaper.push_with_cost(1, 50);
    let mut waiting = Box::pin(shaper.next());
    let mut poll_waiting = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll_waiting().is_pending());
    assert_eq!(shaper.push_with_cost(2, 1), PushResult::Displaced(1));
    clock.advance_through_alarms(Nanos::from_millis(100));
    assert_eq!(poll_waiting(), Poll::Ready(Some(2)));
    shaper.push(3);
    assert_eq!(
        jobs_leaving_within(&clock, &shaper, 200),
        [(3, 100)],
        "charged for the job that left, not for the displaced job"
    );
}

#[test]
fn closed_shaper_releases_its_queued_jobs() {
    let (_clock, shaper) = shaper(10);
    shaper.push(1);
    shaper.close();
    assert_eq!((shaper.push(2), poll(shaper.next())), (PushResult::Rejected(2), Some(Some(1))));
    assert_eq!(poll(shaper.next()), Some(None));
}

#[test]
fn threads_take_each_job_once() {
    let shaper = Shaper::new("1M/s".parse().unwrap(), 1_000);
    let got: Vec<Vec<u64>> = on_threads(4, |thread| {
        if thread == 0 {
            (0..1_000).for_each(|job| assert_eq!(shaper.push(job), PushResult::Queued));
            shaper.close();
            return Vec::new();
        }
        std::iter::from_fn(|| shaper.wait_next()).collect()
    });
    assert!(got.iter().all(|jobs| jobs.is_sorted()));
    let mut all: Vec<u64> = got.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
}

#[test]
fn dropped_future_is_forgotten() {
    struct Task;
    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let (_clock, shaper) = shaper(10);
    let task = Arc::new(Task);
    for _ in 0..100 {
        // Uses a different waker each time, as if each future were polled by a separate task.
        let waker = Waker::from(Arc::new(Task));
        let mut next = Box::pin(shaper.next());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // A future that is polled again is registered only once.
        let waker = Waker::from(Arc::clone(&task));
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(shaper.lock().idle_wakers.len(), 1);
    }
    assert_eq!((shaper.lock().idle_wakers.len(), Arc::strong_count(&task)), (0, 1));
}
