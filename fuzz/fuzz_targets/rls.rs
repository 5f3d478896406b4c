//! Fuzzes messages to the rate-limit service. Runs on the stable toolchain:
//! `cargo fuzz run -s none rls`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/rls.rs"]
mod rls;

libfuzzer_sys::fuzz_target!(|input: &[u8]| rls::check(input));
