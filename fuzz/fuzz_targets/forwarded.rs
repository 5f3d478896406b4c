//! Fuzzes forwarded headers and cookies. Runs on the stable toolchain:
//! `cargo fuzz run -s none forwarded`
#![no_main]

#[path = "../../crates/http/tests/fuzzed/forwarded.rs"]
mod forwarded;

libfuzzer_sys::fuzz_target!(|input: &[u8]| forwarded::check(input));
