// Properties that hold for any bytes from another node. Shared by the fuzz target and the corpus test.

use tollgate_peers::frame::FrameBuffer;
use tollgate_peers::greeting::{self, LinkFrame};
use tollgate_peers::wire::limits::{decode_limits, encode_limits};
use tollgate_peers::wire::{DeltaBody, Frame, MAX_FRAME_BYTES, PartBody, VERSION, decode, encode};

/// Checks that every frame in the input is decoded or refused, and survives re-encoding.
pub fn check(input: &[u8]) {
    check_connection(input);
    let mut rest = input;
    while let Ok(Some((frame, length))) = decode(rest) {
        assert!(length <= 4 + MAX_FRAME_BYTES && length <= rest.len());
        rest = &rest[length..];
        match &frame {
            Frame::Delta(delta) => check_delta(&delta.body),
            Frame::Part(part) => check_part(&part.body),
            Frame::Params { encoded, .. } => check_limits(encoded),
            Frame::Ask(ask) => ask.charges.iter().for_each(|charge| check_limits(&charge.limits)),
            _ => {}
        }
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        assert_eq!(decode(&bytes), Ok(Some((frame, bytes.len()))));
    }
}

/// Checks that the input splits into the same frames regardless of chunking, and that greeting frames are decoded or
/// refused.
fn check_connection(input: &[u8]) {
    let split = |size: usize| {
        let (mut frames, mut found) = (FrameBuffer::default(), Vec::new());
        for part in input.chunks(size) {
            frames.buffer().extend_from_slice(part);
            loop {
                match frames.next_frame() {
                    Ok(Some(frame)) => found.push(frame.to_vec()),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    };
    let (frames, error) = split(input.len().max(1));
    for size in [1, 5, 64] {
        assert_eq!(split(size), (frames.clone(), error));
    }
    for frame in frames.iter().filter(|frame| greeting::is_link_frame(frame)) {
        let Ok(decoded) = greeting::decode(frame) else { continue };
        let mut again = Vec::new();
        decoded.encode(&mut again);
        // For another version, only version and cluster are decoded.
        if !matches!(decoded, LinkFrame::Greeting { version, .. } if version != VERSION) {
            assert_eq!(greeting::decode(&again), Ok(decoded));
        }
    }
}

fn check_delta(bytes: &[u8]) {
    let Ok(body) = DeltaBody::decode(bytes) else { return };
    let mut again = Vec::new();
    body.encode(&mut again);
    assert_eq!(DeltaBody::decode(&again), Ok(body));
}

fn check_part(bytes: &[u8]) {
    let Ok(body) = PartBody::decode(bytes) else { return };
    let mut again = Vec::new();
    body.encode(&mut again);
    assert_eq!(PartBody::decode(&again), Ok(body));
}

fn check_limits(encoded: &[u8]) {
    let Ok(limits) = decode_limits(encoded) else { return };
    assert_eq!(decode_limits(&encode_limits(&limits)), Ok(limits));
}
