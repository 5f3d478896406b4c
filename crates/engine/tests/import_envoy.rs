//! Loads configurations of the reference Envoy rate-limit service unchanged. Many are examples of its documentation,
//! with the outcomes stated there.
#![allow(clippy::unwrap_used)]

use crate::support;

use std::sync::Arc;

use support::{Memory, START, memory_store, poll_once};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate_engine::rules::{ImportedRules, Metadata, Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, Request};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;

type DescriptorEntries<'a> = &'a [(&'a str, &'a str)];

struct ImportedService {
    engine: Engine<Memory, Memory>,
    clock: Arc<ManualClock>,
    domain: String,
}

impl ImportedService {
    /// Loads a file directly and through its import, and asserts that both give the same rules.
    fn new(config: &str) -> Self {
        let source = Source { name: "envoy.yaml", text: config.as_bytes() };
        let direct = Rules::read(&[source]).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let imported = ImportedRules::read(&source, None, "").unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let again = Rules::read(&[Source { name: "imported.yaml", text: imported.yaml.as_bytes() }]).unwrap();
        let ids = |rules: &Rules| -> Vec<String> {
            rules.domains()[0]
                .rules()
                .iter()
                .map(|rule| format!("{} {:?} {:?} {:?}", rule.id(), rule.when(), rule.limits(), rule.metadata()))
                .collect()
        };
        assert_eq!(ids(&direct), ids(&again));
        let clock = Arc::new(ManualClock::at(START));
        let engine = Engine::with_fallback(memory_store(&clock), memory_store(&clock)).with_clock(clock.clone());
        engine.put(&direct).unwrap();
        Self { engine, clock, domain: direct.domains()[0].name().to_owned() }
    }

    /// Sends one request with all descriptors. Returns whether it is allowed.
    fn is_allowed_with(&self, descriptors: &[DescriptorEntries<'_>]) -> bool {
        let attributes: Vec<Vec<Attribute<'_>>> = descriptors
            .iter()
            .map(|attributes| attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect())
            .collect();
        let items: Vec<Item<'_>> = attributes.iter().map(|attributes| Item::new(attributes)).collect();
        let request = Request::new(&self.domain, &items);
        poll_once(self.engine.check(&request, &mut Decisions::default())).unwrap().is_admitted()
    }

    /// Sends up to [`ABOVE_EVERY_LIMIT`] requests with one descriptor, until one is refused. Returns the number of
    /// allowed requests.
    fn count_passing(&self, descriptor: DescriptorEntries<'_>) -> usize {
        (0..ABOVE_EVERY_LIMIT).take_while(|_| self.is_allowed_with(&[descriptor])).count()
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(Nanos::from_secs(seconds));
    }
}

/// A request count above every limit in these tests.
const ABOVE_EVERY_LIMIT: usize = 700;

#[test]
fn each_listed_value_has_its_limit_and_others_have_none() {
    let service = ImportedService::new(
        "domain: shop_db\ndescriptors:\n- {key: table, value: orders, rate_limit: {unit: second, requests_per_unit: 50}}\n\
         - {key: table, value: other, rate_limit: {unit: SECOND, requests_per_unit: 60}}\n",
    );
    assert_eq!(service.count_passing(&[("table", "orders")]), 50);
    assert_eq!(service.count_passing(&[("table", "other")]), 60);
    assert_eq!(service.count_passing(&[("table", "unnamed")]), ABOVE_EVERY_LIMIT, "a value without a limit");
    service.advance(1);
    assert_eq!(service.count_passing(&[("table", "orders")]), 50, "the next window begins after a second");
}

#[test]
fn key_without_a_value_counts_each_value_separately() {
    let service = ImportedService::new(
        "domain: mail\ndescriptors:\n- key: kind\n  value: advert\n  descriptors:\n  - {key: number, rate_limit: {unit: day, requests_per_unit: 5}}\n\
         - {key: number, rate_limit: {unit: day, requests_per_unit: 100}}\n",
    );
    assert_eq!(service.count_passing(&[("kind", "advert"), ("number", "1")]), 5);
    assert_eq!(service.count_passing(&[("kind", "advert"), ("number", "2")]), 5);
    assert_eq!(service.count_passing(&[("number", "1")]), 100, "each value has its own counter");
    assert_eq!(service.count_passing(&[("kind", "advert")]), ABOVE_EVERY_LIMIT, "an inner level without a limit");
    assert_eq!(service.count_passing(&[("kind", "news"), ("number", "1")]), ABOVE_EVERY_LIMIT);
    assert_eq!(service.count_passing(&[("number", "3"), ("kind", "advert")]), ABOVE_EVERY_LIMIT, "the order counts");
}

#[test]
fn request_must_fit_the_limits_of_all_its_descriptors() {
    let service = ImportedService::new(
        "domain: mail\ndescriptors:\n- key: kind\n  value: advert\n  descriptors:\n  - {key: number, rate_limit: {unit: day, requests_per_unit: 5}}\n\
         - {key: number, rate_limit: {unit: day, requests_per_unit: 7}}\n",
    );
    let both: [DescriptorEntries<'_>; 2] = [&[("kind", "advert"), ("number", "1")], &[("number", "1")]];
    assert_eq!((0..ABOVE_EVERY_LIMIT).take_while(|_| service.is_allowed_with(&both)).count(), 5);
    assert_eq!(service.count_passing(&[("number", "1")]), 2, "admitted requests are charged, refused ones are not");
}

#[test]
fn most_specific_descriptor_wins() {
    let service = ImportedService::new(
        "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}\n\
         - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}\n",
    );
    assert_eq!(service.count_passing(&[("remote_address", "50.0.0.1")]), 10);
    assert_eq!(service.count_passing(&[("remote_address", "50.0.0.2")]), 10);
    assert_eq!(service.count_passing(&[("remote_address", "50.0.0.5")]), 0, "blocked");
}

#[test]
fn request_matches_only_descriptors_with_the_same_number_of_entries() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- {key: key, value: value, rate_limit: {unit: second, requests_per_unit: 3}}\n",
    );
    assert_eq!(service.count_passing(&[("key", "value"), ("subkey", "subvalue")]), ABOVE_EVERY_LIMIT);
    assert_eq!(service.count_passing(&[("key", "value")]), 3);
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- key: key\n  value: value\n  descriptors:\n  - {key: subkey, rate_limit: {unit: second, requests_per_unit: 3}}\n",
    );
    assert_eq!(service.count_passing(&[("key", "value"), ("subkey", "subvalue")]), 3);
    assert_eq!(service.count_passing(&[("key", "value")]), ABOVE_EVERY_LIMIT);
}

#[test]
fn matching_does_not_backtrack_from_a_specific_branch() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
         - key: a\n  value: x\n  descriptors:\n  - {key: c, rate_limit: {unit: hour, requests_per_unit: 4}}\n",
    );
    assert_eq!(service.count_passing(&[("a", "y"), ("b", "1")]), 2);
    assert_eq!(
        service.count_passing(&[("a", "x"), ("b", "1")]),
        ABOVE_EVERY_LIMIT,
        "the branch `a: x` was selected, and has no `b`"
    );
    assert_eq!(service.count_passing(&[("a", "x"), ("c", "1")]), 4);
    assert_eq!(service.count_passing(&[("a", "y"), ("c", "1")]), ABOVE_EVERY_LIMIT);
}

#[test]
fn unlimited_descriptor_has_no_limit() {
    let service = ImportedService::new(
        "domain: internal\ndescriptors:\n- {key: ldap, rate_limit: {unlimited: true}}\n- {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}\n",
    );
    assert_eq!(service.count_passing(&[("ldap", "any")]), ABOVE_EVERY_LIMIT);
    assert_eq!(service.count_passing(&[("azure", "any")]), 100);
}

#[test]
fn shadow_mode_admits_every_request() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- key: service\n  descriptors:\n\
         \x20 - {key: user, value: a, rate_limit: {requests_per_unit: 10, unit: second}, shadow_mode: true}\n\
         \x20 - {key: user, value: b, rate_limit: {requests_per_unit: 20, unit: second}}\n",
    );
    assert_eq!(service.count_passing(&[("service", "auth"), ("user", "a")]), ABOVE_EVERY_LIMIT);
    assert_eq!(service.count_passing(&[("service", "auth"), ("user", "b")]), 20);
    assert_eq!(service.count_passing(&[("service", "shop"), ("user", "b")]), 20, "each service has its own counter");
}

#[test]
fn stars_match_anywhere_in_a_value() {
    let limit = |value: &str| {
        ImportedService::new(&format!(
            "domain: d\ndescriptors:\n- {{key: k, value: '{value}', rate_limit: {{unit: minute, requests_per_unit: 2}}}}\n"
        ))
    };
    for (value, matching, others) in [
        ("value*", &["value1", "value", "valueXYZ", "value/with/slashes"][..], &["valu", "avalue"][..]),
        ("/api/*/action", &["/api/123/action", "/api/a/b/action", "/api//action"], &["/api/123/other", "/api/action"]),
        ("/api/*/r/*/end", &["/api/v1/r/1/end", "/api/v/w/r/x/y/end"], &["/api/v1/r/end", "/api/r/1/end"]),
        ("*tail", &["tail", "a/b/tail", "xtail"], &["tails"]),
        ("a*b*", &["ab", "axb/c", "a/b/c"], &["ac", "ba"]),
    ] {
        for text in matching {
            assert_eq!(limit(value).count_passing(&[("k", text)]), 2, "{value} matches {text}");
        }
        for text in others {
            assert_eq!(limit(value).count_passing(&[("k", text)]), ABOVE_EVERY_LIMIT, "{value} does not match {text}");
        }
    }
}

#[test]
fn exact_values_precede_stars_and_stars_keep_their_order() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n\
         - {key: k, value: ab*, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
         - {key: k, value: a*, rate_limit: {unit: hour, requests_per_unit: 3}}\n\
         - {key: k, value: abc, rate_limit: {unit: hour, requests_per_unit: 4}}\n\
         - {key: k, value: '{x}', rate_limit: {unit: hour, requests_per_unit: 0}}\n",
    );
    for (value, expected) in [("z", 1), ("abz", 2), ("az", 3), ("abc", 4), ("{x}", 0), ("{y}", 1)] {
        assert_eq!(service.count_passing(&[("k", value)]), expected, "{value}");
    }
}

#[test]
fn values_share_one_counter_only_with_share_threshold() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}\n\
         - {key: own, value: own/*, share_threshold: false, rate_limit: {unit: hour, requests_per_unit: 10}}\n",
    );
    assert!((0..5).all(|_| service.is_allowed_with(&[&[("files", "files/a.pdf")]])));
    assert_eq!(service.count_passing(&[("files", "files/b.csv")]), 5);
    assert_eq!(service.count_passing(&[("files", "files/c.txt")]), 0);
    assert_eq!(service.count_passing(&[("own", "own/a.pdf")]), 10);
    assert_eq!(service.count_passing(&[("own", "own/b.csv")]), 10);
}

#[test]
fn share_threshold_applies_to_outer_levels() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- key: route\n  value: api/*\n  share_threshold: true\n  descriptors:\n  - {key: method, rate_limit: {unit: minute, requests_per_unit: 6}}\n",
    );
    assert!(service.is_allowed_with(&[&[("route", "api/v1"), ("method", "GET")]]));
    assert_eq!(service.count_passing(&[("route", "api/v2"), ("method", "GET")]), 5);
    assert_eq!(service.count_passing(&[("route", "api/v2"), ("method", "PUT")]), 6);
}

#[test]
fn windows_equal_the_windows_of_the_reference_service() {
    for (unit, seconds) in [
        ("second", 1),
        ("minute", 60),
        ("hour", 3600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ] {
        let service = ImportedService::new(&format!(
            "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}\n"
        ));
        let left = seconds - START / 1_000_000_000 % seconds;
        assert_eq!(service.count_passing(&[("k", "v")]), 1);
        service.advance(left - 1);
        assert_eq!(service.count_passing(&[("k", "v")]), 0, "{unit}: the window lasts another second");
        service.advance(1);
        assert_eq!(service.count_passing(&[("k", "v")]), 1, "{unit}");
    }
}

/// Sends up to [`ABOVE_EVERY_LIMIT`] requests with all these descriptors, until one is refused. Returns the number of
/// allowed requests.
fn count_passing_all(service: &ImportedService, descriptors: &[DescriptorEntries<'_>]) -> usize {
    (0..ABOVE_EVERY_LIMIT).take_while(|_| service.is_allowed_with(descriptors)).count()
}

#[test]
fn matching_limit_replaces_named_limits_without_charging_them() {
    let service = ImportedService::new(
        "domain: shop\ndescriptors:\n\
         - {key: area, value: read, descriptors: [{key: user, value: ann, rate_limit: {name: reading, requests_per_unit: 5, unit: second}}]}\n\
         - {key: page, value: search, descriptors: [{key: user, value: ann, rate_limit: {replaces: [{name: reading}], requests_per_unit: 10, unit: second}}]}\n",
    );
    let reading: DescriptorEntries<'_> = &[("area", "read"), ("user", "ann")];
    let searching: DescriptorEntries<'_> = &[("page", "search"), ("user", "ann")];
    assert_eq!(count_passing_all(&service, &[reading, searching]), 10, "only the replacing limit counts");
    assert_eq!(service.count_passing(reading), 5, "the replaced limit was not charged");
    assert_eq!(service.count_passing(searching), 0);
    service.advance(1);
    assert_eq!(service.count_passing(reading), 5, "alone it applies");
    assert_eq!(
        count_passing_all(&service, &[searching, reading]),
        10,
        "the order does not matter, even if a replaced limit is exhausted"
    );
}

#[test]
fn limits_are_replaced_by_name() {
    let limit = |key: &str, limit: &str, more: &str| format!("- {{key: {key}, rate_limit: {{{limit}}}{more}}}\n");
    let config = format!(
        "domain: d\ndescriptors:\n{}{}{}{}{}{}{}",
        limit("a", "name: x, unit: hour, requests_per_unit: 2", ""),
        limit("b", "name: x, unit: hour, requests_per_unit: 3", ""),
        limit("none", "name: x, unit: hour, requests_per_unit: 0", ""),
        limit("shadow", "replaces: [{name: x}], unit: hour, requests_per_unit: 0", ", shadow_mode: true"),
        limit("free", "replaces: [{name: x}, {name: y}], unlimited: true", ""),
        limit("this", "name: y, replaces: [{name: z}], unit: hour, requests_per_unit: 5", ""),
        limit("that", "name: z, replaces: [{name: y}], unit: hour, requests_per_unit: 6", ""),
    );
    let service = ImportedService::new(&config);
    let [a, b, none, shadow, free, this, that]: [DescriptorEntries<'_>; 7] = [
        &[("a", "1")],
        &[("b", "1")],
        &[("none", "1")],
        &[("shadow", "1")],
        &[("free", "1")],
        &[("this", "1")],
        &[("that", "1")],
    ];
    assert_eq!(
        count_passing_all(&service, &[a, b, free]),
        ABOVE_EVERY_LIMIT,
        "all limits with the name are replaced, even by an unlimited one"
    );
    assert_eq!(count_passing_all(&service, &[none, shadow]), ABOVE_EVERY_LIMIT, "a shadow limit replaces too");
    assert_eq!(service.count_passing(none), 0);
    assert_eq!(
        count_passing_all(&service, &[this, that]),
        ABOVE_EVERY_LIMIT,
        "limits that replace each other are both left out"
    );
    assert_eq!(count_passing_all(&service, &[this, that, free]), ABOVE_EVERY_LIMIT);
    assert_eq!(count_passing_all(&service, &[a, b]), 2);
    assert_eq!((service.count_passing(this), service.count_passing(that)), (5, 6));
}

#[test]
fn repeated_key_is_distinguished_by_its_position() {
    let service = ImportedService::new(
        "domain: d\ndescriptors:\n- key: header_match\n  value: get\n  descriptors:\n\
         \x20 - {key: header_match, value: slow, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
         \x20 - {key: header_match, rate_limit: {unit: hour, requests_per_unit: 3}}\n\
         - {key: header_match, value: slow, rate_limit: {unit: hour, requests_per_unit: 4}}\n",
    );
    assert_eq!(service.count_passing(&[("header_match", "get"), ("header_match", "slow")]), 2);
    assert_eq!(
        service.count_passing(&[("header_match", "slow"), ("header_match", "get")]),
        ABOVE_EVERY_LIMIT,
        "the order counts"
    );
    assert_eq!(service.count_passing(&[("header_match", "get"), ("header_match", "a")]), 3);
    assert_eq!(
        service.count_passing(&[("header_match", "get"), ("header_match", "b")]),
        3,
        "each second value has its own counter"
    );
    assert_eq!(service.count_passing(&[("header_match", "get"), ("header_match", "get")]), 3);
    assert_eq!(service.count_passing(&[("header_match", "slow")]), 4);
    assert_eq!(
        service.count_passing(&[("header_match#2", "slow"), ("header_match", "get")]),
        ABOVE_EVERY_LIMIT,
        "clients cannot send numbered names"
    );
}

#[test]
fn one_quota_with_capacity_is_enough_and_other_limits_apply() {
    let config = "domain: d\ndescriptors:\n- {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}\n\
         - {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}\n- {key: c, rate_limit: {unit: hour, requests_per_unit: 9}}\n";
    assert_eq!(import_report(config), "");
    let [a, b, c]: [DescriptorEntries<'_>; 3] = [&[("a", "x")], &[("b", "x")], &[("c", "x")]];
    let service = ImportedService::new(config);
    assert_eq!(count_passing_all(&service, &[a, b, c]), 5, "the larger of the two quotas");
    assert_eq!(
        (service.count_passing(a), service.count_passing(b), service.count_passing(c)),
        (0, 0, 4),
        "a single quota applies"
    );
    let service = ImportedService::new(config);
    assert_eq!(service.count_passing(c), 9);
    assert!(!service.is_allowed_with(&[a, b, c]), "a limit that is not a quota is exceeded");
    assert_eq!((service.count_passing(a), service.count_passing(b)), (2, 5));
}

fn import_report(config: &str) -> String {
    let source = Source { name: "e", text: config.as_bytes() };
    let mistakes = match Rules::read(&[source]) {
        Ok(rules) => rules.left_out().map(ToString::to_string).unwrap_or_default(),
        Err(mistakes) => format!("refused\n{mistakes}"),
    };
    let imported = match ImportedRules::read(&source, None, "") {
        Ok(imported) => imported.left_out.map(|left_out| left_out.to_string()).unwrap_or_default(),
        Err(mistakes) => format!("refused\n{mistakes}"),
    };
    assert_eq!(mistakes, imported, "both ways report the same mistakes");
    mistakes
}

#[test]
fn rule_has_the_metadata_of_its_descriptor() {
    let service = ImportedService::new(
        "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {x: {y: 1, z: [b]}}}]}",
    );
    let attributes = [Attribute::new("a", "v")];
    let items = [Item::new(&attributes)];
    let mut decisions = Decisions::default();
    let decision = poll_once(service.engine.check(&Request::new("d", &items), &mut decisions)).unwrap();
    let text = |text: &str| Metadata::Text(text.into());
    let inner = [("y".into(), text("1")), ("z".into(), Metadata::List([text("b")].into()))];
    let expected = Metadata::Map([("x".into(), Metadata::Map(inner.into()))].into());
    assert_eq!(decision.rule_matches().map(|matched| matched.metadata).collect::<Vec<_>>(), [Some(&expected)]);
}

#[test]
fn settings_that_are_not_imported_are_reported() {
    let mut page = Page::default();
    for config in [
        "domain: d\ndescriptors:\n- key: a\n  detailed_metric: true\n  value_to_metric: true\n  quota_mode: true\n  rate_limit:\n    \
         unit: second\n    requests_per_unit: 1\n    name: one\n    replaces: [{name: two}]\n- key: r#2\n  rate_limit: {unit: day, requests_per_unit: 1}\n\
         - {key: s, quota_mode: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n",
        "domain: d\ndescriptors:\n- {key: a, value: '*'}\n- {key: a, rate_limit: {unlimited: true}}\n",
    ] {
        let report = import_report(config);
        assert!(!report.is_empty() && !report.starts_with("refused"), "{config}\n{report}");
        page.add_case(config, &report);
    }
    golden!("import/envoy_not_imported", page);
    let config = "domain: d\ndescriptors:\n- {key: a, detailed_metric: false, rate_limit: {unlimited: true}}\n";
    assert_eq!(import_report(config), "");
}

#[test]
fn files_with_mistakes_are_refused() {
    let mut page = Page::default();
    let mut check = |config: &str| {
        let report = import_report(config);
        assert!(report.starts_with("refused"), "{config}\n{report}");
        page.add_case(config, &report);
    };
    check("descriptors: []");
    check("domain: d\ndescriptors: 7");
    for descriptors in [
        "- 7",
        "- value: 7",
        "- kye: 7",
        "- {key: a, value: b}\n- {key: a, value: b}",
        "- {key: a, rate_limit: {unit: secnd, requests_per_unit: 1}}",
        "- {key: a, rate_limit: {unit: day}}",
        "- {key: a, rate_limit: {requests_per_unit: 1}}",
        "- {key: a, rate_limit: {unit: day, requests_per_unit: -1}}",
        "- {key: a, rate_limit: {unlimited: true, unit: day}}",
        "- {key: a, value: b, share_threshold: true}",
        "- {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}}",
        "- {key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{}]}}",
        "- {key: a, shadow_mode: maybe}",
    ] {
        check(&format!("domain: d\ndescriptors:\n{descriptors}"));
    }
    golden!("import/envoy_mistakes", page);
}

#[test]
fn large_trees_are_loaded_or_refused_quickly() {
    let mut config =
        String::from("domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n");
    for n in 0..5_000 {
        config += &format!("- {{key: k, value: v{n}, rate_limit: {{unit: hour, requests_per_unit: 2}}}}\n");
    }
    let service = ImportedService::new(&config);
    assert_eq!(service.count_passing(&[("k", "v4999")]), 2);
    assert_eq!(service.count_passing(&[("k", "v5000")]), 1);
    let stars: String = (0..300)
        .map(|n| format!("- {{key: k, value: '{n}*', rate_limit: {{unit: hour, requests_per_unit: 2}}}}\n"))
        .collect();
    assert!(
        import_report(&format!("domain: d\ndescriptors:\n{stars}"))
            .contains("too many values with stars for `k` (maximum 256)")
    );
    let value = |n: usize| format!("{n}{}", "a".repeat(900));
    let exact: String =
        (0..2_000).map(|n| format!("- {{key: k, value: {}, rate_limit: {{unlimited: true}}}}\n", value(n))).collect();
    let stars: String = (0..250)
        .map(|n| {
            format!(
                "- {{key: k, value: '*{}{n}a', rate_limit: {{unit: hour, requests_per_unit: 2}}}}\n",
                "a*".repeat(4)
            )
        })
        .collect();
    let config = format!("domain: d\ndescriptors:\n{exact}{stars}");
    let source = Source { name: "e", text: config.as_bytes() };
    assert_eq!(Rules::read(&[source]).unwrap().len(), 2_250, "loaded directly");
    let refused = ImportedRules::read(&source, None, "").unwrap_err().to_string();
    assert!(
        refused.starts_with("e:1:1: the imported rules are too large: ") && refused.ends_with("(maximum 16777216)"),
        "{refused}"
    );
    let mut deep = String::from("domain: d\ndescriptors:\n- key: k\n  descriptors:\n");
    (0..1_500).for_each(|n| deep += &format!("  - {{key: l{n}, rate_limit: {{unit: hour, requests_per_unit: 2}}}}\n"));
    (0..1_500).for_each(|n| deep += &format!("- {{key: k, value: v{n}}}\n"));
    assert!(import_report(&deep).contains("too many conditions (maximum 1000000)"));
}
