//! Parts of the description that many calls share: the headers of changes, and the response 304. The parent module adds
//! the parts that all calls share.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, RefOr, Required, Response, Type};
use utoipa::{IntoParams, IntoResponses};

/// The `If-Match` header of a write. The write succeeds only if the resource still has the given version.
pub(in crate::control::api) struct IfMatch;

/// The `If-None-Match` header of a write. The write succeeds only if the resource does not exist.
pub(in crate::control::api) struct IfNoneMatch;

/// The `Tollgate-Comment` header.
pub(in crate::control::api) struct CommentHeader;

/// The response 304.
pub(in crate::control::api) struct NotModified;

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header_parameter("If-Match", "The ETag of the expected version, or `*` for any existing version")
    }
}

impl IntoParams for IfNoneMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header_parameter("If-None-Match", "`*` makes the write only if the rule or override does not exist yet")
    }
}

impl IntoParams for CommentHeader {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header_parameter("Tollgate-Comment", "A comment for the history and the audit log, percent-encoded")
    }
}

impl IntoResponses for NotModified {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let response = Response::new("If-None-Match names the current version");
        BTreeMap::from([("304".to_owned(), RefOr::T(response))])
    }
}

fn header_parameter(name: &str, description: &str) -> Vec<Parameter> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::False);
    vec![header.description(Some(description)).schema(Some(text)).build()]
}
