//! The cluster secret, and the keys derived from it.
//!
//! A node proves that it knows the secret with a TLS key pair that is derived from the secret (`tls.rs`). Anyone who
//! connects can obtain the public key and check guesses of the secret against it offline. The secret must therefore be
//! random: [`MIN_BYTES`] is the output length of `openssl rand -hex 16`.
//!
//! Key fingerprints also depend on a secret, which cannot change while key states are kept. This fingerprint secret is
//! the first line of the file. Further lines are link secrets. Without link secrets, the first line also secures the
//! links. Rolling restarts can replace a link secret step by step, because a node presents only its first link secret
//! but accepts every link secret in its file.

use std::fmt;
use std::path::Path;

use ring::hmac;

/// Minimum length of a secret in bytes.
pub(crate) const MIN_BYTES: usize = 32;
/// Maximum length of a secret in bytes.
pub(crate) const MAX_BYTES: usize = 1_024;

/// Maximum number of link secrets: the current secret and its replacement.
const MAX_LINK_SECRETS: usize = 2;
/// Maximum size of the secret file: three secrets of maximum length, and the same length once more for whitespace.
const MAX_FILE_BYTES: u64 = 4 * MAX_BYTES as u64;

/// The cluster's secrets. The `Debug` output hides the secrets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClusterSecret {
    keys: Vec<u8>,
    /// Link secrets. This node presents the first link secret and accepts every link secret.
    links: Vec<Vec<u8>>,
}

impl ClusterSecret {
    /// Parses the lines of a secret file: the fingerprint secret, then link secrets. Without link secrets, the first
    /// line also secures the links. Surrounding whitespace and empty lines are ignored.
    ///
    /// # Errors
    /// Fails if a secret is shorter than [`MIN_BYTES`] or longer than [`MAX_BYTES`], or if there are too many secrets.
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
            return Err(format!("{} link secrets after the first line (maximum {MAX_LINK_SECRETS})", links.len()));
        }
        if links.is_empty() {
            links.push(keys.clone());
        }
        Ok(Self { keys, links })
    }

    /// Reads a secret file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or [`new`](Self::new) rejects its content.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let length = std::fs::metadata(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?.len();
        if length > MAX_FILE_BYTES {
            return Err(format!("{} has {length} bytes (maximum {MAX_FILE_BYTES})", path.display()));
        }
        let text = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::new(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Derives a key as HMAC-SHA-256 of `label` under the fingerprint secret.
    pub(crate) fn derive_key(&self, label: &str) -> [u8; 32] {
        derive_key(&self.keys, label)
    }

    /// Derives a key from each link secret, as HMAC-SHA-256 of `label`. This node presents the first key and accepts
    /// every key.
    pub(crate) fn derive_for_links(&self, label: &str) -> Vec<[u8; 32]> {
        self.links.iter().map(|secret| derive_key(secret, label)).collect()
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

/// Derives a key as HMAC-SHA-256 of `label` under `secret`.
pub(crate) fn derive_key(secret: &[u8], label: &str) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), label.as_bytes());
    let mut key = [0; 32];
    // SHA-256 tags have 32 bytes.
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
        assert_eq!(secret, ClusterSecret::new(text.trim().as_bytes()).unwrap(), "the line end is ignored");
        assert!(!format!("{secret:?}").contains("0123"));
        let error = ClusterSecret::new(b"hunter2").unwrap_err();
        assert!(error.contains("has 7 bytes (32 to 1024)") && !error.contains("hunter2"), "{error}");
        assert!(ClusterSecret::new(&[b'x'; MAX_BYTES + 1]).is_err());
        assert!(ClusterSecret::new(b" \n\n").unwrap_err().contains("has 0 bytes"));
        assert!(ClusterSecret::new(format!("{text}short\n").as_bytes()).unwrap_err().contains("has 5 bytes"));
        assert!(ClusterSecret::new(text.repeat(4).as_bytes()).unwrap_err().contains("3 link secrets"));
        assert!(ClusterSecret::read(Path::new("nowhere")).unwrap_err().contains("cannot read nowhere"));
    }

    #[test]
    fn derived_keys_differ_by_label_and_secret() {
        let [one, other] = [b'a', b'b'].map(|byte| ClusterSecret::new(&[byte; MIN_BYTES]).unwrap());
        assert_eq!(one.derive_key("tls"), one.derive_key("tls"));
        assert_ne!(one.derive_key("tls"), one.derive_key("keys"));
        assert_ne!(one.derive_key("tls"), other.derive_key("tls"));
        let [a, b] = ["a", "b"].map(|byte| byte.repeat(MIN_BYTES));
        let replaced = ClusterSecret::new(format!("{a}\n{b}\n{a}\n").as_bytes()).unwrap();
        assert_eq!(replaced.derive_key("keys"), one.derive_key("keys"), "the first line is the fingerprint secret");
        assert_eq!(replaced.derive_for_links("tls"), [other.derive_key("tls"), one.derive_key("tls")]);
    }
}
