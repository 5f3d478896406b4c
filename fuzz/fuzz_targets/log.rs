//! Fuzzes the parser of access logs. Runs on the stable toolchain:
//! `cargo fuzz run -s none log`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/log.rs"]
mod log;

libfuzzer_sys::fuzz_target!(|input: &[u8]| log::check(input));
