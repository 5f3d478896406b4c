//! Tests of the program from outside, over sockets and the command line. The tests form one program, because linking
//! one program per file would take most of the time of a test run.

mod answers;
mod bad_peers;
mod broken_service;
mod browser;
mod clients;
mod commands;
mod common;
mod console;
mod corpus;
mod doctor;
mod documents;
mod envoy;
mod examples;
mod explaining;
mod export;
mod faults;
mod first_day;
mod following;
mod forward_auth;
mod history;
mod http;
mod http1;
mod http2;
mod import;
mod leased_cluster;
mod lifecycle;
mod limits;
mod messages;
mod namespaces;
mod outage;
mod partitions;
mod peer_faults;
mod peers;
mod prometheus;
mod proxies;
mod redis_cell;
mod replay;
mod resp;
mod restart;
mod rights;
mod rls;
mod rls_fields;
mod rls_quota;
mod rules_cli;
mod rules_service;
mod safety;
mod sharing_picture;
mod sticky;
mod stores;
mod tls;
mod verbs;
mod xds;

#[test]
fn every_test_file_is_listed() {
    tollgate_testkit::test_files::assert_all_files_are_modules(
        env!("CARGO_MANIFEST_DIR"),
        include_str!("main.rs"),
        &[],
    );
}
