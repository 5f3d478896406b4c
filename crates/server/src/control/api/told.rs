//! What many calls have in common, as the description tells it: what a change brings along in headers, and that a reader has what it
//! asks for. What all calls have in common is added to the whole description, in `describe`.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, RefOr, Required, Response, Type};
use utoipa::{IntoParams, IntoResponses};

/// A change is made only if what is there is what its author has seen.
pub(super) struct IfMatch;

/// A change is made only if there is nothing yet.
pub(super) struct IfNothing;

/// What a change is for.
pub(super) struct Comment;

/// The reader has it already.
pub(super) struct Unchanged;

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("If-Match", "The ETag of what is there, or `*`: only if that is still so, or if there is something")
    }
}

impl IntoParams for IfNothing {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("If-None-Match", "`*`: only if there is nothing yet")
    }
}

impl IntoParams for Comment {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        header("Tollgate-Comment", "What for, percent-encoded")
    }
}

impl IntoResponses for Unchanged {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let response = Response::new("If-None-Match names what is there");
        BTreeMap::from([("304".to_owned(), RefOr::T(response))])
    }
}

fn header(name: &str, description: &str) -> Vec<Parameter> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::False);
    vec![header.description(Some(description)).schema(Some(text)).build()]
}
