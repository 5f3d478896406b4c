//! Fuzzes messages from an xDS server. Runs on the stable toolchain:
//! `cargo fuzz run -s none xds`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/xds.rs"]
mod xds;

libfuzzer_sys::fuzz_target!(|input: &[u8]| xds::check(input));
