//! Model tests that explore the interleavings of two threads. The tests of a limiter explore all interleavings. The
//! tests of a table or a ledger explore only interleavings with at most one or two preemptions (`check_model`).
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_LTO=off cargo test --release -p tollgate --test loom
//! ```
//!
//! The clock does not advance, so nothing refills and admissions can be counted exactly.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use tollgate::clock::{Clock, ManualClock};
use tollgate::core::{Cost, Nanos};
use tollgate::keyed::WhenFull;
use tollgate::ledger::{Charge, Ledger, PlainCharge};
use tollgate::{FixedWindow, Keyed, Limit, Limiter, Limits, TokenBucket};

/// Returns a bucket whose state is one word, updated without a lock.
fn bucket(burst: u64) -> TokenBucket {
    let bucket = TokenBucket::new("1/s".parse().expect("a rate"), burst).expect("a burst of a few seconds");
    assert!(bucket.fits_a_word());
    bucket
}

/// Returns a bucket whose state is two words with their own lock.
fn two_word_bucket(burst: u64) -> TokenBucket {
    let bucket = TokenBucket::new("7777/s".parse().expect("a rate"), burst).expect("a burst of a few seconds");
    assert!(!bucket.fits_a_word());
    bucket
}

fn clock() -> ManualClock {
    ManualClock::at(1_000_000_000)
}

/// Runs two closures concurrently and returns their results.
fn run_both<T: Send + Sync + 'static, R: 'static>(
    shared: &Arc<T>,
    first: impl FnOnce(&T) -> R + 'static,
    second: impl FnOnce(&T) -> R + 'static,
) -> (R, R) {
    let theirs = Arc::clone(shared);
    let other = thread::spawn(move || first(&theirs));
    let mine = second(shared);
    (other.join().expect("a thread that returns"), mine)
}

/// Checks a model with at most `preemptions` preemptive thread switches. One or two preemptions were enough to find all
/// known bugs.
fn check_model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(run);
}

#[test]
fn last_token_is_taken_once() {
    for bucket in [bucket, two_word_bucket] {
        loom::model(move || {
            let limiter = Arc::new(Limiter::with_clock(bucket(1), clock()));
            let (first, second) = run_both(&limiter, |limiter| limiter.check(1), |limiter| limiter.check(1));
            assert!(first.is_allowed() != second.is_allowed());
            assert_eq!(limiter.report(1).remaining, 0);
        });
    }
}

#[test]
fn overlapping_charges_stay_within_the_limit() {
    loom::model(|| {
        let limiter = Arc::new(Limiter::with_clock(bucket(5), clock()));
        let (first, second) = run_both(&limiter, |limiter| limiter.take_up_to(4), |limiter| limiter.check(3));
        let taken = first.taken().get() + second.taken().get();
        assert!(taken <= 5, "{taken}");
        assert_eq!(limiter.report(1).remaining, 5 - taken);
    });
}

#[test]
fn concurrent_refund_is_neither_lost_nor_doubled() {
    for bucket in [bucket, two_word_bucket] {
        loom::model(move || {
            let limiter = Arc::new(Limiter::with_clock(bucket(2), clock()));
            let charge_and_refund = |limiter: &Limiter<TokenBucket, ManualClock>| {
                let verdict = limiter.check(1);
                assert!(verdict.is_allowed());
                limiter.refund(&verdict)
            };
            let (given, mine) = run_both(&limiter, charge_and_refund, |limiter| limiter.check(1).taken().get());
            assert_eq!((given, mine), (1, 1));
            assert_eq!(limiter.report(1).remaining, 1);
        });
    }
}

#[test]
fn two_concurrent_refunds_restore_everything() {
    loom::model(|| {
        let limiter = Arc::new(Limiter::with_clock(bucket(1), clock()));
        let charge_and_refund = |limiter: &Limiter<TokenBucket, ManualClock>| {
            let verdict = limiter.check(1);
            if verdict.is_allowed() {
                assert_eq!(limiter.refund(&verdict), 1);
            }
            verdict.is_allowed()
        };
        let (first, second) = run_both(&limiter, charge_and_refund, charge_and_refund);
        assert!(first || second);
        assert_eq!(limiter.report(1).remaining, 1);
    });
}

#[test]
fn charge_into_debt_and_check_are_ordered() {
    loom::model(|| {
        let limiter = Arc::new(Limiter::with_clock(bucket(2), clock()));
        let (charged, checked) = run_both(&limiter, |limiter| limiter.charge(4), |limiter| limiter.check(2));
        // The charge needs the whole capacity and debt, so only one of the two requests can pass.
        assert!(charged.is_allowed() != checked.is_allowed());
        assert_eq!(limiter.report(1).remaining, 0);
    });
}

/// Runs two threads that charge the same new key, in a table with single-word or longer states.
fn charge_the_same_new_key(keyed: fn() -> TestTable) {
    check_model(2, move || {
        let keyed = Arc::new(keyed());
        let (first, second) = run_both(&keyed, |keyed| keyed.check("alice", 2), |keyed| keyed.check("alice", 2));
        assert!(first != second, "both took 2 of 3");
        assert_eq!((keyed.remaining("alice"), keyed.overflowed()), (1, 0));
    });
}

#[test]
fn concurrent_inserts_of_one_key_make_one_entry() {
    charge_the_same_new_key(|| TestTable::with_one_word_states(3, 1));
    charge_the_same_new_key(|| TestTable::with_two_word_states(3, 1));
}

fn charge_different_new_keys(keyed: fn() -> TestTable) {
    // The smallest table has two buckets, so some of these keys share alice's home bucket.
    for key in ["bob", "carol", "dave"] {
        check_model(2, move || {
            let keyed = Arc::new(keyed());
            let (first, second) = run_both(&keyed, |keyed| keyed.check("alice", 2), move |keyed| keyed.check(key, 3));
            assert!(first && second);
            assert_eq!(["alice", key, "erin"].map(|key| keyed.remaining(key)), [1, 0, 3]);
            assert_eq!(keyed.overflowed(), 0);
        });
    }
}

#[test]
fn concurrent_inserts_of_different_keys_are_independent() {
    charge_different_new_keys(|| TestTable::with_one_word_states(3, 1));
    charge_different_new_keys(|| TestTable::with_two_word_states(3, 1));
}

#[test]
fn refund_and_take_of_one_entry_are_serialised() {
    check_model(2, || {
        let keyed = Arc::new(Keyed::with_clock(bucket(3), 1, clock()).unwrap());
        let held = keyed.check("alice", 2);
        let (given, taken) =
            run_both(&keyed, move |keyed| keyed.refund("alice", &held), |keyed| keyed.check("alice", 2).taken().get());
        assert_eq!(given, 2);
        assert_eq!(keyed.report("alice", 1).remaining, 3 - taken);
    });
}

#[test]
fn two_new_keys_do_not_get_the_same_evicted_entry() {
    check_model(1, || {
        let keyed = Arc::new(Keyed::with_clock(bucket(3), 1, clock()).unwrap().when_full(WhenFull::Deny));
        // Key 0 has used less than the other keys.
        let full = (0..6).filter(|n| keyed.check(&[*n], if *n == 0 { 1 } else { 3 }).is_allowed()).count();
        assert_eq!(full, 6);
        let (first, second) =
            run_both(&keyed, |keyed| keyed.check("alice", 2).is_allowed(), |keyed| keyed.check("bob", 2).is_allowed());
        // The second key evicts the first key, which has used no more than the second.
        assert!(first && second);
        let left = ["alice", "bob"].map(|key| keyed.report(key, 1).remaining);
        assert!(left == [1, 3] || left == [3, 1], "{left:?}");
        assert!((1..6).all(|n| keyed.report(&[n], 1).remaining == 0));
        assert_eq!((keyed.report(&[0], 1).remaining, keyed.overflowed()), (3, 0));
    });
}

#[test]
fn batch_and_single_request_add_up() {
    check_model(2, || {
        let keyed = Arc::new(Keyed::with_clock(bucket(3), 1, clock()).unwrap());
        let _ = keyed.check("alice", 1);
        let many = |keyed: &Keyed<TokenBucket, ManualClock>| {
            let mut taken = 0;
            keyed.check_many([("alice", 1), ("bob", 1)], |verdict| taken += verdict.taken().get());
            taken
        };
        let (batch, single) = run_both(&keyed, many, |keyed| keyed.check("alice", 2).taken().get());
        assert!((batch, single) == (2, 0) || (batch, single) == (1, 2), "{batch} and {single}");
        assert_eq!(keyed.report("alice", 1).remaining, u64::from(single == 0));
        assert_eq!(keyed.report("bob", 1).remaining, 2);
    });
}

#[test]
fn groups_in_opposite_order_neither_deadlock_nor_double_spend() {
    check_model(2, || {
        let limits = [Limits::from(Limit::from(bucket(3)))];
        let ledger = Arc::new(Ledger::with_clock(1, 1, clock()).unwrap());
        let decide = |ledger: &Ledger<ManualClock>, keys: [&[u8]; 2]| {
            let limits = [Limits::from(Limit::from(bucket(3)))];
            ledger.decide(&limits[..], &keys.map(|key| Charge::new(0, key, 2)), |_, _| ())
        };
        let (first, second) =
            run_both(&ledger, move |ledger| decide(ledger, [b"a", b"b"]), move |ledger| decide(ledger, [b"b", b"a"]));
        assert!(first != second);
        for key in [b"a", b"b"] {
            let left =
                ledger.peek(&limits[..], &Charge::new(0, key, 1), |view| view.reports(1).next().unwrap().remaining);
            assert_eq!(left, 1);
        }
    });
}

/// Charges both keys of a ledger, by the fast path if it applies. A separate function, because loom's stacks are small.
#[inline(never)]
fn charge_both(ledger: &Ledger<ManualClock>, keys: [&'static [u8]; 2], cost: u64) -> bool {
    let limits = [Limits::from(Limit::from(bucket(5)))];
    let plain =
        |key: &&'static [u8]| Some(PlainCharge { limits_id: 0, limits: &limits[0], key, cost: Cost::new(cost) });
    let decided = ledger.try_decide_fast(&keys, plain, &clock().now(), |_, _, _| ());
    let slow = || ledger.decide(&limits[..], &keys.map(|key| Charge::new(0, key, cost)), |_, _| ());
    decided.unwrap_or_else(slow)
}

#[test]
fn groups_of_known_keys_neither_deadlock_nor_double_spend() {
    check_model(2, || {
        let ledger = Arc::new(Ledger::with_clock(1, 1, clock()).unwrap());
        assert!(charge_both(&ledger, [b"a", b"b"], 1));
        let forth = |ledger: &Ledger<ManualClock>| charge_both(ledger, [b"a", b"b"], 3);
        let (first, second) = run_both(&ledger, forth, |ledger| charge_both(ledger, [b"b", b"a"], 3));
        assert!(first != second);
        assert!(charge_both(&ledger, [b"a", b"b"], 1), "each key has one left");
        assert!(!charge_both(&ledger, [b"a", b"b"], 1), "now neither has");
    });
}

/// A table with states of one or two words.
enum TestTable {
    Words(Keyed<TokenBucket, ManualClock>),
    Windows(Keyed<FixedWindow, ManualClock>),
}

impl TestTable {
    fn with_one_word_states(burst: u64, capacity: usize) -> Self {
        Self::Words(Keyed::with_clock(bucket(burst), capacity, clock()).expect("a small table"))
    }

    fn with_two_word_states(limit: u64, capacity: usize) -> Self {
        let window = FixedWindow::new(limit, Nanos::from_secs(60)).expect("a window of a minute");
        Self::Windows(Keyed::with_clock(window, capacity, clock()).expect("a small table"))
    }

    fn check(&self, key: &str, cost: u64) -> bool {
        match self {
            Self::Words(keyed) => keyed.check(key, cost).is_allowed(),
            Self::Windows(keyed) => keyed.check(key, cost).is_allowed(),
        }
    }

    fn remaining(&self, key: &str) -> u64 {
        match self {
            Self::Words(keyed) => keyed.report(key, 1).remaining,
            Self::Windows(keyed) => keyed.report(key, 1).remaining,
        }
    }

    fn overflowed(&self) -> u64 {
        match self {
            Self::Words(keyed) => keyed.overflowed(),
            Self::Windows(keyed) => keyed.overflowed(),
        }
    }
}
