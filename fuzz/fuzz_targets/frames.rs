//! Fuzzes frames between nodes. Runs on the stable toolchain:
//! `cargo fuzz run -s none frames`
#![no_main]

#[path = "../../crates/peers/tests/fuzzed/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|input: &[u8]| frames::check(input));
