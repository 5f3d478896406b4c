//! Fuzzes the HTTP/2 implementation of the rate-limit service. Runs on the stable toolchain:
//! `cargo fuzz run -s none http2`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/http2.rs"]
mod http2;

libfuzzer_sys::fuzz_target!(|input: &[u8]| http2::check(input));
