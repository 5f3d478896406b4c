//! Stateless parsing and writing of HTTP/2 frames (RFC 9113, sections 4 and 6).

/// The client's connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of a frame header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 9;

/// Maximum payload size in bytes, which is the protocol's default.
pub const MAX_PAYLOAD_BYTES: usize = 16 * 1024;

/// The largest stream id and the largest window: 2^31 - 1.
pub const MAX_31_BITS: u32 = (1 << 31) - 1;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the standard")]
pub enum FrameKind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    RstStream = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
    /// An extension frame. It is ignored.
    Unknown = 255,
}

impl FrameKind {
    const ALL: [Self; 10] = [
        Self::Data,
        Self::Headers,
        Self::Priority,
        Self::RstStream,
        Self::Settings,
        Self::PushPromise,
        Self::Ping,
        Self::GoAway,
        Self::WindowUpdate,
        Self::Continuation,
    ];
}

/// Flag: this is the sender's last frame on the stream.
pub const END_STREAM: u8 = 0x1;
/// Flag: the frame acknowledges SETTINGS or PING.
pub const ACK: u8 = 0x1;
/// Flag: the header block is complete.
pub const END_HEADERS: u8 = 0x4;
/// Flag: the payload has padding.
pub const PADDED: u8 = 0x8;
/// Flag: the payload begins with a priority.
pub const PRIORITY: u8 = 0x20;

/// The error code of RST_STREAM and GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the standard")]
pub enum ErrorCode {
    NoError = 0,
    Protocol = 1,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    RefusedStream = 7,
    Cancel = 8,
    Compression = 9,
    EnhanceYourCalm = 11,
}

/// A protocol error of the other side, which closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// Error code for the GOAWAY frame.
    pub code: ErrorCode,
    /// Message for the GOAWAY frame and the log.
    pub detail: &'static str,
}

impl ConnectionError {
    /// Creates an error.
    pub const fn new(code: ErrorCode, detail: &'static str) -> Self {
        Self { code, detail }
    }

    /// Creates an error with code [`ErrorCode::Protocol`].
    pub const fn protocol_error(detail: &'static str) -> Self {
        Self::new(ErrorCode::Protocol, detail)
    }
}

/// A frame, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'i> {
    /// The frame type.
    pub kind: FrameKind,
    /// The flags.
    pub flags: u8,
    /// The stream id; 0 for the whole connection.
    pub stream: u32,
    /// The payload.
    pub payload: &'i [u8],
}

impl<'i> Frame<'i> {
    /// Removes a frame from the start of the input. Returns `None` if the frame is incomplete.
    ///
    /// # Errors
    /// Returns an error if the payload is longer than [`MAX_PAYLOAD_BYTES`].
    pub fn take(input: &mut &'i [u8]) -> Result<Option<Self>, ConnectionError> {
        let Some((&[l0, l1, l2, kind, flags, s0, s1, s2, s3], rest)) = input.split_first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(ConnectionError::new(ErrorCode::FrameSize, "a frame has more than 16384 bytes"));
        }
        let Some((payload, rest)) = rest.split_at_checked(length) else { return Ok(None) };
        *input = rest;
        let kind = FrameKind::ALL.get(usize::from(kind)).copied().unwrap_or(FrameKind::Unknown);
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31_BITS;
        Ok(Some(Self { kind, flags, stream, payload }))
    }

    /// Returns whether a flag is set.
    pub const fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the payload of DATA or HEADERS without padding and priority.
    ///
    /// # Errors
    /// Returns an error if the payload is too short for its padding or priority.
    pub fn unpadded_payload(&self) -> Result<&'i [u8], ConnectionError> {
        let (mut content, mut padding) = (self.payload, 0);
        if self.has_flag(PADDED) {
            let short = ConnectionError::new(ErrorCode::FrameSize, "a padded frame has no padding length");
            let (length, rest) = content.split_first().ok_or(short)?;
            (content, padding) = (rest, usize::from(*length));
        }
        if self.kind == FrameKind::Headers && self.has_flag(PRIORITY) {
            let short = ConnectionError::new(ErrorCode::FrameSize, "HEADERS is shorter than its priority");
            content = content.split_at_checked(5).ok_or(short)?.1;
        }
        let length = content.len().checked_sub(padding);
        let length = length.ok_or(ConnectionError::protocol_error("the padding is longer than the frame"))?;
        Ok(&content[..length])
    }

    /// Returns a payload of exactly `N` bytes.
    ///
    /// # Errors
    /// Returns an error if the payload does not have `N` bytes.
    pub fn fixed_payload<const N: usize>(&self) -> Result<[u8; N], ConnectionError> {
        let wrong = |_| ConnectionError::new(ErrorCode::FrameSize, "the frame has the wrong length for its type");
        self.payload.try_into().map_err(wrong)
    }
}

/// A parameter of SETTINGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the standard")]
pub enum Setting {
    HeaderTableSize = 1,
    EnablePush = 2,
    MaxConcurrentStreams = 3,
    InitialWindowSize = 4,
    MaxFrameSize = 5,
    MaxHeaderListSize = 6,
}

/// Appends the header of a frame.
pub fn put_frame_header(out: &mut Vec<u8>, length: usize, kind: FrameKind, flags: u8, stream: u32) {
    let [_, l0, l1, l2] = (length as u32).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    out.extend_from_slice(&[l0, l1, l2, kind as u8, flags, s0, s1, s2, s3]);
}

/// Appends a frame.
pub fn put_frame(out: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    put_frame_header(out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
}

/// Appends SETTINGS.
pub fn put_settings(out: &mut Vec<u8>, settings: &[(Setting, u32)]) {
    put_frame_header(out, 6 * settings.len(), FrameKind::Settings, 0, 0);
    for (setting, value) in settings {
        out.extend_from_slice(&(*setting as u16).to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends GOAWAY with a debug message.
pub fn put_goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, detail: &str) {
    put_frame_header(out, 8 + detail.len(), FrameKind::GoAway, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
    out.extend_from_slice(detail.as_bytes());
}

/// Appends RST_STREAM.
pub fn put_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    put_frame(out, FrameKind::RstStream, 0, stream, &(code as u32).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_frames_are_taken() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, FrameKind::Ping, ACK, 0, b"12345678");
        put_reset(&mut bytes, 5, ErrorCode::Cancel);
        for end in 0..bytes.len() {
            let mut input = &bytes[..end];
            let first = Frame::take(&mut input).expect("a frame");
            assert_eq!(first.is_some(), end >= 17, "{end}");
            assert_eq!(Frame::take(&mut input), Ok(None), "{end}");
        }
        let mut input = &bytes[..];
        let ping = Frame { kind: FrameKind::Ping, flags: ACK, stream: 0, payload: b"12345678" };
        let reset = Frame { kind: FrameKind::RstStream, flags: 0, stream: 5, payload: &[0, 0, 0, 8] };
        assert_eq!([Frame::take(&mut input), Frame::take(&mut input)], [Ok(Some(ping)), Ok(Some(reset))]);
        assert_eq!(
            (input, ping.fixed_payload::<4>().map_err(|error| error.code)),
            (&[][..], Err(ErrorCode::FrameSize))
        );
    }

    #[test]
    fn frame_above_the_maximum_length_is_rejected_before_its_payload_arrives() {
        assert_eq!(Frame::take(&mut &[0, 0x40, 0, 0, 0, 0, 0, 0, 1][..]), Ok(None));
        let error = Frame::take(&mut &[0, 0x40, 1, 0, 0, 0, 0, 0, 1][..]).expect_err("too long");
        assert_eq!(error.code, ErrorCode::FrameSize);
    }

    #[test]
    fn reserved_bit_and_unknown_types_are_accepted() {
        let frame = Frame::take(&mut &[0, 0, 0, 0x16, 0xff, 0x80, 0, 0, 3][..]).expect("a frame").expect("complete");
        assert_eq!((frame.kind, frame.stream), (FrameKind::Unknown, 3));
    }

    #[test]
    fn padding_and_priority_are_removed() {
        let frame = |kind, flags, payload| Frame { kind, flags, stream: 1, payload };
        let content =
            |kind, flags, payload: &'static [u8]| frame(kind, flags, payload).unpadded_payload().map_err(|it| it.code);
        assert_eq!(content(FrameKind::Data, 0, b"abc"), Ok(&b"abc"[..]));
        assert_eq!(content(FrameKind::Data, PADDED, b"\x02abc\0\0"), Ok(&b"abc"[..]));
        assert_eq!(content(FrameKind::Data, PADDED, b"\x03abc"), Ok(&b""[..]));
        assert_eq!(content(FrameKind::Data, PADDED, b"\x04abc"), Err(ErrorCode::Protocol));
        assert_eq!(content(FrameKind::Data, PADDED, b""), Err(ErrorCode::FrameSize));
        assert_eq!(content(FrameKind::Headers, PADDED | PRIORITY, b"\x0112345abc\0"), Ok(&b"abc"[..]));
        assert_eq!(content(FrameKind::Headers, PADDED | PRIORITY, b"\x0912345abc\0"), Err(ErrorCode::Protocol));
        assert_eq!(content(FrameKind::Headers, PRIORITY, b"1234"), Err(ErrorCode::FrameSize));
    }
}
