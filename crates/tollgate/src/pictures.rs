//! The same traffic through every algorithm, drawn from the decisions they made.
//!
//! All limits admit about three requests a second, as far as their parameters allow. First come a few requests, then
//! many at once shortly before and after the fourth second, then steadily more than the limits admit, then none for a
//! while, and many at once again. The line below is the state of the limit.
//!
//! This module has no items. The pictures are made by the example `pictures`.
//!
//! # Token bucket
//!
//! A burst at once, then a steady rate: [`TokenBucket`](crate::TokenBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/token_bucket.svg"), "</div>\n")]
//!
//! # Leaky bucket
//!
//! All requests pass, one after the other: [`LeakyBucket`](crate::LeakyBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/leaky_bucket.svg"), "</div>\n")]
//!
//! # Interval bucket
//!
//! Portions, whole: [`IntervalBucket`](crate::IntervalBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/interval_bucket.svg"), "</div>\n")]
//!
//! # Fixed window
//!
//! Eighteen pass around the edge at four seconds: [`FixedWindow`](crate::FixedWindow).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/fixed_window.svg"), "</div>\n")]
//!
//! # Sliding window
//!
//! The edge is gone, and the count is an estimate: [`SlidingWindow`](crate::SlidingWindow).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_window.svg"), "</div>\n")]
//!
//! # Sliding slices
//!
//! Counts expire a second at a time: [`SlidingSlices`](crate::SlidingSlices).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_slices.svg"), "</div>\n")]
//!
//! # Sliding log
//!
//! Each request expires four seconds after it came: [`SlidingLog`](crate::SlidingLog).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_log.svg"), "</div>\n")]
//!
//! # Concurrency
//!
//! A request is refused while three are in progress: [`Concurrency`](crate::Concurrency).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/concurrency.svg"), "</div>\n")]
//!
//! # Bursty pacer
//!
//! Stored permits are free, and the next one pays: [`Pacing::bursty`](tollgate_core::Pacing::bursty).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/pacer_bursty.svg"), "</div>\n")]
//!
//! # Pacer with warm-up
//!
//! Slow at first and after idling: [`Pacing::warm_up`](tollgate_core::Pacing::warm_up).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/pacer_warm_up.svg"), "</div>\n")]
