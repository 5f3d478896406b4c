use super::super::db::Authorship;
use super::*;

fn rule_row(id: &str, position: i64) -> RuleRow {
    RuleRow {
        id: id.into(),
        position,
        version: 1,
        enabled: true,
        text: format!(r#"{{"id":"{id}","limit":"1/s"}}"#),
        overrides: 0,
        authorship: Authorship { author: "a".into(), at_ms: 0, comment: None },
    }
}

/// Compares stored rules with a file. Each character of `stored` and `file` is the id of a rule. `expected` contains
/// the new order, the unchanged count and the changes.
fn assert_comparison(stored: &str, file: &str, others: OtherRulesPolicy, expected: &str) {
    let stored: Vec<RuleRow> = stored.chars().zip(1..).map(|(id, at)| rule_row(&id.to_string(), 10 * at)).collect();
    let before: HashMap<String, i64> = stored.iter().map(|row| (row.id.clone(), row.position)).collect();
    let entry = |id: char| format!("{{id: {id}, limit: 1/s}}");
    let text = format!("{{domain: d, rules: [{}]}}", file.chars().map(entry).collect::<Vec<_>>().join(", "));
    let taken = entry::split_files(&[Source { name: "f", text: text.as_bytes() }]).unwrap();
    let changes = compare_file(taken, HashMap::from([("d".into(), stored)]), others);
    let [domain] = &changes.domains[..] else { unreachable!("one domain") };
    let mut after = before;
    for deleted in &domain.deletes {
        after.remove(&deleted.id);
    }
    for write in &domain.writes {
        after.insert(write.id.clone(), write.position);
    }
    let mut order: Vec<(i64, String)> = after.into_iter().map(|(id, position)| (position, id)).collect();
    order.sort();
    let planned: Vec<String> =
        changes.planned.iter().map(|change| format!("{}:{}", change.id, change.action.as_str())).collect();
    let order: String = order.into_iter().map(|(_, id)| id).collect();
    assert_eq!(format!("{order} {} {}", changes.unchanged, planned.join(" ")).trim_end(), expected);
}

#[test]
fn order_of_the_file_is_preserved() {
    use OtherRulesPolicy::{Delete, Keep};
    assert_comparison("", "abc", Keep, "abc 0 a:create b:create c:create");
    assert_comparison("abc", "abc", Delete, "abc 3");
    assert_comparison("abc", "cab", Delete, "cab 2 c:update");
    assert_comparison("abc", "ba", Keep, "bac 1 b:update");
    assert_comparison("abcd", "bxd", Keep, "abcxd 2 x:create");
    assert_comparison("abc", "axbyc", Keep, "axbyc 3 x:create y:create");
    assert_comparison("abc", "ax", Delete, "ax 1 x:create b:delete c:delete");
    assert_comparison("abc", "ax", Keep, "abcx 1 x:create");
    assert_comparison("abc", "", Delete, " 0 a:delete b:delete c:delete");
    assert_comparison("abc", "", Keep, "abc 0");
}

#[test]
fn only_changed_rules_are_reported() {
    let text = b"domain: d\nrules:\n- {id: a, limit: 2/s}\n- {id: b, limit: 1/s}\n";
    let taken = entry::split_files(&[Source { name: "f", text }]).unwrap();
    let stored = HashMap::from([("d".into(), vec![rule_row("a", 1), rule_row("b", 2)])]);
    let changes = compare_file(taken, stored, OtherRulesPolicy::Keep);
    assert_eq!(changes.planned.len(), 1);
    assert_eq!(changes.planned[0].diff, " id: a\n-limit: 1/s\n+limit: 2/s\n");
    assert_eq!(changes.domains[0].writes.len(), 1);
}

#[test]
fn large_limit_change_causes_a_warning() {
    let text = b"domain: d\nrules:\n- {id: a, limit: 2000/s}\n";
    let taken = entry::split_files(&[Source { name: "f", text }]).unwrap();
    let stored = HashMap::from([("d".into(), vec![rule_row("a", 1)])]);
    let changes = compare_file(taken, stored, OtherRulesPolicy::Keep);
    assert_eq!(changes.warnings.len(), 1, "{:?}", changes.warnings);
}
