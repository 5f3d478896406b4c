//! Explanations of decisions.

use crate::support;

use support::{TestBench, poll_once, test_bench};
use tollgate::core::Nanos;
use tollgate_engine::{Attribute, Explanation, Item, MatchResult, PooledDecisions, Request, RuleEffect};

fn explain(bench: &mut TestBench, attributes: &[(&str, &str)]) -> Explanation {
    let attributes: Vec<Attribute<'_>> = attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
    poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut bench.decisions)).expect("a valid request")
}

/// Returns the explanation text without rule positions.
fn explanation_text(bench: &mut TestBench, attributes: &[(&str, &str)]) -> String {
    let mut explanation = explain(bench, attributes);
    explanation.rules.iter_mut().for_each(|rule| rule.position = None);
    explanation.to_string()
}

const RULES: &str = "\
- {id: login, when: {path: /login, method: POST}, per: [client_ip], limit: 5/15m}
- {id: everyone, per: [user or client_ip], limits: [{limit: 100/m}, {limit: 1000/h}]}
- {id: inside, when: {client_ip: {cidr: 10.0.0.0/8}}, limit: 1/s}
- {id: api, when: {path: '/v1/{kind}/**', key: {present: true}}, per: [kind], limit: 10/s}
- {id: quiet, limit: 1/h, on_exceed: shadow}
";

#[test]
fn explanation_lists_matching_rules_and_failed_conditions() {
    let mut bench = test_bench(RULES);
    let ask = [("path", "/login"), ("method", "GET"), ("client_ip", "192.0.2.1")];
    bench.check(&ask);
    bench.decide(&ask, None, |decision| {
        let names: Vec<String> = decision.counters().map(|counter| counter.name(100)).collect();
        assert_eq!(names, ["client_ip=192.0.2.1", ""], "only the alternative that was present is named");
    });
    assert_eq!(
        explanation_text(&mut bench, &ask),
        "allowed; `everyone` has the least left\n\
         + everyone: matches, counted by client_ip = \"192.0.2.1\", costs 1\n    \
         100/m: 98 of 100 left, full again in 1.2s\n    \
         1000/h: 998 of 1,000 left, full again in 7.2s\n\
         + quiet: matches, as a shadow rule, costs 1: would refuse\n    \
         1/h: 0 of 1 left, full again in 1h, passes in 1h\n\
         - login: method must be \"POST\", but is \"GET\"\n\
         - inside: client_ip must be in 10.0.0.0/8, but is \"192.0.2.1\"\n\
         - api: path must be like \"/v1/*/**\", but is \"/login\"\n"
    );
}

#[test]
fn explanation_takes_nothing_and_reports_the_wait() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 2/m}\n");
    let ask = [("user", "alice")];
    for _ in 0..5 {
        assert_eq!(explain(&mut bench, &ask).matching_rules().count(), 1);
    }
    assert_eq!(bench.remaining(&ask), [2]);
    (0..2).for_each(|_| drop(bench.check(&ask)));
    bench.advance(Nanos::from_secs(10));
    assert_eq!(
        explanation_text(&mut bench, &ask),
        "refused for 20s, by `r`\n\
         + r: matches, counted by user = \"alice\", costs 1: refuses\n    \
         2/m: 0 of 2 left, full again in 50s, passes in 20s\n"
    );
}

#[test]
fn overrides_bans_and_allow_rules_are_distinguished() {
    let mut bench = test_bench(
        "- {id: friends, when: {user: bob}, allow: true}\n\
         - {id: r, per: [user], limit: 1/m, ban: {after: 1, within: 1m, for: 1h}, overrides: [{when: {user: eve}, limit: 9/m}]}\n",
    );
    let effect = |bench: &mut TestBench, user: &str| {
        let explanation = explain(bench, &[("user", user)]);
        let met: Vec<_> = explanation
            .matching_rules()
            .map(|(rule, met)| (rule.rule.clone(), met.effect, met.remaining_ban_time().is_some()))
            .collect();
        met
    };
    assert_eq!(effect(&mut bench, "bob"), [("friends".into(), RuleEffect::Allows, false)]);
    let explanation = explain(&mut bench, &[("user", "bob")]);
    assert!(matches!(&explanation.rules[1].why, MatchResult::DecidedBefore { by } if by == "friends"), "{explanation}");
    assert_eq!(effect(&mut bench, "eve"), [("r".into(), RuleEffect::Overrides, false)]);
    assert_eq!(effect(&mut bench, "al"), [("r".into(), RuleEffect::Limits, false)]);
    (0..2).for_each(|_| drop(bench.check(&[("user", "al")])));
    assert_eq!(effect(&mut bench, "al"), [("r".into(), RuleEffect::Limits, true)]);
}

#[test]
fn nearest_of_many_rules_are_listed() {
    let mut rules: String =
        (0..500).map(|n| format!("- {{id: r{n}, when: {{a: x{n}, b: y}}, limit: 1/s}}\n")).collect();
    rules.push_str("- {id: near, when: {a: z, b: n}, limit: 1/s}\n");
    let mut bench = test_bench(&rules);
    let explanation = explain(&mut bench, &[("a", "z"), ("c", "1")]);
    assert_eq!((&*explanation.rules[0].rule, explanation.rules.len(), explanation.left_out), ("near", 100, 401));
    assert!(explanation.to_string().ends_with("and 401 more that do not match\n"));
}

#[test]
fn long_values_are_cut_and_control_characters_escaped() {
    let mut bench = test_bench("- {id: r, when: {a: x}, limit: 1/s}\n");
    let long = "é".repeat(4_000);
    let explanation = explanation_text(&mut bench, &[("a", &long), ("a", "\u{0}\"")]);
    assert!(explanation.len() < 400 && explanation.contains("…") && explanation.contains("\\0\\\""), "{explanation}");
}

#[test]
fn failed_expression_is_explained_with_its_attributes() {
    let mut bench = test_bench("- {id: r, when: {a: x}, if: \"int(size) > 10 && plan != 'pro'\", limit: 1/s}\n");
    let but = "- r: its conditions hold, but its expression does not";
    for (attributes, with) in [
        (&[("a", "x")][..], "in part 1 of 2, with no size and no plan"),
        (&[("a", "x"), ("size", "10"), ("plan", "own")], "in part 1 of 2, with size = \"10\" and plan = \"own\""),
        (&[("a", "x"), ("size", "11"), ("plan", "pro")], "in part 2 of 2, with size = \"11\" and plan = \"pro\""),
        (&[("a", "x"), ("size", "1\u{1b}")], "in part 1 of 2, with size = \"1\\u{1b}\" and no plan"),
    ] {
        let explanation = explanation_text(&mut bench, attributes);
        assert!(explanation.ends_with(&format!("\n{but} {with}\n")), "{explanation}");
    }
    let met = explain(&mut bench, &[("a", "x"), ("size", "11"), ("plan", "own")]);
    assert!(matches!(met.rules[0].why, MatchResult::Matches(_)), "{met}");
    let mut unmet = explain(&mut bench, &[("a", "x"), ("size", "10")]);
    unmet.conceal(|_| "…".into());
    assert!(unmet.to_string().ends_with("with size = \"…\" and no plan\n"), "{unmet}");
}

#[test]
fn excluded_value_that_the_request_has_is_concealed() {
    let mut bench = test_bench("- {id: r, when: {user: {not: bob}}, limit: 1/s}\n");
    let mut explanation = explain(&mut bench, &[("user", "bob")]);
    assert!(explanation.to_string().contains("user must be other than \"bob\", but is \"bob\""), "{explanation}");
    explanation.conceal(|_| "…".into());
    let text = explanation.to_string();
    assert!(
        text.contains("user must be other than the excluded values, but is \"…\"") && !text.contains("bob"),
        "{text}"
    );
}

#[test]
fn nearest_rules_have_the_most_matching_conditions() {
    let mut rules: String = (0..120).map(|n| format!("- {{id: r{n}, when: {{path: /r{n}}}, limit: 1/s}}\n")).collect();
    rules.push_str("- {id: near, when: {path: /login, method: POST}, limit: 1/s}\n");
    rules.push_str("- {id: nearer, when: {path: /login, method: GET, plan: pro}, limit: 1/s}\n");
    let explanation = explain(&mut test_bench(&rules), &[("path", "/login"), ("method", "GET")]);
    let rules: Vec<&str> = explanation.rules.iter().map(|explained| &*explained.rule).collect();
    assert_eq!((&rules[..4], rules.len(), explanation.left_out), (&["nearer", "near", "r0", "r1"][..], 100, 22));
}

#[test]
fn decision_is_explained_by_the_rules_that_decided_it() {
    let bench = test_bench("- {id: r, limit: 5/h, overrides: [{when: {a: x}, limit: 7/h}]}\n");
    let attributes = [Attribute::new("a", "x")];
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    let mut decisions = PooledDecisions::take();
    poll_once(bench.engine.check_batch(std::slice::from_ref(&request), &mut decisions));
    let before = bench.engine.explain_decided(&request, &decisions, 0).expect("it was decided");
    bench.put("- {id: other, limit: 1/h}\n- {id: r, limit: 9/h}\n");
    let after = bench.engine.explain_decided(&request, &decisions, 0).expect("the previous rules are known");
    assert_eq!((after.version, after.to_string()), (before.version, before.to_string()));
    assert!(after.to_string().contains("7/h: 6 of 7 left"), "{after}");
    // The engine keeps only the current and the previous rules, so after a second change it returns no explanation.
    bench.put("- {id: r, limit: 9/h}\n");
    assert!(bench.engine.explain_decided(&request, &decisions, 0).is_none());
}

#[test]
fn decision_is_explained_with_its_state_and_values_can_be_concealed() {
    let bench = test_bench(
        "- {id: r, per: [user], limit: 2/m, ban: {after: 9, within: 1h, for: 1h}}\n- {id: s, when: {user: bob}, limit: 1/s}\n",
    );
    let (alice, bob) = ([Attribute::new("user", "alice")], [Attribute::new("user", "bob")]);
    let items = [Item::new(&bob), Item::new(&alice).cost(2), Item::new(&alice)];
    let requests = items.each_ref().map(|item| Request::new("d", std::slice::from_ref(item)));
    let mut decisions = PooledDecisions::take();
    poll_once(bench.engine.check_batch(&requests, &mut decisions));
    // Time passes before the decisions are explained.
    bench.advance(Nanos::from_secs(60));
    let explained = |place: usize| {
        let mut explanation =
            bench.engine.explain_decided(&requests[place], &decisions, place).expect("it was decided");
        explanation.rules.iter_mut().for_each(|rule| rule.position = None);
        explanation
    };
    let explanation = explained(0).to_string();
    assert!(
        explanation.starts_with(
            "allowed; `s` has the least left\n+ r: matches, counted by user = \"bob\", costs 1\n    not banned"
        ),
        "{explanation}"
    );
    let explanation = explained(1).to_string();
    assert!(
        explanation.starts_with(
            "allowed; `r` has the least left\n\
             + r: matches, counted by user = \"alice\", costs 2 (stated by the request)\n    \
             not banned: 9 refusals within 1h lead to a ban of 1h\n    \
             2/m: 0 of 2 left, full again in 1m, the next one passes in 1m\n"
        ),
        "{explanation}"
    );
    let mut refused = explained(2);
    refused.conceal(|value| format!("<{}>", value.len()));
    assert_eq!(
        refused.to_string(),
        "refused for 30s, by `r`\n\
         + r: matches, counted by user = \"<5>\", costs 1: refuses\n    \
         not banned: 1 of 9 refusals within 1h that lead to a ban of 1h\n    \
         2/m: 0 of 2 left, full again in 1m, passes in 30s\n\
         - s: user must be \"bob\", but is \"<5>\"\n"
    );
}
