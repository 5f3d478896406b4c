//! The secret that all nodes of a cluster have, and the keys that are derived from it.
//!
//! A node proves that it has the secret by a TLS key pair that is derived from it (`tls.rs`). The public key can be obtained by
//! opening a connection, and a guess of the secret can be checked against it without asking a node. So the secret has to be
//! random: [`MIN_BYTES`] is what `openssl rand -hex 16` prints.
//!
//! The fingerprints of keys depend on a secret too, which cannot change while the states of keys are kept. So it is separate: the
//! first line of the file. Further lines secure the links instead of it, and can be replaced by a rolling restart for each step:
//! a node presents the first of them and accepts all.

use std::fmt;
use std::path::Path;

use ring::hmac;

/// The minimum length of a secret, in bytes.
pub(crate) const MIN_BYTES: usize = 32;
/// The maximum length of a secret, in bytes.
pub(crate) const MAX_BYTES: usize = 1_024;

/// The maximum number of secrets that secure links: one, and another that replaces it.
const MAX_LINK_SECRETS: usize = 2;

/// The secrets of a cluster. Its `Debug` output hides them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClusterSecret {
    keys: Vec<u8>,
    /// The one to present, and others to accept.
    links: Vec<Vec<u8>>,
}

impl ClusterSecret {
    /// Checks the lines of a file: the secret of the keys, then those of the links; without these it is the same. Spaces around
    /// a secret and empty lines do not count.
    ///
    /// # Errors
    /// If one is shorter than [`MIN_BYTES`] or longer than [`MAX_BYTES`], or there are too many.
    pub(crate) fn new(text: &[u8]) -> Result<Self, String> {
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        let mut secrets = lines.map(<[u8]>::to_vec).collect::<Vec<_>>();
        let wrong = secrets.iter().map(Vec::len).find(|length| !(MIN_BYTES..=MAX_BYTES).contains(length));
        if let Some(length) = wrong.or(secrets.is_empty().then_some(0)) {
            return Err(format!(
                "the cluster secret has {length} bytes ({MIN_BYTES} to {MAX_BYTES}); create one with: openssl rand -hex 32"
            ));
        }
        let (keys, mut links) = (secrets.remove(0), secrets);
        if links.len() > MAX_LINK_SECRETS {
            return Err(format!("{} secrets of links after the first line (maximum {MAX_LINK_SECRETS})", links.len()));
        }
        if links.is_empty() {
            links.push(keys.clone());
        }
        Ok(Self { keys, links })
    }

    /// Reads a secret from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or its content is too short or too long.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let length = std::fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?.len();
        if length > 4 * MAX_BYTES as u64 {
            return Err(format!("{} has {length} bytes (maximum {MAX_BYTES})", path.display()));
        }
        let text = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::new(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Derives a key for one purpose: HMAC-SHA-256 of its label under the secret of the keys.
    pub(crate) fn derive(&self, label: &str) -> [u8; 32] {
        derive(&self.keys, label)
    }

    /// Derives keys of links in the same way: the one to present, and others to accept.
    pub(crate) fn derive_for_links(&self, label: &str) -> Vec<[u8; 32]> {
        self.links.iter().map(|secret| derive(secret, label)).collect()
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
        assert!(ClusterSecret::new(b" \n\n").unwrap_err().contains("has 0 bytes"));
        assert!(ClusterSecret::new(format!("{text}short\n").as_bytes()).unwrap_err().contains("has 5 bytes"));
        assert!(ClusterSecret::new(text.repeat(4).as_bytes()).unwrap_err().contains("3 secrets of links"));
        assert!(ClusterSecret::read(Path::new("nowhere")).unwrap_err().contains("cannot read nowhere"));
    }

    #[test]
    fn keys_of_different_purposes_and_secrets_differ() {
        let [one, other] = [b'a', b'b'].map(|byte| ClusterSecret::new(&[byte; MIN_BYTES]).unwrap());
        assert_eq!(one.derive("tls"), one.derive("tls"));
        assert_ne!(one.derive("tls"), one.derive("keys"));
        assert_ne!(one.derive("tls"), other.derive("tls"));
        let [a, b] = ["a", "b"].map(|byte| byte.repeat(MIN_BYTES));
        let replaced = ClusterSecret::new(format!("{a}\n{b}\n{a}\n").as_bytes()).unwrap();
        assert_eq!(replaced.derive("keys"), one.derive("keys"), "the first line is for the keys");
        assert_eq!(replaced.derive_for_links("tls"), [other.derive("tls"), one.derive("tls")]);
    }
}
