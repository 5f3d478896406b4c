//! Replays what fuzzing found worth keeping; see `fuzz/`. Also reads what earlier versions wrote.

#[path = "fuzzed/snapshot.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod snapshot;

#[test]
fn every_snapshot_of_the_corpus_is_restored_whole_or_refused() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/snapshot");
    let inputs = std::fs::read_dir(folder).expect("the corpus is part of the repository");
    let inputs = inputs.map(|file| std::fs::read(file.expect("a file").path()).expect("a readable file"));
    let (restored, refused): (Vec<bool>, Vec<bool>) = inputs.map(|input| snapshot::check(&input)).partition(|is| *is);
    assert!(restored.len() >= 10 && refused.len() >= 5, "{} restored, {} refused", restored.len(), refused.len());
}
