//! The HTTP/2 of the rate-limit service: `cargo fuzz run -s none http2`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/http2.rs"]
mod http2;

libfuzzer_sys::fuzz_target!(|input: &[u8]| http2::check(input));
