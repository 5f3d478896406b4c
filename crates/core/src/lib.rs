//! The algorithms of Tollgate, as pure functions.
//!
//! This crate holds the vocabulary of rate limiting and one module per algorithm. It reads no clock, takes no lock,
//! does no I/O, uses no other crate and needs only `alloc`, not `std`: time is an argument, state is a few words kept
//! by the caller, and a decision is data. To limit something, use the `tollgate` crate, which adds clocks, tables and
//! waiting; use this one to build a limiter of your own on the same arithmetic.
//!
//! # Which algorithm an existing limiter corresponds to
//!
//! Every one of these was recorded with an exactly controlled clock and is replayed step by step against ours
//! (`crates/testkit`, `--test oracles`). Where we decide differently on purpose, the replay has a named rule; the last
//! column lists the differences that matter for a migration.
//!
//! | there | here | we differ |
//! |---|---|---|
//! | Guava `RateLimiter.create(rate)` | [`Pacing::bursty`], storing one second | costs are not cut to microseconds, so 80,000 per second are not 83,333; how much is stored is a choice |
//! | Guava with warm-up | [`Pacing::warm_up`] with a cold factor of 3000 thousandths | the same; a warm-up of no time is an error instead of no limit |
//! | bucket4j `refillGreedy` | [`TokenBucket`] | waits round up, so waiting that long succeeds; never above capacity |
//! | bucket4j `refillIntervally`, aligned or not | [`IntervalBucket`] with [`Steps::Aligned`]; several in [`Limits`] | as above; a cost above capacity never passes, also when waiting |
//! | bucket4j `replaceConfiguration` | [`Algorithm::weigh_from`] | what was spent stays spent, which is its `ADDITIVE` for larger capacities |
//! | resilience4j `AtomicRateLimiter` | [`IntervalBucket`] with an offset and a [`max_wait`](IntervalBucket::max_wait) | a refused call returns at once; a cost above the limit never passes; a changed limit counts at once; draining takes what is available now and forgives no debt |
//! | redis-cell `CL.THROTTLE` | [`TokenBucket`] with a burst one larger; `tollgate::redis_cell` translates replies | exact for any rate, no overflow, nothing expires early |
//! | rolling-rate-limiter | [`SlidingLog`], with `count_refused` and `minimum_gap` | refused attempts count only if asked; the wait is what is left of the gap, and never zero |
//! | nginx `limit_req` | [`LeakyBucket`] with a burst one larger; `delay` is [`free`](LeakyBucket::free) | drains to the nanosecond instead of in thousandths per millisecond |
//! | Python limits, fixed window | [`FixedWindow`] with [`Phase::FirstRequest`] | refused hits do not count |
//! | Python limits, moving window | [`SlidingLog`] | free again exactly one window later |
//! | Python limits, sliding window counter | [`SlidingWindow`] | the weighted count is not rounded down, which would let one more pass |
//!
//! [`SlidingSlices`] and [`Concurrency`] have no counterpart among these; the first is what tutorials call a sliding window by
//! duration and precision, with the slice that the window begins in counted as a whole, so that the limit holds in any window.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod algorithm;
mod change;
mod error;
mod limit;
mod limits;
pub mod pacer;
mod params;
mod quantity;
mod quota;
mod rate;
mod ticks;
mod tokens;
mod verdict;

pub use algorithm::concurrency::Concurrency;
pub use algorithm::fixed_window::{FixedWindow, Phase};
pub use algorithm::interval_bucket::{IntervalBucket, Steps};
pub use algorithm::leaky_bucket::LeakyBucket;
pub use algorithm::sliding_log::SlidingLog;
pub use algorithm::sliding_slices::SlidingSlices;
pub use algorithm::sliding_window::SlidingWindow;
pub use algorithm::token_bucket::TokenBucket;
pub use algorithm::{Algorithm, Cells, CellsMut, Offset};
pub use error::LimitError;
pub use limit::Limit;
pub use limits::{Limits, Stamps};
pub use pacer::{Pace, Pacing};
pub use params::{BucketParams, DecodedState, Params, WindowParams};
pub use quantity::{Cost, Mono, Nanos, Now, Time, Wall, Window};
pub use rate::Rate;
pub use tokens::Tokens;
pub use verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};
