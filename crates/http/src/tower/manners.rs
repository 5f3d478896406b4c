//! How a layer deals with requests and answers, whatever decides.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use tollgate::{Algorithm, Limits, Report, Retry};

use super::body::LimitedBody;
use super::refusal::{Reason, Refusal};
use crate::asked::Asked;
use crate::grpc::{Code, write_status};
use crate::headers::{
    MAX_NAME, RATE_LIMIT, RATE_LIMIT_POLICY, Styles, Told, add_retry_after, add_x, policy, push, standing,
};

/// Who is told about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// Those who are refused. The default, since telling costs several times as much as deciding.
    #[default]
    Refused,
    /// Everybody, with each answer.
    Everybody,
}

/// What happens to a request of which it is not known who sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All of them are counted together, as if they were one client. The default: leaving out a header gets nobody around the
    /// limit, and a server that was set up wrongly is noticed, but not closed.
    #[default]
    Together,
    /// It passes and is not counted. For identities that not everybody has, with another layer for the rest.
    Pass,
    /// It is refused as a bad request.
    Refuse,
}

/// Makes the answer to a refusal.
pub(super) type Answer = dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync;

/// Everything about a layer but what it decides by.
#[derive(Clone)]
pub(super) struct Manners {
    pub(super) styles: Styles,
    pub(super) tell: Tell,
    pub(super) missing: Missing,
    pub(super) observing: bool,
    pub(super) answer: Option<Arc<Answer>>,
    pub(super) policy: Policy,
}

/// What is told about the limits of a layer, as far as it is always the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    name: String,
    limits: Option<Limits>,
    header: Option<HeaderValue>,
}

impl Policy {
    pub(super) fn new(name: &str, limits: Option<Limits>) -> Self {
        let mut text = String::new();
        for (place, limit) in limits.iter().flat_map(Limits::as_slice).enumerate() {
            let report = Report { limit: limit.capacity(), remaining: 0, retry: Retry::NOW, reset: Default::default() };
            if limit.capacity() < u64::MAX {
                let told = Told { name, place, report, window: limit.window(), refused: false };
                push(&mut text, |list| policy(list, &told));
            }
        }
        let header = HeaderValue::try_from(text).ok().filter(|text| !text.is_empty());
        Self { name: name.to_owned(), limits, header }
    }

    pub(super) fn renamed(&self, name: &str) -> Self {
        Self::new(name, self.limits.clone())
    }

    /// Which of several limits a report is about: the first with that capacity.
    fn place_of(&self, report: &Report) -> usize {
        let limits = self.limits.as_ref().map_or(&[][..], Limits::as_slice);
        limits.iter().position(|limit| limit.capacity() == report.limit).unwrap_or(0)
    }
}

impl Manners {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            styles: Styles::default(),
            tell: Tell::default(),
            missing: Missing::default(),
            observing: false,
            answer: None,
            policy,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.policy.name
    }

    /// Tells about the layer's own limits.
    pub(super) fn tell(&self, headers: &mut HeaderMap, report: &Report, retry: Option<Retry>) {
        if report.limit == u64::MAX {
            return;
        }
        if self.styles.ietf() {
            if let Some(policy) = &self.policy.header {
                headers.append(RATE_LIMIT_POLICY, policy.clone());
            }
            let report = Report { retry: retry.unwrap_or(Retry::NOW), ..*report };
            let place = self.policy.place_of(&report);
            let mut text = Line::default();
            let told = Told { name: &self.policy.name, place, report, window: None, refused: retry.is_some() };
            if standing(&mut text, &told).is_ok()
                && let Ok(value) = HeaderValue::from_bytes(text.as_bytes())
            {
                headers.append(RATE_LIMIT, value);
            }
        }
        if self.styles.x() {
            add_x(headers, report);
        }
    }

    /// The answer to a request that does not pass.
    pub(super) fn refuse<B>(
        &self,
        asked: &Asked<'_>,
        refusal: &Refusal<'_>,
        tell: impl FnOnce(&mut HeaderMap),
    ) -> Response<LimitedBody<B>> {
        let mut response = if asked.is_grpc() {
            grpc_answer(asked, refusal)
        } else {
            let mut response = match &self.answer {
                Some(answer) => answer(refusal),
                None => http_answer(refusal),
            };
            add_retry_after(response.headers_mut(), refusal.retry());
            response.map(LimitedBody::refusal)
        };
        tell(response.headers_mut());
        response
    }
}

impl fmt::Debug for Manners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manners")
            .field("name", &self.policy.name)
            .field("styles", &self.styles)
            .field("tell", &self.tell)
            .field("missing", &self.missing)
            .field("observing", &self.observing)
            .finish_non_exhaustive()
    }
}

/// A short text on the stack: from a `String` a header would take two allocations.
struct Line {
    bytes: [u8; Self::ROOM],
    length: usize,
}

impl Line {
    /// For a name in which every letter is escaped, and its numbers.
    const ROOM: usize = 2 * MAX_NAME + 64;

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; Self::ROOM], length: 0 }
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// A problem (RFC 9457) of the type that the draft of the rate-limit headers registers.
fn http_answer(refusal: &Refusal<'_>) -> Response<Bytes> {
    let (status, text) = match refusal.reason {
        Reason::Exceeded(_) => {
            let mut text = Vec::with_capacity(192);
            text.extend_from_slice(
                br#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["#,
            );
            quoted(&mut text, refusal.policy);
            text.extend_from_slice(b"]}");
            (StatusCode::TOO_MANY_REQUESTS, Bytes::from(text))
        }
        Reason::Unidentified => {
            let text = br#"{"title":"Bad Request","status":400,"detail":"the request does not say who is asking"}"#;
            (StatusCode::BAD_REQUEST, Bytes::from_static(text))
        }
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

fn grpc_answer<B>(asked: &Asked<'_>, refusal: &Refusal<'_>) -> Response<LimitedBody<B>> {
    let mut response = Response::new(LimitedBody::refusal(Bytes::new()));
    let content_type = asked.headers().get(CONTENT_TYPE).cloned();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/grpc"));
    let (code, message) = match refusal.reason {
        Reason::Exceeded(_) => (Code::ResourceExhausted, format!("the limit `{}` is exceeded", refusal.policy)),
        Reason::Unidentified => (Code::InvalidArgument, "the request does not say who is asking".to_owned()),
    };
    write_status(response.headers_mut(), content_type, code, &message, refusal.retry());
    response
}

/// As JSON. What is not printable ASCII becomes a question mark, as it does in headers.
fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend([b'\\', letter as u8]),
            ' '..='~' => out.push(letter as u8),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}
