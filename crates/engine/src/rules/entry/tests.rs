use super::*;

fn source(text: &str) -> Source<'_> {
    Source { name: "f", text: text.as_bytes() }
}

fn assert_parses_to(text: &str, expected: &str) {
    let shown = match parse_rule(&source(text), "api", "a") {
        Ok(entry) => entry.json,
        Err(mistakes) => mistakes.to_string(),
    };
    assert_eq!(shown, expected, "for {text}");
}

#[test]
fn rule_is_read_with_or_without_its_id() {
    assert_parses_to("{limit: 1/s}", r#"{"id":"a","limit":"1/s"}"#);
    assert_parses_to("burst: 5\nlimit: 1/s\nid: a", r#"{"id":"a","limit":"1/s","burst":5}"#);
    assert_parses_to(
        "limit: 1/s\nid: b",
        "f:2:5: the `id` differs from the id `a` in the URL; omit `id`, or write the same",
    );
}

#[test]
fn mistakes_have_positions_in_the_given_text() {
    assert_parses_to("limit: 1/s\nburts: 3", "f:2:1: `burts` is not a key of a rule; did you mean `burst`?");
    assert_parses_to("[", "f:1:1: invalid YAML: unclosed bracket '['");
    assert_parses_to(
        "limit: 1/s\nwhen: {ip: {file: bad.txt}}",
        "f:2:19: cannot read `bad.txt`: the rules service cannot read files; write the values into the rule",
    );
    assert!(parse_rule(&source("3"), "api", "a").is_err());
    assert!(parse_rule(&source(""), "api", "a").is_err());
    assert!(parse_rule(&source("{limit: 1/s}"), "a b", "a").is_err());
    assert!(parse_rule(&source("{limit: 1/s}"), "api", "").is_err());
}

#[test]
fn numbers_and_booleans_are_stored_as_given() {
    assert_parses_to(
        r#"{"status": 503, "limit": "5/s", "when": {"v": ["1.10", "007", "1", true, "x y", "-0", 99999999999999999999]}}"#,
        r#"{"id":"a","when":{"v":["1.10","007",1,true,"x y","-0","99999999999999999999"]},"limit":"5/s","status":503}"#,
    );
}

#[test]
fn odd_characters_survive_a_round_trip() {
    for odd in [
        "\u{0}",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{ffff}",
        "a\tb\nc",
        "\"\\",
        "😀",
        "'; DROP TABLE rules; --",
        " ",
        "",
    ] {
        let mut text = String::from("{\"limit\":\"1/s\",\"when\":{\"v\":{\"equals\":");
        write_quoted(odd, &mut text);
        text.push_str("}}}");
        let entry = parse_rule(&source(&text), "api", "a").unwrap();
        let again = parse_rule(&source(&entry.json), "api", "a").unwrap();
        assert_eq!(entry, again);
        let yaml = to_yaml([("api", [entry.json.as_str()])]).unwrap();
        assert_eq!(split_files(&[source(&yaml)]).unwrap().entries, [entry], "for {odd:?} in {yaml}");
    }
}

#[test]
fn files_are_split_into_entries_and_joined() {
    let text =
        "domains:\n- domain: b\n  rules:\n  - {id: y, limit: 1/s}\n  - {id: x, limit: 2/s}\n- {domain: a, rules: []}\n";
    let taken = split_files(&[source(text)]).unwrap();
    assert_eq!(taken.domains, ["b", "a"]);
    let rules: Vec<&str> = taken.entries.iter().map(|entry| &*entry.json).collect();
    assert_eq!(rules, [r#"{"id":"y","limit":"1/s"}"#, r#"{"id":"x","limit":"2/s"}"#]);
    let yaml = to_yaml([("b", rules.clone()), ("a", Vec::new())]).unwrap();
    let formatted = super::super::format(&source(&yaml)).unwrap();
    assert_eq!(formatted, yaml);
    assert_eq!(split_files(&[source(&yaml)]).unwrap().entries, taken.entries);
    let json = to_json([("b", rules)]);
    assert_eq!(split_files(&[source(&json)]).unwrap().entries, taken.entries);
    assert!(Rules::read(&[source(&to_json(Vec::<(&str, Vec<&str>)>::new()))]).unwrap().is_empty());
    let nothing = to_yaml(Vec::<(&str, Vec<&str>)>::new()).unwrap();
    assert!(split_files(&[source(&nothing)]).unwrap().domains.is_empty(), "{nothing}");
}

#[test]
fn envoy_files_become_entries() {
    let text =
        "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}\n";
    let taken = split_files(&[source(text)]).unwrap();
    assert_eq!(taken.entries[0].id, "remote_address");
}

#[test]
fn overrides_are_parsed_separately_from_their_rule() {
    let rule = r#"{"id":"a","per":["tenant"],"limit":"10/s"}"#;
    let given =
        parse_override_for_value(&source("limit: 100/s\nuntil: 2030-01-01T00:00:00Z\nburst: 200"), rule, "acme")
            .unwrap();
    assert_eq!(given.attribute, "tenant");
    assert_eq!(given.effect, r#"{"limit":"100/s","burst":200}"#);
    let one =
        EntryOverride { attribute: "tenant", value: "acme", effect: &given.effect, until: given.until.as_deref() };
    assert_eq!(
        with_overrides(rule, &[one]).unwrap(),
        r#"{"id":"a","per":["tenant"],"limit":"10/s","overrides":[{"when":{"tenant":{"equals":"acme"}},"limit":"100/s","burst":200,"until":"2030-01-01T00:00:00Z","set_by":"api"}]}"#
    );
    let wrong = |text: &str, rule: &str| parse_override_for_value(&source(text), rule, "acme").unwrap_err().to_string();
    assert!(wrong("limit: 100/s\nwhen: {a: b}", rule).contains("f:2:1: `when` is not allowed here"));
    assert!(wrong("limit: 100/s\nset_by: api", rule).contains("f:2:1: `set_by` is not allowed here"));
    assert!(wrong("limit: x", rule).starts_with("f:1:8: "));
    assert!(wrong("until: soon\nunlimited: true", rule).starts_with("f:1:8: `soon` is not a time"));
    assert!(wrong("limit: 1/s", r#"{"id":"a","limit":"10/s"}"#).contains("has no `per`"));
    assert_eq!(
        wrong("limit: 1/s", r#"{"id":"a","per":["api_key or client_ip"],"limit":"10/s"}"#),
        "f:1:1: the rule counts by `api_key or client_ip`, so it is ambiguous whose value `acme` is; name the attribute like \
         `attribute: api_key`, on the command line `--attribute api_key`"
    );
    let two = r#"{"id":"a","when":{"path":"/{shop}"},"per":["shop","user"],"limit":"10/s"}"#;
    assert_eq!(
        wrong("limit: 1/s", two),
        "f:1:1: the rule counts first by `shop`, a part of an attribute, which cannot be compared; name the attribute like \
         `attribute: user`, on the command line `--attribute user`"
    );
    assert_eq!(
        parse_override_for_value(&source("attribute: user\nlimit: 1/s"), two, "acme").unwrap().attribute,
        "user"
    );
    let calendar = r#"{"id":"a","per":["user"],"limit":"10/day","algorithm":"fixed_window","zone":"Europe/Paris"}"#;
    assert_eq!(
        wrong("limit: 5/s", calendar),
        "f:1:8: `5/s` is not a calendar window: such windows are minutes, hours, days, weeks, months and years, not seconds; \
         the rule follows the calendar; write it like 100/day, or add another `algorithm`, like `algorithm: token_bucket`"
    );
    assert!(parse_override_for_value(&source("limit: 5/s\nalgorithm: token_bucket"), calendar, "acme").is_ok());
    assert!(
        with_overrides(r#"{"id":"a","limits":["1/s","5/m"]}"#, &[EntryOverride { effect: r#"{"burst":3}"#, ..one }])
            .is_err()
    );
}
