//! Who is asking: what a request is counted under.

use std::net::IpAddr;

use http::header::{COOKIE, HeaderName};

use crate::asked::Asked;

/// How long an identity from a header or a cookie may be. One that is longer counts as none: a key's cost grows with its
/// length, and no key anybody hands out is that long.
pub const MAX_IDENTITY: usize = 8_192;

/// Tells under which identity a request is counted.
///
/// Whatever it looks at has to be something the client cannot choose freely, or a new identity is a new allowance: an address
/// that a trusted proxy vouches for ([`ClientIp`](crate::ClientIp)), or a token that is checked before the request gets
/// here. An API key in a header ([`ByHeader`]) is as good as the check that unknown keys do not pass.
///
/// Any function is one too; [`by`] makes one of a closure.
pub trait Identify {
    /// The identity, or none if the request has none.
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>>;
}

impl<F: for<'r> Fn(&Asked<'r>) -> Option<Identity<'r>>> Identify for F {
    #[inline]
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        self(asked)
    }
}

/// A closure as [`Identify`]. It does nothing but tell the compiler what kind of closure it is.
///
/// ```
/// use tollgate_http::{Asked, Identify, Identity, by};
///
/// /// Put into the request's extensions by whatever checked its token.
/// #[derive(Clone)]
/// struct User(String);
///
/// let by_user = by(|asked| Some(Identity::from(&*asked.extensions().get::<User>()?.0)));
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(User("alice".into()));
/// assert_eq!(by_user.identify(&Asked::of(&request)).unwrap().as_ref(), b"alice");
/// ```
pub fn by<F: for<'r> Fn(&Asked<'r>) -> Option<Identity<'r>>>(closure: F) -> F {
    closure
}

/// What is counted: some bytes, borrowed from the request where possible.
#[derive(Clone, Debug)]
pub struct Identity<'r>(Bytes<'r>);

#[derive(Clone, Debug)]
enum Bytes<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AsRef<[u8]> for Identity<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
            Bytes::V4(bytes) => bytes,
            Bytes::V6(bytes) => bytes,
        }
    }
}

impl<'r> From<&'r [u8]> for Identity<'r> {
    fn from(bytes: &'r [u8]) -> Self {
        Self(Bytes::Borrowed(bytes))
    }
}

impl<'r> From<&'r str> for Identity<'r> {
    fn from(text: &'r str) -> Self {
        Self(Bytes::Borrowed(text.as_bytes()))
    }
}

impl From<Vec<u8>> for Identity<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::Owned(bytes))
    }
}

impl From<String> for Identity<'_> {
    fn from(text: String) -> Self {
        Self(Bytes::Owned(text.into()))
    }
}

impl From<IpAddr> for Identity<'_> {
    /// All bits of it; see [`ClientIp`](crate::ClientIp) for counting by networks.
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => Bytes::V4(address.octets()),
            IpAddr::V6(address) => Bytes::V6(address.octets()),
        })
    }
}

/// Counts by the value of a header, as it is sent.
///
/// None if it is missing, empty or longer than [`MAX_IDENTITY`]. If it is there several times the first counts, as it does
/// for whoever asks a `HeaderMap` for it.
#[derive(Clone, Debug)]
pub struct ByHeader(HeaderName);

impl ByHeader {
    /// By this header.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// By the header of this name, in lower case: `x-api-key`.
    ///
    /// # Panics
    /// When that cannot be the name of a header.
    pub const fn named(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Identify for ByHeader {
    #[inline]
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        bounded(asked.headers().get(&self.0)?.as_bytes())
    }
}

/// Counts by the value of a cookie.
///
/// None if it is missing, empty or longer than [`MAX_IDENTITY`]. The first of several counts. Of each `Cookie` header only
/// the first [`MAX_IDENTITY`] bytes are looked at, and of these headers only the first 32.
#[derive(Clone, Debug)]
pub struct ByCookie(String);

impl ByCookie {
    /// By the cookie of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl Identify for ByCookie {
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        cookie(asked, self.0.as_bytes())
    }
}

/// HTTP/2 may send each cookie in a header of its own.
const MAX_COOKIE_HEADERS: usize = 32;

pub(crate) fn cookie<'r>(asked: &Asked<'r>, name: &[u8]) -> Option<Identity<'r>> {
    let lines = asked.headers().get_all(COOKIE).iter().take(MAX_COOKIE_HEADERS);
    let pairs = lines.flat_map(|line| {
        let line = line.as_bytes();
        line[..line.len().min(MAX_IDENTITY)].split(|byte| *byte == b';')
    });
    let mut named = pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="));
    bounded(named.next()?)
}

fn bounded(bytes: &[u8]) -> Option<Identity<'_>> {
    (!bytes.is_empty() && bytes.len() <= MAX_IDENTITY).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn identity(identify: &impl Identify, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let identity = identify.identify(&Asked::of(&request))?;
        Some(String::from_utf8(identity.as_ref().to_vec()).unwrap())
    }

    #[test]
    fn a_header_counts_by_its_first_value() {
        let by = ByHeader::named("x-api-key");
        assert_eq!(identity(&by, &[("x-api-key", "a"), ("X-Api-Key", "b")]).as_deref(), Some("a"));
        assert_eq!(identity(&by, &[]), None);
        assert_eq!(identity(&by, &[("x-api-key", "")]), None);
        let (fits, too_long) = ("a".repeat(MAX_IDENTITY), "a".repeat(MAX_IDENTITY + 1));
        assert_eq!(identity(&by, &[("x-api-key", &fits)]), Some(fits.clone()));
        assert_eq!(identity(&by, &[("x-api-key", &too_long)]), None);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
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
            assert_eq!(identity(&by, &[("cookie", line)]).as_deref(), expected, "{line}");
        }
        assert_eq!(identity(&by, &[("cookie", "a=1"), ("cookie", "id=7")]).as_deref(), Some("7"));
        let far = format!("a={}; id=7", "x".repeat(MAX_IDENTITY));
        assert_eq!(identity(&by, &[("cookie", &far)]), None);
    }

    #[test]
    fn closures_identify_too() {
        let by_method = by(|asked| Some(Identity::from(asked.method().as_str())));
        assert_eq!(identity(&by_method, &[]).as_deref(), Some("GET"));
    }
}
