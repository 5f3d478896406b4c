//! The secret that all nodes of a cluster have, and the keys that are derived from it.
//!
//! A node proves that it has the secret by a TLS key pair that is derived from it (`tls.rs`). The public key can be obtained by
//! opening a connection, and a guess of the secret can be checked against it without asking a node. So the secret has to be
//! random: [`MIN_BYTES`] is what `openssl rand -hex 16` prints.

use std::fmt;
use std::path::Path;

use ring::hmac;

/// The minimum length of a secret, in bytes.
pub(crate) const MIN_BYTES: usize = 32;
/// The maximum length of a secret, in bytes.
pub(crate) const MAX_BYTES: usize = 1_024;

/// The secret of a cluster. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClusterSecret(Vec<u8>);

impl ClusterSecret {
    /// Checks a secret. Spaces and line ends around it do not count.
    ///
    /// # Errors
    /// If it is shorter than [`MIN_BYTES`] or longer than [`MAX_BYTES`].
    pub(crate) fn new(text: &[u8]) -> Result<Self, String> {
        let secret = text.trim_ascii();
        match secret.len() {
            MIN_BYTES..=MAX_BYTES => Ok(Self(secret.to_vec())),
            length => Err(format!(
                "the cluster secret has {length} bytes ({MIN_BYTES} to {MAX_BYTES}); create one with: openssl rand -hex 32"
            )),
        }
    }

    /// Reads a secret from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or its content is too short or too long.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let length = std::fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?.len();
        if length > 2 * MAX_BYTES as u64 {
            return Err(format!("{} has {length} bytes (maximum {MAX_BYTES})", path.display()));
        }
        let text = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::new(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Derives a key for one purpose: HMAC-SHA-256 of its label under the secret.
    pub(crate) fn derive(&self, label: &str) -> [u8; 32] {
        derive(&self.0, label)
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

/// Derives a key for one purpose from a secret.
pub(crate) fn derive(secret: &[u8], label: &str) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), label.as_bytes());
    let mut key = [0; 32];
    // SHA-256 has 32 bytes.
    key.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_checked_and_hidden() {
        let text = "0123456789abcdef0123456789abcdef\n";
        let secret = ClusterSecret::new(text.as_bytes()).unwrap();
        assert_eq!(secret, ClusterSecret::new(text.trim().as_bytes()).unwrap(), "the line end does not count");
        assert!(!format!("{secret:?}").contains("0123"));
        let error = ClusterSecret::new(b"hunter2").unwrap_err();
        assert!(error.contains("has 7 bytes (32 to 1024)") && !error.contains("hunter2"), "{error}");
        assert!(ClusterSecret::new(&[b'x'; MAX_BYTES + 1]).is_err());
        assert!(ClusterSecret::read(Path::new("nowhere")).unwrap_err().contains("cannot read nowhere"));
    }

    #[test]
    fn keys_of_different_purposes_and_secrets_differ() {
        let [one, other] = [b'a', b'b'].map(|byte| ClusterSecret::new(&[byte; MIN_BYTES]).unwrap());
        assert_eq!(one.derive("tls"), one.derive("tls"));
        assert_ne!(one.derive("tls"), one.derive("keys"));
        assert_ne!(one.derive("tls"), other.derive("tls"));
    }
}
