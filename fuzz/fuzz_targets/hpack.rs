//! Header compression: `cargo fuzz run -s none hpack`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/hpack.rs"]
mod hpack;

libfuzzer_sys::fuzz_target!(|input: &[u8]| hpack::check(input));
