//! Refusals that gRPC clients understand: the status in the headers of an answer without a body, which the protocol calls
//! "trailers only", with the wait in the two forms that clients look for.
//!
//! - `grpc-status-details-bin`: a `google.rpc.Status` with a `google.rpc.RetryInfo`, for those who read error details. OpenTelemetry's
//!   exporters retry only if it is there.
//! - `grpc-retry-pushback-ms`: for the retry policies built into clients; negative means not at all.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tollgate::{Nanos, Retry};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The statuses that are answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The request does not say who asks.
    InvalidArgument = 3,
    /// A limit is exceeded.
    ResourceExhausted = 8,
}

/// The longest time that a protobuf `Duration` may hold.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Writes a status into the headers of an answer, which must have no body.
pub(crate) fn write_status(
    headers: &mut HeaderMap,
    content_type: HeaderValue,
    code: Code,
    message: &str,
    retry: Option<Retry>,
) {
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(text) = HeaderValue::try_from(percent_encoded(message)) {
        headers.insert(GRPC_MESSAGE, text);
    }
    let Some(retry) = retry else { return };
    let wait = match retry {
        Retry::After(wait) => Some(wait),
        // Nobody knows; a second is a good time to look.
        Retry::OnRelease => Some(Nanos::SECOND),
        Retry::Never => None,
    };
    let pushback = match wait {
        Some(wait) => HeaderValue::from(wait.as_millis_ceil().min(i32::MAX as u64)),
        None => HeaderValue::from_static("-1"),
    };
    headers.insert(GRPC_RETRY_PUSHBACK, pushback);
    if let Ok(details) = HeaderValue::try_from(base64(&status(code, message, wait))) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
}

/// A `google.rpc.Status`: code 1, message 2, details 3.
fn status(code: Code, message: &str, wait: Option<Nanos>) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + message.len());
    field_number(&mut out, 1, code as u64);
    field_bytes(&mut out, 2, message.as_bytes());
    if let Some(wait) = wait {
        // A `google.protobuf.Duration`: seconds 1, nanos 2. Zero is left out, as protobuf does.
        let mut duration = Vec::new();
        field_number(&mut duration, 1, (wait.as_nanos() / 1_000_000_000).min(MAX_SECONDS));
        field_number(&mut duration, 2, wait.as_nanos() % 1_000_000_000);
        // A `google.rpc.RetryInfo`: retry_delay 1; in a `google.protobuf.Any`: type_url 1, value 2.
        let mut retry_info = Vec::new();
        field_bytes(&mut retry_info, 1, &duration);
        let mut any = Vec::new();
        field_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        field_bytes(&mut any, 2, &retry_info);
        field_bytes(&mut out, 3, &any);
    }
    out
}

fn field_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        out.push(field << 3);
        varint(out, number);
    }
}

fn field_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Without padding, as headers of gRPC are written.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            out.push(LETTERS[(bits >> (18 - 6 * place)) as usize & 63]);
        }
    }
    out
}

fn percent_encoded(message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard_without_padding() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded.as_bytes(), "{plain}");
        }
    }

    #[test]
    fn messages_are_encoded_where_a_header_could_not_hold_them() {
        assert_eq!(percent_encoded("a 100% ü\n"), b"a 100%25 %C3%BC%0A");
    }

    #[test]
    fn what_never_passes_is_not_to_be_tried_again() {
        let mut headers = HeaderMap::new();
        let grpc = HeaderValue::from_static("application/grpc");
        write_status(&mut headers, grpc, Code::ResourceExhausted, "no", Some(Retry::Never));
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
            write_status(&mut headers, grpc, Code::ResourceExhausted, "no", Some(wait));
            headers[GRPC_RETRY_PUSHBACK].to_str().unwrap().to_owned()
        };
        assert_eq!(pushback(Retry::After(Nanos::from_micros(1_001))), "2");
        assert_eq!(pushback(Retry::OnRelease), "1000");
        assert_eq!(pushback(Retry::After(Nanos::MAX)), i32::MAX.to_string());
    }
}
