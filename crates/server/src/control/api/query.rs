//! What stands in paths and after the question mark, with problems as everywhere else where it is wrong.

use axum::extract::{FromRequestParts, Path, Query};
use hyper::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::fault::Fault;
use crate::control::auth::Access;
use crate::control::model::Cut;

/// Parts of the path, percent-decoded.
pub(super) struct At<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        found
            .map(|Path(found)| Self(found))
            .map_err(|error| Fault::bad_request(format!("the path: {}", error.body_text())))
    }
}

/// What stands after the question mark. What is not known is refused, lest a misspelt filter lets everything through.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        let text = |error: axum::extract::rejection::QueryRejection| error.body_text();
        found.map(|Query(found)| Self(found)).map_err(|error| Fault::bad_request(text(error)))
    }
}

/// Who asks.
pub(super) struct By(pub(super) Access);

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        // The front end has put it there.
        parts.extensions.get().cloned().map(Self).ok_or_else(Fault::bug)
    }
}

/// Where a rule is.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct RuleAt {
    /// Whose rule: letters, digits and `-_.:/`, percent-encoded.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:/-]+$", example = "api")]
    pub(super) domain: String,
    /// Which: letters, digits and `-_.:/`, percent-encoded.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:/-]+$", example = "per-client")]
    pub(super) id: String,
}

/// Which part of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Paging {
    /// What the last page gave as `next`; from the beginning unless given.
    pub(super) after: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(super) limit: Option<usize>,
}

impl From<Paging> for Cut {
    fn from(Paging { after, limit }: Paging) -> Self {
        Self { after, limit }
    }
}
