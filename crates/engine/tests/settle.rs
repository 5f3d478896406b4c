//! Tests of reservations: reserve, then commit or cancel.

use crate::support;

use std::sync::Arc;

use support::{FlakyStore, START, TestBench, poll_once, test_bench, unavailable_error};
use tollgate::clock::ManualClock;
use tollgate::core::{Cost, Nanos};
use tollgate_engine::{CommitResult, Receipt, Store};

fn reserve<S: Store>(bench: &mut TestBench<S>, cost: u64) -> Receipt {
    let receipt = bench.decide(&[("user", "a")], Some(cost), |decision| decision.receipt());
    // Converts the receipt to a string and back, as a client does.
    receipt.to_string().parse().expect("a valid receipt")
}

fn commit<S: Store>(bench: &TestBench<S>, receipt: &Receipt, cost: u64) -> (u64, u64, u64) {
    let CommitResult { refunded, charged, unpaid } =
        poll_once(bench.engine.commit(receipt, Cost::new(cost))).expect("a store");
    (refunded.get(), charged.get(), unpaid.get())
}

const RULES: &str = "\
- {id: mine, per: [user], limit: 100/m, max_debt: 50}
- {id: all, limit: 1000/h, algorithm: fixed_window, max_debt: 50}
";

#[test]
fn reservation_is_settled_at_its_actual_cost() {
    for (actual, expected, left) in [
        (30, (0, 0, 0), [70, 970]),
        (10, (20, 0, 0), [90, 990]),
        (0, (30, 0, 0), [100, 1000]),
        (45, (0, 15, 0), [55, 955]),
    ] {
        let mut bench = test_bench(RULES);
        let receipt = reserve(&mut bench, 30);
        assert_eq!(commit(&bench, &receipt, actual), expected, "at {actual}");
        assert_eq!(bench.remaining(&[("user", "a")]), left, "at {actual}");
    }
}

#[test]
fn commit_above_the_reservation_is_charged_into_debt() {
    let mut bench = test_bench(RULES);
    let receipt = reserve(&mut bench, 30);
    assert_eq!(commit(&bench, &receipt, 150), (0, 120, 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [0, 850]);
}

#[test]
fn commit_above_the_reservation_charges_all_limits_or_none() {
    let mut bench = test_bench(RULES);
    let receipt = reserve(&mut bench, 30);
    // `all` has capacity for 121 more tokens, but `mine` would have a debt of 51 (maximum 50).
    assert_eq!(commit(&bench, &receipt, 151), (0, 0, 121));
    assert_eq!(bench.remaining(&[("user", "a")]), [70, 970], "no part of the shortfall is charged");
    assert_eq!(commit(&bench, &receipt, 150), (0, 120, 0), "the receipt can still be settled at a lower cost");
    assert_eq!(bench.remaining(&[("user", "a")]), [0, 850]);
}

#[test]
fn commit_above_the_reservation_charges_all_limits_of_one_rule_or_none() {
    let mut bench = test_bench("- {id: r, limits: [{limit: 100/m, max_debt: 0}, {limit: 1000/h, max_debt: 0}]}\n");
    let receipt = reserve(&mut bench, 30);
    assert_eq!(commit(&bench, &receipt, 101), (0, 0, 71));
    assert_eq!(bench.remaining(&[("user", "a")]), [70, 970]);
    assert_eq!(commit(&bench, &receipt, 100), (0, 70, 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [0, 900]);
}

#[test]
fn exhausted_shadow_rule_does_not_block_a_commit() {
    let mut bench = test_bench(
        "- {id: mine, per: [user], limit: 100/h, max_debt: 0}\n\
         - {id: shadow, limit: 50/h, max_debt: 0, on_exceed: shadow}\n",
    );
    let receipt = reserve(&mut bench, 30);
    assert_eq!(commit(&bench, &receipt, 90), (0, 60, 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [10, 20], "the shadow rule has no capacity for 60 more");
    // A shadow rule is charged only if the enforced rules are charged.
    let receipt = reserve(&mut bench, 5);
    assert_eq!(bench.remaining(&[("user", "a")]), [5, 15]);
    assert_eq!(commit(&bench, &receipt, 15), (0, 0, 10));
    assert_eq!(bench.remaining(&[("user", "a")]), [5, 15]);
}

#[test]
fn cancelled_reservation_is_refunded_and_a_forgotten_one_is_charged() {
    let mut bench = test_bench(RULES);
    let receipt = reserve(&mut bench, 30);
    assert_eq!(poll_once(bench.engine.refund(&receipt)), Ok(Cost::new(30)));
    assert_eq!(bench.remaining(&[("user", "a")]), [100, 1000]);
    let receipt = reserve(&mut bench, 30);
    bench.advance(Nanos::from_secs(3_600));
    assert_eq!(poll_once(bench.engine.refund(&receipt)), Ok(Cost::ZERO), "the usage has already refilled");
    assert_eq!(bench.remaining(&[("user", "a")]), [100, 1000]);
}

#[test]
fn calendar_windows_and_overrides_are_settled() {
    let mut bench = test_bench(
        "- {id: month, limit: 1000/month, algorithm: fixed_window}\n\
         - {id: plan, limit: 5/m, overrides: [{when: {user: a}, limit: 500/m}]}\n",
    );
    let receipt = reserve(&mut bench, 30);
    assert_eq!(commit(&bench, &receipt, 40), (0, 10, 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [960, 460]);
}

#[test]
fn reservation_of_the_fallback_is_settled_there() {
    let clock = Arc::new(ManualClock::at(START));
    let mut bench =
        TestBench::on_store(FlakyStore::new(&clock), clock, "- {id: mine, per: [user], limit: 100/s, max_debt: 100}\n");
    bench.engine.store().fail_times(unavailable_error(), 1);
    let receipt = reserve(&mut bench, 30);
    assert_eq!(commit(&bench, &receipt, 40), (0, 10, 0));
    assert_eq!(commit(&bench, &receipt, 10), (20, 0, 0));
    assert_eq!(bench.remaining(&[("user", "a")]), [80], "the store is charged 30 + 10 - 20");
    bench.engine.store().fail_times(unavailable_error(), 5);
    let receipt = reserve(&mut bench, 1);
    assert_eq!(commit(&bench, &receipt, 2), (0, 1, 0));
}

#[test]
fn slot_is_held_while_it_is_renewed() {
    let mut bench =
        test_bench("- {id: slots, limit: 1, algorithm: concurrency, lease: 10s}\n- {id: all, limit: 100/m}\n");
    let receipt = reserve(&mut bench, 1);
    for _ in 0..5 {
        bench.advance(Nanos::from_secs(9));
        assert_eq!(poll_once(bench.engine.renew(&receipt)), Ok(true));
        assert_eq!(bench.check(&[("user", "a")]), "deny until release");
    }
    bench.advance(Nanos::from_secs(10));
    assert_eq!(poll_once(bench.engine.renew(&receipt)), Ok(false), "it was lost");
    assert_eq!(bench.check(&[("user", "a")]), "allow");
    let mut bench = test_bench("- {id: all, limit: 100/m}\n");
    let receipt = reserve(&mut bench, 1);
    assert_eq!(poll_once(bench.engine.renew(&receipt)), Ok(false), "no slot is held");
}
