// Properties that hold for any bytes sent to the rate-limit service's port after the connection preface. Shared by the
// fuzz target and the corpus test.

use std::time::Duration;

use tollgate_server::rls::bounds::MAX_BODY_BYTES;
use tollgate_server::rls::http2::Connection;
use tollgate_server::rls::http2::frame::{Frame, PREFACE};

/// A connection's calls, its output, and whether it is closed.
type ConnectionResult = (Vec<(u32, Option<usize>)>, Vec<u8>, bool);

/// Sends bytes in parts of `step` bytes and answers every call with a few bytes.
fn run_connection(input: &[u8], step: usize) -> ConnectionResult {
    let mut connection = Connection::new(&["/known"]);
    let (mut calls, mut at, mut end) = (Vec::new(), 0, 0);
    while end < input.len() && !connection.must_close() {
        end = input.len().min(end.saturating_add(step));
        let mut part = &input[at..end];
        while let Some(call) = connection.next_call(&mut part, Duration::ZERO) {
            let length = call.body.as_ref().ok().map(|body| body.len());
            assert!(length.is_none_or(|length| length <= MAX_BODY_BYTES), "a body is bounded");
            calls.push((call.stream, length));
            connection.respond(call.stream, b"\x88", b"", |out| out.extend_from_slice(b"abc"));
        }
        at = end - part.len();
    }
    let closed = connection.must_close();
    (calls, connection.out, closed)
}

/// Checks that the output does not depend on how the bytes are split, and that it consists of whole frames. The length
/// of the output must be at most four times the length of the input plus 256 bytes.
pub fn check(input: &[u8]) {
    let input = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], input].concat();
    let whole = run_connection(&input, usize::MAX);
    for step in [1, 7, 64] {
        assert_eq!(run_connection(&input, step), whole, "in parts of {step} bytes");
    }
    let mut out = &whole.1[..];
    assert!(out.len() <= 4 * input.len() + 256, "{} bytes of output for {} bytes of input", out.len(), input.len());
    while Frame::take(&mut out).expect("written frames are not too large").is_some() {}
    assert_eq!(out, b"", "whole frames are written");
}
