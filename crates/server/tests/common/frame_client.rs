//! A rate-limit service client that sends HTTP/2 frames one by one.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses only part of this module")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tollgate_server::rls::http2::frame::{END_HEADERS, END_STREAM, Frame, FrameKind, PREFACE, put_frame};
use tollgate_server::rls::http2::hpack::{Decoder, put_literal};

use super::TEST_TIMEOUT;

/// Path of the service's only method.
pub const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A response: its body, and its headers and trailers as one list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CallResponse {
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl CallResponse {
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(it, _)| it == name).map_or("", |(_, value)| value)
    }

    /// Returns the code, which is the first field of the message: 1 is OK, 2 is OVER_LIMIT.
    pub fn code(&self) -> Option<u8> {
        self.body.get(6).copied()
    }
}

/// A client that sends individual frames.
pub struct FrameClient {
    stream: TcpStream,
    received: Vec<u8>,
    decoder: Decoder,
}

impl FrameClient {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a socket");
        let mut client = Self { stream, received: Vec::new(), decoder: Decoder::default() };
        client.send(PREFACE);
        client.send_frame(FrameKind::Settings, 0, 0, &[]);
        client
    }

    /// Sends bytes. Ignores errors, because the server may have closed the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send_frame(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, kind, flags, stream, payload);
        self.send(&bytes);
    }

    pub fn call(&mut self, stream: u32, path: &str, body: &[u8]) {
        let mut block = vec![0x83, 0x86];
        put_literal(&mut block, ":path", path.as_bytes());
        put_literal(&mut block, "content-type", b"application/grpc");
        self.send_frame(FrameKind::Headers, END_HEADERS, stream, &block);
        self.send_frame(FrameKind::Data, END_STREAM, stream, body);
    }

    /// Returns the type, flags, stream and payload of the next frame, or `None` at the end of the connection.
    pub fn next(&mut self) -> Option<(FrameKind, u8, u32, Vec<u8>)> {
        loop {
            let mut input = &self.received[..];
            if let Some(frame) = Frame::take(&mut input).expect("a frame") {
                let found = (frame.kind, frame.flags, frame.stream, frame.payload.to_vec());
                self.received = input.to_vec();
                return Some(found);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the server sends nothing: {error}"),
            }
        }
    }

    /// Returns the next complete answer and its stream.
    pub fn next_answer(&mut self) -> (u32, CallResponse) {
        let mut answer = CallResponse::default();
        loop {
            let (kind, flags, stream, payload) = self.next().expect("an answer before the end");
            match kind {
                FrameKind::Headers => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let fields = &mut answer.fields;
                    let decoded =
                        self.decoder.decode(&payload, |field| fields.push((text(field.name), text(field.value))));
                    decoded.expect("a header block");
                }
                FrameKind::Data => answer.body.extend_from_slice(&payload),
                // The whole response has arrived, and the server asks the client to stop sending.
                FrameKind::RstStream if payload == [0; 4] => continue,
                FrameKind::RstStream => panic!("stream {stream} was reset: {payload:?}"),
                _ => continue,
            }
            if flags & END_STREAM != 0 {
                return (stream, answer);
            }
        }
    }

    /// Returns the text of the next GOAWAY frame, or `None` if a call is answered first or the connection ends.
    pub fn next_goaway(&mut self) -> Option<String> {
        loop {
            match self.next()? {
                (FrameKind::GoAway, _, _, payload) => return Some(String::from_utf8_lossy(&payload[8..]).into_owned()),
                (FrameKind::Headers, ..) => return None,
                _ => {}
            }
        }
    }

    /// Reads to the end of the connection and returns the text of the last GOAWAY frame.
    pub fn last_goaway(&mut self) -> String {
        let mut farewell = String::new();
        while let Some((kind, _, _, payload)) = self.next() {
            if kind == FrameKind::GoAway {
                farewell = String::from_utf8_lossy(&payload[8..]).into_owned();
            }
        }
        farewell
    }
}
