//! Tests of the store on real Redis and Valkey servers, as one program:
//! linking one per file would take most of the time of a test run.

mod addresses;
mod bans;
mod census;
mod changed_parameters;
mod conformance;
mod keys;
mod outages;
mod rule_model;
mod settle;
mod stalls;
mod suffices;
mod support;
mod traces;

#[test]
fn every_file_of_tests_is_listed() {
    let listed = include_str!("main.rs");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).expect("the folder of this file") {
        let name = file.expect("an entry of the folder").file_name().into_string().expect("a name in UTF-8");
        if let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") {
            assert!(listed.contains(&format!("mod {module};")), "tests/{name} is not listed in tests/main.rs");
        }
    }
}
