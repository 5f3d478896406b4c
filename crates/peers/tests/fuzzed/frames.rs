// Properties that hold for any bytes from another node. Included by the fuzz target and by the test that replays its
// corpus.

use tollgate_peers::wire::limits::{decode_limits, encode_limits};
use tollgate_peers::wire::{DeltaBody, Frame, MAX_FRAME, PartBody, decode, encode};

/// Every frame of the input is decoded within the limits or refused, and means the same when it is encoded again.
pub fn check(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((frame, length))) = decode(rest) {
        assert!(length <= 4 + MAX_FRAME && length <= rest.len());
        rest = &rest[length..];
        match &frame {
            Frame::Delta(delta) => check_delta(&delta.body),
            Frame::Part(part) => check_part(&part.body),
            Frame::Params { code, .. } => check_limits(code),
            Frame::Ask(ask) => ask.charges.iter().for_each(|charge| check_limits(&charge.limits)),
            _ => {}
        }
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        assert_eq!(decode(&bytes), Ok(Some((frame, bytes.len()))));
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

fn check_limits(code: &[u8]) {
    let Ok(limits) = decode_limits(code) else { return };
    assert_eq!(decode_limits(&encode_limits(&limits)), Ok(limits));
}
