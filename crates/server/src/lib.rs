//! The parts of the `tollgate` program.

pub mod acquire;
pub mod aside;
pub mod client;
pub mod command;
pub mod config;
pub mod control;
pub mod drain;
pub mod front;
pub mod gate;
pub mod observe;
pub mod once;
mod percent;
pub mod retrieve;
pub mod worker;
