//! Protocols that let many nodes share one limit, as state machines without I/O.
//!
//! Nothing here reads a clock, opens a socket or draws a random number. Instants, identifiers and messages are
//! arguments; outgoing messages are return values. So the same code runs in a server and in the seeded simulator of
//! `tollgate-testkit`. The simulator checks the bound that each module states: in every interval of length `T`, at most
//! `B + r·T + E` is admitted. `B` is the burst, `r` the rate and `E` the *excess*.
//!
//! | module | protocol | excess without faults |
//! |---|---|---|
//! | [`lease`] | a pool grants tokens in advance; nodes spend them without a round trip | 0 |
//! | [`tally`] | nodes decide from their own views and merge their charges into the store | (N − 1)·(B + r·δ) |
//! | [`parts`] | a group of charges at several places, all or none, without a lock | min(H, r·c), where H is the amount held by groups that will be refunded and c the longest time in which holds overlap |
//! | [`shares`] | while the store does not answer, each node admits its share of the remaining tokens | during a fault of length P: B·(N − 1)/N + N·C + min(B, r·P), where C is the largest cost |

pub mod hash;
pub mod lease;
pub mod parts;
pub mod shares;
pub mod tally;

/// Compiles the README example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
