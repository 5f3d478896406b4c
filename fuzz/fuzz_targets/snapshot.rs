//! Fuzzes snapshots of keyed limiters. Runs on the stable toolchain:
//! `cargo fuzz run -s none snapshot`
#![no_main]

#[path = "../../crates/tollgate/tests/fuzzed/snapshot.rs"]
mod snapshot;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    snapshot::check(input);
});
