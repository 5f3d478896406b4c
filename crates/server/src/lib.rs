//! The modules of the `tollgate` program.

pub mod app;
#[cfg(test)]
mod bounds;
pub mod cli;
pub mod client;
pub mod console;
pub mod control;
pub mod counters;
pub mod http;
pub mod live;
pub mod net;
pub mod observe;
pub mod ops;
pub mod replay;
pub mod resp;
pub mod rls;
pub mod rules_source;
