//! HTTP: decisions as JSON, health, metrics and the switch.

mod decide;
mod explain;
pub mod limits;
pub(crate) mod line;
mod memo;
pub mod problem;
mod route;
mod serve;
mod translate;
pub mod wire;

pub(crate) use decide::words;
pub use serve::{Answer, serve};
