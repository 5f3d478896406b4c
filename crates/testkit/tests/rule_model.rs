//! The engine on its memory store makes the same decisions as the rule model, over random rule sets and traces.
//!
//! `TOLLGATE_MODEL_DECISIONS` sets the number of compared decisions, and `TOLLGATE_MODEL_SEED` sets the
//! first seed.

#![allow(clippy::print_stdout, reason = "a long run prints the number of compared decisions")]

use tollgate_testkit::rule_model::lockstep;
use tollgate_testkit::rule_model::memory::InMemory;

fn number_from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn memory_decides_as_the_model_does() {
    let (seed, decisions) =
        (number_from_env("TOLLGATE_MODEL_SEED", 1), number_from_env("TOLLGATE_MODEL_DECISIONS", 5_000));
    let (compared, traces) = lockstep::compare_random_traces(&mut InMemory::new(), seed, decisions, &[]);
    println!("{compared} decisions of {traces} traces from seed {seed} agree with the model");
}

/// Seeds that once showed a difference. Some of them commit to shadow counters under changed parameters, or commit an
/// additional charge that a log refuses. Some refund to a state in a smaller table than the receipt's limits need, or
/// to a key with more limits than the request was charged to. Some renew leases after the rule has changed, or use
/// calendar windows that differ from the key's windows. In others, a key has entries in two tables, or a rule is
/// removed and added again with longer states. In the remaining seeds, a log's stamp equals the end of a slice or the
/// number of a slot, or a request that matches two rules is refused after a rule changed to a longer list of limits.
#[test]
fn memory_decides_as_the_model_does_for_known_seeds() {
    let before = [18, 1_080, 1_457, 2_037, 3_144, 5_023];
    let later = [
        455, 495, 671, 770, 1_118, 1_915, 1_921, 2_121, 2_688, 3_423, 3_524, 3_869, 5_492, 5_570, 7_827, 8_905,
        10_000_104, 19_000_419,
    ];
    for seed in before.into_iter().chain(later) {
        lockstep::compare_random_traces(&mut InMemory::new(), seed, 1, &[]);
    }
}
