//! The sending side of a connection: sends responses within the client's flow-control windows, and handles SETTINGS and
//! WINDOW_UPDATE frames.

use super::connection::{Connection, stream_id_not_allowed};
use super::frame::{
    self, ACK, ConnectionError, END_HEADERS, END_STREAM, ErrorCode, FRAME_HEADER_BYTES, Frame, FrameKind, MAX_31_BITS,
    MAX_PAYLOAD_BYTES, Setting,
};
use super::hpack::NO_DYNAMIC_TABLE;
use super::streams::{ClientSide, ClosedBy, StreamState};

impl Connection {
    /// Answers a call with headers, a body and trailers. The closure `write` appends the body. Sends nothing if the
    /// client has reset the stream.
    pub fn respond(&mut self, id: u32, head: &[u8], trailers: &'static [u8], write: impl FnOnce(&mut Vec<u8>)) {
        if self.streams.get_mut(id).is_none() {
            return;
        }
        self.put_header_block(id, END_HEADERS, head);
        let start = self.out.len();
        frame::put_frame_header(&mut self.out, 0, FrameKind::Data, 0, id);
        write(&mut self.out);
        let length = self.out.len() - start - FRAME_HEADER_BYTES;
        let Some(stream) = self.streams.get_mut(id) else { return };
        let window = stream.send_window.min(self.send_window);
        if length <= MAX_PAYLOAD_BYTES && length as i64 <= window {
            // The payload is already in the output; only the length in the frame header is missing.
            self.out[start..start + 3].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
            stream.send_window -= length as i64;
            self.send_window -= length as i64;
            return self.end_stream(id, trailers);
        }
        let rest = self.out.split_off(start + FRAME_HEADER_BYTES);
        self.out.truncate(start);
        let client = stream.client_side();
        stream.state = StreamState::Sending { client, rest, sent: 0, trailers };
        if self.sending == 0 {
            self.blocked_since = self.now;
        }
        self.sending += 1;
        self.send_rest(id);
    }

    /// Begins a streaming response by sending its headers.
    pub fn begin_response(&mut self, id: u32, head: &[u8]) {
        if self.streams.get_mut(id).is_some() {
            self.put_header_block(id, END_HEADERS, head);
        }
    }

    /// Sends a part of a streaming response. If the client has reset the stream or its windows are too small, sends
    /// nothing and returns false.
    pub fn send_part(&mut self, id: u32, part: &[u8]) -> bool {
        let length = part.len() as i64;
        let Some(stream) = self.streams.get_mut(id).filter(|stream| length <= stream.send_window) else { return false };
        if length > self.send_window || part.len() > MAX_PAYLOAD_BYTES {
            return false;
        }
        stream.send_window -= length;
        self.send_window -= length;
        frame::put_frame(&mut self.out, FrameKind::Data, 0, id, part);
        true
    }

    /// Answers a call with headers only, or ends a streaming response with trailers.
    pub fn respond_without_body(&mut self, id: u32, head: &[u8]) {
        self.end_stream(id, head);
    }

    /// Continues all responses that wait until the client enlarges a window.
    pub(super) fn send_waiting(&mut self) {
        if self.sending == 0 {
            return;
        }
        let is_sending = |state: &StreamState| matches!(state, StreamState::Sending { .. });
        let ids: Vec<u32> = self.streams.iter().filter(|it| is_sending(&it.state)).map(|it| it.id).collect();
        for id in ids {
            if self.send_window <= 0 {
                return;
            }
            self.send_rest(id);
        }
    }

    /// Sends as much of a waiting response as the client's windows allow.
    pub(super) fn send_rest(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let StreamState::Sending { rest, sent, trailers, .. } = &mut stream.state else { return };
        let trailers = *trailers;
        while *sent < rest.len() {
            let window = stream.send_window.min(self.send_window);
            // A negative window counts as 0.
            let length = (rest.len() - *sent).min(MAX_PAYLOAD_BYTES).min(usize::try_from(window).unwrap_or(0));
            if length == 0 {
                return;
            }
            frame::put_frame(&mut self.out, FrameKind::Data, 0, id, &rest[*sent..*sent + length]);
            *sent += length;
            stream.send_window -= length as i64;
            self.send_window -= length as i64;
            self.blocked_since = self.now;
        }
        self.end_stream(id, trailers);
    }

    /// Ends a stream with a final header block. If the client is still sending its request, RST_STREAM asks the client
    /// to stop.
    fn end_stream(&mut self, id: u32, block: &[u8]) {
        let Some(client) = self.streams.get_mut(id).map(|stream| stream.client_side()) else { return };
        self.put_header_block(id, END_HEADERS | END_STREAM, block);
        match client {
            ClientSide::Ended => self.close_stream(id, ClosedBy::Both),
            ClientSide::Open => {
                frame::put_reset(&mut self.out, id, ErrorCode::NoError);
                self.close_stream(id, ClosedBy::Us)
            }
        };
        self.credit.restore_for_call();
    }

    fn put_header_block(&mut self, id: u32, flags: u8, block: &[u8]) {
        let table_size_update: &[u8] = if self.has_announced_no_table { &[] } else { &[NO_DYNAMIC_TABLE] };
        self.has_announced_no_table = true;
        frame::put_frame_header(&mut self.out, table_size_update.len() + block.len(), FrameKind::Headers, flags, id);
        self.out.extend_from_slice(table_size_update);
        self.out.extend_from_slice(block);
    }

    pub(super) fn on_settings(&mut self, frame: Frame<'_>) -> Result<(), ConnectionError> {
        if frame.stream != 0 {
            return Err(stream_id_not_allowed());
        }
        if frame.has_flag(ACK) {
            return frame.fixed_payload::<0>().map(|_| ());
        }
        let (settings, []) = frame.payload.as_chunks::<6>() else {
            return Err(ConnectionError::new(ErrorCode::FrameSize, "SETTINGS ends within a parameter"));
        };
        for &[i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                id if id == Setting::EnablePush as u16 && value > 1 => {
                    return Err(ConnectionError::protocol_error("ENABLE_PUSH is neither 0 nor 1"));
                }
                id if id == Setting::InitialWindowSize as u16 => self.set_initial_window(value)?,
                id if id == Setting::MaxFrameSize as u16 && !(16_384..=0xff_ffff).contains(&value) => {
                    return Err(ConnectionError::protocol_error("MAX_FRAME_SIZE is not within 16384 to 16777215"));
                }
                // All other settings are irrelevant, because the server uses no dynamic table, opens no streams, and
                // sends only short frames and headers.
                _ => {}
            }
        }
        frame::put_frame(&mut self.out, FrameKind::Settings, ACK, 0, &[]);
        self.send_waiting();
        Ok(())
    }

    /// Sets the initial window of new streams, and changes the windows of open streams by the difference.
    fn set_initial_window(&mut self, window: u32) -> Result<(), ConnectionError> {
        let overflow = ConnectionError::new(ErrorCode::FlowControl, "a window of more than 2147483647");
        if window > MAX_31_BITS {
            return Err(overflow);
        }
        let more = i64::from(window) - self.initial_window;
        self.initial_window = window.into();
        for stream in self.streams.iter_mut() {
            stream.send_window += more;
            if stream.send_window > MAX_31_BITS.into() {
                return Err(overflow);
            }
        }
        Ok(())
    }

    pub(super) fn on_window_update(&mut self, frame: Frame<'_>) -> Result<(), ConnectionError> {
        let increment = i64::from(u32::from_be_bytes(frame.fixed_payload()?) & MAX_31_BITS);
        let id = frame.stream;
        if id > self.last_stream {
            return Err(ConnectionError::protocol_error("WINDOW_UPDATE on a stream that was not opened"));
        }
        if id == 0 {
            if increment == 0 {
                return Err(ConnectionError::protocol_error("WINDOW_UPDATE by 0"));
            }
            self.send_window += increment;
            if self.send_window > MAX_31_BITS.into() {
                return Err(ConnectionError::new(ErrorCode::FlowControl, "a window of more than 2147483647"));
            }
            self.send_waiting();
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
        stream.send_window += increment;
        if increment == 0 {
            return self.reset_stream(id, ErrorCode::Protocol);
        }
        if stream.send_window > MAX_31_BITS.into() {
            return self.reset_stream(id, ErrorCode::FlowControl);
        }
        self.send_rest(id);
        Ok(())
    }
}
