//! Fuzzes rule expressions. Runs on the stable toolchain:
//! `cargo fuzz run -s none expression -- -dict=fuzz/expression.dict`
#![no_main]

#[path = "../../crates/engine/tests/fuzzed/expression.rs"]
mod expression;

libfuzzer_sys::fuzz_target!(|input: &[u8]| expression::check(input));
