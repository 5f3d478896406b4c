//! Tests of overrides: plans, tenants, and exceptions that expire.

use crate::support;

use support::{START, poll_once, test_bench};
use tollgate::core::Nanos;

#[test]
fn first_matching_override_applies() {
    let mut bench = test_bench(
        "- id: r\n  per: [user]\n  limit: 10/m\n  overrides:\n  \
         - {when: {user: acme}, limit: 100/m}\n  - {when: {plan: pro}, limit: 50/m}\n  - {when: {plan: [pro, own]}, unlimited: true}\n  \
         - {when: {plan: ended}, deny: true}\n",
    );
    assert_eq!(bench.remaining(&[("user", "a")]), [10]);
    assert_eq!(bench.remaining(&[("user", "acme"), ("plan", "pro")]), [100]);
    assert_eq!(bench.remaining(&[("user", "b"), ("plan", "pro")]), [50]);
    assert!(bench.remaining(&[("user", "c"), ("plan", "own")]).is_empty());
    assert_eq!(bench.check_cost(&[("user", "c"), ("plan", "own")], 1_000_000), "allow");
    assert_eq!(bench.check(&[("user", "d"), ("plan", "ended")]), "deny for ever");
}

#[test]
fn override_inherits_options_that_it_does_not_change() {
    let mut bench = test_bench(
        "- id: r\n  limit: 10/m\n  burst: 20\n  overrides:\n  - {when: {a: x}, burst: 40}\n  - {when: {a: y}, limit: 30/m}\n  \
         - {when: {a: z}, limits: [5/m, 100/h]}\n\
         - id: s\n  when: {w: x}\n  limit: 3/day\n  algorithm: fixed_window\n  zone: Europe/Paris\n  overrides: [{when: {a: x}, limit: 9/day}]\n",
    );
    assert_eq!(bench.remaining(&[]), [20]);
    assert_eq!(bench.remaining(&[("a", "x")]), [40]);
    assert_eq!(bench.remaining(&[("a", "y")]), [30]);
    assert_eq!(bench.remaining(&[("a", "z")]), [5, 100]);
    // The override inherits the calendar day in Paris.
    let resets = |bench: &mut support::TestBench, a: &str| {
        bench.decide(&[("w", "x"), ("a", a)], None, |decision| decision.reports().last().unwrap().report.reset)
    };
    assert_eq!(resets(&mut bench, "x"), resets(&mut bench, "y"));
}

#[test]
fn override_expires_and_the_counter_stays() {
    // START is 2023-11-14T22:13:20Z.
    let mut bench = test_bench(
        "- {id: r, per: [user], limit: 10/h, overrides: [{when: {user: acme}, limit: 100/h, until: '2023-11-14T22:23:20Z'}]}\n",
    );
    let acme = [("user", "acme")];
    assert_eq!(START, 1_700_000_000_000_000_000);
    assert_eq!(bench.check_cost(&acme, 40), "allow");
    assert_eq!(bench.remaining(&acme), [60]);
    bench.advance(Nanos::from_nanos(599_999_999_999));
    assert!(bench.remaining(&acme)[0] > 60);
    bench.advance(Nanos::from_nanos(1));
    // The 40 used tokens have not been refilled completely, so nothing remains under the limit of 10.
    assert_eq!(bench.remaining(&acme), [0]);
    assert_eq!(bench.remaining(&[("user", "other")]), [10]);
}

#[test]
fn counter_moves_between_states_of_different_length() {
    let mut bench = test_bench(
        "- {id: r, limit: 10/h, overrides: [{when: {a: x}, limit: 500/h, algorithm: sliding_log}, {when: {a: y}, limits: [20/h, 30/day]}]}\n",
    );
    assert_eq!(bench.check_cost(&[], 4), "allow");
    assert_eq!(bench.remaining(&[("a", "x")]), [496]);
    assert_eq!(bench.check_cost(&[("a", "x")], 2), "allow");
    assert_eq!(bench.remaining(&[("a", "y")]), [14, 30]);
    assert_eq!(bench.check(&[("a", "y")]), "allow");
    assert_eq!(bench.remaining(&[]), [3]);
}

#[test]
fn each_of_ten_thousand_overrides_applies() {
    let overrides: String =
        (0..10_000).map(|n| format!("  - {{when: {{tenant: t{n}}}, limit: {}/s}}\n", n + 1)).collect();
    let mut bench = test_bench(&format!("- id: r\n  per: [tenant]\n  limit: 7/s\n  overrides:\n{overrides}"));
    assert_eq!(bench.remaining(&[("tenant", "t0")]), [1]);
    assert_eq!(bench.remaining(&[("tenant", "t9999")]), [10_000]);
    assert_eq!(bench.remaining(&[("tenant", "else")]), [7]);
}

#[test]
fn refund_applies_to_the_limits_of_the_charge() {
    let mut bench = test_bench("- {id: r, limit: 10/h, overrides: [{when: {a: x}, limit: 100/h}]}\n");
    let receipt = bench.decide(&[("a", "x")], Some(50), |decision| decision.receipt());
    assert_eq!(bench.check_cost(&[("a", "x")], 20), "allow");
    let receipt = receipt.to_string().parse().unwrap();
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 50);
    assert_eq!(bench.remaining(&[("a", "x")]), [80]);
}

/// Tests the first example of "Changed limits" in `docs/rules.md` for all pairs of algorithms. The states of two
/// algorithms may be in different tables.
#[test]
fn refused_request_under_a_smaller_override_refunds_nothing() {
    let limits = |count: u32| {
        let of = |algorithm: &str| format!("limit: {count}/week, algorithm: {algorithm}");
        let rates = ["token_bucket", "leaky_bucket", "interval_bucket", "fixed_window", "sliding_window"];
        let logs = ["sliding_slices", "sliding_log"];
        let concurrency = format!("limit: {count}, algorithm: concurrency");
        rates.into_iter().chain(logs).map(of).chain([concurrency]).collect::<Vec<_>>()
    };
    for (small, large) in limits(2).iter().flat_map(|small| limits(100).into_iter().map(move |large| (small, large))) {
        let rule = format!("- {{id: r, per: [u], {small}, overrides: [{{when: {{p: pro}}, {large}}}]}}\n");
        let mut bench = test_bench(&rule);
        let (pro, free) = ([("u", "a"), ("p", "pro")], [("u", "a")]);
        assert!(!bench.check_cost(&pro, 100).starts_with("deny"), "{rule}");
        assert_eq!(bench.remaining(&free), [0], "a peek, {rule}");
        assert!(bench.check(&free).starts_with("deny"), "{rule}");
        assert_eq!(bench.remaining(&pro), [0], "{rule}");
        assert!(bench.check_cost(&pro, 90).starts_with("deny"), "{rule}");
    }
}

#[test]
fn refused_request_under_another_override_does_not_change_the_refill() {
    let mut bench = test_bench("- {id: r, limit: 10/10s, overrides: [{when: {a: x}, limit: 5/10s}]}\n");
    assert_eq!(bench.check_cost(&[], 10), "allow");
    assert!(bench.check(&[("a", "x")]).starts_with("deny"));
    bench.advance(Nanos::from_nanos(5_999_999_999));
    assert!(bench.check(&[("a", "x")]).starts_with("deny"));
    bench.advance(Nanos::from_nanos(4_000_000_001));
    assert_eq!(bench.remaining(&[]), [10]);
}

#[test]
fn refund_finds_a_state_that_is_kept_in_a_larger_table() {
    let mut bench =
        test_bench("- {id: r, limit: 50/h, overrides: [{when: {a: x}, limit: 500/h, algorithm: sliding_log}]}\n");
    assert_eq!(bench.check_cost(&[("a", "x")], 5), "allow");
    let receipt = bench.decide(&[], Some(7), |decision| decision.receipt());
    assert_eq!(bench.remaining(&[]), [38]);
    let receipt = receipt.to_string().parse().unwrap();
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 7);
    assert_eq!(bench.remaining(&[]), [45]);
}
