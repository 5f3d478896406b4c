//! The algorithms of Tollgate, as pure functions.
//!
//! This crate holds the vocabulary of rate limiting and one module per algorithm. It reads no clock, takes no lock, does
//! no I/O and uses no other crate: time is an argument, state is a few words kept by the caller, and a decision is data.
//! To limit something, use the `tollgate` crate, which adds clocks, tables and waiting; use this one to build a limiter of
//! your own on the same arithmetic.

pub mod algorithm;
mod bucket;
mod error;
mod limit;
mod limits;
pub mod pacer;
mod quantity;
mod quota;
mod rate;
pub mod redis_cell;
mod terms;
mod ticks;
mod verdict;

pub use algorithm::concurrency::Concurrency;
pub use algorithm::fixed_window::{FixedWindow, Phase};
pub use algorithm::interval_bucket::{IntervalBucket, Steps};
pub use algorithm::leaky_bucket::LeakyBucket;
pub use algorithm::sliding_log::SlidingLog;
pub use algorithm::sliding_slices::SlidingSlices;
pub use algorithm::sliding_window::SlidingWindow;
pub use algorithm::token_bucket::TokenBucket;
pub use algorithm::{Algorithm, Cells, CellsMut};
pub use error::LimitError;
pub use limit::Limit;
pub use limits::{Limits, Stamps};
pub use pacer::{Pace, Pacing};
pub use quantity::{Cost, Mono, Nanos, Now, Time, Wall, Window};
pub use rate::Rate;
pub use terms::{BucketTerms, Kept, Terms, WindowTerms};
pub use verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};
