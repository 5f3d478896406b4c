//! Replays the fuzzing corpus (see `fuzz/`), and reads files written by earlier versions.

#[path = "fuzzed/snapshot.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod snapshot;

#[test]
fn every_snapshot_of_the_corpus_is_restored_completely_or_refused() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/snapshot");
    let inputs = std::fs::read_dir(folder).expect("the corpus is part of the repository");
    let inputs = inputs.map(|file| std::fs::read(file.expect("a file").path()).expect("a readable file"));
    let (restored, refused): (Vec<bool>, Vec<bool>) = inputs.map(|input| snapshot::check(&input)).partition(|is| *is);
    assert!(restored.len() >= 10 && refused.len() >= 5, "{} restored, {} refused", restored.len(), refused.len());
}

/// A file with two keys under a combination of seven limits, written by version 1. Later versions must read the file or
/// return a version error.
mod version_1 {
    use std::sync::Arc;

    use tollgate::clock::ManualClock;
    use tollgate::core::Nanos;
    use tollgate::{
        Concurrency, FixedWindow, Keyed, LeakyBucket, Limits, Outcome, SlidingLog, SlidingWindow, TokenBucket,
    };

    const SNAPSHOT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/written/snapshot-v1");
    const WRITTEN_AT: u64 = 1_700_000_000_000_000_000;
    const HOUR: Nanos = Nanos::from_secs(3_600);

    fn keyed(at: u64) -> Keyed<Limits, Arc<ManualClock>> {
        let limits = Limits::new([
            TokenBucket::new("9/h".parse().expect("a rate"), 9).expect("a bucket").into(),
            TokenBucket::new("7777/s".parse().expect("a rate"), 8).expect("a bucket").into(),
            LeakyBucket::new("7/h".parse().expect("a rate"), 7).expect("a bucket").into(),
            FixedWindow::new(6, HOUR).expect("a window").into(),
            SlidingWindow::new(5, HOUR).expect("a window").into(),
            SlidingLog::new(4, HOUR).expect("a log").into(),
            Concurrency::new(4, HOUR).expect("leases").into(),
        ]);
        let clock = Arc::new(ManualClock::at(at));
        Keyed::with_clock(limits.expect("seven limits"), 100, clock).expect("a small table")
    }

    #[test]
    #[ignore = "writes the file; only for a new version of the format, under another name"]
    fn file_is_written() {
        let limits = keyed(WRITTEN_AT);
        let _ = limits.check("alice", 3);
        let _ = limits.check("bob", 1);
        assert_eq!(limits.save(SNAPSHOT_FILE).expect("a file that can be written"), 2);
    }

    #[test]
    fn file_is_read() {
        let mut limits = keyed(WRITTEN_AT);
        assert_eq!(limits.load(SNAPSHOT_FILE).expect("a completely written file"), 2);
        let remaining = ["alice", "bob", "carol"].map(|key| limits.report(key, 1).remaining);
        assert_eq!(remaining, [1, 3, 4]);
        assert!(matches!(limits.peek("alice", 2).outcome(), Outcome::Deny(_)));
        // After ten hours everything has expired.
        let mut limits = keyed(WRITTEN_AT + 10 * HOUR.as_nanos());
        limits.load(SNAPSHOT_FILE).expect("a completely written file");
        assert_eq!(limits.report("alice", 1).remaining, 4);
    }
}
