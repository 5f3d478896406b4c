// Properties that hold for any pattern and any value. Included by the fuzz target and by the test that replays its
// corpus.

use tollgate_engine::rules::{Glob, Rules, Source};
use tollgate_engine::{Attribute, Engine, MemoryStore};

/// Checks patterns (all lines except the last) with a value (the last line). Each result must equal the result of a
/// dynamic-programming table. One of the rules with these patterns must match the value if and only if one of the
/// patterns matches it.
pub fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let (patterns, value) = text.rsplit_once('\n').unwrap_or((text, ""));
    let mut valid = Vec::new();
    let mut matches = false;
    for pattern in patterns.split('\n').take(16) {
        match Glob::new(pattern) {
            Ok(glob) => {
                let found = glob.matches(value.as_bytes());
                if pattern.len() * value.len() <= 1 << 16 {
                    assert_eq!(found, matches_by_table(glob.as_str(), value), "{pattern:?} and {value:?}");
                }
                if Glob::is_pattern(pattern) {
                    matches |= found;
                    valid.push(format!(
                        "{{id: r{}, when: {{p: {}}}, limit: 1/s}}",
                        valid.len(),
                        quote_for_yaml(pattern)
                    ));
                }
            }
            Err(problem) => assert!(!problem.is_empty()),
        }
    }
    if let Some(found) = any_rule_matches(&valid, value) {
        assert_eq!(found, matches, "the rules {valid:?} and {value:?}");
    }
}

/// Returns whether a request with the value matches one of the rules; `None` if the rules are invalid because a pattern
/// is too long.
fn any_rule_matches(rules: &[String], value: &str) -> Option<bool> {
    let text = format!("{{domain: d, rules: [{}]}}", rules.join(", "));
    let rules = Rules::read(&[Source { name: "f", text: text.as_bytes() }]).ok()?;
    let memory = || MemoryStore::new(1).expect("a tiny table");
    let engine = Engine::with_fallback(memory(), memory());
    engine.put(&rules).ok()?;
    let set = engine.rules();
    let mut matched = tollgate_engine::CandidateRules::default();
    let met = set.candidates(b"d", &[Attribute::new("p", value)], &mut matched)?;
    Some(!met.is_empty())
}

/// Quotes a string unambiguously for YAML.
fn quote_for_yaml(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        quoted += &format!("\\U{:08X}", u32::from(letter));
    }
    quoted + "\""
}

/// Reference implementation: matches with a dynamic-programming table.
fn matches_by_table(pattern: &str, value: &str) -> bool {
    let (patterns, values): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), value.split('/').collect());
    let segments = |pattern: &&str, value: &&str| {
        match_with_table(pattern.as_bytes(), value.as_bytes(), |one| *one == b'*', |one, other| one == other)
    };
    match_with_table(&patterns, &values, |one| *one == "**", segments)
}

fn match_with_table<P, V>(
    patterns: &[P],
    values: &[V],
    any: impl Fn(&P) -> bool,
    same: impl Fn(&P, &V) -> bool,
) -> bool {
    // `row[n]` says whether the patterns processed so far match the first `n` values.
    let mut row: Vec<bool> = (0..=values.len()).map(|taken| taken == 0).collect();
    for pattern in patterns {
        let before = row.clone();
        for taken in 0..=values.len() {
            row[taken] = match any(pattern) {
                true => before[taken] || taken > 0 && row[taken - 1],
                false => taken > 0 && before[taken - 1] && same(pattern, &values[taken - 1]),
            };
        }
    }
    row[values.len()]
}
