//! The Tollgate algorithms as pure functions.
//!
//! This crate defines the rate-limiting types and one module per algorithm. The crate reads no clock, takes no lock,
//! does no I/O and has no dependencies. The crate needs `alloc` but not `std`. Time is an argument, the state is a few
//! words that the caller stores, and a decision is data. To limit requests, use the `tollgate` crate, which adds
//! clocks, tables and waiting. Use this crate to build your own limiter on the same arithmetic.
//!
//! # Equivalents of existing limiters
//!
//! The decisions of each existing limiter were recorded under a controlled clock. A test repeats these decisions step
//! by step with the equivalent in this crate (`crates/testkit`, `--test oracles`). The test accepts only intentional
//! differences, each with a name and a reason. The last column lists the differences that matter for a migration.
//!
//! | existing limiter | equivalent here | differences |
//! |---|---|---|
//! | Guava `RateLimiter.create(rate)` | [`PacerParams::bursty`], storing one second | costs are not truncated to microseconds, so 80,000 per second does not become 83,333; the stored time is configurable |
//! | Guava with warm-up | [`PacerParams::warm_up`] with a cold factor of 3000 thousandths | a zero warm-up is an error instead of no limit |
//! | bucket4j `refillGreedy` | [`TokenBucket`] | waits round up, so a retry after the reported wait succeeds; added tokens never fill the bucket above its capacity |
//! | bucket4j `refillIntervally`, aligned or not | [`IntervalBucket`] with [`Steps::Aligned`]; [`Limits`] for several bandwidths | waits round up; a cost above capacity never passes, even after a wait |
//! | bucket4j `replaceConfiguration` | [`Algorithm::weigh_from`] | spent tokens stay spent, as in its `ADDITIVE` mode for larger capacities |
//! | resilience4j `AtomicRateLimiter` | [`IntervalBucket`] with an offset and a [`max_wait`](IntervalBucket::max_wait) | a refused call returns immediately; a cost above the limit never passes; a changed limit applies immediately; draining takes the available permits and forgives no debt |
//! | redis-cell `CL.THROTTLE` | [`TokenBucket`] whose burst is one larger; `tollgate::redis_cell` translates replies | exact for any rate, no overflow, nothing expires early |
//! | rolling-rate-limiter | [`SlidingLog`], with `count_refused` and `minimum_gap` | refused attempts count only with `count_refused`; the wait is the remaining gap, and never zero |
//! | nginx `limit_req` | [`LeakyBucket`] whose burst is one larger; `delay` is [`free`](LeakyBucket::free) | drains to the nanosecond instead of in thousandths of a request per millisecond |
//! | Python limits, fixed window | [`FixedWindow`] with [`Phase::FirstRequest`] | refused hits do not count |
//! | Python limits, moving window | [`SlidingLog`] | a request leaves the log exactly one window later |
//! | Python limits, sliding window counter | [`SlidingWindow`] | the weighted count is not rounded down, because rounding down would admit one request too many |
//!
//! [`SlidingSlices`] and [`Concurrency`] have no counterpart among these limiters. [`SlidingSlices`] is the sliding
//! window of many tutorials, with a duration and a precision. The oldest slice counts in full, so the limit holds in
//! every window.

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
pub use algorithm::{Algorithm, Cells, CellsMut, OffsetCells};
pub use error::LimitError;
pub use limit::Limit;
pub use limits::{Limits, Stamps};
pub use pacer::{PacerParams, PacerState};
pub use params::{BucketParams, DecodedState, Params, WindowParams};
pub use quantity::{Cost, Mono, Nanos, Now, Time, Wall, Window};
pub use rate::Rate;
pub use tokens::Tokens;
pub use verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};
