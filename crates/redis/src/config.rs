//! The address of the store and its deadlines.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};

/// Maximum time to connect; no decision waits for it.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a failed store is probed, in the background.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of queued requests. Further ones are refused.
pub(crate) const QUEUE: usize = 4096;
/// Maximum number of charges in one call, unless one group has more. The store serves nothing else
/// meanwhile, about 5 µs for each.
pub(crate) const BATCH: usize = 128;

/// The address of a store and how to use it.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::Config;
///
/// let config = Config::from_url("rediss://limits:secret@store.example:6380/2?namespace=prod")?;
/// let config = config.deadline(Duration::from_millis(5));
/// assert_eq!(format!("{config:?}").find("secret"), None);
/// # Ok::<(), tollgate_redis::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) server: ConnectionInfo,
    /// Host and port, for the log.
    pub(crate) address: String,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "unused without TLS"))]
    pub(crate) authority: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
}

/// Why an address cannot be used. Never contains the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// It is not the address of a store.
    Url {
        /// What is wrong with it.
        problem: String,
    },
    /// The namespace is not a valid prefix of keys.
    Namespace {
        /// The given namespace.
        given: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { problem } => {
                write!(f, "invalid address of a store: {problem}; write it like redis://user:password@host:6379/0")
            }
            Self::Namespace { given } => {
                write!(f, "invalid namespace `{given}`: use 1 to 64 letters, digits, `.`, `_`, `-` or `:`")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Parses `redis://` and `rediss://` with user, password, host, port and database number. After
    /// a `?` there may be `namespace=`, and for `rediss://` `ca=` with the file of a certificate
    /// authority to trust instead of those of the operating system.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Url { problem: problem.to_owned() };
        let mut url =
            redis::parse_redis_url(url).ok_or_else(|| wrong("it does not begin with redis:// or rediss://"))?;
        if !matches!(url.scheme(), "redis" | "rediss") {
            return Err(wrong("it does not begin with redis:// or rediss://"));
        }
        let (mut namespace, mut authority) = (None, None);
        for (name, value) in url.query_pairs() {
            match &*name {
                "namespace" => namespace = Some(value.into_owned()),
                "ca" if url.scheme() == "rediss" => authority = Some(PathBuf::from(&*value)),
                other => {
                    return Err(wrong(&format!("unknown option `{other}`; valid: `namespace` and, with rediss, `ca`")));
                }
            }
        }
        url.set_query(None);
        let address = format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379));
        // The message of the client may quote parts of the address, so only its kind is reported.
        let server = url.into_connection_info().map_err(|error| wrong(error.category()))?;
        if !server.addr().is_supported() {
            return Err(wrong("TLS is not compiled in"));
        }
        let config =
            Self { server, address, authority, namespace: "tollgate".to_owned(), deadline: Duration::from_millis(10) };
        match namespace {
            Some(namespace) => config.namespace(&namespace),
            None => Ok(config),
        }
    }

    /// Sets the prefix of all keys, so that several installations can share a server. Default:
    /// `tollgate`.
    ///
    /// # Errors
    /// If it is not 1 to 64 letters, digits, `.`, `_`, `-` or `:`; braces would change which node
    /// of a cluster holds a key.
    pub fn namespace(self, namespace: &str) -> Result<Self, ConfigError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if !(1..=64).contains(&namespace.len()) || !namespace.bytes().all(fits) {
            return Err(ConfigError::Namespace { given: namespace.chars().take(64).collect() });
        }
        Ok(Self { namespace: namespace.to_owned(), ..self })
    }

    /// Sets how long a decision waits for the store, from request to answer. Default: 10 ms. Below
    /// a few milliseconds, a store that saves to disk occasionally misses it.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("namespace", &self.namespace)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(&str, &str), &str>) {
        let config = Config::from_url(url);
        let shown = config.as_ref().map(|config| (&*config.address, &*config.namespace)).map_err(ToString::to_string);
        assert_eq!(shown, expected.map_err(str::to_owned), "for {url}");
    }

    #[test]
    fn addresses_are_parsed() {
        check("redis://localhost", Ok(("localhost:6379", "tollgate")));
        check("redis://user:pass@store:7000/3?namespace=a:b", Ok(("store:7000", "a:b")));
        #[cfg(feature = "tls")]
        check("rediss://store?ca=/etc/ca.pem", Ok(("store:6379", "tollgate")));
        let config = Config::from_url("redis://user:pass@store:7000/3").unwrap();
        let settings = config.server.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("pass"), 3));
    }

    #[test]
    fn errors_never_contain_the_password() {
        let hint = "; write it like redis://user:password@host:6379/0";
        let scheme = format!("invalid address of a store: it does not begin with redis:// or rediss://{hint}");
        check("http://localhost", Err(&scheme));
        check("localhost:6379", Err(&scheme));
        check("unix:///tmp/socket", Err(&scheme));
        check(
            "redis://a:secret@store?name=x",
            Err(&format!(
                "invalid address of a store: unknown option `name`; valid: `namespace` and, with rediss, `ca`{hint}"
            )),
        );
        check(
            "redis://store?ca=x",
            Err(&format!(
                "invalid address of a store: unknown option `ca`; valid: `namespace` and, with rediss, `ca`{hint}"
            )),
        );
        let refused = Config::from_url("redis://a:secret@store/x").unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn namespace_cannot_change_the_node_of_a_key() {
        for given in ["", "a{b", "a b", "a}b", &"x".repeat(65)] {
            assert!(Config::from_url("redis://store").unwrap().namespace(given).is_err(), "{given}");
        }
    }
}
