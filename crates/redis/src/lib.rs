//! State of limits in Redis or Valkey, shared by many nodes.
//!
//! [`RedisStore`] implements the engine's `Store`. A decision is one call of one [`Script`], which decides any number of charges
//! by the store's own clock, all or none of a group; concurrent decisions of a process share calls. It takes Redis 6.2 or newer, or
//! any Valkey.
//!
//! # Faults
//!
//! What is wrong with the store is told by [`Health`] and in the errors; what then happens to a request is up to its rule. Nobody
//! waits beyond the [deadline](Config::deadline), nothing is sent twice, and no fault has to be mended here: the store is tried
//! again by itself. Each row is caused for real by a test in `tests/outages.rs`, `tests/keys.rs` or the conformance suite.
//!
//! | fault | outcome | test |
//! |---|---|---|
//! | killed | under way: unknown; later: unavailable at once, until it is back | `a_killed_store_is_…`, `a_call_that_is_under_way_…` |
//! | restarted empty, `FLUSHALL` | limits start anew, and hold | `a_killed_store_is_…`, `after_everything_was_flushed_…` |
//! | not there at the start | unavailable until it is | `a_store_that_is_reached_later_…` |
//! | stopped, or too slow | unknown at the deadline, and counted as spent; after half of the last calls unavailable at once | `a_stopped_store_…`, `a_late_answer_…` |
//! | script cache flushed | the script is sent along once more, within the deadline | `a_flushed_script_cache_…` |
//! | wrong password, user without permission | unavailable; the server's words are in the health, the password is nowhere | `a_wrong_password_…`, `a_user_without_permissions_…` |
//! | replica, out of memory | unavailable, nothing is spent | `a_store_that_must_not_write_…` |
//! | a key of another type, a value that is not ours | its groups are rejected with the names of their rules, others are not affected, and it is left as it is | `a_key_of_another_type_…`, `a_value_that_is_not_ours_…` |
//! | a damaged value | rejected, or read as a state; others are not affected | `damaged_values_…` |
//! | a key that lost its expiry | gets one with its next write, and locks nobody out until then | `a_key_that_lost_its_expiry_…` |
//! | calendar windows that do not fit the store's clock | stale, with its time; nothing is spent | `windows_handed_in_are_used_and_must_fit` |

mod answer;
mod batcher;
mod breaker;
mod census;
mod config;
mod link;
mod own;
mod params;
mod request;
pub mod script;
mod store;

pub use batcher::Health;
pub use census::Membership;
pub use config::{Config, ConfigError};
pub use request::spread;
pub use script::Script;
pub use store::{Counts, RedisStore};
