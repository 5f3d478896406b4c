//! Files of the reference Envoy service: `cargo fuzz run -s none import_envoy -- -dict=fuzz/import_envoy.dict`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/import.rs"]
#[allow(dead_code, reason = "the other dialect has a target of its own")]
mod import;

libfuzzer_sys::fuzz_target!(|input: &[u8]| import::check_envoy(input));
