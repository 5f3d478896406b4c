//! The Redis protocol: `cargo fuzz run -s none resp`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/resp.rs"]
mod resp;

libfuzzer_sys::fuzz_target!(|input: &[u8]| resp::check(input));
