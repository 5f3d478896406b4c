//! The way to another server of ours: its address, the token to show, and whose certificates to believe.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Method, RequestBuilder, Url};

use crate::config::Secret;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a connection may be silent before it is asked whether there is still somebody.
const PROBE: Duration = Duration::from_secs(5);

/// A server to ask.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
}

impl Client {
    /// The server at `url`, such as `https://rules.internal:8080`. With `ca`, a file of certificates in PEM, those are believed too.
    ///
    /// # Errors
    /// When the address or the file cannot be understood.
    pub fn new(url: &str, token: Option<Secret>, ca: Option<&Path>) -> anyhow::Result<Self> {
        let wrong = || format!("`{url}` is no address of a server; write it like https://127.0.0.1:8080");
        let base = Url::parse(url).with_context(wrong)?;
        ensure!(matches!(base.scheme(), "http" | "https") && base.host().is_some(), wrong());
        // The HTTP client has no cryptography provider of its own; one that this process installed before does as well.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        // No redirects: the token is for the server that was named.
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT).tcp_nodelay(true).redirect(Policy::none());
        // A machine that is gone says nothing, and a question may wait for half a minute.
        http = http.tcp_keepalive(PROBE).tcp_keepalive_interval(PROBE).tcp_keepalive_retries(2);
        if let Some(ca) = ca {
            let pem = std::fs::read(ca).with_context(|| format!("cannot read {}", ca.display()))?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .with_context(|| format!("{} has no certificates in PEM", ca.display()))?;
            http = http.tls_certs_merge(certificates);
        }
        Ok(Self { http: http.build()?, base, token })
    }

    /// A request to be filled in and sent. The parts of the path are encoded, so that any text can be one.
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

    /// Whether anybody on the way to it can read the token.
    pub fn shows_its_token(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        self.token.is_some() && self.base.scheme() == "http" && !here
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_in_the_clear_is_noticed_beyond_this_machine() {
        let shows =
            |url: &str, token: Option<&str>| Client::new(url, token.map(Secret::new), None).unwrap().shows_its_token();
        for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://rules:1"] {
            assert!(!shows(url, Some("t")), "{url}");
        }
        for url in ["http://rules:1", "http://10.0.0.1", "http://[fe80::1]"] {
            assert!(shows(url, Some("t")) && !shows(url, None), "{url}");
        }
    }
}
