//! The receiving side of a connection, which assembles calls from header blocks and DATA frames.

use std::borrow::Cow;
use std::time::Duration;

use super::super::bounds::{
    MAX_BODY_BYTES, MAX_CACHED_BLOCK_BYTES, MAX_CONTINUATIONS, MAX_HEADER_BLOCK_BYTES, MAX_HEADERS_BYTES, MAX_STREAMS,
    STREAM_RECEIVE_WINDOW,
};
use super::connection::{CallError, Connection, ConnectionPhase, StreamCall, stream_id_missing};
use super::frame::{ConnectionError, END_HEADERS, END_STREAM, ErrorCode, Frame};
use super::head::{HeadBuilder, HeadError, RequestHead};
use super::streams::{ClientSide, ClosedBy, Stream, StreamState};

/// An incomplete header block.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: u32,
    ends_stream: bool,
    bytes: Vec<u8>,
    continuations: usize,
    pub(super) since: Duration,
}

/// A cache of the last header block and its decoded headers, valid until the dynamic table changes. After the fields
/// are in the table, a client sends the same block with almost every call.
#[derive(Debug, Default)]
pub(super) struct CachedHeaderBlock {
    bytes: Vec<u8>,
    table_version: u64,
    head: RequestHead,
}

impl Connection {
    pub(super) fn on_headers<'i>(&mut self, frame: Frame<'i>) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        let (content, ends_stream) = (frame.unpadded_payload()?, frame.has_flag(END_STREAM));
        if frame.stream.is_multiple_of(2) {
            return Err(ConnectionError::protocol_error("the stream id of a client must be odd"));
        }
        if frame.has_flag(END_HEADERS) {
            return self.on_complete_block(frame.stream, ends_stream, content);
        }
        let (stream, bytes, since) = (frame.stream, content.to_vec(), self.now);
        self.block = Some(HeaderBlock { stream, ends_stream, bytes, continuations: 0, since });
        Ok(None)
    }

    pub(super) fn on_continuation<'i>(&mut self, frame: Frame<'i>) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        let Some(block) = &mut self.block else {
            return Err(ConnectionError::protocol_error("CONTINUATION without a header block"));
        };
        block.continuations += 1;
        if block.continuations > MAX_CONTINUATIONS || block.bytes.len() + frame.payload.len() > MAX_HEADER_BLOCK_BYTES {
            let detail = "a header block of more than 16 CONTINUATION frames or 32768 bytes";
            return Err(ConnectionError::new(ErrorCode::EnhanceYourCalm, detail));
        }
        block.bytes.extend_from_slice(frame.payload);
        if !frame.has_flag(END_HEADERS) {
            return Ok(None);
        }
        match self.block.take() {
            Some(block) => self.on_complete_block(block.stream, block.ends_stream, &block.bytes),
            None => Ok(None),
        }
    }

    /// Decodes a complete header block. Headers open a stream; trailers end a request. Returns the call if it is
    /// complete.
    fn on_complete_block<'i>(
        &mut self,
        id: u32,
        ends: bool,
        block: &[u8],
    ) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        let (last, version) = (&self.last_block, self.decoder.version());
        if id > self.last_stream && last.bytes == block && last.table_version == version && !block.is_empty() {
            return self.open_stream(id, ends, Ok(last.head.clone()));
        }
        let mut head = HeadBuilder::new(MAX_HEADERS_BYTES as usize, self.paths);
        let decoded = self.decoder.decode(block, |field| head.add(field));
        decoded.map_err(|error| ConnectionError::new(ErrorCode::Compression, error.0))?;
        if id <= self.last_stream {
            return self.on_trailers(id, ends, &head);
        }
        let head = head.finish();
        if let Ok(head) = &head
            && version == self.decoder.version()
            && block.len() <= MAX_CACHED_BLOCK_BYTES
        {
            self.last_block.bytes.clear();
            self.last_block.bytes.extend_from_slice(block);
            (self.last_block.table_version, self.last_block.head) = (version, head.clone());
        }
        self.open_stream(id, ends, head)
    }

    /// Opens a stream.
    fn open_stream<'i>(
        &mut self,
        id: u32,
        ends: bool,
        head: Result<RequestHead, HeadError>,
    ) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        self.last_stream = id;
        if self.phase == ConnectionPhase::Final || self.streams.len() >= MAX_STREAMS as usize {
            return self.reset_stream(id, ErrorCode::RefusedStream).map(|()| None);
        }
        let client = if ends { ClientSide::Ended } else { ClientSide::Open };
        let (state, call) = match head {
            Err(HeadError::Malformed(detail)) => {
                tracing::debug!(detail, "malformed request");
                return self.reset_stream(id, ErrorCode::Protocol).map(|()| None);
            }
            Err(HeadError::TooLarge) => (StreamState::Answering(client), Some((RequestHead::default(), true))),
            Ok(head) if ends && head.content_length.is_some_and(|length| length > 0) => {
                return self.reset_stream(id, ErrorCode::Protocol).map(|()| None);
            }
            Ok(head) if ends => (StreamState::Answering(client), Some((head, false))),
            Ok(head) => (StreamState::Receiving { head, body: Vec::new() }, None),
        };
        self.streams.open(Stream { id, state, opened: self.now, received: 0, send_window: self.initial_window });
        Ok(call.map(|(head, is_too_large)| {
            let body = if is_too_large { Err(CallError::HeadersTooLarge) } else { Ok(Cow::Borrowed(&[][..])) };
            StreamCall { stream: id, head, body }
        }))
    }

    /// Ends a request with trailers. The values of the trailers are ignored.
    fn on_trailers<'i>(
        &mut self,
        id: u32,
        ends: bool,
        fields: &HeadBuilder,
    ) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        let Some(stream) = self.streams.get_mut(id) else {
            return match self.streams.closed_by(id) {
                Some(ClosedBy::Us) => Ok(None),
                Some(ClosedBy::Both) => {
                    Err(ConnectionError::new(ErrorCode::StreamClosed, "HEADERS on a stream that was closed"))
                }
                None => Err(ConnectionError::protocol_error("stream ids must increase")),
            };
        };
        match &mut stream.state {
            StreamState::Receiving { .. } if !ends || !fields.are_trailers() => {
                self.reset_stream(id, ErrorCode::Protocol).map(|()| None)
            }
            StreamState::Receiving { .. } => self.complete_call(id, &[]),
            StreamState::Answering(client) | StreamState::Sending { client, .. } => match *client {
                ClientSide::Ended => self.reset_stream(id, ErrorCode::StreamClosed).map(|()| None),
                ClientSide::Open => {
                    *client = if ends { ClientSide::Ended } else { ClientSide::Open };
                    Ok(None)
                }
            },
        }
    }

    pub(super) fn on_data<'i>(&mut self, frame: Frame<'i>) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        // The cast is lossless, because a payload has at most 16 KiB.
        let (length, ends) = (frame.payload.len() as u32, frame.has_flag(END_STREAM));
        if frame.stream == 0 {
            return Err(stream_id_missing());
        }
        let data = frame.unpadded_payload()?;
        let overrun = ConnectionError::new(ErrorCode::FlowControl, "more DATA than the window of the connection");
        self.receive_window = self.receive_window.checked_sub(length).ok_or(overrun)?;
        let Some(stream) = self.streams.get_mut(frame.stream) else {
            self.return_to_window(length);
            if frame.stream > self.last_stream {
                return Err(ConnectionError::protocol_error("DATA on a stream that was not opened"));
            }
            return match self.streams.closed_by(frame.stream) {
                Some(ClosedBy::Us) => self.spend(1).map(|()| None),
                Some(ClosedBy::Both) | None => self.reset_stream(frame.stream, ErrorCode::StreamClosed).map(|()| None),
            };
        };
        stream.received = stream.received.saturating_add(length);
        if stream.received > STREAM_RECEIVE_WINDOW {
            return self.reset_stream(frame.stream, ErrorCode::FlowControl).map(|()| None);
        }
        match &mut stream.state {
            StreamState::Receiving { body, head } if body.len() + data.len() > MAX_BODY_BYTES => {
                let (id, head) = (stream.id, std::mem::take(head));
                stream.state = StreamState::Answering(if ends { ClientSide::Ended } else { ClientSide::Open });
                Ok(Some(StreamCall { stream: id, head, body: Err(CallError::BodyTooLarge) }))
            }
            StreamState::Receiving { .. } if ends => self.complete_call(frame.stream, data),
            StreamState::Receiving { body, .. } => {
                body.extend_from_slice(data);
                // A partial body costs credit, because many small frames are cheap to send but expensive to assemble.
                self.spend(1).map(|()| None)
            }
            StreamState::Answering(client) | StreamState::Sending { client, .. } => match *client {
                ClientSide::Ended => self.reset_stream(frame.stream, ErrorCode::StreamClosed).map(|()| None),
                ClientSide::Open => {
                    *client = if ends { ClientSide::Ended } else { ClientSide::Open };
                    self.spend(1).map(|()| None)
                }
            },
        }
    }

    /// Completes the request of a stream with `data` and returns the call. Returns `None` if the stream expects no
    /// data. If the body does not have the length in `content-length`, resets the stream and returns `None`.
    fn complete_call<'i>(&mut self, id: u32, data: &'i [u8]) -> Result<Option<StreamCall<'i>>, ConnectionError> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        let state = std::mem::replace(&mut stream.state, StreamState::Answering(ClientSide::Ended));
        let StreamState::Receiving { head, mut body } = state else { return Ok(None) };
        let body = if body.is_empty() {
            Cow::Borrowed(data)
        } else {
            body.extend_from_slice(data);
            Cow::Owned(body)
        };
        if head.content_length.is_some_and(|length| length != body.len() as u64) {
            return self.reset_stream(id, ErrorCode::Protocol).map(|()| None);
        }
        Ok(Some(StreamCall { stream: id, head, body: Ok(body) }))
    }
}
