//! gRPC refusals: a response without a body, with the status in its headers ("trailers only"). The time to wait is in
//! two headers, because some clients read only one of the two:
//!
//! - `grpc-status-details-bin`: a `google.rpc.Status` with a `google.rpc.RetryInfo`. OpenTelemetry exporters retry a
//!   `RESOURCE_EXHAUSTED` only if the `RetryInfo` is present.
//! - `grpc-retry-pushback-ms`: read by the retry policies built into gRPC clients; a negative value means no retry.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tollgate::Retry;
use tollgate::core::Nanos;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Status codes of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcCode {
    /// The request has no identity.
    InvalidArgument = 3,
    /// A limit is exceeded.
    ResourceExhausted = 8,
    /// The server is misconfigured.
    Internal = 13,
}

/// Maximum number of seconds in a protobuf `Duration`.
const MAX_DURATION_SECONDS: u64 = 315_576_000_000;

/// ASCII characters that are percent-encoded in `grpc-message`. Non-ASCII bytes are always percent-encoded.
const PERCENT_ENCODED_ASCII: &AsciiSet = &CONTROLS.add(b'%');

/// Writes a status into the headers of a response without a body.
pub(crate) fn write_status(
    headers: &mut HeaderMap,
    content_type: HeaderValue,
    code: GrpcCode,
    message: &str,
    retry: Option<Retry>,
) {
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(text) = HeaderValue::try_from(percent_encode(message)) {
        headers.insert(GRPC_MESSAGE, text);
    }
    let Some(retry) = retry else { return };
    let wait = match retry {
        Retry::After(wait) => Some(wait),
        // The time at which a slot becomes free cannot be predicted, so the client is asked to wait one second.
        Retry::OnRelease => Some(Nanos::SECOND),
        Retry::Never => None,
    };
    let pushback = match wait {
        Some(wait) => HeaderValue::from(wait.as_millis_ceil().min(i32::MAX as u64)),
        None => HeaderValue::from_static("-1"),
    };
    headers.insert(GRPC_RETRY_PUSHBACK, pushback);
    if let Ok(details) = HeaderValue::try_from(STANDARD_NO_PAD.encode(encode_status(code, message, wait))) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
}

/// Encodes a `google.rpc.Status`, whose field numbers are: code = 1, message = 2, details = 3.
fn encode_status(code: GrpcCode, message: &str, wait: Option<Nanos>) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + message.len());
    write_number_field(&mut out, 1, code as u64);
    write_bytes_field(&mut out, 2, message.as_bytes());
    if let Some(wait) = wait {
        // A `google.protobuf.Duration` (seconds = 1, nanos = 2). Protobuf omits fields with the value zero.
        let mut duration = Vec::new();
        write_number_field(&mut duration, 1, (wait.as_nanos() / 1_000_000_000).min(MAX_DURATION_SECONDS));
        write_number_field(&mut duration, 2, wait.as_nanos() % 1_000_000_000);
        // A `google.rpc.RetryInfo` (retry_delay = 1), wrapped in a `google.protobuf.Any` (type_url = 1, value = 2).
        let mut retry_info = Vec::new();
        write_bytes_field(&mut retry_info, 1, &duration);
        let mut any = Vec::new();
        write_bytes_field(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        write_bytes_field(&mut any, 2, &retry_info);
        write_bytes_field(&mut out, 3, &any);
    }
    out
}

fn write_number_field(out: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        out.push(field << 3);
        write_varint(out, number);
    }
}

fn write_bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn percent_encode(message: &str) -> String {
    utf8_percent_encode(message, PERCENT_ENCODED_ASCII).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_messages_are_percent_encoded() {
        assert_eq!(percent_encode("a 100% ü\n~\u{7f}"), "a 100%25 %C3%BC%0A~%7F");
    }

    #[test]
    fn request_that_never_passes_is_not_retried() {
        let mut headers = HeaderMap::new();
        let grpc = HeaderValue::from_static("application/grpc");
        write_status(&mut headers, grpc, GrpcCode::ResourceExhausted, "no", Some(Retry::Never));
        assert_eq!(
            (&headers[GRPC_STATUS], &headers[GRPC_RETRY_PUSHBACK]),
            (&HeaderValue::from(8), &HeaderValue::from(-1))
        );
        assert_eq!(headers[GRPC_STATUS_DETAILS], "CAgSAm5v");
    }

    #[test]
    fn waits_are_rounded_up_and_bounded() {
        let pushback = |wait| {
            let mut headers = HeaderMap::new();
            let grpc = HeaderValue::from_static("application/grpc");
            write_status(&mut headers, grpc, GrpcCode::ResourceExhausted, "no", Some(wait));
            headers[GRPC_RETRY_PUSHBACK].to_str().unwrap().to_owned()
        };
        assert_eq!(pushback(Retry::After(Nanos::from_micros(1_001))), "2");
        assert_eq!(pushback(Retry::OnRelease), "1000");
        assert_eq!(pushback(Retry::After(Nanos::MAX)), i32::MAX.to_string());
    }
}
