//! Request extractors: the caller, the expected version, path parameters and query parameters.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Query};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::reply::{self, ApiResult, Authored};
use super::{ApiState, etag};
use crate::control::Control;
use crate::control::auth::{Access, Scope};
use crate::control::model::{Change, PageRequest, Role};
use crate::http::problem::Problem;

/// A call: the service, the caller and the headers.
pub(super) struct ApiCall {
    pub(super) state: Arc<ApiState>,
    pub(super) access: Access,
    pub(super) headers: HeaderMap,
}

impl FromRequestParts<Arc<ApiState>> for ApiCall {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<ApiState>) -> Result<Self, Problem> {
        // The front end has authenticated the caller.
        let access = parts.extensions.get().cloned();
        let access = access
            .ok_or_else(|| Problem::internal_error("call of the rules service failed", &"the caller is unknown"))?;
        Ok(Self { state: state.clone(), access, headers: parts.headers.clone() })
    }
}

impl ApiCall {
    pub(super) fn control(&self) -> &Control {
        &self.state.control
    }

    /// Checks that the caller has at least the role `role` in `scope`. Returns the author, comment and expected version
    /// of the change.
    ///
    /// # Errors
    /// Returns an error if the caller lacks the role, or if a header is invalid.
    pub(super) fn authorize_change(&self, role: Role, scope: Scope<'_>) -> Result<Change, Problem> {
        self.access.require_role(role, scope)?;
        self.unchecked_change()
    }

    /// Returns the author, comment and expected version of a change, without checking the caller's role.
    ///
    /// # Errors
    /// Returns an error if the comment or the expected version in the headers is invalid.
    pub(super) fn unchecked_change(&self) -> Result<Change, Problem> {
        let comment = header_text(&self.headers, "tollgate-comment")?.filter(|comment| !comment.is_empty());
        Ok(Change {
            author: self.access.author().to_owned(),
            comment,
            expected: etag::expected_version(&self.headers)?,
        })
    }

    /// Returns the ETag for lists: the current revision. Call this before reading the list, so that the ETag is never
    /// newer than the list.
    pub(super) fn revision_tag(&self) -> String {
        etag::etag_of_version(self.state.revision())
    }

    /// Replies like [`reply_or_not_modified`](Self::reply_or_not_modified), but hides the author from callers who are
    /// not operators of the domain.
    pub(super) fn reply_authored_or_not_modified(
        &self,
        domain: &str,
        tag: &str,
        mut value: impl Authored,
    ) -> ApiResult {
        if self.access.require_role(Role::Operator, Scope::Domain(domain)).is_err() {
            value.hide_author();
        }
        self.reply_or_not_modified(tag, &value)
    }

    /// Replies with `value` as JSON, or with 304 if the caller already has the version with this ETag.
    pub(super) fn reply_or_not_modified(&self, tag: &str, value: &impl Serialize) -> ApiResult {
        match etag::reader_has_version(&self.headers, tag)? {
            true => Ok(reply::not_modified(tag)),
            false => reply::reply_json(StatusCode::OK, tag, value),
        }
    }
}

/// Returns the percent-decoded text of a header, or `None` if it is missing. A percent sign that is not part of a valid
/// escape is kept. Control characters become spaces, because the text is logged.
///
/// # Errors
/// Returns an error if the header is not UTF-8.
pub(super) fn header_text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(HeaderName::from_static(name)) else { return Ok(None) };
    let text = percent_decode(value.as_bytes()).decode_utf8();
    let text = text.map(|text| text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect());
    text.map(Some).map_err(|_| {
        Problem::bad_request(format!("{name} is not UTF-8 after percent-decoding; percent-encode the text"))
    })
}

/// Path parameters, percent-decoded.
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Path::<T>::from_request_parts(parts, state).await;
        params
            .map(|Path(params)| Self(params))
            .map_err(|error| Problem::bad_request(format!("the path: {}", error.body_text())))
    }
}

/// Query parameters. Unknown parameters are refused; otherwise a misspelt filter would return everything.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Query::<T>::from_request_parts(parts, state).await;
        params.map(|Query(params)| Self(params)).map_err(|error| {
            let text = error.body_text();
            Problem::bad_request(text.trim_start_matches("Failed to deserialize query string: "))
        })
    }
}

/// The path of a rule.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct RulePath {
    /// The domain of the rule: letters, digits and `-_.:/`, percent-encoded.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:/-]+$", example = "api")]
    pub(super) domain: String,
    /// The id of the rule: letters, digits and `-_.:/`, percent-encoded.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:/-]+$", example = "per-client")]
    pub(super) id: String,
}

/// The page of a list to return.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// The `next` of the previous page; by default the list starts at the beginning.
    after: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

impl From<PageQuery> for PageRequest {
    fn from(PageQuery { after, limit }: PageQuery) -> Self {
        Self { after, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_text_is_percent_decoded() {
        for (sent, expected) in [
            (&b"for%20the%20sale"[..], Some("for the sale")),
            ("für den Ausverkauf".as_bytes(), Some("für den Ausverkauf")),
            (b"f%C3%BCr", Some("für")),
            (b"raise by 100%", Some("raise by 100%")),
            (b"50% more, 5%zz", Some("50% more, 5%zz")),
            (b"two%0Alines", Some("two lines")),
            (b"%FF", None),
            (b"\xff", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("tollgate-comment", hyper::header::HeaderValue::from_bytes(sent).unwrap());
            let text = header_text(&headers, "tollgate-comment").ok().flatten();
            assert_eq!(text.as_deref(), expected, "{}", sent.escape_ascii());
        }
    }
}
