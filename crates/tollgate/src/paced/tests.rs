use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use super::*;
use crate::AcquireError;
use crate::clock::ManualClock;

type ManualPacer = Arc<Pacer<Arc<ManualClock>>>;

const MILLI: u64 = 1_000_000;

fn pacer(pacing: Result<PacerParams, LimitError>) -> (Arc<ManualClock>, ManualPacer) {
    let clock = Arc::new(ManualClock::at(1_000 * MILLI));
    (Arc::clone(&clock), Arc::new(Pacer::with_clock(pacing.unwrap(), clock)))
}

fn pacer_of_five() -> (Arc<ManualClock>, ManualPacer) {
    pacer(PacerParams::bursty("5/s".parse().unwrap(), Nanos::SECOND))
}

fn is_ready(future: &mut Acquire<'_, Pacer<Arc<ManualClock>>>) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Makes requests one after another, and returns their waits in milliseconds.
fn measure_waits(clock: &ManualClock, pacer: &ManualPacer, permits: &[u64]) -> Vec<u64> {
    let wait = |permits: &u64| {
        let (start, mut future) = (clock.mono(), pacer.acquire(*permits));
        while !is_ready(&mut future) {
            clock.advance_through_alarms(Nanos::from_nanos(MILLI));
        }
        clock.mono().since(start).as_nanos() / MILLI
    };
    permits.iter().map(wait).collect()
}

#[test]
fn next_caller_waits_as_in_guava() {
    let (clock, pacer) = pacer_of_five();
    assert_eq!(measure_waits(&clock, &pacer, &[1, 1, 1]), [0, 200, 200]);
    clock.advance(Nanos::from_millis(2_200));
    assert_eq!(measure_waits(&clock, &pacer, &[1, 1, 3, 1, 1]), [0, 0, 0, 0, 200]);
}

#[test]
fn warm_up_takes_the_configured_time() {
    let (clock, pacer) = pacer(PacerParams::warm_up("2/s".parse().unwrap(), Nanos::from_secs(4), 3_000));
    assert_eq!(measure_waits(&clock, &pacer, &[1; 8]), [0, 1_375, 1_125, 875, 625, 500, 500, 500]);
    clock.advance(Nanos::from_millis(4_500));
    assert_eq!(measure_waits(&clock, &pacer, &[1; 3]), [0, 1_375, 1_125]);
}

#[test]
fn refused_try_takes_nothing() {
    let (clock, pacer) = pacer_of_five();
    assert!(pacer.acquire(5_000).at_once().wait().is_ok(), "any amount passes");
    let retry = Retry::After(Nanos::from_secs(1_000));
    let tried = pacer.acquire(1).within(Duration::from_secs(999)).wait();
    assert_eq!((tried, pacer.next_wait()), (Err(AcquireError::TooLate { retry }), Duration::from_secs(1_000)));
    clock.advance(Nanos::from_secs(1_000));
    assert!(pacer.acquire(1).at_once().wait().is_ok());
}

#[test]
fn waiters_pass_in_order_and_move_up_when_one_leaves() {
    let (clock, pacer) = pacer_of_five();
    assert!(pacer.acquire(1).wait().is_ok());
    let mut waiting: Vec<_> = [1, 10, 1].map(|permits| pacer.acquire(permits)).into();
    assert!(waiting.iter_mut().all(|future| !is_ready(future)));
    drop(waiting.remove(1));
    clock.advance_through_alarms(Nanos::from_millis(200));
    assert!(is_ready(&mut waiting[0]) && !is_ready(&mut waiting[1]));
    clock.advance_through_alarms(Nanos::from_millis(200));
    assert!(is_ready(&mut waiting[1]));
    assert_eq!(pacer.waiters(), 0);
}

#[test]
fn cancelled_wait_is_refunded_if_it_is_the_last_grant() {
    let (clock, pacer) = pacer_of_five();
    assert!(pacer.acquire(1).wait().is_ok());
    let mut gone = pacer.acquire(100);
    assert!(!is_ready(&mut gone));
    clock.advance_through_alarms(Nanos::from_millis(200));
    assert_eq!(pacer.next_wait(), Duration::from_secs(20));
    drop(gone);
    assert_eq!(pacer.next_wait(), Duration::ZERO);
}

#[test]
fn late_alarm_does_not_delay_other_waiters() {
    let (clock, pacer) = pacer(PacerParams::bursty("5/s".parse().unwrap(), Nanos::ZERO));
    assert!(pacer.acquire(1).wait().is_ok());
    let mut waiting: Vec<_> = (0..4).map(|_| pacer.acquire(1)).collect();
    assert!(waiting.iter_mut().all(|future| !is_ready(future)));
    // Each wake-up is 150 ms late, but the waiters still pass at 5 per second.
    for turn in 0..4 {
        clock.set((1_000 + 200 * (turn as u64 + 1) + 150) * MILLI);
        assert!(is_ready(&mut waiting[turn]) && waiting[turn + 1..].iter_mut().all(|future| !is_ready(future)));
    }
}

#[test]
fn changed_rate_applies_after_the_next_caller() {
    let (clock, pacer) = pacer_of_five();
    assert!(pacer.acquire(1).wait().is_ok());
    pacer.set_rate("10/s".parse().unwrap());
    assert_eq!(pacer.rate(), "10/s".parse().unwrap());
    assert_eq!(measure_waits(&clock, &pacer, &[1, 1, 1]), [200, 100, 100]);
}

#[test]
fn constant_pacer_with_bounds_is_a_leaky_bucket_for_callers() {
    let clock = Arc::new(ManualClock::at(1_000 * MILLI));
    let pacer = Pacer::with_clock(constant("10/s".parse().unwrap()), Arc::clone(&clock)).max_waiters(2);
    let pacer = Arc::new(pacer);
    // An idle time stores no permits.
    clock.advance(Nanos::from_secs(100));
    assert!(pacer.acquire(1).wait().is_ok());
    let mut waiting = [pacer.acquire(1), pacer.acquire(1)];
    assert_eq!(waiting.each_mut().map(is_ready), [false, false]);
    let result = |acquire: Acquire<'_, _>| acquire.wait().map(|_| ());
    assert_eq!((result(pacer.acquire(1)), pacer.waiters()), (Err(AcquireError::Full), 2));
    clock.advance_through_alarms(Nanos::from_millis(100));
    assert_eq!(pacer.waiters(), 1);
    let hasty = pacer.acquire(1).within(Duration::from_millis(150));
    assert!(matches!(result(hasty), Err(AcquireError::TooLate { .. })));
    clock.advance_through_alarms(Nanos::from_millis(100));
    assert_eq!(waiting.each_mut().map(is_ready), [true, true]);
}
