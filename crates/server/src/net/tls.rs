//! TLS for all protocols.
//!
//! Certificates are renewed every few weeks, so the server watches the certificate files. When the files change, new
//! connections use the new certificate, and open connections continue. Invalid files are logged and ignored, because
//! the old certificate usually remains valid for some days.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;

use super::protocol::Protocol;
use super::shutdown::ConnectionGuard;
use crate::rules_source::watch::{POLL_INTERVAL, WatchedFile};

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, in PEM.
    pub certificate: std::path::PathBuf,
    /// The private key, in PEM.
    pub key: std::path::PathBuf,
}

/// Timeout of the TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's certificate, its files, and the TLS configurations.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    certificate: Arc<CurrentCertificate>,
    /// One configuration per protocol. The configurations differ only in ALPN.
    configs: [Arc<ServerConfig>; Protocol::ALL.len()],
}

/// The certificate for new connections. Locked once per connection, and when the files change.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Tls {
    /// Loads the certificate and its key.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or parsed, or if the key does not belong to the certificate.
    pub fn new(files: TlsFiles) -> anyhow::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let certificate = Arc::new(CurrentCertificate(RwLock::new(Arc::new(load_certificate(&files, &provider)?))));
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let configs = Protocol::ALL.map(|protocol| {
            let mut config = builder.clone().with_no_client_auth().with_cert_resolver(certificate.clone());
            config.alpn_protocols = protocol.alpn().iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        });
        Ok(Self { files, certificate, configs })
    }

    /// Performs the handshake. Returns `None` if the handshake fails or times out, or if the server stops.
    pub async fn handshake(
        &self,
        stream: TcpStream,
        protocol: Protocol,
        guard: &ConnectionGuard,
    ) -> Option<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.configs[protocol as usize].clone());
        guard.register_waker().await;
        let stopping = std::future::poll_fn(|_| match guard.is_stopping() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => outcome,
            () = stopping => return None,
        };
        match outcome {
            Ok(Ok(stream)) => return Some(stream),
            // Debug level, because port scanners and clients without the CA cause these errors all the time.
            Ok(Err(error)) => tracing::debug!(%error, connection = guard.id(), "TLS handshake failed"),
            Err(_) => tracing::debug!(connection = guard.id(), "TLS handshake timed out"),
        }
        None
    }

    /// Watches the files and loads the new certificate when they change. Never returns.
    pub async fn watch_files(self: Arc<Self>) {
        let watched = |path: &Path| {
            let mut file = WatchedFile::new(path.to_owned());
            // `Tls::new` has already loaded the file. This read only records the file's metadata.
            let _ = file.read();
            file
        };
        let mut files = [watched(&self.files.certificate), watched(&self.files.key)];
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        loop {
            ticks.tick().await;
            let tls = self.clone();
            // Poll on a blocking thread: the files may be on a slow network file system, and this thread accepts
            // connections.
            let polled = tokio::task::spawn_blocking(move || {
                let changed = files.each_mut().map(|file| !matches!(file.check_for_change(), Ok(false)));
                if changed.contains(&true) {
                    tls.reload_certificate();
                }
                files
            });
            match polled.await {
                Ok(polled) => files = polled,
                Err(error) => {
                    tracing::error!(%error, "the certificate is no longer watched; keeping the current one");
                    return std::future::pending().await;
                }
            }
        }
    }

    fn reload_certificate(&self) {
        let file = self.files.certificate.display();
        match load_certificate(&self.files, &ring::default_provider()) {
            Ok(new) => {
                *self.certificate.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                tracing::info!(%file, "certificate renewed");
            }
            Err(error) => tracing::error!("cannot renew the certificate; keeping the current one: {error:#}"),
        }
    }
}

/// Reads the certificate chain and its key.
fn load_certificate(files: &TlsFiles, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    let bytes = |flag: &str, path: &Path| {
        WatchedFile::new(path.to_owned()).read().with_context(|| format!("{flag}: cannot read {}", path.display()))
    };
    let chain = bytes("--tls-cert", &files.certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let what = || format!("--tls-cert: {} does not contain a PEM certificate", files.certificate.display());
    let chain = chain.map_err(|error| anyhow!("{error}")).with_context(what)?;
    ensure!(!chain.is_empty(), what());
    let key = bytes("--tls-key", &files.key)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| anyhow!("{error}"));
    let key = key.with_context(|| format!("--tls-key: {} does not contain a PEM private key", files.key.display()))?;
    CertifiedKey::from_der(chain, key, provider).with_context(|| {
        format!(
            "--tls-cert {} and --tls-key {} cannot be used together",
            files.certificate.display(),
            files.key.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stalled_client::assert_closes_after;
    use tollgate_testkit::servers::Certificates;

    #[tokio::test(start_paused = true)]
    async fn handshake_that_stalls_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let made = Certificates::create(folder.path());
        let tls = Arc::new(Tls::new(TlsFiles { certificate: made.certificate(), key: made.key() }).unwrap());
        for sent in ["", "\u{16}\u{3}\u{1}"] {
            for protocol in Protocol::ALL {
                let tls = tls.clone();
                let handshake = |stream, _, guard| async move {
                    assert!(tls.handshake(stream, protocol, &guard).await.is_none());
                };
                assert_eq!(assert_closes_after(HANDSHAKE_TIMEOUT, sent, handshake).await, "");
            }
        }
    }

    #[test]
    fn invalid_files_are_reported_with_their_flag() {
        let [folder, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (made, others) = (Certificates::create(folder.path()), Certificates::create(other.path()));
        let refused = |certificate: &Path, key: &Path| {
            let files = TlsFiles { certificate: certificate.to_owned(), key: key.to_owned() };
            format!("{:#}", Tls::new(files).unwrap_err())
        };
        let (certificate, key) = (made.certificate(), made.key());
        let none = folder.path().join("none");
        assert!(refused(&none, &key).contains("--tls-cert: cannot read"));
        assert!(refused(&certificate, &none).contains("--tls-key: cannot read"));
        assert!(refused(&key, &key).contains("does not contain a PEM certificate"));
        assert!(refused(&certificate, &certificate).contains("does not contain a PEM private key"));
        assert!(refused(&certificate, &others.key()).contains("cannot be used together"));
    }
}
