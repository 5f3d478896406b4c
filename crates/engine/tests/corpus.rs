//! Replays what fuzzing found worth keeping; see `fuzz/`.

#[path = "fuzzed/expression.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod expression;
#[path = "fuzzed/glob.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod glob;
#[path = "fuzzed/import.rs"]
#[allow(unreachable_pub, reason = "the fuzz targets include it too")]
mod import;
#[path = "fuzzed/limit.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod limit;
#[path = "fuzzed/rules.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod rules;

fn replay(name: &str, check: fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 5, "only {count} texts in the corpus of {name}");
}

#[test]
fn every_text_of_the_corpus_is_rules_or_has_mistakes_at_their_places() {
    replay("rules", rules::check);
}

#[test]
fn every_limit_of_the_corpus_is_numbers_or_a_message() {
    replay("limit", limit::check);
}

#[test]
fn every_pattern_of_the_corpus_matches_as_the_obvious_way_does() {
    replay("glob", glob::check);
}

#[test]
fn every_expression_of_the_corpus_asks_for_no_more_than_it_has_bytes() {
    replay("expression", expression::check);
}

#[test]
fn every_file_of_another_system_in_the_corpus_becomes_rules_that_load() {
    replay("import_envoy", import::envoy);
    replay("import_nginx", import::nginx);
}
