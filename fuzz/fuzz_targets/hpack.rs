//! Fuzzes HPACK header compression. Runs on the stable toolchain:
//! `cargo fuzz run -s none hpack`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/hpack.rs"]
mod hpack;

libfuzzer_sys::fuzz_target!(|input: &[u8]| hpack::check(input));
