//! What can be seen from outside: counters and health.

pub mod following;
pub mod health;
pub mod metrics;
pub mod refusals;
pub mod stalls;
pub mod top_keys;
