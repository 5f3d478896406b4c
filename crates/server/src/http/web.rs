//! Protection against requests that a web page sends through a visitor's browser (CSRF and DNS rebinding).
//!
//! Browsers mark requests from web pages with `Origin` or `Sec-Fetch-Site`. The server refuses such requests, except
//! those from its own console. With DNS rebinding, the host name of a foreign page resolves to this server. The
//! browser then treats the page and the server as the same origin. A loopback server without tokens, and every server
//! with `--allowed-hosts`, therefore answers only requests whose `Host` is a loopback name or listed in
//! `--allowed-hosts`.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;

use super::problem::Problem;
use crate::console;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The accepted host names, in addition to loopback names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// Parses a comma-separated list. `*` matches every name.
    pub fn new(list: &str) -> Self {
        Self(list.split(',').map(|host| host.trim().to_ascii_lowercase()).filter(|host| !host.is_empty()).collect())
    }

    /// Returns whether the value of a `Host` header is accepted.
    pub fn accepts(&self, host: &str) -> bool {
        let name = without_port(host);
        // Fast path for the two most frequent names.
        if matches!(name, "127.0.0.1" | "localhost") {
            return true;
        }
        let name = name.to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.is_ok_and(|address| address.to_canonical().is_loopback())
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.0.iter().any(|allowed| *allowed == "*" || *allowed == name)
    }
}

/// Returns a host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // A colon inside brackets belongs to the address.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Refuses requests from web pages other than the console, and requests whose host is not in `hosts`. If `hosts` is
/// `None`, any host is accepted.
///
/// # Errors
/// Returns a 403 for a request from another web page, or a 421 for a host that is not accepted.
pub(super) fn check_page_and_host(hosts: Option<&AllowedHosts>, head: &Parts) -> Result<(), Problem> {
    if head.headers.contains_key(ORIGIN) || head.headers.contains_key(SEC_FETCH_SITE) {
        check_web_page(head)?;
    }
    check_host(hosts, head)
}

/// Refuses a request from a web page other than the console.
#[cold]
fn check_web_page(head: &Parts) -> Result<(), Problem> {
    let is_console = head.headers.contains_key(console::CONSOLE_HEADER);
    if head.headers.get_all(ORIGIN).iter().any(|origin| !is_console || !is_own_origin(origin.as_bytes(), head)) {
        return Err(Problem::forbidden("requests from web pages (header `Origin`) are not accepted"));
    }
    let mut sites = head.headers.get_all(SEC_FETCH_SITE).iter();
    if sites.any(|site| site != "none" && (!is_console || site != "same-origin")) {
        return Err(Problem::forbidden("requests from web pages (header `Sec-Fetch-Site`) are not accepted"));
    }
    Ok(())
}

/// Refuses requests that embed the console in another page. Links to the console are accepted.
///
/// # Errors
/// Returns a 403 if the console is embedded, or a 421 for a host that is not accepted.
pub(super) fn check_navigation(hosts: Option<&AllowedHosts>, head: &Parts) -> Result<(), Problem> {
    let of = |name| head.headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    let is_foreign = matches!(of(SEC_FETCH_SITE), b"cross-site" | b"same-site");
    if is_foreign && (of(SEC_FETCH_MODE), of(SEC_FETCH_DEST)) != (&b"navigate"[..], &b"document"[..]) {
        return Err(Problem::forbidden("the console cannot be part of another page (header `Sec-Fetch-Site`)"));
    }
    check_host(hosts, head)
}

/// Returns whether an origin names the request's host. The scheme is ignored, because a proxy may terminate TLS.
fn is_own_origin(origin: &[u8], head: &Parts) -> bool {
    let host = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    let mut hosts = head.headers.get_all(HOST).iter();
    host.is_some_and(|host| {
        hosts.next().is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(host)) && hosts.next().is_none()
    })
}

fn check_host(hosts: Option<&AllowedHosts>, head: &Parts) -> Result<(), Problem> {
    let Some(hosts) = hosts else { return Ok(()) };
    let in_uri = head.uri.authority().map(|authority| authority.as_str());
    // Browsers always send `Host`, so a request without it does not come from a page.
    let hosts_given = head.headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?")).chain(in_uri);
    for host in hosts_given {
        if !hosts.accepts(host) {
            let host: String = host.chars().take(100).collect();
            let detail = format!(
                "the host `{host}` is not accepted; use a loopback address, or list the host in --allowed-hosts"
            );
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "Misdirected request", detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_from_pages_other_than_the_console_are_refused() {
        let allowed = |headers: &[(&str, &str)]| {
            let mut request = hyper::Request::post("/v1/check").header(HOST, "limits.example:8080");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            check_page_and_host(None, &request.body(()).unwrap().into_parts().0).is_ok()
        };
        let own = ("origin", "http://limits.example:8080");
        let (same, console) = (("sec-fetch-site", "same-origin"), ("tollgate-console", "1"));
        for (headers, expected) in [
            (&[][..], true),
            (&[own, same, console], true),
            (&[same, console], true),
            (&[("origin", "https://limits.example:8080"), same, console], true),
            (&[own, same], false),
            (&[same], false),
            (&[("origin", "http://limits.example"), same, console], false),
            (&[("origin", "http://evil.example"), console], false),
            (&[("origin", "null"), console], false),
            (&[own, ("origin", "http://evil.example"), console], false),
            (&[("sec-fetch-site", "same-site"), console], false),
            (&[("sec-fetch-site", "cross-site"), console], false),
            (&[same, ("sec-fetch-site", "cross-site"), console], false),
        ] {
            assert_eq!(allowed(headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn console_is_not_embedded_in_other_pages() {
        let allowed = |site: &str, mode: &str, dest: &str| {
            let request = hyper::Request::get("/console").header("sec-fetch-site", site);
            let request = request.header("sec-fetch-mode", mode).header("sec-fetch-dest", dest);
            check_navigation(None, &request.body(()).unwrap().into_parts().0).is_ok()
        };
        assert!(allowed("none", "navigate", "document") && allowed("cross-site", "navigate", "document"));
        assert!(allowed("same-origin", "cors", "script"));
        assert!(!allowed("cross-site", "navigate", "iframe") && !allowed("cross-site", "no-cors", "script"));
        assert!(!allowed("same-site", "cors", "empty"));
    }

    #[test]
    fn only_loopback_and_configured_hosts_are_accepted() {
        let hosts = AllowedHosts::new("limits.internal, other");
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:80", "a.localhost", "other:1"]
        {
            assert!(hosts.accepts(host), "{host}");
        }
        assert!(hosts.accepts("Limits.Internal:443"));
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "[2001:db8::1]:80",
            "localhost.evil",
        ] {
            assert!(!hosts.accepts(host), "{host}");
        }
        assert!(AllowedHosts::new("*").accepts("evil.example"));
    }
}
