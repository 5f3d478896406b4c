//! Counters survive a restart: one engine writes a snapshot, and another engine reads it.

use crate::support;

use std::sync::Arc;

use support::{START, TestBench, memory_store, parse_limits, poll_once, test_bench};
use tollgate::clock::{Clock, ManualClock};
use tollgate::core::Nanos;
use tollgate::snapshot::{RestoreError, SnapshotReader, SnapshotWriter};
use tollgate_engine::{Decisions, Engine, InlineLimit, Item, Request};

const RULES: &str = "
- {id: bucket, when: {kind: bucket}, per: [who], limit: 5/h}
- {id: fine, when: {kind: fine}, per: [who], limit: 7777/d, burst: 3}
- {id: window, when: {kind: window}, per: [who], limit: 4/h, algorithm: fixed_window}
- {id: daily, when: {kind: daily}, per: [who], limits: [{limit: 3/day, algorithm: fixed_window, zone: Europe/Paris}]}
- {id: log, when: {kind: log}, per: [who], limit: 3/h, algorithm: sliding_log}
- {id: slots, when: {kind: slots}, per: [who], limits: [{algorithm: concurrency, limit: 2, lease: 10m}]}
- {id: banned, when: {kind: banned}, per: [who], limit: 1/h, ban: {after: 1, within: 1m, for: 2h}}
";
const RULE_KINDS: [&str; 7] = ["bucket", "fine", "window", "daily", "log", "slots", "banned"];

fn take_snapshot(bench: &TestBench) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::new(&mut bytes).expect("memory");
    bench.engine.write_snapshot(&mut writer).expect("memory");
    writer.finish().expect("memory");
    bytes
}

/// Restores an engine from a snapshot. The engine's clock shows a time `later` after the snapshot was written. The
/// monotonic clock has another origin, as in a new process.
fn restore(bytes: &[u8], before: &TestBench, later: Nanos, rules: &str) -> Result<TestBench, RestoreError> {
    let clock = Arc::new(ManualClock::at(before.clock.mono().as_nanos() / 3));
    clock.step_wall((START - START / 3) as i64);
    clock.advance(later);
    let mut reader = SnapshotReader::new(bytes)?;
    let engine = Engine::restored(20_000, clock.clone(), memory_store(&clock), &mut reader)?.with_clock(clock.clone());
    reader.finish()?;
    let bench = TestBench { engine, clock, decisions: Decisions::default() };
    bench.put(rules);
    Ok(bench)
}

fn bench_with_used_up_limits() -> TestBench {
    let mut bench = test_bench(RULES);
    for kind in RULE_KINDS {
        for who in ["alice", "bob"] {
            (0..6).for_each(|_| drop(bench.check(&[("kind", kind), ("who", who)])));
        }
    }
    bench
}

#[test]
fn restored_engine_decides_like_the_original_engine() {
    for later in [0, 1, 599, 600, 3_599, 3_600, 7_200, 90_000].map(Nanos::from_secs) {
        let mut before = bench_with_used_up_limits();
        let mut after = restore(&take_snapshot(&before), &before, later, RULES).unwrap();
        before.advance(later);
        for kind in RULE_KINDS {
            for who in ["alice", "bob", "carol"] {
                let attributes = [("kind", kind), ("who", who)];
                assert_eq!(after.remaining(&attributes), before.remaining(&attributes), "{kind} {who} {later}");
                let [expected, decided] = [&mut before, &mut after].map(|bench| bench.check(&attributes));
                assert_eq!(decided, expected, "{kind} {who} {later}");
            }
        }
    }
}

#[test]
fn lease_taken_before_the_restart_is_released_after_it() {
    let mut before = test_bench(RULES);
    let attributes = [("kind", "slots"), ("who", "alice")];
    let receipt = before.decide(&attributes, None, |decision| decision.receipt());
    assert_eq!(before.check(&attributes), "allow");
    let mut after = restore(&take_snapshot(&before), &before, Nanos::from_secs(60), RULES).unwrap();
    assert_eq!(after.remaining(&attributes), [0]);
    assert_eq!(poll_once(after.engine.refund(&receipt)).unwrap().get(), 1);
    assert_eq!(after.remaining(&attributes), [1]);
}

#[test]
fn changed_rule_keeps_its_usage_across_a_restart() {
    let before = bench_with_used_up_limits();
    let changed = RULES.replace("limit: 5/h", "limit: 8/h");
    let mut after = restore(&take_snapshot(&before), &before, Nanos::ZERO, &changed).unwrap();
    assert_eq!(after.remaining(&[("kind", "bucket"), ("who", "alice")]), [3]);
}

#[test]
fn inline_limits_survive_a_restart() {
    let before = test_bench("- {id: other, limit: 1/s}");
    let spend = |bench: &TestBench, decisions: &mut Decisions| {
        let inline = bench.engine.intern_limits(&parse_limits("5/h", None)).unwrap();
        let items = [Item { limit: Some(InlineLimit { key: b"alice", limits: &inline }), ..Item::new(&[]) }];
        poll_once(bench.engine.check(&Request::new("d", &items), decisions))
            .unwrap()
            .reports()
            .next()
            .unwrap()
            .report
            .remaining
    };
    let mut decisions = Decisions::default();
    assert_eq!(spend(&before, &mut decisions), 4);
    let after = restore(&take_snapshot(&before), &before, Nanos::ZERO, "- {id: other, limit: 1/s}").unwrap();
    assert_eq!(spend(&after, &mut decisions), 3);
}

#[test]
fn damaged_snapshots_are_refused() {
    let before = bench_with_used_up_limits();
    let bytes = take_snapshot(&before);
    let refused = |bytes: &[u8]| restore(bytes, &before, Nanos::ZERO, RULES).err();
    assert!(matches!(refused(b"SQLite format 3\0"), Some(RestoreError::NotASnapshot)));
    assert!(matches!(refused(&bytes[..3]), Some(RestoreError::CutShort)));
    for cut in (8..bytes.len()).step_by(bytes.len() / 41) {
        assert!(refused(&bytes[..cut]).is_some(), "cut at {cut} of {}", bytes.len());
    }
    for at in (0..bytes.len()).step_by(bytes.len() / 97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(refused(&damaged).is_some(), "bit flipped at {at} of {}", bytes.len());
    }
    let longer = [&*bytes, &[0]].concat();
    assert!(refused(&longer).is_some());
}
