//! Leases: nodes spend tokens that a pool has granted them in advance, and nothing is over-admitted.
//!
//! **The naive method** gives each of `N` nodes a fixed share `B/N` at `r/N`. A node with more than its
//! share of the traffic refuses while others have unused tokens. Asking the store for every request is
//! exact, and costs a round trip each.
//!
//! **The idea** is that the store keeps a [`Pool`] per key, which grants tokens to nodes before they
//! need them. A [`Holder`] on each node spends what it holds in memory, reports what it spent, returns
//! what it does not need, and asks for as much as it is likely to need in the next second.
//!
//! **The floor.** Let `p` be what the pool has left and `O` the tokens that are *outstanding*: granted,
//! and neither reported as spent nor returned. If the pool refilled to `B` while `O` tokens are out,
//! nodes could spend `B + O` in one instant. So it refills to `B − O` only.
//!
//! **Slices.** A node may crash while it holds tokens. A grant therefore belongs to a *slice*, which
//! has an expiry by the store's clock; when it expires, what is outstanding in it counts as spent. The
//! pool keeps one sum per slice and not one entry per node, so its size does not depend on `N`. A
//! holder stops spending a lease before its slice can expire: at 99 % of the lease's length, counted
//! from the instant *before* the request for it was sent, by a clock that runs while the machine
//! sleeps. So clocks may differ by 1 % in rate and by any amount in setting.
//!
//! **Guarantee: E = 0.** Consider `Φ = p + O`. The floor keeps `Φ ≤ B`. A grant and a return leave `Φ`
//! as it is; a report of `s` spent tokens lowers it by `s`; an expiry counts as a report; time adds at
//! most `r` per second. Let `u ≤ O` be spent and unreported. What is admitted in `(s, t]` is what is
//! reported in it plus `u(t) − u(s)`, so
//!
//! ```text
//! A(s, t] ≤ Φ(s) + r·(t − s) − Φ(t) + u(t) ≤ B + r·(t − s)      since u(t) ≤ O(t) ≤ Φ(t)
//! ```
//!
//! For a fixed window the same holds in each window: a grant counts in the window it is made in, a
//! lease ends with the window at the latest, and a return counts only in the same window.
//!
//! **Faults.** A node that crashes strands its lease until the slice expires. An exchange whose answer
//! is lost is never repeated: what it reported and returned is forgotten by the node, and whatever of
//! it the pool did not learn expires with its slice. (A return that is sent twice would be given back
//! twice.) A store that lost its state has another *epoch*; nodes re-assert what they spent since
//! their last report and what they hold, so `E ≤ B` per loss. Parameters that shrink while leases
//! are out: `E ≤ O`.
//!
//! **Fairness.** With `K` leases out, a grant is at most `⌈p/2K⌉`, and no more than half of the burst
//! is ever outstanding in advance. A need that cannot be met marks the pool as *hungry* for a second;
//! holders that exchange meanwhile return what they do not need at once.
//!
//! **Poor choice** for small bursts, of which leases strand a large part.

mod holder;
mod meter;
mod pool;

pub use holder::{Holder, Reservation, Taking};
pub use meter::{Level, Meter};
pub use pool::{Exchange, Grant, Need, Pool, Settle, Slice};

use tollgate_core::Nanos;

/// How long a lease lasts by the store's clock, rounded up to a whole second.
pub const TTL: Nanos = Nanos::from_secs(5);

/// How long the pool is hungry after a need that it could not meet.
pub const HUNGRY: Nanos = Nanos::SECOND;
