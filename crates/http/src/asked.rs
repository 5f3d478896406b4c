//! A request as far as limits look at it.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

/// Everything of a request but its body, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

impl<'r> Asked<'r> {
    /// What is to be seen of a request.
    #[inline]
    pub fn of<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// What is to be seen of a request without its body.
    pub fn of_parts(parts: &'r Parts) -> Self {
        Self { method: &parts.method, uri: &parts.uri, headers: &parts.headers, extensions: &parts.extensions }
    }

    /// Its method.
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// Its target.
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// Its headers.
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// What the server and other middleware know about it.
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }

    /// Whether the answer has to be one that gRPC clients understand.
    #[cfg(feature = "tower")]
    pub(crate) fn is_grpc(&self) -> bool {
        let content_type = self.headers.get(http::header::CONTENT_TYPE);
        content_type.is_some_and(|value| match value.as_bytes().strip_prefix(b"application/grpc") {
            Some(rest) => matches!(rest.first(), None | Some(b'+' | b';' | b'-')),
            None => false,
        })
    }
}
