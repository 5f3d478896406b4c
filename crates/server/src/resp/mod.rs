//! The Redis protocol: `CL.THROTTLE` for everybody who used redis-cell, `TG.CHECK` for rules, and what clients send when they
//! connect, so that every Redis client is a client of ours.

mod act;
mod asked;
mod command;
mod decide;
pub mod limits;
mod memo;
mod pipeline;
mod replay;
mod serve;
pub mod translate;
pub mod wire;

pub use replay::Replay;
pub use serve::serve;
