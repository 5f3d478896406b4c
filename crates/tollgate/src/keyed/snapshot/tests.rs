mod damage;
mod files;

use std::sync::Arc;

use super::*;
use crate::clock::ManualClock;
use crate::keyed::WhenFull;
use crate::sync::Ordering;
use crate::testing::{DAY, HOUR, Rng, SECOND, bucket, clock, daily_window, limits_of_ten_and_combined, on_threads};
use crate::{FixedWindow, IntervalBucket, Limit, SlidingSlices, TokenBucket};
use tollgate_core::{Nanos, Phase, Steps};

type TestKeyed<A> = Keyed<A, Arc<ManualClock>>;

fn keyed<A: Algorithm>(limit: A, capacity: usize) -> (TestKeyed<A>, Arc<ManualClock>) {
    let clock = clock();
    (Keyed::with_clock(limit, capacity, clock.clone()).unwrap(), clock)
}

fn snapshot_bytes<A: Algorithm + Clone + Into<Limits> + TryFrom<Limits>>(keyed: &TestKeyed<A>) -> Vec<u8> {
    let mut bytes = Vec::new();
    keyed.snapshot(&mut bytes).unwrap();
    bytes
}

/// Returns a limiter that simulates another process. The limiter's wall-clock time equals that of `clock`, and its
/// monotonic time is `ahead` nanoseconds later.
fn limiter_in_other_process<A: Algorithm>(limit: A, capacity: usize, clock: &ManualClock, ahead: i64) -> TestKeyed<A> {
    let other = ManualClock::at(clock.mono().as_nanos().checked_add_signed(ahead).unwrap());
    other.step_wall(-ahead);
    assert_eq!(other.wall(other.mono()), clock.wall(clock.mono()));
    Keyed::with_clock(limit, capacity, Arc::new(other)).unwrap()
}

/// Returns a limit of every algorithm, and of every phase except `Given`, and a combination of several algorithms.
fn every_limit(length: Nanos) -> Vec<Limits> {
    let window = FixedWindow::new(10, length).unwrap().max_debt(5).unwrap();
    let windows = [Phase::FirstRequest, Phase::Spread].map(|phase| window.phase(phase).into());
    let steps = IntervalBucket::new(10, length).unwrap().max_debt(5).unwrap();
    let steps = [steps, steps.steps(Steps::FirstRequest)].map(Limits::from);
    let precision = Nanos::from_nanos(length.as_nanos() / 10);
    let slices = SlidingSlices::new(10, length, precision).unwrap().max_debt(5).unwrap().into();
    limits_of_ten_and_combined(length).into_iter().chain(windows).chain(steps).chain([slices]).collect()
}

/// Applies a random operation to a key, and returns its complete visible state.
fn random_operation(keyed: &TestKeyed<Limits>, dice: &mut Rng, key: &str) -> String {
    let cost = dice.below(12);
    let verdict = match dice.below(4) {
        0 | 1 => keyed.check(key, cost),
        2 => keyed.take_up_to(key, cost),
        _ => keyed.charge(key, cost),
    };
    format!("{:?} {} {:?} {}", verdict.outcome(), verdict.taken().get(), keyed.report(key, 3), keyed.overflowed())
}

#[test]
fn restored_table_decides_as_the_original() {
    let keys: Vec<String> = (0..20).map(|key| format!("key {key}")).collect();
    let year = 365 * DAY.as_nanos() as i64;
    for (seed, limit) in (0..).zip(every_limit(HOUR)) {
        for (round, ahead) in (0..).zip([0, year, -year, -30 * year, 17]) {
            let (here, clock) = keyed(limit.clone(), 100);
            let mut dice = Rng::new(seed * 100 + round);
            for _ in 0..dice.below(200) {
                let key = &keys[dice.below(20) as usize];
                random_operation(&here, &mut dice, key);
                clock.advance(Nanos::from_nanos(dice.below(HOUR.as_nanos() / 20)));
            }
            let bytes = snapshot_bytes(&here);
            clock.advance(Nanos::from_nanos(dice.below(HOUR.as_nanos())));
            let mut there = limiter_in_other_process(limit.clone(), dice.pick(&[20, 100, 5_000]), &clock, ahead);
            there.restore(&*bytes).unwrap();
            // From here on both limiters use the same random numbers.
            let seed = dice.below(u64::MAX);
            let (mut dice, mut same_dice) = (Rng::new(seed), Rng::new(seed));
            for step in 0..200 {
                let key = &keys[step % 20];
                let expected = random_operation(&here, &mut dice, key);
                assert_eq!(
                    random_operation(&there, &mut same_dice, key),
                    expected,
                    "{limit:?} at step {step}, {ahead} ahead"
                );
                let length = Nanos::from_nanos(dice.below(HOUR.as_nanos() / 20));
                same_dice.below(HOUR.as_nanos() / 20);
                clock.advance(length);
                there.clock.advance(length);
            }
        }
    }
}

#[test]
fn time_between_processes_counts_and_is_zero_if_the_wall_clock_was_set_back() {
    let (here, clock) = keyed(bucket(10), 100);
    let _ = here.check("alice", 10);
    let bytes = snapshot_bytes(&here);
    for (away, remaining) in [(0, 0), (500, 5), (3_000, 10)] {
        let mut there = limiter_in_other_process(bucket(10), 100, &clock, 0);
        there.clock.advance(Nanos::from_millis(away));
        there.restore(&*bytes).unwrap();
        assert_eq!(there.report("alice", 1).remaining, remaining, "after {away} ms");
    }
    let mut there = limiter_in_other_process(bucket(10), 100, &clock, 0);
    there.clock.step_wall(-(DAY.as_nanos() as i64));
    there.restore(&*bytes).unwrap();
    assert_eq!(there.report("alice", 1).remaining, 0);
}

#[test]
fn new_process_restores_the_counts_of_the_previous_process() {
    let limit = crate::SlidingLog::new(10, HOUR).unwrap();
    let (here, clock) = keyed(limit, 100);
    let _ = here.check("alice", 10);
    clock.advance(Nanos::from_nanos(HOUR.as_nanos() - 1));
    let mut bytes = snapshot_bytes(&here);
    // With the real clocks, an hour ago is before the start of this process. The test changes the head to the real
    // wall-clock time, so it recomputes the seals.
    let mut there = Keyed::new(limit, 100).unwrap();
    let wall = there.clock.now().wall().as_nanos() - SECOND.as_nanos();
    bytes[4 * 8..][..8].copy_from_slice(&wall.to_le_bytes());
    frames::recompute_seals(&mut bytes, 1);
    there.restore(&*bytes).unwrap();
    assert_eq!(there.report("alice", 1).remaining, 10, "the hour ended a second ago");
}

#[test]
fn restoring_under_other_parameters_keeps_the_used_amount() {
    let (here, clock) = keyed(bucket(10), 100);
    let _ = here.check("alice", 7);
    let bytes = snapshot_bytes(&here);
    let slower = TokenBucket::new("7777/h".parse().unwrap(), 20).unwrap();
    let mut there = limiter_in_other_process(slower, 100, &clock, 5);
    there.restore(&*bytes).unwrap();
    assert_eq!((there.report("alice", 1).remaining, there.report("bob", 1).remaining), (13, 20));
    // Repeats the check with parameters that changed before the snapshot.
    let (here, clock) = keyed(bucket(10), 100);
    let _ = here.check("alice", 7);
    here.set_limit(bucket(20)).unwrap();
    let mut there = limiter_in_other_process(bucket(20), 100, &clock, 5);
    there.restore(&*snapshot_bytes(&here)).unwrap();
    assert_eq!(there.report("alice", 1).remaining, 13);
}

#[test]
fn unused_entries_are_not_written_and_loading_replaces_all() {
    let (here, clock) = keyed(bucket(10), 100);
    let _ = here.check("alice", 10);
    clock.advance(SECOND);
    let _ = here.check("bob", 10);
    let mut bytes = Vec::new();
    assert_eq!(here.snapshot(&mut bytes).unwrap(), 1);
    let (mut there, _) = keyed(bucket(10), 100);
    let _ = there.check("carol", 10);
    assert_eq!(there.restore(&*bytes).unwrap(), 1);
    let remaining = ["alice", "bob", "carol"].map(|key| there.report(key, 1).remaining);
    assert_eq!(remaining, [10, 0, 10]);
}

#[test]
fn stateless_limits_and_empty_tables_are_written_too() {
    for limit in [Limit::Unlimited, Limit::DenyAll, bucket(3).into()] {
        let (here, clock) = keyed(limit, 100);
        let mut there = limiter_in_other_process(limit, 100, &clock, 9);
        assert_eq!(there.restore(&*snapshot_bytes(&here)).unwrap(), 0);
        assert_eq!(there.check("alice", 1).is_allowed(), limit != Limit::DenyAll);
    }
}

#[test]
fn overflow_entry_is_restored() {
    let (here, clock) = keyed(daily_window(10), 1);
    let here = here.when_full(WhenFull::Overflow);
    let keys: Vec<String> = (0..100).map(|key| key.to_string()).collect();
    // The first keys fill the table, and spend more than the later keys.
    for (place, key) in keys.iter().enumerate() {
        let _ = here.check(key, if place < 50 { 10 } else { 1 });
    }
    assert!(here.overflowed() > 0);
    let mut there = limiter_in_other_process(daily_window(10), 1, &clock, 9);
    there.restore(&*snapshot_bytes(&here)).unwrap();
    assert!(keys.iter().all(|key| there.peek(key, 1).is_allowed() == here.peek(key, 1).is_allowed()));
    assert_eq!(*there.overflow.lock().unwrap(), *here.overflow.lock().unwrap());
}

#[test]
fn leases_can_be_released_after_a_restore() {
    let limit = crate::Concurrency::new(2, HOUR).unwrap();
    let (here, clock) = keyed(limit, 100);
    let lease = here.check("alice", 2);
    let mut there = limiter_in_other_process(limit, 100, &clock, -77);
    there.restore(&*snapshot_bytes(&here)).unwrap();
    assert!(!there.check("alice", 1).is_allowed());
    assert_eq!(there.refund("alice", &lease), 2);
    assert!(there.check("alice", 2).is_allowed());
}

#[test]
fn smaller_table_restores_the_keys_that_have_used_most() {
    let (here, clock) = keyed(daily_window(10), 1_000);
    for key in 0..1_000 {
        let _ = here.check(&format!("key {key}"), if key % 10 == 0 { 10 } else { 1 });
    }
    let mut there = limiter_in_other_process(daily_window(10), 150, &clock, 0);
    assert_eq!(there.restore(&*snapshot_bytes(&here)).unwrap(), 1_000);
    let full = (0..100).filter(|key| there.report(&format!("key {}", key * 10), 1).remaining == 0).count();
    assert!(full > 95, "{full} of 100");
}

/// A writer that inserts new keys between the frames of a snapshot, to displace entries.
struct KeyInsertingWriter<'a> {
    keyed: &'a TestKeyed<FixedWindow>,
    arrived: u64,
    bytes: Vec<u8>,
}

impl Write for KeyInsertingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        for _ in 0..500 {
            // The new keys spend less than the existing keys, so that no existing key is evicted.
            let _ = self.keyed.check(&format!("newcomer {}", self.arrived), 9);
            self.arrived += 1;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn entry_that_moves_during_the_snapshot_is_written() {
    const KEYS: u64 = 40_000;
    let (here, clock) = keyed(daily_window(10), KEYS as usize);
    let keys = |count| (0..count).map(|key| format!("key {key}"));
    keys(KEYS).for_each(|key| assert!(here.check(&key, 10).is_allowed()));
    assert_eq!(here.overflowed(), 0);
    let mut crowding = KeyInsertingWriter { keyed: &here, arrived: 0, bytes: Vec::new() };
    here.snapshot(&mut crowding).unwrap();
    assert!(crowding.arrived > 5_000, "{} frames", crowding.arrived / 500);
    let mut there = limiter_in_other_process(daily_window(10), 2 * KEYS as usize, &clock, 0);
    there.restore(&*crowding.bytes).unwrap();
    assert_eq!(keys(KEYS).filter(|key| there.peek(key, 1).is_allowed()).count(), 0);
}

#[test]
fn entry_that_another_thread_moves_during_the_snapshot_is_written() {
    const KEYS: u64 = 4_000;
    let (here, clock) = keyed(daily_window(10), KEYS as usize);
    (0..KEYS).for_each(|key| assert!(here.check(&format!("key {key}"), 10).is_allowed()));
    let done = std::sync::atomic::AtomicBool::new(false);
    on_threads(3, |thread| {
        if thread > 0 {
            for newcomer in (0u64..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let _ = here.check(&format!("newcomer {thread} {newcomer}"), 9);
            }
            return;
        }
        let snapshots: Vec<Vec<u8>> = (0..30).map(|_| snapshot_bytes(&here)).collect();
        done.store(true, Ordering::Relaxed);
        for bytes in snapshots {
            let mut there = limiter_in_other_process(daily_window(10), 2 * KEYS as usize, &clock, 0);
            there.restore(&*bytes).unwrap();
            assert_eq!((0..KEYS).filter(|key| there.peek(&format!("key {key}"), 1).is_allowed()).count(), 0);
        }
    });
}

#[test]
fn concurrent_snapshots_and_decisions_agree() {
    let (here, clock) = keyed(daily_window(1_000_000), 10_000);
    let taken = on_threads(4, |thread| {
        (0..300u64).fold(0, |taken, step| {
            if thread == 0 && step % 30 == 0 {
                snapshot_bytes(&here);
            }
            taken + here.check(&format!("key {}", step % 50), thread + 1).taken().get()
        })
    });
    let mut there = limiter_in_other_process(daily_window(1_000_000), 10_000, &clock, 0);
    there.restore(&*snapshot_bytes(&here)).unwrap();
    let spent: u64 = (0..50).map(|key| 1_000_000 - there.report(&format!("key {key}"), 1).remaining).sum();
    assert_eq!(spent, taken.iter().sum::<u64>());
}
