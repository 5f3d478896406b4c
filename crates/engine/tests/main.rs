//! Tests of the rules and the engine through the public interface, as one program:
//! linking one per file would take most of the time of a test run.

mod any_text;
mod bans;
mod behaviour;
mod calendar;
mod conditions;
mod corpus;
mod documented;
mod explain;
mod explained;
mod explained_overrides;
mod fast_path;
mod faults;
mod golden;
mod import_docs;
mod import_envoy;
mod import_envoy_model;
mod import_nginx;
mod local_fallback;
mod metered;
mod options;
mod overrides;
mod postpaid;
mod reference;
mod reload;
mod replacing;
mod rules;
mod settle;
mod snapshot;
mod support;
mod taking;
mod text;
mod warnings;

#[test]
fn every_file_of_tests_is_listed() {
    let listed = include_str!("main.rs");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).expect("the folder of this file") {
        let name = file.expect("an entry of the folder").file_name().into_string().expect("a name in UTF-8");
        // Its counting allocator would slow down every other test.
        if name == "allocations.rs" {
            continue;
        }
        if let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") {
            assert!(listed.contains(&format!("mod {module};")), "tests/{name} is not listed in tests/main.rs");
        }
    }
}
