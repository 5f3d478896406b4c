//! Importing and formatting do not panic on texts that resemble rules, and formatting is idempotent.

use proptest::prelude::*;
use tollgate_engine::rules::{Dialect, ImportedRules, Rules, Source, format};

/// Generates texts that resemble valid rule files.
fn any_text_like_rules() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "domain: d\n",
        "rules:\n",
        "descriptors:\n",
        "- ",
        "  ",
        "key: k",
        "value: 'a*'",
        "rate_limit: ",
        "{unit: day, requests_per_unit: 1}",
        "limit: 1/s",
        "id: a",
        "when: {a: [b, c]}",
        "# note",
        " # note",
        "\n",
        "\n\n",
        "{",
        "}",
        "[",
        "]",
        ", ",
        ": ",
        "'",
        "\"",
        "|",
        ">",
        "&a ",
        "*a",
        "limit_req_zone $host zone=a:1m rate=1r/s;",
        "limit_req zone=a;",
        "location /x {",
        "server {",
        "é",
        "\t",
        "\\",
        "~",
        "null",
        "a",
    ]);
    prop::collection::vec(words, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn import_returns_loadable_rules_or_mistakes(text in any_text_like_rules()) {
        let source = Source { name: "t", text: text.as_bytes() };
        for dialect in [None, Some(Dialect::Envoy), Some(Dialect::Nginx)] {
            if let Ok(imported) = ImportedRules::read(&source, dialect, "d") {
                let again = Source { name: "t", text: imported.yaml.as_bytes() };
                prop_assert!(Rules::read(&[again]).is_ok(), "{}", imported.yaml);
                prop_assert_eq!(format(&again).ok(), Some(imported.yaml.clone()), "the import is in canonical form");
            }
        }
    }

    #[test]
    fn formatting_is_idempotent(text in any_text_like_rules()) {
        if let Ok(once) = format(&Source { name: "t", text: text.as_bytes() }) {
            let twice = format(&Source { name: "t", text: once.as_bytes() });
            prop_assert_eq!(twice.ok(), Some(once.clone()), "for\n{}\nonce\n{}", text, once);
        }
    }
}
