//! Requests made by web pages, which a browser sends with the rights of the machine it runs on.
//!
//! A page of another site cannot read the replies, unless its host name resolves to this server (DNS rebinding). So a server on
//! loopback without tokens answers only requests whose `Host` is a loopback name or one of `--allowed-hosts`. Browsers mark
//! requests of pages with `Origin` or `Sec-Fetch-Site`; these are refused by every server.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{HOST, ORIGIN};
use hyper::http::request::Parts;

use super::problem::Problem;

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The host names, beside those of loopback, by which a server may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts(Vec<String>);

impl AllowedHosts {
    /// Parses a list separated by commas; `*` stands for every name.
    pub fn new(list: &str) -> Self {
        Self(list.split(',').map(|host| host.trim().to_ascii_lowercase()).filter(|host| !host.is_empty()).collect())
    }

    /// Returns whether a server may be called by this name, given as in `Host`.
    pub fn contains(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
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

/// Refuses a request of a web page, or for another host. `hosts` is `None` where any host is accepted.
///
/// # Errors
/// 403 for a page, 421 for another host.
pub(super) fn check(hosts: Option<&AllowedHosts>, head: &Parts) -> Result<(), Problem> {
    if head.headers.contains_key(ORIGIN) {
        return Err(Problem::forbidden("requests from web pages (header `Origin`) are not accepted"));
    }
    if head.headers.get(SEC_FETCH_SITE).is_some_and(|site| site != "none") {
        return Err(Problem::forbidden("requests from web pages (header `Sec-Fetch-Site`) are not accepted"));
    }
    let Some(hosts) = hosts else { return Ok(()) };
    let in_uri = head.uri.authority().map(|authority| authority.as_str());
    // A browser always sends the header, so a request without it is not one of a page.
    let hosts_given = head.headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?")).chain(in_uri);
    for host in hosts_given {
        if !hosts.contains(host) {
            let host: String = host.chars().take(100).collect();
            let detail =
                format!("this server is not called `{host}`; use a loopback address, or start it with --allowed-hosts");
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "Misdirected request", detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_configured_hosts_are_accepted() {
        let hosts = AllowedHosts::new("limits.internal, other");
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:80", "a.localhost", "other:1"]
        {
            assert!(hosts.contains(host), "{host}");
        }
        assert!(hosts.contains("Limits.Internal:443"));
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "[2001:db8::1]:80",
            "localhost.evil",
        ] {
            assert!(!hosts.contains(host), "{host}");
        }
        assert!(AllowedHosts::new("*").contains("evil.example"));
    }
}
