//! Rate limiting to embed: exact, fast, bounded.
//!
//! Three types hold limits; which one depends on who is counted.
//!
//! | you want | use |
//! |---|---|
//! | one limit for everybody: calls to a partner's API, writes to a disk | [`Limiter`] |
//! | the same limit for each of many keys: users, addresses, tokens | [`Keyed`] |
//! | different limits for different keys, or several keys charged together | [`Ledger`] |
//!
//! Built on them, for particular ways of working:
//!
//! | you want | use |
//! |---|---|
//! | to wait for your turn, in a thread or a task | [`Limiter::acquire`], [`Keyed::acquire`] |
//! | so many at a time, released when done | [`Concurrency`] and a [`Permit`] |
//! | to take now what may cost less, or come to nothing | a [`Permit`] or a [`Reservation`] |
//! | work of your own to flow evenly, with a warm-up | [`Pacer`] |
//! | so many permits a period, as resilience4j has it | [`Periodic`] |
//! | jobs from a bounded queue at a constant rate | [`Shaper`] |
//! | callers let through at a constant rate, few of them waiting | [`Funnel`] |
//! | limiters by name, changed while in use, with events | [`Registry`] |
//!
//! Who knows governor, leaky-bucket, Guava or resilience4j finds the same calls in [`migration`].
//!
//! ```
//! use tollgate::{Keyed, TokenBucket};
//!
//! let per_user = Keyed::new(TokenBucket::new("100/s".parse()?, 20)?, 1_000_000)?;
//! if !per_user.check("alice", 1).is_allowed() {
//!     // 429 Too Many Requests
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which algorithm
//!
//! Every limit is an [`Algorithm`] with its numbers. They differ in what they promise; each module derives its own.
//! `L` is the limit, `W` the window, `T` any interval of time.
//!
//! | algorithm | passes at most, in any interval `T` | words | use it for | not for |
//! |---|---|---|---|---|
//! | [`TokenBucket`] | `burst + rate·T` | 1–2 | nearly everything | quotas that begin anew at midnight |
//! | [`LeakyBucket`] | the same, and let out at a constant rate | 1–2 | smoothing what leaves: callers wait | callers who cannot wait |
//! | [`IntervalBucket`] | `B + refill × steps` in `T` | 1 or 2 | so much every minute on the minute; waiting for a later step | callers that should come evenly |
//! | [`FixedWindow`] | `L` in each window, `2L` across an edge | 2 | quotas per day or month, cheap | strict protection at the edge |
//! | [`SlidingWindow`] | `L + (L/W)·T` | 2–3 | windows without the edge, for large limits | proofs: the previous window is assumed even |
//! | [`SlidingSlices`] | `L` in every window, forgotten up to a slice late | 4 for ten slices | strict and large: a thousand in any minute | limits of a few |
//! | [`SlidingLog`] | `L` in every window, wherever it starts | 1 + `L` | few and strict: five logins a minute | limits above 1024 |
//! | [`Concurrency`] | `L` at the same time | 2 + 3`L` | work in flight, with leases for lost holders | rates |
//!
//! **Token bucket**: a burst at once, then a steady rate.
//! ```
//! # use tollgate::*;
//! let limiter = Limiter::new(TokenBucket::new("10/s".parse()?, 3)?);
//! assert_eq!((0..5).filter(|_| limiter.check(1).is_allowed()).count(), 3);
//! # Ok::<(), LimitError>(())
//! ```
//!
//! **Leaky bucket**: everybody passes, one after the other; the answer is how long to wait.
//! ```
//! # use tollgate::*;
//! # let clock = clock::ManualClock::default();
//! let limiter = Limiter::with_clock(LeakyBucket::new("10/s".parse()?, 3)?, clock);
//! assert_eq!(limiter.check(1).outcome(), Outcome::Allow);
//! assert_eq!(limiter.check(1).outcome(), Outcome::Delay(Nanos::from_millis(100)));
//! # Ok::<(), LimitError>(())
//! ```
//!
//! **Fixed window**: a count that begins anew with each window.
//! ```
//! # use tollgate::*;
//! let quota = Limiter::new(FixedWindow::new(1_000, Nanos::from_secs(86_400))?);
//! assert_eq!((quota.check(400).is_allowed(), quota.report(1).remaining), (true, 600));
//! # Ok::<(), LimitError>(())
//! ```
//!
//! **Sliding window**: the previous window counts for the part of it that is still in sight.
//! ```
//! # use tollgate::*;
//! let limiter = Limiter::new(SlidingWindow::new(100, Nanos::from_secs(60))?);
//! assert!(limiter.check(100).is_allowed() && !limiter.check(1).is_allowed());
//! # Ok::<(), LimitError>(())
//! ```
//!
//! **Sliding log**: remembers every one; here five a minute, and at least a second apart.
//! ```
//! # use tollgate::*;
//! let logins = Keyed::new(SlidingLog::new(5, Nanos::from_secs(60))?.minimum_gap(Nanos::SECOND)?, 10_000)?;
//! assert!(logins.check("alice", 1).is_allowed() && !logins.check("alice", 1).is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Concurrency**: three at a time; who does not come back is forgotten after the lease.
//! ```
//! # use tollgate::*;
//! let slots = Limiter::new(Concurrency::new(3, Nanos::from_secs(30))?);
//! let lease = slots.check(1);
//! assert_eq!(slots.refund(&lease), 1);
//! # Ok::<(), LimitError>(())
//! ```
//!
//! **Several at once**: [`Limits`] passes what all of them let pass, and charges none for what one refuses.
//! ```
//! # use tollgate::*;
//! let limits = Limits::new([
//!     TokenBucket::new("10/s".parse()?, 10)?.into(),
//!     FixedWindow::new(1_000, Nanos::from_secs(86_400))?.into(),
//! ])?;
//! assert!(Keyed::new(limits, 100_000)?.check("alice", 1).is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Waiting
//!
//! [`Limiter::acquire`] gives a future that also blocks a thread if told to [`wait`](Acquire::wait). First come is first served, for
//! each key by itself. Nothing is taken before the turn comes, and dropping the future lets those behind it move up. What
//! cannot be in time, or can never pass, is refused at once. It works under any executor or none, and with any [`clock`]:
//! a small thread, started when first needed and shared by all limiters, wakes those who wait by real time; a
//! [`ManualClock`](clock::ManualClock) wakes them itself.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use tollgate::*;
//! let api = Arc::new(Limiter::new(TokenBucket::new("200/s".parse()?, 1)?));
//! for _ in 0..3 {
//!     api.acquire(1).within(Duration::from_secs(1)).wait()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds for all of them
//!
//! - **Exact.** Whole numbers only, for any rate, with no drift over years. A refused request spends nothing. The wait in a
//!   refusal is true: after it the same request passes, one nanosecond earlier it does not.
//! - **`burst` is the total** that can pass at one instant. A new key starts full unless `initial` says otherwise.
//! - **A cost above capacity** is refused at once, with [`Retry::Never`].
//! - **Verbs** are the same everywhere: `check` takes all or nothing, `take_up_to` what there is, `charge` goes into bounded
//!   debt, `acquire` waits, `refund` gives back what a verdict took, `peek` and `report` change nothing, `reset` forgets, `drain` empties.
//! - **Time** comes from a [`clock`]; tests use [`ManualClock`](clock::ManualClock) and never wait.
//! - **Numbers may change** under way: what was spent stays spent.
//! - **Memory** is fixed when a table is made and touched as it is used. No decision allocates, sweeps or rehashes.

pub mod clock;
mod fingerprint;
mod hold;
mod keyed;
mod ledger;
mod limiter;
mod live;
pub mod migration;
mod paced;
mod periodic;
mod registry;
mod shaper;
mod sync;
mod table;
#[cfg(test)]
mod testing;
mod throttle;
mod wait;

pub use fingerprint::{Hashed, Key};
pub use hold::{Permit, Reservation};
pub use keyed::{Keyed, TooLarge, WhenFull};
pub use ledger::{Charge, Ledger, Numbers, Seat};
pub use limiter::Limiter;
pub use live::Live;
pub use paced::Pacer;
pub use periodic::Periodic;
pub use registry::{Event, Happened, Named, Observed, Registry, RegistryError};
pub use shaper::{Funnel, Overflow, Pushed, Shaper};
pub use throttle::Throttles;
pub use tollgate_core::*;
pub use wait::{Acquire, AcquireError};
