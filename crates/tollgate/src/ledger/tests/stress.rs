//! Runs concurrent threads on a table that is too small for their keys.

use std::collections::HashMap;

use super::*;
use crate::table::{EntryPosition, positions};
use crate::testing::{Rng, on_threads};

const BURST: u64 = 100;
/// Number of keys that are never evicted, because they have used more than any new key can use.
const KEPT_KEYS: u64 = 40;
/// Number of keys that are constantly inserted and evicted.
const EVICTED_KEYS: u64 = 400;
const THREADS: u64 = 4;

fn key_bytes(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

fn charge(key_bytes: &[u8], cost: u64) -> Charge<'_> {
    Charge::new(0, key_bytes, cost)
}

#[test]
fn threads_with_groups_of_keys_in_a_full_table_neither_lose_nor_gain_anything() {
    let log = SlidingLog::new(BURST, DAY).unwrap();
    for (limits, rounds) in
        [(single_limit(bucket(BURST)), 80_000), (single_limit(daily_window(BURST)), 80_000), (single_limit(log), 8_000)]
    {
        let limit_table = &[limits][..];
        let (ledger, _) = ledger(80, limit_table[0].words());
        for key in 0..KEPT_KEYS {
            assert!(ledger.decide(limit_table, &[charge(&key_bytes(key), 51)], |_, _| ()));
        }
        let taken = on_threads(THREADS, |thread| charge_and_refund(&ledger, limit_table, thread, rounds / THREADS));
        for key in 0..KEPT_KEYS {
            let granted = 51 + taken.iter().map(|taken| taken[&key]).sum::<u64>();
            let report = ledger.peek(limit_table, &charge(&key_bytes(key), 1), |view| view.reports(1).next().unwrap());
            assert!(granted <= BURST, "{granted} were granted to key {key}");
            assert_eq!(BURST - report.remaining, granted, "used and granted amounts of key {key} differ");
        }
        let granted: u64 = (0..KEPT_KEYS).flat_map(|key| taken.iter().map(move |taken| taken[&key])).sum();
        assert!(granted > KEPT_KEYS * 40, "too few grants to prove anything: {granted}");
        assert!(ledger.overflowed() > 100, "the table was not full");
        assert_sound(&ledger, limit_table);
    }
}

/// Charges one to three random keys at a time, refunds some charges, and returns the net amount granted to each key.
fn charge_and_refund(ledger: &TestLedger, limit_table: &[Limits], thread: u64, rounds: u64) -> HashMap<u64, u64> {
    let mut dice = Rng::new(thread);
    let mut taken: HashMap<u64, u64> = (0..KEPT_KEYS + EVICTED_KEYS).map(|key| (key, 0)).collect();
    for _ in 0..rounds {
        let keys = [(); 3].map(|()| match dice.below(3) {
            0 => dice.below(KEPT_KEYS),
            _ => KEPT_KEYS + dice.below(EVICTED_KEYS),
        });
        let keys = &keys[..1 + dice.below(3) as usize];
        // The keys that stay have small costs, so that their limit is not used up. The other keys use up to half of
        // their limit.
        let is_kept = |key: &u64| *key < KEPT_KEYS;
        let cost = 1 + dice.below(if keys.iter().any(is_kept) { 3 } else { 50 });
        let names: Vec<[u8; 8]> = keys.iter().copied().map(key_bytes).collect();
        let charges: Vec<Charge<'_>> = names.iter().map(|key_bytes| charge(key_bytes, cost)).collect();
        let mut verdicts = Vec::new();
        let passed = ledger.decide(limit_table, &charges, |_, view| {
            assert!(view.reports(1).all(|report| report.remaining <= BURST));
            verdicts.push(view.verdict().is_admitted());
        });
        assert_eq!(passed, verdicts.iter().all(|allowed| *allowed));
        if passed {
            keys.iter().for_each(|key| *taken.entry(*key).or_default() += cost);
        }
        if passed && is_kept(&keys[0]) && dice.below(10) == 0 {
            assert_eq!(ledger.refund(limit_table, &charges[0], cost, None), cost);
            taken.entry(keys[0]).and_modify(|taken| *taken -= cost);
        }
        if dice.below(4) == 0 {
            ledger.reset(limit_table, &charge(&key_bytes(KEPT_KEYS + dice.below(EVICTED_KEYS)), 0));
        }
    }
    taken
}

/// Checks that no key has two entries, that searches find every key, and that no bucket is left locked.
fn assert_sound(ledger: &TestLedger, limit_table: &[Limits]) {
    let reader = LedgerReader { limit_table, now: ledger.clock.now() };
    let mut seen = HashMap::new();
    for EntryPosition { fingerprint, findable, bucket } in positions(&ledger.table, &reader) {
        assert!(findable, "a search does not find the entry in bucket {bucket}");
        assert_eq!(seen.insert((fingerprint.low, fingerprint.high), bucket), None, "a key has two entries");
    }
    assert!(seen.len() > 90, "the table has lost entries, {} are left", seen.len());
}
