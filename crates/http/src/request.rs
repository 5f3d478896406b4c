//! The parts of a request that limits use.

use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A borrowed view of a request without its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

impl<'r> RequestView<'r> {
    /// Borrows everything except the body of a request.
    #[inline]
    pub fn new<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Borrows the head of a request that was already split into head and body.
    pub fn from_parts(parts: &'r Parts) -> Self {
        Self { method: &parts.method, uri: &parts.uri, headers: &parts.headers, extensions: &parts.extensions }
    }

    /// Returns the method.
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// Returns the request target.
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// Returns the headers.
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// Returns the extensions, in which servers and middleware store data about the request.
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }

    /// Returns whether this is a gRPC request, which must be refused with a gRPC status instead of an HTTP status.
    #[cfg(feature = "tower")]
    pub(crate) fn is_grpc(&self) -> bool {
        let content_type = self.headers.get(http::header::CONTENT_TYPE);
        content_type.is_some_and(|value| match value.as_bytes().strip_prefix(b"application/grpc") {
            Some(rest) => matches!(rest.first(), None | Some(b'+' | b';' | b'-')),
            None => false,
        })
    }
}
