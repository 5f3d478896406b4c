//! Cluster configuration: the addresses of the nodes, and this node's own address.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tollgate::clock::ManualClock;

use crate::greeting::MAX_NAME_BYTES;
use crate::members::MAX_SEEDS;
use crate::secret::{self, ClusterSecret};

/// Default port for links between peers.
pub const DEFAULT_PORT: u16 = 7_400;

/// Reason why an address that is not loopback is not dialled without a secret: the link would not be encrypted, and
/// neither node could check that the other belongs to the cluster.
pub(crate) const NO_SECRET: &str =
    "not a loopback address, and there is no secret: add ?secret_file=PATH to the store address";

/// Configuration of a cluster and of this node.
///
/// ```
/// use tollgate_peers::Config;
///
/// let config = Config::from_url("peers://127.0.0.1:7401,127.0.0.1:7402")?;
/// let config = config.listen("127.0.0.1:7401".parse()?)?;
/// assert_eq!(config.name(), "127.0.0.1:7401");
/// assert!(Config::from_url("peers://10.0.0.1").is_err(), "there is no secret");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) seeds: Vec<(String, u16)>,
    cluster: String,
    pub(crate) secret: Option<ClusterSecret>,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: SocketAddr,
    name: Option<String>,
    pub(crate) deadline: Duration,
    pub(crate) max_keys: usize,
    pub(crate) manual_clock: Option<Arc<ManualClock>>,
}

/// Reason why a [`Config`] value is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Parses `peers://host[:port],…[?secret_file=PATH&cluster=NAME]` and reads the secret file. A host is an IP
    /// address or a DNS name. A DNS name represents all addresses that it resolves to, and is resolved repeatedly.
    ///
    /// # Errors
    /// Fails if the URL is malformed or the secret cannot be read. Also fails if there is no secret and a host is an IP
    /// address that is not loopback. Without a secret, a DNS name is accepted, but only loopback addresses are dialled.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let wrong = |problem: String| {
            ConfigError(format!(
                "{problem}; write peers://host:7400,host:7400?secret_file=PATH, or a DNS name of all nodes"
            ))
        };
        let rest =
            url.strip_prefix("peers://").ok_or_else(|| wrong("the address does not begin with peers://".to_owned()))?;
        let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
        let seeds: Result<Vec<_>, _> = hosts.trim_end_matches('/').split(',').map(parse_host).collect();
        let seeds = seeds.map_err(wrong)?;
        if seeds.len() > MAX_SEEDS {
            return Err(wrong(format!("too many hosts: {} (maximum {MAX_SEEDS})", seeds.len())));
        }
        let (mut cluster, mut secret) = ("tollgate".to_owned(), None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match option {
                "secret_file" => secret = Some(ClusterSecret::read(Path::new(&value)).map_err(ConfigError)?),
                "cluster" if is_valid_name(&value) => cluster = value,
                "cluster" => {
                    return Err(ConfigError(format!(
                        "cluster: a name has 1 to {MAX_NAME_BYTES} printable ASCII characters"
                    )));
                }
                other => {
                    return Err(ConfigError(format!("unknown option `{other}`; available: secret_file, cluster")));
                }
            }
        }
        let literal = |(host, port): &(String, u16)| Some(SocketAddr::new(host.parse().ok()?, *port));
        let refused = seeds.iter().filter_map(literal).find(|address| !may_be_dialled(*address, secret.is_some()));
        if let Some(address) = refused {
            return Err(ConfigError(format!("{address}: {NO_SECRET}; openssl rand -hex 32 prints one")));
        }
        let (listen, advertise) = (([127, 0, 0, 1], DEFAULT_PORT).into(), ([127, 0, 0, 1], DEFAULT_PORT).into());
        let (deadline, max_keys) = (Duration::from_millis(10), 1_000_000);
        let manual_clock = None;
        Ok(Self { seeds, cluster, secret, listen, advertise, name: None, deadline, max_keys, manual_clock })
    }

    /// Sets the address to listen on and to advertise. [`advertise`](Self::advertise) changes the advertised address.
    ///
    /// # Errors
    /// Fails if the address is not loopback and there is no secret.
    pub fn listen_at(mut self, address: SocketAddr) -> Result<Self, ConfigError> {
        self.require_secret_unless_loopback(address)?;
        self.listen = address;
        self.advertise = address;
        Ok(self)
    }

    /// Sets the address to listen on and to advertise. If the address is unspecified (such as `0.0.0.0`), this node
    /// advertises the local address from which it reaches the first seed.
    ///
    /// # Errors
    /// Fails if the address is not loopback and there is no secret. Also fails if the address to advertise cannot be
    /// determined.
    pub fn listen(self, address: SocketAddr) -> Result<Self, ConfigError> {
        let mut config = self.listen_at(address)?;
        if address.ip().is_unspecified() {
            let own = config.own_address(address).ok_or_else(|| {
                ConfigError(format!(
                    "{address} is not an address that other nodes can dial, and no seed resolves: \
                     set an address with --peers-advertise"
                ))
            })?;
            config.advertise = SocketAddr::new(own, address.port());
        }
        Ok(config)
    }

    /// Sets the address that other nodes dial, if it differs from the listening address.
    ///
    /// # Errors
    /// Fails if the address is unspecified or has port 0. Also fails if the address is not loopback and there is no
    /// secret.
    pub fn advertise(mut self, address: SocketAddr) -> Result<Self, ConfigError> {
        if address.ip().is_unspecified() || address.port() == 0 {
            return Err(ConfigError(format!(
                "{address}: not an address that other nodes can dial; use an address and port of this machine"
            )));
        }
        self.require_secret_unless_loopback(address)?;
        self.advertise = address;
        Ok(self)
    }

    /// Sets this node's name, which must be unique in the cluster. Default: the advertised address.
    ///
    /// # Errors
    /// Fails if the name is empty, longer than 64 bytes or not printable ASCII.
    pub fn named(mut self, name: &str) -> Result<Self, ConfigError> {
        if !is_valid_name(name) {
            return Err(ConfigError(format!("a node name has 1 to {MAX_NAME_BYTES} printable ASCII characters")));
        }
        self.name = Some(name.to_owned());
        Ok(self)
    }

    /// Sets how long a request waits for another node's answer. Default: 10 ms.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the maximum number of keys in memory. Default: 1,000,000.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Uses a manual clock for decisions, for tests. The links between nodes still use real time.
    #[must_use]
    pub fn with_manual_clock(self, clock: Arc<ManualClock>) -> Self {
        Self { manual_clock: Some(clock), ..self }
    }

    /// Returns this node's name.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.advertise.to_string())
    }

    /// Returns the address to listen on.
    pub fn listen_address(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the address that other nodes dial.
    pub fn advertised(&self) -> SocketAddr {
        self.advertise
    }

    /// Sets the advertised port to the port that the system chose, if the configured port is 0.
    pub(crate) fn set_listen_port(&mut self, port: u16) {
        if self.advertise.port() == 0 {
            self.advertise.set_port(port);
        }
    }

    /// Returns a number that identifies the cluster. The number depends on the cluster's name and secret.
    pub(crate) fn cluster_id(&self) -> u64 {
        let [first, ..] = self.derive_words(&format!("tollgate peers cluster {}", self.cluster));
        first
    }

    /// Returns the two points at which the fingerprint hash evaluates a key's polynomial. The points are equal on all
    /// nodes and cannot be guessed without the secret.
    pub(crate) fn fingerprint_points(&self) -> [u64; 2] {
        let [first, second, ..] = self.derive_words("tollgate peers fingerprints");
        [first, second]
    }

    fn derive_words(&self, label: &str) -> [u64; 4] {
        let key =
            self.secret.as_ref().map_or_else(|| secret::derive_key(b"", label), |secret| secret.derive_key(label));
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }

    fn require_secret_unless_loopback(&self, address: SocketAddr) -> Result<(), ConfigError> {
        if may_be_dialled(address, self.secret.is_some()) {
            return Ok(());
        }
        Err(ConfigError(format!(
            "{address} can be reached from other machines, and there is no secret: add ?secret_file=PATH to the store \
             address; openssl rand -hex 32 prints one"
        )))
    }

    /// Returns the local address that the system would use to reach the first resolvable seed. Sends nothing.
    fn own_address(&self, listen: SocketAddr) -> Option<IpAddr> {
        use std::net::ToSocketAddrs;
        let addresses = self.seeds.iter().filter_map(|(host, port)| (&**host, *port).to_socket_addrs().ok()).flatten();
        let alike = addresses.filter(|address| address.is_ipv4() || listen.is_ipv6());
        alike.into_iter().find_map(|address| {
            let unspecified: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
            let socket = UdpSocket::bind(unspecified).ok()?;
            socket.connect(address).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
    }
}

/// Returns whether this node may dial the address. Links without a secret are allowed on loopback only.
pub(crate) fn may_be_dialled(address: SocketAddr, has_secret: bool) -> bool {
    has_secret || address.ip().to_canonical().is_loopback()
}

fn is_valid_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parses `host`, `host:port`, `address` or `[address]:port`.
fn parse_host(text: &str) -> Result<(String, u16), String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip().to_string(), address.port()));
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok((address.to_string(), DEFAULT_PORT));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().map_err(|_| format!("`{text}`: not a port"))?),
        None => (text, DEFAULT_PORT),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(fits) {
        return Err(format!("`{text}` is not a host"));
    }
    Ok((name.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str) -> String {
        Config::from_url(url).expect_err(url).to_string()
    }

    #[test]
    fn hosts_can_be_names_or_addresses_with_or_without_ports() {
        let config = Config::from_url("peers://a.example,127.0.0.1:1,[::1]:2,::1,b:3").unwrap();
        let seeds: Vec<_> = config.seeds.iter().map(|(host, port)| (&**host, *port)).collect();
        assert_eq!(seeds, [("a.example", 7_400), ("127.0.0.1", 1), ("::1", 2), ("::1", 7_400), ("b", 3)]);
    }

    #[test]
    fn errors_state_the_correct_form() {
        assert!(error_of("peers://").contains("`` is not a host; write peers://host:7400"));
        assert!(error_of("peers://a:b").contains("`a:b`: not a port"));
        assert!(error_of("peers://a b").contains("is not a host"));
        assert_eq!(error_of("peers://a?secrets=x"), "unknown option `secrets`; available: secret_file, cluster");
        assert!(error_of("peers://a?secret_file=nowhere").contains("cannot read nowhere"));
        assert!(error_of("peers://a?cluster=").contains("cluster: a name has 1 to 64"));
        let many = vec!["a"; MAX_SEEDS + 1].join(",");
        assert!(error_of(&format!("peers://{many}")).contains("too many hosts: 257 (maximum 256)"));
    }

    #[test]
    fn without_a_secret_only_loopback_is_accepted() {
        let config = Config::from_url("peers://127.0.0.1").unwrap();
        assert!(config.clone().listen(([127, 9, 9, 9], 1).into()).is_ok());
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let error = config.clone().listen(address.parse().unwrap()).expect_err(address).to_string();
            assert!(error.contains("there is no secret: add ?secret_file=PATH"), "{error}");
        }
        assert!(config.advertise(([10, 0, 0, 1], 1).into()).is_err());
        for host in ["10.0.0.1:7400", "127.0.0.1,10.0.0.1:7400", "[2001:db8::1]:7400", "0.0.0.0"] {
            let error = error_of(&format!("peers://{host}"));
            assert!(error.contains(":7400: not a loopback address, and there is no secret: add ?secret"), "{error}");
        }
        assert!(Config::from_url("peers://[::ffff:127.0.0.1]:7400").is_ok());
    }

    #[test]
    fn advertised_address_is_detected_or_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "0123456789abcdef0123456789abcdef").unwrap();
        let config = Config::from_url(&format!("peers://127.0.0.1:7400?secret_file={}", file.display())).unwrap();
        let found = config.clone().listen(([0; 4], 7_401).into()).unwrap();
        assert_eq!(found.advertised(), ([127, 0, 0, 1], 7_401).into());
        assert_eq!(found.name(), "127.0.0.1:7401");
        let secured = format!("peers://10.0.0.1:7400?secret_file={}", file.display());
        assert!(Config::from_url(&secured).is_ok(), "there is a secret");
        let given = found.advertise(([10, 0, 0, 1], 1).into()).unwrap().named("one").unwrap();
        assert_eq!((given.advertised(), &*given.name()), (([10, 0, 0, 1], 1).into(), "one"));
        assert!(given.clone().advertise(([0; 4], 1).into()).is_err());
        assert!(given.clone().named("a b").is_err());
        assert!(!format!("{given:?}").contains("0123456789"));
    }

    #[test]
    fn cluster_id_depends_on_name_and_secret() {
        let plain = Config::from_url("peers://a").unwrap();
        let named = Config::from_url("peers://a?cluster=other").unwrap();
        assert_eq!(plain.cluster_id(), Config::from_url("peers://b").unwrap().cluster_id());
        assert_ne!(plain.cluster_id(), named.cluster_id());
        assert_eq!(plain.fingerprint_points(), named.fingerprint_points());
        let secret = ClusterSecret::new(&[b'x'; 32]).unwrap();
        let secured = Config { secret: Some(secret), ..plain.clone() };
        assert_ne!(plain.cluster_id(), secured.cluster_id());
        assert_ne!(plain.fingerprint_points(), secured.fingerprint_points());
    }
}
