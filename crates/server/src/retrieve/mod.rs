//! Where rules come from.

pub mod file;
pub mod include;
