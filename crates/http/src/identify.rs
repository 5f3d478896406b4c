//! Identities: the bytes under which requests are counted.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{COOKIE, HeaderName, HeaderValue};

use crate::request::RequestView;

/// Maximum length in bytes of an identity from a header or a cookie. A longer value counts as missing, because hashing
/// a long key is expensive. API keys and session ids are far shorter.
pub const MAX_IDENTITY: usize = 8_192;

/// Extracts the identity under which a request is counted.
///
/// The client must not be able to choose its identity freely, because every new identity gets a new allowance. Good
/// sources are the address reported by a trusted proxy ([`ClientIp`](crate::ClientIp)) and a token that was verified
/// before the request reaches the layer. An API key in a header ([`ByHeader`]) is safe only if unknown keys are
/// rejected.
///
/// Functions and closures implement this trait. Wrap a closure in [`by`], so that the compiler can infer its type.
pub trait Identify {
    /// Returns the identity, or `None` if the request has none.
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>>;

    /// Returns a configuration hint if a missing identity (such as the peer address) always means that the server is
    /// misconfigured. Returns `None` if clients may omit the identity.
    fn setup_hint(&self) -> Option<&'static str> {
        None
    }
}

impl<F: for<'r> Fn(&RequestView<'r>) -> Option<Identity<'r>>> Identify for F {
    #[inline]
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        self(request)
    }
}

/// Returns the closure unchanged. The signature allows the compiler to infer that the returned identity may borrow from
/// the request.
///
/// ```
/// use tollgate_http::{RequestView, Identify, Identity, by};
///
/// /// Put into the request's extensions by the middleware that verified its token.
/// #[derive(Clone)]
/// struct User(String);
///
/// let by_user = by(|request| Some(Identity::from(&*request.extensions().get::<User>()?.0)));
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(User("alice".into()));
/// assert_eq!(by_user.identify(&RequestView::new(&request)).unwrap().as_ref(), b"alice");
/// ```
pub fn by<F: for<'r> Fn(&RequestView<'r>) -> Option<Identity<'r>>>(closure: F) -> F {
    closure
}

/// The bytes under which a request is counted, borrowed from the request where possible.
#[derive(Clone, Debug)]
pub struct Identity<'r>(IdentityBytes<'r>);

#[derive(Clone, Debug)]
enum IdentityBytes<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AsRef<[u8]> for Identity<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            IdentityBytes::Borrowed(bytes) => bytes,
            IdentityBytes::Owned(bytes) => bytes,
            IdentityBytes::V4(bytes) => bytes,
            IdentityBytes::V6(bytes) => bytes,
        }
    }
}

impl<'r> From<&'r [u8]> for Identity<'r> {
    fn from(bytes: &'r [u8]) -> Self {
        Self(IdentityBytes::Borrowed(bytes))
    }
}

impl<'r> From<&'r str> for Identity<'r> {
    fn from(text: &'r str) -> Self {
        Self(IdentityBytes::Borrowed(text.as_bytes()))
    }
}

impl From<Vec<u8>> for Identity<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(IdentityBytes::Owned(bytes))
    }
}

impl From<String> for Identity<'_> {
    fn from(text: String) -> Self {
        Self(IdentityBytes::Owned(text.into()))
    }
}

impl From<IpAddr> for Identity<'_> {
    /// Uses all bits of the address. Use [`ClientIp`](crate::ClientIp) to count IPv6 addresses by network.
    #[inline]
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => IdentityBytes::V4(address.octets()),
            IpAddr::V6(address) => IdentityBytes::V6(address.octets()),
        })
    }
}

/// Counts requests by the raw value of a header.
///
/// A request has no identity if the header is missing, empty or longer than [`MAX_IDENTITY`]. If the header is
/// repeated, the first value is used.
#[derive(Clone, Debug)]
pub struct ByHeader(HeaderName);

impl ByHeader {
    /// Counts requests by the header `name`.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// Counts requests by the header with this lower-case name, such as `x-api-key`.
    ///
    /// # Panics
    /// Panics if `name` is not a valid header name in lower case.
    pub const fn named(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Identify for ByHeader {
    #[inline]
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        identity_within_max_length(first_value(request.headers(), &self.0)?.as_bytes())
    }
}

/// Maximum number of header values, as counted by `HeaderMap::len`, up to which names are compared one by one.
const MAX_COMPARED_HEADERS: usize = 16;

/// Returns the first value of a header, like `HeaderMap::get`. Among few headers, comparing their names takes less time
/// than `get`, which hashes the name byte by byte: with five headers, the comparison reduces the instructions that the
/// layer adds from 527 to 462 (callgrind).
#[inline]
fn first_value<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Option<&'r HeaderValue> {
    if headers.len() > MAX_COMPARED_HEADERS {
        return headers.get(name);
    }
    headers.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
}

/// Counts requests by the value of a cookie.
///
/// A request has no identity if the cookie is missing, empty or longer than [`MAX_IDENTITY`]. If the cookie is
/// repeated, the first value is used. At most 32 `Cookie` headers are searched, and at most [`MAX_IDENTITY`] bytes of
/// each header.
#[derive(Clone, Debug)]
pub struct ByCookie(String);

impl ByCookie {
    /// Counts requests by the cookie `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl Identify for ByCookie {
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        find_cookie(request, self.0.as_bytes())
    }
}

/// Maximum number of `Cookie` headers searched. HTTP/2 clients may send each cookie in a separate header.
const MAX_COOKIE_HEADERS: usize = 32;

pub(crate) fn find_cookie<'r>(request: &RequestView<'r>, name: &[u8]) -> Option<Identity<'r>> {
    let lines = request.headers().get_all(COOKIE).iter().take(MAX_COOKIE_HEADERS);
    let pairs = lines.flat_map(|line| {
        let line = line.as_bytes();
        line[..line.len().min(MAX_IDENTITY)].split(|byte| *byte == b';')
    });
    let mut named = pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="));
    identity_within_max_length(named.next()?)
}

fn identity_within_max_length(bytes: &[u8]) -> Option<Identity<'_>> {
    (!bytes.is_empty() && bytes.len() <= MAX_IDENTITY).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn identity_of(identify: &impl Identify, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let identity = identify.identify(&RequestView::new(&request))?;
        Some(String::from_utf8(identity.as_ref().to_vec()).unwrap())
    }

    #[test]
    fn few_and_many_headers_are_searched_like_the_header_map() {
        for count in 0..2 * MAX_COMPARED_HEADERS {
            let mut headers = HeaderMap::new();
            // Every fourth name is a standard name, some names occur twice, and one header is removed.
            for number in 0..count {
                let name = match number % 4 {
                    0 => ["host", "accept", "cookie", "te", "via", "origin", "range", "date"][number / 4].to_owned(),
                    _ => format!("x-{}", number - usize::from(number % 3 == 2)),
                };
                headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from(number));
            }
            assert_eq!(headers.remove("x-3").is_some(), count > 3);
            for name in headers.keys().cloned().chain(["x-3", "via", "x-none"].map(HeaderName::from_static)) {
                assert_eq!(first_value(&headers, &name), headers.get(&name), "{name} of {headers:?}");
            }
        }
    }

    #[test]
    fn first_value_of_a_header_is_the_identity() {
        let by = ByHeader::named("x-api-key");
        assert_eq!(identity_of(&by, &[("x-api-key", "a"), ("X-Api-Key", "b")]).as_deref(), Some("a"));
        assert_eq!(identity_of(&by, &[]), None);
        assert_eq!(identity_of(&by, &[("x-api-key", "")]), None);
        let (fits, too_long) = ("a".repeat(MAX_IDENTITY), "a".repeat(MAX_IDENTITY + 1));
        assert_eq!(identity_of(&by, &[("x-api-key", &fits)]), Some(fits.clone()));
        assert_eq!(identity_of(&by, &[("x-api-key", &too_long)]), None);
    }

    #[test]
    fn cookie_is_found_among_others() {
        let by = ByCookie::new("id");
        for (line, expected) in [
            ("id=7", Some("7")),
            ("a=1; id=7; b=2", Some("7")),
            ("a=1;id=7=8", Some("7=8")),
            ("xid=1; id2=2", None),
            ("id=", None),
            ("id", None),
            ("id=1; id=2", Some("1")),
            ("", None),
        ] {
            assert_eq!(identity_of(&by, &[("cookie", line)]).as_deref(), expected, "{line}");
        }
        assert_eq!(identity_of(&by, &[("cookie", "a=1"), ("cookie", "id=7")]).as_deref(), Some("7"));
        let far = format!("a={}; id=7", "x".repeat(MAX_IDENTITY));
        assert_eq!(identity_of(&by, &[("cookie", &far)]), None);
    }

    #[test]
    fn closures_identify() {
        let by_method = by(|request| Some(Identity::from(request.method().as_str())));
        assert_eq!(identity_of(&by_method, &[]).as_deref(), Some("GET"));
    }
}
