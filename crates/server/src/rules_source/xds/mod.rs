//! A state-of-the-world (SotW) xDS client. The client gets rules from `RateLimitConfig` resources, with which Envoy
//! Gateway configures the reference rate-limit service.
//!
//! A gRPC stream stays open. Each response contains all resources. The client translates the resources to rule files of
//! the reference service, and installs all files or none. The client's answer contains the version in force and, if the
//! resources were refused, their mistakes. The rules in force stay while the server is unreachable.
//!
//! - The version may be a counter in the server's process. After a restart, the same number may identify different
//!   content. A stream therefore begins without a version, and resources are compared by their digest.
//! - Servers built on go-control-plane answer a refusal immediately with the same resources, because the refusal
//!   contains an older version. A refusal is therefore delayed with exponential back-off, and resources that were just
//!   refused are neither compiled nor logged again.

pub mod stream;
pub mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tollgate_engine::Store;
use tollgate_engine::rules::{Rules, Source};

use self::stream::ClientStream;
use self::wire::{ConfigFile, DiscoveryRequest, DiscoveryResponse, TYPE_URL};
use super::install::{put_in_force, record_refusal};
use super::poll::{PollOutcome, pause_after};
use crate::app::App;
use crate::control::sha256_hex;

const GRPC_METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The default port, which Envoy Gateway uses.
const DEFAULT_PORT: u16 = 18_001;

/// Timeout for connecting, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a starting node waits for the first rules.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between probes of an idle server.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for the answer to a probe, and for writing a request.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// An xDS server to follow.
#[derive(Clone)]
pub struct XdsConfig {
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
    node: String,
}

impl fmt::Debug for XdsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XdsConfig").field(&self.to_string()).finish()
    }
}

impl fmt::Display for XdsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "xds+tls" } else { "xds" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl XdsConfig {
    /// Returns whether a URL has the scheme of an xDS server.
    pub fn is_xds_url(url: &str) -> bool {
        url.starts_with("xds://") || url.starts_with("xds+tls://")
    }

    /// Parses `xds://host[:port]` or `xds+tls://host[:port]`. For TLS, `ca` is the path of the server's CA
    /// certificates, and `own` contains the paths of this node's certificate and private key.
    ///
    /// # Errors
    /// Returns an error if `url` is invalid, or if a certificate or key file is invalid.
    pub fn new(url: &str, ca: Option<&Path>, own: Option<(&Path, &Path)>, node: String) -> anyhow::Result<Self> {
        let invalid = || format!("`{url}` is not the address of an xDS server; write it like xds://127.0.0.1:18001");
        let parsed = Url::parse(url).with_context(invalid)?;
        let host = parsed.host_str().filter(|host| !host.is_empty()).with_context(invalid)?.to_owned();
        ensure!(
            matches!(parsed.path(), "" | "/") && parsed.query().is_none() && parsed.username().is_empty(),
            invalid()
        );
        let tls = match (parsed.scheme() == "xds+tls", ca) {
            (true, Some(ca)) => Some(Arc::new(tls_config(ca, own)?)),
            (true, None) => bail!("{url} needs the certificates of its CA: add --rules-ca FILE"),
            (false, None) if own.is_none() => None,
            (false, _) => bail!("{url} is not encrypted: write xds+tls://, or leave out the certificates"),
        };
        Ok(Self { host, port: parsed.port().unwrap_or(DEFAULT_PORT), tls, node })
    }

    /// Connects to the server and closes the connection, to check that the server is reachable.
    ///
    /// # Errors
    /// Returns an error if the server is unreachable or its certificate is not trusted.
    pub async fn check_reachable(&self) -> Result<(), String> {
        self.open().await.map(drop)
    }

    async fn open(&self) -> Result<Box<dyn Transport>, String> {
        let connecting = async {
            // Removes the brackets that an IPv6 address has in a URL.
            let host = self.host.trim_matches(['[', ']']);
            let tcp = TcpStream::connect((host, self.port)).await?;
            tcp.set_nodelay(true)?;
            let Some(tls) = &self.tls else { return Ok(Box::new(tcp) as Box<dyn Transport>) };
            let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
            let tls = TlsConnector::from(tls.clone()).connect(name, tcp).await?;
            std::io::Result::Ok(Box::new(tls) as Box<dyn Transport>)
        };
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(opened) => opened.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
        }
    }
}

fn tls_config(ca: &Path, own: Option<(&Path, &Path)>) -> anyhow::Result<ClientConfig> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let certificates = |path: &Path| -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let pem = read(path)?;
        let found: Vec<_> = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>()?;
        ensure!(!found.is_empty(), "{} does not contain PEM certificates", path.display());
        Ok(found)
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).with_context(|| format!("{} is not usable as a CA", ca.display()))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_slice(&read(key)?);
            let private = private.with_context(|| format!("{} does not contain a PEM private key", key.display()))?;
            builder.with_client_auth_cert(certificates(certificate)?, private)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A socket, with or without TLS.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A node that follows an xDS server.
pub struct XdsFollower<S> {
    app: Arc<App<S>>,
    config: XdsConfig,
    subscription: Option<Subscription>,
    /// The version in force, or empty if there is none.
    version: String,
    /// The digest of the resources in force.
    digest_in_force: Option<String>,
    /// The resources of the last response, if they were refused.
    refused: Option<RefusedResources>,
    /// Number of consecutive refusals.
    refusals: u32,
    failures: u32,
    /// The last failure that was logged.
    logged_failure: Option<String>,
}

impl<S> fmt::Debug for XdsFollower<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsFollower")
            .field("config", &self.config)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Resources that were refused.
struct RefusedResources {
    digest: String,
    why: String,
}

/// An open stream.
struct Subscription {
    link: Box<dyn Transport>,
    stream: ClientStream,
    messages: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    /// A delayed refusal, and the time to send it.
    delayed: Option<(Instant, Vec<u8>)>,
}

impl<S: Store + 'static> XdsFollower<S> {
    /// Installs the first rules of the server.
    ///
    /// # Errors
    /// Returns an error if no valid rules arrive within 30 seconds, because a server without its rules would admit
    /// every request.
    pub async fn start(app: Arc<App<S>>, config: XdsConfig) -> anyhow::Result<Self> {
        let mut follower = Self {
            app,
            config,
            subscription: None,
            version: String::new(),
            digest_in_force: None,
            refused: None,
            refusals: 0,
            failures: 0,
            logged_failure: None,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        let mut why = "it sends no rules".to_owned();
        while let Ok(outcome) = timeout_at(deadline, follower.handle_next_message()).await {
            match outcome {
                Ok(PollOutcome::Changed) => return Ok(follower),
                Ok(PollOutcome::Refused) => "its rules were refused".clone_into(&mut why),
                Ok(_) => {}
                Err(failure) => {
                    why = failure;
                    follower.pause_after_failure(&why).await;
                }
            }
        }
        bail!("no usable rules from the xDS server {} within {} s: {why}", follower.config, START_TIMEOUT.as_secs())
    }

    /// Follows the server and installs every change. Never returns.
    pub async fn follow(mut self) {
        loop {
            match self.handle_next_message().await {
                Ok(outcome) => self.record_success(outcome),
                Err(why) => {
                    self.app.metrics.polls.add(PollOutcome::Failed, self.app.now());
                    self.pause_after_failure(&why).await;
                }
            }
        }
    }

    /// Waits for the next response or the answer to a probe, and handles it. Sets `subscription` to `None` after an
    /// error or when the server closes the connection gracefully.
    async fn handle_next_message(&mut self) -> Result<PollOutcome, String> {
        let mut subscription = match self.subscription.take() {
            Some(subscription) => subscription,
            None => Subscription::open(&self.config).await?,
        };
        let outcome = match subscription.next_message().await? {
            None if subscription.stream.is_closing => {
                sleep(pause_after(PollOutcome::NoWait, 0, random_u64())).await;
                return Ok(PollOutcome::NoWait);
            }
            None => PollOutcome::Unchanged,
            Some(message) => self.handle_response(&mut subscription, &message).await?,
        };
        self.subscription = Some(subscription);
        Ok(outcome)
    }

    /// Installs the resources of a response and answers it. Sends an acknowledgement immediately, and a refusal after a
    /// pause.
    async fn handle_response(
        &mut self,
        subscription: &mut Subscription,
        message: &[u8],
    ) -> Result<PollOutcome, String> {
        let response = DiscoveryResponse::decode(message).map_err(|error| format!("malformed response: {error}"))?;
        let nonce = String::from_utf8_lossy(response.nonce).into_owned();
        let outcome = self.install_resources(&response).await;
        let error = self.refused.as_ref().map(|refused| &*refused.why);
        let request = DiscoveryRequest { version: &self.version, node: &self.config.node, nonce: &nonce, error };
        let request = request.to_bytes();
        if outcome == PollOutcome::Refused {
            // A new refusal takes over the send time of a refusal that is already delayed. Further responses therefore
            // do not prolong the pause.
            let at = subscription.delayed.take().map(|(at, _)| at);
            let at = at.unwrap_or_else(|| {
                self.refusals = self.refusals.saturating_add(1);
                Instant::now() + pause_after(PollOutcome::Failed, self.refusals, random_u64())
            });
            subscription.delayed = Some((at, request));
        } else {
            self.refusals = 0;
            subscription.delayed = None;
            subscription.stream.send(&request)?;
            subscription.flush_output().await?;
        }
        Ok(outcome)
    }

    /// Installs the resources of a response, unless the same resources are in force or were just refused.
    async fn install_resources(&mut self, response: &DiscoveryResponse<'_>) -> PollOutcome {
        let (digest, version) = (resources_digest(response), String::from_utf8_lossy(response.version).into_owned());
        if self.refused.as_ref().is_some_and(|refused| refused.digest == digest) {
            return PollOutcome::Refused;
        }
        let running = i64::try_from(self.app.engine.rules().version()).unwrap_or(i64::MAX);
        if self.digest_in_force.as_ref() == Some(&digest) {
            self.app.source.set_loaded(running, "", self.app.now());
            (self.version, self.refused) = (version, None);
            return PollOutcome::Unchanged;
        }
        let installed = match decode_files(response) {
            Ok(files) => {
                let app = self.app.clone();
                let installed = tokio::task::spawn_blocking(move || install_files(&app, &files)).await;
                installed.unwrap_or_else(|error| Err(format!("the rules could not be compiled: {error}")))
            }
            Err(why) => Err(why),
        };
        match installed {
            Ok(rules) => {
                tracing::info!(version, rules, "rules loaded");
                (self.version, self.digest_in_force, self.refused) = (version, Some(digest), None);
                PollOutcome::Changed
            }
            Err(why) => {
                record_refusal(&self.app, running.saturating_add(1), &why);
                tracing::error!(version, "rules refused; the rules in force stay");
                self.refused = Some(RefusedResources { digest, why });
                PollOutcome::Refused
            }
        }
    }

    async fn pause_after_failure(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.logged_failure.as_deref() != Some(why) {
            tracing::warn!(service = %self.config, why, "xDS server unavailable; the rules in force stay");
            self.logged_failure = Some(why.to_owned());
        }
        sleep(pause_after(PollOutcome::Failed, self.failures, random_u64())).await;
    }

    fn record_success(&mut self, outcome: PollOutcome) {
        self.app.metrics.polls.add(outcome, self.app.now());
        self.failures = 0;
        if self.logged_failure.take().is_some() {
            tracing::info!(service = %self.config, "xDS server available again");
        }
    }
}

impl Subscription {
    /// Opens a stream and subscribes to all resources.
    async fn open(config: &XdsConfig) -> Result<Self, String> {
        let link = config.open().await?;
        let authority = format!("{}:{}", config.host, config.port);
        let stream = ClientStream::open(&authority, GRPC_METHOD, config.tls.is_some());
        let mut subscription = Self::new(link, stream);
        let first = DiscoveryRequest { node: &config.node, ..DiscoveryRequest::default() };
        subscription.stream.send(&first.to_bytes())?;
        subscription.flush_output().await?;
        Ok(subscription)
    }

    fn new(link: Box<dyn Transport>, stream: ClientStream) -> Self {
        Self { link, stream, messages: VecDeque::new(), buffer: vec![0; 16 * 1024], delayed: None }
    }

    async fn flush_output(&mut self) -> Result<(), String> {
        let written = timeout(ANSWER_TIMEOUT, async {
            self.link.write_all(&self.stream.out).await?;
            self.link.flush().await
        });
        match written.await {
            Ok(written) => written.map_err(|error| error.to_string())?,
            Err(_) => return Err("the server does not read".to_owned()),
        }
        self.stream.out.clear();
        Ok(())
    }

    /// Returns the next message, or `None` if the server answered a probe or closes the connection gracefully. Sends a
    /// delayed refusal after its pause.
    async fn next_message(&mut self) -> Result<Option<Vec<u8>>, String> {
        let (mut is_probing, mut silent_until) = (false, Instant::now() + PROBE_INTERVAL);
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(message));
            }
            if self.stream.is_closing {
                return Ok(None);
            }
            if let Some((_, request)) = self.delayed.take_if(|(at, _)| *at <= Instant::now()) {
                self.stream.send(&request)?;
            }
            self.flush_output().await?;
            let until = self.delayed.as_ref().map_or(silent_until, |(at, _)| silent_until.min(*at));
            match timeout_at(until, self.link.read(&mut self.buffer)).await {
                Err(_) if until < silent_until => {}
                Err(_) if is_probing => return Err("the server does not answer".to_owned()),
                Err(_) => {
                    silent_until = Instant::now() + ANSWER_TIMEOUT;
                    self.stream.send_ping();
                    is_probing = true;
                }
                Ok(Ok(0)) => return Err("the server closed the connection".to_owned()),
                Ok(Err(error)) => return Err(error.to_string()),
                Ok(Ok(read)) => {
                    let messages = &mut self.messages;
                    let taken =
                        self.stream.receive(&self.buffer[..read], |message| messages.push_back(message.to_vec()));
                    // During a graceful close, an error at the end of the stream is expected.
                    if !self.stream.is_closing {
                        taken?;
                    }
                    if is_probing && self.messages.is_empty() {
                        return Ok(None);
                    }
                    silent_until = Instant::now() + PROBE_INTERVAL;
                }
            }
        }
    }
}

/// Returns a random number, or the maximum (the longest pause) if no random number is available.
fn random_u64() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX)
}

/// Returns a digest of the resources of a response. The digest does not depend on the order of the resources, because
/// go-control-plane sends them in random order.
fn resources_digest(response: &DiscoveryResponse<'_>) -> String {
    let resource = |(type_url, bytes): &(&[u8], &[u8])| sha256_hex(type_url) + &sha256_hex(bytes);
    let mut all: Vec<String> = response.resources.iter().map(resource).collect();
    all.sort_unstable();
    all.push(sha256_hex(response.type_url));
    sha256_hex(all.concat().as_bytes())
}

/// Translates the resources of a response to files.
fn decode_files(response: &DiscoveryResponse<'_>) -> Result<Vec<ConfigFile>, String> {
    let check = |type_url: &[u8]| match type_url == TYPE_URL.as_bytes() {
        true => Ok(()),
        false => Err(format!("resources of the type `{}` instead of `{TYPE_URL}`", String::from_utf8_lossy(type_url))),
    };
    check(response.type_url)?;
    let file = |(index, (type_url, bytes)): (usize, &(&[u8], &[u8]))| {
        check(type_url)?;
        ConfigFile::decode(bytes).map_err(|error| format!("resource {index}: {error}"))
    };
    response.resources.iter().enumerate().map(file).collect()
}

/// Puts the rules of all resources in force, and returns the rule count.
fn install_files<S: Store>(app: &App<S>, files: &[ConfigFile]) -> Result<usize, String> {
    let sources: Vec<Source<'_>> =
        files.iter().map(|file| Source { name: &file.name, text: file.text.as_bytes() }).collect();
    let rules = Rules::read(&sources).map_err(|mistakes| mistakes.to_string())?;
    let version = put_in_force(app, &rules).map_err(|mistakes| mistakes.to_string())?;
    app.metrics.count_reload();
    app.source.set_loaded(i64::try_from(version).unwrap_or(i64::MAX), "", app.now());
    Ok(rules.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_server_is_abandoned_after_a_probe() {
        let (near, _far) = tokio::io::duplex(64 * 1024);
        let stream = ClientStream::open("h:1", GRPC_METHOD, false);
        let mut silent = Subscription::new(Box::new(near), stream);
        let begun = Instant::now();
        assert_eq!(silent.next_message().await, Err("the server does not answer".to_owned()));
        assert_eq!(begun.elapsed(), PROBE_INTERVAL + ANSWER_TIMEOUT);
    }

    #[test]
    fn address_and_certificates_are_checked() {
        let new = |url: &str, ca: Option<&str>| {
            let config = XdsConfig::new(url, ca.map(Path::new), None, "n".into());
            config.map(|config| config.to_string()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(new("xds://gateway", None).as_deref(), Ok("xds://gateway:18001"));
        assert_eq!(new("xds://[::1]:7", None).as_deref(), Ok("xds://[::1]:7"));
        for (url, ca, expected) in [
            ("xds://", None, "is not the address of an xDS server"),
            ("xds://h/path", None, "is not the address of an xDS server"),
            ("xds+tls://h", None, "needs the certificates of its CA: add --rules-ca FILE"),
            ("xds+tls://h", Some("nowhere.pem"), "cannot read nowhere.pem"),
            ("xds://h", Some("nowhere.pem"), "is not encrypted"),
        ] {
            let error = new(url, ca).expect_err(url);
            assert!(error.contains(expected), "{url}: {error}");
        }
        assert!(XdsConfig::is_xds_url("xds://h") && !XdsConfig::is_xds_url("https://h"));
    }
}
