//! Observability for operators: metrics, health, the heaviest keys, and refusals in the log.

pub mod health;
pub mod histogram;
pub mod log;
pub mod metrics;
pub mod peers;
pub mod polls;
mod process;
pub mod refusals;
pub mod rule_metrics;
pub mod stalls;
#[cfg(test)]
pub(crate) mod testing;
pub mod top_keys;
