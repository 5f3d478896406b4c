//! Protocols by which many nodes share one limit, as state machines without I/O.
//!
//! Nothing here reads a clock, opens a socket or draws a random number: instants, identifiers and
//! messages are arguments, and what is to be sent is a return value. So the same code runs in a
//! server and in the seeded simulator of `tollgate-testkit`, which checks the bound that each module
//! states: with `B` the burst, `r` the rate and `E` the *excess*, at most `B + r·T + E` is admitted
//! in every interval of length `T`.
//!
//! | module | protocol | excess without faults |
//! |---|---|---|
//! | [`lease`] | a pool grants tokens in advance; nodes spend them without a round trip | 0 |
//! | [`tally`] | nodes decide by their own view and merge what they took into the store | (N − 1)·(B + r·δ) |
//! | [`parts`] | a group of charges over several places, all or none, without a lock | min(H, r·c), H what is held for refunds, c how long holds overlap |
//! | [`shares`] | while the store does not answer, each node admits its share of what was left | during the fault: B·(N − 1)/N + N·c + min(B, r·P) |

pub mod hash;
pub mod lease;
pub mod parts;
pub mod shares;
pub mod tally;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
