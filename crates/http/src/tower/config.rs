//! The layer configuration, and the responses to refused requests.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use tollgate::core::Algorithm;
use tollgate::{Limits, Report, Retry};

use super::body::LimitedBody;
use super::refusal::{Reason, Refusal};
use crate::grpc::{GrpcCode, write_status};
use crate::headers::{
    LimitStatus, MAX_NAME_CHARS, RATE_LIMIT, RATE_LIMIT_POLICY, Styles, add_retry_after, add_x_headers, push_element,
    write_policy, write_status as write_limit_status,
};
use crate::request::RequestView;

/// Which responses get rate-limit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendHeaders {
    /// All responses, as in the Tollgate server. Sending headers with all responses is the default, because clients can
    /// then slow down before they are refused.
    #[default]
    Always,
    /// Only refusals. This saves time, because writing the headers takes several times as long as a decision.
    OnRefusal,
}

/// How requests without an identity are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnidentified {
    /// Counts all requests without an identity as one client, so that clients cannot evade the limit by omitting a
    /// header.
    CountTogether,
    /// Lets the request pass uncounted. Use this setting for optional identities, together with another layer that
    /// limits all requests.
    Allow,
    /// Refuses the request with status 400.
    Refuse,
}

/// Creates the response to a refused request.
pub(super) type RefusalResponder = dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync;

/// The configuration of a layer, except the limiter.
#[derive(Clone)]
pub(super) struct LayerConfig {
    pub(super) styles: Styles,
    pub(super) send_headers: SendHeaders,
    /// `None`: the default depends on the kind of identity; see
    /// [`LimitLayer::on_unidentified`](super::LimitLayer::on_unidentified).
    pub(super) on_unidentified: Option<OnUnidentified>,
    pub(super) observing: bool,
    pub(super) refusal_response: Option<Arc<RefusalResponder>>,
    pub(super) policy: Policy,
}

/// A layer's name and its constant `RateLimit-Policy` header.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    name: String,
    limits: Option<Limits>,
    header: Option<HeaderValue>,
}

impl Policy {
    pub(super) fn new(name: &str, limits: Option<Limits>) -> Self {
        let mut text = String::new();
        for (index, limit) in limits.iter().flat_map(Limits::as_slice).enumerate() {
            let report = Report { limit: limit.capacity(), remaining: 0, retry: Retry::NOW, reset: Default::default() };
            if limit.capacity() < u64::MAX {
                let status = LimitStatus { name, index, report, window: limit.full_refill_time(), refused: false };
                push_element(&mut text, |list| write_policy(list, &status));
            }
        }
        let header = HeaderValue::try_from(text).ok().filter(|text| !text.is_empty());
        Self { name: name.to_owned(), limits, header }
    }

    pub(super) fn with_policy_name(&self, name: &str) -> Self {
        Self::new(name, self.limits.clone())
    }

    /// Returns the index of the first limit with the capacity that the report states, or 0 if no limit has it.
    fn limit_index(&self, report: &Report) -> usize {
        let limits = self.limits.as_ref().map_or(&[][..], Limits::as_slice);
        limits.iter().position(|limit| limit.capacity() == report.limit).unwrap_or(0)
    }
}

impl LayerConfig {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            styles: Styles::default(),
            send_headers: SendHeaders::default(),
            on_unidentified: None,
            observing: false,
            refusal_response: None,
            policy,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.policy.name
    }

    /// Adds the layer's rate-limit headers.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, report: &Report, retry: Option<Retry>) {
        if report.limit == u64::MAX {
            return;
        }
        if self.styles.ietf() {
            if let Some(policy) = &self.policy.header {
                headers.append(RATE_LIMIT_POLICY, policy.clone());
            }
            let report = Report { retry: retry.unwrap_or(Retry::NOW), ..*report };
            let index = self.policy.limit_index(&report);
            let mut text = StackString::default();
            let status = LimitStatus { name: &self.policy.name, index, report, window: None, refused: retry.is_some() };
            if write_limit_status(&mut text, &status).is_ok()
                && let Ok(value) = HeaderValue::from_bytes(text.as_bytes())
            {
                headers.append(RATE_LIMIT, value);
            }
        }
        if self.styles.x_rate_limit() {
            add_x_headers(headers, report);
        }
    }

    /// Creates the response to a refused request.
    pub(super) fn refuse<B>(
        &self,
        request: &RequestView<'_>,
        refusal: &Refusal<'_>,
        add_headers: impl FnOnce(&mut HeaderMap),
    ) -> Response<LimitedBody<B>> {
        let mut response = if request.is_grpc() {
            grpc_refusal(request, refusal)
        } else {
            let mut response = match &self.refusal_response {
                Some(respond) => respond(refusal),
                None => default_http_refusal(refusal),
            };
            add_retry_after(response.headers_mut(), refusal.retry());
            response.map(LimitedBody::from_refusal)
        };
        add_headers(response.headers_mut());
        response
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig")
            .field("name", &self.policy.name)
            .field("styles", &self.styles)
            .field("send_headers", &self.send_headers)
            .field("on_unidentified", &self.on_unidentified)
            .field("observing", &self.observing)
            .finish_non_exhaustive()
    }
}

/// A short string stored on the stack. Converting a `String` to a header value would take two allocations.
struct StackString {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl StackString {
    /// Enough for a name of maximum length with every character escaped, plus the parameters.
    const CAPACITY: usize = 2 * MAX_NAME_CHARS + 64;

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Default for StackString {
    fn default() -> Self {
        Self { bytes: [0; Self::CAPACITY], length: 0 }
    }
}

impl fmt::Write for StackString {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Returns a problem document (RFC 9457). If a limit is exceeded, the document has the problem type defined in the
/// rate-limit headers draft.
fn default_http_refusal(refusal: &Refusal<'_>) -> Response<Bytes> {
    let (status, text) = match refusal.reason {
        Reason::Exceeded(_) => {
            let mut text = Vec::with_capacity(192);
            text.extend_from_slice(
                br#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["#,
            );
            write_json_string(&mut text, refusal.policy);
            text.extend_from_slice(b"]}");
            (StatusCode::TOO_MANY_REQUESTS, Bytes::from(text))
        }
        Reason::Unidentified => {
            let text = br#"{"title":"Bad Request","status":400,"detail":"the request does not identify its client"}"#;
            (StatusCode::BAD_REQUEST, Bytes::from_static(text))
        }
        Reason::Misconfigured(hint) => {
            let mut text = br#"{"title":"Internal Server Error","status":500,"detail":"#.to_vec();
            write_json_string(&mut text, hint);
            text.push(b'}');
            (StatusCode::INTERNAL_SERVER_ERROR, Bytes::from(text))
        }
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

fn grpc_refusal<B>(request: &RequestView<'_>, refusal: &Refusal<'_>) -> Response<LimitedBody<B>> {
    let mut response = Response::new(LimitedBody::from_refusal(Bytes::new()));
    let content_type = request.headers().get(CONTENT_TYPE).cloned();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/grpc"));
    let (code, message) = match refusal.reason {
        Reason::Exceeded(_) => (GrpcCode::ResourceExhausted, format!("the limit `{}` is exceeded", refusal.policy)),
        Reason::Unidentified => (GrpcCode::InvalidArgument, "the request does not identify its client".to_owned()),
        Reason::Misconfigured(hint) => (GrpcCode::Internal, hint.to_owned()),
    };
    write_status(response.headers_mut(), content_type, code, &message, refusal.retry());
    response
}

/// Writes a JSON string. Characters outside printable ASCII become question marks, as in headers.
fn write_json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend([b'\\', character as u8]),
            ' '..='~' => out.push(character as u8),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}
