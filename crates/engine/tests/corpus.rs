//! Replays the corpus of the fuzz targets; see `fuzz/`.

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
pub(crate) mod rules;

fn replay_corpus(name: &str, check: fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 5, "only {count} texts in the corpus of {name}");
}

#[test]
fn every_text_of_the_corpus_is_valid_or_has_positioned_mistakes() {
    replay_corpus("rules", rules::check);
}

#[test]
fn every_limit_of_the_corpus_is_parsed_or_refused() {
    replay_corpus("limit", limit::check);
}

#[test]
fn every_pattern_of_the_corpus_matches_like_the_reference() {
    replay_corpus("glob", glob::check);
}

#[test]
fn every_expression_of_the_corpus_reads_at_most_one_value_per_byte() {
    replay_corpus("expression", expression::check);
}

#[test]
fn every_imported_file_of_the_corpus_loads() {
    replay_corpus("import_envoy", import::check_envoy);
    replay_corpus("import_nginx", import::check_nginx);
}
