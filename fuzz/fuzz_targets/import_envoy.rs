//! Fuzzes the import of configurations of Envoy's reference rate-limit service. Runs on the stable toolchain:
//! `cargo fuzz run -s none import_envoy -- -dict=fuzz/import_envoy.dict`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/import.rs"]
#[allow(dead_code, reason = "the other dialect has its own target")]
mod import;

libfuzzer_sys::fuzz_target!(|input: &[u8]| import::check_envoy(input));
