//! Replays the inputs found by fuzzing; see `fuzz/`.

#[path = "fuzzed/frames.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod frames;

#[test]
fn every_input_of_the_corpus_is_decoded_or_refused() {
    let folder = format!("{}/../../fuzz/corpus/frames", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        frames::check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in the corpus");
}
