//! State of limits in Redis or Valkey, shared by many nodes.
//!
//! [`RedisStore`] implements the engine's `Store`. A decision is one call of a script (see [`script`]), which
//! decides any number of charges by the store's own clock, all or none of a group; concurrent
//! decisions of a process share calls. Keys of rules with `consistency: leased` or `eventual` are decided on the node, by what the
//! store granted or reported before. It requires Redis 6.2 or newer, or any Valkey.
//!
//! # Faults
//!
//! [`Health`] and the errors report faults of the store; the rule that a request matches determines what happens to the
//! request. No request waits beyond the [deadline](Config::deadline), nothing is sent twice, and the store is probed
//! until it recovers. Each row is caused for real by a test in `tests/outages.rs`, `tests/keys.rs` or the conformance
//! suite.
//!
//! | fault | outcome | test |
//! |---|---|---|
//! | killed | in progress: unknown; later: unavailable immediately, until it recovers | `killed_store_…`, `call_in_progress_…` |
//! | restarted empty, `FLUSHALL` | limits start unused, and hold | `killed_store_…`, `after_flushall_…` |
//! | unreachable at the start | unavailable until it is reachable | `store_reached_later_…` |
//! | stopped, or too slow | unknown at the deadline, and counted as spent; after half of the last calls unavailable immediately | `stopped_store_…`, `late_answer_…` |
//! | script cache flushed | the script is sent again, within the deadline | `flushed_script_cache_…` |
//! | wrong password, user without permission | unavailable; the health has the message of the server, never the password | `wrong_password_…`, `user_without_permission_…` |
//! | replica, out of memory | unavailable, nothing is spent | `store_that_cannot_write_…` |
//! | a key of another type, a value of another program | its groups are rejected with the names of their rules, others are not affected, and it is left as it is | `key_of_another_type_…`, `foreign_value_…` |
//! | a damaged value | rejected, or decoded as a state; others are not affected | `damaged_values_…` |
//! | a key that lost its expiry | gets one with its next write, and refuses no request until then | `key_without_expiry_…` |
//! | failover by Sentinel | in progress: unknown; unavailable until the new primary answers; what was not replicated is lost | `sentinel.rs` |
//! | a primary of a cluster killed or stopped | its lanes as above, until a replica has taken over; other lanes are not affected | `cluster.rs` |
//! | a slot of a cluster is moved | its groups are sent again where their keys are | `cluster.rs` |
//! | any of these, `consistency: leased` | leases are spent first, until they expire; what was granted with an answer that is lost counts as spent | `faults/shared.rs`, `leased.rs` |
//! | any of these, `consistency: eventual` | the node goes on by what it knows; what it took is merged exactly once when the store answers | `faults/shared.rs`, `eventual.rs` |
//! | calendar windows that do not fit the store's clock | stale, with its time; nothing is spent | `windows_handed_in_are_used_and_must_fit` |

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
mod link;
mod own;
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
pub use durations::{BOUNDS_US, Durations};
pub use request::spread;
pub use script::Scripts;
pub use sharing::{Overshoot, Shared};
pub use store::{Counts, RedisStore};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
