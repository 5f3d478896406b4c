//! Replays the inputs that fuzzing found; see `fuzz/`.

#[path = "fuzzed/resp.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod resp;

#[path = "fuzzed/rls.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod rls;

#[test]
fn every_message_of_the_corpus_is_decoded_within_the_limits_or_refused() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/rls");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        rls::check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in the corpus");
}

#[test]
fn corpus_inputs_parse_alike_however_they_are_split() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/resp");
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        resp::check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in the corpus");
}
