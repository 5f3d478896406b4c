//! Replays what fuzzing found worth keeping; see `fuzz/`.

#[path = "fuzzed/rules.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod rules;

#[test]
fn every_text_of_the_corpus_is_rules_or_has_mistakes_at_their_places() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/rules");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        rules::check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} texts in the corpus");
}
