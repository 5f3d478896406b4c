//! Groups of charges.

use super::*;

fn charge(id: u32, key: &str, cost: u64) -> Charge<'_> {
    Charge::new(id, key.as_bytes(), cost)
}

/// Decides a group and returns whether it passed, with the outcome of each single charge.
fn decide(ledger: &TestLedger, limit_table: &[Limits], charges: &[Charge<'_>]) -> (bool, Vec<Outcome>) {
    let mut outcomes = Vec::new();
    let passed = ledger.decide(limit_table, charges, |index, view| {
        assert_eq!(index, outcomes.len());
        outcomes.push(view.verdict().outcome());
    });
    assert_eq!(outcomes.len(), charges.len());
    (passed, outcomes)
}

fn passes(ledger: &TestLedger, limit_table: &[Limits], charges: &[Charge<'_>]) -> bool {
    decide(ledger, limit_table, charges).0
}

/// Returns the reports of each key, limit by limit.
fn reports(ledger: &TestLedger, limit_table: &[Limits], keys: &[&str]) -> Vec<Vec<Report>> {
    let report = |key: &&str| ledger.peek(limit_table, &charge(0, key, 1), |view| view.reports(1).collect());
    keys.iter().map(report).collect()
}

#[test]
fn all_pass_or_none_is_charged() {
    for limits in limits_of_ten_and_combined(HOUR) {
        let limit_table = &[limits.clone()][..];
        let (ledger, _) = ledger(100, limits.words());
        let group = [charge(0, "alice", 4), charge(0, "bob", 3), charge(0, "carol", 2)];
        assert!(passes(&ledger, limit_table, &group) && passes(&ledger, limit_table, &group), "{limits:?}");
        let before = reports(&ledger, limit_table, &["alice", "bob", "carol"]);
        // The refused charge is the first, the middle or the last charge.
        for (costs, refused) in [([4, 1, 1], 0), ([1, 5, 1], 1), ([1, 1, 7], 2), ([2, 4, u64::MAX], 2)] {
            let group = [charge(0, "alice", costs[0]), charge(0, "bob", costs[1]), charge(0, "carol", costs[2])];
            let (passed, outcomes) = decide(&ledger, limit_table, &group);
            assert!(!passed && !outcomes[refused].is_admitted(), "{costs:?}, {limits:?}");
            assert!(
                outcomes.iter().enumerate().all(|(n, outcome)| n == refused || outcome.is_admitted()),
                "{limits:?}"
            );
            assert_eq!(reports(&ledger, limit_table, &["alice", "bob", "carol"]), before, "{costs:?}, {limits:?}");
        }
        let rest = [charge(0, "alice", 2), charge(0, "bob", 4), charge(0, "carol", 6)];
        assert!(passes(&ledger, limit_table, &rest), "{limits:?}");
    }
}

#[test]
fn empty_group_passes() {
    assert!(passes(&ledger(10, 1).0, &[], &[]));
}

#[test]
fn large_group_is_still_atomic() {
    let limit_table = [single_limit(bucket(10))];
    let (ledger, _) = ledger(1_000, 1);
    let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let mut group: Vec<Charge<'_>> = keys.iter().map(|key| charge(0, key, 6)).collect();
    assert!(passes(&ledger, &limit_table, &group));
    group[199].ask = Ask::Exactly(Cost::new(4));
    assert!(!passes(&ledger, &limit_table, &group), "199 of the charges exceed the limit");
    assert!(keys.iter().all(|key| ledger.remaining(&limit_table, 0, key) == 4));
}

#[test]
fn two_charges_of_one_key_see_each_other() {
    for limits in limits_of_ten_and_combined(HOUR) {
        let limit_table = &[limits.clone()][..];
        let (ledger, _) = ledger(100, limits.words());
        let (passed, outcomes) = decide(&ledger, limit_table, &[charge(0, "alice", 6), charge(0, "alice", 6)]);
        assert!(!passed && outcomes[0].is_admitted() && !outcomes[1].is_admitted(), "{limits:?}");
        assert_eq!(ledger.remaining(limit_table, 0, "alice"), 10, "{limits:?}");
        let group = [charge(0, "alice", 4), charge(0, "bob", 1), charge(0, "alice", 6)];
        assert!(passes(&ledger, limit_table, &group), "{limits:?}");
        assert_eq!(ledger.remaining(limit_table, 0, "alice"), 0, "{limits:?}");
        assert_eq!((ledger.remaining(limit_table, 0, "bob"), ledger.count_entries()), (9, 2), "{limits:?}");
    }
}

#[test]
fn key_charged_under_two_limits_in_one_group_is_converted_between_them() {
    // Regression: the first charge was decided under its own limits on a state that had been converted to the second
    // charge's limits.
    let limit_table: Vec<Limits> = limits_of_ten(HOUR).into_iter().map(Limits::from).collect();
    for first in 0..limit_table.len() as u32 {
        for second in 0..limit_table.len() as u32 {
            let (ledger, _) = ledger(100, 47);
            let pair = |a, b| [charge(first, "alice", a), charge(second, "alice", b)];
            assert!(passes(&ledger, &limit_table, &pair(3, 4)), "{first} and {second}");
            assert_eq!(ledger.remaining(&limit_table, second, "alice"), 3, "{first} and {second}");
            assert!(!passes(&ledger, &limit_table, &pair(2, 2)), "{first} and {second}");
            assert_eq!(ledger.remaining(&limit_table, first, "alice"), 3, "{first} and {second}");
            assert!(passes(&ledger, &limit_table, &pair(1, 2)), "{first} and {second}");
            assert_eq!(ledger.remaining(&limit_table, first, "alice"), 0, "{first} and {second}");
        }
    }
}

#[test]
fn groups_support_regardless_and_up_to() {
    let limit_table = [single_limit(bucket(10).max_debt(5).unwrap())];
    let (ledger, _) = ledger(100, 1);
    let ask = |key: &'static str, ask| Charge { ask, ..charge(0, key, 0) };
    let mut taken = Vec::new();
    let group = [
        ask("a", Ask::Regardless(Cost::new(13))),
        ask("b", Ask::UpTo(Cost::MAX)),
        ask("a", Ask::Regardless(Cost::new(2))),
    ];
    assert!(ledger.decide(&limit_table[..], &group, |_, view| taken.push(view.verdict().taken().get())));
    assert_eq!(taken, [13, 10, 2]);
    let refused = [ask("c", Ask::UpTo(Cost::MAX)), ask("a", Ask::Regardless(Cost::ONE))];
    assert!(!passes(&ledger, &limit_table, &refused));
    assert_eq!(["a", "b", "c"].map(|key| ledger.remaining(&limit_table, 0, key)), [0, 0, 10]);
}

#[test]
fn group_is_refunded_by_its_stamps() {
    for limits in limits_of_ten_and_combined(HOUR) {
        let limit_table = &[limits.clone()][..];
        let (ledger, clock) = ledger(100, limits.words());
        let group = [charge(0, "alice", 4), charge(0, "bob", 3)];
        let mut verdicts = Vec::new();
        assert!(ledger.decide(limit_table, &group, |_, view| verdicts.push(*view.verdict())));
        clock.advance(Nanos::from_nanos(1));
        assert!(passes(&ledger, limit_table, &group), "{limits:?}");
        for (charge, verdict) in group.iter().zip(&verdicts) {
            let taken = verdict.taken().get();
            assert_eq!(ledger.refund(limit_table, charge, taken, Some(verdict.stamp())), taken, "{limits:?}");
        }
        assert_eq!(["alice", "bob"].map(|key| ledger.remaining(limit_table, 0, key)), [6, 7], "{limits:?}");
    }
}

#[test]
fn refused_attempt_is_recorded_only_by_limits_that_count_refusals() {
    let limit_table = [single_limit(SlidingLog::new(10, HOUR).unwrap().max_debt(0).unwrap().count_refused())];
    let (ledger, _) = ledger(100, 11);
    assert!(!passes(&ledger, &limit_table, &[charge(0, "alice", 4), charge(0, "bob", 6), charge(0, "bob", 6)]));
    // Bob's second charge was refused and recorded. Bob's first charge and alice's charge were undone.
    assert_eq!(["alice", "bob"].map(|key| ledger.remaining(&limit_table, 0, key)), [10, 4]);
}

#[test]
fn evicted_entry_is_restored_when_the_group_is_refused() {
    for limit in limits_of_ten(HOUR) {
        let limit_table = [single_limit(limit)];
        let (ledger, _, slots) = filled_ledger(&limit_table, |n| 1 + n % 5);
        let names: Vec<String> = (0..slots).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let before = reports(&ledger, &limit_table, &names);
        // Tries one new key, two new keys, and the same new key twice, before, after and around the refused charge.
        let refused = charge(0, "4", 6);
        for group in [
            &[charge(0, "new", 5), refused][..],
            &[refused, charge(0, "new", 5)],
            &[charge(0, "new", 5), refused, charge(0, "newer", 9)],
            &[charge(0, "new", 5), charge(0, "newer", 2), charge(0, "new", 5), charge(0, "new", 1)],
            &[charge(0, "0", 1), charge(0, "new", 11)],
        ] {
            assert!(!passes(&ledger, &limit_table, group), "{limit:?}");
            assert_eq!(reports(&ledger, &limit_table, &names), before, "{group:?}, {limit:?}");
            assert!(!ledger.has_entry("new") && !ledger.has_entry("newer"), "{group:?}, {limit:?}");
            assert_eq!(ledger.count_entries() as u64, slots, "{group:?}, {limit:?}");
        }
        assert!(passes(&ledger, &limit_table, &[charge(0, "new", 5), charge(0, "newer", 2)]), "{limit:?}");
        let gone = names.iter().filter(|name| !ledger.has_entry(name)).count();
        assert_eq!(
            (gone, ledger.remaining(&limit_table, 0, "new"), ledger.remaining(&limit_table, 0, "newer")),
            (2, 5, 8)
        );
    }
}

#[test]
fn two_keys_of_a_group_never_get_the_same_entry() {
    // There is one vacant entry for three new keys. Regression: the second key got the same entry as the first, because
    // the first key had not been charged yet.
    let limit_table = [single_limit(bucket(10))];
    let (ledger, _, slots) = filled_ledger(&limit_table, |_| 3);
    ledger.reset(&limit_table[..], &charge(0, "2", 0));
    assert!(passes(&ledger, &limit_table, &[charge(0, "a", 3), charge(0, "b", 4), charge(0, "c", 5)]));
    assert_eq!(["a", "b", "c"].map(|key| ledger.remaining(&limit_table, 0, key)), [7, 6, 5]);
    let kept = (0..slots).filter(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 7).count() as u64;
    assert_eq!(kept, slots - 3);
}

#[test]
fn entry_is_not_evicted_for_another_key_of_its_group() {
    // The group charges the least used key and an unused key.
    let limit_table = [single_limit(bucket(10))];
    for spent in [1, 0] {
        let (ledger, _, slots) = filled_ledger(&limit_table, |n| if n == 2 { 1 } else { 5 });
        if spent == 0 {
            ledger.reset(&limit_table[..], &charge(0, "2", 0));
        }
        assert!(passes(&ledger, &limit_table, &[charge(0, "new", 9), charge(0, "2", 4)]));
        assert_eq!(["new", "2"].map(|key| ledger.remaining(&limit_table, 0, key)), [1, 6 - spent]);
        assert_eq!((0..slots).filter(|n| ledger.has_entry(&n.to_string())).count() as u64, slots - 1);
    }
}

#[test]
fn charges_of_a_group_without_an_entry_share_the_overflow_entry() {
    // Regression: a group with two keys without an entry was refused, so a full table refused every request that
    // matched two rules.
    let limit_table = [single_limit(bucket(10)), single_limit(bucket(3))];
    let (ledger, _, slots) = filled_ledger(&limit_table, |_| 5);
    assert!(passes(&ledger, &limit_table, &[charge(0, "0", 1), charge(0, "new 1", 4), charge(1, "late 1", 1)]));
    assert!(passes(&ledger, &limit_table, &[charge(0, "0", 1), charge(0, "new 2", 4), charge(1, "late 2", 1)]));
    let (passed, outcomes) =
        decide(&ledger, &limit_table, &[charge(0, "0", 1), charge(0, "new 3", 4), charge(1, "late 3", 1)]);
    let Outcome::Deny(Retry::After(_)) = outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!((passed, outcomes[0], outcomes[2]), (false, Outcome::Allow, Outcome::Allow));
    assert_eq!(ledger.overflowed(), 6);
    assert_eq!(ledger.remaining(&limit_table, 0, "0"), 3, "the refused group charged no key");
    assert!(
        passes(&ledger, &limit_table, &[charge(0, "1", 1), charge(1, "late 4", 1)]),
        "the refused group took nothing from the overflow entries"
    );
    assert!((2..slots).all(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 5));
}

#[test]
fn charges_of_a_large_group_on_one_key_see_each_other() {
    let limit_table = [single_limit(bucket(20))];
    let (ledger, _) = ledger(100, 2);
    let keys: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
    let others = || keys.iter().map(|key| charge(0, key, 1));
    assert!(passes(&ledger, &limit_table, &others().chain((0..20).map(|_| charge(0, "alice", 1))).collect::<Vec<_>>()));
    assert_eq!(ledger.remaining(&limit_table, 0, "alice"), 0);
    assert!(!passes(&ledger, &limit_table, &others().chain((0..21).map(|_| charge(0, "bob", 1))).collect::<Vec<_>>()));
    assert_eq!((ledger.remaining(&limit_table, 0, "bob"), ledger.remaining(&limit_table, 0, "key 0")), (20, 19));
}

#[test]
fn group_without_an_entry_is_refused_if_configured() {
    let limit_table = [single_limit(bucket(10))];
    let (ledger, _, slots) = filled_ledger(&limit_table, |_| 5);
    let ledger = ledger.when_full(WhenFull::Deny);
    let (passed, outcomes) =
        decide(&ledger, &limit_table, &[charge(0, "0", 1), charge(0, "new", 4), charge(0, "1", 6)]);
    let Outcome::Deny(Retry::After(_)) = outcomes[2] else { panic!("{outcomes:?}") };
    assert_eq!((passed, outcomes[0], outcomes[1]), (false, Outcome::Allow, Outcome::Deny(Retry::OnRelease)));
    assert_eq!(ledger.overflowed(), 1);
    assert!((0..slots).all(|n| ledger.remaining(&limit_table, 0, &n.to_string()) == 5));
}

#[test]
fn charge_that_can_never_pass_reports_it_within_a_group() {
    // Regression: the charge got a finite wait and was counted as having no entry.
    let limit_table = [single_limit(bucket(10)), single_limit(SlidingLog::new(10, HOUR).unwrap().max_debt(0).unwrap())];
    let (ledger, _) = ledger(100, 2);
    for id in [1, 2] {
        let (passed, outcomes) = decide(&ledger, &limit_table, &[charge(0, "alice", 1), charge(id, "bob", 1)]);
        assert_eq!((passed, outcomes), (false, vec![Outcome::Allow, Outcome::Deny(Retry::Never)]));
    }
    assert_eq!((ledger.overflowed(), ledger.remaining(&limit_table, 0, "alice")), (0, 10));
}

#[test]
fn groups_can_fill_the_ledger_to_its_capacity() {
    let limit_table = [single_limit(bucket(100)), single_limit(two_word_bucket(100))];
    for (capacity, together) in [(10, 2), (100, 2), (1_000, 2), (1_000, 20), (20_000, 50)] {
        let (ledger, _) = ledger(capacity, 2);
        let keys: Vec<String> = (0..capacity).map(|n| n.to_string()).collect();
        // Neighbouring keys have different amounts, to detect a state that moves to another key of its group.
        let cost = |n: usize| 1 + n as u64 % 50;
        let charges: Vec<Charge<'_>> =
            keys.iter().enumerate().map(|(n, key)| charge(n as u32 % 2, key, cost(n))).collect();
        for group in charges.chunks(together) {
            assert!(passes(&ledger, &limit_table, group), "{group:?} of {capacity}");
        }
        for (n, key) in keys.iter().enumerate() {
            let what = format!("key {n} of {capacity}, {together} together");
            assert_eq!(ledger.remaining(&limit_table, n as u32 % 2, key), 100 - cost(n), "{what}");
        }
        assert_eq!((ledger.count_entries(), ledger.overflowed()), (capacity, 0));
    }
}
