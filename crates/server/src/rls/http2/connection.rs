//! One HTTP/2 connection, as a state machine without sockets or clocks. Its input is the received bytes; its output is
//! calls and the bytes to send.
//!
//! A connection serves gRPC-style calls with one small request and one small response. The memory that a client can
//! occupy is bounded: [`MAX_STREAMS`] limits streams, the connection window limits their bodies,
//! `MAX_HEADER_BLOCK_BYTES` limits header blocks, and the dynamic table has a maximum size. The size of the output is
//! limited by the size of the input, and the caller writes the output before it reads again.

use std::borrow::Cow;
use std::time::Duration;

use super::super::bounds::{
    CONNECTION_RECEIVE_WINDOW, MAX_HEADERS_BYTES, MAX_STREAMS, RESET_COST, STREAM_RECEIVE_WINDOW,
};
use super::credit::Credit;
use super::frame::{self, ACK, ConnectionError, ErrorCode, Frame, FrameKind, MAX_31_BITS, PREFACE, Setting};
use super::head::RequestHead;
use super::hpack::Decoder;
use super::receive::{CachedHeaderBlock, HeaderBlock};
use super::streams::{ClientSide, ClosedBy, Stream, StreamState, Streams};

/// The initial window that HTTP/2 defines for connections and streams, in bytes.
const DEFAULT_WINDOW: u32 = 65_535;

/// The reply to a client that does not speak HTTP/2.
const NOT_HTTP2_RESPONSE: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\ncontent-length: 54\r\n\
    connection: close\r\n\r\nthis port speaks gRPC: HTTP/2 without an upgrade, h2c\n";

/// Payload of the PING sent after GOAWAY. When the client acknowledges this PING, it has also received the GOAWAY.
const DRAIN_PING: [u8; 8] = *b"draining";
/// Payload of keepalive PINGs.
const KEEPALIVE_PING: [u8; 8] = *b"areyouup";

/// A complete request, or a request that is refused before it is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamCall<'i> {
    /// The stream id.
    pub stream: u32,
    /// The headers.
    pub head: RequestHead,
    /// The body. A body in a single frame (the usual case) is borrowed from the input.
    pub body: Result<Cow<'i, [u8]>, CallError>,
}

/// Why a call is refused before it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The headers have more than `MAX_HEADERS_BYTES` bytes.
    HeadersTooLarge,
    /// The body has more than `MAX_BODY_BYTES` bytes.
    BodyTooLarge,
    /// The call did not arrive in time.
    TooSlow,
}

/// The phases of a connection, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionPhase {
    /// Waiting for the client's preface.
    Preface,
    /// Waiting for the client's first SETTINGS.
    Settings,
    Open,
    /// GOAWAY and a PING were sent. New streams are accepted until the client acknowledges this PING.
    Announced,
    /// No further streams are accepted.
    Final,
    Closed,
}

/// An HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    /// The output to write.
    pub out: Vec<u8>,
    pub(super) phase: ConnectionPhase,
    /// The service's paths. Requests for these paths need no allocation.
    pub(super) paths: &'static [&'static str],
    pub(super) decoder: Decoder,
    pub(super) block: Option<HeaderBlock>,
    pub(super) last_block: CachedHeaderBlock,
    pub(super) streams: Streams,
    /// Id of the last stream that the client opened.
    pub(super) last_stream: u32,
    /// Number of DATA bytes that the client may still send.
    pub(super) receive_window: u32,
    /// Number of DATA bytes that the next WINDOW_UPDATE returns to the client.
    pending_window_update: u32,
    /// Number of DATA bytes that the server may still send.
    pub(super) send_window: i64,
    /// Initial send window of a new stream, in bytes.
    pub(super) initial_window: i64,
    /// Number of streams that cannot send until the client enlarges a window.
    pub(super) sending: usize,
    /// The time at which a waiting response last made progress, if `sending` is not 0.
    pub(super) blocked_since: Duration,
    /// Whether a header block has already announced that the server uses no dynamic table.
    pub(super) has_announced_no_table: bool,
    pub(super) credit: Credit,
    pub(super) now: Duration,
}

impl Connection {
    /// Creates a connection for a service with these paths.
    pub fn new(paths: &'static [&'static str]) -> Self {
        Self {
            out: Vec::new(),
            phase: ConnectionPhase::Preface,
            paths,
            decoder: Decoder::default(),
            block: None,
            last_block: CachedHeaderBlock::default(),
            streams: Streams::default(),
            last_stream: 0,
            receive_window: CONNECTION_RECEIVE_WINDOW,
            pending_window_update: 0,
            send_window: DEFAULT_WINDOW.into(),
            initial_window: DEFAULT_WINDOW.into(),
            sending: 0,
            blocked_since: Duration::ZERO,
            has_announced_no_table: false,
            credit: Credit::default(),
            now: Duration::ZERO,
        }
    }

    /// Processes frames up to the next complete call. Returns `None` if the input contains no further call; a partial
    /// frame stays in `input`. `now` is the time since the connection started.
    pub fn next_call<'i>(&mut self, input: &mut &'i [u8], now: Duration) -> Option<StreamCall<'i>> {
        self.now = now;
        if self.phase == ConnectionPhase::Preface {
            self.take_preface(input);
        }
        while self.phase != ConnectionPhase::Preface && self.phase != ConnectionPhase::Closed {
            match Frame::take(input).and_then(|frame| frame.map(|frame| self.on_frame(frame)).transpose()) {
                Ok(None) => return None,
                Ok(Some(None)) => {}
                Ok(Some(Some(call))) => return Some(call),
                Err(error) => self.close_with_error(error),
            }
        }
        None
    }

    /// Returns whether the connection must be closed after its output is written.
    pub fn must_close(&self) -> bool {
        self.phase == ConnectionPhase::Closed || (self.phase == ConnectionPhase::Final && self.streams.len() == 0)
    }

    /// Announces that the connection will close. Calls that the client sends before it receives the announcement are
    /// answered.
    pub fn start_closing(&mut self) {
        match self.phase {
            ConnectionPhase::Preface | ConnectionPhase::Settings => self.phase = ConnectionPhase::Closed,
            ConnectionPhase::Open => {
                self.phase = ConnectionPhase::Announced;
                frame::put_goaway(&mut self.out, MAX_31_BITS, ErrorCode::NoError, "");
                frame::put_frame(&mut self.out, FrameKind::Ping, 0, 0, &DRAIN_PING);
            }
            ConnectionPhase::Announced | ConnectionPhase::Final | ConnectionPhase::Closed => {}
        }
    }

    /// Stops accepting new streams. Open streams are still answered.
    pub fn finish_closing(&mut self) {
        if self.phase < ConnectionPhase::Final {
            self.phase = ConnectionPhase::Final;
            frame::put_goaway(&mut self.out, self.last_stream, ErrorCode::NoError, "");
        }
    }

    /// Sends GOAWAY and closes the connection because of a client error.
    pub fn close_with_error(&mut self, error: ConnectionError) {
        if self.phase != ConnectionPhase::Closed {
            self.phase = ConnectionPhase::Closed;
            tracing::debug!(code = ?error.code, detail = error.detail, "connection error");
            frame::put_goaway(&mut self.out, self.last_stream, error.code, error.detail);
        }
    }

    /// Sends a keepalive PING. Any input counts as a reply.
    pub fn send_ping(&mut self) {
        frame::put_frame(&mut self.out, FrameKind::Ping, 0, 0, &KEEPALIVE_PING);
    }

    /// Returns the start time of the oldest incomplete input (the preface, a header block or a call), or `None` if no
    /// input is incomplete.
    pub fn incomplete_since(&self) -> Option<Duration> {
        if self.phase <= ConnectionPhase::Settings {
            return Some(Duration::ZERO);
        }
        let block = self.block.as_ref().map(|block| block.since);
        // Streams are sorted by opening time.
        let is_incomplete = |stream: &&Stream| matches!(stream.state, StreamState::Receiving { .. });
        let call = self.streams.iter().find(is_incomplete).map(|stream| stream.opened);
        block.into_iter().chain(call).min()
    }

    /// Returns whether a stream is open.
    pub fn is_stream_open(&mut self, id: u32) -> bool {
        self.streams.get_mut(id).is_some()
    }

    /// Returns the total size of the bodies of open streams, in bytes.
    pub fn held_bytes(&self) -> u32 {
        CONNECTION_RECEIVE_WINDOW - self.receive_window - self.pending_window_update
    }

    /// If responses wait until the client enlarges a window, returns the time of the last progress. Otherwise returns
    /// `None`.
    pub fn blocked_since(&self) -> Option<Duration> {
        (self.sending > 0).then_some(self.blocked_since)
    }

    /// Times out one incomplete input that began at or before `since`. An incomplete call is returned with
    /// [`CallError::TooSlow`]. If the preface or a header block is incomplete, the connection is closed.
    pub fn expire_incomplete(&mut self, since: Duration) -> Option<StreamCall<'static>> {
        if self.phase <= ConnectionPhase::Settings || self.block.as_ref().is_some_and(|block| block.since <= since) {
            self.close_with_error(ConnectionError::new(ErrorCode::EnhanceYourCalm, "headers did not arrive in time"));
            return None;
        }
        let is_expired =
            |stream: &&mut Stream| stream.opened <= since && matches!(stream.state, StreamState::Receiving { .. });
        let stream = self.streams.iter_mut().find(is_expired)?;
        let state = std::mem::replace(&mut stream.state, StreamState::Answering(ClientSide::Open));
        let StreamState::Receiving { head, .. } = state else { return None };
        Some(StreamCall { stream: stream.id, head, body: Err(CallError::TooSlow) })
    }

    fn take_preface(&mut self, input: &mut &[u8]) {
        let length = input.len().min(PREFACE.len());
        if input[..length] != PREFACE[..length] {
            self.phase = ConnectionPhase::Closed;
            self.out.extend_from_slice(NOT_HTTP2_RESPONSE);
            return;
        }
        if length < PREFACE.len() {
            return;
        }
        *input = &input[length..];
        self.phase = ConnectionPhase::Settings;
        frame::put_settings(
            &mut self.out,
            &[
                (Setting::MaxConcurrentStreams, MAX_STREAMS),
                (Setting::InitialWindowSize, STREAM_RECEIVE_WINDOW),
                (Setting::MaxHeaderListSize, MAX_HEADERS_BYTES),
            ],
        );
        self.put_window_update(CONNECTION_RECEIVE_WINDOW - DEFAULT_WINDOW);
    }

    fn on_frame<'i>(&mut self, frame: Frame<'i>) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        if let Some(block) = &self.block
            && (frame.kind != FrameKind::Continuation || frame.stream != block.stream)
        {
            return Err(ConnectionError::protocol_error("another frame within a header block"));
        }
        if self.phase == ConnectionPhase::Settings {
            if frame.kind != FrameKind::Settings || frame.has_flag(ACK) {
                return Err(ConnectionError::protocol_error("the first frame is not SETTINGS"));
            }
            self.phase = ConnectionPhase::Open;
        }
        match frame.kind {
            FrameKind::Data => return self.on_data(frame),
            FrameKind::Headers => return self.on_headers(frame),
            FrameKind::Continuation => return self.on_continuation(frame),
            FrameKind::Settings => self.on_settings(frame)?,
            FrameKind::WindowUpdate => self.on_window_update(frame)?,
            FrameKind::RstStream => self.on_reset(frame)?,
            FrameKind::Ping => self.on_ping(frame)?,
            FrameKind::GoAway if frame.stream != 0 => return Err(stream_id_not_allowed()),
            FrameKind::Priority if frame.stream == 0 => return Err(stream_id_missing()),
            FrameKind::Priority => drop(frame.fixed_payload::<5>()?),
            FrameKind::PushPromise => {
                return Err(ConnectionError::protocol_error("a client must not send PUSH_PROMISE"));
            }
            // The client's GOAWAY and extension frames are ignored.
            FrameKind::GoAway | FrameKind::Unknown => {}
        }
        self.spend(1)?;
        Ok(None)
    }

    pub(super) fn spend(&mut self, cost: u32) -> Result<(), ConnectionError> {
        match self.credit.spend(cost, self.now) {
            true => Ok(()),
            false => Err(ConnectionError::new(ErrorCode::EnhanceYourCalm, "too many control frames or resets")),
        }
    }

    fn on_reset(&mut self, frame: Frame<'_>) -> Result<(), ConnectionError> {
        frame.fixed_payload::<4>()?;
        if frame.stream == 0 {
            return Err(stream_id_missing());
        }
        if frame.stream > self.last_stream {
            return Err(ConnectionError::protocol_error("RST_STREAM on a stream that was not opened"));
        }
        if self.close_stream(frame.stream, ClosedBy::Both) {
            self.spend(RESET_COST)?;
        }
        Ok(())
    }

    fn on_ping(&mut self, frame: Frame<'_>) -> Result<(), ConnectionError> {
        let payload = frame.fixed_payload::<8>()?;
        if frame.stream != 0 {
            return Err(stream_id_not_allowed());
        }
        if !frame.has_flag(ACK) {
            frame::put_frame(&mut self.out, FrameKind::Ping, ACK, 0, &payload);
        } else if payload == DRAIN_PING && self.phase == ConnectionPhase::Announced {
            self.finish_closing();
        }
        Ok(())
    }

    /// Resets a stream because of a client error. The reset costs the client as much credit as if the client had reset
    /// the stream.
    pub(super) fn reset_stream(&mut self, id: u32, code: ErrorCode) -> Result<(), ConnectionError> {
        frame::put_reset(&mut self.out, id, code);
        if !self.close_stream(id, ClosedBy::Us) {
            self.streams.remember_closed(id, ClosedBy::Us);
        }
        self.spend(RESET_COST)
    }

    /// Removes a stream and returns its bytes to the connection window. Returns whether the stream was open.
    pub(super) fn close_stream(&mut self, id: u32, by: ClosedBy) -> bool {
        let Some(stream) = self.streams.close(id, by) else { return false };
        if matches!(stream.state, StreamState::Sending { .. }) {
            self.sending -= 1;
        }
        self.return_to_window(stream.received);
        true
    }

    /// Returns received bytes to the client's window. A WINDOW_UPDATE is sent after a quarter of the window has
    /// accumulated.
    pub(super) fn return_to_window(&mut self, length: u32) {
        self.pending_window_update += length;
        if self.pending_window_update >= CONNECTION_RECEIVE_WINDOW / 4 {
            self.put_window_update(self.pending_window_update);
            self.receive_window += self.pending_window_update;
            self.pending_window_update = 0;
        }
    }

    fn put_window_update(&mut self, increment: u32) {
        frame::put_frame(&mut self.out, FrameKind::WindowUpdate, 0, 0, &increment.to_be_bytes());
    }
}

pub(super) fn stream_id_not_allowed() -> ConnectionError {
    ConnectionError::protocol_error("a connection-level frame has a stream id")
}

pub(super) fn stream_id_missing() -> ConnectionError {
    ConnectionError::protocol_error("a stream-level frame has no stream id")
}
