//! Runs concurrent threads on a table that is too small for their keys.

use std::collections::HashMap;

use super::*;
use crate::table::{BATCH_SIZE, with_buckets};
use crate::testing::DAY;
use crate::{Concurrency, SlidingLog};

const BURST: u64 = 100;
/// Number of keys that are never evicted, because they have used more than any new key can use.
const KEPT_KEYS: u64 = 100;
/// Number of keys that are constantly inserted and evicted.
const EVICTED_KEYS: u64 = 1_000;
const THREADS: u64 = 4;

#[test]
fn threads_that_move_and_evict_entries_neither_lose_nor_gain_anything() {
    fn assert_amounts_are_conserved<A: Algorithm + Send + Sync>(limit: A, rounds: u64, what: &str)
    where
        A::Stamp: Send,
    {
        let (keyed, _) = keyed(limit, 200);
        (0..KEPT_KEYS).for_each(|key| assert!(keyed.check(&key.to_le_bytes(), 51).is_admitted()));
        let taken = on_threads(THREADS, |thread| charge_and_refund(&keyed, thread, rounds / THREADS));
        for key in 0..KEPT_KEYS {
            let granted = 51 + taken.iter().map(|taken| taken[&key]).sum::<u64>();
            let spent = BURST - keyed.report(&key.to_le_bytes(), 1).remaining;
            assert!(granted <= BURST, "{granted} were granted to key {key}, {what}");
            assert_eq!(spent, granted, "used and granted amounts of key {key} differ, {what}");
        }
        let granted: u64 = (0..KEPT_KEYS).flat_map(|key| taken.iter().map(move |taken| taken[&key])).sum();
        assert!(granted > KEPT_KEYS * 40, "too few grants to prove anything: {granted}, {what}");
        assert!(keyed.overflowed() > 100, "the table was not full, {what}");
        let mut seen = HashMap::new();
        let changes = keyed.changes();
        let table = keyed.table(&changes);
        for placed in table.positions(&keyed.reader(&changes, keyed.clock.now())) {
            assert!(placed.findable, "a search does not find the entry in bucket {}, {what}", placed.bucket);
            let mut located = [table.prefetch_home(placed.fingerprint); BATCH_SIZE];
            with_buckets!(table, buckets => buckets.locate(&[placed.fingerprint], &mut located));
            assert_eq!(located[0], placed.bucket, "a batch looks for the entry in another bucket, {what}");
            let before = seen.insert((placed.fingerprint.low, placed.fingerprint.high), placed.bucket);
            assert_eq!(before, None, "a key has two entries, {what}");
        }
        assert!(seen.len() > 200, "the table has lost entries, {} are left, {what}", seen.len());
    }
    assert_amounts_are_conserved(bucket(BURST), 200_000, "one word");
    assert_amounts_are_conserved(two_word_bucket(BURST), 200_000, "two words");
    assert_amounts_are_conserved(daily_window(BURST), 200_000, "a window");
    assert_amounts_are_conserved(SlidingLog::new(BURST, DAY).unwrap(), 20_000, "a log");
    assert_amounts_are_conserved(Concurrency::new(BURST, DAY).unwrap(), 20_000, "leases");
}

/// Charges random keys in single checks and batches, refunds some charges, and returns the net amount granted to each
/// key.
fn charge_and_refund<A: Algorithm, C: Clock>(keyed: &Keyed<A, C>, thread: u64, rounds: u64) -> HashMap<u64, u64> {
    let mut dice = Rng::new(thread);
    let mut taken: HashMap<u64, u64> = (0..KEPT_KEYS + EVICTED_KEYS).map(|key| (key, 0)).collect();
    let mut round = 0;
    while round < rounds {
        let len = if dice.below(2) == 0 { 1 } else { 1 + dice.below(24) };
        let requests: Vec<(u64, u64)> = (0..len)
            .map(|_| match dice.below(3) {
                // The keys that stay have small costs, so that their limit is not used up. The other keys use up to
                // half of their limit.
                0 => (dice.below(KEPT_KEYS), 1 + dice.below(3)),
                _ => (KEPT_KEYS + dice.below(EVICTED_KEYS), 1 + dice.below(50)),
            })
            .collect();
        let mut verdicts = Vec::new();
        if let [(key, cost)] = requests[..] {
            verdicts.push(keyed.check(&key.to_le_bytes(), cost));
        } else {
            let keys = requests.iter().map(|(key, cost)| (key.to_le_bytes(), *cost));
            keyed.check_many(keys, |verdict| verdicts.push(verdict));
        }
        for ((key, _), verdict) in requests.iter().zip(&verdicts) {
            let mut granted = verdict.taken().get();
            if *key < KEPT_KEYS && dice.below(10) == 0 {
                granted -= keyed.refund(&key.to_le_bytes(), verdict);
                assert_eq!(granted, 0);
            }
            taken.entry(*key).and_modify(|taken| *taken += granted);
        }
        if dice.below(4) == 0 {
            keyed.reset(&(KEPT_KEYS + dice.below(EVICTED_KEYS)).to_le_bytes());
        }
        round += len;
    }
    taken
}
