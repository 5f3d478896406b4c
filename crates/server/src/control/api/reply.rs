//! Answers: JSON with its ETag, and nothing for readers who have it already.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;

use super::etag;
use super::fault::Fault;

/// What a call comes to.
pub(super) type Reply = Result<Response, Fault>;

const JSON: &str = "application/json";

/// Something as JSON, with its tag.
pub(super) fn json(status: StatusCode, tag: &str, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).map_err(|error| {
        tracing::error!(%error, "an answer cannot be written");
        Fault::bug()
    })?;
    Ok(bytes(status, tag, JSON, body))
}

/// Something as JSON that is told once.
pub(super) fn once(status: StatusCode, value: &impl Serialize) -> Reply {
    let mut answer = json(status, "", value)?;
    answer.headers_mut().remove(ETAG);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

/// Something as JSON, unless the reader has it already.
pub(super) fn read(headers: &HeaderMap, tag: &str, value: &impl Serialize) -> Reply {
    match etag::is_known(headers, tag)? {
        true => Ok(unchanged(tag)),
        false => json(StatusCode::OK, tag, value),
    }
}

/// Bytes of some kind, with their tag.
pub(super) fn bytes(status: StatusCode, tag: &str, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut answer = Response::new(Body::from(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    tagged(answer, tag)
}

/// The reader has it already.
pub(super) fn unchanged(tag: &str) -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    tagged(answer, tag)
}

/// It was done, and there is nothing to show.
pub(super) fn done() -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

fn tagged(mut answer: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        answer.headers_mut().insert(ETAG, tag);
    }
    // Who asked decides what is shown, so nobody in between keeps it; the reader asks whether it has changed.
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    answer
}
