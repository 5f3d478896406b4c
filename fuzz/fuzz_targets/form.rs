//! Fuzzes multipart forms with files. Runs on the stable toolchain:
//! `cargo fuzz run -s none form`
#![no_main]

#[path = "../../crates/server/tests/fuzzed/form.rs"]
mod form;

libfuzzer_sys::fuzz_target!(|input: &[u8]| form::check(input));
