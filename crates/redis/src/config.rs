//! Where the store is, and how long it may take.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};

/// The longest that connecting may take, which no decision waits for.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a store that failed is tried again, by itself, with no decision depending on it.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How many requests may wait to be sent. Those beyond are not sent at all.
pub(crate) const QUEUE: usize = 4096;
/// How many charges go into one call, unless one group has more. The store answers nobody else meanwhile, about 5 µs for each.
pub(crate) const BATCH: usize = 128;

/// Where the store is and how it is dealt with.
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
    /// For the log: host and port.
    pub(crate) address: String,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "without TLS nobody has to be trusted"))]
    pub(crate) authority: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
}

/// Why an address cannot be used. For whoever wrote it; it never holds the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// It is no address of a store.
    Url {
        /// What is wrong with it.
        problem: String,
    },
    /// The namespace is no name that keys can begin with.
    Namespace {
        /// What was given.
        given: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { problem } => {
                write!(f, "not an address of a store: {problem}; write it like redis://user:password@host:6379/0")
            }
            Self::Namespace { given } => {
                write!(f, "`{given}` cannot be a namespace: 1 to 64 letters, digits, `.`, `_`, `-` or `:` can")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads `redis://` and `rediss://` with user, password, host, port and number of the database. After a `?` there may be
    /// `namespace=`, and for `rediss://` `ca=` with the file of a certificate authority to trust instead of those of the
    /// operating system.
    ///
    /// # Errors
    /// When it is something else.
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
                    return Err(wrong(&format!(
                        "`{other}` is no option of it; `namespace` and, with rediss, `ca` are"
                    )));
                }
            }
        }
        url.set_query(None);
        let address = format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379));
        // The client's message may quote parts of the address, so only its kind is told.
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

    /// What all keys begin with, so that several installations can share a server. `tollgate` unless said otherwise.
    ///
    /// # Errors
    /// When it is not 1 to 64 letters, digits, `.`, `_`, `-` or `:`; braces would change which node of a cluster a key is on.
    pub fn namespace(self, namespace: &str) -> Result<Self, ConfigError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if !(1..=64).contains(&namespace.len()) || !namespace.bytes().all(fits) {
            return Err(ConfigError::Namespace { given: namespace.chars().take(64).collect() });
        }
        Ok(Self { namespace: namespace.to_owned(), ..self })
    }

    /// The longest a decision waits for the store, from the question to the answer: 10 ms unless said otherwise. Below a few
    /// milliseconds, a store that saves to disk will miss it now and then.
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
    fn addresses_are_read() {
        check("redis://localhost", Ok(("localhost:6379", "tollgate")));
        check("redis://user:pass@store:7000/3?namespace=a:b", Ok(("store:7000", "a:b")));
        #[cfg(feature = "tls")]
        check("rediss://store?ca=/etc/ca.pem", Ok(("store:6379", "tollgate")));
        let config = Config::from_url("redis://user:pass@store:7000/3").unwrap();
        let settings = config.server.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("pass"), 3));
    }

    #[test]
    fn mistakes_are_told_without_the_password() {
        let hint = "; write it like redis://user:password@host:6379/0";
        let scheme = format!("not an address of a store: it does not begin with redis:// or rediss://{hint}");
        check("http://localhost", Err(&scheme));
        check("localhost:6379", Err(&scheme));
        check("unix:///tmp/socket", Err(&scheme));
        check(
            "redis://a:secret@store?name=x",
            Err(&format!(
                "not an address of a store: `name` is no option of it; `namespace` and, with rediss, `ca` are{hint}"
            )),
        );
        check(
            "redis://store?ca=x",
            Err(&format!(
                "not an address of a store: `ca` is no option of it; `namespace` and, with rediss, `ca` are{hint}"
            )),
        );
        let refused = Config::from_url("redis://a:secret@store/x").unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_namespace_cannot_change_where_a_key_is_kept() {
        for given in ["", "a{b", "a b", "a}b", &"x".repeat(65)] {
            assert!(Config::from_url("redis://store").unwrap().namespace(given).is_err(), "{given}");
        }
    }
}
