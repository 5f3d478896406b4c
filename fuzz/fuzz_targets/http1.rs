//! Fuzzes HTTP/1.1 with and without the fast path for checks. Runs on the stable toolchain:
//! `cargo fuzz run -s none http1`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/http1.rs"]
mod http1;

libfuzzer_sys::fuzz_target!(|input: &[u8]| http1::check(input));
