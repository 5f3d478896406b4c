//! Tests of the store on real Redis and Valkey servers. All tests form one program, because linking one program per
//! file would take most of the time of a test run.

mod addresses;
mod bans;
mod census;
mod changed_parameters;
mod cluster;
mod conformance;
mod eventual;
mod faults;
mod keys;
mod leased;
mod outages;
mod refusals;
mod rule_model;
mod sentinel;
mod settled_reservations;
mod stalls;
mod suffices_rules;
mod support;
mod traces;

#[test]
fn every_test_file_is_listed() {
    tollgate_testkit::test_files::assert_all_files_are_modules(
        env!("CARGO_MANIFEST_DIR"),
        include_str!("main.rs"),
        &[],
    );
}
