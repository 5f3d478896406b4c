//! The attributes that rules read.

use super::special::SpecialFeatures;
use crate::rules::{Rule, split_numbered_name};

/// Returns the names of the attributes that rules read, sorted. A name such as `a#2` reads the attribute `a`.
pub(super) fn attribute_names(rules: &[Rule]) -> Box<[Box<str>]> {
    let mut names: Vec<&str> = rules.iter().flat_map(attribute_names_of_rule).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(Box::from).collect()
}

fn attribute_names_of_rule(rule: &Rule) -> impl Iterator<Item = &str> {
    let overrides = rule.overrides().iter().flat_map(|other| &other.when);
    let costs = rule.cost().cases().iter().flat_map(|case| &case.when);
    let conditions = rule.when().iter().chain(overrides).chain(costs).map(|condition| &*condition.attribute);
    let only = rule.only().iter().map(|name| &**name);
    let all = conditions.chain(only).chain(SpecialFeatures::attribute_names(rule));
    all.map(|name| split_numbered_name(name).map_or(name, |(of, _)| of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Rules, Source};

    #[test]
    fn every_key_that_reads_an_attribute_is_covered() {
        let text = br#"
domain: d
rules:
- {id: a, when: {w: x, absent: {present: false}}, per: [p or q, w], limit: 1/s}
- {id: b, if: "int(e) > 1", only: [o, 'o#2', e], limit: 1/s}
- {id: c, when: {path: '/{capture}/**'}, per: [capture], limit: 1/s, cost: {from: weight, max: 9}}
- {id: d, per: ['n#3'], limit: 1/s, overrides: [{when: {plan: pro}, limit: 2/s}], cost: [{when: {kind: a}, cost: 2}]}
"#;
        let rules = Rules::read(&[Source { name: "rules.yaml", text }]).expect("valid rules");
        let names = attribute_names(rules.domains()[0].rules());
        let expected = ["absent", "e", "kind", "n", "o", "p", "path", "plan", "q", "w", "weight"];
        assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), expected);
    }
}
