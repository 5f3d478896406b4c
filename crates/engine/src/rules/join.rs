//! Several rule files as one, for whoever takes one only.

use super::mistake::{Mistakes, Notes, Place};
use super::text::{self, Node, Value};
use super::write::write;
use super::{Rules, Source, import};

/// Puts rule files together: each domain once, in the order in which it was first named, with its rules in the order of the
/// files. Files of the reference Envoy service become rules.
///
/// ```
/// use tollgate_engine::rules::{Source, join};
///
/// let one = Source { name: "a.yaml", text: b"domain: api\nrules: [{id: a, limit: 1/s}]" };
/// let two = Source { name: "b.json", text: br#"{"domain": "api", "rules": [{"id": "b", "limit": "2/s"}]}"# };
/// assert_eq!(join(&[one, two])?, "domain: api\nrules:\n- id: a\n  limit: 1/s\n- id: b\n  limit: 2/s\n");
/// # Ok::<(), tollgate_engine::rules::Mistakes>(())
/// ```
///
/// # Errors
/// Everything that is wrong with any of them, or with all of them together.
pub fn join(sources: &[Source<'_>]) -> Result<String, Mistakes> {
    Rules::read(sources)?;
    let mut domains: Vec<(String, Vec<Node>)> = Vec::new();
    for source in sources {
        // There are no mistakes; what is left out has been told by whoever read the rules.
        let (mut notes, mut left_out) = (Notes::new(source.name), Notes::new(source.name));
        let tree = text::read(source.text, &mut notes);
        let Some(tree) = tree.and_then(|tree| import::translate(tree, &mut notes, &mut left_out)) else { continue };
        let parts = match take(&tree, "domains") {
            Some(Node { value: Value::List(parts), .. }) => parts.clone(),
            _ => vec![tree],
        };
        for part in parts {
            let (Some(Node { value: Value::Text(name), .. }), Some(rules)) =
                (take(&part, "domain"), take(&part, "rules"))
            else {
                continue;
            };
            let rules = match &rules.value {
                Value::List(rules) => rules.clone(),
                Value::Empty | Value::Text(_) | Value::Map(_) => Vec::new(),
            };
            match domains.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => known.extend(rules),
                None => domains.push((name.clone(), rules)),
            }
        }
    }
    let mut domains: Vec<Node> = domains.into_iter().map(domain).collect();
    Ok(match domains.len() {
        1 => write(&domains.remove(0)),
        _ => write(&map([("domains", Value::List(domains))])),
    })
}

fn domain((name, rules): (String, Vec<Node>)) -> Node {
    map([("domain", Value::Text(name)), ("rules", Value::List(rules))])
}

fn take<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(pairs) = &node.value else { return None };
    pairs.iter().find(|(name, _)| matches!(&name.value, Value::Text(name) if name == key)).map(|(_, value)| value)
}

fn map<const N: usize>(pairs: [(&str, Value); N]) -> Node {
    let node = |value| Node { place: Place::default(), value };
    node(Value::Map(pairs.into_iter().map(|(key, value)| (node(Value::Text(key.into())), node(value))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&str], expected: &str) {
        let sources: Vec<Source<'_>> = texts.iter().map(|text| Source { name: "f", text: text.as_bytes() }).collect();
        match join(&sources) {
            Ok(joined) => {
                assert_eq!(joined, expected);
                let again = Rules::read(&[Source { name: "joined", text: joined.as_bytes() }]).unwrap();
                assert_eq!(again.len(), Rules::read(&sources).unwrap().len());
            }
            Err(mistakes) => assert_eq!(mistakes.to_string(), expected),
        }
    }

    #[test]
    fn domains_are_put_together_and_keep_the_order_of_the_files() {
        check(
            &[
                "domain: b\nrules:\n- {id: z, limit: 1/s}",
                "domains:\n- {domain: a, rules: [{id: y, limit: 1/s}]}\n- {domain: b, rules: [{id: x, deny: true}]}",
                "domain: edge\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 2}}",
            ],
            "domains:\n- domain: b\n  rules:\n  - id: z\n    limit: 1/s\n  - id: x\n    deny: true\n- domain: a\n  \
             rules:\n  - id: y\n    limit: 1/s\n- domain: edge\n  rules:\n  - id: k\n    when: {k: {present: true}}\n    \
             only: [k]\n    per: [k]\n    limit: 2/day\n    algorithm: fixed_window\n",
        );
        check(&["domain: a\nrules: []"], "domain: a\nrules: []\n");
    }

    #[test]
    fn what_is_wrong_with_all_of_them_together_is_told() {
        let text = "domain: a\nrules:\n- {id: x, limit: 1/s}";
        let mistakes = join(&[text, text].map(|text| Source { name: "f", text: text.as_bytes() })).unwrap_err();
        assert!(mistakes.to_string().contains("`x`"), "{mistakes}");
    }
}
