//! The fast path of HTTP checks gives the same responses as the slow path.

use proptest::prelude::*;

use crate::corpus::http1::{AfterSending, check, compare_fast_and_slow_path};

const BODIES: [&str; 12] = [
    r#"{"key":"a","limit":"5/day"}"#,
    r#"{"key":"d","limit":"1/day"}"#,
    r#"{"key":"b","limit":"2/day","cost":3}"#,
    r#"{"key":"c","limit":1,"receipt":false}"#,
    r#"{"domain":"api","attributes":{"a":"b"}}"#,
    r#"{"key":"a","limit":"5/day","cost":"x"}"#,
    r#"{"key":"a","limit":"never"}"#,
    r#"{"key":"a"}"#,
    r#"[{"key":"a","limit":"5/day"}]"#,
    "{",
    "",
    "\u{fc}",
];

fn request_text(headers: &str, body: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

fn ordinary_request(index: usize) -> String {
    request_text("host: localhost\r\n", BODIES[index])
}

/// Returns requests with other spellings, malformed requests, and requests that are not checks.
fn unusual_requests() -> Vec<String> {
    let body = BODIES[0];
    let mut all: Vec<String> = [
        "Host: limits.example\r\nUser-Agent: x\r\nAccept: */*\r\nContent-Type: application/json\r\n",
        "HOST: 127.0.0.1:8080\r\nConnection: Keep-Alive\r\nConnection: keep-alive\r\n",
        "host: evil.example\r\n",
        "host: localhost\r\nhost: evil.example\r\n",
        "host: \u{fc}.localhost\r\n",
        "host:\r\n",
        "connection: close\r\n",
        "connection: keep-alive, close\r\n",
        "connection: upgrade\r\nupgrade: h2c\r\n",
        "expect: 100-continue\r\n",
        "expect: 200-ok\r\n",
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: identity\r\n",
        "content-length: 3\r\n",
        "content-length: 27\r\n",
        "content-length: -1\r\n",
        "content-length: +27\r\n",
        "content-length: 27, 27\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length:\r\n",
        "idempotency-key: k\r\n",
        "origin: http://localhost\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-mode: cors\r\n",
        "authorization: Bearer x\r\n",
        "cookie: a=b\r\n",
        "x: y\r\n",
        "x : y\r\n",
        " x: y\r\n",
        "x\r\n",
        ": y\r\n",
        "x: a\r\n b\r\n",
        "x: a\u{0}b\r\n",
        "x: a\rb\r\n",
        "x: a\nb: c\r\n",
        "h\u{fc}: x\r\n",
    ]
    .iter()
    .map(|headers| request_text(headers, body))
    .collect();
    let line = |line: &str| ordinary_request(0).replacen("POST /v1/check HTTP/1.1\r\n", line, 1);
    all.extend(
        [
            "POST /v1/check HTTP/1.0\r\n",
            "POST /v1/check HTTP/1.1\n",
            "POST /v1/check HTTP/1.2\r\n",
            "POST /v1/check HTTP/2.0\r\n",
            "POST /v1/check  HTTP/1.1\r\n",
            "POST  /v1/check HTTP/1.1\r\n",
            "POST /v1/check\r\n",
            "POST /v1/check?x HTTP/1.1\r\n",
            "POST /v1/check/ HTTP/1.1\r\n",
            "POST http://localhost/v1/check HTTP/1.1\r\n",
            "POST http://evil.example/v1/check HTTP/1.1\r\n",
            "POST * HTTP/1.1\r\n",
            "post /v1/check HTTP/1.1\r\n",
            "GET /v1/check HTTP/1.1\r\n",
            "OPTIONS /v1/check HTTP/1.1\r\n",
            "POST /v1/peek HTTP/1.1\r\n",
            "\r\nPOST /v1/check HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{0}",
        ]
        .map(line),
    );
    let many = |count: usize| (0..count).map(|n| format!("x-request-id: {n}\r\n")).collect::<String>();
    all.extend([14, 15, 16, 62, 63, 64].map(|count| request_text(&many(count), body)));
    all.extend(
        [7_000, 9_000, 20_000].map(|length| request_text(&format!("user-agent: {}\r\n", "a".repeat(length)), body)),
    );
    all.extend([7_000, 9_000, 20_000].map(|length| request_text("", &format!("{}{body}", " ".repeat(length)))));
    all.push("POST /v1/check HTTP/1.1\r\n\r\n".to_owned());
    all
}

#[test]
fn every_body_and_every_unusual_request_gets_the_same_response() {
    for sent in (0..BODIES.len()).map(ordinary_request).chain(unusual_requests()) {
        check(sent.as_bytes());
        check(format!("{}{sent}{}", ordinary_request(0), ordinary_request(1)).as_bytes());
    }
}

#[test]
fn request_split_at_any_byte_gets_the_same_response() {
    let sent = format!("{}{}", ordinary_request(0), ordinary_request(1));
    let whole = compare_fast_and_slow_path(sent.as_bytes(), usize::MAX, AfterSending::Close);
    assert_eq!(whole.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{whole}");
    for step in 1..sent.len() {
        assert_eq!(
            compare_fast_and_slow_path(sent.as_bytes(), step, AfterSending::Close),
            whole,
            "{step} bytes at a time"
        );
    }
}

#[test]
fn prefix_of_a_request_gets_the_same_response() {
    let sent = ordinary_request(0) + &ordinary_request(1);
    for end in 0..sent.len() {
        compare_fast_and_slow_path(&sent.as_bytes()[..end], usize::MAX, AfterSending::Close);
        compare_fast_and_slow_path(&sent.as_bytes()[..end], usize::MAX, AfterSending::Wait);
    }
}

#[test]
fn long_pipeline_gets_the_same_responses() {
    let sent = ordinary_request(0).repeat(500);
    let received = compare_fast_and_slow_path(sent.as_bytes(), 10_000, AfterSending::Close);
    assert_eq!(received.matches("HTTP/1.1 ").count(), 500);
    assert_eq!(received.matches("HTTP/1.1 429 Too Many Requests\r\n").count(), 495);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_with_errors_get_the_same_responses(
        picks in prop::collection::vec(0_usize..30, 1..6),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        step in 1_usize..200,
    ) {
        let unusual = unusual_requests();
        let sent = picks.iter().map(|pick| match pick {
            pick @ ..12 => ordinary_request(*pick),
            pick @ 12..25 => ordinary_request(pick % 5),
            pick => unusual[(pick * 7 + step) % unusual.len()].clone(),
        });
        let mut sent = sent.collect::<String>().into_bytes();
        for (index, byte) in flips {
            let at = index.index(sent.len());
            sent[at] = byte;
        }
        compare_fast_and_slow_path(&sent, step, AfterSending::Close);
        compare_fast_and_slow_path(&sent, usize::MAX, AfterSending::Wait);
    }
}
