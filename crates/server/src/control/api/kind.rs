//! What a body is said to be.

use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::fault::Fault;

/// JSON only.
pub(super) const JSON: &[&str] = &["application/json"];

/// A merge patch (RFC 7396).
pub(super) const PATCH: &[&str] = &["application/merge-patch+json", "application/json"];

/// Rules as they are written in files.
pub(super) const RULES: &[&str] =
    &["application/json", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain"];

/// What `curl -d` says of everything: nothing about what it is.
const UNSAID: &str = "application/x-www-form-urlencoded";

/// Checks what a body is said to be; where nothing is said it is taken for what it should be.
///
/// # Errors
/// When it is something else, with what would be right.
pub(super) fn check(headers: &HeaderMap, right: &[&str]) -> Result<(), Fault> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let said = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is = |known: &&str| said.eq_ignore_ascii_case(known);
    if said.is_empty() || is(&UNSAID) || right.iter().any(is) {
        return Ok(());
    }
    let detail = format!("the body is said to be {said}; send {}", right.join(", or "));
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", detail))
}

/// A small body of JSON.
///
/// # Errors
/// When it is none, or not of the right form, with the place.
pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| Fault::bad_request(format!("the body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_said_to_be_something_else_is_refused_with_what_would_be_right() {
        let check = |kind: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
            check(&headers, RULES)
        };
        for right in ["application/json", "Application/YAML; charset=utf-8", "text/yaml", "", UNSAID] {
            assert!(check(right).is_ok(), "{right}");
        }
        for wrong in ["text/html", "application/jsonp", "multipart/form-data; boundary=x"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        assert!(super::check(&HeaderMap::new(), JSON).is_ok());
    }
}
