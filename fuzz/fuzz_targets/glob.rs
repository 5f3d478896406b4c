//! Patterns for paths: `cargo fuzz run -s none glob`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/glob.rs"]
mod glob;

libfuzzer_sys::fuzz_target!(|input: &[u8]| glob::check(input));
