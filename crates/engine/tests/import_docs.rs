//! Imports the examples of `docs/import.md` and compares the results with the page.

use tollgate_engine::rules::{ImportedRules, Source};

#[test]
fn examples_of_the_page_are_imported_as_shown() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/import.md")).expect("the page");
    let blocks: Vec<&str> = page.split("\n```").skip(1).step_by(2).collect();
    assert_eq!(blocks.len(), 4, "two examples, before and after");
    for pair in blocks.chunks(2) {
        let text = |block: &str| block.split_once('\n').map(|(_, text)| format!("{text}\n")).unwrap_or_default();
        let (before, after) = (text(pair[0]), text(pair[1]));
        let imported = ImportedRules::read(&Source { name: "page", text: before.as_bytes() }, None, "nginx");
        let imported = imported.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert_eq!(imported.yaml, after);
        assert!(imported.left_out.is_none(), "{:?}", imported.left_out);
    }
}
