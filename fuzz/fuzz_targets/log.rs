//! Access logs: `cargo fuzz run -s none log`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/log.rs"]
mod log;

libfuzzer_sys::fuzz_target!(|input: &[u8]| log::check(input));
