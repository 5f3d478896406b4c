//! Changes of the limit while entries exist.

use super::*;
use crate::table::{MAX_GENERATIONS, StateReader};
use crate::testing::DAY;

const KEYS: u64 = 300;

/// Returns a limiter in which each key `n` has spent `n % 10` under `old`.
fn keyed_with_spent_keys<A: Algorithm>(old: A) -> (TestKeyed<A>, Arc<ManualClock>) {
    let (keyed, clock) = keyed(old, KEYS as usize);
    (0..KEYS).for_each(|n| assert!(keyed.check(&n.to_le_bytes(), n % 10).is_admitted()));
    (keyed, clock)
}

fn assert_used_amounts_kept<A: Algorithm>(keyed: &TestKeyed<A>, capacity: u64, what: &str) {
    for n in 0..KEYS {
        assert_eq!(keyed.report(&n.to_le_bytes(), 1).remaining, capacity.saturating_sub(n % 10), "key {n}, {what}");
    }
    assert_eq!(keyed.overflowed(), 0, "{what}");
}

#[test]
fn changed_parameters_keep_the_used_amount_of_each_key() {
    let (keyed, _) = keyed_with_spent_keys(bucket(10));
    for (limit, capacity) in [(bucket(20), 20), (two_word_bucket(15), 15), (bucket(10), 10), (two_word_bucket(10), 10)]
    {
        keyed.set_limit(limit).unwrap();
        assert_used_amounts_kept(&keyed, capacity, &format!("{limit:?}"));
    }
    assert_eq!(keyed.check(b"\x04\0\0\0\0\0\0\0", 7).taken().get(), 0);
    assert_eq!(keyed.check(b"\x04\0\0\0\0\0\0\0", 6).taken().get(), 6);
}

#[test]
fn changed_algorithm_keeps_the_used_amount_of_each_key() {
    let limits = limits_of_ten(DAY);
    for old in &limits {
        for new in &limits {
            let (keyed, _) = keyed_with_spent_keys(*old);
            keyed.set_limit(*new).unwrap();
            assert_used_amounts_kept(&keyed, 10, &format!("from {old:?} to {new:?}"));
            keyed.set_limit(*old).unwrap();
            assert_used_amounts_kept(&keyed, 10, &format!("from {old:?} to {new:?} and back"));
        }
    }
}

#[test]
fn entries_without_requests_are_converted_too() {
    // Converts from the first parameters directly to the last. The intermediate parameters have longer states and were
    // never used.
    let (keyed, _) = keyed_with_spent_keys(Limit::from(bucket(10)));
    for limit in [Limit::from(two_word_bucket(12)), daily_window(14).into(), bucket(16).into()] {
        keyed.set_limit(limit).unwrap();
    }
    assert_used_amounts_kept(&keyed, 16, "three changes at once");
}

#[test]
fn more_changes_than_generations_keep_the_used_amount() {
    // The state words of these parameters have different meanings, so a state that is read under the wrong parameters
    // gives a wrong result.
    let limits = [bucket(10), TokenBucket::new("1/m".parse().unwrap(), 11).unwrap()];
    let (keyed, _) = keyed_with_spent_keys(limits[0]);
    for change in 1..=2 * MAX_GENERATIONS + 100 {
        keyed.set_limit(limits[change as usize % 2]).unwrap();
        // One key is charged in each generation. The other keys are read only at the end.
        assert_eq!(keyed.report(&9_u64.to_le_bytes(), 1).remaining, 1 + change % 2);
        assert!((keyed.reader(&keyed.changes(), keyed.now()).generation()) < MAX_GENERATIONS);
    }
    assert_used_amounts_kept(&keyed, 10, "after many changes");
}

#[test]
fn changing_the_parameters_of_a_full_table_loses_no_key() {
    // The table holds more entries than its capacity. If the new parameters need states of the same length, no entry is
    // moved.
    let (keyed, _) = keyed(bucket(1_000), 100);
    for n in 0..2_000_u64 {
        let _ = keyed.check(&n.to_le_bytes(), 1 + n % 1_000);
    }
    let before: Vec<Report> = (0..2_000_u64).map(|n| keyed.report(&n.to_le_bytes(), 1)).collect();
    let count = count_entries(&keyed);
    assert!(count > 150, "the table is not full");
    for _ in 0..=MAX_GENERATIONS {
        keyed.set_limit(bucket(1_000)).unwrap();
    }
    assert_eq!(count_entries(&keyed), count);
    assert!((0..2_000_u64).zip(before).all(|(n, before)| keyed.report(&n.to_le_bytes(), 1) == before));
}

#[test]
fn table_with_longer_states_keeps_the_keys_that_have_used_most() {
    let (keyed, _) = keyed(Limit::from(bucket(1_000)), 100);
    for n in 0..2_000_u64 {
        let _ = keyed.check(&n.to_le_bytes(), 1 + n % 1_000);
    }
    let spent = |keyed: &TestKeyed<Limit>| -> Vec<u64> {
        let mut spent: Vec<u64> = (0..2_000_u64).map(|n| 1_000 - keyed.report(&n.to_le_bytes(), 1).remaining).collect();
        spent.sort_unstable_by(|a, b| b.cmp(a));
        spent.into_iter().take_while(|spent| *spent > 0).collect()
    };
    let before = spent(&keyed);
    keyed.set_limit(daily_window(1_000).into()).unwrap();
    let after = spent(&keyed);
    assert!(after.len() < before.len(), "all entries fit");
    assert!(after.len() >= 100, "fewer entries than the capacity");
    assert_eq!(before[..80], after[..80]);
}

#[test]
fn unused_entries_are_not_moved_to_a_wider_table() {
    let (keyed, clock) = keyed_with_spent_keys(Limit::from(bucket(10)));
    clock.advance(SECOND);
    keyed.set_limit(daily_window(10).into()).unwrap();
    assert_eq!(count_entries(&keyed), 0);
}

#[test]
fn windows_that_ended_by_the_wall_clock_are_not_converted() {
    // The bucket needs no wall clock, but the windows that it replaces do. Regression: the wall clock was not read.
    let (keyed, clock) = keyed_with_spent_keys(Limit::from(daily_window(10)));
    keyed.set_limit(bucket(10).into()).unwrap();
    assert_eq!(keyed.report(&8_u64.to_le_bytes(), 1).remaining, 2);
    clock.advance(DAY);
    for n in 0..KEYS {
        assert_eq!(keyed.check(&n.to_le_bytes(), 10).taken().get(), 10, "yesterday's count was kept");
    }
}

#[test]
fn overflow_entry_keeps_the_amount_spent() {
    let (keyed, _) = keyed(two_word_bucket(10), 1);
    for n in 0..100_u64 {
        let _ = keyed.check(&n.to_le_bytes(), 10);
    }
    // The table is full of keys with nothing left, so these three keys are counted in the overflow entry.
    (0..3).for_each(|n| assert!(keyed.check(&format!("late {n}"), 3).is_admitted()));
    assert_eq!(keyed.overflowed(), 3);
    for (limit, remaining) in [(two_word_bucket(20), 11), (bucket(10), 1)] {
        keyed.set_limit(limit).unwrap();
        let (_, report) = keyed.check_and_report("late", 0);
        assert_eq!(report.remaining, remaining, "{limit:?}");
    }
}

#[test]
fn changed_limit_applies_to_waiters() {
    let (keyed, clock) = keyed(bucket(2), 10);
    let keyed = Arc::new(keyed);
    keyed.drain("alice");
    let mut waiting = keyed.acquire("alice", 1);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::Pin::new(&mut waiting).poll(&mut context).is_pending());
    keyed.set_limit(bucket(3)).unwrap();
    assert!(std::pin::Pin::new(&mut waiting).poll(&mut context).is_ready(), "the capacity is 3, and 2 are used");
    assert_eq!(keyed.limit(), bucket(3));
    drop(clock);
}

#[test]
fn decisions_during_a_change_are_all_counted() {
    const CAPACITY: u64 = 2_000;
    let (keyed, _) = keyed(Limit::from(bucket(CAPACITY)), 50);
    // The limits have states of different lengths, so the table is replaced.
    let limits = [Limit::from(two_word_bucket(CAPACITY)), bucket(CAPACITY).into(), daily_window(CAPACITY).into()];
    let taken = on_threads(3, |thread| {
        if thread == 0 {
            for limit in limits.iter().cycle().take(60) {
                keyed.set_limit(*limit).unwrap();
                std::thread::yield_now();
            }
            return 0;
        }
        (0..CAPACITY * 7).map(|n| keyed.check(&[n as u8 % 7], 1).taken().get()).sum()
    });
    assert_eq!(taken.iter().sum::<u64>(), CAPACITY * 7, "seven keys with a total of {CAPACITY} each");
    assert!((0..7).all(|key| keyed.check(&[key], 1).taken().get() == 0));
}
