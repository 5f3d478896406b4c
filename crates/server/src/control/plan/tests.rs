use super::*;

fn kept(id: &str, position: i64) -> Kept {
    Kept {
        id: id.into(),
        position,
        version: 1,
        enabled: true,
        text: format!(r#"{{"id":"{id}","limit":"1/s"}}"#),
        overrides: 0,
        author: "a".into(),
        at_ms: 0,
        comment: None,
    }
}

/// Stored and file as ids, one letter each; what comes out as the order to be, what moves and what is deleted.
fn check(stored: &str, file: &str, others: Others, expected: &str) {
    let stored: Vec<Kept> = stored.chars().zip(1..).map(|(id, place)| kept(&id.to_string(), 10 * place)).collect();
    let before: HashMap<String, i64> = stored.iter().map(|kept| (kept.id.clone(), kept.position)).collect();
    let entry = |id: char| format!("{{id: {id}, limit: 1/s}}");
    let text = format!("{{domain: d, rules: [{}]}}", file.chars().map(entry).collect::<Vec<_>>().join(", "));
    let taken = entry::take_apart(&[Source { name: "f", text: text.as_bytes() }]).unwrap();
    let work = work_out(taken, HashMap::from([("d".into(), stored)]), others);
    let [domain] = &work.domains[..] else { unreachable!("there is one") };
    let mut after = before;
    for gone in &domain.deletes {
        after.remove(&gone.id);
    }
    for write in &domain.writes {
        after.insert(write.id.clone(), write.position);
    }
    let mut order: Vec<(i64, String)> = after.into_iter().map(|(id, position)| (position, id)).collect();
    order.sort();
    let told: Vec<String> =
        work.changes.iter().map(|change| format!("{}:{}", change.id, change.action.as_str())).collect();
    let order: String = order.into_iter().map(|(_, id)| id).collect();
    assert_eq!(format!("{order} {} {}", work.unchanged, told.join(" ")).trim_end(), expected);
}

#[test]
fn the_order_of_the_file_is_kept() {
    use Others::{Delete, Keep};
    check("", "abc", Keep, "abc 0 a:create b:create c:create");
    check("abc", "abc", Delete, "abc 3");
    check("abc", "cab", Delete, "cab 2 c:update");
    check("abc", "ba", Keep, "bac 1 b:update");
    check("abcd", "bxd", Keep, "abcxd 2 x:create");
    check("abc", "axbyc", Keep, "axbyc 3 x:create y:create");
    check("abc", "ax", Delete, "ax 1 x:create b:delete c:delete");
    check("abc", "ax", Keep, "abcx 1 x:create");
    check("abc", "", Delete, " 0 a:delete b:delete c:delete");
    check("abc", "", Keep, "abc 0");
}

#[test]
fn only_what_changes_is_told() {
    let text = b"domain: d\nrules:\n- {id: a, limit: 2/s}\n- {id: b, limit: 1/s}\n";
    let taken = entry::take_apart(&[Source { name: "f", text }]).unwrap();
    let stored = HashMap::from([("d".into(), vec![kept("a", 1), kept("b", 2)])]);
    let work = work_out(taken, stored, Others::Keep);
    assert_eq!(work.changes.len(), 1);
    assert_eq!(work.changes[0].diff, " id: a\n-limit: 1/s\n+limit: 2/s\n");
    assert_eq!(work.domains[0].writes.len(), 1);
}

#[test]
fn a_limit_that_jumps_is_a_warning() {
    let text = b"domain: d\nrules:\n- {id: a, limit: 2000/s}\n";
    let taken = entry::take_apart(&[Source { name: "f", text }]).unwrap();
    let stored = HashMap::from([("d".into(), vec![kept("a", 1)])]);
    let work = work_out(taken, stored, Others::Keep);
    assert_eq!(work.warnings.len(), 1, "{:?}", work.warnings);
}
