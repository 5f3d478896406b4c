//! TLS on the ports of every protocol: which certificate is shown, and agreeing with a client.
//!
//! Certificates are renewed every few weeks. The files are looked at like rule files are; when they have changed, new
//! connections are shown the new certificate and those there are go on. Files that cannot be used are told and left, since the
//! certificate before is good for some days more, and a server that is down is not.

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

use super::accept::Protocol;
use crate::net::shutdown::ConnectionGuard;
use crate::rules_source::watch::{POLL_EVERY, WatchedFile};

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, in PEM.
    pub certificate: std::path::PathBuf,
    /// The private key, in PEM.
    pub key: std::path::PathBuf,
}

/// How long a client may take to agree on how to encrypt.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// A certificate that is shown to clients, and its files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    shown: Arc<Shown>,
    http: Arc<ServerConfig>,
    resp: Arc<ServerConfig>,
}

/// The certificate shown to new clients. Read once for each connection and written when the files change.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be read, has not what it should, or they do not belong together.
    pub fn new(files: TlsFiles) -> anyhow::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let shown = Arc::new(Shown(RwLock::new(Arc::new(certificate(&files, &provider)?))));
        let config = |protocols: &[&[u8]]| {
            let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
            let mut config = config.with_no_client_auth().with_cert_resolver(shown.clone());
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            anyhow::Ok(Arc::new(config))
        };
        let (http, resp) = (config(&[b"http/1.1"])?, config(&[])?);
        Ok(Self { files, shown, http, resp })
    }

    /// Agrees with a client on how to encrypt; none if it does not, takes too long, or the server stops meanwhile.
    pub async fn welcome(
        &self,
        stream: TcpStream,
        protocol: Protocol,
        guard: &ConnectionGuard,
    ) -> Option<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(match protocol {
            Protocol::Http => self.http.clone(),
            Protocol::Resp => self.resp.clone(),
        });
        guard.register().await;
        let leaves = std::future::poll_fn(|_| match guard.is_stopping() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)) => outcome,
            () = leaves => return None,
        };
        match outcome {
            Ok(Ok(stream)) => return Some(stream),
            // Port scanners and clients without the right authority come by all day.
            Ok(Err(error)) => tracing::debug!(%error, connection = guard.id(), "a client did not agree on TLS"),
            Err(_) => tracing::debug!(connection = guard.id(), "a client took too long to agree on TLS"),
        }
        None
    }

    /// Looks at the files for ever, and shows the new certificate when they have changed.
    pub async fn watch(self: Arc<Self>) {
        let watched = |path: &Path| {
            let mut file = WatchedFile::new(path.to_owned());
            // It was read a moment ago; this remembers how it looks.
            let _ = file.read();
            file
        };
        let mut files = [watched(&self.files.certificate), watched(&self.files.key)];
        let mut looks = tokio::time::interval(POLL_EVERY);
        loop {
            looks.tick().await;
            let tls = self.clone();
            // A file may lie on a network, and this thread has connections to accept.
            let looked = tokio::task::spawn_blocking(move || {
                let changed = files.each_mut().map(|file| !matches!(file.has_changed(), Ok(false)));
                if changed.contains(&true) {
                    tls.renew();
                }
                files
            });
            match looked.await {
                Ok(looked) => files = looked,
                Err(error) => {
                    tracing::error!(%error, "the certificate is not watched any more, the one in use stays");
                    return std::future::pending().await;
                }
            }
        }
    }

    fn renew(&self) {
        let file = self.files.certificate.display();
        match certificate(&self.files, &ring::default_provider()) {
            Ok(new) => {
                *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                tracing::info!(%file, "certificate renewed");
            }
            Err(error) => tracing::error!("the certificate was not renewed, the one before stays in use: {error:#}"),
        }
    }
}

fn certificate(files: &TlsFiles, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    let read = |flag: &str, path: &Path| {
        WatchedFile::new(path.to_owned()).read().with_context(|| format!("{flag}: cannot read {}", path.display()))
    };
    let chain = read("--tls-cert", &files.certificate)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let what = || format!("--tls-cert: {} has no certificate in PEM", files.certificate.display());
    let chain = chain.map_err(|error| anyhow!("{error}")).with_context(what)?;
    ensure!(!chain.is_empty(), what());
    let key = read("--tls-key", &files.key)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| anyhow!("{error}"));
    let key = key.with_context(|| format!("--tls-key: {} has no private key in PEM", files.key.display()))?;
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
    use crate::net::stalled_client::hangs_up_after;
    use tollgate_testkit::servers::Certificates;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tollgate-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stalls_before_it_has_agreed_is_not_waited_for() {
        let folder = folder("stalls");
        let made = Certificates::make(&folder);
        let tls = Arc::new(Tls::new(TlsFiles { certificate: made.certificate(), key: made.key() }).unwrap());
        for sent in ["", "\u{16}\u{3}\u{1}"] {
            for protocol in [Protocol::Http, Protocol::Resp] {
                let tls = tls.clone();
                let welcome = |stream, _, guard| async move {
                    assert!(tls.welcome(stream, protocol, &guard).await.is_none());
                };
                assert_eq!(hangs_up_after(HANDSHAKE, sent, welcome).await, "");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_that_cannot_be_used_are_told_with_their_flag() {
        let (folder, other) = (folder("files"), folder("other"));
        let (made, others) = (Certificates::make(&folder), Certificates::make(&other));
        let refused = |certificate: &Path, key: &Path| {
            let files = TlsFiles { certificate: certificate.to_owned(), key: key.to_owned() };
            format!("{:#}", Tls::new(files).unwrap_err())
        };
        let (certificate, key) = (made.certificate(), made.key());
        let none = folder.join("none");
        assert!(refused(&none, &key).contains("--tls-cert: cannot read"));
        assert!(refused(&certificate, &none).contains("--tls-key: cannot read"));
        assert!(refused(&key, &key).contains("has no certificate in PEM"));
        assert!(refused(&certificate, &certificate).contains("has no private key in PEM"));
        assert!(refused(&certificate, &others.key()).contains("cannot be used together"));
        std::fs::remove_dir_all(folder).unwrap();
        std::fs::remove_dir_all(other).unwrap();
    }
}
