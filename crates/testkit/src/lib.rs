//! Test support for Tollgate: models, conformance suites, reference replays and launchers for real servers. Not
//! published; used by tests and benchmarks only.

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
