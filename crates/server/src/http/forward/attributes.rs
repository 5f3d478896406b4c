//! Reads the attributes of the client request that a proxy describes. Attributes that no rule of the domain uses are
//! skipped.
//!
//! | name | value |
//! |---|---|
//! | `method` | `GET` |
//! | `path` | `/v1/items`, without the query, [normalised](super::path::normalize) |
//! | `host` | `api.example.org`, in lower case and without a port |
//! | `scheme` | `http` or `https`, in lower case |
//! | `client_ip` | `203.0.113.7`, `2001:db8:1:2::/64`: the client behind the trusted proxies |
//! | `header.x`, `cookie.x`, `query.x` | the first value, as sent |

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use tollgate_engine::Item;
use tollgate_http::{ByCookie, ClientIp, Identify, RequestView};

use super::path::normalize;
use crate::http::problem::Problem;

const URI_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
const METHOD_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const HOST_HEADERS: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-host")];
const SCHEME_HEADERS: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-proto")];

/// The name and the value of an attribute.
type Attribute<'n, 'a> = (&'n str, Cow<'a, [u8]>);

/// The original client request, as the proxy describes it.
#[derive(Debug)]
pub(super) struct ClientRequest<'a> {
    /// The head of the proxy's call.
    pub(super) head: &'a Parts,
    /// The client's path, if the proxy's call itself is the client request.
    pub(super) client_path: Option<&'a str>,
    /// The address of the proxy.
    pub(super) peer: Option<IpAddr>,
    /// Determines the client address behind trusted proxies.
    pub(super) client: &'a ClientIp,
}

impl<'a> ClientRequest<'a> {
    /// Returns the attributes in `names` that the request has.
    ///
    /// # Errors
    /// Returns a problem if a header that an attribute in `names` requires is missing or invalid.
    pub(super) fn read_attributes<'n>(&self, names: &'n [Box<str>]) -> Result<Vec<Attribute<'n, 'a>>, Problem> {
        let mut values = Vec::with_capacity(names.len().min(Item::MAX_ATTRIBUTES));
        for name in names {
            if let Some(value) = self.attribute_value(name)? {
                values.push((&**name, truncate_value(value)));
            }
        }
        Ok(values)
    }

    fn attribute_value(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, Problem> {
        Ok(match name {
            "method" => Some(self.method()?.into()),
            "path" => Some(match normalize(self.path_and_query()?.0) {
                Cow::Borrowed(path) => path.as_bytes().into(),
                Cow::Owned(path) => path.into_bytes().into(),
            }),
            "host" => Some(self.host()?),
            "scheme" => Some(self.required_header(&SCHEME_HEADERS)?.to_ascii_lowercase().into()),
            "client_ip" => self.peer.map(|peer| {
                let address = self.client.address(&self.head.headers, peer);
                self.client.format_address(address).into_bytes().into()
            }),
            _ => match name.split_once('.') {
                Some(("header", name)) => self.head.headers.get(name).map(|value| value.as_bytes().into()),
                Some(("cookie", name)) => {
                    let cookie = ByCookie::new(name).identify(&RequestView::from_parts(self.head));
                    cookie.map(|value| value.as_ref().to_vec().into())
                }
                Some(("query", name)) => {
                    self.path_and_query()?.1.and_then(|query| query_value(query, name)).map(Cow::from)
                }
                Some(_) | None => None,
            },
        })
    }

    fn method(&self) -> Result<&'a [u8], Problem> {
        match self.client_path {
            Some(_) => Ok(self.head.method.as_str().as_bytes()),
            None => self.required_header(&METHOD_HEADERS),
        }
    }

    /// Returns the path and the query of the request.
    fn path_and_query(&self) -> Result<(&'a str, Option<&'a str>), Problem> {
        if let Some(path) = self.client_path {
            return Ok((path, self.head.uri.query()));
        }
        let uri = self.required_header(&URI_HEADERS)?;
        let wrong = || {
            let [first, second] = URI_HEADERS;
            let name = if self.head.headers.contains_key(&first) { first } else { second };
            Problem::bad_request(format!("`{name}: {}` is not the target of a request", uri.escape_ascii()))
        };
        let uri = str::from_utf8(uri).map_err(|_| wrong())?;
        // Clients may send an absolute target, and proxies pass it through unchanged.
        let target = match uri.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |slash| &rest[slash..]),
            Some(_) | None => uri,
        };
        let target = target.split_once('#').map_or(target, |(target, _)| target);
        let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        if path.starts_with('/') || path == "*" { Ok((path, query)) } else { Err(wrong()) }
    }

    fn host(&self) -> Result<Cow<'a, [u8]>, Problem> {
        let value = match self.client_path {
            Some(_) => self.required_header(&[HOST])?,
            None => self.required_header(&HOST_HEADERS)?,
        };
        let authority: Authority = value.try_into().map_err(|_| {
            Problem::bad_request(format!("the host `{}` is not a host name or an address", value.escape_ascii()))
        })?;
        Ok(authority.host().to_ascii_lowercase().into_bytes().into())
    }

    /// Returns the value of the first header in `names` that is present.
    fn required_header(&self, names: &[HeaderName]) -> Result<&'a [u8], Problem> {
        let found = names.iter().find_map(|name| self.head.headers.get(name)).map(HeaderValue::as_bytes);
        found.ok_or_else(|| {
            let detail = format!("the header `{}` is missing: configure the proxy to send it", names[0]);
            Problem::bad_request(detail)
        })
    }
}

/// Returns the first value of a query parameter, without percent-decoding it.
fn query_value<'a>(query: &'a str, name: &str) -> Option<&'a [u8]> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::as_bytes)
}

/// Truncates a value to [`Item::MAX_BYTES`].
fn truncate_value(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(&value[..value.len().min(Item::MAX_BYTES)]),
        Cow::Owned(mut value) => {
            value.truncate(Item::MAX_BYTES);
            Cow::Owned(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;
    use tollgate_http::{ForwardedBy, TrustedProxies};

    const ATTRIBUTES: [&str; 8] =
        ["client_ip", "cookie.c", "header.x-key", "host", "method", "path", "query.q", "scheme"];

    fn read_attributes(names: &[&str], rest: Option<&str>, headers: &[(&str, &str)]) -> Result<String, String> {
        let mut request = Request::builder().method("POST").uri("http://tollgate/v1/x?q=own&q=2");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let proxies = TrustedProxies::parse(["10.0.0.0/8"]).expect("a network");
        let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor);
        let peer = Some("10.0.0.1".parse().expect("an address"));
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        let values = ClientRequest { head: &head, client_path: rest, peer, client: &client }.read_attributes(&names);
        let show = |(name, value): &Attribute<'_, '_>| format!("{name}={}", String::from_utf8_lossy(value));
        values
            .map(|values| values.iter().map(show).collect::<Vec<_>>().join(" "))
            .map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn headers_of_the_proxy_describe_the_request() {
        let headers = [
            ("x-forwarded-uri", "/a/../b?q=1&q=2"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-host", "API.example.org:8080"),
            ("x-forwarded-proto", "HTTPS"),
            ("x-forwarded-for", "9.9.9.9, 2001:db8:1:2:3::4"),
            ("cookie", "a=b; c=d"),
            ("x-key", "k"),
        ];
        assert_eq!(
            read_attributes(&ATTRIBUTES, None, &headers).as_deref(),
            Ok(
                "client_ip=2001:db8:1:2::/64 cookie.c=d header.x-key=k host=api.example.org method=GET path=/b query.q=1 \
                scheme=https"
            )
        );
    }

    #[test]
    fn call_with_a_path_suffix_is_the_client_request() {
        let headers = [("host", "app:1"), ("x-forwarded-proto", "http"), ("x-forwarded-uri", "/other")];
        assert_eq!(
            read_attributes(&ATTRIBUTES, Some("//a"), &headers).as_deref(),
            Ok("client_ip=10.0.0.1 host=app method=POST path=/a query.q=own scheme=http")
        );
    }

    #[test]
    fn missing_header_is_reported_only_if_a_rule_reads_it() {
        assert_eq!(read_attributes(&["header.x-key", "client_ip"], None, &[]).as_deref(), Ok("client_ip=10.0.0.1"));
        let missing = "the header `x-forwarded-uri` is missing: configure the proxy to send it";
        assert_eq!(read_attributes(&["path"], None, &[]), Err(missing.into()));
        assert_eq!(read_attributes(&["path"], None, &[("x-original-uri", "/x")]).as_deref(), Ok("path=/x"));
    }

    #[test]
    fn unusual_targets_are_normalised_or_refused() {
        let path = |uri: &str| read_attributes(&["path", "query.q"], None, &[("x-forwarded-uri", uri)]);
        assert_eq!(path("http://evil/%6Cogin?q=a").as_deref(), Ok("path=/login query.q=a"));
        assert_eq!(path("/a#b?q=1").as_deref(), Ok("path=/a"));
        assert_eq!(path("/x?u=http://y/z").as_deref(), Ok("path=/x"));
        assert_eq!(path("*").as_deref(), Ok("path=*"));
        for wrong in ["", "login", "?x"] {
            for name in URI_HEADERS {
                let error = read_attributes(&["path"], None, &[(name.as_str(), wrong)]);
                assert_eq!(error, Err(format!("`{name}: {wrong}` is not the target of a request")));
            }
        }
    }
}
