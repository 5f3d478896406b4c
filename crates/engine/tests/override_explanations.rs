//! Tests of explanations of overrides from files and from the API: which override applies, and why other overrides do
//! not.

use crate::support;

use support::{assert_explained, explain_matching, poll_once, test_bench};
use tollgate::core::Nanos;
use tollgate_engine::rules::{Rules, Source, entry};
use tollgate_engine::{Attribute, Item};

const PLAN_RULES: &str = "\
- id: plans
  per: [api_key]
  limit: 60/m
  burst: 10
  overrides:
  - {when: {plan: enterprise}, unlimited: true}
  - {when: {plan: [pro, team], region: {present: true}}, limit: 600/m}
  - {when: {api_key: trial}, limit: 90/m, until: 2023-11-15T00:00:00Z}
  - {when: {api_key: bad}, deny: true}
";

#[test]
fn applied_override_is_explained_with_overrides_that_do_not_apply() {
    let mut bench = test_bench(PLAN_RULES);
    assert_explained("override_with_limits", &mut bench, &[("api_key", "a"), ("plan", "team"), ("region", "eu")]);
    assert_explained("override_unlimited", &mut bench, &[("api_key", "a"), ("plan", "enterprise")]);
    assert_explained("override_denies", &mut bench, &[("api_key", "bad")]);
}

#[test]
fn expiry_of_an_override_is_explained() {
    let mut bench = test_bench(PLAN_RULES);
    let trial = [("api_key", "trial")];
    let before = explain_matching(&mut bench, &trial, None);
    assert!(
        before.contains("by override rules:10:5, because api_key is \"trial\", until 2023-11-15T00:00Z\n"),
        "{before}"
    );
    bench.advance(Nanos::from_secs(2 * 3_600));
    assert_explained("override_expired", &mut bench, &trial);
}

#[test]
fn stored_rules_are_explained_by_name() {
    let rule = r#"{"id":"r","per":["key"],"limit":"1/s","overrides":[{"when":{"key":"own"},"limit":"7/s"}]}"#;
    let (acme, zeta) = (r#"{"limit":"5/s"}"#, r#"{"unlimited":true}"#);
    let with = |value, effect, until| entry::EntryOverride { attribute: "key", value, effect, until };
    let rule =
        entry::with_overrides(rule, &[with("acme", acme, Some("2030-01-31T18:00:00Z")), with("zeta", zeta, None)]);
    let file = entry::to_json([("d", [&*rule.unwrap()])]);
    let rules = Rules::read(&[Source { name: "revision 7", text: file.as_bytes() }]).unwrap().with_hidden_positions();
    let mut bench = test_bench("- {id: r, limit: 1/s}\n");
    bench.engine.put(&rules).unwrap();
    assert_explained("stored_override_by_value", &mut bench, &[("key", "acme")]);
    assert_explained("stored_override_of_the_rule", &mut bench, &[("key", "own")]);
}

#[test]
fn overrides_of_the_rule_are_listed_before_api_overrides() {
    let rule = r#"{"id":"r","per":["key"],"limit":"1/s","overrides":[
        {"when":{"plan":"a"},"limit":"7/s"},{"when":{"plan":"pro","region":"eu"},"limit":"8/s"}]}"#;
    let names: Vec<String> = (0..2_000).map(|n| format!("customer {n}")).collect();
    let with = |value| entry::EntryOverride { attribute: "key", value, effect: r#"{"limit":"5/s"}"#, until: None };
    let overrides: Vec<_> = names.iter().map(|name| with(&**name)).collect();
    let file = entry::to_json([("d", [&*entry::with_overrides(rule, &overrides).unwrap()])]);
    let rules = Rules::read(&[Source { name: "revision 7", text: file.as_bytes() }]).unwrap().with_hidden_positions();
    let mut bench = test_bench("- {id: r, limit: 1/s}\n");
    bench.engine.put(&rules).unwrap();
    let text = explain_matching(&mut bench, &[("key", "me"), ("plan", "pro")], None);
    let expected = "\n    none of its 2,002 overrides applies\n    \
                    override 2 of the rule does not apply: region must be \"eu\", but is missing\n    \
                    override 1 of the rule does not apply: plan must be \"a\", but is \"pro\"\n    \
                    overrides set through the API for other values of key: 2,000\n    1/s: 1 of 1 left";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn values_of_the_request_in_overrides_can_be_concealed() {
    let rule =
        r#"{"id":"r","per":["key"],"limit":"1/s","overrides":[{"when":{"plan":["gold","pure"]},"limit":"7/s"}]}"#;
    let with = |value, until| entry::EntryOverride { attribute: "key", value, effect: r#"{"limit":"5/s"}"#, until };
    let overrides = [with("acme", None), with("bygone", Some("2020-01-31T18:00:00Z")), with("a\u{1b}\n\u{202e}", None)];
    let file = entry::to_json([("d", [&*entry::with_overrides(rule, &overrides).unwrap()])]);
    let rules = Rules::read(&[Source { name: "revision 7", text: file.as_bytes() }]).unwrap().with_hidden_positions();
    let mut bench = test_bench("- {id: r, limit: 1/s}\n");
    bench.engine.put(&rules).unwrap();
    for (key, plan, shown, hidden) in [
        (
            "acme",
            "gold",
            "by override \"acme\", set through the API, because key is \"acme\"\n",
            "by override \"<4>\", set through the API, because key is \"<4>\"\n",
        ),
        (
            "bygone",
            "gold",
            "by override 1 of the rule, because plan is \"gold\" or \"pure\"\n    \
             override \"bygone\", set through the API does not apply: it expired 2020-01-31T18:00Z\n    \
             overrides set through the API for other values of key: 2\n",
            "by override 1 of the rule, because plan is \"<4>\"\n    \
             override \"<6>\", set through the API does not apply: it expired 2020-01-31T18:00Z\n",
        ),
        // Control characters are always escaped.
        ("a\u{1b}\n\u{202e}", "free", "by override \"a\\u{1b}\\n\\u{202e}\", set through the API, because", "\"<6>\""),
    ] {
        let attributes = [Attribute::new("key", key), Attribute::new("plan", plan)];
        let mut explanation =
            poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut bench.decisions)).unwrap();
        let text = explanation.to_string();
        assert!(text.contains(shown), "{text}");
        explanation.conceal(|value| format!("<{}>", value.len()));
        let text = explanation.to_string();
        assert!(text.contains(hidden) && !text.contains(key) && !text.contains(plan), "{text}");
    }
}

#[test]
fn values_compared_with_overrides_can_be_concealed() {
    let bench = test_bench(PLAN_RULES);
    let attributes = [Attribute::new("api_key", "secret"), Attribute::new("plan", "hidden")];
    let mut explanation =
        poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut tollgate_engine::Decisions::default()))
            .unwrap();
    explanation.conceal(|_| "…".into());
    let text = explanation.to_string();
    assert!(!text.contains("secret") && !text.contains("hidden") && text.contains("but is \"…\""), "{text}");
}

#[test]
fn nearest_override_is_searched_among_the_first_ten_thousand() {
    for (others, nearest, more) in
        [(9_999, "a must be \"no\", but is \"yes\"", "9,997"), (10_000, "k must be \"c0\", but is missing", "9,998")]
    {
        let others: String = (0..others).map(|n| format!("{{when: {{k: c{n}}}, unlimited: true}}, ")).collect();
        let near = "{when: {b: yes, a: no}, unlimited: true}";
        let mut bench = test_bench(&format!("- {{id: r, limit: 1/s, overrides: [{others}{near}]}}\n"));
        let text = explain_matching(&mut bench, &[("a", "yes"), ("b", "yes")], None);
        let first = text.lines().nth(3).unwrap_or_default();
        assert!(first.contains("override ") && first.ends_with(nearest), "{text}");
        let more = format!("\n    further overrides that do not apply: {more}\n");
        assert!(text.contains(&more), "{text}");
    }
}
