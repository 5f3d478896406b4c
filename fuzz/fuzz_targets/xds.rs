//! Bytes from an xDS server: `cargo fuzz run -s none xds`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/xds.rs"]
mod xds;

libfuzzer_sys::fuzz_target!(|input: &[u8]| xds::check(input));
