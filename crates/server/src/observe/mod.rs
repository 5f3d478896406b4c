//! What can be seen from outside: counters and health.

pub mod metrics;
