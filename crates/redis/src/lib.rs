//! Limit states in Redis or Valkey, shared by many nodes.
//!
//! [`RedisStore`] implements the engine's `Store`. A decision is one script call (see [`script`]). The script uses the
//! store's clock, and takes either all charges of a group or none. Concurrent decisions in a process share calls. Rules
//! with `consistency: leased` or `eventual` are decided locally: `leased` from tokens that the store granted in
//! advance, `eventual` from the last known state of the key. Requires Redis 6.2 or newer, or any Valkey.
//!
//! # Faults
//!
//! [`Health`] and the errors report store faults; the matching rule then determines whether a request is admitted. No
//! request waits beyond the [deadline](Config::deadline), no charge is counted twice, and a failed store is probed
//! until it recovers. For each row of this table, the named tests cause the fault in a real server. Tests without a
//! file name are in `tests/outages.rs`, in `tests/keys.rs` or in the conformance suite.
//!
//! | fault | outcome | test |
//! |---|---|---|
//! | killed | in flight: unknown; later: unavailable immediately, until the store recovers | `killed_store_…`, `call_in_progress_…` |
//! | restarted empty, `FLUSHALL` | limits start unused and are enforced from then on | `killed_store_…`, `after_flushall_…` |
//! | unreachable at startup | unavailable until the store is reachable | `store_reached_later_…` |
//! | stopped, or too slow | unknown at the deadline, and counted as spent; once half of the recent calls have failed, unavailable immediately | `stopped_store_…`, `late_answer_…` |
//! | script cache flushed | the script is sent again, within the deadline | `flushed_script_cache_…` |
//! | wrong password, user without permission | unavailable; the health contains the server's message, never the password | `wrong_password_…`, `user_without_permission_…` |
//! | replica, out of memory | unavailable; nothing is spent | `store_that_cannot_write_…` |
//! | a key with another type or another program's value | groups with this key are rejected, and the error names their rules; other groups are not affected; the value is kept | `key_of_another_type_…`, `foreign_value_…` |
//! | a damaged value | rejected, or decoded as some state; other keys are not affected | `damaged_values_…` |
//! | a key that lost its expiry | the next write sets one; no request is refused because of the missing expiry | `key_without_expiry_…` |
//! | Sentinel failover | in flight: unknown; then unavailable until the new primary answers; unreplicated writes are lost | `sentinel.rs` |
//! | a cluster primary killed or stopped | its lanes behave as above until a replica takes over; other lanes are not affected | `cluster.rs` |
//! | a cluster slot moves | its groups are sent again, to the server that has their keys | `cluster.rs` |
//! | any of these, `consistency: leased` | leases are spent first, until they expire; a grant whose reply is lost counts as spent | `faults/shared.rs`, `leased.rs` |
//! | any of these, `consistency: eventual` | the node decides from its last known states; its charges are merged exactly once when the store answers | `faults/shared.rs`, `eventual.rs` |
//! | calendar windows that do not contain the store's time | stale, with the store's time; nothing is spent | `given_windows_must_contain_the_store_time` |

mod answer;
mod batcher;
mod breaker;
mod census;
mod cluster;
mod config;
mod diagnosis;
mod durations;
mod jobs;
mod lanes;
mod limits_cache;
mod link;
mod own_state;
mod params;
mod parts;
mod primary;
mod refusals;
mod request;
mod routing;
pub mod script;
mod sentinel;
mod sharing;
mod store;
mod suspects;

pub use batcher::Health;
pub use census::Membership;
pub use config::{Config, ConfigError};
pub use diagnosis::{Diagnosis, diagnose};
pub use durations::{BUCKET_BOUNDS_US, DurationHistogram};
pub use request::spread_number;
pub use script::Scripts;
pub use sharing::{Overshoot, SharingStats};
pub use store::{Counts, RedisStore};

/// Compiles the README example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
