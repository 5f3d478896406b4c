//! Fuzzes the Redis protocol. Runs on the stable toolchain:
//! `cargo fuzz run -s none resp`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/resp.rs"]
mod resp;

libfuzzer_sys::fuzz_target!(|input: &[u8]| resp::check(input));
