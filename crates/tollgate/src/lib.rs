#![doc = include_str!("../docs/guide.md")]

mod account;
mod adjustable;
pub mod clock;
pub mod fingerprint;
mod hold;
pub mod keyed;
pub mod ledger;
mod limiter;
pub mod migration;
mod paced;
mod periodic;
pub mod pictures;
pub mod redis_cell;
pub mod registry;
pub mod shaper;
pub mod snapshot;
#[cfg(feature = "stream")]
pub mod stream;
mod sync;
mod table;
#[cfg(test)]
mod testing;
mod wait;

/// Types and algorithms for building a custom limiter.
pub use tollgate_core as core;

pub use adjustable::Adjustable;
pub use fingerprint::Key;
pub use hold::{Permit, Reservation};
pub use keyed::{CapacityError, Keyed};
pub use limiter::Limiter;
pub use paced::Pacer;
pub use periodic::Periodic;
pub use tollgate_core::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, LimitError, Limits, Outcome, Rate, Report, Retry,
    SlidingLog, SlidingSlices, SlidingWindow, TokenBucket, Verdict,
};
pub use wait::AcquireError;

/// Waiting for capacity: the future, its result and its errors.
pub mod acquire {
    pub use crate::wait::{Acquire, AcquireError, Grant};
}
