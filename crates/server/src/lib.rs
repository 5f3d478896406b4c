//! The parts of the `tollgate` program.

pub mod app;
pub mod client;
pub mod command;
pub mod config;
pub mod control;
pub mod http;
pub mod net;
pub mod observe;
pub mod ops;
mod percent;
pub mod resp;
pub mod retrieve;
