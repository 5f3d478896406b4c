//! Content types of request bodies.

use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::call::ApiCall;
use crate::http::problem::Problem;

/// The content types of JSON bodies.
const JSON_TYPES: &[&str] = &["application/json"];

/// The content types of merge patches (RFC 7396).
pub(super) const PATCH_TYPES: &[&str] = &["application/merge-patch+json", "application/json"];

/// The content types of rules and rule files.
pub(super) const RULE_TYPES: &[&str] =
    &["application/json", "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain"];

/// The default content type of `curl -d`, which callers often send with other bodies.
const CURL_DEFAULT_TYPE: &str = "application/x-www-form-urlencoded";

/// Checks the content type of a body. A body without a content type or with [`CURL_DEFAULT_TYPE`] is accepted.
///
/// # Errors
/// Returns an error if the body has any other content type that is not in `accepted`.
pub(super) fn check_content_type(headers: &HeaderMap, accepted: &[&str]) -> Result<(), Problem> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let given = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is = |known: &&str| given.eq_ignore_ascii_case(known);
    if given.is_empty() || is(&CURL_DEFAULT_TYPE) || accepted.iter().any(is) {
        return Ok(());
    }
    let detail = format!("unsupported content type {given}; send {}", accepted.join(", or "));
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", detail))
}

/// Parses a small JSON body.
///
/// # Errors
/// Returns an error if the content type is not JSON, or if the body cannot be parsed as `T`.
pub(super) fn parse_json<T: DeserializeOwned>(call: &ApiCall, body: &[u8]) -> Result<T, Problem> {
    check_content_type(&call.headers, JSON_TYPES)?;
    serde_json::from_slice(body).map_err(|error| Problem::from_json_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_content_types_are_refused() {
        let check = |kind: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
            check_content_type(&headers, RULE_TYPES)
        };
        for right in ["application/json", "Application/YAML; charset=utf-8", "text/yaml", "", CURL_DEFAULT_TYPE] {
            assert!(check(right).is_ok(), "{right}");
        }
        for wrong in ["text/html", "application/jsonp", "multipart/form-data; boundary=x"] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        assert!(super::check_content_type(&HeaderMap::new(), JSON_TYPES).is_ok());
    }
}
