//! Leases: nodes spend tokens that a pool granted in advance, without over-admission.
//!
//! **The naive method** gives each of `N` nodes a fixed share `B/N` at `r/N`. A node with more than
//! its share of the traffic refuses requests while other nodes have unused tokens. Asking the store
//! for every request is exact, but each request costs a round trip.
//!
//! **The idea** is that the store keeps a [`Pool`] per key, which grants tokens to nodes before they need them. A
//! [`Holder`] on each node spends its tokens in memory and reports the spent tokens. The holder returns unneeded
//! tokens, and requests the tokens that it is likely to need in the next second.
//!
//! **The floor.** Let `p` be the tokens left in the pool and `O` the *outstanding* tokens: granted,
//! but neither reported as spent nor returned. If the pool refilled to `B` while `O` tokens are
//! outstanding, nodes could spend `B + O` in one instant. So the pool refills only to `B − O`: the
//! used amount never falls below the *floor* `O`.
//!
//! **Slices.** A node may crash while it holds tokens. So each grant belongs to a *slice* with an
//! expiry by the store's clock. When a slice expires, its outstanding tokens count as spent. The
//! pool keeps one sum per slice instead of one entry per node, so its size does not depend on `N`.
//! A holder stops spending a lease before its slice can expire: at 99 % of the lease's duration.
//! The duration counts from the instant *before* the request was sent, by a clock that runs while
//! the machine sleeps. So clocks may differ by 1 % in rate and by any offset.
//!
//! **Guarantee: E = 0.** Consider `Φ = p + O`. The floor keeps `Φ ≤ B`. Grants and returns do not
//! change `Φ`. A report of `n` spent tokens lowers `Φ` by `n`; an expiry counts as a report; time
//! adds at most `r` per second. Let `u ≤ O` be the spent but unreported tokens. The amount admitted
//! in `(s, t]` is the amount reported in that interval plus `u(t) − u(s)`, so
//!
//! ```text
//! A(s, t] ≤ Φ(s) + r·(t − s) − Φ(t) + u(t) ≤ B + r·(t − s)      since u(t) ≤ O(t) ≤ Φ(t)
//! ```
//!
//! For fixed windows, `E = 0` in each window. A grant counts in the window in which the pool makes it, a lease never
//! outlasts that window, and a return counts only in the same window.
//!
//! **Faults.** The tokens of a crashed node stay outstanding until their slice expires. An exchange
//! whose answer is lost is never repeated, because a return that is sent twice would be credited
//! twice. The node forgets the reported and returned tokens. If the pool did not receive the
//! exchange, these tokens expire with their slice. A store that lost its state starts a new
//! *epoch*. The next report of each node contains the tokens spent since its last report and the
//! tokens it holds. The new pool counts both, so `E ≤ B` per loss. If parameters shrink while
//! leases are outstanding, `E ≤ O`.
//!
//! **Fairness.** With `K` outstanding leases, the pool leases at most `⌈p/2K⌉` beyond the need, and
//! at most half of the burst in advance. A need that cannot be met marks the pool as *hungry* for a second;
//! holders that exchange during that time return unneeded tokens immediately.
//!
//! **Poor choice** for small bursts, because leases tie up a large part of the burst.

mod holder;
mod pool;
mod pool_limit;

pub use holder::{Holder, Reservation, TakeResult};
pub use pool::{Exchange, Grant, LeaseReport, Need, Pool, Slice};
pub use pool_limit::{Level, PoolLimit};

use tollgate_core::Nanos;

/// Duration of a lease by the store's clock. The expiry is rounded up to a whole second.
pub const TTL: Nanos = Nanos::from_secs(5);

/// Time for which a pool stays hungry after a need that it could not meet.
pub const HUNGRY_TIME: Nanos = Nanos::SECOND;
