mod groups;
mod large_groups;
mod model;
mod stress;

use std::sync::Arc;

use super::*;
use crate::clock::ManualClock;
use crate::testing::{
    DAY, HOUR, POINTS, SECOND, bucket, clock, daily_window, limits_of_ten, limits_of_ten_and_combined, two_word_bucket,
};
use crate::{Concurrency, FixedWindow, Limit, Outcome, Report, SlidingLog, Verdict};
use tollgate_core::{Nanos, Phase};

type TestLedger = Ledger<Arc<ManualClock>>;

/// Creates a ledger with a constant secret, for reproducible runs.
fn ledger(capacity: usize, state_words: usize) -> (TestLedger, Arc<ManualClock>) {
    let clock = clock();
    let mut ledger = Ledger::with_clock(capacity, state_words, clock.clone()).unwrap();
    ledger.secret = Secret::from_points(POINTS);
    (ledger, clock)
}

fn single_limit(limit: impl Into<Limit>) -> Limits {
    Limits::from(limit.into())
}

impl TestLedger {
    /// Decides one charge of `cost` and returns its verdict.
    fn check(&self, limit_table: &[Limits], id: u32, key: &str, cost: u64) -> Verdict<Stamps> {
        self.ask(limit_table, id, key, Ask::Exactly(Cost::new(cost)))
    }

    fn ask(&self, limit_table: &[Limits], id: u32, key: &str, ask: Ask) -> Verdict<Stamps> {
        let charge = Charge { ask, ..Charge::new(id, key.as_bytes(), 0) };
        let mut verdict = None;
        let passed = self.decide(limit_table, &[charge], |index, view| {
            assert_eq!((index, verdict.replace(*view.verdict())), (0, None));
        });
        assert_eq!(passed, verdict.unwrap().is_admitted());
        verdict.unwrap()
    }

    /// Returns the remaining amount of the tightest limit.
    fn remaining(&self, limit_table: &[Limits], id: u32, key: &str) -> u64 {
        let charge = Charge::new(id, key.as_bytes(), 1);
        self.peek(limit_table, &charge, |view| view.reports(1).map(|report| report.remaining).min()).unwrap()
    }

    fn has_entry(&self, key: &str) -> bool {
        let reader = LedgerReader { limit_table: &[][..], now: self.clock.now() };
        self.table.find(key.fingerprint(&self.secret), &reader, |_| ()).is_some()
    }

    /// Returns the number of entries.
    fn count_entries(&self) -> usize {
        let mut entries = 0;
        let reader = LedgerReader { limit_table: &[][..], now: self.clock.now() };
        self.table.for_each(&reader, |_, _| entries += 1);
        entries
    }
}

/// Returns the smallest ledger, filled with keys "0", "1" and so on that have spent `cost(number)` under the first
/// limits, and the number of keys. In this ledger every key can be in every bucket.
fn filled_ledger(limit_table: &[Limits], cost: impl Fn(u64) -> u64) -> (TestLedger, Arc<ManualClock>, u64) {
    let words = limit_table.iter().map(Limits::words).max().unwrap();
    let (other, _) = ledger(1, words);
    (0..100).for_each(|n| assert!(other.ask(limit_table, 0, &n.to_string(), Ask::UpTo(Cost::MAX)).is_admitted()));
    let slots = other.count_entries() as u64;
    let (ledger, clock) = ledger(1, words);
    (0..slots).for_each(|n| assert!(ledger.check(limit_table, 0, &n.to_string(), cost(n)).is_admitted()));
    assert!(slots >= 4 && ledger.count_entries() as u64 == slots && ledger.overflowed() == 0);
    (ledger, clock, slots)
}

#[test]
fn every_ask_works_with_every_state() {
    for limits in limits_of_ten_and_combined(HOUR) {
        let (ledger, _) = ledger(100, limits.words());
        let limit_table = &[limits.clone()][..];
        let remaining = || ledger.remaining(limit_table, 0, "alice");
        let first = ledger.check(limit_table, 0, "alice", 4);
        assert_eq!((first.taken().get(), remaining()), (4, 6), "{limits:?}");
        assert_eq!((ledger.check(limit_table, 0, "alice", 7).taken().get(), remaining()), (0, 6), "{limits:?}");
        assert_eq!(ledger.check(limit_table, 0, "alice", 11).outcome(), Outcome::Deny(Retry::Never), "{limits:?}");
        assert_eq!(ledger.ask(limit_table, 0, "alice", Ask::UpTo(Cost::MAX)).taken().get(), 6, "{limits:?}");
        assert!(!ledger.ask(limit_table, 0, "alice", Ask::UpTo(Cost::ONE)).is_admitted(), "{limits:?}");
        let charge = Charge::new(0, b"alice", 1);
        assert_eq!(ledger.refund(limit_table, &charge, 4, Some(first.stamp())), 4, "{limits:?}");
        assert_eq!(ledger.ask(limit_table, 0, "alice", Ask::Regardless(Cost::new(9))).taken().get(), 9, "{limits:?}");
        assert!(!ledger.ask(limit_table, 0, "alice", Ask::Regardless(Cost::ONE)).is_admitted(), "{limits:?}");
        assert_eq!((remaining(), ledger.remaining(limit_table, 0, "bob")), (0, 10), "{limits:?}");
        ledger.reset(limit_table, &charge);
        assert_eq!((remaining(), ledger.count_entries(), ledger.overflowed()), (10, 1, 0), "{limits:?}");
    }
}

/// Evicting a full key loses state: if the key is used again, it starts with the initial amount of its limits.
#[test]
fn new_key_replaces_no_full_key_while_its_bucket_has_vacant_entries() {
    let limit_table = &[single_limit(bucket(10))][..];
    for round in 0..10 {
        let (ledger, clock) = ledger(1, 4);
        // A bucket has seven entries.
        let keys: Vec<String> = (0..7).map(|n| format!("{round}.{n}")).collect();
        for key in &keys {
            assert!(ledger.check(limit_table, 0, key, 1).is_admitted());
            clock.advance(DAY);
        }
        assert_eq!((ledger.remaining(limit_table, 0, &keys[0]), ledger.count_entries()), (10, 7), "round {round}");
    }
}

#[test]
fn decision_reports_the_state_before_and_after() {
    let limit_table = [Limits::new([bucket(10).into(), daily_window(8).into()]).unwrap()];
    let (ledger, _) = ledger(100, 4);
    ledger.decide(&limit_table[..], &[Charge::new(0, b"alice", 3)], |_, view| {
        assert_eq!(view.limits(), Some(&limit_table[0]));
        assert_eq!(
            view.reports(1).map(|report| (report.limit, report.remaining)).collect::<Vec<_>>(),
            [(10, 7), (8, 5)]
        );
    });
}

#[test]
fn peeking_inserts_and_changes_nothing() {
    let limit_table = limits_of_ten_and_combined(HOUR);
    let (ledger, _) = ledger(1, 100);
    for id in 0..limit_table.len() as u32 {
        for n in 0..50 {
            let key = format!("{id} {n}");
            let charge = |cost| Charge { limits_id: id, key: key.as_bytes(), ..Charge::new(0, b"", cost) };
            assert!(ledger.peek(&limit_table[..], &charge(10), |view| view.verdict().is_admitted()));
            assert!(!ledger.peek(&limit_table[..], &charge(11), |view| view.verdict().is_admitted()));
        }
        assert_eq!((ledger.count_entries(), ledger.overflowed()), (0, 0));
    }
    let _ = ledger.check(&limit_table, 0, "alice", 3);
    assert_eq!([(); 3].map(|()| ledger.remaining(&limit_table, 0, "alice")), [7; 3]);
}

#[test]
fn peek_at_an_unknown_key_uses_its_own_window() {
    let spread = FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread).initial(0).unwrap();
    let limit_table = [single_limit(spread)];
    let (ledger, _) = ledger(100, 2);
    for key in ["alice", "bob", "carol"] {
        let peeked = ledger.peek(&limit_table[..], &Charge::new(0, key.as_bytes(), 1), |view| view.verdict().outcome());
        assert!(!peeked.is_admitted());
        assert_eq!(peeked, ledger.check(&limit_table, 0, key, 1).outcome());
    }
}

#[test]
fn parameters_that_change_with_each_call_keep_the_used_amount() {
    // Converts between all pairs of limits, in both directions. Each call must see the charges of the previous call.
    let limit_table: Vec<Limits> = limits_of_ten(DAY).into_iter().map(Limits::from).collect();
    let (ledger, _) = ledger(100, 47);
    for old in 0..limit_table.len() as u32 {
        for new in 0..limit_table.len() as u32 {
            let key = format!("{old} {new}");
            assert!(ledger.check(&limit_table, old, &key, 4).is_admitted());
            assert!(!ledger.check(&limit_table, new, &key, 7).is_admitted(), "from {old} to {new}");
            assert_eq!(ledger.check(&limit_table, new, &key, 5).taken().get(), 5, "from {old} to {new}");
            assert_eq!(ledger.remaining(&limit_table, old, &key), 1, "from {old} to {new} and back");
            ledger.reset(&limit_table[..], &Charge::new(new, key.as_bytes(), 0));
            assert_eq!(ledger.remaining(&limit_table, old, &key), 10, "from {old} to {new} and back, reset");
        }
    }
}

#[test]
fn unknown_limits_are_refused_permanently() {
    let limit_table = [single_limit(bucket(10))];
    let (ledger, _) = ledger(100, 1);
    let mut calls = 0;
    let charges = [Charge::new(1, b"alice", 1)];
    assert!(!ledger.decide(&limit_table[..], &charges, |index, view| {
        calls += 1;
        assert_eq!((index, view.verdict().outcome()), (0, Outcome::Deny(Retry::Never)));
        assert!(view.limits().is_none() && view.reports(1).next().is_none());
    }));
    assert_eq!((calls, ledger.count_entries(), ledger.overflowed()), (1, 0, 0));
    assert_eq!(ledger.refund(&limit_table[..], &charges[0], 1, None), 0);
    ledger.reset(&limit_table[..], &charges[0]);
    ledger.peek(&limit_table[..], &charges[0], |view| assert!(!view.verdict().is_admitted()));
}

#[test]
fn states_too_long_for_the_table_are_refused_permanently() {
    let limit_table = [
        single_limit(SlidingLog::new(3, DAY).unwrap().max_debt(0).unwrap()),
        single_limit(SlidingLog::new(4, DAY).unwrap().max_debt(0).unwrap()),
        single_limit(bucket(10)),
    ];
    let (ledger, _) = ledger(100, 4);
    assert_eq!(ledger.state_words(), 4);
    assert!(ledger.check(&limit_table, 0, "alice", 1).is_admitted());
    assert_eq!(ledger.check(&limit_table, 1, "alice", 1).outcome(), Outcome::Deny(Retry::Never));
    ledger.peek(&limit_table[..], &Charge::new(1, b"alice", 1), |view| assert!(view.limits().is_none()));
    assert_eq!((ledger.remaining(&limit_table, 0, "alice"), ledger.overflowed()), (2, 0));
    // Refunds and resets apply to the state of the key, even if they specify other limits.
    assert_eq!(ledger.refund(&limit_table[..], &Charge::new(1, b"alice", 1), 1, None), 1);
    assert!(ledger.check(&limit_table, 0, "alice", 2).is_admitted());
    ledger.reset(&limit_table[..], &Charge::new(1, b"alice", 1));
    assert_eq!(ledger.remaining(&limit_table, 0, "alice"), 3);
    assert_eq!(ledger.check(&limit_table, 2, "alice", 9).taken().get(), 9);
}

#[test]
fn state_of_unknown_limits_is_dropped() {
    let limit_table = [single_limit(bucket(10)), single_limit(daily_window(10))];
    let (ledger, _, slots) = filled_ledger(&limit_table, |_| 3);
    for n in 0..slots {
        assert_eq!(ledger.check(&limit_table, 1, &n.to_string(), 7).taken().get(), 7);
    }
    // The second set of limits is now unknown. A key that had spent everything under these limits counts as new, and
    // other keys may use its entry.
    assert_eq!(ledger.remaining(&limit_table[..1], 0, "0"), 10);
    assert!(ledger.check(&limit_table[..1], 0, "1", 10).is_admitted());
    assert!(ledger.check(&limit_table[..1], 0, "new", 1).is_admitted());
    assert_eq!((ledger.remaining(&limit_table[..1], 0, "new"), ledger.overflowed()), (9, 0));
}

#[test]
fn windows_are_given_with_the_charge() {
    let limit_table = [single_limit(daily_window(10).phase(Phase::Given(0)))];
    let (ledger, clock) = ledger(100, 2);
    let now = clock.now().wall();
    let day = Window::new(now, now.saturating_add(HOUR)).unwrap();
    let next = Window::new(day.end(), day.end().saturating_add(HOUR)).unwrap();
    fn charge(windows: &[Window]) -> Charge<'_> {
        Charge { windows, ..Charge::new(0, b"alice", 6) }
    }
    let passes = |window: &[Window]| {
        let single = ledger.decide(&limit_table[..], &[charge(window)], |_, _| ());
        // The second charge of the group never passes; only the verdict on the first charge matters.
        let both = ledger.decide(&limit_table[..], &[charge(window), charge(window)], |_, _| ());
        (single, both)
    };
    assert_eq!(passes(&[day]), (true, false));
    clock.advance(Nanos::from_secs(3_599));
    assert_eq!(passes(&[day]), (false, false));
    clock.advance(SECOND);
    assert_eq!(passes(&[next]), (true, false));
    assert_eq!(ledger.peek(&limit_table[..], &charge(&[next]), |view| view.reports(1).next().unwrap().remaining), 4);
    assert_eq!(ledger.refund(&limit_table[..], &charge(&[next]), 6, None), 6);
}

#[test]
fn batch_decides_as_single_charges_do() {
    let limit_table = limits_of_ten_and_combined(HOUR);
    for len in [0, 1, 2, 15, 16, 17, 32, 33, 40] {
        let ((together, _), (singly, _)) = (ledger(100, 100), ledger(100, 100));
        let keys: Vec<String> = (0..len).map(|n| format!("key {}", n % (1 + len / 3))).collect();
        let charges: Vec<Charge<'_>> = keys
            .iter()
            .enumerate()
            .map(|(n, key)| Charge::new((n * 5 % (limit_table.len() + 1)) as u32, key.as_bytes(), n as u64 % 4))
            .collect();
        let mut answers = Vec::new();
        together.decide_independently(&limit_table[..], &charges, |index, view| {
            assert_eq!(index, answers.len());
            answers.push((*view.verdict(), view.reports(1).collect::<Vec<_>>()));
        });
        let mut expected = Vec::new();
        for charge in &charges {
            singly.decide(&limit_table[..], &[*charge], |_, view| {
                expected.push((*view.verdict(), view.reports(1).collect::<Vec<_>>()));
            });
        }
        assert_eq!(answers, expected, "{len} charges");
        assert_eq!(answers.len(), len);
    }
}

fn to_plain_charge<'a>(charge: &Charge<'a>, limit_table: &'a [Limits]) -> Option<PlainCharge<'a>> {
    let limits = limit_table.get(charge.limits_id as usize)?;
    let Ask::Exactly(cost) = charge.ask else { return None };
    Some(PlainCharge { limits_id: charge.limits_id, limits, key: charge.key, cost })
}

#[test]
fn fast_path_of_groups_decides_as_the_slow_path_does() {
    let limit_table = [
        single_limit(bucket(10)),
        single_limit(bucket(7)),
        single_limit(two_word_bucket(10)),
        single_limit(bucket(20)),
        single_limit(daily_window(30)),
    ];
    let ((fast, clock), (slow, other_clock)) = (ledger(100, 100), ledger(100, 100));
    let (mut admitted, mut refused, mut slow_only) = (0, 0, 0);
    for step in 0..400_u64 {
        // Each key is always charged under the same limits.
        let ids: Vec<u64> = (0..=step % 3).map(|n| (step / 7 + n) % limit_table.len() as u64).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("key {id}")).collect();
        let charges: Vec<Charge<'_>> =
            ids.iter().zip(&names).map(|(id, name)| Charge::new(*id as u32, name.as_bytes(), step % 3)).collect();
        let mut answers = Vec::new();
        let each = |_: &PlainCharge<'_>, outcome: &Outcome, report: &Report| answers.push((*outcome, vec![*report]));
        let decided =
            fast.try_decide_fast(&charges, |charge| to_plain_charge(charge, &limit_table), &fast.clock().now(), each);
        let mut expected = Vec::new();
        let passed = slow.decide(&limit_table[..], &charges, |index, view| {
            let cost = charges[index].ask.cost();
            expected.push((view.verdict().outcome(), view.reports(cost.get()).collect::<Vec<_>>()));
        });
        match decided {
            Some(decided) => {
                assert_eq!((decided, answers), (passed, expected), "step {step}");
                *(if passed { &mut admitted } else { &mut refused }) += 1;
            }
            None => {
                assert!(answers.is_empty(), "step {step}: the fast path had an effect");
                assert_eq!(fast.decide(&limit_table[..], &charges, |_, _| ()), passed, "step {step}");
                slow_only += 1;
            }
        }
        [&clock, &other_clock].iter().for_each(|clock| clock.advance(Nanos::from_millis(step % 5 * 10)));
    }
    assert!(
        admitted > 20 && refused > 20 && slow_only > 20,
        "{admitted} admitted, {refused} refused, {slow_only} slow"
    );
}

#[test]
fn least_used_entry_is_evicted_across_different_limits() {
    let limit_table = [single_limit(bucket(10)), single_limit(two_word_bucket(1_000)), single_limit(daily_window(4))];
    let (ledger, _, slots) = filled_ledger(&limit_table, |n| if n == 0 { 2 } else { 6 });
    // The keys spend a tenth, a quarter and a half of their limits.
    assert!(ledger.check(&limit_table, 1, "tenth", 100).is_admitted() && !ledger.has_entry("tenth"));
    assert!(ledger.check(&limit_table, 2, "quarter", 1).is_admitted() && ledger.has_entry("quarter"));
    assert!(!ledger.has_entry("0"));
    assert!(ledger.check(&limit_table, 1, "half", 500).is_admitted() && ledger.has_entry("half"));
    assert!(!ledger.has_entry("quarter"));
    assert!((1..slots).all(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 4));
    assert_eq!(ledger.overflowed(), 1);
}

#[test]
fn entries_of_expired_windows_are_vacant() {
    // Buckets need no wall clock, but yesterday's windows end by the wall clock. Regression: the wall clock was not
    // read.
    let limit_table = [single_limit(daily_window(10)), single_limit(bucket(10))];
    let (ledger, clock, slots) = filled_ledger(&limit_table, |_| 10);
    assert!(ledger.check(&limit_table, 1, "early", 1).is_admitted() && !ledger.has_entry("early"));
    clock.advance(DAY);
    for n in 0..slots {
        assert!(ledger.check(&limit_table, 1, &format!("late {n}"), 1).is_admitted());
    }
    assert!((0..slots).all(|n| ledger.has_entry(&format!("late {n}"))));
    assert_eq!(ledger.overflowed(), 1);
}

/// A calendar window may be 50 % longer than the average. While a key's debt may still be outstanding, the debt counts
/// as used, so a key that has used less does not evict this key.
#[test]
fn debt_in_long_calendar_windows_is_not_evicted_for_a_key_that_spends_less() {
    let limit_table =
        [single_limit(daily_window(10).phase(Phase::Given(0)).max_debt(5).unwrap()), single_limit(bucket(10))];
    let (ledger, clock, slots) = filled_ledger(&limit_table, |_| 10);
    for n in 0..slots {
        assert!(ledger.ask(&limit_table, 0, &n.to_string(), Ask::Regardless(Cost::new(5))).is_admitted());
    }
    let owed = |ledger: &TestLedger| (0..slots).filter(|n| ledger.has_entry(&n.to_string())).count() as u64;
    // In the next window, the remaining debt of 5 uses half of the limit. That window may last for a day and a half.
    clock.advance(Nanos::from_nanos(DAY.as_nanos() * 5 / 2 - 1));
    assert!(ledger.check(&limit_table, 1, "four of ten", 4).is_admitted() && !ledger.has_entry("four of ten"));
    assert_eq!(owed(&ledger), slots);
    assert!(ledger.check(&limit_table, 1, "half", 5).is_admitted() && ledger.has_entry("half"));
    assert_eq!(owed(&ledger), slots - 1);
    clock.advance(Nanos::from_nanos(1));
    assert!(ledger.check(&limit_table, 1, "later", 1).is_admitted() && ledger.has_entry("later"));
}

#[test]
fn limits_without_state_evict_no_entry() {
    let limit_table = [single_limit(bucket(10)), single_limit(Limit::Unlimited), single_limit(Limit::DenyAll)];
    let (ledger, _, slots) = filled_ledger(&limit_table, |_| 1);
    for (n, cost) in [0, 1, u64::MAX].into_iter().enumerate() {
        assert!(ledger.check(&limit_table, 1, &format!("unlimited {n}"), cost).is_admitted());
        assert!(!ledger.check(&limit_table, 2, &format!("denied {n}"), cost).is_admitted());
    }
    assert!((0..slots).all(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 9));
}

#[test]
fn keys_without_an_entry_share_one_entry_per_limit() {
    for limit in limits_of_ten(HOUR) {
        let limit_table = [single_limit(limit), single_limit(bucket(3)), single_limit(daily_window(4))];
        let (ledger, _, slots) = filled_ledger(&limit_table, |_| 10);
        let passed =
            |id| (0..20).filter(|n| ledger.check(&limit_table, id, &format!("late {n}"), 1).is_admitted()).count();
        assert_eq!([passed(0), passed(1), passed(2)], [10, 3, 4], "{limit:?}");
        assert_eq!(ledger.overflowed(), 60, "{limit:?}");
        assert!((0..slots).all(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 0), "{limit:?}");
    }
}

#[test]
fn windows_of_the_overflow_entry_have_full_length() {
    // Every key has its own window offset. If the overflow entry used these offsets, its window would end with the
    // window of every key.
    let limit_table =
        [single_limit(bucket(10)), single_limit(FixedWindow::new(10, HOUR).unwrap().phase(Phase::Spread))];
    let (ledger, clock, slots) = filled_ledger(&limit_table, |_| 10);
    let (mut passed, mut late) = (0, 0);
    for _ in 0..4 * 60 {
        for n in 0..slots {
            assert!(ledger.ask(&limit_table, 0, &n.to_string(), Ask::UpTo(Cost::MAX)).taken().get() < 11);
        }
        for _ in 0..11 {
            late += 1;
            passed += ledger.check(&limit_table, 1, &format!("late {late}"), 1).taken().get();
        }
        clock.advance(Nanos::from_secs(60));
    }
    assert_eq!(ledger.overflowed(), late, "a late key got an entry");
    assert!(passed <= 5 * 10, "{passed} passed in four hours, at ten an hour");
}

#[test]
fn full_ledger_can_refuse_instead_of_sharing() {
    let limit_table = [single_limit(bucket(10))];
    let (ledger, clock, _) = filled_ledger(&limit_table, |_| 5);
    let ledger = ledger.when_full(WhenFull::Deny);
    assert_eq!(ledger.check(&limit_table, 0, "late", 4).outcome(), Outcome::Deny(Retry::OnRelease));
    assert!(ledger.check(&limit_table, 0, "late", 5).is_admitted() && ledger.overflowed() == 1);
    clock.advance(SECOND);
    assert!(ledger.check(&limit_table, 0, "later", 4).is_admitted());
}

#[test]
fn ledger_holds_its_capacity_of_keys() {
    let limit_table = [single_limit(bucket(100)), single_limit(Concurrency::new(3, DAY).unwrap().max_debt(0).unwrap())];
    for (capacity, words) in [(1, 1), (10, 1), (10, 11), (1_000, 1), (1_000, 11), (20_000, 2)] {
        let ledger = ledger(capacity, words).0.when_full(WhenFull::Deny);
        let id = u32::from(words > 10);
        let full = limit_table[id as usize].capacity();
        for n in 0..capacity {
            assert!(ledger.check(&limit_table, id, &n.to_string(), 1).is_admitted(), "{n} of {capacity}");
        }
        assert!((0..capacity).all(|n| ledger.remaining(&limit_table, id, &n.to_string()) == full - 1));
        assert_eq!(ledger.overflowed(), 0);
    }
    assert!(Ledger::with_clock(usize::MAX, 1, clock()).is_err() && Ledger::with_clock(1, usize::MAX, clock()).is_err());
    assert!(Ledger::with_clock(1 << 50, 1, clock()).is_err());
}
