//! Imports random configuration trees of the reference Envoy service. Compares the charged limits with the tree walk
//! that the documentation of the service describes.

use crate::support;

use std::collections::HashSet;
use std::fmt::Write;

use proptest::prelude::*;
use support::poll_once;
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request};

#[derive(Clone, Debug)]
struct ConfigNode {
    key: &'static str,
    value: Option<&'static str>,
    limit: Option<ConfigLimit>,
    below: Vec<ConfigNode>,
}

/// A limit, identified by its capacity.
#[derive(Clone, Debug)]
struct ConfigLimit {
    name: Option<&'static str>,
    replaces: Vec<&'static str>,
    unlimited: bool,
}

const DESCRIPTOR_KEYS: &[&str] = &["k", "l"];
const CONFIG_VALUES: &[&str] = &["a", "ab", "b/a", "a*", "*b", "a*b", "*", "b/*a", "{a}"];
const REQUEST_VALUES: &[&str] = &["", "a", "b", "ab", "aab", "b/a", "b/xa", "a/b", "{a}"];
const LIMIT_NAMES: &[&str] = &["x", "y", "z"];

fn any_limit() -> impl Strategy<Value = ConfigLimit> {
    let name = prop::option::of(prop::sample::select(LIMIT_NAMES));
    let replaces = prop::collection::vec(prop::sample::select(LIMIT_NAMES), 0..2);
    (name, replaces, prop::bool::weighted(0.1)).prop_map(|(name, replaces, unlimited)| {
        let replaces = replaces.into_iter().filter(|replaced| Some(*replaced) != name).collect();
        ConfigLimit { name, replaces, unlimited }
    })
}

fn any_trees() -> impl Strategy<Value = Vec<ConfigNode>> {
    let node = |below: BoxedStrategy<Vec<ConfigNode>>| {
        let value = prop::option::weighted(0.8, prop::sample::select(CONFIG_VALUES));
        (prop::sample::select(DESCRIPTOR_KEYS), value, prop::option::weighted(0.7, any_limit()), below)
            .prop_map(|(key, value, limit, below)| ConfigNode { key, value, limit, below })
    };
    let level = |below: BoxedStrategy<Vec<ConfigNode>>, most: usize| {
        prop::collection::vec(node(below), 0..most).prop_map(|nodes| {
            // Two nodes with the same key and value are a mistake.
            let mut seen = HashSet::new();
            nodes.into_iter().filter(|node| seen.insert((node.key, node.value))).collect()
        })
    };
    let leaves = level(Just(Vec::new()).boxed(), 4).boxed();
    let middle = level(leaves, 4).boxed();
    level(middle, 5)
}

/// Writes the tree as a configuration file of Envoy's rate-limit service. Every limit has a different capacity, so that
/// a test can identify it.
fn write_config(nodes: &[ConfigNode], depth: usize, count: &mut u32, text: &mut String) {
    for node in nodes {
        let indent = "  ".repeat(depth);
        let _ = writeln!(text, "{indent}- key: {}", node.key);
        if let Some(value) = node.value {
            let _ = writeln!(text, "{indent}  value: '{value}'");
        }
        if let Some(limit) = &node.limit {
            *count += 1;
            let _ = match limit.unlimited {
                true => writeln!(text, "{indent}  rate_limit:\n{indent}    unlimited: true"),
                false => {
                    write!(
                        text,
                        "{indent}  rate_limit:\n{indent}    unit: day\n{indent}    requests_per_unit: {count}\n"
                    )
                }
            };
            if let Some(name) = limit.name {
                let _ = writeln!(text, "{indent}    name: {name}");
            }
            let replaces: Vec<String> = limit.replaces.iter().map(|name| format!("{{name: {name}}}")).collect();
            let _ = writeln!(text, "{indent}    replaces: [{}]", replaces.join(", "));
        }
        if !node.below.is_empty() {
            let _ = writeln!(text, "{indent}  descriptors:");
            write_config(&node.below, depth + 1, count, text);
        }
    }
}

/// Collects the limits of a tree in file order.
fn collect_limits(nodes: &[ConfigNode], found: &mut Vec<*const ConfigNode>) {
    for node in nodes {
        if node.limit.is_some() {
            found.push(std::ptr::from_ref(node));
        }
        collect_limits(&node.below, found);
    }
}

fn matches_stars(pattern: &[u8], value: &[u8]) -> bool {
    match pattern {
        [] => value.is_empty(),
        [b'*', rest @ ..] => (0..=value.len()).any(|taken| matches_stars(rest, &value[taken..])),
        [byte, rest @ ..] => {
            value.split_first().is_some_and(|(first, value)| first == byte && matches_stars(rest, value))
        }
    }
}

/// Returns the node at the end of the path that the entries select, if it has a limit.
fn select_node<'n>(nodes: &'n [ConfigNode], entries: &[(&str, &str)]) -> Option<&'n ConfigNode> {
    let ((key, value), rest) = entries.split_first()?;
    let beside = || nodes.iter().filter(|node| node.key == *key);
    let exactly = beside().find(|node| node.value.is_some_and(|own| !own.contains('*') && own == *value));
    let stars = || {
        beside().find(|node| {
            node.value.is_some_and(|own| own.contains('*') && matches_stars(own.as_bytes(), value.as_bytes()))
        })
    };
    let any = || beside().find(|node| node.value.is_none());
    let next = exactly.or_else(stars).or_else(any)?;
    if rest.is_empty() { next.limit.is_some().then_some(next) } else { select_node(&next.below, rest) }
}

/// Returns the capacities of the limits that a request is charged to, in order.
fn charged_limits(tree: &[ConfigNode], descriptors: &[Vec<(&str, &str)>]) -> Vec<u64> {
    let mut numbered = Vec::new();
    collect_limits(tree, &mut numbered);
    let met: Vec<&ConfigNode> = descriptors.iter().filter_map(|entries| select_node(tree, entries)).collect();
    let limit = |node: &ConfigNode| node.limit.clone().expect("every selected node has a limit");
    let replaced: HashSet<&str> = met.iter().flat_map(|node| limit(node).replaces).collect();
    let counts = |node: &&&ConfigNode| {
        let limit = limit(node);
        !limit.unlimited && !limit.name.is_some_and(|name| replaced.contains(name))
    };
    let place = |node: &&ConfigNode| {
        numbered.iter().position(|known| std::ptr::eq(*known, *node)).expect("numbered") as u64 + 1
    };
    let mut charged: Vec<u64> = met.iter().filter(counts).map(place).collect();
    charged.sort_unstable();
    charged
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn descriptors_are_charged_as_the_tree_walk_predicts(
        tree in any_trees(),
        requests in prop::collection::vec(
            prop::collection::vec(
                prop::collection::vec((prop::sample::select(DESCRIPTOR_KEYS), prop::sample::select(REQUEST_VALUES)), 1..4),
                1..4,
            ),
            8,
        ),
    ) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        write_config(&tree, 0, &mut 0, &mut text);
        let rules = Rules::read(&[Source { name: "e", text: text.as_bytes() }]);
        let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}\nin\n{text}"));
        // The model does not cover limits that cannot be imported. Other omitted settings do not affect decisions.
        let left_out = rules.left_out().map(ToString::to_string).unwrap_or_default();
        prop_assume!(!left_out.contains("this limit is not imported"));
        let engine = Engine::new(MemoryStore::new(1000).expect("a table")).expect("a table");
        engine.put(&rules).expect("supported limits");
        for descriptors in &requests {
            let attributes: Vec<Vec<Attribute<'_>>> =
                descriptors
                    .iter()
                    .map(|one| one.iter().map(|(key, value)| Attribute::new(*key, *value)).collect())
                    .collect();
            let items: Vec<Item<'_>> = attributes.iter().map(|attributes| Item::new(attributes)).collect();
            let mut decisions = Decisions::default();
            let decision = poll_once(engine.peek(&Request::new("d", &items), &mut decisions)).expect("a request");
            let mut found: Vec<u64> = decision.reports().map(|report| report.report.limit).collect();
            found.sort_unstable();
            prop_assert_eq!(found, charged_limits(&tree, descriptors), "{:?} by\n{}", descriptors, text);
        }
    }
}
