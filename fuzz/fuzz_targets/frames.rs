//! Frames between nodes: `cargo fuzz run -s none frames`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/peers/tests/fuzzed/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|input: &[u8]| frames::check(input));
