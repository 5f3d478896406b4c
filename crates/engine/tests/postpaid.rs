//! Tests of rules with `postpaid`, which are charged when the cost is known, and of refunds without a receipt.

use crate::support;

use support::{poll_once, test_bench};
use tollgate::core::{Cost, Nanos};
use tollgate_engine::{Attribute, Decisions, Item, Request};

const RULES: &str = "
- {id: tokens, when: {kind: tokens}, limit: 100/day, algorithm: fixed_window, max_debt: 50, postpaid: true}
- {id: beside, when: {beside: x}, limit: 1/day, algorithm: fixed_window}
";

const TOKEN_ATTRIBUTES: &[(&str, &str)] = &[("kind", "tokens")];

#[test]
fn cost_is_taken_into_debt_and_requests_without_cost_wait_until_it_is_paid() {
    let mut bench = test_bench(RULES);
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 0), "allow");
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 100), "allow");
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 0), "allow", "nothing remains, but there is no debt");
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 30), "allow", "a positive cost is taken into debt");
    assert!(bench.check_cost(TOKEN_ATTRIBUTES, 0).starts_with("deny"), "30 are owed");
    assert!(bench.check_cost(TOKEN_ATTRIBUTES, 21).starts_with("deny"), "the debt is bounded");
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 20), "allow");
    bench.advance(Nanos::from_secs(86_400));
    assert_eq!(bench.check_cost(TOKEN_ATTRIBUTES, 0), "allow");
}

#[test]
fn refused_request_charges_nothing_to_a_postpaid_rule() {
    let mut bench = test_bench(RULES);
    let both = [("kind", "tokens"), ("beside", "x")];
    assert_eq!(bench.check(&both), "allow");
    assert!(bench.check(&both).starts_with("deny"));
    assert_eq!(bench.remaining(TOKEN_ATTRIBUTES), [99]);
}

#[test]
fn refund_without_a_receipt_never_exceeds_the_usage() {
    let mut bench = test_bench(RULES);
    bench.check_cost(TOKEN_ATTRIBUTES, 40);
    let attributes = [Attribute::new("kind", "tokens")];
    let mut refund = |cost: u64| {
        let items = [Item { cost: Some(Cost::new(cost)), ..Item::new(&attributes) }];
        let request = Request::new("d", &items);
        poll_once(bench.engine.refund_request(&request, &mut Decisions::default())).expect("memory answers");
        bench.remaining(TOKEN_ATTRIBUTES)
    };
    assert_eq!(refund(10), [70]);
    assert_eq!(refund(99), [100]);
}
