mod change;
mod overflow;
mod paths;
mod stress;

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::clock::ManualClock;
use crate::keyed::Hashed;
use crate::testing::{
    HOUR, POINTS, Rng, SECOND, bucket, clock, daily_window, limits_of_ten, limits_of_ten_and_combined, on_threads,
    two_word_bucket,
};
use crate::{FixedWindow, Limit, Limits, Outcome, Retry};
use tollgate_core::{Nanos, Phase};

type TestKeyed<A> = Keyed<A, Arc<ManualClock>>;

/// Creates a limiter with a constant secret, for reproducible runs.
fn keyed<A: Algorithm>(limit: A, capacity: usize) -> (TestKeyed<A>, Arc<ManualClock>) {
    let clock = clock();
    let mut keyed = Keyed::with_clock(limit, capacity, clock.clone()).unwrap();
    keyed.secret = Secret::from_points(POINTS);
    (keyed, clock)
}

/// Returns the number of entries, including unused entries.
fn count_entries<A: Algorithm, C: Clock>(keyed: &Keyed<A, C>) -> usize {
    let mut entries = 0;
    let changes = keyed.changes();
    keyed.table(&changes).for_each(&keyed.reader(&changes, keyed.clock.now()), |_, _| entries += 1);
    entries
}

fn remaining<A: Algorithm, C: Clock>(keyed: &Keyed<A, C>, key: &str) -> u64 {
    keyed.report(key, 1).remaining
}

/// Checks every verb on a limit with a capacity of 10 and a maximum debt of 5. The clock does not advance, so nothing
/// refills. The keys alternate, to detect effects of one key on another.
fn check_every_verb<A: Algorithm + Clone + fmt::Debug>(limit: &A) {
    const KEYS: [&str; 3] = ["alice", "bob", "a key that is much longer than most keys in a table of millions"];
    let (keyed, _) = keyed(limit.clone(), 100);
    let each = |check: &dyn Fn(&str)| KEYS.iter().for_each(|key| check(key));
    let firsts = KEYS.map(|key| keyed.check(key, 4));
    assert!(firsts.iter().all(|first| first.outcome() == Outcome::Allow && first.taken().get() == 4), "{limit:?}");
    each(&|key| {
        assert_eq!((remaining(&keyed, key), keyed.report(key, 1).limit), (6, 10), "{limit:?}");
        assert_eq!((keyed.peek(key, 6).is_admitted(), keyed.peek(key, 7).is_admitted()), (true, false), "{limit:?}");
        assert_eq!(keyed.check(key, 7).taken().get(), 0, "{limit:?}");
        assert_eq!(keyed.check(key, 11).outcome(), Outcome::Deny(Retry::Never), "{limit:?}");
        assert!(keyed.check(key, 0).is_admitted(), "{limit:?}");
    });
    each(&|key| {
        let (verdict, report) = keyed.check_and_report(key, 1);
        assert_eq!((verdict.taken().get(), report.remaining), (1, 5), "a refusal spent part of {limit:?}");
    });
    each(&|key| assert_eq!(keyed.take_up_to(key, 20).taken().get(), 5, "{limit:?}"));
    each(&|key| assert!(!keyed.take_up_to(key, 1).is_admitted() && !keyed.check(key, 1).is_admitted(), "{limit:?}"));
    KEYS.iter().zip(&firsts).for_each(|(key, first)| assert_eq!(keyed.refund(*key, first), 4, "{limit:?}"));
    each(&|key| assert_eq!(remaining(&keyed, key), 4, "{limit:?}"));
    each(&|key| assert_eq!(keyed.charge(key, 9).taken().get(), 9, "{limit:?}"));
    each(&|key| assert!(!keyed.charge(key, 1).is_admitted() && !keyed.peek(key, 1).is_admitted(), "{limit:?}"));

    keyed.reset(KEYS[0]);
    assert_eq!(KEYS.map(|key| remaining(&keyed, key)), [10, 0, 0], "{limit:?}");
    assert_eq!((keyed.drain(KEYS[0]), keyed.drain(KEYS[0])), (10, 0), "{limit:?}");
    assert_eq!((count_entries(&keyed), keyed.overflowed()), (3, 0), "{limit:?}");
}

#[test]
fn every_verb_works_for_each_key_with_every_state() {
    limits_of_ten(HOUR).iter().for_each(check_every_verb);
    limits_of_ten_and_combined(HOUR).iter().for_each(check_every_verb);
    check_every_verb(&bucket(10).max_debt(5).unwrap());
    check_every_verb(&two_word_bucket(10).max_debt(5).unwrap());
    check_every_verb(&daily_window(10).max_debt(5).unwrap());
}

#[test]
fn key_is_identified_by_its_bytes() {
    let (keyed, _) = keyed(bucket(10), 100);
    let _ = keyed.check("alice", 1);
    let _ = keyed.check(&String::from("alice"), 1);
    let _ = keyed.check(b"alice", 1);
    let _ = keyed.check(&[b'a', b'l', b'i', b'c', b'e'][..], 1);
    assert_eq!(remaining(&keyed, "alice"), 6);
    let _ = keyed.check(&Hashed(("alice", 1)), 1);
    let _ = keyed.check(&Hashed(("alice", 2)), 1);
    let _ = keyed.check("", 1);
    assert_eq!(keyed.report(&Hashed(("alice", 1)), 1).remaining, 9);
    assert_eq!((remaining(&keyed, ""), remaining(&keyed, "\0"), remaining(&keyed, "alic")), (9, 10, 10));
}

#[test]
fn refunds_and_resets_of_unknown_keys_do_nothing() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, _) = keyed(limit, 100);
        let verdict = keyed.check("alice", 4);
        assert_eq!(keyed.refund("bob", &verdict), 0, "{limit:?}");
        keyed.reset("bob");
        assert_eq!((count_entries(&keyed), remaining(&keyed, "alice")), (1, 6), "{limit:?}");
    }
}

#[test]
fn clock_that_goes_back_grants_nothing_and_refuses_for_a_bounded_time() {
    for limit in limits_of_ten(SECOND) {
        let (keyed, clock) = keyed(limit, 100);
        let start = clock.mono().as_nanos();
        keyed.drain("alice");
        clock.set(start - 1_000 * SECOND.as_nanos());
        assert!(!keyed.check("alice", 1).is_admitted(), "granted by {limit:?}");
        assert!(keyed.check("bob", 10).is_admitted(), "{limit:?}");
        clock.advance(Nanos::from_secs(3));
        assert!(keyed.check("alice", 10).is_admitted(), "locked out by {limit:?}");
    }
}

#[test]
fn batch_decides_as_single_checks_do() {
    let spread = Limit::from(FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread));
    for limit in limits_of_ten(HOUR).into_iter().chain([spread]) {
        for len in [0, 1, 2, 15, 16, 17, 31, 32, 33, 40, 160] {
            let ((together, _), (singly, _)) = (keyed(limit, 100), keyed(limit, 100));
            let mut dice = Rng::new(len);
            let requests: Vec<(String, u64)> =
                (0..len).map(|_| (format!("key {}", dice.below(1 + len / 4)), dice.below(4))).collect();
            // An iterator without a known length that counts its calls.
            let mut pulled = 0;
            let mut left = requests.iter();
            let unknown = std::iter::from_fn(|| {
                let (key, cost) = left.next()?;
                pulled += 1;
                Some((key, *cost))
            });
            let mut verdicts = Vec::new();
            together.check_many(unknown, |verdict| verdicts.push(verdict));
            assert_eq!(pulled, len);
            let expected: Vec<_> = requests.iter().map(|(key, cost)| singly.check(key, *cost)).collect();
            assert_eq!(verdicts, expected, "{len} requests under {limit:?}");
            assert!(requests.iter().all(|(key, _)| together.report(key, 1) == singly.report(key, 1)));
        }
    }
}

#[test]
fn no_request_is_lost_between_two_batches() {
    // The costs are different powers of two, so the sum reveals a lost request.
    for len in [15, 16, 17, 32, 33, 40] {
        let (keyed, _) = keyed(daily_window(1 << 40), 100);
        keyed.check_many((0..len).map(|n| ("all", 1 << n)).chain(None), |_| ());
        assert_eq!(remaining(&keyed, "all"), (1 << 40) - ((1 << len) - 1));
    }
}

#[test]
fn batch_reads_the_clock_once() {
    let (keyed, clock) = keyed(bucket(10), 100);
    let mut retries = Vec::new();
    keyed.check_many((0..20).map(|_| ("alice", 10)), |verdict| {
        clock.advance(Nanos::from_nanos(1));
        retries.push(verdict.outcome());
    });
    let refused = |late: u64| Outcome::Deny(Retry::After(Nanos::from_nanos(SECOND.as_nanos() - late)));
    assert_eq!(retries[..3], [Outcome::Allow, refused(0), refused(0)]);
    assert_eq!(retries[15..], [refused(0), refused(16), refused(16), refused(16), refused(16)]);
}

#[test]
fn callback_may_use_the_table() {
    let (keyed, _) = keyed(bucket(100), 100);
    let keyed = Arc::new(keyed);
    let (done, waiting) = std::sync::mpsc::channel();
    // Runs on a separate thread, because the call would hang if a bucket were still locked.
    let asking = Arc::clone(&keyed);
    std::thread::spawn(move || {
        for _ in 0..2 {
            asking.check_many((0..40_u64).map(|n| ([n as u8 % 7], 1)), |verdict| {
                (0..7).for_each(|key| assert!(asking.report(&[key], 1).remaining < 101));
                assert_eq!((asking.refund(&[0], &verdict), asking.check(&[0], 1).taken().get()), (1, 1));
            });
        }
        done.send(()).unwrap();
    });
    waiting.recv_timeout(std::time::Duration::from_secs(20)).expect("the callback ran while a bucket was locked");
    assert_eq!(keyed.report(&[1], 1).remaining, 100 - 12);
}

#[test]
fn peeking_and_reporting_insert_nothing() {
    for limit in limits_of_ten(HOUR) {
        let (keyed, _) = keyed(limit, 1);
        for n in 0..100 {
            assert!(keyed.peek(&format!("key {n}"), 10).is_admitted());
            assert!(!keyed.peek(&format!("key {n}"), 11).is_admitted());
            assert_eq!(keyed.report(&format!("key {n}"), 1).remaining, 10);
        }
        assert_eq!(count_entries(&keyed), 0, "{limit:?}");
        let _ = keyed.check("alice", 3);
        (0..100).for_each(|n| assert_eq!(remaining(&keyed, &format!("key {n}")), 10));
        assert_eq!((count_entries(&keyed), remaining(&keyed, "alice"), keyed.overflowed()), (1, 7, 0), "{limit:?}");
    }
}

#[test]
fn spread_windows_begin_at_a_different_instant_for_each_key() {
    let limit = FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread);
    let (keyed, clock) = keyed(limit, 1_000);
    let names: Vec<String> = (0..100).map(|n| format!("key {n}")).collect();
    let resets: Vec<Nanos> = names.iter().map(|key| keyed.check_and_report(key, 10).1.reset).collect();
    assert_eq!(resets.iter().collect::<HashSet<_>>().len(), 100, "two windows end at the same nanosecond");
    assert!(resets.iter().all(|reset| (Nanos::from_nanos(1)..=HOUR).contains(reset)));
    let quarters: HashSet<u64> = resets.iter().map(|reset| reset.as_nanos() / (HOUR.as_nanos() / 4 + 1)).collect();
    assert_eq!(quarters.len(), 4, "the windows are not spread over the hour");
    // The reported waits are exact.
    let start = clock.mono().as_nanos();
    for (key, reset) in names.iter().zip(&resets) {
        clock.set(start + reset.as_nanos() - 1);
        assert!(!keyed.check(key, 1).is_admitted());
        clock.set(start + reset.as_nanos());
        assert!(keyed.check(key, 1).is_admitted());
        assert_eq!(keyed.report(key, 1).reset, HOUR);
    }
}

#[test]
fn peek_at_an_unknown_key_uses_its_own_window() {
    // Regression: the offset of the window was zero.
    let limit = FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread).initial(0).unwrap();
    let (keyed, _) = keyed(limit, 1_000);
    for key in ["alice", "bob", "carol"] {
        let (peeked, report) = (keyed.peek(key, 1).outcome(), keyed.report(key, 1));
        assert!(!peeked.is_admitted());
        assert_eq!((peeked, report), (keyed.check(key, 1).outcome(), keyed.report(key, 1)));
    }
}

#[test]
fn threads_on_the_same_keys_take_exactly_the_limit() {
    fn assert_exact_limit_per_key<A: Algorithm + Send + Sync>(limit: A, what: &str)
    where
        A::Stamp: Send,
    {
        const KEYS: u64 = 7;
        let (keyed, _) = keyed(limit, 100);
        let most = keyed.limit.capacity();
        // Two threads rarely collide within the time of a decision, so many requests are needed.
        let taken = on_threads(4, |thread| {
            let mut taken = [0; KEYS as usize];
            // The threads make single checks and batches, starting at different keys.
            let requests = |round: u64| (0..KEYS).map(move |n| ([(n + round + thread) as u8 % KEYS as u8], 1));
            for round in 0..most {
                if (round + thread).is_multiple_of(2) {
                    let mut keys = requests(round);
                    keyed.check_many(requests(round), |verdict| {
                        taken[keys.next().unwrap().0[0] as usize] += verdict.taken().get();
                    });
                } else {
                    requests(round)
                        .for_each(|(key, cost)| taken[key[0] as usize] += keyed.check(&key, cost).taken().get());
                }
            }
            taken
        });
        for key in 0..KEYS {
            assert_eq!(taken.iter().map(|taken| taken[key as usize]).sum::<u64>(), most, "{what}");
            assert_eq!(keyed.report(&[key as u8], 1).remaining, 0, "{what}");
        }
    }
    assert_exact_limit_per_key(bucket(60_000), "one word");
    assert_exact_limit_per_key(two_word_bucket(20_000), "two words");
    assert_exact_limit_per_key(daily_window(5_000), "a window");
    assert_exact_limit_per_key(Limits::new([bucket(5_000).into(), daily_window(3_000).into()]).unwrap(), "a group");
}

#[test]
fn threads_on_different_keys_do_not_interfere() {
    for limit in [Limit::from(bucket(100)), daily_window(100).into()] {
        let (keyed, _) = keyed(limit, 4_000);
        on_threads(4, |thread| {
            // New keys arrive constantly, so that insertion, displacement and overflow happen concurrently.
            for n in 0..1_000_u32 {
                let key = [thread as u32, n].map(u32::to_le_bytes).concat();
                let taken: Vec<_> = (0..5).map(|_| keyed.check(&key, 30)).collect();
                assert_eq!(taken.iter().filter(|verdict| verdict.is_admitted()).count(), 3);
                assert_eq!((keyed.refund(&key, &taken[0]), keyed.report(&key, 1).remaining), (30, 40));
            }
        });
        assert_eq!((count_entries(&keyed), keyed.overflowed()), (4_000, 0), "{limit:?}");
        for (thread, n) in (0..4_u32).flat_map(|thread| (0..1_000_u32).map(move |n| (thread, n))) {
            assert_eq!(keyed.report(&[thread, n].map(u32::to_le_bytes).concat(), 1).remaining, 40);
        }
    }
}
