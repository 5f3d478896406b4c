//! The text of rules: `cargo fuzz run -s none rules -- -dict=fuzz/rules.dict`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/rules.rs"]
mod rules;

libfuzzer_sys::fuzz_target!(|input: &[u8]| rules::check(input));
