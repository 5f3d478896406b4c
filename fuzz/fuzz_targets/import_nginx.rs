//! Fuzzes the import of nginx configurations. Runs on the stable toolchain:
//! `cargo fuzz run -s none import_nginx -- -dict=fuzz/import_nginx.dict`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/import.rs"]
#[allow(dead_code, reason = "the other dialect has its own target")]
mod import;

libfuzzer_sys::fuzz_target!(|input: &[u8]| import::check_nginx(input));
