//! Fuzzes the parser of rule files. Runs on the stable toolchain:
//! `cargo fuzz run -s none rules -- -dict=fuzz/rules.dict`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/rules.rs"]
mod rules;

libfuzzer_sys::fuzz_target!(|input: &[u8]| rules::check(input));
