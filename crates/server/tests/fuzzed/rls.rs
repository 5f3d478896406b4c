// Properties that hold for any message to the rate-limit service. Shared by the fuzz target and the corpus test.

use tollgate_server::rls::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};
use tollgate_server::rls::wire::{RateLimitRequest, decode_health};

/// Checks that a message is decoded within the limits or refused, and that unknown fields at its end change nothing.
pub fn check(input: &[u8]) {
    let _ = decode_health(input);
    let Ok(request) = RateLimitRequest::decode(input) else { return };
    assert!(request.descriptors.len() <= MAX_DESCRIPTORS);
    assert!(request.descriptors.iter().all(|descriptor| descriptor.entries.len() <= MAX_ENTRIES));
    let bytes: usize =
        request.descriptors.iter().flat_map(|it| &it.entries).map(|(key, value)| key.len() + value.len()).sum();
    assert!(request.domain.len() + bytes <= input.len(), "decoded strings are part of the input");
    let extended = [input, &[0x7a, 0x01, b'x', 0x78, 0x05]].concat();
    assert_eq!(RateLimitRequest::decode(&extended).as_ref(), Ok(&request), "unknown fields are skipped");
}
