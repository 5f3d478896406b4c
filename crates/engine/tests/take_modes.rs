//! Tests of requests that take up to an amount, or that are charged into debt.

use crate::support;

use std::sync::Arc;

use support::{FlakyStore, START, TestBench, outcome_text, poll_once, test_bench, unavailable_error};
use tollgate::clock::ManualClock;
use tollgate::core::{Cost, Nanos};
use tollgate_engine::{Attribute, Enforcement, Item, Request, RequestError, Store, TakeMode};

/// Requests `cost` in the given mode. Returns the outcome and the amount taken.
fn take_with_mode<S: Store>(bench: &mut TestBench<S>, take_mode: TakeMode, user: &str, cost: u64) -> (String, u64) {
    let attributes = [Attribute::new("user", user)];
    let items = [Item::new(&attributes).cost(cost)];
    let request = Request::new("d", &items);
    let decision = match take_mode {
        TakeMode::Exactly => poll_once(bench.engine.check(&request, &mut bench.decisions)),
        TakeMode::UpTo => poll_once(bench.engine.take_up_to(&request, &mut bench.decisions)),
        TakeMode::Regardless => poll_once(bench.engine.charge(&request, &mut bench.decisions)),
    };
    let decision = decision.expect("a valid request");
    (outcome_text(decision.outcome()), decision.taken().get())
}

const TWO_RULES: &str = "- {id: mine, per: [user], limit: 4/m}\n- {id: all, limit: 10/m}\n";

#[test]
fn take_up_to_takes_the_least_of_all_rules() {
    let mut bench = test_bench(TWO_RULES);
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 7), ("allow".into(), 4));
    assert_eq!(bench.remaining(&[("user", "a")]), [0, 6], "the other rule is charged the same amount");
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 7), ("deny 15s".into(), 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [0, 6]);
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "b", 3), ("allow".into(), 3));
    bench.advance(Nanos::from_secs(15));
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 7), ("allow".into(), 1));
}

#[test]
fn reports_and_receipt_reflect_the_amount_taken() {
    let mut bench = test_bench(TWO_RULES);
    let (attributes, mut remaining) = ([Attribute::new("user", "a")], Vec::new());
    let items = [Item::new(&attributes).cost(9)];
    let decision = poll_once(bench.engine.take_up_to(&Request::new("d", &items), &mut bench.decisions)).unwrap();
    remaining.extend(decision.reports().map(|limit| limit.report.remaining));
    let receipt = decision.receipt();
    assert_eq!(remaining, [0, 6]);
    assert_eq!(poll_once(bench.engine.refund(&receipt)), Ok(Cost::new(4)));
    assert_eq!(bench.remaining(&[("user", "a")]), [4, 10], "the receipt contains the final amounts");
}

#[test]
fn limits_of_five_algorithms_can_be_drained() {
    for limit in [
        "limit: 5/m",
        "limit: 5/m, algorithm: fixed_window",
        "limit: 5/m, algorithm: sliding_window",
        "limit: 5/m, algorithm: sliding_log",
        "limit: 5, algorithm: concurrency",
        "limits: [{limit: 5/m}, {limit: 8/h}]",
    ] {
        let mut bench = test_bench(&format!("- {{id: r, per: [user], {limit}}}\n- {{id: wide, limit: 100/m}}\n"));
        assert_eq!(take_with_mode(&mut bench, TakeMode::Exactly, "a", 2), ("allow".into(), 2), "{limit}");
        assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", u64::MAX), ("allow".into(), 3), "{limit}");
        assert_eq!(bench.remaining(&[("user", "a")]).first(), Some(&0), "{limit}");
        assert_eq!(bench.remaining(&[("user", "a")]).last(), Some(&95), "{limit}");
    }
}

#[test]
fn without_limits_the_whole_amount_may_be_used() {
    let mut bench = test_bench("- {id: r, when: {user: x}, limit: 1/m}\n");
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 7), ("allow".into(), 7));
    bench.engine.set_enforcement(Enforcement::Observe);
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "x", 7), ("allow".into(), 7));
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "x", 7), ("allow".into(), 7));
}

#[test]
fn drain_without_limits_takes_nothing_and_reports_it() {
    let rules = "- {id: limited, when: {user: x}, limit: 3/m, on_fault: open}\n\
                 - {id: free, when: {user: f}, unlimited: true}\n\
                 - {id: pass, when: {user: p}, allow: true}\n";
    let clock = Arc::new(ManualClock::at(START));
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, rules);
    let drain = |bench: &mut TestBench<FlakyStore>, user: &str| {
        let attributes = [Attribute::new("user", user)];
        let items = [Item { cost: Some(Cost::MAX), ..Item::new(&attributes) }];
        let decision = poll_once(bench.engine.take_up_to(&Request::new("d", &items), &mut bench.decisions)).unwrap();
        (outcome_text(decision.outcome()), decision.taken().get(), decision.has_evaluated_limits())
    };
    // One user is unlimited, one is allowed by a rule, and one matches no rule.
    for user in ["f", "p", "nobody"] {
        assert_eq!(drain(&mut bench, user), ("allow".into(), 0, false), "{user}");
    }
    // The store does not answer, and the rule has `on_fault: open`.
    bench.engine.store().fail_times(unavailable_error(), 1);
    assert_eq!(drain(&mut bench, "x"), ("allow".into(), 0, false));
    assert_eq!(drain(&mut bench, "x"), ("allow".into(), 3, true));
    // In `Observe` mode, a drain is allowed but takes only the available amount, which is 0 here.
    bench.engine.set_enforcement(Enforcement::Observe);
    assert_eq!(drain(&mut bench, "x"), ("allow".into(), 0, true));
    // If no rule matches, a request that states an amount may use all of it.
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "nobody", 7), ("allow".into(), 7));
}

#[test]
fn shadow_rule_takes_no_more_than_is_admitted() {
    let mut bench = test_bench("- {id: r, limit: 4/m}\n- {id: quiet, limit: 100/day, on_exceed: shadow}\n");
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 50), ("allow".into(), 4));
    bench.advance(Nanos::from_secs(15));
    assert_eq!(bench.remaining(&[]), [1, 96]);
}

#[test]
fn charge_goes_into_debt_up_to_the_maximum() {
    let mut bench = test_bench("- {id: r, limit: 10/m, max_debt: 20}\n");
    assert_eq!(take_with_mode(&mut bench, TakeMode::Regardless, "a", 25), ("allow".into(), 25));
    assert_eq!(bench.check(&[]), "deny 96s");
    assert_eq!(take_with_mode(&mut bench, TakeMode::Regardless, "a", 6).1, 0, "the debt would be 21");
    assert_eq!(take_with_mode(&mut bench, TakeMode::Regardless, "a", 5), ("allow".into(), 5));
    bench.advance(Nanos::from_secs(126));
    assert_eq!(bench.check(&[]), "allow");
}

#[test]
fn take_up_to_needs_an_amount_and_one_item() {
    let mut bench = test_bench(TWO_RULES);
    let attributes = [Attribute::new("user", "a")];
    let item = Item::new(&attributes);
    let wrong = |bench: &mut TestBench, items: &[Item<'_>]| {
        poll_once(bench.engine.take_up_to(&Request::new("d", items), &mut bench.decisions)).map(|_| ()).unwrap_err()
    };
    assert_eq!(wrong(&mut bench, &[item]), RequestError::NoAmount);
    assert_eq!(wrong(&mut bench, &[]), RequestError::NoItems);
    assert!(matches!(wrong(&mut bench, &[item.cost(1), item.cost(1)]), RequestError::TooMany { max: 1, .. }));
    assert_eq!(bench.remaining(&[("user", "a")]), [4, 10]);
}

#[test]
fn fallback_takes_up_to_its_share() {
    let clock = Arc::new(ManualClock::at(START));
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, TWO_RULES);
    bench.engine.store().fail_times(unavailable_error(), 1);
    // The store has not answered for this key, so the key starts with this node's share. There is one node.
    assert_eq!(take_with_mode(&mut bench, TakeMode::UpTo, "a", 7), ("allow".into(), 4));
}
