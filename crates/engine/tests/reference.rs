//! The page `docs/rules.md` equals the generated page, and every example in it loads. `BLESS=1` rewrites the page.

use crate::support;

use support::test_bench;
use tollgate_engine::rules::{Rules, Source, keys, reference_page};
use tollgate_engine::{Engine, MemoryStore};

const PAGE_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");

#[test]
fn page_is_generated_from_the_definitions() {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE_PATH, reference_page()).expect("the page can be written");
    }
    let page = std::fs::read_to_string(PAGE_PATH).unwrap_or_default();
    assert!(page == reference_page(), "docs/rules.md is stale: run this test with BLESS=1");
}

#[test]
fn every_example_loads() {
    let page = reference_page();
    let examples: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() > 8, "only {} examples", examples.len());
    for example in examples {
        load_rules(example);
        let rules = Rules::read(&[Source { name: "example", text: example.as_bytes() }]).expect(example);
        assert_eq!(test_bench("").engine.warnings(&rules), [], "{example}");
    }
}

#[test]
fn every_key_has_an_example_that_uses_it() {
    let tables = [
        keys::RULE_KEYS,
        keys::LIMIT_KEYS,
        keys::LIMIT_OPTIONS,
        keys::CONDITION_KEYS,
        keys::OVERRIDE_KEYS,
        keys::COST_KEYS,
        keys::DELAY_KEYS,
        keys::BAN_KEYS,
        keys::SCHEDULE_KEYS,
    ];
    for key in tables.into_iter().flatten() {
        // The key `file` has no example, because an example would need a file.
        if key.name == "file" {
            continue;
        }
        assert!(key.example.contains(&format!("{}:", key.name)), "the example of {} does not use it", key.name);
        load_rules(&format!("domain: d\nrules:\n- {{id: example-id-1, unlimited: true}}\n- {}\n", key.example));
    }
}

#[test]
fn export_costs_fifty_of_a_shared_quota() {
    let page = reference_page();
    let (_, rest) = page.split_once("domain: weighed\nrules:\n").expect("the example");
    let (rules, _) = rest.split_once("```").expect("its end");
    let mut bench = test_bench(rules);
    assert!(bench.engine.warnings(&support::parse_rules(rules)).is_empty());
    let call = [("path", "/v1/list"), ("method", "GET"), ("api_key", "k")];
    let export = [("path", "/v1/export"), ("method", "GET"), ("api_key", "k")];
    let allowed = |bench: &mut support::TestBench, attributes: &[(&str, &str)], cost| {
        bench.decide(attributes, cost, |decision| decision.is_admitted())
    };
    assert!(allowed(&mut bench, &call, None) && allowed(&mut bench, &export, None));
    assert_eq!(bench.remaining(&export), [8, 949], "the remaining amounts of the rate and of the quota");
    assert!(!allowed(&mut bench, &export, Some(50)), "a cost stated by the request applies to the rate too");
    assert!(allowed(&mut bench, &[("path", "/v1/list"), ("method", "POST"), ("api_key", "k")], None));
    assert_eq!(bench.remaining(&call), [7, 947]);
}

#[test]
fn gateway_states_the_cost_in_an_attribute() {
    let page = reference_page();
    let (_, rest) = page.split_once("domain: weighed-by-gateway\nrules:\n").expect("the example");
    let (rules, _) = rest.split_once("```").expect("its end");
    let mut bench = test_bench(rules);
    let mut left = |weight: &str| {
        let attributes = [("api_key", "k"), ("weight", weight)];
        bench.decide(&attributes, None, |decision| assert!(decision.is_admitted()));
        bench.remaining(&attributes)[0]
    };
    assert_eq!((left("50"), left("1e9")), (950, 850), "an invalid value counts as the maximum");
}

fn load_rules(text: &str) {
    let rules = Rules::read(&[Source { name: "example", text: text.as_bytes() }]);
    let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}\nin\n{text}"));
    let engine = Engine::new(MemoryStore::new(100).expect("a table")).expect("a table");
    engine.put(&rules).unwrap_or_else(|mistakes| panic!("{mistakes}\nin\n{text}"));
}
