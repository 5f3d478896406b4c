//! Fuzzes path patterns. Runs on the stable toolchain:
//! `cargo fuzz run -s none glob`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/glob.rs"]
mod glob;

libfuzzer_sys::fuzz_target!(|input: &[u8]| glob::check(input));
