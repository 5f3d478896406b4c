//! Fuzzes the parser of rates and other limits. Runs on the stable toolchain:
//! `cargo fuzz run -s none limit`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/limit.rs"]
mod limit;

libfuzzer_sys::fuzz_target!(|input: &[u8]| limit::check(input));
