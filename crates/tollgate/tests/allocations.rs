//! Checks that neither a decision for an existing key nor the insertion of a new key allocates.

// The counting allocator is a separate crate, because an allocator needs unsafe code. The allocator counts the
// allocations of the current thread.
use std::sync::Arc;

use allocation_counter::measure;
use tollgate::clock::{Clock, ManualClock};
use tollgate::core::{Algorithm, Ask, Cost, Nanos, Phase};
use tollgate::keyed::Hashed;
use tollgate::keyed::WhenFull;
use tollgate::ledger::{Charge, Ledger};
use tollgate::redis_cell::RedisCellTable;
use tollgate::{
    Concurrency, FixedWindow, IntervalBucket, Keyed, LeakyBucket, Limit, LimitError, Limiter, Limits, SlidingLog,
    SlidingSlices, SlidingWindow, TokenBucket,
};

const HOUR: Nanos = Nanos::from_secs(3_600);

/// Returns limits of all algorithms, most of them with a short and with a longer state, and the two limits without a
/// state.
fn limits() -> Result<Vec<Limit>, LimitError> {
    Ok(vec![
        TokenBucket::new("10/s".parse()?, 10)?.into(),
        TokenBucket::new("7777/s".parse()?, 10)?.into(),
        LeakyBucket::new("10/s".parse()?, 10)?.into(),
        LeakyBucket::new("7777/s".parse()?, 10)?.into(),
        FixedWindow::new(10, HOUR)?.into(),
        FixedWindow::new(10, HOUR)?.phase(Phase::Spread).into(),
        SlidingWindow::new(10, HOUR)?.into(),
        SlidingWindow::new(1 << 40, HOUR)?.into(),
        SlidingSlices::new(10, HOUR, Nanos::from_secs(360))?.into(),
        IntervalBucket::new(10, HOUR)?.into(),
        SlidingLog::new(10, HOUR)?.into(),
        SlidingLog::new(1_000, HOUR)?.count_refused().into(),
        Concurrency::new(10, HOUR)?.into(),
        Concurrency::new(1_000, HOUR)?.into(),
        Limit::Unlimited,
        Limit::DenyAll,
    ])
}

/// Returns each limit alone, and a combination of the maximum number of limits.
fn groups() -> Result<Vec<Limits>, LimitError> {
    let together = Limits::new(limits()?.into_iter().take(Limits::MAX))?;
    Ok(limits()?.into_iter().map(Limits::from).chain([together]).collect())
}

#[track_caller]
fn assert_no_allocation(what: &str, run: impl FnOnce()) {
    let counted = measure(run);
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0), "{what}");
}

#[test]
fn allocation_counter_detects_an_allocation() {
    assert_eq!(measure(|| drop(std::hint::black_box(Box::new(1_u64)))).count_total, 1);
}

#[test]
fn limiter_decides_without_allocating() {
    fn assert_limiter_allocates_nothing<A: Algorithm + std::fmt::Debug>(limit: A) {
        let what = format!("{limit:?}");
        let limiter = Limiter::with_clock(limit, ManualClock::at(HOUR.as_nanos()));
        assert_no_allocation(&what, || {
            let first = limiter.check(1);
            // More requests than the limit admits, so that some are refused.
            (0..12).for_each(|_| _ = limiter.check(1));
            let _ = limiter.check(u64::MAX);
            let _ = limiter.take_up_to(3);
            let _ = limiter.charge(3);
            let _ = limiter.peek(1);
            limiter.report(1);
            limiter.refund(&first);
            limiter.drain();
            limiter.reset();
        });
    }
    limits().unwrap().into_iter().for_each(assert_limiter_allocates_nothing);
    groups().unwrap().into_iter().for_each(assert_limiter_allocates_nothing);
    assert_limiter_allocates_nothing(TokenBucket::new("10/s".parse().unwrap(), 10).unwrap());
}

#[test]
fn keyed_limiter_decides_and_inserts_without_allocating() {
    fn assert_keyed_allocates_nothing<A: Algorithm + Clone + std::fmt::Debug>(limit: &A, when_full: WhenFull) {
        let what = format!("{limit:?}, {when_full:?}");
        // The table is far too small, so that entries are found, inserted, displaced and evicted, and some keys get no
        // entry.
        let keyed =
            Keyed::with_clock(limit.clone(), 20, ManualClock::at(HOUR.as_nanos())).unwrap().when_full(when_full);
        assert_no_allocation(&what, || {
            for key in 0..200_u64 {
                let key = key.to_le_bytes();
                let first = keyed.check(&key, 1 + u64::from(key[0] % 7));
                (0..12).for_each(|_| _ = keyed.check(&key, 1));
                let _ = keyed.check_and_report(&key, 1);
                keyed.refund(&key, &first);
                let _ = keyed.take_up_to(&key, 3);
                let _ = keyed.charge(&key, 3);
                let _ = keyed.check(&Hashed(key), 1);
            }
            for key in 0..200_u64 {
                keyed.drain(&key.to_le_bytes());
                keyed.reset(&key.to_le_bytes());
            }
            let mut allowed = 0;
            keyed.check_many((0..200_u64).map(|key| (key.to_le_bytes(), 1)), |verdict| {
                allowed += u64::from(verdict.is_allowed());
            });
        });
    }
    for when_full in [WhenFull::Overflow, WhenFull::Deny] {
        limits().unwrap().iter().for_each(|limit| assert_keyed_allocates_nothing(limit, when_full));
        groups().unwrap().iter().for_each(|limits| assert_keyed_allocates_nothing(limits, when_full));
        assert_keyed_allocates_nothing(&TokenBucket::new("10/s".parse().unwrap(), 10).unwrap(), when_full);
    }
}

#[test]
fn peeking_at_existing_keys_does_not_allocate() {
    for limit in limits().unwrap() {
        let keyed = Keyed::with_clock(limit, 20, ManualClock::at(HOUR.as_nanos())).unwrap();
        let _ = keyed.check("alice", 1);
        assert_no_allocation(&format!("{limit:?}"), || {
            let _ = keyed.peek("alice", 1);
            keyed.report("alice", 1);
        });
    }
}

#[test]
fn setting_the_same_limit_again_decides_without_allocating() {
    for limit in limits().unwrap() {
        let keyed = Keyed::with_clock(limit, 20, ManualClock::at(HOUR.as_nanos())).unwrap();
        (0..20_u64).for_each(|key| _ = keyed.check(&key.to_le_bytes(), 1));
        keyed.set_limit(limit).unwrap();
        assert_no_allocation(&format!("{limit:?}"), || {
            (0..20_u64).for_each(|key| _ = keyed.check(&key.to_le_bytes(), 1));
        });
    }
}

#[test]
fn ledger_decides_single_charges_without_allocating() {
    let limit_table = groups().unwrap();
    let words = limit_table.iter().map(Limits::words).max().unwrap();
    for when_full in [WhenFull::Overflow, WhenFull::Deny] {
        let ledger = Ledger::with_clock(20, words, ManualClock::at(HOUR.as_nanos())).unwrap().when_full(when_full);
        assert_no_allocation(&format!("{when_full:?}"), || {
            for round in 0..10 {
                for id in 0..=limit_table.len() as u32 {
                    let key = ((u64::from(id) << 32) | (round / 2)).to_le_bytes();
                    let asks = [Ask::Exactly(Cost::ONE), Ask::UpTo(Cost::new(3)), Ask::Regardless(Cost::ONE)];
                    for ask in asks {
                        let charge = Charge { ask, ..Charge::new(id, &key, 0) };
                        let mut remaining = 0;
                        ledger.decide(&limit_table[..], &[charge], |_, view| {
                            remaining = view.reports(1).map(|report| report.remaining).min().unwrap_or(0);
                        });
                        ledger.refund(&limit_table[..], &charge, 1, None);
                    }
                }
            }
            ledger.decide_independently(&limit_table[..], &[Charge::new(0, b"alice", 1); 40], |_, _| ());
            ledger.reset(&limit_table[..], &Charge::new(0, b"alice", 1));
        });
    }
}

#[test]
fn redis_cell_table_decides_without_allocating() {
    let throttles = RedisCellTable::with_clock(20, ManualClock::at(HOUR.as_nanos())).unwrap();
    let calls = [
        tollgate::redis_cell::Throttle::new(5, 1, 60, 1).unwrap(),
        tollgate::redis_cell::Throttle::new(100, 7, 3_600, 2).unwrap(),
    ];
    assert_no_allocation("throttles", || {
        for key in 0..200_u64 {
            throttles.decide(&key.to_le_bytes(), &calls[key as usize % 2]);
        }
        throttles.decide_many((0..40).map(|n| (&b"alice"[..], &calls[n % 2])), |_| ());
    });
}

#[test]
fn reading_the_clock_does_not_allocate() {
    let clock = tollgate::clock::PreciseClock::new();
    assert_no_allocation("the precise clock", || {
        (0..10).for_each(|_| _ = clock.now());
    });
}

#[test]
fn allocations_of_a_snapshot_do_not_depend_on_the_number_of_keys() {
    let allocations = |keys: u64| {
        let limits = Keyed::with_clock(FixedWindow::new(10, HOUR).unwrap(), 10_000, ManualClock::at(1)).unwrap();
        (0..keys).for_each(|key| _ = limits.check(&Hashed(key), 10));
        measure(|| assert_eq!(limits.snapshot(std::io::sink()).unwrap(), keys)).count_total
    };
    assert_eq!(allocations(10_000), allocations(1));
    assert!(allocations(1) < 10);
}

#[test]
fn acquire_that_need_not_wait_allocates_nothing() {
    let limit = TokenBucket::new("10/s".parse().unwrap(), 10).unwrap();
    let limiter = Arc::new(Limiter::with_clock(limit, ManualClock::at(HOUR.as_nanos())));
    let keyed = Arc::new(Keyed::with_clock(limit, 100, ManualClock::at(HOUR.as_nanos())).unwrap());
    assert_no_allocation("acquire", || {
        assert!(limiter.acquire(4).wait().is_ok() && keyed.acquire("alice", 4).wait().is_ok());
        drop(limiter.acquire(4).wait_held().unwrap());
        assert!(limiter.acquire(11).wait().is_err());
    });
}
