//! The cases of h2spec, the HTTP/2 conformance test suite, as tables of sent frames and expected reactions. The names
//! of most cases begin with a section number of RFC 9113. Other tests check the resource limits of a connection. The
//! cases for HPACK and for malformed headers are in the modules `hpack` and `head`.

use std::time::Duration;

use super::super::bounds::{
    CONNECTION_RECEIVE_WINDOW, MAX_BODY_BYTES, MAX_CONTINUATIONS, MAX_CREDIT, MAX_HEADER_BLOCK_BYTES,
    MAX_HEADERS_BYTES, MAX_STREAMS, RESET_COST, STREAM_RECEIVE_WINDOW,
};
use super::frame::{ACK, END_HEADERS, END_STREAM, Frame, FrameKind, MAX_PAYLOAD_BYTES, PADDED, PREFACE, PRIORITY};
use super::{CallError, Connection, hpack};

/// A call or frame that a connection produces in reaction to its input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reaction {
    /// A complete call: its stream and its body.
    Call(u32, Vec<u8>),
    Refused(u32, CallError),
    /// The headers or trailers of a response. The flag is true if the headers or trailers end the stream.
    Headers(u32, bool),
    Data(u32, usize),
    Reset(u32, u8),
    GoAway(u8),
    Pong,
    Acknowledged,
    /// An increment of the connection window.
    Window(u32),
}
use Reaction::*;

const PROTOCOL: u8 = 1;
const FLOW_CONTROL: u8 = 3;
const STREAM_CLOSED: u8 = 5;
const FRAME_SIZE: u8 = 6;
const REFUSED_STREAM: u8 = 7;
const COMPRESSION: u8 = 9;
const ENHANCE_YOUR_CALM: u8 = 11;

fn raw_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn frame_bytes(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    raw_frame(kind as u8, flags, stream, payload)
}

/// The header block of a minimal call (POST, http, /). The block does not change the dynamic table.
const MINIMAL_HEADERS: &[u8] = &[0x83, 0x86, 0x84];

fn header_block(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = MINIMAL_HEADERS.to_vec();
    more.iter().for_each(|(name, value)| hpack::put_literal(&mut block, name, value.as_bytes()));
    block
}

fn headers_frame(stream: u32, flags: u8) -> Vec<u8> {
    frame_bytes(FrameKind::Headers, END_HEADERS | flags, stream, MINIMAL_HEADERS)
}

fn data_frame(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame_bytes(FrameKind::Data, flags, stream, payload)
}

fn reset_frame(stream: u32) -> Vec<u8> {
    frame_bytes(FrameKind::RstStream, 0, stream, &[0, 0, 0, 8])
}

fn window_update_frame(stream: u32, increment: u32) -> Vec<u8> {
    frame_bytes(FrameKind::WindowUpdate, 0, stream, &increment.to_be_bytes())
}

fn settings_frame(id: u16, value: u32) -> Vec<u8> {
    frame_bytes(FrameKind::Settings, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// A connection that answers each call with a body of `answer` bytes. If `answer` is `None`, calls stay unanswered.
struct TestConnection {
    connection: Connection,
    input: Vec<u8>,
    answer: Option<usize>,
    now: Duration,
}

impl TestConnection {
    /// Opens a connection and completes the handshake.
    fn new(answer: Option<usize>) -> Self {
        let mut peer = Self::without_handshake(answer);
        let opening = peer.send(&[PREFACE, &frame_bytes(FrameKind::Settings, 0, 0, &[])].concat());
        assert_eq!(opening, [Window(CONNECTION_RECEIVE_WINDOW - 65_535), Acknowledged]);
        peer
    }

    /// Opens a connection without a handshake.
    fn without_handshake(answer: Option<usize>) -> Self {
        Self { connection: Connection::new(&["/known"]), input: Vec::new(), answer, now: Duration::ZERO }
    }

    /// Sends bytes and returns the reactions.
    fn send(&mut self, bytes: &[u8]) -> Vec<Reaction> {
        let mut seen = Vec::new();
        self.input.extend_from_slice(bytes);
        let mut input = &self.input[..];
        while let Some(call) = self.connection.next_call(&mut input, self.now) {
            match &call.body {
                Ok(body) => seen.push(Call(call.stream, body.to_vec())),
                Err(error) => seen.push(Refused(call.stream, *error)),
            }
            if let Some(length) = self.answer {
                self.connection.respond(call.stream, b"\x88", b"", |out| out.resize(out.len() + length, 0));
            }
        }
        let rest = input.to_vec();
        self.input = rest;
        seen.extend(self.take_written_frames());
        seen
    }

    /// Removes and returns the frames that the connection has written.
    fn take_written_frames(&mut self) -> Vec<Reaction> {
        let out = std::mem::take(&mut self.connection.out);
        let mut out = &out[..];
        let mut seen = Vec::new();
        while let Some(frame) = Frame::take(&mut out).expect("our frames are not too large") {
            let last = frame.payload.len();
            match frame.kind {
                FrameKind::Headers => seen.push(Headers(frame.stream, frame.has_flag(END_STREAM))),
                FrameKind::Data => seen.push(Data(frame.stream, last)),
                FrameKind::RstStream => seen.push(Reset(frame.stream, frame.payload[3])),
                FrameKind::GoAway => seen.push(GoAway(frame.payload[7])),
                FrameKind::Ping if frame.has_flag(ACK) => seen.push(Pong),
                FrameKind::Settings if frame.has_flag(ACK) => seen.push(Acknowledged),
                FrameKind::WindowUpdate => {
                    seen.push(Window(u32::from_be_bytes(frame.payload.try_into().expect("a window"))));
                }
                FrameKind::Settings | FrameKind::Ping => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(out, b"", "whole frames are written");
        seen
    }
}

/// The name of a case, the sent frames, and the expected reactions.
type FrameCase = (&'static str, Vec<Vec<u8>>, Vec<Reaction>);

/// Checks the reactions to the frames of each case. The frames are sent on a new connection, first all at once and then
/// byte by byte.
fn check_cases(answer: Option<usize>, cases: &[FrameCase]) {
    for (name, frames, expected) in cases {
        let bytes = frames.concat();
        let mut peer = TestConnection::new(answer);
        assert_eq!(peer.send(&bytes), *expected, "{name}");
        let closes = expected.iter().any(|seen| matches!(seen, GoAway(_)));
        assert_eq!(peer.connection.must_close(), closes, "{name}");
        let mut peer = TestConnection::new(answer);
        let split: Vec<Reaction> = bytes.chunks(1).flat_map(|byte| peer.send(byte)).collect();
        let is_out = |seen: &&Reaction| !matches!(seen, Call(..));
        assert!(split.iter().filter(is_out).eq(expected.iter().filter(is_out)), "{name}, byte by byte: {split:?}");
    }
}

/// Returns the reactions to a call that is answered with one byte.
fn reactions_to_call(stream: u32, body: &[u8]) -> Vec<Reaction> {
    vec![Call(stream, body.to_vec()), Headers(stream, false), Data(stream, 1), Headers(stream, true)]
}

#[test]
fn calls_are_answered_with_any_valid_framing() {
    let fields = header_block(&[("content-length", "2"), ("te", "trailers")]);
    let (first, last) = fields.split_at(5);
    let padded = [&[3][..], MINIMAL_HEADERS, &[0; 3]].concat();
    let weighted = [&[0x80, 0, 0, 0, 16][..], MINIMAL_HEADERS].concat();
    let indexed = [MINIMAL_HEADERS, &[0x40, 1, b'a', 1, b'b']].concat();
    let huffman = [MINIMAL_HEADERS, &[0x00, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 1, b'x']].concat();
    let whole = END_HEADERS | END_STREAM;
    check_cases(
        Some(1),
        &[
            ("a request without a body", vec![headers_frame(1, END_STREAM)], reactions_to_call(1, b"")),
            (
                "a request in one frame",
                vec![headers_frame(1, 0), data_frame(1, END_STREAM, b"ab")],
                reactions_to_call(1, b"ab"),
            ),
            (
                "several frames, the last empty",
                vec![
                    headers_frame(1, 0),
                    data_frame(1, 0, b"a"),
                    data_frame(1, 0, b"b"),
                    data_frame(1, END_STREAM, b""),
                ],
                reactions_to_call(1, b"ab"),
            ),
            (
                "padded DATA",
                vec![headers_frame(1, 0), data_frame(1, END_STREAM | PADDED, b"\x02ab\0\0")],
                reactions_to_call(1, b"ab"),
            ),
            (
                "padded HEADERS",
                vec![frame_bytes(FrameKind::Headers, whole | PADDED, 1, &padded)],
                reactions_to_call(1, b""),
            ),
            (
                "HEADERS with a priority",
                vec![frame_bytes(FrameKind::Headers, whole | PRIORITY, 1, &weighted)],
                reactions_to_call(1, b""),
            ),
            (
                "CONTINUATION twice",
                vec![
                    frame_bytes(FrameKind::Headers, 0, 1, first),
                    frame_bytes(FrameKind::Continuation, 0, 1, b""),
                    frame_bytes(FrameKind::Continuation, END_HEADERS, 1, last),
                    data_frame(1, END_STREAM, b"ab"),
                ],
                reactions_to_call(1, b"ab"),
            ),
            (
                "trailers",
                vec![
                    headers_frame(1, 0),
                    data_frame(1, 0, b"ab"),
                    frame_bytes(FrameKind::Headers, whole, 1, b"\0\x01a\x01b"),
                ],
                reactions_to_call(1, b"ab"),
            ),
            (
                "a name in the Huffman code",
                vec![frame_bytes(FrameKind::Headers, whole, 1, &huffman)],
                reactions_to_call(1, b""),
            ),
            (
                "a field of the dynamic table",
                vec![
                    frame_bytes(FrameKind::Headers, whole, 1, &indexed),
                    frame_bytes(FrameKind::Headers, whole, 3, &[MINIMAL_HEADERS, &[0xbe]].concat()),
                ],
                vec![
                    Call(1, vec![]),
                    Call(3, vec![]),
                    Headers(1, false),
                    Data(1, 1),
                    Headers(1, true),
                    Headers(3, false),
                    Data(3, 1),
                    Headers(3, true),
                ],
            ),
            (
                "DATA of 16384 bytes",
                vec![headers_frame(1, 0), data_frame(1, END_STREAM, &[7; MAX_PAYLOAD_BYTES])],
                reactions_to_call(1, &[7; MAX_PAYLOAD_BYTES]),
            ),
        ],
    );
}

#[test]
fn frames_without_effect_are_accepted() {
    let priority = |stream| frame_bytes(FrameKind::Priority, 0, stream, &[0, 0, 0, 0, 16]);
    check_cases(
        Some(1),
        &[
            ("PRIORITY on an idle stream", vec![priority(1), headers_frame(1, END_STREAM)], reactions_to_call(1, b"")),
            ("PRIORITY on a closed stream", vec![headers_frame(1, END_STREAM), priority(1)], reactions_to_call(1, b"")),
            (
                "WINDOW_UPDATE and RST_STREAM on a closed stream",
                vec![headers_frame(1, END_STREAM), window_update_frame(1, 9), reset_frame(1)],
                reactions_to_call(1, b""),
            ),
            (
                "an unknown type",
                vec![raw_frame(0x16, 0, 0, b"12345678"), headers_frame(1, END_STREAM)],
                reactions_to_call(1, b""),
            ),
            ("undefined flags", vec![frame_bytes(FrameKind::Ping, 0x16, 0, b"12345678")], vec![Pong]),
            ("the reserved bit", vec![frame_bytes(FrameKind::Ping, 0, 1 << 31, b"12345678")], vec![Pong]),
            ("an acknowledgement without a PING", vec![frame_bytes(FrameKind::Ping, ACK, 0, b"12345678")], vec![]),
            ("an unknown setting", vec![settings_frame(0xff, 1)], vec![Acknowledged]),
            ("an acknowledgement of SETTINGS", vec![frame_bytes(FrameKind::Settings, ACK, 0, b"")], vec![]),
            (
                "GOAWAY with an unknown code",
                vec![frame_bytes(FrameKind::GoAway, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff])],
                vec![],
            ),
            (
                "RST_STREAM with an unknown code",
                vec![headers_frame(1, 0), frame_bytes(FrameKind::RstStream, 0, 1, &[0, 0, 0, 0xff])],
                vec![],
            ),
        ],
    );
}

#[test]
fn invalid_frames_close_the_connection() {
    let go_away = |code| vec![GoAway(code)];
    let large = raw_frame(FrameKind::Data as u8, 0, 1, &[0; MAX_PAYLOAD_BYTES + 1]);
    check_cases(
        None,
        &[
            ("4.2 a frame that is too large", vec![headers_frame(1, 0), large], go_away(FRAME_SIZE)),
            (
                "4.3 a header block that cannot be decoded",
                vec![frame_bytes(FrameKind::Headers, END_HEADERS, 1, &[0x80])],
                go_away(COMPRESSION),
            ),
            (
                "4.3 PRIORITY within a header block",
                vec![
                    frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS),
                    frame_bytes(FrameKind::Priority, 0, 1, &[0; 5]),
                ],
                go_away(PROTOCOL),
            ),
            (
                "4.3 HEADERS of another stream within a header block",
                vec![frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS), headers_frame(3, 0)],
                go_away(PROTOCOL),
            ),
            ("5.1 DATA on an idle stream", vec![data_frame(1, 0, b"a")], go_away(PROTOCOL)),
            ("5.1 RST_STREAM on an idle stream", vec![reset_frame(1)], go_away(PROTOCOL)),
            ("5.1 WINDOW_UPDATE on an idle stream", vec![window_update_frame(1, 1)], go_away(PROTOCOL)),
            (
                "5.1 CONTINUATION on an idle stream",
                vec![frame_bytes(FrameKind::Continuation, END_HEADERS, 1, MINIMAL_HEADERS)],
                go_away(PROTOCOL),
            ),
            ("5.1.1 an even id", vec![headers_frame(2, END_STREAM)], go_away(PROTOCOL)),
            ("5.1.1 an id smaller than the last", vec![headers_frame(5, 0), headers_frame(3, 0)], go_away(PROTOCOL)),
            (
                "5.5 an extension within a header block",
                vec![frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS), raw_frame(0x16, 0, 1, b"")],
                go_away(PROTOCOL),
            ),
            ("6.1 DATA without a stream", vec![data_frame(0, 0, b"a")], go_away(PROTOCOL)),
            (
                "6.1 padding longer than DATA",
                vec![headers_frame(1, 0), data_frame(1, PADDED, b"\x06abcd")],
                go_away(PROTOCOL),
            ),
            ("6.2 HEADERS without a stream", vec![headers_frame(0, 0)], go_away(PROTOCOL)),
            (
                "6.2 padding longer than HEADERS",
                vec![frame_bytes(FrameKind::Headers, END_HEADERS | PADDED, 1, &[9, 0x82])],
                go_away(PROTOCOL),
            ),
            ("6.3 PRIORITY without a stream", vec![frame_bytes(FrameKind::Priority, 0, 0, &[0; 5])], go_away(PROTOCOL)),
            ("6.3 PRIORITY of 4 bytes", vec![frame_bytes(FrameKind::Priority, 0, 1, &[0; 4])], go_away(FRAME_SIZE)),
            ("6.4 RST_STREAM without a stream", vec![reset_frame(0)], go_away(PROTOCOL)),
            (
                "6.4 RST_STREAM of 3 bytes",
                vec![headers_frame(1, 0), frame_bytes(FrameKind::RstStream, 0, 1, &[0; 3])],
                go_away(FRAME_SIZE),
            ),
            (
                "6.5 an acknowledgement of SETTINGS with a payload",
                vec![frame_bytes(FrameKind::Settings, ACK, 0, &[0])],
                go_away(FRAME_SIZE),
            ),
            ("6.5 SETTINGS on a stream", vec![frame_bytes(FrameKind::Settings, 0, 1, &[])], go_away(PROTOCOL)),
            ("6.5 SETTINGS of 3 bytes", vec![frame_bytes(FrameKind::Settings, 0, 0, &[0; 3])], go_away(FRAME_SIZE)),
            ("6.5.2 ENABLE_PUSH of 2", vec![settings_frame(2, 2)], go_away(PROTOCOL)),
            ("6.5.2 INITIAL_WINDOW_SIZE above the maximum", vec![settings_frame(4, 1 << 31)], go_away(FLOW_CONTROL)),
            ("6.5.2 MAX_FRAME_SIZE below the minimum", vec![settings_frame(5, 16_383)], go_away(PROTOCOL)),
            ("6.5.2 MAX_FRAME_SIZE above the maximum", vec![settings_frame(5, 1 << 24)], go_away(PROTOCOL)),
            ("6.6 PUSH_PROMISE", vec![frame_bytes(FrameKind::PushPromise, END_HEADERS, 1, &[0; 4])], go_away(PROTOCOL)),
            ("6.7 PING on a stream", vec![frame_bytes(FrameKind::Ping, 0, 1, &[0; 8])], go_away(PROTOCOL)),
            ("6.7 PING of 6 bytes", vec![frame_bytes(FrameKind::Ping, 0, 0, &[0; 6])], go_away(FRAME_SIZE)),
            ("6.8 GOAWAY on a stream", vec![frame_bytes(FrameKind::GoAway, 0, 1, &[0; 8])], go_away(PROTOCOL)),
            ("6.9 WINDOW_UPDATE by 0", vec![window_update_frame(0, 0)], go_away(PROTOCOL)),
            (
                "6.9 WINDOW_UPDATE of 3 bytes",
                vec![frame_bytes(FrameKind::WindowUpdate, 0, 0, &[0; 3])],
                go_away(FRAME_SIZE),
            ),
            ("6.9.1 a window above the maximum", vec![window_update_frame(0, (1 << 31) - 1)], go_away(FLOW_CONTROL)),
            (
                "6.10 CONTINUATION without a stream",
                vec![
                    frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS),
                    frame_bytes(FrameKind::Continuation, END_HEADERS, 0, b""),
                ],
                go_away(PROTOCOL),
            ),
            (
                "6.10 CONTINUATION after the end of the headers",
                vec![headers_frame(1, 0), frame_bytes(FrameKind::Continuation, END_HEADERS, 1, b"")],
                go_away(PROTOCOL),
            ),
            (
                "6.10 DATA within a header block",
                vec![frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS), data_frame(1, 0, b"a")],
                go_away(PROTOCOL),
            ),
        ],
    );
}

#[test]
fn stream_errors_reset_only_the_stream() {
    let second = |more: Vec<u8>| vec![headers_frame(1, END_STREAM), more];
    let reset_after_call = |code| vec![Call(1, vec![]), Reset(1, code)];
    let malformed =
        |fields: &[(&str, &str)]| vec![frame_bytes(FrameKind::Headers, END_HEADERS, 1, &header_block(fields))];
    check_cases(
        None,
        &[
            ("5.1 DATA after the end", second(data_frame(1, 0, b"a")), reset_after_call(STREAM_CLOSED)),
            ("5.1 HEADERS after the end", second(headers_frame(1, END_STREAM)), reset_after_call(STREAM_CLOSED)),
            (
                "5.1 DATA after RST_STREAM",
                vec![headers_frame(1, 0), reset_frame(1), data_frame(1, 0, b"a")],
                vec![Reset(1, STREAM_CLOSED)],
            ),
            (
                "5.1 HEADERS after RST_STREAM",
                vec![headers_frame(1, 0), reset_frame(1), headers_frame(1, 0)],
                vec![GoAway(STREAM_CLOSED)],
            ),
            ("6.9 WINDOW_UPDATE by 0", vec![headers_frame(1, 0), window_update_frame(1, 0)], vec![Reset(1, PROTOCOL)]),
            (
                "6.9.1 a window above the maximum",
                vec![headers_frame(1, 0), window_update_frame(1, (1 << 31) - 1)],
                vec![Reset(1, FLOW_CONTROL)],
            ),
            (
                "8.1 HEADERS within a request",
                vec![headers_frame(1, 0), data_frame(1, 0, b"a"), headers_frame(1, 0)],
                vec![Reset(1, PROTOCOL)],
            ),
            (
                "8.1 pseudo-header fields in trailers",
                vec![headers_frame(1, 0), headers_frame(1, END_STREAM)],
                vec![Reset(1, PROTOCOL)],
            ),
            ("8.2 a name in upper case", malformed(&[("Name", "a")]), vec![Reset(1, PROTOCOL)]),
            ("8.3 an unknown pseudo-header field", malformed(&[(":x", "a")]), vec![Reset(1, PROTOCOL)]),
            (
                "8.1.1 a content-length that differs from the body",
                [malformed(&[("content-length", "2")]), vec![data_frame(1, 0, b"a"), data_frame(1, END_STREAM, b"bc")]]
                    .concat(),
                vec![Reset(1, PROTOCOL)],
            ),
            (
                "8.1.1 a content-length without a body",
                vec![frame_bytes(
                    FrameKind::Headers,
                    END_HEADERS | END_STREAM,
                    1,
                    &header_block(&[("content-length", "2")]),
                )],
                vec![Reset(1, PROTOCOL)],
            ),
            (
                "5.1 frames in flight when the server resets the stream",
                [
                    malformed(&[(":x", "a")]),
                    vec![data_frame(1, 0, b"a"), frame_bytes(FrameKind::Headers, END_HEADERS | END_STREAM, 1, b"")],
                ]
                .concat(),
                vec![Reset(1, PROTOCOL)],
            ),
        ],
    );
    let mut peer = TestConnection::new(Some(1));
    assert_eq!(peer.send(&headers_frame(1, END_STREAM)), reactions_to_call(1, b""));
    assert_eq!(peer.send(&data_frame(1, 0, b"a")), [Reset(1, STREAM_CLOSED)], "5.1 DATA on a closed stream");
    let mut peer = TestConnection::new(Some(1));
    assert_eq!(peer.send(&headers_frame(1, END_STREAM)), reactions_to_call(1, b""));
    assert_eq!(peer.send(&headers_frame(1, END_STREAM)), [GoAway(STREAM_CLOSED)], "5.1 HEADERS on a closed stream");
}

#[test]
fn other_protocols_and_invalid_prefaces_are_rejected() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"\x16\x03\x01"] {
        let mut peer = TestConnection::without_handshake(None);
        let mut input = bytes;
        assert_eq!(peer.connection.next_call(&mut input, peer.now), None);
        assert!(peer.connection.must_close() && peer.connection.out.starts_with(b"HTTP/1.1 505 "), "{bytes:?}");
    }
    let mut peer = TestConnection::without_handshake(None);
    let seen = peer.send(&[PREFACE, &frame_bytes(FrameKind::Ping, 0, 0, &[0; 8])].concat());
    assert_eq!(seen, [Window(CONNECTION_RECEIVE_WINDOW - 65_535), GoAway(PROTOCOL)], "3.4 a frame other than SETTINGS");
}

#[test]
fn responses_respect_the_windows_of_the_client() {
    let mut peer = TestConnection::new(Some(10));
    assert_eq!(peer.send(&settings_frame(4, 1)), [Acknowledged]);
    let begun = peer.send(&headers_frame(1, END_STREAM));
    assert_eq!(begun, [Call(1, vec![]), Headers(1, false), Data(1, 1)], "6.9.1 a window of 1");
    assert_eq!(peer.send(&window_update_frame(1, 2)), [Data(1, 2)]);
    assert_eq!(peer.send(&settings_frame(4, 0)), [Acknowledged], "6.9.2 a window of -1");
    assert_eq!(peer.send(&window_update_frame(1, 1)), []);
    assert_eq!(peer.send(&settings_frame(4, 3)), [Acknowledged, Data(1, 3)], "6.9.2 a larger window for open streams");
    assert!(peer.connection.blocked_since().is_some());
    assert_eq!(peer.send(&window_update_frame(1, 100)), [Data(1, 4), Headers(1, true)]);
    assert!(peer.connection.blocked_since().is_none());
    assert_eq!(
        peer.send(&[settings_frame(4, 1 << 30), headers_frame(3, 0), window_update_frame(3, 1 << 30)].concat()),
        [Acknowledged, Reset(3, FLOW_CONTROL)]
    );
    let overflow =
        [settings_frame(4, 0), headers_frame(5, 0), window_update_frame(5, 1 << 30), settings_frame(4, (1 << 31) - 1)]
            .concat();
    assert_eq!(
        peer.send(&overflow),
        [Acknowledged, GoAway(FLOW_CONTROL)],
        "6.9.2 the new window of a stream is too large"
    );
}

#[test]
fn large_responses_are_split_and_share_the_window_of_the_connection() {
    let mut peer = TestConnection::new(Some(40_000));
    let first = peer.send(&headers_frame(1, END_STREAM));
    assert_eq!(first[1..], [Headers(1, false), Data(1, 16_384), Data(1, 16_384), Data(1, 7_232), Headers(1, true)]);
    let second = peer.send(&headers_frame(3, END_STREAM));
    assert_eq!(second[1..], [Headers(3, false), Data(3, 16_384), Data(3, 9_151)]);
    assert_eq!(peer.send(&headers_frame(5, END_STREAM))[1..], [Headers(5, false)]);
    assert_eq!(peer.send(&window_update_frame(0, 14_466)), [Data(3, 14_465), Headers(3, true), Data(5, 1)]);
    assert_eq!(peer.send(&reset_frame(5)), [], "the client gives up");
    assert_eq!((peer.connection.blocked_since(), peer.send(&window_update_frame(0, 9))), (None, vec![]));
}

#[test]
fn bodies_are_bounded_and_windows_are_restored() {
    let mut peer = TestConnection::new(Some(1));
    let mut seen = peer.send(&headers_frame(1, 0));
    let frames = MAX_BODY_BYTES / MAX_PAYLOAD_BYTES + 1;
    (0..frames).for_each(|_| seen.extend(peer.send(&data_frame(1, 0, &[0; MAX_PAYLOAD_BYTES]))));
    // The server answers before the request is complete, asks the client to stop, and ignores the frames in flight.
    let refused = [Refused(1, CallError::BodyTooLarge), Headers(1, false), Data(1, 1), Headers(1, true), Reset(1, 0)];
    assert_eq!(seen[..5], refused);
    assert_eq!(
        seen[5..],
        [Window((frames * MAX_PAYLOAD_BYTES) as u32)],
        "the received bytes are returned to the window"
    );
    assert_eq!(peer.send(&data_frame(1, END_STREAM, b"more")), []);

    let mut peer = TestConnection::new(None);
    let open: Vec<Vec<u8>> = (0..10).map(|number| headers_frame(2 * number + 1, 0)).collect();
    peer.send(&open.concat());
    let mut sent = 0;
    let reaction = loop {
        let stream = 2 * (sent / (STREAM_RECEIVE_WINDOW / 2)) + 1;
        let seen = peer.send(&data_frame(stream, 0, &[0; MAX_PAYLOAD_BYTES]));
        sent += MAX_PAYLOAD_BYTES as u32;
        if !seen.is_empty() {
            break seen;
        }
    };
    assert_eq!(reaction, [GoAway(FLOW_CONTROL)]);
    assert!(sent > CONNECTION_RECEIVE_WINDOW && sent - CONNECTION_RECEIVE_WINDOW <= MAX_PAYLOAD_BYTES as u32, "{sent}");
}

#[test]
fn concurrent_streams_are_bounded() {
    let mut peer = TestConnection::new(None);
    let last = 2 * MAX_STREAMS + 1;
    for stream in (1..last).step_by(2) {
        assert_eq!(peer.send(&headers_frame(stream, 0)), []);
    }
    assert_eq!(peer.send(&headers_frame(last, 0)), [Reset(last, REFUSED_STREAM)], "5.1.2");
    assert_eq!(peer.send(&data_frame(1, END_STREAM, b"a")), [Call(1, b"a".to_vec())], "open streams continue");
}

#[test]
fn header_blocks_are_bounded() {
    let mut peer = TestConnection::new(None);
    peer.send(&frame_bytes(FrameKind::Headers, 0, 1, MINIMAL_HEADERS));
    let empty = frame_bytes(FrameKind::Continuation, 0, 1, b"");
    assert_eq!(peer.send(&empty.repeat(MAX_CONTINUATIONS)), []);
    assert_eq!(peer.send(&empty), [GoAway(ENHANCE_YOUR_CALM)], "a flood of CONTINUATION");

    let mut peer = TestConnection::new(None);
    peer.send(&frame_bytes(FrameKind::Headers, 0, 1, &[0; MAX_PAYLOAD_BYTES]));
    let more = frame_bytes(FrameKind::Continuation, 0, 1, &[0; MAX_PAYLOAD_BYTES]);
    assert_eq!(peer.send(&more), [], "{MAX_HEADER_BLOCK_BYTES} bytes");
    assert_eq!(peer.send(&frame_bytes(FrameKind::Continuation, 0, 1, b"x")), [GoAway(ENHANCE_YOUR_CALM)]);

    // A header bomb: one field of 4000 bytes in the dynamic table, followed by 1000 references to this field.
    let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    bomb.extend_from_slice(&[b'x'; 4_000]);
    bomb.extend_from_slice(&[0xbe; 1_000]);
    let mut peer = TestConnection::new(None);
    let refused = [Refused(1, CallError::HeadersTooLarge)];
    assert_eq!(peer.send(&frame_bytes(FrameKind::Headers, END_HEADERS | END_STREAM, 1, &bomb)), refused);
    let after = [MINIMAL_HEADERS, &[0xbe]].concat();
    assert_eq!(
        peer.send(&frame_bytes(FrameKind::Headers, END_HEADERS | END_STREAM, 3, &after)),
        [Call(3, vec![])],
        "the table is intact"
    );

    // Many small fields.
    let flood = [MINIMAL_HEADERS, &b"\0\x01a\x01b".repeat(MAX_HEADERS_BYTES as usize / 34)].concat();
    assert_eq!(
        peer.send(&frame_bytes(FrameKind::Headers, END_HEADERS | END_STREAM, 5, &flood)),
        [Refused(5, CallError::HeadersTooLarge)]
    );
}

#[test]
fn floods_of_frames_and_resets_close_the_connection() {
    let ping = frame_bytes(FrameKind::Ping, 0, 0, &[0; 8]);
    for (name, flood, reply) in [
        ("PING", &ping, Some(Pong)),
        ("SETTINGS", &frame_bytes(FrameKind::Settings, 0, 0, &[]), Some(Acknowledged)),
        ("PRIORITY", &frame_bytes(FrameKind::Priority, 0, 1, &[0; 5]), None),
        ("an extension", &raw_frame(0xbe, 0, 0, &[]), None),
    ] {
        let mut peer = TestConnection::new(Some(1));
        // The first SETTINGS frame of the connection also costs credit.
        let accepted = MAX_CREDIT as usize - 1;
        let replies = peer.send(&flood.repeat(accepted));
        assert!(replies.iter().all(|seen| Some(seen) == reply.as_ref()), "{name}");
        assert!(peer.send(flood).contains(&GoAway(ENHANCE_YOUR_CALM)), "{name}");
    }
    let mut peer = TestConnection::new(Some(1));
    peer.send(&ping.repeat(MAX_CREDIT as usize - 1));
    peer.now = Duration::from_secs(60);
    assert_eq!(peer.send(&ping), [Pong], "time restores the credit");

    // Rapid reset (CVE-2023-44487).
    let mut peer = TestConnection::new(None);
    let mut stream = 1;
    let seen = loop {
        let seen = peer.send(&[headers_frame(stream, 0), reset_frame(stream)].concat());
        if !seen.is_empty() {
            break seen;
        }
        stream += 2;
    };
    assert_eq!((seen, stream.div_ceil(2)), (vec![GoAway(ENHANCE_YOUR_CALM)], MAX_CREDIT / (RESET_COST + 1) + 1));

    let mut peer = TestConnection::new(None);
    peer.send(&headers_frame(1, 0));
    let empty = data_frame(1, 0, b"").repeat(MAX_CREDIT as usize);
    assert_eq!(peer.send(&empty), [GoAway(ENHANCE_YOUR_CALM)], "a flood of empty DATA");
}

#[test]
fn connection_closes_after_its_calls_are_answered() {
    let mut peer = TestConnection::new(None);
    peer.send(&headers_frame(1, 0));
    peer.connection.start_closing();
    peer.connection.start_closing();
    assert_eq!(peer.take_written_frames(), [GoAway(0)]);
    assert_eq!(peer.send(&headers_frame(3, END_STREAM)), [Call(3, vec![])], "the call was in flight");
    assert_eq!(peer.send(&frame_bytes(FrameKind::Ping, ACK, 0, b"draining")), [GoAway(0)]);
    assert_eq!(peer.send(&headers_frame(5, END_STREAM)), [Reset(5, REFUSED_STREAM)]);
    assert_eq!(peer.send(&data_frame(1, END_STREAM, b"")), [Call(1, vec![])]);
    for stream in [1, 3] {
        assert!(!peer.connection.must_close());
        peer.connection.respond_without_body(stream, b"\x88");
        assert_eq!(peer.take_written_frames(), [Headers(stream, true)]);
    }
    assert!(peer.connection.must_close());

    let mut idle = TestConnection::new(None);
    idle.connection.start_closing();
    idle.connection.finish_closing();
    assert!(idle.connection.must_close(), "does not wait for the client to answer the PING");
    let mut silent = TestConnection::without_handshake(None);
    silent.connection.start_closing();
    assert!(silent.connection.must_close());
}

#[test]
fn incomplete_calls_expire() {
    let second = Duration::from_secs(1);
    let mut peer = TestConnection::new(None);
    assert_eq!(peer.connection.incomplete_since(), None);
    peer.now = second;
    peer.send(&[headers_frame(1, END_STREAM), headers_frame(3, 0)].concat());
    peer.now = 2 * second;
    peer.send(&headers_frame(5, 0));
    assert_eq!(peer.connection.incomplete_since(), Some(second));
    let expired = peer.connection.expire_incomplete(second).map(|call| (call.stream, call.body));
    assert_eq!(expired, Some((3, Err(CallError::TooSlow))));
    assert_eq!(peer.connection.expire_incomplete(second), None);
    peer.connection.respond_without_body(3, b"\x88");
    assert_eq!(peer.take_written_frames(), [Headers(3, true), Reset(3, 0)]);
    assert_eq!(peer.connection.incomplete_since(), Some(2 * second));
    peer.send(&frame_bytes(FrameKind::Headers, 0, 7, MINIMAL_HEADERS));
    assert_eq!(peer.connection.expire_incomplete(2 * second), None, "the end of a header block is missing");
    assert_eq!(peer.take_written_frames(), [GoAway(ENHANCE_YOUR_CALM)]);
    assert_eq!(
        TestConnection::without_handshake(None).connection.incomplete_since(),
        Some(Duration::ZERO),
        "the preface"
    );
}

#[test]
fn cached_header_block_is_invalid_after_a_table_change() {
    let mut peer = TestConnection::new(Some(1));
    let mut send = |stream: u32, more: &[u8]| {
        peer.send(&frame_bytes(FrameKind::Headers, END_HEADERS | END_STREAM, stream, &[MINIMAL_HEADERS, more].concat()))
    };
    assert_eq!(send(1, b"\x40\x02te\x08trailers"), reactions_to_call(1, b""));
    for stream in [3, 5, 7] {
        assert_eq!(send(stream, &[0xbe]), reactions_to_call(stream, b""), "the field that was added");
    }
    assert_eq!(send(9, b"\x40\x02te\x04gzip"), [Reset(9, PROTOCOL)]);
    assert_eq!(send(11, &[0xbe]), [Reset(11, PROTOCOL)], "another field");
    assert_eq!(send(13, &[0xbf]), reactions_to_call(13, b""));
}

#[test]
fn answer_to_a_reset_stream_is_dropped() {
    let mut peer = TestConnection::new(None);
    assert_eq!(peer.send(&headers_frame(1, END_STREAM)), [Call(1, vec![])]);
    assert_eq!(peer.send(&reset_frame(1)), []);
    peer.connection.respond(1, b"\x88", b"", |out| out.push(0));
    peer.connection.respond_without_body(1, b"\x88");
    assert_eq!(peer.take_written_frames(), []);
}
