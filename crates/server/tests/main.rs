//! Tests of the program from outside, over sockets and the command line, as one program:
//! linking one per file would take most of the time of a test run.

mod answers;
mod broken_service;
mod clients;
mod commands;
mod common;
mod corpus;
mod documents;
mod envoy;
mod examples;
mod explaining;
mod export;
mod first_day;
mod following;
mod forward_auth;
mod history;
mod http;
mod import;
mod lifecycle;
mod limits;
mod messages;
mod outage;
mod proxies;
mod redis_cell;
mod resp;
mod restart;
mod rls;
mod rules_cli;
mod rules_service;
mod safety;
mod stores;
mod tls;
mod verbs;

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
