use tollgate_core::{Algorithm, FixedWindow, Limit, SlidingSlices, SlidingWindow, Time, TokenBucket};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn table(max_keys: usize) -> Table {
    Table::new(max_keys, Secret::from_points([1, 2]))
}

fn bucket(rate: &str, burst: u64) -> Limits {
    Limit::from(TokenBucket::new(rate.parse().unwrap(), burst).unwrap()).into()
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::from_parts(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3, number as u32)
}

fn decide(table: &Table, at: u64, verb: Verb, charges: &[(u64, &Arc<SharedLimits>, Ask)]) -> (bool, Vec<(u64, u64)>) {
    let charges: Vec<Charge<'_>> = charges
        .iter()
        .map(|(number, limits, ask)| Charge { key: key(*number), limits, ask: *ask, stamps: None })
        .collect();
    let mut each = Vec::new();
    let decided = table.decide(&Now::at(at), verb, &charges, |index, decided_charge| {
        let report = decided_charge.reports(charges[index].ask.cost())[0];
        each.push((decided_charge.verdict().taken().get(), report.remaining));
    });
    (decided.admitted, each)
}

fn exactly(cost: u64) -> Ask {
    Ask::Exactly(Cost::new(cost))
}

fn item(number: u64, cost: i64) -> NetCharge {
    NetCharge { key: key(number), cost }
}

#[test]
fn group_takes_all_or_nothing() {
    let table = table(1_000);
    let (small, large) =
        (table.intern_limits(1, &bucket("1/s", 3)).unwrap(), table.intern_limits(2, &bucket("1/s", 10)).unwrap());
    let group = |cost| [(1, &small, exactly(cost)), (2, &large, exactly(cost))];
    assert_eq!(decide(&table, 0, Verb::Check, &group(2)), (true, vec![(2, 1), (2, 8)]));
    let (admitted, each) = decide(&table, 0, Verb::Check, &group(2));
    assert_eq!((admitted, each[1].1), (false, 8), "alone, the second charge would be admitted");
    assert!(decide(&table, 0, Verb::Peek, &group(1)).0);
    let up_to = Ask::UpTo(Cost::new(5));
    let (_, each) = decide(&table, 0, Verb::Check, &[(1, &small, up_to), (2, &large, up_to)]);
    assert_eq!(each, [(1, 0), (1, 7)], "both take the smaller amount");
}

#[test]
fn overshoot_is_counted_only_by_nodes_that_charged_the_key() {
    let table = table(1_000);
    let limits = table.intern_limits(1, &bucket("1/s", 10)).unwrap();
    for number in [1, 2] {
        table.apply(&Now::at(SECOND), Nanos::from_nanos(0), &limits, &item(number, 9));
    }
    assert!(decide(&table, SECOND, Verb::Check, &[(2, &limits, exactly(1))]).0);
    table.apply(&Now::at(SECOND), Nanos::from_nanos(0), &limits, &item(1, 4));
    assert_eq!(table.counts().overshoot, 0, "only the home of key 1 has charged key 1");
    table.apply(&Now::at(SECOND), Nanos::from_nanos(0), &limits, &item(2, 4));
    assert_eq!(table.counts().overshoot, 4);
}

#[test]
fn charges_refunds_and_resets_are_drained_once() {
    let table = table(1_000);
    let limits = table.intern_limits(1, &bucket("1/day", 100)).unwrap();
    for cost in [5, 2] {
        assert!(decide(&table, SECOND, Verb::Check, &[(1, &limits, exactly(cost))]).0);
    }
    decide(&table, 2 * SECOND, Verb::Refund, &[(1, &limits, exactly(1))]);
    decide(&table, 2 * SECOND, Verb::Peek, &[(2, &limits, exactly(1))]);
    let mut drained = DrainedCharges::default();
    assert!(table.drain(10, &mut drained));
    assert_eq!(drained.items.iter().map(|(_, item)| *item).collect::<Vec<_>>(), [item(1, 6)]);
    assert_eq!((drained.taken_at, drained.resets.len()), (2 * SECOND, 0));
    decide(&table, 2 * SECOND, Verb::Reset, &[(1, &limits, exactly(0))]);
    let mut drained = DrainedCharges::default();
    table.drain(10, &mut drained);
    assert_eq!((drained.items.len(), drained.resets), (0, vec![(key(1), 1)]));
    assert_eq!(table.used(key(1), &Now::at(2 * SECOND)), 0);
}

#[test]
fn debt_of_a_charge_is_bounded_by_the_rule() {
    let table = table(1_000);
    let limit = TokenBucket::new("1/s".parse().unwrap(), 10).unwrap().max_debt(5).unwrap();
    let limits = table.intern_limits(1, &Limit::from(limit).into()).unwrap();
    let regardless = |cost| Ask::Regardless(Cost::new(cost));
    assert!(decide(&table, 0, Verb::Check, &[(1, &limits, regardless(12))]).0);
    assert!(!decide(&table, 0, Verb::Check, &[(1, &limits, regardless(4))]).0);
    assert!(decide(&table, 0, Verb::Check, &[(1, &limits, regardless(3))]).0);
    table.apply(&Now::at(0), Nanos::ZERO, &limits, &item(1, 40));
    assert_eq!(table.used(key(1), &Now::at(0)), 55);
}

#[test]
fn state_belongs_to_the_parameters_of_the_last_admitted_request() {
    let table = table(1_000);
    let (before, after) =
        (table.intern_limits(1, &bucket("1/s", 100)).unwrap(), table.intern_limits(2, &bucket("1/s", 50)).unwrap());
    assert!(decide(&table, 0, Verb::Check, &[(1, &before, exactly(60))]).0);
    assert!(!decide(&table, 0, Verb::Check, &[(1, &after, exactly(1))]).0);
    table.apply(&Now::at(0), Nanos::ZERO, &after, &item(1, 10));
    assert!(decide(&table, 0, Verb::Check, &[(1, &before, exactly(30))]).0, "refusals and deltas convert no state");
    assert!(decide(&table, 51 * SECOND, Verb::Check, &[(1, &after, exactly(1))]).0);
    assert_eq!(table.used(key(1), &Now::at(51 * SECOND)), 50);
}

/// Regression: a key of a refused group stayed under the limits of the refused request.
#[test]
fn undone_hold_leaves_the_key_under_its_own_limits() {
    let tables = [table(1_000), table(1_000)];
    let [slow, fast] = ["1/h", "10/s"].map(|rate| bucket(rate, 10));
    for (index, table) in tables.iter().enumerate() {
        let (slow, fast) = (table.intern_limits(1, &slow).unwrap(), table.intern_limits(2, &fast).unwrap());
        assert!(decide(table, SECOND, Verb::Check, &[(1, &slow, exactly(6))]).0);
        if index == 1 {
            assert!(decide(table, 2 * SECOND, Verb::Hold, &[(1, &fast, exactly(3))]).0);
            decide(table, 2 * SECOND, Verb::Undo, &[(1, &fast, exactly(3))]);
        }
        let peek = |at| decide(table, at, Verb::Peek, &[(1, &slow, exactly(1)), (2, &fast, exactly(1))]);
        assert_eq!(peek(3 * SECOND).1[0].1, 4, "at the rate of the other limits, 10 would be left");
        let mut drained = DrainedCharges::default();
        assert!(table.drain(10, &mut drained));
        assert_eq!(drained.items.iter().map(|(_, item)| item.cost).sum::<i64>(), 6);
    }
    // If another charge follows the hold, that charge stays and the hold is refunded.
    let [_, table] = &tables;
    let (slow, fast) = (table.intern_limits(1, &slow).unwrap(), table.intern_limits(2, &fast).unwrap());
    assert!(decide(table, 3 * SECOND, Verb::Hold, &[(1, &fast, exactly(1))]).0);
    assert!(decide(table, 3 * SECOND, Verb::Check, &[(1, &fast, exactly(2))]).0);
    decide(table, 3 * SECOND, Verb::Undo, &[(1, &fast, exactly(1))]);
    assert_eq!(decide(table, 3 * SECOND, Verb::Peek, &[(1, &slow, exactly(1))]).1[0].1, 2);
}

#[test]
fn delta_is_charged_as_of_its_original_time() {
    let table = table(1_000);
    let limits = table.intern_limits(1, &bucket("10/s", 10)).unwrap();
    table.apply(&Now::at(5 * SECOND), Nanos::from_millis(500), &limits, &item(1, 8));
    assert_eq!(table.used(key(1), &Now::at(5 * SECOND)), 3, "five have refilled since");
    // An older delta takes only the tokens that remained then.
    table.apply(&Now::at(5 * SECOND), Nanos::from_millis(1_500), &limits, &item(1, 100));
    assert!(table.used(key(1), &Now::at(5 * SECOND)) <= 10);
    assert!(table.counts().forgiven > 0);
    let old = table.counts().forgiven;
    table.apply(&Now::at(5 * SECOND), Nanos::from_secs(3_600), &limits, &item(1, 7));
    assert_eq!(table.counts().forgiven, old + 7);
}

/// Some old deltas cannot be charged as of their own instant. For such an instant, the core would assume that the clock
/// was set back, and discard the usage.
#[test]
fn old_deltas_do_not_erase_usage() {
    let minute = Nanos::from_secs(60);
    let all: [Limit; 4] = [
        TokenBucket::new("1000/s".parse().unwrap(), 10).unwrap().into(),
        FixedWindow::new(10, minute).unwrap().into(),
        SlidingWindow::new(10, minute).unwrap().into(),
        SlidingSlices::new(10, minute, Nanos::from_secs(6)).unwrap().into(),
    ];
    for (index, limit) in all.into_iter().enumerate() {
        for seconds in [0, 1, 2, 30, 59, 61, 100, 3_600] {
            let table = table(1_000);
            let limits = table.intern_limits(index as u32, &limit.into()).unwrap();
            let now = Now::at(1_000_000 * SECOND + 5 * SECOND);
            assert!(decide(&table, now.mono().as_nanos(), Verb::Check, &[(1, &limits, exactly(7))]).0);
            table.apply(&now, Nanos::from_secs(seconds), &limits, &item(1, 1));
            let used = table.used(key(1), &now);
            assert!((7..=8).contains(&used), "{limit:?} after a delta {seconds} s old: {used} of 7 or 8 used");
            let later = Now::at(now.mono().as_nanos() + 1_000_000);
            assert!(table.used(key(1), &later) >= 6, "{limit:?}, {seconds} s");
        }
    }
}

#[test]
fn snapshot_raises_usage_and_never_lowers_it() {
    let minute = Nanos::from_secs(60);
    let all: [Limit; 4] = [
        TokenBucket::new("7/s".parse().unwrap(), 100).unwrap().into(),
        FixedWindow::new(100, minute).unwrap().into(),
        SlidingWindow::new(100, minute).unwrap().into(),
        SlidingSlices::new(100, minute, Nanos::from_secs(6)).unwrap().into(),
    ];
    for (index, limit) in all.into_iter().enumerate() {
        let (one, other) = (table(1_000), table(1_000));
        let take = |table: &Table, at, cost| {
            let limits = table.intern_limits(index as u32, &limit.into()).unwrap();
            assert!(decide(table, at, Verb::Check, &[(1, &limits, exactly(cost))]).0);
        };
        let at = 1_000_000 * SECOND;
        take(&one, at, 40);
        take(&other, at, 25);
        // The clocks of the two nodes are unrelated.
        let (here, there) = (Now::at(at + 1_234_567), Now::new(Time::from_nanos(77), Time::from_nanos(at + 1_234_567)));
        let copy = |from: &Table, from_now: &Now<'_>, to: &Table, to_now: &Now<'_>| {
            (0..from.part_count()).for_each(|part| {
                from.for_each_used_key(part, from_now, |limits, known| {
                    to.merge(to_now, &to.intern_encoded_limits(limits.encoded()).unwrap(), &known);
                });
            });
        };
        let third = table(1_000);
        copy(&one, &here, &third, &there);
        assert_eq!(third.used(key(1), &there), one.used(key(1), &here), "{limit:?}");
        copy(&one, &here, &other, &here);
        assert_eq!(other.used(key(1), &here), 40, "{limit:?}");
        copy(&other, &here, &one, &here);
        assert_eq!(one.used(key(1), &here), 40, "{limit:?}");
    }
}

#[test]
fn full_table_evicts_unused_keys_then_drops_deltas_and_overflows() {
    let table = table(16);
    let limits = table.intern_limits(1, &bucket("10/s", 10)).unwrap();
    for number in 0..100 {
        table.apply(&Now::at(SECOND), Nanos::ZERO, &limits, &item(number, 5));
    }
    let counts = table.counts();
    assert!(counts.keys <= 16 && counts.dropped == 100 - counts.keys, "{counts:?}");
    let admitted =
        (200..300).filter(|number| decide(&table, SECOND, Verb::Check, &[(*number, &limits, exactly(1))]).0).count();
    assert!(admitted < 100, "keys without their own entry share an overflow entry: {admitted}");
    assert!(table.counts().overflowed > 0);
    assert!(decide(&table, 60 * SECOND, Verb::Check, &[(400, &limits, exactly(10))]).0);
    assert_eq!(table.used(key(400), &Now::at(60 * SECOND)), 10);
}

#[test]
fn million_foreign_keys_leave_a_small_table_bounded_and_exact() {
    let table = table(1_000);
    let limits = table.intern_limits(1, &bucket("1/h", 10)).unwrap();
    let own = u64::MAX;
    assert!(decide(&table, SECOND, Verb::Check, &[(own, &limits, exactly(4))]).0);
    for number in 0..1_000_000 {
        table.apply(&Now::at(SECOND), Nanos::ZERO, &limits, &item(number, 1));
    }
    let counts = table.counts();
    assert!(counts.keys <= 1_000 && counts.dropped >= 999_000, "{counts:?}");
    assert!(decide(&table, SECOND, Verb::Check, &[(own, &limits, exactly(6))]).0);
    assert!(!decide(&table, SECOND, Verb::Check, &[(own, &limits, exactly(1))]).0);
}

#[test]
fn full_table_with_ever_new_limits_is_bounded() {
    let table = table(16);
    let limits = table.intern_limits(1, &bucket("10/s", 10)).unwrap();
    for number in 0..100 {
        table.apply(&Now::at(SECOND), Nanos::ZERO, &limits, &item(number, 5));
    }
    for burst in 11..1_011 {
        let limits = table.intern_limits(u32::try_from(burst).unwrap(), &bucket("10/s", burst)).unwrap();
        decide(&table, SECOND, Verb::Check, &[(burst + 1_000, &limits, exactly(1))]);
    }
    for shard in &table.shards {
        let entries = shard.lock().unwrap().overflow.len();
        assert!((1..=64).contains(&entries), "{entries} entries");
    }
}

#[test]
fn error_for_unshareable_limits_names_an_alternative() {
    let log = tollgate_core::SlidingLog::new(10, Nanos::SECOND).unwrap();
    let error = table(8).intern_limits(1, &Limit::from(log).into()).unwrap_err();
    assert_eq!(error, "sliding_log cannot be shared by peers; use sliding_slices");
    let leases = tollgate_core::Concurrency::new(10, Nanos::SECOND).unwrap();
    assert!(check_limits(&Limit::from(leases).into()).unwrap_err().contains("concurrency"));
    let bucket = bucket("10/s", 10);
    assert_eq!(check_limits(&bucket), Ok(()));
    assert_eq!(bucket.capacity(), 10);
}

#[test]
fn large_unsent_amount_is_urgent() {
    let table = table(1_000);
    let limits = table.intern_limits(1, &bucket("10/s", 160)).unwrap();
    let take = |cost| {
        let charge = Charge { key: key(1), limits: &limits, ask: exactly(cost), stamps: None };
        table.decide(&Now::at(0), Verb::Check, &[charge], |_, _| ()).urgent
    };
    assert!(!take(9));
    assert!(take(1));
}

#[test]
fn fast_path_agrees_with_the_slow_path() {
    let [fast, general] = [table(1_000), table(1_000)];
    let kinds = [
        bucket("10/s", 5),
        bucket("7777/s", 40),
        Limit::from(SlidingWindow::new(9, Nanos::SECOND).unwrap()).into(),
        Limit::from(FixedWindow::new(9, Nanos::SECOND).unwrap()).into(),
    ];
    let (mut at, mut decided_fast) = (SECOND, 0);
    for step in 0..4_000_u64 {
        let random = (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        at += random % 100 * 1_000_000;
        let (number, cost, now) = (random / 100 % 6, Cost::new(random / 600 % 4), Now::at(at));
        // The limits of the last two keys change every 100 steps.
        let id = if number < 4 { number } else { step / 100 % 2 } as u32;
        let decide = |table: &Table| {
            let limits = table.intern_limits(id, &kinds[id as usize]).unwrap();
            let charge = Charge { key: key(number), limits: &limits, ask: Ask::Exactly(cost), stamps: None };
            let mut said = None;
            let decided = table.decide(&now, Verb::Check, &[charge], |_, decided_charge| {
                said = Some((decided_charge.verdict().outcome(), decided_charge.reports(cost)[0]));
            });
            table.record_limits_id(key(number), &limits, id);
            said.map(|(outcome, report)| (outcome, report, decided.urgent)).unwrap()
        };
        let said = fast.try_check(&now, key(number), id, cost);
        decided_fast += u32::from(said.is_some());
        assert_eq!(said.unwrap_or_else(|| decide(&fast)), decide(&general), "step {step}, key {number}");
        if step % 50 == 0 {
            let drained = [&fast, &general].map(|table| {
                let mut drained = DrainedCharges::default();
                table.drain(1_000, &mut drained);
                drained.items.sort_unstable_by_key(|(_, item)| item.key);
                (drained.taken_at, drained.items.into_iter().map(|(_, item)| item).collect::<Vec<_>>())
            });
            assert_eq!(drained[0], drained[1]);
        }
    }
    assert!(decided_fast > 2_000, "{decided_fast} of 4,000 took the fast path");
}
