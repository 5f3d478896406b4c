//! Forwarded headers and cookies: `cargo fuzz run -s none forwarded`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/http/tests/fuzzed/forwarded.rs"]
mod forwarded;

libfuzzer_sys::fuzz_target!(|input: &[u8]| forwarded::check(input));
