//! Tests of decisions by rules, on a manual clock.

use crate::support;

use support::{outcome_text, parse_limits, poll_once, test_bench};
use tollgate::Outcome;
use tollgate::core::Nanos;
use tollgate_engine::{Attribute, Decisions, Enforcement, Exactness, Item, Receipt, Request, RequestError};

const SECOND: Nanos = Nanos::SECOND;

#[test]
fn rule_counts_each_value_separately() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 1/m}\n");
    assert_eq!(bench.check(&[("user", "a")]), "allow");
    assert_eq!(bench.check(&[("user", "a")]), "deny 60s");
    assert_eq!(bench.check(&[("user", "b")]), "allow");
    bench.advance(Nanos::from_secs(60));
    assert_eq!(bench.check(&[("user", "a")]), "allow");
}

#[test]
fn requests_without_the_attribute_share_one_counter() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 1/m}\n");
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[("other", "x")]), "deny 60s");
    assert_eq!(bench.check(&[("user", "")]), "allow");
}

#[test]
fn rule_without_per_has_one_counter_for_all_requests() {
    let mut bench = test_bench("- {id: r, limit: 2/m}\n");
    assert_eq!(bench.check(&[("user", "a")]), "allow");
    assert_eq!(bench.check(&[("user", "b")]), "allow");
    assert_eq!(bench.check(&[("user", "c")]), "deny 30s");
}

#[test]
fn all_matching_rules_are_charged_or_none() {
    let mut bench = test_bench(
        "- {id: user, per: [user], limit: 5/m}\n\
         - {id: login, when: {path: /login}, per: [user], limit: 2/m}\n",
    );
    let login = [("user", "a"), ("path", "/login")];
    assert_eq!((bench.check(&login), bench.check(&login)), ("allow".into(), "allow".into()));
    let refused = bench.decide(&login, None, |decision| {
        let refused: Vec<_> = decision.reports().map(|report| (report.rule.to_owned(), report.refused)).collect();
        (decision.rule().map(str::to_owned), refused)
    });
    assert_eq!(refused, (Some("login".into()), vec![("user".into(), false), ("login".into(), true)]));
    assert_eq!(bench.remaining(&login), [3, 0]);
}

#[test]
fn request_without_a_matching_rule_passes() {
    let mut bench = test_bench("- {id: r, when: {path: /login}, limit: 1/m}\n");
    bench.decide(&[("path", "/")], None, |decision| {
        assert_eq!((decision.outcome(), decision.rule(), decision.reports().count()), (Outcome::Allow, None, 0));
        assert!(decision.receipt().is_empty());
    });
}

#[test]
fn unknown_domain_is_an_error() {
    let bench = test_bench("- {id: r, limit: 1/m}\n");
    let (items, mut decisions) = ([Item::default()], Decisions::default());
    let error = poll_once(bench.engine.check(&Request::new("dd", &items), &mut decisions)).unwrap_err();
    assert_eq!(error, RequestError::UnknownDomain { domain: "dd".into() });
    let error = poll_once(bench.engine.check(&Request::new("d", &[]), &mut decisions)).unwrap_err();
    assert_eq!(error, RequestError::NoItems);
}

#[test]
fn oversized_requests_are_refused() {
    let bench = test_bench("- {id: r, limit: 1/m}\n");
    let mut decisions = Decisions::default();
    let mut check = |items: &[Item<'_>]| {
        poll_once(bench.engine.check(&Request::new("d", items), &mut decisions)).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(check(&[Item::default(); 65]), "too many items: 65 (maximum 64)");
    let attributes = [Attribute::new("a", "b"); 129];
    assert_eq!(check(&[Item::new(&attributes)]), "too many attributes of an item: 129 (maximum 128)");
    let long = "x".repeat(8193);
    let attributes = [Attribute::new("a", &long)];
    assert_eq!(check(&[Item::new(&attributes)]), "too many bytes in an attribute: 8193 (maximum 8192)");
}

#[test]
fn cost_stated_by_the_request_overrides_the_cost_of_the_rule() {
    let mut bench = test_bench("- {id: heavy, limit: 10/m, cost: 4}\n");
    assert_eq!(bench.decide(&[], None, |decision| outcome_text(decision.outcome())), "allow");
    assert_eq!(bench.remaining(&[]), [6]);
    assert_eq!(bench.check_cost(&[], 6), "allow");
    assert_eq!(bench.check_cost(&[], 0), "allow");
    assert_eq!(bench.check_cost(&[], 11), "deny for ever");
}

#[test]
fn items_of_one_request_are_admitted_together() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 3/m}\n");
    let (a, b) = ([Attribute::new("user", "a")], [Attribute::new("user", "b")]);
    assert_eq!(bench.check_items(&[Item::new(&a).cost(3), Item::new(&b)]), Ok("allow".into()));
    assert_eq!(bench.check_items(&[Item::new(&b), Item::new(&a)]), Ok("deny 20s".into()));
    assert_eq!(bench.remaining(&[("user", "b")]), [2]);
    // Two items with the same key are charged the sum of their costs.
    assert_eq!(bench.check_items(&[Item::new(&b), Item::new(&b), Item::new(&b)]), Ok("deny 20s".into()));
    assert_eq!(bench.check_items(&[Item::new(&b), Item::new(&b)]), Ok("allow".into()));
    let reports: Vec<_> =
        bench.decisions.get(0).unwrap().reports().map(|report| (report.item, report.report.remaining)).collect();
    assert_eq!(reports, [(0, 0), (1, 0)]);
}

#[test]
fn rule_may_have_limits_of_different_algorithms() {
    let mut bench = test_bench(
        "- id: r\n  limits: [10/s, {limit: 12/day, algorithm: fixed_window}, {limit: 3, algorithm: concurrency, lease: 10s}]\n",
    );
    assert_eq!(bench.check_cost(&[], 3), "allow");
    assert_eq!(bench.check(&[]), "deny until release");
    bench.advance(Nanos::from_secs(10));
    assert_eq!(bench.check_cost(&[], 3), "allow");
    assert_eq!(bench.remaining(&[]), [7, 6, 0]);
    let windows: Vec<_> = bench.decisions.get(0).unwrap().reports().map(|report| report.window).collect();
    assert_eq!(windows, [Some(SECOND), Some(Nanos::from_secs(86_400)), None]);
}

#[test]
fn rules_with_short_and_long_states_are_charged_together_or_not_at_all() {
    let mut bench = test_bench(
        "- {id: bucket, limit: 2/m}\n\
         - {id: log, limit: 3/m, algorithm: sliding_log}\n\
         - {id: leases, limit: 200, algorithm: concurrency, lease: 1h}\n",
    );
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check_cost(&[], 2), "deny 30s");
    assert_eq!(bench.remaining(&[]), [1, 2, 199]);
    assert_eq!(bench.check(&[]), "allow");
    bench.advance(Nanos::from_secs(59));
    assert_eq!(bench.check_cost(&[], 1), "allow");
    assert_eq!(bench.check_cost(&[], 1), "deny 1s");
    assert_eq!(bench.remaining(&[]), [0, 0, 197]);
}

#[test]
fn unlimited_rule_never_refuses() {
    let mut bench = test_bench("- {id: free, when: {plan: gold}, unlimited: true}\n");
    bench.decide(&[("plan", "gold")], Some(1_000_000), |decision| {
        assert_eq!((decision.outcome(), decision.rule()), (Outcome::Allow, Some("free")));
        assert_eq!(decision.reports().count(), 0);
    });
    assert_eq!(bench.engine.rules().rules()[0].meter().counts().allowed, 1);
}

#[test]
fn shadow_rule_reports_and_does_not_refuse() {
    let mut bench = test_bench("- {id: new, limit: 1/m, on_exceed: shadow}\n- {id: old, limit: 3/m}\n");
    let mut check = || {
        bench.decide(&[], None, |decision| {
            let reports: Vec<_> =
                decision.reports().map(|report| (report.rule.to_owned(), report.shadow, report.refused)).collect();
            (decision.is_admitted(), decision.is_shadow_refused(), decision.rule().map(str::to_owned), reports)
        })
    };
    let shadow_reports = |new, old| vec![("new".to_owned(), true, new), ("old".to_owned(), false, old)];
    assert_eq!(check(), (true, false, Some("old".into()), shadow_reports(false, false)));
    assert_eq!(check(), (true, true, Some("old".into()), shadow_reports(true, false)));
    assert_eq!(check(), (true, true, Some("old".into()), shadow_reports(true, false)));
    // If the enforced rules refuse, shadow rules are not evaluated.
    assert_eq!(check(), (false, false, Some("old".into()), vec![("old".into(), false, true)]));
    let rules = bench.engine.rules();
    assert_eq!((rules.rules()[0].meter().counts().allowed, rules.rules()[0].meter().counts().shadow_refused), (1, 2));
    assert_eq!((bench.engine.counts().shadow_refused, bench.engine.counts().refused), (2, 1));
}

#[test]
fn observe_mode_admits_all_requests_and_reports_the_outcome() {
    let mut bench = test_bench("- {id: r, limit: 1/m}\n");
    bench.engine.set_enforcement(Enforcement::Observe);
    assert_eq!(bench.check(&[]), "allow");
    bench.decide(&[], None, |decision| {
        assert!(decision.is_admitted());
        assert_eq!(decision.observed().map(outcome_text), Some("deny 60s".into()));
    });
    bench.engine.set_enforcement(Enforcement::Enforce);
    assert_eq!(bench.check(&[]), "deny 60s");
    let counts = bench.engine.counts();
    assert_eq!((counts.allowed, counts.observed, counts.refused), (2, 1, 1));
}

#[test]
fn leaky_bucket_delays_requests() {
    let mut bench = test_bench("- {id: r, limit: 10/s, burst: 3, algorithm: leaky_bucket}\n");
    let outcomes: Vec<_> = (0..4).map(|_| bench.check(&[])).collect();
    assert_eq!(outcomes, ["allow", "delay 100ms", "delay 200ms", "deny 100ms"]);
    assert_eq!((bench.engine.counts().allowed, bench.engine.counts().delayed), (1, 2));
}

#[test]
fn receipt_refunds_exactly_the_charged_amount() {
    let mut bench = test_bench(
        "- {id: window, per: [user], limit: 10/m, algorithm: fixed_window}\n\
         - {id: leases, limit: 3, algorithm: concurrency, lease: 1h}\n",
    );
    let user = [("user", "a")];
    let receipt = bench.decide(&user, Some(2), |decision| decision.receipt());
    assert_eq!(bench.remaining(&user), [8, 1]);
    let travelled: Receipt = receipt.to_string().parse().unwrap();
    assert_eq!(poll_once(bench.engine.refund(&travelled)).unwrap().get(), 2);
    assert_eq!(bench.remaining(&user), [10, 3]);
    assert_eq!(poll_once(bench.engine.refund(&travelled)).unwrap().get(), 0, "a second refund does nothing");
    // A charge of the previous window is not refunded in the current window.
    let receipt = bench.decide(&user, Some(2), |decision| decision.receipt());
    bench.advance(Nanos::from_secs(60));
    assert_eq!(bench.check(&user), "allow");
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 0);
    assert_eq!(bench.remaining(&user), [9, 2]);
}

#[test]
fn reset_discards_usage() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 1/m}\n- {id: s, limit: 9/m, on_exceed: shadow}\n");
    for user in ["a", "b"] {
        assert_eq!(bench.check(&[("user", user)]), "allow");
    }
    let attributes = [Attribute::new("user", "a")];
    let items = [Item::new(&attributes)];
    assert_eq!(poll_once(bench.engine.reset(&Request::new("d", &items), &mut bench.decisions)), Ok(2));
    assert_eq!(bench.remaining(&[("user", "a")]), [1, 9]);
    assert_eq!(bench.remaining(&[("user", "b")])[0], 0);
}

#[test]
fn inline_limit_needs_no_rules() {
    let mut bench = test_bench("");
    let one = bench.engine.intern_limits(&parse_limits("1/m", None)).unwrap();
    let other = bench.engine.intern_limits(&parse_limits("5/m", None)).unwrap();
    assert_eq!(bench.check_items(&[Item::inline("k", &one)]), Ok("allow".into()));
    assert_eq!(bench.check_items(&[Item::inline("k", &one)]), Ok("deny 60s".into()));
    assert_eq!(bench.check_items(&[Item::inline("l", &one)]), Ok("allow".into()));
    // The usage of a key is kept if the next request has other limits.
    assert_eq!(bench.check_items(&[Item::inline("k", &other).cost(4)]), Ok("allow".into()));
    assert_eq!(bench.check_items(&[Item::inline("k", &other)]), Ok("deny 12s".into()));
    let mixed = bench.check_items(&[Item::inline("m", &one), Item::inline("m", &other)]);
    assert!(matches!(mixed, Err(RequestError::BadLimit { .. })));

    let items = [Item::inline("k", &one)];
    let mut decisions = Decisions::default();
    let decision = poll_once(bench.engine.check(&Request::without_rules(&items), &mut decisions)).unwrap();
    assert_eq!((decision.is_admitted(), decision.rule()), (true, Some("")), "without a domain, it is another key");
    let receipt: Receipt = decision.receipt().to_string().parse().unwrap();
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 1);
    assert!(poll_once(bench.engine.check(&Request::without_rules(&items), &mut decisions)).unwrap().is_admitted());
}

#[test]
fn batch_is_decided_in_order_and_independently() {
    let bench = test_bench(
        "- {id: r, per: [user], limit: 2/m}\n- {id: all, limit: 5/m}\n- {id: s, limit: 4/m, on_exceed: shadow}\n",
    );
    let names: Vec<String> = (0..40).map(|n| format!("u{}", n % 3)).collect();
    let attributes: Vec<[Attribute<'_>; 1]> = names.iter().map(|name| [Attribute::new("user", name)]).collect();
    let mut items: Vec<[Item<'_>; 1]> = attributes.iter().map(|attributes| [Item::new(attributes)]).collect();
    items[1] = [Item::default()];
    let mut requests: Vec<Request<'_>> = items.iter().map(|items| Request::new("d", items)).collect();
    requests[2].domain = b"nobody";
    let mut decisions = Decisions::default();
    poll_once(bench.engine.check_batch(&requests, &mut decisions));
    assert_eq!(decisions.len(), 40);
    let outcomes: Vec<_> = decisions
        .iter()
        .map(|decision| decision.map_or("error", |d| if d.is_admitted() { "yes" } else { "no" }))
        .collect();
    assert_eq!(outcomes[..9], ["yes", "yes", "error", "yes", "yes", "yes", "no", "no", "no"]);
    assert!(outcomes[9..].iter().all(|outcome| *outcome == "no"));
    assert_eq!(decisions.get(5).unwrap().rule(), Some("all"));
    assert!(decisions.get(5).unwrap().is_shadow_refused() && !decisions.get(4).unwrap().is_shadow_refused());
    assert!(decisions.iter().flatten().all(|decision| decision.exactness() == Exactness::Exact));
}

#[test]
fn number_of_rules_that_match_a_request_is_bounded() {
    // Each rule has a different condition. Loading cannot prove that these rules always match together, so it accepts
    // all of them.
    let rule = |n| format!("- {{id: r{n}, when: {{none: {{not: x{n}}}}}, limit: 1/m}}\n");
    let matching = |count: usize| -> String { (0..count).map(rule).collect() };
    let mut full = test_bench(&matching(256));
    assert_eq!(full.check(&[]), "allow");
    assert_eq!(full.check(&[]), "deny 60s");
    let items: Vec<Item<'_>> = (0..17).map(|_| Item::default()).collect();
    let (what, max) = ("rules matched by the items of a request", 4096);
    assert_eq!(full.check_items(&items).unwrap_err(), RequestError::TooMany { what, given: 17 * 256, max });
    assert_eq!(full.check(&[]), "deny 60s", "the next request is decided as before");

    let (what, max) = ("rules that match the request", 256);
    let error = test_bench(&matching(257)).check_items(&[Item::default()]).unwrap_err();
    assert_eq!(error, RequestError::TooMany { what, given: 257, max });
}
