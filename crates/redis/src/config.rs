//! The address of the store and its deadlines.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::sentinel::Sentinels;

/// Maximum time to connect; no decision waits for it.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a failed store is probed, in the background.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of queued requests. Further ones are refused.
pub(crate) const QUEUE: usize = 4096;
/// Maximum number of charges in one call, unless one group has more. During a call the store serves nothing else, for
/// about 5 µs per charge.
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
    /// The certificate of this client and its key.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "unused without TLS"))]
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Where the address of the server comes from, if not from the URL.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
    /// Nodes of a cluster to ask first; without any, the server is one of the primaries of a cluster.
    pub(crate) cluster: Option<Arc<[(String, u16)]>>,
    /// How many replicas must acknowledge a write.
    pub(crate) wait: u32,
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
                write!(
                    f,
                    "invalid address of a store: {problem}; write it like redis://user:password@host:6379/0, \
                     redis+sentinel://host:26379,host:26379/master or redis+cluster://host:6379,host:6379"
                )
            }
            Self::Namespace { given } => {
                write!(f, "invalid namespace `{given}`: use 1 to 64 letters, digits, `.`, `_`, `-` or `:`")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Parses `redis://[user:password@]host[:port][/db]`, or `redis+sentinel://[user:password@]host[:port],…/master[/db]` with
    /// the sentinels that know the server called `master`, or `redis+cluster://[user:password@]host[:port],…` with some nodes
    /// of a cluster. `rediss` instead of `redis` uses TLS. A server that says that it belongs to a cluster when the store is
    /// created is used as a node of it.
    ///
    /// After a `?` there may be, separated by `&`: `namespace`; with TLS `ca`, the file of a certificate authority to
    /// trust instead of those of the operating system, and `cert` and `key`, the files of a certificate of this client;
    /// with Sentinel `sentinel_user` and `sentinel_password`, which the sentinels require; `wait`, the number of
    /// replicas that must acknowledge a write before it counts.
    ///
    /// # Errors
    /// If it is something else.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Url { problem: problem.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(SCHEMES))?;
        let (scheme, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            (scheme @ ("redis" | "rediss"), kind @ ("" | "sentinel" | "cluster")) => (scheme, kind),
            _ => return Err(wrong(SCHEMES)),
        };
        let (by_sentinel, in_cluster) = (kind == "sentinel", kind == "cluster");
        let (mut seeds, mut master, mut plain) = (Vec::new(), String::new(), format!("{scheme}://{rest}"));
        if by_sentinel || in_cluster {
            let parts = SeveralHosts::split(rest, by_sentinel).map_err(wrong)?;
            (seeds, master, plain) = (parts.seeds, parts.master, format!("{scheme}://{}", parts.plain));
        }
        let mut url = redis::parse_redis_url(&plain).ok_or_else(|| wrong("it is not a URL"))?;
        let (mut namespace, mut authority, mut certificate, mut key) = (None, None, None, None);
        let (mut username, mut password, mut wait) = (None, None, 0);
        let with_tls = scheme == "rediss";
        for (name, value) in url.query_pairs() {
            let value = value.into_owned();
            match &*name {
                "namespace" => namespace = Some(value),
                "ca" if with_tls => authority = Some(PathBuf::from(value)),
                "cert" if with_tls => certificate = Some(PathBuf::from(value)),
                "key" if with_tls => key = Some(PathBuf::from(value)),
                "wait" => match value.parse() {
                    Ok(replicas @ 1..=MAX_WAIT) => wait = replicas,
                    _ => {
                        return Err(wrong(&format!("`wait={value}` is not a number of replicas from 1 to {MAX_WAIT}")));
                    }
                },
                "sentinel_user" if by_sentinel => username = Some(value),
                "sentinel_password" if by_sentinel => password = Some(value),
                other => {
                    return Err(wrong(&format!(
                        "unknown option `{other}`; valid: `namespace`, `wait`; with rediss `ca`, `cert`, `key`; with sentinel \
                         `sentinel_user`, `sentinel_password`"
                    )));
                }
            }
        }
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(wrong("`cert` and `key` belong together")),
        };
        url.set_query(None);
        let mut address = format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(6379));
        let mut sentinels = None;
        let mut cluster = None;
        if by_sentinel {
            address = format!("sentinel {master}");
            sentinels = Some(Arc::new(Sentinels { seeds, master, username, password }));
        } else if in_cluster {
            address = format!("cluster {address}");
            cluster = Some(seeds.into());
        }
        // The message of the client may quote parts of the address, so only its kind is reported.
        let server = url.into_connection_info().map_err(|error| wrong(error.category()))?;
        if !server.addr().is_supported() {
            return Err(wrong("TLS is not compiled in"));
        }
        let (deadline, standard) = (Duration::from_millis(10), "tollgate".to_owned());
        let config =
            Self { server, address, authority, certificate, sentinels, cluster, wait, namespace: standard, deadline };
        match namespace {
            Some(namespace) => config.namespace(&namespace),
            None => Ok(config),
        }
    }

    /// Returns how to connect to the cluster that the server belongs to.
    pub(crate) fn in_cluster(self) -> Self {
        let seed = match self.server.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
            _ => return self,
        };
        Self { address: format!("cluster {}:{}", seed.0, seed.1), cluster: Some([seed].into()), ..self }
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

const SCHEMES: &str =
    "it does not begin with redis://, redis+sentinel:// or redis+cluster://, or the same with rediss for TLS";

/// The most replicas that may be waited for.
const MAX_WAIT: u32 = 16;

/// The parts of a URL with several hosts.
struct SeveralHosts {
    seeds: Vec<(String, u16)>,
    master: String,
    /// The rest, as in a URL with only the first host.
    plain: String,
}

impl SeveralHosts {
    /// Splits `[user:password@]host[:port],…[/master[/db]][?query]`; the name of the master and the database only for sentinels.
    fn split(rest: &str, by_sentinel: bool) -> Result<Self, &'static str> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if by_sentinel && master.is_empty() {
            return Err("the name of the master is missing after the sentinels");
        }
        if !by_sentinel && !path.is_empty() {
            return Err("a cluster has only one database, without a number");
        }
        let standard = if by_sentinel { 26_379 } else { 6_379 };
        let mut seeds = Vec::new();
        for host in hosts.split(',') {
            let parsed =
                redis::parse_redis_url(&format!("redis://{host}")).ok_or("one of the hosts is not host[:port]")?;
            let name =
                parsed.host_str().filter(|name| !name.is_empty()).ok_or("one of the hosts is not host[:port]")?;
            seeds.push((name.to_owned(), parsed.port().unwrap_or(standard)));
        }
        let at = if user.is_empty() { "" } else { "@" };
        let host = &seeds[0].0;
        Ok(Self { plain: format!("{user}{at}{host}/{db}?{query}"), master: master.to_owned(), seeds })
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
        let hint = "; write it like redis://user:password@host:6379/0, redis+sentinel://host:26379,host:26379/master or redis+cluster://host:6379,host:6379";
        let scheme = format!("invalid address of a store: {SCHEMES}{hint}");
        check("http://localhost", Err(&scheme));
        check("localhost:6379", Err(&scheme));
        check("unix:///tmp/socket", Err(&scheme));
        let unknown = |option: &str| {
            format!(
                "invalid address of a store: unknown option `{option}`; valid: `namespace`, `wait`; with rediss `ca`, `cert`, `key`; with \
                 sentinel `sentinel_user`, `sentinel_password`{hint}"
            )
        };
        check("redis://a:secret@store?name=x", Err(&unknown("name")));
        check("redis://store?ca=x", Err(&unknown("ca")));
        check("redis://store?sentinel_password=x", Err(&unknown("sentinel_password")));
        let missing = "invalid address of a store: the name of the master is missing after the sentinels";
        check("redis+sentinel://a,b", Err(&format!("{missing}{hint}")));
        check("redis+sentinel://a,b/", Err(&format!("{missing}{hint}")));
        let refused = Config::from_url("redis://a:secret@store/x").unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn clusters_are_parsed() {
        let config = Config::from_url("redis+cluster://user:pass@a:7000,b/?wait=2").unwrap();
        assert_eq!(config.cluster.as_deref(), Some(&[("a".to_owned(), 7_000), ("b".to_owned(), 6_379)][..]));
        assert_eq!((config.wait, config.server.redis_settings().password()), (2, Some("pass")));
        for url in ["redis+cluster://a/1", "redis://a?wait=0", "redis://a?wait=17", "redis+other://a"] {
            assert!(Config::from_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn sentinels_are_parsed() {
        let url =
            "redis+sentinel://user:pass@a,b:5000,[::1]/main/2?namespace=n&sentinel_user=u&sentinel_password=p%20w";
        let config = Config::from_url(url).unwrap();
        let sentinels = config.sentinels.as_ref().unwrap();
        let seeds = [("a", 26_379), ("b", 5_000), ("[::1]", 26_379)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!((&*sentinels.seeds, &*sentinels.master), (&seeds[..], "main"));
        assert_eq!((sentinels.username.as_deref(), sentinels.password.as_deref()), (Some("u"), Some("p w")));
        let settings = config.server.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("pass"), 2));
        assert_eq!((&*config.address, &*config.namespace), ("sentinel main", "n"));
        assert!(!format!("{config:?}{sentinels:?}").contains("p w"));
    }

    #[test]
    fn namespace_cannot_change_the_node_of_a_key() {
        for given in ["", "a{b", "a b", "a}b", &"x".repeat(65)] {
            assert!(Config::from_url("redis://store").unwrap().namespace(given).is_err(), "{given}");
        }
    }
}
