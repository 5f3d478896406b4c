//! Store configuration: address, namespace and deadlines.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::lanes::LaneCount;
use crate::sentinel::Sentinels;

/// Connection timeout. No decision waits for a connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a failed store is probed in the background.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of queued requests. Further requests fail as unavailable.
pub(crate) const MAX_QUEUED_REQUESTS: usize = 4096;
/// Maximum number of charges in one call, unless a single group has more charges. A call blocks the store for a few
/// microseconds per charge.
pub(crate) const MAX_CALL_CHARGES: usize = 128;

/// Configuration of a store.
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
    /// The address as shown in logs and errors.
    pub(crate) address: String,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "unused without TLS"))]
    pub(crate) authority: Option<PathBuf>,
    /// The certificate of this client and its key.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "unused without TLS"))]
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Sentinels that report the server's address. `None` if the URL contains the address.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
    /// Seed nodes of a cluster. If the list is empty, this is the configuration of one primary in a cluster.
    pub(crate) cluster: Option<Arc<[(String, u16)]>>,
    /// Lane count of the cluster. `None`: use the count in the store. A new store gets two lanes per primary.
    pub(crate) lanes: Option<LaneCount>,
    /// Number of replicas that must acknowledge a write.
    pub(crate) wait: u32,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
}

/// Reason why a store configuration is invalid. Never contains the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The URL is not a valid store address.
    Url {
        /// The problem.
        problem: String,
    },
    /// The namespace is not a valid key prefix.
    Namespace {
        /// The invalid namespace, cut to 64 characters.
        given: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { problem } => {
                write!(
                    f,
                    "invalid store address: {problem}; write it like redis://user:password@host:6379/0, \
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
    /// Parses a store URL, in one of these forms:
    ///
    /// - `redis://[user:password@]host[:port][/db]`: a single server. If the server belongs to a cluster, and answers
    ///   when the store is created, the whole cluster is used.
    /// - `redis+sentinel://[user:password@]host[:port],…/master[/db]`: sentinels that watch the server named `master`.
    /// - `redis+cluster://[user:password@]host[:port],…`: some nodes of a cluster.
    ///
    /// `rediss` instead of `redis` enables TLS. After a `?`, these options can follow, separated by `&`:
    ///
    /// - `namespace`: see [`Config::namespace`].
    /// - `wait`: number of replicas that must acknowledge a write before it counts.
    /// - With TLS, `ca`: file with a certificate authority to trust instead of the operating system's authorities.
    /// - With TLS, `cert` and `key`: files with a client certificate and its private key.
    /// - With `redis+cluster`, `lanes`: number of lanes, from 1 to 64, into which the keys are divided. All nodes of a
    ///   store need the same number. Default: the number in the store; a new store gets two lanes per primary.
    /// - With Sentinel, `sentinel_user` and `sentinel_password`: credentials for the sentinels.
    ///
    /// # Errors
    /// Fails if the URL or an option is invalid.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Url { problem: problem.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(SCHEME_ERROR))?;
        let (scheme, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            (scheme @ ("redis" | "rediss"), kind @ ("" | "sentinel" | "cluster")) => (scheme, kind),
            _ => return Err(wrong(SCHEME_ERROR)),
        };
        let (by_sentinel, in_cluster) = (kind == "sentinel", kind == "cluster");
        let (mut seeds, mut master, mut plain) = (Vec::new(), String::new(), format!("{scheme}://{rest}"));
        if by_sentinel || in_cluster {
            let parts = MultiHostUrl::parse(rest, by_sentinel).map_err(wrong)?;
            (seeds, master, plain) = (parts.seeds, parts.master, format!("{scheme}://{}", parts.plain));
        }
        let mut url = redis::parse_redis_url(&plain).ok_or_else(|| wrong("not a URL"))?;
        let (mut namespace, mut authority, mut certificate, mut key) = (None, None, None, None);
        let (mut username, mut password, mut wait, mut lanes) = (None, None, 0, None);
        let with_tls = scheme == "rediss";
        for (name, value) in url.query_pairs() {
            let value = value.into_owned();
            match &*name {
                "namespace" => namespace = Some(value),
                "ca" if with_tls => authority = Some(PathBuf::from(value)),
                "cert" if with_tls => certificate = Some(PathBuf::from(value)),
                "key" if with_tls => key = Some(PathBuf::from(value)),
                "wait" => match value.parse() {
                    Ok(replicas @ 1..=MAX_WAIT_REPLICAS) => wait = replicas,
                    _ => {
                        return Err(wrong(&format!(
                            "`wait={value}` is not a number of replicas from 1 to {MAX_WAIT_REPLICAS}"
                        )));
                    }
                },
                "lanes" if in_cluster => match value.parse().ok().and_then(LaneCount::new) {
                    Some(count) => lanes = Some(count),
                    None => return Err(wrong(&format!("`lanes={value}` is not a number of lanes from 1 to 64"))),
                },
                "sentinel_user" if by_sentinel => username = Some(value),
                "sentinel_password" if by_sentinel => password = Some(value),
                other => {
                    return Err(wrong(&format!(
                        "unknown option `{other}`; valid: `namespace`, `wait`; with rediss `ca`, `cert`, `key`; with cluster \
                         `lanes`; with sentinel `sentinel_user`, `sentinel_password`"
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
        // The client's error message may quote parts of the URL, so only the error category is reported.
        let server = url.into_connection_info().map_err(|error| wrong(error.category()))?;
        if !server.addr().is_supported() {
            return Err(wrong("TLS is not compiled in"));
        }
        let config = Self {
            server,
            address,
            authority,
            certificate,
            sentinels,
            cluster,
            lanes,
            wait,
            namespace: "tollgate".to_owned(),
            deadline: Duration::from_millis(10),
        };
        match namespace {
            Some(namespace) => config.namespace(&namespace),
            None => Ok(config),
        }
    }

    /// Returns the configuration of the cluster that this server belongs to.
    pub(crate) fn into_cluster_config(self) -> Self {
        let seed = match self.server.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
            _ => return self,
        };
        Self { address: format!("cluster {}:{}", seed.0, seed.1), cluster: Some([seed].into()), ..self }
    }

    /// Sets the prefix of all keys, so that several installations can share a server. Default: `tollgate`.
    ///
    /// # Errors
    /// Fails if the namespace is not 1 to 64 letters, digits, `.`, `_`, `-` or `:`. Braces are invalid because they
    /// would change the hash slot of a key.
    pub fn namespace(self, namespace: &str) -> Result<Self, ConfigError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if !(1..=64).contains(&namespace.len()) || !namespace.bytes().all(fits) {
            return Err(ConfigError::Namespace { given: namespace.chars().take(64).collect() });
        }
        Ok(Self { namespace: namespace.to_owned(), ..self })
    }

    /// Sets how long a decision waits for the store, from request to answer. Default: 10 ms. A store that saves to disk
    /// can occasionally miss a deadline of a few milliseconds.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

const SCHEME_ERROR: &str = "the scheme must be redis, redis+sentinel or redis+cluster, or the same with rediss for TLS";

/// Maximum number of replicas that the option `wait` can require.
const MAX_WAIT_REPLICAS: u32 = 16;

/// The parsed parts of a URL with several hosts.
struct MultiHostUrl {
    seeds: Vec<(String, u16)>,
    master: String,
    /// The URL with only the first host, without the scheme.
    plain: String,
}

impl MultiHostUrl {
    /// Splits `[user:password@]host[:port],…[/master[/db]][?query]`. Only a Sentinel URL has a master name and a
    /// database.
    fn parse(rest: &str, by_sentinel: bool) -> Result<Self, &'static str> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if by_sentinel && master.is_empty() {
            return Err("the name of the master is missing after the sentinels");
        }
        if !by_sentinel && !path.is_empty() {
            return Err("a cluster has only one database; remove the path after the hosts");
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
        let (host, port) = &seeds[0];
        Ok(Self { plain: format!("{user}{at}{host}:{port}/{db}?{query}"), master: master.to_owned(), seeds })
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
    fn assert_parsed(url: &str, expected: Result<(&str, &str), &str>) {
        let config = Config::from_url(url);
        let shown = config.as_ref().map(|config| (&*config.address, &*config.namespace)).map_err(ToString::to_string);
        assert_eq!(shown, expected.map_err(str::to_owned), "for {url}");
    }

    #[test]
    fn addresses_are_parsed() {
        assert_parsed("redis://localhost", Ok(("localhost:6379", "tollgate")));
        assert_parsed("redis://user:pass@store:7000/3?namespace=a:b", Ok(("store:7000", "a:b")));
        #[cfg(feature = "tls")]
        assert_parsed("rediss://store?ca=/etc/ca.pem", Ok(("store:6379", "tollgate")));
        let config = Config::from_url("redis://user:pass@store:7000/3").unwrap();
        let settings = config.server.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("pass"), 3));
    }

    #[test]
    fn errors_never_contain_the_password() {
        let hint = "; write it like redis://user:password@host:6379/0, redis+sentinel://host:26379,host:26379/master or redis+cluster://host:6379,host:6379";
        let scheme = format!("invalid store address: {SCHEME_ERROR}{hint}");
        assert_parsed("http://localhost", Err(&scheme));
        assert_parsed("localhost:6379", Err(&scheme));
        assert_parsed("unix:///tmp/socket", Err(&scheme));
        let unknown = |option: &str| {
            format!(
                "invalid store address: unknown option `{option}`; valid: `namespace`, `wait`; with rediss `ca`, `cert`, `key`; with \
                 cluster `lanes`; with sentinel `sentinel_user`, `sentinel_password`{hint}"
            )
        };
        assert_parsed("redis://a:secret@store?name=x", Err(&unknown("name")));
        assert_parsed("redis://store?ca=x", Err(&unknown("ca")));
        assert_parsed("redis://store?sentinel_password=x", Err(&unknown("sentinel_password")));
        let missing = "invalid store address: the name of the master is missing after the sentinels";
        assert_parsed("redis+sentinel://a,b", Err(&format!("{missing}{hint}")));
        assert_parsed("redis+sentinel://a,b/", Err(&format!("{missing}{hint}")));
        let refused = Config::from_url("redis://a:secret@store/x").unwrap_err().to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn clusters_are_parsed() {
        let config = Config::from_url("redis+cluster://user:pass@a:7000,b/?wait=2").unwrap();
        assert_eq!(config.cluster.as_deref(), Some(&[("a".to_owned(), 7_000), ("b".to_owned(), 6_379)][..]));
        assert_eq!((config.wait, config.server.redis_settings().password()), (2, Some("pass")));
        assert_eq!(config.lanes, None);
        assert_eq!(Config::from_url("redis+cluster://a?lanes=12").unwrap().lanes, LaneCount::new(12));
        for lanes in ["0", "65", "x", "256"] {
            let error = Config::from_url(&format!("redis+cluster://a?lanes={lanes}")).unwrap_err().to_string();
            assert!(error.contains(&format!("`lanes={lanes}` is not a number of lanes from 1 to 64")), "{error}");
        }
        for url in
            ["redis://a?lanes=6", "redis+cluster://a/1", "redis://a?wait=0", "redis://a?wait=17", "redis+other://a"]
        {
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
    fn invalid_namespaces_are_refused() {
        for given in ["", "a{b", "a b", "a}b", &"x".repeat(65)] {
            assert!(Config::from_url("redis://store").unwrap().namespace(given).is_err(), "{given}");
        }
    }
}
