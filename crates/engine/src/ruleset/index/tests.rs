use super::*;
use crate::rules::{Pattern, Rule, Rules, Source, Test};
use proptest::prelude::*;

fn parse_rules(rules: &str) -> Vec<Rule> {
    let text = format!("domain: d\nrules:\n{rules}");
    let rules = Rules::read(&[Source { name: "f", text: text.as_bytes() }]).expect("valid rules");
    rules.domains()[0].rules().to_vec()
}

fn index_of(rules: &[Rule], first: u32) -> Index {
    let index_entries: Vec<IndexEntry<'_>> =
        rules.iter().map(|rule| IndexEntry { when: rule.when(), names: Vec::new() }).collect();
    Index::new(&index_entries, first)
}

fn find_rules(index: &Index, attributes: &[(&str, &str)]) -> Vec<u32> {
    let attributes: Vec<Attribute<'_>> = attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
    let mut matched = CandidateRules::default();
    index.find(&attributes, &mut matched);
    matched.rules().to_vec()
}

#[test]
fn request_matches_every_rule_whose_conditions_hold() {
    let rules = parse_rules(
        "- {id: 0, limit: 1/s}\n\
         - {id: 1, limit: 1/s, when: {method: GET}}\n\
         - {id: 2, limit: 1/s, when: {method: [GET, POST], path: /v1/**}}\n\
         - {id: 3, limit: 1/s, when: {key: {present: true}}}\n\
         - {id: 4, limit: 1/s, when: {key: {present: false}, method: GET}}\n\
         - {id: 5, limit: 1/s, when: {key: {present: false}}}\n\
         - {id: 6, limit: 1/s, when: {method: ['*', GET]}}\n",
    );
    let index = index_of(&rules, 0);
    assert_eq!(find_rules(&index, &[]), [0, 5]);
    assert_eq!(find_rules(&index, &[("method", "GET")]), [0, 1, 4, 5, 6]);
    assert_eq!(find_rules(&index, &[("path", "/v1/x"), ("method", "POST")]), [0, 2, 5, 6]);
    assert_eq!(find_rules(&index, &[("method", "GET"), ("key", "")]), [0, 1, 3, 6]);
    assert_eq!(find_rules(&index, &[("method", "PUT"), ("method", "GET"), ("key", "k")]), [0, 1, 3, 6]);
}

#[test]
fn anchor_is_the_condition_that_the_fewest_rules_share() {
    let mut text = String::new();
    for n in 0..100 {
        text += &format!("- {{id: r{n}, limit: 1/s, when: {{method: GET, tenant: t{n}, path: /**}}}}\n");
    }
    let index = index_of(&parse_rules(&text), 0);
    let (method, path) = (index.attribute_id("method").unwrap(), index.attribute_id("path").unwrap());
    assert_eq!(index.lookup.get(value_space_of(method), b"GET"), None);
    assert!(index.attributes[path as usize].paths.is_none());
    assert_eq!(find_rules(&index, &[("method", "GET"), ("tenant", "t7"), ("path", "/a")]), [7]);
}

#[test]
fn rule_numbers_start_with_the_given_number() {
    let index = index_of(&parse_rules("- {id: a, limit: 1/s}\n- {id: b, limit: 1/s, when: {x: y}}\n"), 10);
    assert_eq!(find_rules(&index, &[("x", "y")]), [10, 11]);
}

proptest! {
    /// Items with the same names in the same order share one lookup. Items with other names, another order or another
    /// index must not share it.
    #[test]
    fn reused_buffer_finds_the_same_rules_as_a_new_buffer(
        items in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(("[ab]|long-attribute-name-[ab]-x|[ab]", "[xy]"), 0..4)),
            1..30,
        ),
    ) {
        let text = |name: &str| format!("- {{id: {name}, limit: 1/s, when: {{{name}: x}}}}\n");
        let names = ["a", "b", "long-attribute-name-a-x", "long-attribute-name-b-x", "'a#2'"];
        let rules = parse_rules(&names.map(|name| text(name).replace("id: 'a#2'", "id: second")).concat());
        let indexes = [index_of(&rules, 0), index_of(&rules[2..], 0)];
        let mut reused = CandidateRules::default();
        for (second, attributes) in &items {
            let attributes: Vec<Attribute<'_>> =
                attributes.iter().map(|(name, value)| Attribute::new(name, value)).collect();
            let (index, mut new) = (&indexes[usize::from(*second)], CandidateRules::default());
            index.find(&attributes, &mut reused);
            index.find(&attributes, &mut new);
            prop_assert_eq!(reused.rules(), new.rules());
            for name in ["a", "b", "long-attribute-name-b-x", "a#2"] {
                let Some(attribute) = index.attribute_id(name) else { continue };
                let values = |matched: &CandidateRules| -> Vec<_> {
                    matched.attribute_values(&attributes, attribute).collect()
                };
                prop_assert_eq!(values(&reused), values(&new));
                prop_assert_eq!(reused.first_value(&attributes, attribute), values(&new).first().copied());
            }
        }
    }
}

/// Reference implementation: evaluates all conditions of a rule directly, as documented.
fn matches_by_definition(rule: &Rule, attributes: &[(String, String)]) -> bool {
    rule.when().iter().all(|when| {
        let mut values =
            attributes.iter().filter(|(name, _)| **name == *when.attribute).map(|(_, value)| value.as_bytes());
        match &when.test {
            Test::Present => values.next().is_some(),
            Test::Absent => values.next().is_none(),
            Test::AnyOf(patterns) => values.any(|value| patterns.iter().any(|pattern| pattern_matches(pattern, value))),
            Test::NoneOf(patterns) => {
                values.all(|value| !patterns.iter().any(|pattern| pattern_matches(pattern, value)))
            }
        }
    })
}

fn pattern_matches(pattern: &Pattern, value: &[u8]) -> bool {
    match pattern {
        Pattern::Equals(text) => text.as_bytes() == value,
        Pattern::Glob(glob) => glob.matches(value),
        Pattern::Prefix(text) => value.starts_with(text.as_bytes()),
        Pattern::Cidr(network) => parse_address(value).is_some_and(|address| network.contains(address)),
        Pattern::NotAnAddress => parse_address(value).is_none(),
    }
}

fn random_condition() -> impl Strategy<Value = String> {
    prop_oneof![
        "'[xy]'",
        "\\['[xy]', '[xyz]', '/[xy]'\\]",
        "'/(\\*\\*|\\*|x\\*)/(x|\\*)'",
        "\\['/\\*\\*', y\\]",
        Just("{present: true}".to_owned()),
        Just("{present: false}".to_owned()),
        Just("{equals: '/*'}".to_owned()),
        "\\{prefix: \\['[xy]', '/x']\\}",
        "\\{not: \\['[xy]', '/\\*']\\}",
        "\\{not: \\{prefix: '[xy]'\\}\\}",
        "\\{cidr: \\['10[.][01][.]0[.]0/16', '10[.]0[.]0[.]0/[89]', '10[.]0[.]0[.][12]', '::/0']\\}",
        "\\{not: \\{cidr: '10[.]0[.]0[.]0/24'\\}\\}",
    ]
}

proptest! {
    #[test]
    fn index_agrees_with_evaluating_every_rule(
        whens in proptest::collection::vec(proptest::collection::btree_map("[abc]", random_condition(), 0..3), 0..20),
        attributes in proptest::collection::vec(("[abcd]", "/?[xyz*]{0,2}(/[xy])?|10[.][01][.]0[.][0-2]"), 0..5),
    ) {
        let mut text = String::new();
        for (n, when) in whens.iter().enumerate() {
            let when: Vec<String> = when.iter().map(|(name, test)| format!("{name}: {test}")).collect();
            text += &format!("- {{id: r{n}, limit: 1/s, when: {{{}}}}}\n", when.join(", "));
        }
        let rules = parse_rules(&text);
        let expected: Vec<u32> =
            (0..rules.len() as u32).filter(|n| matches_by_definition(&rules[*n as usize], &attributes)).collect();
        let borrowed: Vec<(&str, &str)> = attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        prop_assert_eq!(find_rules(&index_of(&rules, 0), &borrowed), expected);
    }
}
