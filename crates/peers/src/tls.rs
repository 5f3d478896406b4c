//! Encryption of links: TLS 1.3 with key pairs derived from the cluster secret.
//!
//! There are no certificates: both sides present a raw public key (RFC 7250). Each side accepts only the keys that it
//! derives from its own link secrets. The signatures that TLS 1.3 requires from both sides prove possession of the
//! private key, and so of the secret. Client and server sign different strings, so a signature cannot be sent back to
//! the node that made it.
//!
//! Alternatives: certificates have names and expiry dates. Names and expiry dates are meaningless here, and an expired
//! certificate would stop the cluster. An HMAC over the exporter of an unauthenticated session would also prove
//! knowledge of the secret, but needs a custom protocol.

use std::sync::Arc;

use tokio_rustls::rustls::client::AlwaysResolvesClientRawPublicKeys;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use tokio_rustls::rustls::server::AlwaysResolvesServerRawPublicKeys;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::secret::ClusterSecret;

/// PKCS#8 prefix of an Ed25519 private key. The seed follows the prefix.
const ED25519_PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// TLS configuration for both ends of a link.
#[derive(Clone)]
pub(crate) struct LinkTls {
    pub(crate) connector: TlsConnector,
    pub(crate) acceptor: TlsAcceptor,
}

impl LinkTls {
    /// Derives the key pairs from the secret.
    ///
    /// # Errors
    /// Fails if the cryptography provider refuses a key, which does not happen for valid seeds.
    pub(crate) fn new(secret: &ClusterSecret) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let mut accepted = Vec::new();
        let mut presented = None;
        for seed in secret.derive_for_links("tollgate peers tls") {
            let key = [&ED25519_PKCS8_PREFIX[..], &seed].concat();
            let key = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key).into())?;
            let public = key.public_key().ok_or(Error::General("no public key".to_owned()))?.to_vec();
            accepted.push(public.clone());
            presented = presented.or_else(|| Some(CertifiedKey::new(vec![CertificateDer::from(public)], key)));
        }
        let certified = Arc::new(presented.ok_or(Error::General("no secret".to_owned()))?);
        let same_key = Arc::new(ClusterKeyVerifier { accepted, provider: provider.clone() });
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(same_key.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified.clone())));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(same_key)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        // A resumed session would not prove possession of the private key again.
        server.send_tls13_tickets = 0;
        Ok(Self { connector: Arc::new(client).into(), acceptor: Arc::new(server).into() })
    }
}

/// Accepts only public keys derived from this node's link secrets.
#[derive(Debug)]
struct ClusterKeyVerifier {
    accepted: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl ClusterKeyVerifier {
    fn check_public_key(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        if self.accepted.iter().any(|accepted| presented.as_ref() == accepted) {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.provider.signature_verification_algorithms)
    }
}

const NO_TLS12: Error = Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);

/// Methods shared by both verifiers.
macro_rules! impl_signature_methods {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(NO_TLS12)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify_signature(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for ClusterKeyVerifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_public_key(presented).map(|()| ServerCertVerified::assertion())
    }

    impl_signature_methods!();
}

impl ClientCertVerifier for ClusterKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_public_key(presented).map(|()| ClientCertVerified::assertion())
    }

    impl_signature_methods!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn tls(byte: u8) -> LinkTls {
        LinkTls::new(&ClusterSecret::new(&[byte; 32]).unwrap()).unwrap()
    }

    /// Connects two ends, sends a byte to the server, and returns whether both sides succeeded.
    async fn handshake(client: LinkTls, server: LinkTls) -> bool {
        let (near, far) = duplex(1 << 16);
        let name = ServerName::try_from("tollgate").unwrap();
        let connect = async {
            let mut stream = client.connector.connect(name, near).await?;
            stream.write_all(b"x").await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        let accept = async {
            let mut stream = server.acceptor.accept(far).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.flush().await?;
            Ok::<u8, std::io::Error>(byte)
        };
        let (connected, accepted) = tokio::join!(connect, accept);
        connected.is_ok() && accepted.is_ok()
    }

    #[tokio::test]
    async fn nodes_with_the_same_secret_connect_and_others_do_not() {
        assert!(handshake(tls(1), tls(1)).await);
        assert!(!handshake(tls(1), tls(2)).await);
    }

    #[tokio::test]
    async fn nodes_connect_in_every_step_of_replacing_a_secret() {
        let [keys, old, new] = ["k", "a", "b"].map(|byte| byte.repeat(32));
        let steps =
            [old.clone(), format!("{old}\n{old}\n{new}"), format!("{old}\n{new}\n{old}"), format!("{old}\n{new}")];
        let tls = |text: &str| LinkTls::new(&ClusterSecret::new(text.as_bytes()).unwrap()).unwrap();
        for step in steps.windows(2) {
            assert!(handshake(tls(&step[0]), tls(&step[1])).await, "{step:?}");
            assert!(handshake(tls(&step[1]), tls(&step[0])).await, "{step:?}");
        }
        assert!(!handshake(tls(&steps[0]), tls(&steps[3])).await, "the old secret alone is finally refused");
        assert!(
            !handshake(tls(&keys), tls(&format!("{keys}\n{new}"))).await,
            "the fingerprint secret does not secure links"
        );
    }

    #[tokio::test]
    async fn client_without_a_key_is_refused() {
        let server = tls(1);
        let provider = Arc::new(ring::default_provider());
        let any = Arc::new(ClusterKeyVerifier {
            accepted: vec![public_key_of(&ClusterSecret::new(&[1; 32]).unwrap())],
            provider: provider.clone(),
        });
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(any)
            .with_no_client_auth();
        let client = LinkTls { connector: Arc::new(client).into(), acceptor: server.acceptor.clone() };
        assert!(!handshake(client, server).await);
    }

    fn public_key_of(secret: &ClusterSecret) -> Vec<u8> {
        let provider = ring::default_provider();
        let key = [&ED25519_PKCS8_PREFIX[..], &secret.derive_key("tollgate peers tls")].concat();
        let key = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key).into()).unwrap();
        key.public_key().unwrap().to_vec()
    }
}
