//! Tests of valid rules and of mistakes in rules.

use super::*;

/// Parses a file and compares the result with `expected`: one rule per line, or the mistakes.
fn assert_parsed(text: &str, expected: &str) {
    let read = Rules::read(&[Source { name: "f", text: text.as_bytes() }]);
    let shown = match read {
        Ok(rules) => rules.domains().iter().flat_map(show_rules).collect::<Vec<_>>().join("\n"),
        Err(mistakes) => mistakes.to_string(),
    };
    assert_eq!(shown, expected, "for\n{text}");
}

fn show_rules(domain: &Domain) -> impl Iterator<Item = String> {
    domain.rules().iter().map(|rule| {
        let when: Vec<String> = rule.when().iter().map(|when| format!("{}={:?}", when.attribute, when.test)).collect();
        let limits = rule.limits().map_or(0, |limits| limits.as_slice().len());
        format!(
            "{}/{} when [{}] per {:?} limits {limits} {:?} {:?} {:?}",
            domain.name(),
            rule.id(),
            when.join(", "),
            rule.per().iter().map(|counted| &*counted.text).collect::<Vec<_>>(),
            rule.cost(),
            rule.on_exceed(),
            rule.on_fault()
        )
    })
}

#[test]
fn rules_are_parsed_with_their_defaults() {
    assert_parsed("domain: a\nrules:\n- id: r\n  limit: 1/s\n", "a/r when [] per [] limits 1 Fixed(cost 1) Deny Local");
    assert_parsed(
        "domain: api\n\
         rules:\n\
         - id: per-client\n  \
           when: { path: /v1/**, method: [GET, POST], key: {present: true}, trial: {present: false}, v: 1.10 }\n  \
           per: [api_key, method]\n  \
           limits: [100/s, {limit: 3, algorithm: concurrency}]\n  \
           cost: 2\n  \
           on_exceed: shadow\n  \
           on_fault: closed\n",
        "api/per-client when [path=AnyOf([Glob(Glob(\"/v1/**\"))]), method=AnyOf([Equals(\"GET\"), Equals(\"POST\")]), \
         key=Present, trial=Absent, v=AnyOf([Equals(\"1.10\")])] per [\"api_key\", \"method\"] limits 2 Fixed(cost 2) Shadow Closed",
    );
    assert_parsed(
        "domain: a\nrules:\n- {id: r, unlimited: true, when: {x: {equals: '*'}, y: {any_of: [a, b*]}}, per: one}\n",
        "a/r when [x=AnyOf([Equals(\"*\")]), y=AnyOf([Equals(\"a\"), Glob(Glob(\"b*\"))])] per [\"one\"] limits 0 Fixed(cost 1) Deny Local",
    );
}

#[test]
fn json_is_equivalent_to_yaml() {
    assert_parsed(
        r#"{"domains": [{"domain": "a", "rules": [{"id": "r", "limit": {"limit": "1/s", "burst": 5}}]},
            {"domain": "b", "rules": []}, {"domain": "a", "rules": [{"id": "s", "limit": "1/s", "burst": 5}]}]}"#,
        "a/r when [] per [] limits 1 Fixed(cost 1) Deny Local\na/s when [] per [] limits 1 Fixed(cost 1) Deny Local",
    );
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    assert_parsed(
        "domian: a\nrules:\n- id: r\n  limit: 1/s\n  on_excede: deny\n",
        "f:1:1: `domian` is not a key of a rule file; did you mean `domain`?\n\
         f:1:1: missing `domain`; add one like `domain: api`\n\
         f:5:3: `on_excede` is not a key of a rule; did you mean `on_exceed`?",
    );
    assert_parsed(
        "domain: a\nrules:\n- id: r\n  limits:\n  - {limit: 1/s, brust: 5}\n  when: {a: {presnt: true}}\n",
        "f:5:18: `brust` is not a key of a limit; did you mean `burst`?\n\
         f:6:14: `presnt` is not a key of a condition; did you mean `present`?",
    );
    assert_parsed(
        "domain: a\nrules:\n- {id: r, limit: 1/s, on_fault: locl, on_exceed: explode}\n",
        "f:3:33: `locl` is not a choice of `on_fault`; did you mean `local`?\n\
         f:3:50: `explode` is not a choice of `on_exceed`; valid: `deny`, `shadow`, `drop` and `delay`",
    );
}

#[test]
fn all_mistakes_are_reported_in_order() {
    assert_parsed(
        "domain: a b\nrules:\n\
         - id: r\n  limit: 100\n  when: {path: /a**, method: [], q: {}}\n  per: [x, x, '']\n\
         - limit: 1/s\n  cost: -1\n\
         - id: r\n  limit: 1/s\n  algorithm: fixed_windo\n\
         - id: s\n  unlimited: maybe\n\
         - text\n",
        "f:1:9: `a b` is not a valid domain name; use letters, digits and `-_.:/`\n\
         f:4:10: `100` is not a rate: there is no `/` between the count and the period; write it like 100/s, 5/15m or 10k/day\n\
         f:5:16: `/a**`: `**` must be a whole segment, between slashes; for literal stars and braces write `{ equals: \"*\" }`\n\
         f:5:22: the list of values is empty, so this never matches; name at least one\n\
         f:5:37: a condition has one key, or two if one is `not`, not 0; valid: `present`, `equals`, `any_of`, `prefix`, `cidr`, `file` and `not`\n\
         f:6:12: duplicate attribute `x`\n\
         f:6:15: empty attribute name\n\
         f:7:3: missing `id`; it identifies the rule when its limits change\n\
         f:8:9: `-1` is not a whole number; `cost` is the cost of a request, like 1 or 5\n\
         f:9:7: duplicate rule `r` in this domain; the first is at f:3:7\n\
         f:11:14: `fixed_windo` is not an algorithm; did you mean `fixed_window`?\n\
         f:12:3: the rule has no `limit`; add one like `limit: 100/s`, or write `unlimited: true`\n\
         f:13:14: `maybe` is neither true nor false; write `true` or `false`\n\
         f:14:3: a rule must be a map, not a string; its keys are `id`, `when`, `if`, `only`, `per`, `limits`, `unlimited`, `allow`, \
         `deny`, `invalid`, `overrides`, `replaces`, `suffices`, `postpaid`, `cost`, `on_exceed`, `on_fault`, `consistency`, `sync_every`, `on_change`, `enforce`, `ban`, `schedule`, \
         `status`, `message`, `metadata`, `limit`, `algorithm`, `burst`, `free`, `max_wait`, `phase`, `offset`, `precision`, \
         `minimum_gap`, `count_refused`, `lease`, `initial`, `max_debt`, `zone` and `anchor`",
    );
}

#[test]
fn options_beside_a_list_of_limits_are_refused() {
    assert_parsed(
        "domain: a\nrules:\n- id: r\n  limits: [1/s]\n  burst: 5\n- id: s\n  burst: 5\n- id: t\n  limit: 1/s\n  limits: []\n",
        "f:5:3: `burst` beside `limits` applies to no limit; move it into the limit that it belongs to\n\
         f:7:3: `burst` without a `limit`; add one like `limit: 100/s`\n\
         f:10:3: `limit` and `limits` are mutually exclusive; put all of them into `limits`\n\
         f:10:3: `limits` is empty; for no limit write `unlimited: true`",
    );
}

#[test]
fn metadata_is_a_map_of_bounded_size() {
    assert_parsed(
        &format!(
            "domain: a\nrules:\n- {{id: r, limit: 1/s, metadata: text}}\n- {{id: s, limit: 1/s, metadata: {{[a]: b}}}}\n\
             - {{id: t, limit: 1/s, metadata: {{a: {}}}}}\n",
            "x".repeat(4_096)
        ),
        "f:3:33: `metadata` must be a map, not a string; write it like `metadata: {tier: gold}`\n\
         f:4:34: a name in `metadata` must be a string, not a list\n\
         f:5:33: metadata too large: 4100 bytes (maximum 4096)",
    );
}

#[test]
fn file_without_rules_is_refused() {
    assert_parsed("", "f:1:1: the file is empty; begin with `domain: NAME` and `rules:`");
    assert_parsed(
        "just a text",
        "f:1:1: a rule file must be a map, not a string; its keys are `domain`, `rules` and `domains`",
    );
    assert_parsed("domain: a", "f:1:1: missing `rules`; for an empty list write `rules: []`");
    assert_parsed("domain: a\nrules: {}", "f:2:8: `rules` must be a list, not a map; begin each item with `- `");
    assert_parsed("domain: a\nrules:", "");
}

#[test]
fn rules_of_one_domain_may_be_in_several_files() {
    let file = |name, text: &'static str| Source { name, text: text.as_bytes() };
    let first = file("one", "domain: a\nrules:\n- {id: r, limit: 1/s}\n");
    let second = file("two", "domain: a\nrules:\n- {id: s, limit: 1/s}\n");
    assert_eq!(Rules::read(&[first, second]).unwrap().len(), 2);
    assert_eq!(
        Rules::read(&[second, first, second]).unwrap_err().to_string(),
        "two:3:8: duplicate rule `s` in this domain; the first is at two:3:8"
    );
}

#[test]
fn mistakes_above_the_maximum_are_counted() {
    let text = format!("domain: a\nrules:\n{}", "- {}\n".repeat(80));
    let mistakes = Rules::read(&[Source { name: "f", text: text.as_bytes() }]).unwrap_err();
    assert_eq!((mistakes.as_slice().len(), mistakes.unlisted_count()), (100, 60));
    assert!(mistakes.to_string().ends_with("\nand 60 more"));
}

#[test]
fn rules_above_the_maximum_are_refused() {
    let text = format!("domain: a\nrules:\n{}", "- {}\n".repeat(MAX_RULES + 2));
    let mistakes = Rules::read(&[Source { name: "f", text: text.as_bytes() }]).unwrap_err();
    // Two mistakes for each checked rule, and one for the first unchecked rule.
    assert_eq!(mistakes.as_slice().len() + mistakes.unlisted_count(), 2 * MAX_RULES + 1);
}
