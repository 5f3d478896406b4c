//! A seeded simulator of discrete events, which drives the protocols of `tollgate-share`.
//!
//! A run is a function of its seed: nodes, links, a store and their faults are drawn from it, events
//! happen in order of virtual time, and every admitted request goes into a history. The history is then
//! checked with exact integers against `B + r·T + E`, with the excess `E` that the protocol's module
//! header states for the faults that occurred.
//!
//! | drawn from the seed | how |
//! |---|---|
//! | links | delay per message, loss, cuts in both or one direction; messages of a link stay in order |
//! | nodes | crash and restart empty, pauses (nothing happens, the clock goes on), clock rates ±1 % |
//! | store | restarts empty, steps of its clock in both directions |
//! | requests | bursts and steady streams, of different costs, below and above the limit |
//!
//! `TOLLGATE_SEEDS` sets the number of seeds of each test; a failing seed is printed and reproduces
//! the run.

pub mod lease;
pub mod parts;
pub mod peers;
pub mod shares;
pub mod tally;
#[cfg(test)]
mod tests;
mod world;

pub use world::{Clock, Queue, Random, SimulatedLink};

/// Returns the seeds that a test runs: `ordinary` of them, or as many as `TOLLGATE_SEEDS` says.
pub fn seeds_to_run(ordinary: u64) -> std::ops::Range<u64> {
    let given = std::env::var("TOLLGATE_SEEDS").ok().and_then(|text| text.parse().ok());
    0..given.unwrap_or(ordinary)
}

/// Runs a simulation for each seed and stops at the first that fails.
///
/// # Panics
/// With the seed and what it violates.
pub fn run_seeds(ordinary: u64, run: impl Fn(u64) -> Result<(), String>) {
    for seed in seeds_to_run(ordinary) {
        if let Err(why) = run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}
