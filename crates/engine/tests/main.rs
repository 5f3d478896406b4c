//! Tests of the rules and the engine through the public interface. The tests are built as one program, because linking
//! one program per file would dominate the test time.

mod arrears;
mod bans;
mod behaviour;
mod calendar;
mod conditions;
mod corpus;
mod documented_cases;
mod explain;
mod fast_path;
mod faults;
mod golden;
mod import_any_text;
mod import_docs;
mod import_envoy;
mod import_envoy_model;
mod import_nginx;
mod local_fallback;
mod meters;
mod operator_explanations;
mod options;
mod override_explanations;
mod overrides;
mod parse_any_text;
mod postpaid;
mod reference;
mod reload;
mod replaces_and_suffices;
mod rules;
mod settle;
mod snapshot;
mod support;
mod take_modes;
mod warnings;

#[test]
fn every_test_file_is_listed() {
    // The counting allocator of `allocations` would slow down every other test.
    tollgate_testkit::test_files::assert_all_files_are_modules(
        env!("CARGO_MANIFEST_DIR"),
        include_str!("main.rs"),
        &["allocations"],
    );
}
