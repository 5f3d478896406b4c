//! gRPC framing over HTTP/2. Each call has one request message and is answered with one response message or an error
//! status.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::bounds::{MAX_HEADERS_BYTES, MAX_MESSAGE_BYTES, MAX_STATUS_MESSAGE_BYTES};
use super::http2::{CallError, hpack};
use crate::ops::error::{ErrorKind, OpError};

/// The header block of every response: `:status: 200`, `content-type: application/grpc`.
pub(super) const RESPONSE_HEADERS: &[u8] = b"\x88\x0f\x10\x10application/grpc";

/// The trailers of a successful response: `grpc-status: 0`.
pub(super) const OK_TRAILERS: &[u8] = b"\0\x0bgrpc-status\x010";

/// Size of a gRPC message prefix in bytes: one byte for the compression flag, and four for the message length.
const PREFIX_LENGTH: usize = 5;

/// The ASCII characters that are percent-encoded in a status message.
const PERCENT_ENCODED_ASCII: &AsciiSet = &CONTROLS.add(b'%');

/// The gRPC error codes that this service uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// An error status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcError {
    code: GrpcCode,
    detail: String,
}

impl GrpcError {
    pub(super) fn new(code: GrpcCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// Returns the header block of a response that contains only this status.
    pub(super) fn header_block(&self) -> Vec<u8> {
        [RESPONSE_HEADERS, &self.trailers()].concat()
    }

    /// Returns the trailers of a response that ends with this status.
    pub(super) fn trailers(&self) -> Vec<u8> {
        let mut block = Vec::new();
        hpack::put_literal(&mut block, "grpc-status", itoa::Buffer::new().format(self.code as u8).as_bytes());
        let detail = &self.detail[..self.detail.floor_char_boundary(MAX_STATUS_MESSAGE_BYTES)];
        let detail = utf8_percent_encode(detail, PERCENT_ENCODED_ASCII).to_string();
        hpack::put_literal(&mut block, "grpc-message", detail.as_bytes());
        block
    }
}

impl From<CallError> for GrpcError {
    fn from(error: CallError) -> Self {
        let (code, detail) = match error {
            CallError::HeadersTooLarge => {
                (GrpcCode::ResourceExhausted, format!("the headers have more than {MAX_HEADERS_BYTES} bytes"))
            }
            CallError::BodyTooLarge => {
                (GrpcCode::ResourceExhausted, format!("the message has more than {MAX_MESSAGE_BYTES} bytes"))
            }
            CallError::TooSlow => (GrpcCode::DeadlineExceeded, "the message did not arrive in time".into()),
        };
        Self { code, detail }
    }
}

impl From<OpError> for GrpcError {
    fn from(error: OpError) -> Self {
        let code = match error.kind {
            ErrorKind::Invalid | ErrorKind::KeyInUse | ErrorKind::KeyReused => GrpcCode::InvalidArgument,
            ErrorKind::Forbidden => GrpcCode::PermissionDenied,
            ErrorKind::NotRecorded | ErrorKind::StoreFailed => GrpcCode::Unavailable,
        };
        Self::new(code, error.detail)
    }
}

/// Appends a gRPC prefix and a message. The closure `encode` appends the message.
pub(super) fn put_framed(out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LENGTH]);
    encode(out);
    let length = (out.len() - start - PREFIX_LENGTH) as u32;
    out[start + 1..start + PREFIX_LENGTH].copy_from_slice(&length.to_be_bytes());
}

/// Returns the message of a call without its prefix.
///
/// # Errors
/// Returns an error if the body does not contain exactly one message, or if the message is compressed.
pub(super) fn unframe(body: &[u8]) -> Result<&[u8], GrpcError> {
    let invalid = |detail: &str| GrpcError::new(GrpcCode::InvalidArgument, detail);
    let Some((&[compressed, ref length @ ..], message)) = body.split_first_chunk::<PREFIX_LENGTH>() else {
        return Err(invalid("the call has no message"));
    };
    if compressed != 0 {
        return Err(GrpcError::new(GrpcCode::Unimplemented, "compressed messages are not supported"));
    }
    match message.len().cmp(&(u32::from_be_bytes(*length) as usize)) {
        std::cmp::Ordering::Less => Err(invalid("the message is shorter than its prefix says")),
        std::cmp::Ordering::Greater => Err(invalid("the call has more than one message")),
        std::cmp::Ordering::Equal => Ok(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_uncompressed_message_is_unframed() {
        let read = |bytes: &'static [u8]| unframe(bytes).map_err(|error| error.detail);
        assert_eq!(read(b"\0\0\0\0\x02ab").as_deref(), Ok(&b"ab"[..]));
        assert_eq!(read(b"\0\0\0\0\0").as_deref(), Ok(&b""[..]));
        for (bytes, expected) in [
            (&b""[..], "has no message"),
            (b"\0\0\0\0", "has no message"),
            (b"\x01\0\0\0\x01a", "compressed"),
            (b"\0\0\0\0\x03ab", "shorter than its prefix"),
            (b"\0\xff\xff\xff\xffab", "shorter than its prefix"),
            (b"\0\0\0\0\x01ab", "more than one message"),
        ] {
            assert!(read(bytes).unwrap_err().contains(expected), "{bytes:?}");
        }
        let mut out = b"before".to_vec();
        put_framed(&mut out, |out| out.extend_from_slice(b"ab"));
        assert_eq!(out, b"before\0\0\0\0\x02ab");
    }

    fn decode_block(block: &[u8]) -> Vec<(String, String)> {
        let (mut decoder, mut fields) = (hpack::Decoder::default(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |field| fields.push((text(field.name), text(field.value)))).expect("a header block");
        fields
    }

    #[test]
    fn header_blocks_contain_the_grpc_fields() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let head = [pair(":status", "200"), pair("content-type", "application/grpc")];
        assert_eq!(
            (decode_block(RESPONSE_HEADERS), decode_block(OK_TRAILERS)),
            (head.to_vec(), vec![pair("grpc-status", "0")])
        );
        let error = GrpcError::new(GrpcCode::Unauthenticated, "50 %\nwrong \u{e4}").header_block();
        let status = [pair("grpc-status", "16"), pair("grpc-message", "50 %25%0Awrong %C3%A4")];
        assert_eq!(decode_block(&error), [&head[..], &status].concat());
        let long = decode_block(&GrpcError::new(GrpcCode::NotFound, "\u{e4}".repeat(10_000)).header_block());
        assert_eq!(long[3].1.len(), 3 * MAX_STATUS_MESSAGE_BYTES);
    }
}
