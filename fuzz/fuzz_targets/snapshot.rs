//! Snapshots of keyed limiters: `cargo fuzz run -s none snapshot`, which works on the stable toolchain.
#![no_main]

#[path = "../../crates/tollgate/tests/fuzzed/snapshot.rs"]
mod snapshot;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    snapshot::check(input);
});
