//! Pictures of every algorithm under the same traffic, drawn from real decisions.
//!
//! All limits admit about three requests per second. The traffic starts with a few requests, followed by bursts shortly
//! before and after the fourth second, a steady overload, a pause, and a final burst. The line at the bottom of each
//! picture shows the state of the limit.
//!
//! This module has no items. The example `pictures` draws the pictures.
//!
//! # Token bucket
//!
//! A burst passes immediately, then requests pass at a steady rate: [`TokenBucket`](crate::TokenBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/token_bucket.svg"), "</div>\n")]
//!
//! # Leaky bucket
//!
//! Requests are delayed to a steady rate: [`LeakyBucket`](crate::LeakyBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/leaky_bucket.svg"), "</div>\n")]
//!
//! # Interval bucket
//!
//! Tokens arrive in portions, once per interval: [`IntervalBucket`](crate::IntervalBucket).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/interval_bucket.svg"), "</div>\n")]
//!
//! # Fixed window
//!
//! Eighteen requests pass within two seconds around the window edge at four seconds:
//! [`FixedWindow`](crate::FixedWindow).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/fixed_window.svg"), "</div>\n")]
//!
//! # Sliding window
//!
//! There is no burst at the window edge, but the count is an estimate: [`SlidingWindow`](crate::SlidingWindow).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_window.svg"), "</div>\n")]
//!
//! # Sliding slices
//!
//! Counts expire in slices of one second: [`SlidingSlices`](crate::SlidingSlices).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_slices.svg"), "</div>\n")]
//!
//! # Sliding log
//!
//! Each request expires four seconds after its arrival: [`SlidingLog`](crate::SlidingLog).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/sliding_log.svg"), "</div>\n")]
//!
//! # Concurrency
//!
//! A request is refused while three requests are in flight: [`Concurrency`](crate::Concurrency).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/concurrency.svg"), "</div>\n")]
//!
//! # Bursty pacer
//!
//! Stored permits are free, and each caller waits for the previous caller's cost:
//! [`PacerParams::bursty`](tollgate_core::PacerParams::bursty).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/pacer_bursty.svg"), "</div>\n")]
//!
//! # Pacer with warm-up
//!
//! Requests pass slowly at first and after an idle time: [`PacerParams::warm_up`](tollgate_core::PacerParams::warm_up).
//!
#![doc = concat!("<div>\n", include_str!("../docs/pictures/pacer_warm_up.svg"), "</div>\n")]
