use super::*;
use proptest::prelude::*;

/// Returns an encoded length-delimited field.
fn encode_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_message(&mut out, number, |out| out.extend_from_slice(bytes));
    out
}

fn encode_entry(key: &str, value: &str) -> Vec<u8> {
    encode_field(1, &[encode_field(1, key.as_bytes()), encode_field(2, value.as_bytes())].concat())
}

#[test]
fn every_field_of_a_request_is_decoded() {
    let descriptor = [
        encode_entry("user", "alice"),
        encode_entry("user", ""),
        encode_field(2, &[0x08, 0x07, 0x10, 0x02]),
        encode_field(3, &[0x08, 0x00]),
        vec![0x20, 0x01],
    ];
    let message =
        [encode_field(1, b"api"), encode_field(2, &descriptor.concat()), vec![0x18, 0x05], encode_field(9, b"unknown")]
            .concat();
    assert_eq!(
        RateLimitRequest::decode(&message),
        Ok(RateLimitRequest {
            domain: b"api",
            hits_addend: 5,
            descriptors: vec![Descriptor {
                entries: vec![(b"user", b"alice"), (b"user", b"")],
                limit: Some(LimitOverride { requests_per_unit: 7, unit: 2 }),
                hits_addend: Some(0),
                is_negative_hits: true,
            }],
        })
    );
    assert_eq!(RateLimitRequest::decode(b""), Ok(RateLimitRequest::default()));
}

#[test]
fn malformed_messages_are_refused() {
    for (message, expected) in [
        (&[0x0a][..], WireError::Truncated),
        (&[0x0a, 0x05, b'a'], WireError::Truncated),
        (&[0x18], WireError::Truncated),
        (&[0x18, 0x80], WireError::Truncated),
        (&[0x08, 0x01], WireError::Type("domain")),
        (&[0x10, 0x01], WireError::Type("descriptors")),
        (&[0x1a, 0x00], WireError::Type("hits_addend")),
        (&[0x12, 0x02, 0x20 | 2, 0x00], WireError::Type("is_negative_hits")),
        (&[0x12, 0x03, 0x0d, 0, 0], WireError::Truncated),
        (&[0x12, 0x05, 0x0d, 0, 0, 0, 0], WireError::Type("entries")),
        (&[0x00, 0x00], WireError::Tag),
        (&[0x0b], WireError::Tag),
        (&[0x0e], WireError::Tag),
        (&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], WireError::Varint),
        (&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], WireError::Varint),
        (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], WireError::Truncated),
    ] {
        assert_eq!(RateLimitRequest::decode(message), Err(expected), "{message:x?}");
    }
}

#[test]
fn descriptors_and_entries_are_bounded() {
    let descriptors = |count: usize| encode_field(2, &[]).repeat(count);
    assert_eq!(
        RateLimitRequest::decode(&descriptors(MAX_DESCRIPTORS)).map(|it| it.descriptors.len()),
        Ok(MAX_DESCRIPTORS)
    );
    let error = RateLimitRequest::decode(&descriptors(1000)).expect_err("too many");
    assert_eq!(error.to_string(), "too many descriptors (maximum 64)");
    let entries = encode_field(2, &encode_entry("k", "v").repeat(MAX_ENTRIES + 1));
    let error = RateLimitRequest::decode(&entries).expect_err("too many");
    assert_eq!(error.to_string(), "too many entries of a descriptor (maximum 128)");
}

#[test]
fn deeply_nested_messages_do_not_cause_recursion() {
    // In an unknown field, the 10,000 nested messages are skipped. In an entry, the inner messages are read as the
    // entry's key.
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        let mut outer = vec![0x0a];
        put_varint(&mut outer, nested.len() as u64);
        outer.extend_from_slice(&nested);
        nested = outer;
    }
    let unknown = encode_field(9, &nested);
    assert_eq!(RateLimitRequest::decode(&unknown), Ok(RateLimitRequest::default()));
    let descriptor = encode_field(2, &nested);
    let request = RateLimitRequest::decode(&descriptor).expect("a request");
    assert_eq!(request.descriptors[0].entries.len(), 1);
}

#[test]
fn response_is_encoded_with_every_field() {
    let limit = CurrentLimit { requests_per_unit: 300, unit: 2, name: "n".into() };
    let response = RateLimitResponse {
        code: ResponseCode::OverLimit,
        statuses: vec![
            DescriptorStatus {
                code: ResponseCode::OverLimit,
                limit: Some(limit),
                remaining: 1,
                reset_seconds: Some(2),
            },
            DescriptorStatus::default(),
        ],
        headers: vec![("a".into(), "b".into())],
        request_headers: vec![("c".into(), "d".into())],
        body: "x".repeat(200),
        metadata: serde_json::json!({"m": [null, true, 1.5, ""]}).as_object().cloned(),
    };
    let mut out = Vec::new();
    response.encode(&mut out);
    let status = [0x08, 2, 0x12, 8, 0x08, 0xac, 0x02, 0x10, 2, 0x1a, 1, b'n', 0x18, 1, 0x22, 2, 0x08, 2];
    let body = [&[0x2a, 200, 1][..], &[b'x'; 200]].concat();
    let number = [&[2 << 3 | 1][..], &1.5_f64.to_le_bytes()].concat();
    let list = [
        encode_field(1, &[1 << 3, 0]),
        encode_field(1, &[4 << 3, 1]),
        encode_field(1, &number),
        encode_field(1, &[3 << 3 | 2, 0]),
    ]
    .concat();
    let metadata =
        encode_field(6, &encode_field(1, &[&[0x0a, 1, b'm'][..], &encode_field(2, &encode_field(6, &list))].concat()));
    let expected = [
        &[0x08, 2][..],
        &encode_field(2, &status),
        &[0x12, 2, 0x08, 1],
        &[0x1a, 6, 0x0a, 1, b'a', 0x12, 1, b'b'],
        &[0x22, 6, 0x0a, 1, b'c', 0x12, 1, b'd'],
        &body,
        &metadata,
    ];
    let expected = expected.concat();
    assert_eq!(out, expected);
}

proptest! {
    #[test]
    fn decoding_random_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = RateLimitRequest::decode(&bytes);
        let _ = decode_health(&bytes);
    }

    #[test]
    fn message_of_any_length_is_decoded(length in 0_usize..70_000) {
        let message = encode_field(1, &vec![b'd'; length]);
        prop_assert_eq!(RateLimitRequest::decode(&message).map(|request| request.domain.len()), Ok(length));
    }
}
