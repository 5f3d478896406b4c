//! The framing of gRPC over HTTP/2: one message in, one message or a status out.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::time::timeout;

use super::bounds::{MAX_MESSAGE, MESSAGE_TIMEOUT};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The length of the prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The characters of a status message that are percent-encoded.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The status codes that are used here.
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

/// A status other than OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcError {
    code: GrpcCode,
    detail: String,
}

impl GrpcError {
    pub(super) fn new(code: GrpcCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// The body of a response: one message and the trailers, or nothing.
#[derive(Debug, Default)]
pub(super) struct GrpcBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = self.message.take().map(Frame::data);
        Poll::Ready(frame.or_else(|| self.trailers.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}

/// Returns the response with an encoded message, or with the status of an error.
pub(super) fn respond(result: Result<Vec<u8>, GrpcError>) -> Response<GrpcBody> {
    let mut response = Response::new(GrpcBody::default());
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    match result {
        Ok(message) => {
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
            *response.body_mut() = GrpcBody { message: Some(message.into()), trailers: Some(trailers) };
        }
        Err(GrpcError { code, detail }) => {
            let headers = response.headers_mut();
            headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
            let detail = utf8_percent_encode(&detail, ENCODED).to_string();
            if let Ok(detail) = HeaderValue::try_from(detail) {
                headers.insert(GRPC_MESSAGE, detail);
            }
        }
    }
    response
}

/// Encodes a message with its prefix.
pub(super) fn frame(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.put_bytes(0, PREFIX);
    encode(&mut out);
    let length = (out.len() - PREFIX) as u32;
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    out
}

/// Reads the one message of a call.
///
/// # Errors
/// When there is none or more than one, or it is compressed, too large or too slow.
pub(super) async fn read(request: Request<Incoming>) -> Result<Bytes, GrpcError> {
    let mut body = request.into_body();
    let too_large = || {
        let detail = format!("the message has more than {MAX_MESSAGE} bytes");
        GrpcError::new(GrpcCode::ResourceExhausted, detail)
    };
    let all = async {
        let (mut first, mut all) = (Bytes::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let incomplete = |_| GrpcError::new(GrpcCode::InvalidArgument, "the call ended within its message");
            let Ok(data) = frame.map_err(incomplete)?.into_data() else { continue };
            if first.len().max(all.len()) + data.len() > MAX_MESSAGE + PREFIX {
                return Err(too_large());
            }
            // Nearly always one frame, which is not copied.
            if first.is_empty() {
                first = data;
                continue;
            }
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
        Ok(if all.is_empty() { first } else { all.into() })
    };
    let slow = |_| GrpcError::new(GrpcCode::DeadlineExceeded, "the message did not arrive in time");
    unframe(&timeout(MESSAGE_TIMEOUT, all).await.map_err(slow)??)
}

/// Removes the prefix of the one message.
fn unframe(bytes: &Bytes) -> Result<Bytes, GrpcError> {
    let invalid = |detail: &str| GrpcError::new(GrpcCode::InvalidArgument, detail);
    let Some((&[compressed, ref length @ ..], message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(invalid("the call has no message"));
    };
    if compressed != 0 {
        return Err(GrpcError::new(GrpcCode::Unimplemented, "compressed messages are not supported"));
    }
    match message.len().cmp(&(u32::from_be_bytes(*length) as usize)) {
        std::cmp::Ordering::Less => Err(invalid("the message is shorter than its prefix says")),
        std::cmp::Ordering::Greater => Err(invalid("the call has more than one message")),
        std::cmp::Ordering::Equal => Ok(bytes.slice(PREFIX..)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_uncompressed_message_is_unframed() {
        let read = |bytes: &'static [u8]| unframe(&Bytes::from_static(bytes)).map_err(|error| error.detail);
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
        assert_eq!(frame(|out| out.extend_from_slice(b"ab")), b"\0\0\0\0\x02ab");
    }

    #[test]
    fn error_is_a_status_without_a_body() {
        let response = respond(Err(GrpcError::new(GrpcCode::InvalidArgument, "50 %\nwrong")));
        assert_eq!(response.headers()[GRPC_STATUS], "3");
        assert_eq!(response.headers()[GRPC_MESSAGE], "50 %25%0Awrong");
        assert!(response.body().is_end_stream());
    }
}
