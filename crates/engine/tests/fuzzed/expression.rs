// Properties that hold for any text parsed as an expression. Included by the fuzz target and by the test that replays
// its corpus.

use std::cell::Cell;

use tollgate_engine::rules::{Expression, Rules, Source};
use tollgate_engine::{Attribute, Engine, MemoryStore};

/// Checks an expression (the first line) with attribute values (the other lines). The expression must be parsed, or
/// refused with a message. Its evaluation must read no more values than the expression has bytes. The expression and
/// its negation must never both hold. The index must find a rule whose expression holds.
pub fn check(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let Ok(text) = str::from_utf8(lines.next().unwrap_or_default()) else { return };
    let values: Vec<&[u8]> = lines.take(16).collect();
    let expression = match Expression::new(text) {
        Ok(expression) => expression,
        Err(problem) => {
            assert!(problem.len() < 4_000, "message too long: {problem}");
            return;
        }
    };
    let asked = Cell::new(0);
    let value = |place: usize| {
        asked.set(asked.get() + 1);
        values.get(place).copied()
    };
    let holds = expression.holds(&value);
    assert!(asked.get() <= text.len(), "{} values were read for {text:?}", asked.get());
    if let Ok(opposite) = Expression::new(&format!("!({text})")) {
        assert_eq!(opposite.attributes(), expression.attributes());
        assert!(!(holds && opposite.holds(&value)), "{text:?} and its negation hold for {values:?}");
    }
    let names = expression.attributes();
    let attributes: Vec<Attribute<'_>> =
        names.iter().zip(&values).map(|(name, value)| Attribute::new(&**name, *value)).collect();
    // A request cannot contain numbered names like `a#2`, because they refer to values of the attribute `a`.
    if holds && !names.iter().any(|name| name.contains('#')) {
        assert_ne!(is_found_by_index(text, &attributes), Some(false), "{text:?} holds for {values:?} and is not found");
    }
}

/// Returns whether a rule with the expression is found by the index; `None` if the rule is invalid.
fn is_found_by_index(text: &str, attributes: &[Attribute<'_>]) -> Option<bool> {
    let quoted: String = text.chars().map(|letter| format!("\\U{:08X}", u32::from(letter))).collect();
    let rules = format!("{{domain: d, rules: [{{id: a, if: \"{quoted}\", limit: 1/s}}]}}");
    let rules = Rules::read(&[Source { name: "f", text: rules.as_bytes() }]).ok()?;
    let memory = || MemoryStore::new(1).expect("a tiny table");
    let engine = Engine::with_fallback(memory(), memory());
    engine.put(&rules).ok()?;
    let set = engine.rules();
    let mut matched = tollgate_engine::CandidateRules::default();
    Some(!set.candidates(b"d", attributes, &mut matched)?.is_empty())
}
