//! Parsing any text returns either rules, or mistakes with positions in the text.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use crate::corpus::rules::check;

const VALID_RULE_FILE: &str = r#"
domains:
  - domain: api
    rules:
      - id: per-client
        when: { path: "/v1/**", method: [GET, POST], key: { present: true }, star: { equals: "*" } }
        per: [api_key, method]
        limit: 100/s
        burst: 200
        cost: 2
      - id: login
        when: &login { path: /login, trial: { present: false }, name: { any_of: [a*, b] } }
        limits:
          - { limit: 5/m, algorithm: sliding_log, minimum_gap: 1s, count_refused: true }
          - { limit: 100/day, algorithm: fixed_window, phase: spread }
          - { limit: 3, algorithm: concurrency, lease: 30s }
          - { limit: 10/s, algorithm: leaky_bucket, burst: 20, free: 5, max_wait: 2s, initial: 3, max_debt: 1 }
        on_exceed: shadow
        on_fault: closed
  - domain: "b"
    rules:
      - { id: all, unlimited: true, when: *login }
"#;

/// Valid words of the rule language, and some invalid words.
const VALID_AND_INVALID_WORDS: &[&str] = &[
    "domain",
    "domains",
    "rules",
    "id",
    "when",
    "per",
    "limit",
    "limits",
    "burst",
    "algorithm",
    "unlimited",
    "true",
    "null",
    "token_bucket",
    "sliding_log",
    "concurrency",
    "phase",
    "lease",
    "100/s",
    "5/15m",
    "0/s",
    "1/0s",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    ".nan",
    "0x10",
    "-1",
    "**",
    "/v1/**",
    "/a**",
    "*",
    "&a",
    "*a",
    "<<",
    "!!binary",
    "!x",
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    "? ",
    "|",
    ">",
    "\"",
    "'",
    "#",
    "%YAML 1.2",
    "---",
    "...",
    ",",
    "\t",
    "\u{feff}",
    "\u{0}",
    "ä",
    "\u{10ffff}",
    "\\ud800",
];

fn read_rules(text: &[u8]) -> Result<Rules, Mistakes> {
    Rules::read(&[Source { name: "f", text }])
}

#[test]
fn unmodified_rule_file_is_valid() {
    assert_eq!(
        read_rules(VALID_RULE_FILE.as_bytes()).map(|rules| rules.len()).map_err(|mistakes| mistakes.to_string()),
        Ok(3)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,100}") {
        check(text.as_bytes());
    }

    #[test]
    fn any_words_are_parsed_or_refused(words in vec(proptest::sample::select(VALID_AND_INVALID_WORDS), 0..60)) {
        check(words.concat().as_bytes());
        check(words.join(" ").as_bytes());
    }

    #[test]
    fn rule_file_with_typos_is_parsed_or_refused(slips in vec((0..VALID_RULE_FILE.len(), 0_usize..20, proptest::sample::select(VALID_AND_INVALID_WORDS)), 1..6)) {
        let mut text = VALID_RULE_FILE.as_bytes().to_vec();
        for (at, length, word) in slips {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, word.bytes());
        }
        check(&text);
    }

    #[test]
    fn truncated_rule_file_is_parsed_or_refused(length in 0..VALID_RULE_FILE.len()) {
        check(&VALID_RULE_FILE.as_bytes()[..length]);
    }

    #[test]
    fn rule_file_with_flipped_bits_is_parsed_or_refused(flips in vec((0..VALID_RULE_FILE.len(), any::<u8>()), 1..4)) {
        let mut text = VALID_RULE_FILE.as_bytes().to_vec();
        flips.iter().for_each(|(at, bits)| text[*at] ^= bits);
        check(&text);
    }
}
