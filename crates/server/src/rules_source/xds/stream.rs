//! The client side of one gRPC stream over HTTP/2. The input is the received bytes. The output is the messages and the
//! bytes to send. This module uses neither sockets nor clocks.
//!
//! The connection has only this stream. The memory is bounded: a message by [`MAX_MESSAGE_BYTES`], a header block by
//! [`MAX_HEADER_BLOCK_BYTES`], and requests that wait for the server's window by [`MAX_UNSENT_BYTES`].

use crate::rls::bounds::MAX_HEADER_BLOCK_BYTES;
use crate::rls::http2::frame::{
    self, ACK, ConnectionError, END_HEADERS, END_STREAM, Frame, FrameKind, MAX_31_BITS, MAX_PAYLOAD_BYTES, PREFACE,
    Setting,
};
use crate::rls::http2::hpack::{Decoder, put_literal};

/// Maximum number of bytes of a message.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of bytes of requests that wait for the server's flow-control window.
pub const MAX_UNSENT_BYTES: usize = 64 * 1024;

/// The size of the prefix of each message: the compression flag and the message length.
const MESSAGE_PREFIX_BYTES: usize = 5;

/// The receive window of the stream and of the connection. The window is larger than the largest message. Received
/// bytes are returned to the window immediately.
const RECEIVE_WINDOW: u32 = (MAX_MESSAGE_BYTES + MAX_PAYLOAD_BYTES) as u32;

/// The initial window of HTTP/2.
const DEFAULT_WINDOW: u32 = 65_535;

/// The id of the stream.
const STREAM_ID: u32 = 1;

/// The payload of a keepalive PING.
const KEEPALIVE_PAYLOAD: [u8; 8] = *b"areyouup";

/// A stream, with the state of its connection.
#[derive(Debug)]
pub struct ClientStream {
    /// Bytes to write to the connection.
    pub out: Vec<u8>,
    /// The part of a frame that has arrived.
    partial: Vec<u8>,
    /// The part of a message that has arrived.
    message: Vec<u8>,
    /// Requests that wait for the server's window.
    unsent: Vec<u8>,
    /// A header block that is still incomplete, if any.
    block: Option<ResponseHeaders>,
    decoder: Decoder,
    /// The send windows of the connection and of the stream, in bytes of DATA frames.
    windows: [i64; 2],
    initial_window: i64,
    /// Whether the server is closing the connection gracefully. The caller then opens another connection.
    pub is_closing: bool,
}

/// A header block that may still be incomplete.
#[derive(Debug)]
struct ResponseHeaders {
    bytes: Vec<u8>,
    /// Whether the block ends the stream.
    ends_stream: bool,
}

impl ClientStream {
    /// Opens a stream to the gRPC method at `path`.
    pub fn open(authority: &str, path: &str, is_tls: bool) -> Self {
        let mut out = PREFACE.to_vec();
        frame::put_settings(&mut out, &[(Setting::EnablePush, 0), (Setting::InitialWindowSize, RECEIVE_WINDOW)]);
        frame::put_frame(&mut out, FrameKind::WindowUpdate, 0, 0, &(RECEIVE_WINDOW - DEFAULT_WINDOW).to_be_bytes());
        // The indexed fields `:method: POST` and `:scheme`.
        let mut block = vec![0x83, if is_tls { 0x87 } else { 0x86 }];
        for (name, value) in
            [(":path", path), (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc")]
        {
            put_literal(&mut block, name, value.as_bytes());
        }
        frame::put_frame(&mut out, FrameKind::Headers, END_HEADERS, STREAM_ID, &block);
        Self {
            out,
            partial: Vec::new(),
            message: Vec::new(),
            unsent: Vec::new(),
            block: None,
            decoder: Decoder::default(),
            windows: [DEFAULT_WINDOW.into(); 2],
            initial_window: DEFAULT_WINDOW.into(),
            is_closing: false,
        }
    }

    /// Sends a message, or queues it until the server's flow-control windows allow it.
    ///
    /// # Errors
    /// Returns an error if more than [`MAX_UNSENT_BYTES`] bytes would be queued.
    pub fn send(&mut self, message: &[u8]) -> Result<(), String> {
        if self.unsent.len() + message.len() > MAX_UNSENT_BYTES {
            return Err("the server does not open its window for requests".to_owned());
        }
        self.unsent.push(0);
        self.unsent.extend_from_slice(&(message.len() as u32).to_be_bytes());
        self.unsent.extend_from_slice(message);
        self.send_unsent();
        Ok(())
    }

    /// Sends a keepalive PING. Any input from the server counts as an answer.
    pub fn send_ping(&mut self) {
        frame::put_frame(&mut self.out, FrameKind::Ping, 0, 0, &KEEPALIVE_PAYLOAD);
    }

    /// Processes bytes from the server, and calls `each` with every complete message.
    ///
    /// # Errors
    /// Returns an error if the server ends the stream or breaks the protocol.
    pub fn receive(&mut self, input: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), String> {
        self.partial.extend_from_slice(input);
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = &bytes[..];
        while let Some(frame) = Frame::take(&mut rest).map_err(error_detail)? {
            self.on_frame(frame)?;
            self.take_messages(&mut each)?;
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    fn on_frame(&mut self, frame: Frame<'_>) -> Result<(), String> {
        if self.block.is_some() && frame.kind != FrameKind::Continuation {
            return Err("another frame within a header block".to_owned());
        }
        match frame.kind {
            FrameKind::Data if frame.stream == STREAM_ID => self.on_data(frame),
            FrameKind::Headers if frame.stream == STREAM_ID => {
                let bytes = frame.unpadded_payload().map_err(error_detail)?.to_vec();
                let block = ResponseHeaders { bytes, ends_stream: frame.has_flag(END_STREAM) };
                self.on_header_block(block, frame.has_flag(END_HEADERS))
            }
            FrameKind::Continuation if frame.stream == STREAM_ID => {
                let mut block = self.block.take().ok_or("CONTINUATION without a header block")?;
                block.bytes.extend_from_slice(frame.payload);
                self.on_header_block(block, frame.has_flag(END_HEADERS))
            }
            FrameKind::Settings if !frame.has_flag(ACK) => self.on_settings(frame),
            FrameKind::Ping if !frame.has_flag(ACK) => {
                frame::put_frame(
                    &mut self.out,
                    FrameKind::Ping,
                    ACK,
                    0,
                    &frame.fixed_payload::<8>().map_err(error_detail)?,
                );
                Ok(())
            }
            FrameKind::WindowUpdate if matches!(frame.stream, 0 | STREAM_ID) => {
                let more = i64::from(u32::from_be_bytes(frame.fixed_payload().map_err(error_detail)?) & MAX_31_BITS);
                let window = &mut self.windows[usize::from(frame.stream == STREAM_ID)];
                *window = (*window + more).min(MAX_31_BITS.into());
                self.send_unsent();
                Ok(())
            }
            FrameKind::RstStream if frame.stream == STREAM_ID => Err("the server reset the stream".to_owned()),
            FrameKind::GoAway => match frame.payload {
                // Error code 0 (NO_ERROR) after the id of the last stream: a graceful close.
                [_, _, _, _, 0, 0, 0, 0, ..] => {
                    self.is_closing = true;
                    Ok(())
                }
                _ => Err("the server closes the connection because of an error".to_owned()),
            },
            FrameKind::Data | FrameKind::Headers | FrameKind::Continuation | FrameKind::PushPromise => {
                Err("a frame of a stream that was not opened".to_owned())
            }
            // Acknowledgements, priorities, unknown frames, and frames for other streams are ignored.
            FrameKind::Settings
            | FrameKind::Ping
            | FrameKind::RstStream
            | FrameKind::WindowUpdate
            | FrameKind::Priority
            | FrameKind::Unknown => Ok(()),
        }
    }

    fn on_data(&mut self, frame: Frame<'_>) -> Result<(), String> {
        let content = frame.unpadded_payload().map_err(error_detail)?;
        if self.message.len() + content.len() > MAX_MESSAGE_BYTES + MAX_PAYLOAD_BYTES {
            return Err(format!("a message has more than {MAX_MESSAGE_BYTES} bytes"));
        }
        self.message.extend_from_slice(content);
        let length = (frame.payload.len() as u32).to_be_bytes();
        if !frame.payload.is_empty() {
            for stream in [0, STREAM_ID] {
                frame::put_frame(&mut self.out, FrameKind::WindowUpdate, 0, stream, &length);
            }
        }
        if frame.has_flag(END_STREAM) { Err("the server ended the stream without a status".to_owned()) } else { Ok(()) }
    }

    /// Decodes a header block: the response head, or the trailers, which contain the gRPC status.
    fn on_header_block(&mut self, block: ResponseHeaders, is_complete: bool) -> Result<(), String> {
        if block.bytes.len() > MAX_HEADER_BLOCK_BYTES {
            return Err(format!("a header block has more than {MAX_HEADER_BLOCK_BYTES} bytes"));
        }
        if !is_complete {
            self.block = Some(block);
            return Ok(());
        }
        let (mut status, mut grpc, mut why) = (None, None, String::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let decoded = self.decoder.decode(&block.bytes, |field| match field.name {
            b":status" => status = Some(text(field.value)),
            b"grpc-status" => grpc = Some(text(field.value)),
            b"grpc-message" => why = text(field.value),
            _ => {}
        });
        decoded.map_err(|error| error.0.to_owned())?;
        match (status.as_deref(), grpc) {
            (_, Some(grpc)) => Err(format!("the server ended the stream with the gRPC status {grpc}: {why}")),
            (Some("200"), None) if !block.ends_stream => Ok(()),
            (Some(status), None) => Err(format!("the server answered with the HTTP status {status}")),
            (None, None) => Err("the server ended the stream without a status".to_owned()),
        }
    }

    fn on_settings(&mut self, frame: Frame<'_>) -> Result<(), String> {
        let (settings, []) = frame.payload.as_chunks::<6>() else {
            return Err("SETTINGS ends within a parameter".to_owned());
        };
        for &[i0, i1, v0, v1, v2, v3] in settings {
            let value = i64::from(u32::from_be_bytes([v0, v1, v2, v3]) & MAX_31_BITS);
            if u16::from_be_bytes([i0, i1]) == Setting::InitialWindowSize as u16 {
                self.windows[1] += value - self.initial_window;
                self.initial_window = value;
            }
        }
        frame::put_frame(&mut self.out, FrameKind::Settings, ACK, 0, &[]);
        self.send_unsent();
        Ok(())
    }

    fn send_unsent(&mut self) {
        while !self.unsent.is_empty() {
            let window = usize::try_from(self.windows[0].min(self.windows[1])).unwrap_or(0);
            let length = self.unsent.len().min(MAX_PAYLOAD_BYTES).min(window);
            if length == 0 {
                return;
            }
            let rest = self.unsent.split_off(length);
            frame::put_frame(&mut self.out, FrameKind::Data, 0, STREAM_ID, &self.unsent);
            self.unsent = rest;
            self.windows = self.windows.map(|window| window - length as i64);
        }
    }

    fn take_messages(&mut self, each: &mut impl FnMut(&[u8])) -> Result<(), String> {
        while let Some((&[compressed, ref length @ ..], rest)) =
            self.message.split_first_chunk::<MESSAGE_PREFIX_BYTES>()
        {
            let length = u32::from_be_bytes(*length) as usize;
            if compressed != 0 {
                return Err("compressed messages are not supported".to_owned());
            }
            if length > MAX_MESSAGE_BYTES {
                return Err(format!("a message has more than {MAX_MESSAGE_BYTES} bytes"));
            }
            let Some(message) = rest.get(..length) else { return Ok(()) };
            each(message);
            self.message.drain(..MESSAGE_PREFIX_BYTES + length);
        }
        Ok(())
    }
}

fn error_detail(error: ConnectionError) -> String {
    error.detail.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::put_frame(&mut out, kind, flags, stream, payload);
        out
    }

    fn receive(stream: &mut ClientStream, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut messages = Vec::new();
        stream.receive(bytes, |message| messages.push(message.to_vec()))?;
        Ok(messages)
    }

    fn open_test_stream() -> ClientStream {
        let mut stream = ClientStream::open("h:1", "/p", false);
        stream.out.clear();
        stream
    }

    #[test]
    fn messages_are_complete_wherever_the_input_is_split() {
        let bytes = [
            encode_frame(FrameKind::Settings, 0, 0, &[]),
            encode_frame(FrameKind::Headers, END_HEADERS, 1, &[0x88]),
            encode_frame(FrameKind::Data, 0, 1, b"\0\0\0\0\x02a"),
            encode_frame(FrameKind::Ping, 0, 0, b"12345678"),
            encode_frame(FrameKind::Data, 0, 1, b"b\0\0\0\0\0\0\0\0\0\x01c"),
        ]
        .concat();
        for size in 1..=bytes.len() {
            let mut stream = open_test_stream();
            let parts = bytes.chunks(size).map(|part| receive(&mut stream, part).expect("frames"));
            assert_eq!(parts.collect::<Vec<_>>().concat(), [&b"ab"[..], b"", b"c"], "{size}");
            assert!(stream.out.ends_with(&encode_frame(FrameKind::WindowUpdate, 0, 1, &12_u32.to_be_bytes())));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_frames_are_read_or_refused(kind in 0_u8..12, flags: u8, stream in 0_u32..3, bytes: Vec<u8>) {
            let mut input = (bytes.len() as u32).to_be_bytes()[1..].to_vec();
            input.extend_from_slice(&[kind, flags]);
            input.extend_from_slice(&stream.to_be_bytes());
            input.extend_from_slice(&bytes);
            let mut opened = open_test_stream();
            let _ = receive(&mut opened, &input.repeat(3)).and_then(|_| opened.send(b"x"));
        }
    }

    #[test]
    fn requests_wait_for_the_windows_of_the_server() {
        let mut stream = open_test_stream();
        // The server announces an initial window of 3 bytes.
        receive(&mut stream, &encode_frame(FrameKind::Settings, 0, 0, &[0, 4, 0, 0, 0, 3])).expect("a frame");
        stream.out.clear();
        stream.send(b"ab").expect("room");
        assert_eq!(stream.out, encode_frame(FrameKind::Data, 0, 1, &[0; 3]));
        stream.out.clear();
        let windows = stream.windows;
        receive(&mut stream, &encode_frame(FrameKind::WindowUpdate, 0, 3, &[0, 0, 0, 9])).expect("a frame");
        assert_eq!(stream.windows, windows, "the window of another stream");
        receive(&mut stream, &encode_frame(FrameKind::WindowUpdate, 0, 1, &[0, 0, 0, 9])).expect("a frame");
        assert_eq!(stream.out, encode_frame(FrameKind::Data, 0, 1, b"\0\x02ab"));
        assert!(stream.send(&[0; MAX_UNSENT_BYTES + 1]).is_err());
    }

    #[test]
    fn graceful_end_of_the_connection_is_not_an_error() {
        let mut stream = open_test_stream();
        let bytes =
            [encode_frame(FrameKind::GoAway, 0, 0, &[0; 8]), encode_frame(FrameKind::Data, 0, 1, b"\0\0\0\0\x01a")]
                .concat();
        assert_eq!(receive(&mut stream, &bytes), Ok(vec![b"a".to_vec()]), "the stream is still read");
        assert!(stream.is_closing);
    }

    #[test]
    fn error_at_the_end_of_a_stream_names_the_reason() {
        let mut trailers = Vec::new();
        put_literal(&mut trailers, "grpc-status", b"14");
        put_literal(&mut trailers, "grpc-message", b"busy");
        for (bytes, expected) in [
            (encode_frame(FrameKind::Headers, END_HEADERS | END_STREAM, 1, &trailers), "gRPC status 14: busy"),
            (encode_frame(FrameKind::Headers, END_HEADERS, 1, &[0x8d]), "HTTP status 404"),
            (encode_frame(FrameKind::RstStream, 0, 1, &[0; 4]), "reset"),
            (encode_frame(FrameKind::GoAway, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 2]), "because of an error"),
            (encode_frame(FrameKind::GoAway, 0, 0, &[0; 7]), "because of an error"),
            (encode_frame(FrameKind::Data, END_STREAM, 1, &[]), "without a status"),
            (encode_frame(FrameKind::Data, 0, 3, &[]), "not opened"),
            (encode_frame(FrameKind::Data, 0, 1, b"\x01\0\0\0\0"), "compressed"),
            (encode_frame(FrameKind::Data, 0, 1, b"\0\xff\0\0\0"), "more than 4194304 bytes"),
            (encode_frame(FrameKind::Continuation, 0, 1, &[]), "CONTINUATION without"),
            (
                [
                    encode_frame(FrameKind::Headers, END_STREAM, 1, &[]),
                    encode_frame(FrameKind::Continuation, END_HEADERS, 1, &[0x88]),
                ]
                .concat(),
                "HTTP status 200",
            ),
            (
                [encode_frame(FrameKind::Headers, 0, 1, &[]), encode_frame(FrameKind::Continuation, 0, 3, &[])]
                    .concat(),
                "not opened",
            ),
            (encode_frame(FrameKind::Headers, END_HEADERS, 1, &[0xff, 0x7f]), ""),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "16384"),
        ] {
            let error = receive(&mut open_test_stream(), &bytes).expect_err(expected);
            assert!(error.contains(expected), "{error} instead of {expected}");
        }
        let endless = encode_frame(FrameKind::Headers, 0, 1, &[0; 16_384]);
        let more = encode_frame(FrameKind::Continuation, 0, 1, &[0; 16_384]).repeat(2);
        assert!(
            receive(&mut open_test_stream(), &[endless, more].concat()).expect_err("endless").contains("header block")
        );
    }
}
