//! Tests of explanations for operators: plans, quotas, expensive requests and logins.

use crate::support;

use std::sync::Arc;
use support::{
    FlakyStore, START, TestBench, assert_explained, explain_matching, poll_once, test_bench, unavailable_error,
};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate_engine::{Attribute, Enforcement, Exactness, Item};

#[test]
fn attribute_of_a_cost_can_be_concealed() {
    let bench = test_bench("- {id: r, limit: 1000/h, cost: {from: bytes, max: 400}}\n");
    for value in ["secret", "987654"] {
        let attributes = [Attribute::new("bytes", value)];
        let mut decisions = tollgate_engine::Decisions::default();
        let mut explanation = poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut decisions)).unwrap();
        explanation.conceal(|_| "…".into());
        assert!(!explanation.to_string().contains(value), "{explanation}");
    }
}

#[test]
fn cost_of_a_kind_of_request_is_explained_and_can_be_concealed() {
    let mut bench = test_bench(
        "- {id: r, limit: 1000/h, cost: [{when: {path: /export, plan: {present: true}}, cost: 50}, {when: {path: '/s/*'}, cost: 5}]}\n",
    );
    assert_explained("cost_of_a_kind", &mut bench, &[("path", "/export"), ("plan", "free")]);
    assert!(explain_matching(&mut bench, &[("path", "/")], None).contains("costs 1\n"), "no case matches");
    let attributes = [Attribute::new("path", "/s/secret")];
    let mut decisions = tollgate_engine::Decisions::default();
    let mut explanation = poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut decisions)).unwrap();
    assert!(explanation.to_string().contains("costs 5 (because path is like"), "{explanation}");
    explanation.conceal(|_| "…".into());
    assert!(!explanation.to_string().contains("secret"), "{explanation}");
}

#[test]
fn value_that_is_not_an_address_is_explained() {
    let bench = test_bench("- {id: r, when: {client_ip: {cidr: 10.0.0.0/8}}, limit: 1/s}\n");
    let attributes = [Attribute::new("client_ip", "alice")];
    let mut decisions = tollgate_engine::Decisions::default();
    let explanation =
        poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut decisions)).unwrap().to_string();
    assert!(explanation.contains("an address in 10.0.0.0/8"), "{explanation}");
}

#[test]
fn calendar_window_is_explained_with_its_bounds() {
    let mut bench =
        test_bench("- {id: quota, per: [key], limit: 10k/month, algorithm: fixed_window, zone: Europe/Berlin}\n");
    bench.check_cost(&[("key", "a")], 9_999);
    let line = "10k/month, fixed_window: 1 of 10,000 left, calendar of Europe/Berlin, began 2023-11-01T00:00+01:00, \
                resets 2023-12-01T00:00+01:00";
    assert_explained("calendar_window", &mut bench, &[("key", "a")]);
    // In that zone, it is 23:13:20 on 14 November.
    assert_eq!(
        explain_matching(&mut bench, &[("key", "a")], Some(2)),
        format!(
            "refused for 16d 1h, by `quota`\n\
             + quota (rules:3:3): matches, counted by key = \"a\", costs 2 (stated by the request): refuses\n    {line}, \
             passes in 16d 1h"
        )
    );
}

#[test]
fn refill_and_wait_of_a_limit_are_explained() {
    for (limit, cost, expected) in [
        ("limit: 100/h, cost: 50", None, "100/h: 50 of 100 left, enough for 1 like this, full again in 30m"),
        ("limit: 3/m, algorithm: fixed_window", None, "3/m, fixed_window: 2 of 3 left, resets in 40s"),
        ("limit: 3/m, algorithm: sliding_log", None, "3/m, sliding_log: 2 of 3 left, unused again in 1m"),
        (
            "limit: 2, algorithm: concurrency, lease: 30s",
            None,
            "2, concurrency, lease 30s: 1 of 2 free, the last lease expires in 30s",
        ),
        ("limit: 5/h, cost: {from: bytes, max: 4}", None, "5/h: 4 of 5 left, full again in 12m"),
        ("limit: 5/h", Some(6), "5/h: 4 of 5 left, full again in 12m, never passes: the cost exceeds the capacity"),
        ("limit: 1, algorithm: concurrency", None, {
            "1, concurrency: 0 of 1 free, the last lease expires in 1m, passes when a slot is released"
        }),
    ] {
        let mut bench = test_bench(&format!("- {{id: r, {limit}}}\n"));
        bench.decide(&[], None, |decision| assert!(decision.is_admitted()));
        let text = explain_matching(&mut bench, &[], cost);
        assert_eq!(text.rsplit("\n    ").next(), Some(expected), "{text}");
    }
}

#[test]
fn cost_from_an_attribute_is_explained() {
    let mut bench = test_bench("- {id: r, limit: 1000/h, cost: {from: bytes, max: 400}}\n");
    assert_explained("cost_from_an_attribute", &mut bench, &[("bytes", "300")]);
    for (bytes, expected) in [
        (&[][..], "costs 1 (no bytes)\n"),
        (&[("bytes", "400")], "costs 400 (from bytes)\n"),
        (&[("bytes", "5000")], "costs 400 (bytes is \"5000\", above the maximum)\n"),
        (
            &[("bytes", "99999999999999999999999")],
            "costs 400 (bytes is \"99999999999999999999999\", above the maximum)\n",
        ),
        (&[("bytes", "12x")], "costs 400 (bytes is \"12x\", not a whole number: counts as the maximum)\n"),
        (&[("bytes", "-1")], "costs 400 (bytes is \"-1\", not a whole number: counts as the maximum)\n"),
        (&[("bytes", "")], "costs 400 (bytes is \"\", not a whole number: counts as the maximum)\n"),
    ] {
        let text = explain_matching(&mut bench, bytes, None);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn rule_that_admits_the_fewest_requests_is_named() {
    let mut bench = test_bench("- {id: plans, limit: 60/m}\n- {id: export, limit: 100/h, cost: 50}\n");
    let text = explain_matching(&mut bench, &[], None);
    assert!(
        text.starts_with("allowed; `plans` has the least left, but `export` is enough for only 2 like this\n"),
        "{text}"
    );
    let text = explain_matching(&mut bench, &[], Some(10));
    assert!(text.starts_with("allowed; `plans` has the least left\n"), "{text}");
}

#[test]
fn delay_is_explained_with_its_maximum() {
    let mut bench = test_bench("- {id: r, limit: 2/s, on_exceed: {delay: {max_wait: 2s}}}\n");
    bench.check(&[]);
    let text = explain_matching(&mut bench, &[], None);
    assert!(text.contains("\n    2/s, delayed for up to 2s: 5 of 6 left"), "{text}");
}

const LOGIN_RULES: &str =
    "- {id: login, per: [ip], limits: [{limit: 2/m}, {limit: 100/day}], ban: {after: 3, within: 10m, for: 1h}}\n";

#[test]
fn ban_is_explained_before_and_while_it_lasts() {
    let mut bench = test_bench(LOGIN_RULES);
    let ask = [("ip", "m")];
    for _ in 0..4 {
        bench.check(&ask);
    }
    assert_explained("refusals_before_a_ban", &mut bench, &ask);
    bench.check(&ask);
    bench.advance(Nanos::from_secs(60));
    assert_explained("banned", &mut bench, &ask);
    // Other keys are not banned.
    assert!(explain_matching(&mut bench, &[("ip", "other")], None).contains("not banned: 0 of 3 refusals within 10m"));
}

#[test]
fn limit_with_a_longer_wait_than_the_ban_is_explained() {
    let mut bench =
        test_bench("- {id: r, limits: [{limit: 1/day}, {limit: 5/m}], ban: {after: 1, within: 1m, for: 1h}}\n");
    bench.check(&[]);
    bench.check(&[]);
    assert_explained("limit_beyond_a_ban", &mut bench, &[]);
}

#[test]
fn refusal_that_starts_a_ban_is_explained_by_the_ban() {
    let mut bench = test_bench(LOGIN_RULES);
    let attributes = [Attribute::new("ip", "m")];
    let items = [Item::new(&attributes)];
    let request = tollgate_engine::Request::new("d", &items);
    for expected in ["matches, counted by ip = \"m\", costs 1: refuses", "costs 1: refuses", "costs 1: banned"] {
        while poll_once(bench.engine.check(&request, &mut bench.decisions)).unwrap().is_admitted() {}
        let text = bench.engine.explain_decided(&request, &bench.decisions, 0).unwrap().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn inline_limit_is_explained_without_a_rule() {
    let mut bench = test_bench("- {id: r, limit: 1/s}\n");
    let limits = bench.engine.intern_limits(&support::parse_limits("3/m", None)).unwrap();
    let item = Item::inline("alice", &limits);
    let explanation = poll_once(bench.engine.explain(b"d", &item, &mut bench.decisions)).unwrap().to_string();
    let expected = "allowed, by the inline limit\n\
                    + inline limit: matches, counted by key = \"alice\", costs 1\n    3 of 3 left\n";
    assert!(explanation.starts_with(expected), "{explanation}");
}

#[test]
fn explanation_says_why_rules_are_not_evaluated() {
    let mut bench = test_bench(
        "- {id: closed, when: {a: x}, deny: true}\n\
         - {id: open, limit: 5/s}\n\
         - {id: night, when: {b: y}, limit: 5/m, schedule: [{days: [wed, sat], from: '22:00', to: '06:00', zone: Europe/Paris}, {from: '01:00', to: '02:00'}]}\n\
         - {id: first, when: {c: z, d: z}, limit: 1/s}\n\
         - {id: second, when: {c: z}, limit: 1/s}\n\
         - {id: third, when: {d: z}, limit: 1/s}\n",
    );
    let attributes = [Attribute::new("b", "y")];
    let text =
        poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut bench.decisions)).unwrap().to_string();
    let explanation: Vec<&str> = text.lines().filter(|line| line.starts_with("- ")).collect();
    assert_eq!(
        explanation,
        [
            "- night (rules:5:3): its conditions hold, but it does not apply at this time, only wed, sat from 22:00 to \
             06:00 in Europe/Paris or every day from 01:00 to 02:00 in UTC",
            "- closed (rules:3:3): a must be \"x\", but is missing",
            "- second (rules:7:3): c must be \"z\", but is missing",
            "- third (rules:8:3): d must be \"z\", but is missing",
            "- first (rules:6:3): c must be \"z\", but is missing",
        ],
        "nearest first; equally near rules keep their order"
    );
    bench.put("- {id: r, limit: 1/s, enforce: 0%}\n");
    assert_eq!(
        explain_matching(&mut bench, &[], None),
        "allowed, because no enforced rule matches\n\
         + r (rules:3:3): matches, as a shadow rule: `enforce` excludes this counter, costs 1\n    1/s: 1 of 1 left"
    );
    bench.put(
        "- {id: own, limit: 2/h, suffices: true}\n- {id: team, limit: 5/h, suffices: true}\n- {id: all, limit: 6/h}\n",
    );
    (0..3).for_each(|_| drop(bench.check(&[])));
    let text = explain_matching(&mut bench, &[], None);
    assert!(text.contains("own (rules:3:3): matches, left out: another rule with `suffices` has capacity\n"), "{text}");
    (0..2).for_each(|_| drop(bench.check(&[])));
    let text = explain_matching(&mut bench, &[], None);
    for other in ["team", "own"] {
        let expected = format!("\n    one of the rules with `suffices` must have capacity: this one or `{other}`\n");
        assert!(text.contains(&expected), "{text}");
    }
    bench.put("- {id: r, per: [u], limit: 1/s}\n- {id: quiet, limit: 1/h, on_exceed: shadow}\n");
    bench.check(&[]);
    let text = explain_matching(&mut bench, &[], None);
    assert!(
        text.ends_with("matches, as a shadow rule, costs 1\n    not evaluated: another rule refuses the request"),
        "{text}"
    );
}

#[test]
fn store_faults_and_observed_refusals_are_explained() {
    let clock = Arc::new(ManualClock::at(START));
    let rules = "- {id: l, limit: 9/s}\n- {id: o, limit: 1/s, on_fault: open, ban: {after: 2, within: 1s, for: 1s}}\n";
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, rules);
    bench.engine.store().fail_times(unavailable_error(), usize::MAX);
    assert_explained("store_fault_local_and_open", &mut bench, &[]);
    // A request that has waited for the store once does not wait again for the state of a ban.
    bench.engine.store().fail_times(unavailable_error(), 2);
    explain_matching(&mut bench, &[], None);
    bench.decide(&[], None, |decision| assert_eq!(decision.exactness(), Exactness::Fallback));
    bench.engine.store().fail_times(unavailable_error(), usize::MAX);
    bench.put("- {id: c, limit: 1/s, on_fault: closed}\n");
    assert_explained("store_fault_closed", &mut bench, &[]);
    bench.engine.store().recover();
    bench.put("- {id: c, limit: 1/s, on_fault: closed}\n");
    bench.check(&[]);
    bench.engine.set_enforcement(Enforcement::Observe);
    let text = explain_matching(&mut bench, &[], None);
    let first = "allowed, because refusals are only observed; otherwise refused for 1s, by `c`\n";
    assert!(text.starts_with(first), "{text}");
}

#[test]
fn ban_that_was_not_evaluated_is_reported() {
    let mut bench = test_bench(
        "- {id: r, limit: 1/h, ban: {after: 1, within: 1h, for: 2h}}\n\
         - {id: s, limit: 9/h, overrides: [{when: {a: x}, deny: true}]}\n",
    );
    (0..2).for_each(|_| drop(bench.check(&[])));
    assert!(explain_matching(&mut bench, &[], None).contains("\n    banned for 2h more, until"));
    assert_explained("ban_not_evaluated", &mut bench, &[("a", "x")]);
}

#[test]
fn replaced_rule_with_a_ban_is_listed_once() {
    let mut bench = test_bench(
        "- {id: own, limit: 5/h, replaces: [all]}\n- {id: all, per: [ip], limit: 1/h, ban: {after: 1, within: 1h, for: 1h}}\n",
    );
    assert_explained("replaced_rule", &mut bench, &[("ip", "m")]);
}
