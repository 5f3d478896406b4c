//! Test support for Tollgate: models, conformance suites, reference replays and launchers for real
//! servers. Not published; used from `tests/`, never from `src/` of another crate.

pub mod clock;
pub mod conformance;
pub mod eventually;
pub mod golden;
pub mod history;
pub mod model;
pub mod oracle;
pub mod rule_model;
pub mod servers;
pub mod simulator;
pub mod test_files;
