//! Validates the headers of a request (RFC 9113, section 8) and extracts the values that the service needs.

use std::borrow::Cow;

use super::field::FieldName;
use super::hpack::HeaderField;

/// The header values of a request that the service needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// Whether the method is POST.
    pub is_post: bool,
    /// Whether the content type is gRPC.
    pub is_grpc: bool,
    /// The path, with the query.
    pub path: Cow<'static, [u8]>,
    /// The value of `authorization`.
    pub authorization: Option<Box<[u8]>>,
    /// The value of `content-length`.
    pub content_length: Option<u64>,
}

/// Why headers are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The headers violate the protocol.
    Malformed(&'static str),
    /// The header list is too large.
    TooLarge,
}

/// Collects the fields of a header block, which are request headers or trailers.
#[derive(Debug)]
pub struct HeadBuilder {
    head: RequestHead,
    /// The service's paths. A request with such a path borrows it from this list, without an allocation.
    known_paths: &'static [&'static str],
    /// Number of further bytes allowed in the header list, or `None` if the list is too large.
    remaining_bytes: Option<usize>,
    seen: SeenFields,
    error: Option<&'static str>,
}

/// A bit set of the fields seen so far.
#[derive(Debug, Default)]
struct SeenFields(u8);

impl SeenFields {
    const METHOD: u8 = 1;
    const SCHEME: u8 = 2;
    const PATH: u8 = 4;
    const AUTHORITY: u8 = 8;
    const REGULAR: u8 = 16;

    /// Adds a field. Returns whether the field was already present.
    fn add(&mut self, field: u8) -> bool {
        let before = self.0;
        self.0 |= field;
        before & field != 0
    }

    fn has_all(&self, fields: u8) -> bool {
        self.0 & fields == fields
    }
}

impl HeadBuilder {
    /// Creates a builder for a header list of at most `max` bytes.
    pub fn new(max: usize, known_paths: &'static [&'static str]) -> Self {
        Self {
            head: RequestHead::default(),
            known_paths,
            remaining_bytes: Some(max),
            seen: SeenFields::default(),
            error: None,
        }
    }

    /// Adds a field. Ignores fields beyond the maximum size of the list.
    pub fn add(&mut self, field: HeaderField<'_>) {
        self.remaining_bytes =
            self.remaining_bytes.and_then(|remaining_bytes| remaining_bytes.checked_sub(field.size()));
        if self.remaining_bytes.is_some() && self.error.is_none() {
            self.error = self.check_and_record(field);
        }
    }

    /// Validates and records a field. Returns an error message if the field is invalid, and `None` otherwise.
    fn check_and_record(&mut self, HeaderField { kind, value, .. }: HeaderField<'_>) -> Option<&'static str> {
        if !kind.is_pseudo() {
            self.seen.add(SeenFields::REGULAR);
        } else if self.seen.has_all(SeenFields::REGULAR) {
            return Some("a pseudo-header field after a regular one");
        }
        match kind {
            FieldName::Method if self.seen.add(SeenFields::METHOD) => return Some("two :method"),
            FieldName::Method => self.head.is_post = value == b"POST",
            FieldName::Scheme if self.seen.add(SeenFields::SCHEME) => return Some("two :scheme"),
            FieldName::Authority if self.seen.add(SeenFields::AUTHORITY) => return Some("two :authority"),
            FieldName::Path if self.seen.add(SeenFields::PATH) => return Some("two :path"),
            FieldName::Path if value.is_empty() => return Some("an empty :path"),
            FieldName::Path => {
                let known = self.known_paths.iter().find(|known| known.as_bytes() == value);
                self.head.path = known.map_or_else(|| Cow::Owned(value.to_vec()), |known| known.as_bytes().into());
            }
            FieldName::UnknownPseudo => return Some("an unknown pseudo-header field"),
            FieldName::ContentType => self.head.is_grpc = value.starts_with(b"application/grpc"),
            FieldName::ContentLength => {
                let digits = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
                let length = digits.and_then(|text| text.parse().ok());
                if length.is_none() || self.head.content_length.is_some_and(|before| Some(before) != length) {
                    return Some("an invalid content-length");
                }
                self.head.content_length = length;
            }
            FieldName::Authorization => self.head.authorization = Some(value.into()),
            FieldName::Te if value != b"trailers" => return Some("`te` is not `trailers`"),
            FieldName::ConnectionSpecific => return Some("a connection-specific field"),
            FieldName::Malformed => return Some("a field with forbidden characters"),
            FieldName::Scheme | FieldName::Authority | FieldName::Te | FieldName::Other => {}
        }
        None
    }

    /// Returns the request headers.
    ///
    /// # Errors
    /// Returns an error if the headers are malformed, incomplete or too large.
    pub fn finish(self) -> Result<RequestHead, HeadError> {
        match (self.remaining_bytes, self.error) {
            (None, _) => Err(HeadError::TooLarge),
            (Some(_), Some(error)) => Err(HeadError::Malformed(error)),
            (Some(_), None) if !self.seen.has_all(SeenFields::METHOD | SeenFields::SCHEME | SeenFields::PATH) => {
                Err(HeadError::Malformed("no :method, :scheme or :path"))
            }
            (Some(_), None) => Ok(self.head),
        }
    }

    /// Returns whether the fields are valid trailers: no field is malformed or a pseudo-header field.
    pub fn are_trailers(&self) -> bool {
        self.error.is_none() && self.seen.0 & !SeenFields::REGULAR == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN_PATHS: &[&str] = &["/known"];

    fn build_head(max: usize, fields: &[(&str, &str)]) -> HeadBuilder {
        let mut head = HeadBuilder::new(max, KNOWN_PATHS);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            head.add(HeaderField { kind: FieldName::classify(name, value), name, value });
        }
        head
    }

    const REQUIRED_FIELDS: [(&str, &str); 3] = [(":method", "POST"), (":scheme", "http"), (":path", "/known")];

    #[test]
    fn needed_header_values_are_extracted() {
        let more = [(":authority", "a"), ("content-type", "application/grpc+proto"), ("te", "trailers")];
        let rest = [("authorization", "Bearer x"), ("content-length", "7"), ("x", "y")];
        let head = build_head(1_000, &[&REQUIRED_FIELDS[..], &more, &rest].concat()).finish().expect("a head");
        assert!(head.is_post && head.is_grpc && matches!(head.path, Cow::Borrowed(b"/known")));
        assert_eq!((head.authorization.as_deref(), head.content_length), (Some(&b"Bearer x"[..]), Some(7)));
        let other = build_head(1_000, &[(":method", "GET"), (":scheme", "x"), (":path", "/other?a")]).finish();
        let path = Cow::Owned(b"/other?a".to_vec());
        assert_eq!(other, Ok(RequestHead { path, ..RequestHead::default() }));
    }

    /// The cases of the h2spec test suite for section 8.
    #[test]
    fn malformed_requests_are_refused() {
        let with = |more: &[(&'static str, &'static str)]| [&REQUIRED_FIELDS[..], more].concat();
        let without =
            |name: &str| -> Vec<_> { REQUIRED_FIELDS.iter().copied().filter(|(it, _)| *it != name).collect() };
        for (fields, expected) in [
            (with(&[("X-Upper", "a")]), "a field with forbidden characters"),
            (with(&[(":unknown", "a")]), "an unknown pseudo-header field"),
            (with(&[(":status", "200")]), "an unknown pseudo-header field"),
            (with(&[("a", "b"), (":authority", "a")]), "a pseudo-header field after a regular one"),
            (with(&[("connection", "keep-alive")]), "a connection-specific field"),
            (with(&[("te", "trailers, deflate")]), "`te` is not `trailers`"),
            (with(&[("content-length", "-1")]), "an invalid content-length"),
            (with(&[("content-length", "+1")]), "an invalid content-length"),
            (with(&[("content-length", "1"), ("content-length", "2")]), "an invalid content-length"),
            (without(":method"), "no :method, :scheme or :path"),
            (without(":scheme"), "no :method, :scheme or :path"),
            (without(":path"), "no :method, :scheme or :path"),
            ([without(":path"), vec![(":path", "")]].concat(), "an empty :path"),
            (with(&[(":method", "GET")]), "two :method"),
            (with(&[(":scheme", "http")]), "two :scheme"),
            (with(&[(":path", "/")]), "two :path"),
        ] {
            assert_eq!(build_head(1_000, &fields).finish(), Err(HeadError::Malformed(expected)), "{fields:?}");
        }
    }

    #[test]
    fn header_list_size_is_bounded() {
        let size: usize = REQUIRED_FIELDS.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        assert!(build_head(size, &REQUIRED_FIELDS).finish().is_ok());
        assert_eq!(build_head(size - 1, &REQUIRED_FIELDS).finish(), Err(HeadError::TooLarge));
    }

    #[test]
    fn trailers_have_no_pseudo_header_fields() {
        assert!(build_head(1_000, &[("a", "b")]).are_trailers() && build_head(1_000, &[]).are_trailers());
        assert!(
            !build_head(1_000, &[(":path", "/")]).are_trailers() && !build_head(1_000, &[("A", "b")]).are_trailers()
        );
    }
}
