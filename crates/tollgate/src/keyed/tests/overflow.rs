//! Assignment of entries to keys: capacity, reuse, eviction, overflow.

use super::*;
use crate::testing::DAY;
use crate::{Concurrency, SlidingLog, SlidingWindow};

fn numbered_key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn has_entry<A: Algorithm, C: Clock>(keyed: &Keyed<A, C>, key: &[u8]) -> bool {
    let fingerprint = key.fingerprint(&keyed.secret);
    keyed.find(fingerprint, keyed.clock.now(), |_| ()).is_some()
}

fn spent_of<A: Algorithm, C: Clock>(keyed: &Keyed<A, C>, key: &[u8]) -> u64 {
    let report = keyed.report(key, 1);
    report.limit - report.remaining
}

#[test]
fn table_holds_its_capacity_of_keys() {
    fn assert_holds_capacity<A: Algorithm + Copy + fmt::Debug>(limit: A, capacity: usize, secrets: u64) {
        for secret in 0..secrets {
            let mut keyed = keyed(limit, capacity).0.when_full(WhenFull::Deny);
            keyed.secret = Secret::from_points(POINTS.map(|point| point ^ secret << 20));
            for n in 0..capacity as u64 {
                assert!(
                    keyed.check(&numbered_key(n), 1).is_admitted(),
                    "key {n} of {capacity} got no entry under {limit:?}"
                );
            }
            // No key was evicted.
            let kept = (0..capacity as u64).filter(|n| spent_of(&keyed, &numbered_key(*n)) == 1).count();
            assert_eq!((kept, keyed.overflowed()), (capacity, 0), "secret {secret}, {limit:?}");
        }
    }
    for (capacity, secrets) in [(0, 1), (1, 10), (2, 50), (3, 50), (4, 50), (7, 50), (10, 200), (100, 50), (1_000, 10)]
    {
        assert_holds_capacity(bucket(100), capacity, secrets);
        assert_holds_capacity(two_word_bucket(100), capacity, secrets);
        assert_holds_capacity(SlidingLog::new(3, DAY).unwrap(), capacity, secrets);
    }
    assert_holds_capacity(bucket(100), 100_000, 2);
    assert_holds_capacity(daily_window(100), 100_000, 2);
    assert_holds_capacity(Concurrency::new(2, DAY).unwrap(), 20_000, 1);
}

#[test]
fn memory_per_key_is_as_documented() {
    let keyed = keyed(bucket(100), 1_000_000).0;
    assert!((24_000_000..=40_000_000).contains(&keyed.bytes()), "{} bytes for a million keys", keyed.bytes());
    let before = keyed.bytes();
    (0..100).for_each(|n| assert!(keyed.check(&vec![n; 100_000], 1).is_admitted()));
    assert_eq!(keyed.bytes(), before);
}

#[test]
fn table_that_does_not_fit_in_memory_is_an_error() {
    // The second size fits in the 64-bit address space, but no allocator provides it. The process must not abort.
    for capacity in [usize::MAX, usize::MAX / 64, 1 << 55, 1 << 45] {
        let error = Keyed::with_clock(bucket(1), capacity, clock()).map(|_| ()).unwrap_err();
        assert_eq!(error, CapacityError { capacity });
        assert_eq!(
            error.to_string(),
            format!("a table of {capacity} keys does not fit in memory; choose a smaller capacity")
        );
        assert!(Keyed::with_clock(SlidingLog::new(1_000, DAY).unwrap(), capacity, clock()).is_err());
    }
    let (mut keyed, _) = keyed(Limit::from(bucket(10)), 100);
    let _ = keyed.check("alice", 4);
    keyed.capacity = 1 << 55;
    assert!(keyed.set_limit(daily_window(10).into()).is_err());
    assert_eq!((keyed.limit(), remaining(&keyed, "alice")), (bucket(10).into(), 6), "the old limit stays in force");
}

#[test]
fn unused_entries_are_reused_without_a_clean_up() {
    const CAPACITY: u64 = 200;
    for limit in limits_of_ten(SECOND) {
        let (keyed, clock) = keyed(limit, CAPACITY as usize);
        for round in 0..50 {
            let keys = || (0..CAPACITY).map(|n| numbered_key(round << 32 | n));
            keys().for_each(|key| assert_eq!(keyed.check(&key, 7).taken().get(), 7, "round {round}, {limit:?}"));
            assert!(keys().all(|key| spent_of(&keyed, &key) == 7), "round {round}, {limit:?}");
            // After twice the refill time, nothing is used under any algorithm.
            clock.advance(Nanos::from_secs(2));
        }
        assert_eq!(keyed.overflowed(), 0, "{limit:?}");
    }
}

/// Returns the smallest table, filled with keys that have spent `cost(number)`, and the number of keys. In this table
/// every key can be in every bucket.
fn filled_table<A: Algorithm + Clone>(limit: &A, cost: impl Fn(u64) -> u64) -> (TestKeyed<A>, Arc<ManualClock>, u64) {
    let (other, _) = keyed(limit.clone(), 1);
    for n in 0..100 {
        other.drain(&numbered_key(n));
    }
    let slots = count_entries(&other) as u64;
    let (keyed, clock) = keyed(limit.clone(), 1);
    (0..slots).for_each(|n| assert_eq!(keyed.check(&numbered_key(n), cost(n)).taken().get(), cost(n)));
    assert!(slots >= 4 && count_entries(&keyed) as u64 == slots);
    (keyed, clock, slots)
}

#[test]
fn entry_with_one_unit_used_is_kept() {
    let (keyed, clock, slots) = filled_table(&bucket(10), |_| 1);
    clock.advance(Nanos::from_nanos(99_999_999));
    let _ = keyed.check("late", 0);
    assert!((0..slots).all(|n| has_entry(&keyed, &numbered_key(n))) && !has_entry(&keyed, b"late"));
    assert_eq!(keyed.overflowed(), 1);
    clock.advance(Nanos::from_nanos(1));
    let _ = keyed.check("late", 1);
    assert_eq!((has_entry(&keyed, b"late"), count_entries(&keyed) as u64), (true, slots));
}

#[test]
fn least_used_entry_is_evicted_unless_it_has_used_more_than_the_arriving_key() {
    // Compares a full table with a simple model. Costs are small, so that many costs are equal.
    for limit in limits_of_ten(HOUR) {
        let (keyed, clock, slots) = filled_table(&limit, |n| 1 + n % 9);
        let mut dice = Rng::new(7);
        for round in 0..2_000 {
            let before: Vec<(u64, u64)> = (0..3 * slots)
                .filter(|n| has_entry(&keyed, &numbered_key(*n)))
                .map(|n| (n, spent_of(&keyed, &numbered_key(n))))
                .collect();
            let overflowed = keyed.overflowed();
            let (n, cost) = (dice.below(3 * slots), dice.below(11));
            let known = before.iter().find(|(known, _)| *known == n);
            let verdict = keyed.check(&numbered_key(n), cost);
            let gone: Vec<u64> =
                before.iter().filter(|(n, _)| !has_entry(&keyed, &numbered_key(*n))).map(|(_, spent)| *spent).collect();
            let least = before.iter().map(|(_, spent)| *spent).min().unwrap();
            let what = format!("round {round}, key {n}, cost {cost}, {before:?}, {limit:?}");
            if let Some((_, spent)) = known {
                assert_eq!((verdict.is_admitted(), gone.len()), (spent + cost <= 10, 0), "{what}");
            } else if least <= cost {
                assert_eq!((verdict.taken().get(), spent_of(&keyed, &numbered_key(n))), (cost, cost), "{what}");
                assert_eq!((gone, keyed.overflowed()), (vec![least], overflowed), "{what}");
            } else {
                assert_eq!((gone.len(), keyed.overflowed()), (0, overflowed + 1), "{what}");
                assert!(!has_entry(&keyed, &numbered_key(n)), "{what}");
            }
            for (other, spent) in
                before.iter().filter(|(other, _)| *other != n && has_entry(&keyed, &numbered_key(*other)))
            {
                assert_eq!(spent_of(&keyed, &numbered_key(*other)), *spent, "another key was charged, {what}");
            }
            if round % 10 == 9 {
                keyed.reset(&numbered_key(dice.below(3 * slots)));
                clock.advance(Nanos::from_nanos(1));
            }
        }
    }
}

#[test]
fn drained_key_counts_as_fully_used() {
    // Regression: draining and charging counted as using nothing, because they ask for more than the capacity.
    for limit in limits_of_ten(HOUR) {
        let (keyed, _, _) = filled_table(&limit, |_| 6);
        assert_eq!(keyed.drain("drained"), 10, "{limit:?}");
        assert_eq!(keyed.take_up_to("taken", u64::MAX).taken().get(), 10, "{limit:?}");
        assert_eq!(keyed.charge("charged", 15).taken().get(), 15, "{limit:?}");
        assert_eq!(["drained", "taken", "charged"].map(|key| remaining(&keyed, key)), [0; 3], "{limit:?}");
        assert_eq!(keyed.overflowed(), 0, "{limit:?}");
    }
}

#[test]
fn refused_request_evicts_nothing() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, _, slots) = filled_table(&limit, |_| 6);
        assert_eq!(keyed.check("a", 11).outcome(), Outcome::Deny(Retry::Never), "{limit:?}");
        assert!(!keyed.charge("b", 16).is_admitted() && !keyed.charge("c", u64::MAX).is_admitted(), "{limit:?}");
        assert!((0..slots).all(|n| spent_of(&keyed, &numbered_key(n)) == 6), "{limit:?}");
    }
}

#[test]
fn flood_of_new_keys_evicts_no_key_that_has_used_more() {
    const CAPACITY: u64 = 5_000;
    fn assert_flood_evicts_nothing<A: Algorithm + fmt::Debug>(limit: A) {
        let (keyed, _) = keyed(limit, CAPACITY as usize);
        // Each key uses a different amount, which is more than half of its limit.
        let reports: Vec<Report> =
            (0..1_000).map(|n| keyed.check_and_report(&numbered_key(n), 51 + n % 50).1).collect();
        keyed.check_many((0..10 * CAPACITY).map(|n| (numbered_key(1 << 40 | n), 1)), |_| ());
        for (n, report) in reports.iter().enumerate() {
            assert_eq!(keyed.report(&numbered_key(n as u64), 51 + n as u64 % 50), *report);
        }
    }
    assert_flood_evicts_nothing(bucket(100));
    assert_flood_evicts_nothing(two_word_bucket(100));
    assert_flood_evicts_nothing(daily_window(100));
    assert_flood_evicts_nothing(FixedWindow::new(100, DAY).unwrap().phase(Phase::Spread));
    assert_flood_evicts_nothing(SlidingWindow::new(100, DAY).unwrap());
    assert_flood_evicts_nothing(SlidingLog::new(100, DAY).unwrap());
    assert_flood_evicts_nothing(Limits::new([bucket(100).into(), daily_window(1_000).into()]).unwrap());
}

#[test]
fn keys_without_an_entry_share_one_limit_and_are_counted() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, clock, slots) = filled_table(&limit, |_| 10);
        let passed = (0..25).filter(|n| keyed.check(&format!("late {n}"), 1).is_admitted()).count();
        assert_eq!((passed, keyed.overflowed()), (10, 25), "{limit:?}");
        let (verdict, report) = keyed.check_and_report("later", 1);
        assert_eq!((verdict.is_admitted(), report.remaining, keyed.overflowed()), (false, 0, 26), "{limit:?}");
        assert!((0..slots).all(|n| spent_of(&keyed, &numbered_key(n)) == 10), "{limit:?}");
        // The overflow entry refills like any other entry. When all keys are unused, the table has vacant entries
        // again.
        clock.advance(Nanos::from_secs(2 * 3_600));
        assert!(keyed.check("latest", 10).is_admitted() && keyed.check("last", 10).is_admitted(), "{limit:?}");
        assert_eq!(keyed.overflowed(), 26, "{limit:?}");
    }
}

#[test]
fn windows_of_the_overflow_entry_have_full_length() {
    // Every key has its own window offset. If the overflow entry used these offsets, its window would end with the
    // window of every key.
    let (keyed, clock, slots) = filled_table(&FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread), |_| 10);
    let (mut passed, mut late) = (0, 0);
    for _ in 0..4 * 60 {
        // No entry becomes vacant, because a key that begins a new window uses up its limit immediately.
        for n in 0..slots {
            keyed.drain(&numbered_key(n));
        }
        for _ in 0..11 {
            late += 1;
            passed += keyed.check(&format!("late {late}"), 1).taken().get();
        }
        clock.advance(Nanos::from_secs(60));
    }
    assert_eq!(keyed.overflowed(), late, "a late key got an entry");
    assert!(passed <= 5 * 10, "{passed} passed in four hours, at ten an hour");
}

#[test]
fn full_table_can_refuse_instead_of_sharing() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, clock, slots) = filled_table(&limit, |_| 5);
        let keyed = keyed.when_full(WhenFull::Deny);
        let refused = Outcome::Deny(Retry::OnRelease);
        assert_eq!([1, 4].map(|cost| keyed.check("late", cost).outcome()), [refused; 2], "{limit:?}");
        assert_eq!((keyed.check("late", 4).taken().get(), keyed.overflowed()), (0, 3), "{limit:?}");
        // A key that spends at least as much as the least used key gets an entry, as under `WhenFull::Overflow`.
        assert!(keyed.check("late", 5).is_admitted() && has_entry(&keyed, b"late"), "{limit:?}");
        assert_eq!((0..slots).filter(|n| has_entry(&keyed, &numbered_key(*n))).count() as u64, slots - 1, "{limit:?}");
        clock.advance(Nanos::from_secs(2 * 3_600));
        assert!(keyed.check("later", 1).is_admitted(), "{limit:?}");
    }
}

#[test]
fn refund_of_an_overflow_charge_returns_to_the_overflow_entry_once() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, _, slots) = filled_table(&limit, |_| 10);
        let left = || keyed.check_and_report("nobody", 0).1.remaining;
        let verdict = keyed.check("late", 3);
        assert_eq!((verdict.taken().get(), left()), (3, 7), "{limit:?}");
        assert_eq!((keyed.refund("later", &verdict), left()), (0, 7), "charged by another key, {limit:?}");
        assert_eq!((keyed.refund("late", &verdict), left()), (3, 10), "{limit:?}");
        let other = keyed.check("other", 4);
        assert_eq!((keyed.refund("late", &verdict), left()), (0, 6), "already refunded, {limit:?}");
        keyed.reset("other");
        assert_eq!((keyed.refund("other", &other), left()), (4, 10), "{limit:?}");
        assert!((0..slots).all(|n| spent_of(&keyed, &numbered_key(n)) == 10), "{limit:?}");
    }
}

#[test]
fn refund_of_an_evicted_entry_does_not_reach_the_overflow_entry() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, _, slots) = filled_table(&limit, |n| if n == 0 { 1 } else { 10 });
        keyed.reset(&numbered_key(0));
        let forgotten = keyed.check("forgotten", 1);
        // A key that has used more evicts this key. At the same instant another key takes the same amount from the
        // overflow entry.
        assert_eq!(keyed.check("newcomer", 10).taken().get(), 10, "{limit:?}");
        assert!(!has_entry(&keyed, b"forgotten") && count_entries(&keyed) as u64 == slots, "{limit:?}");
        assert_eq!((keyed.check("late", 1).taken().get(), keyed.overflowed()), (1, 1), "{limit:?}");
        assert_eq!(keyed.refund("forgotten", &forgotten), 0, "{limit:?}");
        assert_eq!(keyed.check_and_report("nobody", 0).1.remaining, 9, "{limit:?}");
    }
}

#[test]
fn lease_in_the_overflow_entry_can_be_renewed_and_released_after_its_key_got_an_entry() {
    let (keyed, clock, _) = filled_table(&Concurrency::new(2, SECOND).unwrap(), |_| 2);
    let keyed = Arc::new(keyed);
    let late = keyed.acquire("late", 1).wait_held().unwrap();
    assert_eq!(keyed.overflowed(), 1);
    clock.advance(Nanos::from_millis(900));
    assert!(late.renew());
    clock.advance(Nanos::from_millis(100));
    // All other leases have expired, and the key has its own entry in addition to its lease in the overflow entry.
    assert!(keyed.check("late", 1).is_admitted() && has_entry(&keyed, b"late"));
    let shared = || keyed.visit_overflow_entry(keyed.now(), |account| account.report(Cost::ONE).remaining);
    assert_eq!((shared(), remaining(&keyed, "late")), (1, 1));
    drop(late);
    assert_eq!((shared(), remaining(&keyed, "late")), (2, 1));
}
