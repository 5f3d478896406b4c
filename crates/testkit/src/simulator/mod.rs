//! A seeded discrete-event simulator that drives the protocols of `tollgate-share` and `tollgate-peers`.
//!
//! A run is a function of its seed: nodes, links, a store and their faults are drawn from the seed. Events happen in
//! virtual time, and every admitted request is added to a history. The history is then checked with exact integer
//! arithmetic. Every interval may admit at most `B + r·T + E`. For window limits, every window may admit at most the
//! limit plus
//! `E`. The protocol's module header states the excess `E` for each kind of fault.
//!
//! | drawn from the seed | how |
//! |---|---|
//! | links | delay per message, loss, cuts in both or one direction; messages of a link stay in order |
//! | nodes | crash and restart empty, pauses (nothing happens, the clock keeps running), clock rates ±1 % |
//! | store | restarts empty, steps of its clock in both directions |
//! | requests | bursts and steady streams, of different costs, below and above the limit |
//!
//! `TOLLGATE_SEEDS` sets the number of seeds per test. A failing seed is printed and reproduces the run.

pub mod lease;
pub mod parts;
pub mod peers;
pub mod shares;
pub mod tally;
#[cfg(test)]
mod tests;
mod world;

pub use world::{EventQueue, Random, SimulatedClock, SimulatedLink};

/// Returns the seeds to run. Their number is `ordinary`, unless `TOLLGATE_SEEDS` sets another
/// number.
pub fn seeds_to_run(ordinary: u64) -> std::ops::Range<u64> {
    let given = std::env::var("TOLLGATE_SEEDS").ok().and_then(|text| text.parse().ok());
    0..given.unwrap_or(ordinary)
}

/// Runs a simulation for each seed and stops at the first failure.
///
/// # Panics
/// Panics if a run fails. The message contains the seed and the violation.
pub fn run_seeds(ordinary: u64, run: impl Fn(u64) -> Result<(), String>) {
    for seed in seeds_to_run(ordinary) {
        if let Err(why) = run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}
