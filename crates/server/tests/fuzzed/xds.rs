// Properties that hold for any bytes from an xDS server. Shared by the fuzz target and the corpus
// test.

use tollgate_server::rules_source::xds::stream::{ClientStream, MAX_MESSAGE_BYTES};
use tollgate_server::rules_source::xds::wire::{ConfigFile, DiscoveryResponse, MAX_RESOURCES};

/// Checks that messages are decoded within the limits or refused, and that the decoded messages do not depend on how
/// the bytes are split.
pub fn check(input: &[u8]) {
    if let Ok(response) = DiscoveryResponse::decode(input) {
        assert!(response.resources.len() <= MAX_RESOURCES);
        for (_, resource) in &response.resources {
            let _ = ConfigFile::decode(resource);
        }
    }
    let _ = ConfigFile::decode(input);
    let read = |size: usize| {
        let (mut stream, mut messages) = (ClientStream::open("h:1", "/p", false), Vec::new());
        let parts = input.chunks(size.max(1));
        let outcome = parts.into_iter().try_for_each(|part| stream.receive(part, |it| messages.push(it.to_vec())));
        assert!(messages.iter().all(|message| message.len() <= MAX_MESSAGE_BYTES));
        (outcome, messages, stream.out)
    };
    assert_eq!(read(input.len()), read(7));
}
