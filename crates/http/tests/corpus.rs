//! Replays what fuzzing found worth keeping; see `fuzz/`.

#[path = "fuzzed/forwarded.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod forwarded;

use proptest::prelude::*;

#[test]
fn no_header_of_the_corpus_is_believed_more_than_it_should_be() {
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
    fn no_text_made_of_the_right_letters_is_believed_more_than_it_should_be(text in "[0-9a-f:.,;=\"\\\\ \\[\\]\nor_]{0,300}") {
        forwarded::check(text.as_bytes());
    }
}
