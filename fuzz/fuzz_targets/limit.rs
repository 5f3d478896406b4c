//! Rates and other limits: `cargo fuzz run -s none limit`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/limit.rs"]
mod limit;

libfuzzer_sys::fuzz_target!(|input: &[u8]| limit::check(input));
