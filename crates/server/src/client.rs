//! An HTTP client for another tollgate server, with a bearer token and extra CA certificates.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Method, RequestBuilder, Url};

/// A string that `Debug` hides, such as a password or a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret string.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret string.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Timeout for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time before the first TCP keepalive probe, and the interval between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// An HTTP client for one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
}

impl Client {
    /// Creates a client for the server at `url`, such as `https://rules.internal:8080`.
    ///
    /// `ca` is a file of extra CA certificates (PEM).
    ///
    /// # Errors
    /// Returns an error if `url` is not the URL of a server, or if the file `ca` cannot be read or parsed.
    pub fn new(url: &str, token: Option<Secret>, ca: Option<&Path>) -> anyhow::Result<Self> {
        let invalid = || format!("`{url}` is not the address of a server; write it like https://127.0.0.1:8080");
        let base = Url::parse(url).with_context(invalid)?;
        ensure!(matches!(base.scheme(), "http" | "https") && base.host().is_some(), invalid());
        // The HTTP client uses the process-wide cryptography provider. An error only means that a provider is already
        // installed, so it is ignored.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        // Redirects are not followed, because they could send the token to another server.
        let mut http =
            reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).redirect(Policy::none());
        // A long poll takes up to 30 s. Without keepalive probes, the client would detect a dead server only at the end
        // of the poll.
        http =
            http.tcp_keepalive(KEEPALIVE_INTERVAL).tcp_keepalive_interval(KEEPALIVE_INTERVAL).tcp_keepalive_retries(2);
        if let Some(ca) = ca {
            let pem = std::fs::read(ca).with_context(|| format!("cannot read {}", ca.display()))?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("{} does not contain PEM certificates", ca.display()))?;
            http = http.tls_certs_merge(certificates);
        }
        Ok(Self { http: http.build()?, base, token })
    }

    /// Returns a request builder with the token set. Path segments are percent-encoded.
    pub fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token.reveal()),
            None => request,
        }
    }

    /// Returns whether the token is sent unencrypted to another machine.
    pub fn exposes_token(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        self.token.is_some() && self.base.scheme() == "http" && !here
    }

    /// Returns the base URL of the server.
    pub fn url(&self) -> &Url {
        &self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_exposed_only_by_plain_http_to_another_machine() {
        let exposes =
            |url: &str, token: Option<&str>| Client::new(url, token.map(Secret::new), None).unwrap().exposes_token();
        for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://rules:1"] {
            assert!(!exposes(url, Some("t")), "{url}");
        }
        for url in ["http://rules:1", "http://10.0.0.1", "http://[fe80::1]"] {
            assert!(exposes(url, Some("t")) && !exposes(url, None), "{url}");
        }
    }
}
