//! What the tests of Tollgate are made of. Never published; used from `tests/`, never from `src/` of another crate.

pub mod clock;
pub mod conformance;
pub mod golden;
pub mod history;
pub mod model;
pub mod oracle;
pub mod rule_model;
pub mod servers;
