//! Messages to the rate-limit service: `cargo fuzz run -s none rls`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/rls.rs"]
mod rls;

libfuzzer_sys::fuzz_target!(|input: &[u8]| rls::check(input));
