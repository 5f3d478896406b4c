//! Replays the inputs found by fuzzing; see `fuzz/`.

#[path = "fuzzed/forwarded.rs"]
#[allow(unreachable_pub, reason = "the fuzz target also includes this module")]
mod forwarded;

use proptest::prelude::*;

#[test]
fn corpus_headers_cannot_forge_an_address() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/forwarded");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        forwarded::check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in the corpus");
}

proptest! {
    #[test]
    fn random_headers_cannot_forge_an_address(text in "[0-9a-f:.,;=\"\\\\ \\[\\]\nor_]{0,300}") {
        forwarded::check(text.as_bytes());
    }
}
