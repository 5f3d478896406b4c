//! Tests of statements in `docs/rules.md` and `docs/verbs.md` about special cases.

use crate::support;

use support::{TestBench, outcome_text, poll_once, test_bench};
use tollgate::core::Nanos;
use tollgate_engine::{Item, Request};

fn from_seconds(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// Charges `cost` into debt if necessary.
fn charge_into_debt(bench: &mut TestBench, cost: u64) -> String {
    let items = [Item::default().cost(cost)];
    let decision = poll_once(bench.engine.charge(&Request::new("d", &items), &mut bench.decisions));
    outcome_text(decision.expect("a valid request").outcome())
}

/// A limit of each algorithm with a capacity of 4, and part of the expected decision while it has a debt of 1.
const LIMITS_AND_DECISIONS_IN_DEBT: [(&str, &str); 8] = [
    ("limit: 4/m", "deny 15s"),
    ("limit: 4/m, algorithm: leaky_bucket", "deny 15s"),
    ("limit: 4/m, algorithm: interval_bucket, phase: first_request", "deny 60s"),
    ("limit: 4/m, algorithm: fixed_window, phase: first_request", "deny 60s"),
    ("limit: 4/m, algorithm: sliding_window", ""),
    ("limit: 4/m, algorithm: sliding_slices", ""),
    ("limit: 4/m, algorithm: sliding_log, minimum_gap: 1s", "deny 60s"),
    ("limit: 4, algorithm: concurrency", "deny until release"),
];

#[test]
fn cost_of_zero_passes_unless_the_limit_is_in_debt_and_changes_nothing() {
    for (limit, in_debt) in LIMITS_AND_DECISIONS_IN_DEBT {
        let mut bench = test_bench(&format!("- {{id: r, {limit}, max_debt: 4}}\n"));
        assert_eq!(bench.check_cost(&[], 0), "allow", "{limit}: new");
        assert_eq!(bench.remaining(&[]), [4], "{limit}");
        assert_eq!(charge_into_debt(&mut bench, 4), "allow", "{limit}");
        for _ in 0..3 {
            assert_eq!(bench.check_cost(&[], 0), "allow", "{limit}: nothing left, and no debt");
        }
        assert_eq!(bench.remaining(&[]), [0], "{limit}");
        assert_eq!(charge_into_debt(&mut bench, 1), "allow", "{limit}: into debt");
        let said = bench.check_cost(&[], 0);
        assert!(said.starts_with("deny") && said.contains(in_debt), "{limit}: in debt, {said}");
    }
}

#[test]
fn window_of_phase_first_request_begins_with_the_first_request_that_is_counted() {
    let mut bench = test_bench(
        "- {id: w, limit: 4/m, algorithm: fixed_window, phase: first_request}\n\
         - {id: gate, when: {gate: shut}, deny: true}\n",
    );
    // A peek, a refused request and a cost of 0 do not start a window.
    assert_eq!(bench.remaining(&[]), [4]);
    assert_eq!(bench.check(&[("gate", "shut")]), "deny for ever");
    assert_eq!(bench.check_cost(&[], 5), "deny for ever");
    assert_eq!(bench.check_cost(&[], 0), "allow");
    bench.advance(from_seconds(10));
    assert_eq!(bench.check_cost(&[], 4), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
    bench.advance(from_seconds(59));
    assert_eq!(bench.check(&[]), "deny 1s");
    // The window ended at 70 s. The next window begins with the request at 100 s.
    bench.advance(from_seconds(31));
    assert_eq!(bench.check_cost(&[], 4), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
}

#[test]
fn windows_of_phase_first_request_follow_each_other_while_there_is_debt() {
    let mut bench = test_bench("- {id: w, limit: 4/m, algorithm: fixed_window, phase: first_request, max_debt: 8}\n");
    assert_eq!(charge_into_debt(&mut bench, 6), "allow");
    // The second window begins at 60 s with a usage of 2, without any request at that time.
    bench.advance(from_seconds(90));
    assert_eq!(bench.check_cost(&[], 3), "deny 30s");
    assert_eq!(bench.check_cost(&[], 2), "allow");
    // The second window ended at 120 s without debt, so the third window begins with the next request.
    bench.advance(from_seconds(60));
    assert_eq!(bench.check_cost(&[], 4), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
}

#[test]
fn steps_of_phase_first_request_begin_with_the_request_that_takes_from_a_full_bucket() {
    let mut bench = test_bench("- {id: b, limit: 4/m, algorithm: interval_bucket, phase: first_request, burst: 8}\n");
    bench.advance(from_seconds(10));
    assert_eq!(bench.check_cost(&[], 8), "allow");
    // Steps occur at 70, 130 and 190 s. The steps continue until the bucket is full, regardless of requests in between.
    bench.advance(from_seconds(65));
    assert_eq!(bench.check_cost(&[], 1), "allow");
    assert_eq!(bench.check_cost(&[], 4), "deny 55s");
    bench.advance(from_seconds(55));
    assert_eq!(bench.remaining(&[]), [7]);
    bench.advance(from_seconds(60));
    assert_eq!(bench.remaining(&[]), [8]);
    // The bucket has been full since 190 s, so the next step is one minute after the next request.
    bench.advance(from_seconds(30));
    assert_eq!(bench.check_cost(&[], 8), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
}

#[test]
fn interval_bucket_without_max_wait_delays_nothing() {
    let mut bench = test_bench("- {id: b, limit: 4/m, algorithm: interval_bucket, phase: first_request}\n");
    assert_eq!(bench.check_cost(&[], 4), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
    let mut waits =
        test_bench("- {id: b, limit: 4/m, algorithm: interval_bucket, phase: first_request, max_wait: 1m}\n");
    assert_eq!(waits.check_cost(&[], 4), "allow");
    assert_eq!(waits.check(&[]), "delay 60s");
}

#[test]
fn count_refused_records_only_refusals_of_its_own_log() {
    let rules = "- {id: log, limit: 2/m, algorithm: sliding_log, count_refused: true, max_debt: 0}\n\
                 - {id: other, when: {with: other}, limit: 1/h}\n";
    let mut bench = test_bench(rules);
    assert_eq!(bench.check(&[("with", "other")]), "allow");
    // The other limit refuses while the log has capacity, so the log records nothing.
    assert_eq!(bench.check(&[("with", "other")]), "deny 3600s");
    // Neither a cost above the limit nor a peek is recorded.
    assert_eq!(bench.check_cost(&[], 3), "deny for ever");
    assert_eq!(bench.remaining(&[]), [1]);
    assert_eq!(bench.check(&[]), "allow");
    bench.advance(from_seconds(50));
    assert_eq!(bench.remaining(&[]), [0]);
    // Both the other limit and the log refuse, so the log records the request. The log now has two entries, from 0 s
    // and 50 s.
    assert_eq!(bench.check(&[("with", "other")]), "deny 3550s");
    assert_eq!(bench.check_cost(&[], 0), "allow", "a cost of 0 is not recorded");
    bench.advance(from_seconds(10));
    assert_eq!(bench.remaining(&[]), [1]);
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 60s", "this request is recorded, and the entry of 50 s has expired");
}

#[test]
fn count_refused_records_refusals_of_its_own_log_during_a_ban() {
    let mut bench = test_bench(
        "- {id: r, limit: 1/m, algorithm: sliding_log, count_refused: true, ban: {after: 1, within: 1h, for: 10s}}\n",
    );
    assert_eq!((bench.check(&[]), bench.check(&[])), ("allow".into(), "deny 60s".into()));
    bench.advance(from_seconds(9));
    assert_eq!(bench.check(&[]), "deny 60s", "the refusal is recorded at 9 s, so the wait ends at 69 s");
    bench.advance(from_seconds(59));
    assert_eq!(bench.remaining(&[]), [0]);
    bench.advance(from_seconds(1));
    assert_eq!(bench.remaining(&[]), [1]);
}

#[test]
fn shadow_rules_of_a_request_are_charged_all_or_none() {
    let mut bench = test_bench(
        "- {id: enforced, when: {kind: limited}, limit: 1/h}\n\
         - {id: narrow, limit: 1/h, on_exceed: shadow}\n\
         - {id: wide, limit: 10/h, on_exceed: shadow}\n",
    );
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.remaining(&[]), [0, 9]);
    bench.decide(&[], None, |decision| assert!(decision.is_admitted() && decision.is_shadow_refused()));
    assert_eq!(bench.remaining(&[]), [0, 9], "`narrow` would refuse, so `wide` is not charged");
    bench.advance(from_seconds(3_600));
    assert_eq!((bench.check(&[("kind", "limited")]), bench.remaining(&[])), ("allow".into(), vec![0, 9]));
    bench.decide(&[("kind", "limited")], None, |decision| {
        assert!(
            !decision.is_admitted() && !decision.is_shadow_refused(),
            "shadow rules are charged only for admitted requests"
        );
    });
}

#[test]
fn shadow_rule_that_denies_leaves_other_shadow_rules_uncharged() {
    let mut bench = test_bench(
        "- {id: enforced, when: {kind: limited}, limit: 1/h}\n\
         - {id: denies, limit: 9/h, on_exceed: shadow, overrides: [{when: {user: a}, deny: true}]}\n\
         - {id: wide, limit: 10/h, on_exceed: shadow}\n",
    );
    let refusals = |bench: &TestBench| {
        bench.engine.rules().rules().iter().map(|rule| rule.meter().counts().shadow_refused).sum::<u64>()
    };
    for _ in 0..2 {
        bench.decide(&[("user", "a")], None, |decision| {
            assert!(decision.is_admitted() && decision.is_shadow_refused() && decision.receipt().is_empty());
        });
    }
    assert_eq!((refusals(&bench), bench.remaining(&[])), (2, vec![9, 10]));
    assert_eq!(bench.check(&[("kind", "limited")]), "allow");
    bench.decide(&[("user", "a"), ("kind", "limited")], None, |decision| {
        assert!(!decision.is_admitted() && !decision.is_shadow_refused());
    });
    assert_eq!(refusals(&bench), 2, "shadow rules are not evaluated for a refused request");
}

#[test]
fn refusal_by_a_rule_counts_towards_its_ban_while_another_rule_bans() {
    let mut bench = test_bench(
        "- {id: a, limit: 1/m, ban: {after: 1, within: 1m, for: 1h}}\n\
         - {id: b, limit: 1/day, ban: {after: 3, within: 1h, for: 2 days}}\n\
         - {id: c, limit: 9/day, ban: {after: 1, within: 1h, for: 9 days}}\n",
    );
    let said = |bench: &mut TestBench| {
        bench.decide(&[], None, |decision| (outcome_text(decision.outcome()), decision.is_refused_by_ban()))
    };
    assert_eq!(said(&mut bench), ("allow".into(), false));
    // `a` bans immediately. The limit of `b` refuses these requests as well, and its third refusal starts the ban of
    // `b`.
    let by_b = "deny 86400s";
    assert_eq!([(); 2].map(|()| said(&mut bench)), [(by_b.into(), true), (by_b.into(), true)]);
    assert_eq!(said(&mut bench), ("deny 172800s".into(), true));
    assert_eq!(bench.engine.counts().bans, 2, "the limit of `c` refuses no request, so `c` starts no ban");
}

#[test]
fn refusal_by_deny_or_by_another_rule_counts_towards_no_ban() {
    let mut bench = test_bench(
        "- {id: r, per: [user], limit: 1/h, ban: {after: 1, within: 1h, for: 2h}, overrides: [{when: {user: d}, deny: true}]}\n\
         - {id: all, limit: 1/h}\n",
    );
    assert_eq!(bench.check(&[("user", "a")]), "allow");
    for _ in 0..3 {
        assert_eq!(bench.check(&[("user", "b")]), "deny 3600s", "refused by `all`; `r` has capacity");
        assert_eq!(bench.check(&[("user", "d")]), "deny for ever");
    }
    assert_eq!(bench.engine.counts().bans, 0);
}
