//! Builds replies: JSON with an ETag, 304 Not Modified, and 204 No Content.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue};
use serde::Serialize;

use super::etag;
use crate::control::model::{Page, StoredOverride, StoredRule, Version, WriteOutcome};
use crate::http::problem::Problem;

/// The result of a call.
pub(super) type ApiResult = Result<Response, Problem>;

/// Replies with JSON and its ETag.
pub(super) fn reply_json(status: StatusCode, tag: &str, value: &impl Serialize) -> ApiResult {
    let body =
        serde_json::to_vec(value).map_err(|error| Problem::internal_error("cannot serialise a reply", &error))?;
    Ok(reply_bytes(status, tag, "application/json", body))
}

/// Replies with JSON that must not be cached.
pub(super) fn reply_uncached(status: StatusCode, value: &impl Serialize) -> ApiResult {
    let mut reply = reply_json(status, "", value)?;
    reply.headers_mut().remove(ETAG);
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(reply)
}

/// Replies with the result of a write: 201 if it created something, otherwise 200.
pub(super) fn reply_written<T: Serialize + Versioned>(outcome: &WriteOutcome<T>) -> ApiResult {
    let status = if outcome.created { StatusCode::CREATED } else { StatusCode::OK };
    reply_json(status, &etag::etag_of_version(outcome.value.version()), &outcome.value)
}

/// A resource whose version is its ETag.
pub(super) trait Versioned {
    /// Returns the version.
    fn version(&self) -> i64;
}

impl Versioned for StoredRule {
    fn version(&self) -> i64 {
        self.version
    }
}

impl Versioned for StoredOverride {
    fn version(&self) -> i64 {
        self.version
    }
}

/// A resource with an author. Only operators may see the author, because the author is the name of a token.
pub(super) trait Authored: Serialize {
    /// Removes the author.
    fn hide_author(&mut self);
}

impl Authored for StoredRule {
    fn hide_author(&mut self) {
        self.author.clear();
    }
}

impl Authored for StoredOverride {
    fn hide_author(&mut self) {
        self.author.clear();
    }
}

impl Authored for Version {
    fn hide_author(&mut self) {
        self.author.clear();
    }
}

impl<T: Authored> Authored for Page<T> {
    fn hide_author(&mut self) {
        self.items.iter_mut().for_each(T::hide_author);
    }
}

/// Replies with bytes and their ETag.
pub(super) fn reply_bytes(status: StatusCode, tag: &str, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut reply = Response::new(Body::from(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    with_etag(reply, tag)
}

/// Replies 304.
pub(super) fn not_modified(tag: &str) -> Response {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::NOT_MODIFIED;
    with_etag(reply, tag)
}

/// Replies 204.
pub(super) fn no_content() -> Response {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}

fn with_etag(mut reply: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        reply.headers_mut().insert(ETAG, tag);
    }
    // Replies depend on the caller, so proxies must not cache them. Clients may cache replies but must revalidate them.
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    reply
}
