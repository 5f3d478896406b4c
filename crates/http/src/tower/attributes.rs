//! Request attributes for rules.

use std::fmt;

use http::header::{HOST, HeaderName};
use tollgate_engine::Item;

use super::config::OnUnidentified;
use super::refusal::Reason;
use crate::client::ClientIp;
use crate::identify::{ByCookie, ByHeader, Identify, Identity, MAX_IDENTITY};
use crate::request::RequestView;

/// The names of the attributes available to rules, and how their values are read from the request.
///
/// | call | name in rules | value |
/// |---|---|---|
/// | [`method`](Self::method) | `method` | `GET` |
/// | [`path`](Self::path) | `path` | `/v1/items`, as sent: neither decoded nor normalised |
/// | [`host`](Self::host) | `host` | `api.example.org`, in lower case and without a port |
/// | [`client_ip`](Self::client_ip) | `client_ip` | `203.0.113.7`, `2001:db8:1:2::/64` |
/// | [`header`](Self::header) | `header.x` | as sent; the first value if repeated |
/// | [`cookie`](Self::cookie) | `cookie.x` | as sent; the first value if repeated |
/// | [`query`](Self::query) | `query.x` | as sent, not decoded; the first value if repeated |
/// | [`with`](Self::with) | any | any |
///
/// Rules do not see an attribute that the request lacks. A header or cookie longer than [`MAX_IDENTITY`] counts as
/// missing, and a query parameter is found only in the first [`MAX_IDENTITY`] bytes of the query. Other values longer
/// than [`Item::MAX_BYTES`] are truncated.
#[derive(Default)]
pub struct Attributes {
    readers: Vec<(String, Box<AttributeReader>)>,
}

type AttributeReader = dyn Identify + Send + Sync;

impl Attributes {
    /// Maximum number of attributes; further attributes are ignored.
    pub const MAX: usize = Item::MAX_ATTRIBUTES;

    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an attribute whose value is returned by `find`.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, find: impl Identify + Send + Sync + 'static) -> Self {
        if self.readers.len() < Self::MAX {
            self.readers.push((name.into(), Box::new(find)));
        }
        self
    }

    /// Adds the method.
    #[must_use]
    pub fn method(self) -> Self {
        self.with("method", method_of)
    }

    /// Adds the path.
    #[must_use]
    pub fn path(self) -> Self {
        self.with("path", path_of)
    }

    /// Adds the host from the request target or, if the target has none, from the `Host` header.
    #[must_use]
    pub fn host(self) -> Self {
        self.with("host", host_of)
    }

    /// Adds the client address.
    #[must_use]
    pub fn client_ip(self, client: ClientIp) -> Self {
        self.with("client_ip", ClientIpText(client))
    }

    /// Adds a header.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        self.with(format!("header.{name}"), ByHeader::new(name))
    }

    /// Adds a cookie.
    #[must_use]
    pub fn cookie(self, name: &str) -> Self {
        self.with(format!("cookie.{name}"), ByCookie::new(name))
    }

    /// Adds a query parameter.
    #[must_use]
    pub fn query(self, name: &str) -> Self {
        self.with(format!("query.{name}"), ByQuery(name.to_owned()))
    }

    /// Reads the values of all attributes that the request has.
    ///
    /// # Errors
    /// Returns an error if the server does not provide the client address, unless `on_unidentified` allows decisions
    /// without the address.
    pub(super) fn read<'a>(
        &'a self,
        request: &RequestView<'a>,
        on_unidentified: Option<OnUnidentified>,
    ) -> Result<Vec<(&'a str, Identity<'a>)>, Reason> {
        let mut values = Vec::with_capacity(self.readers.len());
        for (name, find) in &self.readers {
            if let Some(value) = find.identify(request) {
                values.push((&**name, value));
            } else if let Some(hint) = find.setup_hint() {
                match on_unidentified {
                    None => return Err(Reason::Misconfigured(hint)),
                    Some(OnUnidentified::Refuse) => return Err(Reason::Unidentified),
                    Some(OnUnidentified::Allow | OnUnidentified::CountTogether) => {}
                }
            }
        }
        Ok(values)
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.readers.iter().map(|(name, _)| name)).finish()
    }
}

fn method_of<'r>(request: &RequestView<'r>) -> Option<Identity<'r>> {
    Some(request.method().as_str().into())
}

fn path_of<'r>(request: &RequestView<'r>) -> Option<Identity<'r>> {
    Some(request.uri().path().into())
}

fn host_of<'r>(request: &RequestView<'r>) -> Option<Identity<'r>> {
    let host = match request.uri().host() {
        Some(host) => host,
        None => {
            let authority: http::uri::Authority = request.headers().get(HOST)?.as_bytes().try_into().ok()?;
            return Some(authority.host().to_ascii_lowercase().into());
        }
    };
    Some(host.to_ascii_lowercase().into())
}

/// Identifies a client by its address in the notation of rules.
struct ClientIpText(ClientIp);

impl Identify for ClientIpText {
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        self.0.format_client_address(request).map(Identity::from)
    }

    fn setup_hint(&self) -> Option<&'static str> {
        self.0.setup_hint()
    }
}

/// Identifies a request by the raw value of a query parameter.
struct ByQuery(String);

impl Identify for ByQuery {
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        let query = request.uri().query()?.as_bytes();
        let mut pairs = query[..query.len().min(MAX_IDENTITY)].split(|byte| *byte == b'&');
        pairs.find_map(|pair| pair.strip_prefix(self.0.as_bytes())?.strip_prefix(b"=")).map(Identity::from)
    }
}
