//! Forms with files: `cargo fuzz run -s none form`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/server/tests/fuzzed/form.rs"]
mod form;

libfuzzer_sys::fuzz_target!(|input: &[u8]| form::check(input));
