//! The validated configuration of `tollgate serve`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use tollgate::Rate;
use tollgate_http::{ClientIp, ForwardedBy, TrustedProxies};

use super::access;
use super::args::ServeArgs;
use super::source::{self, RulesConfig};
use crate::client::Secret;
use crate::control::auth::TokenPolicy;
use crate::counters::SnapshotConfig;
use crate::http::AllowedHosts;
use crate::net::tls::TlsFiles;
use crate::observe::top_keys::KeyDisplay;
use crate::rls::{AddedHeaders, ResponseOptions};

/// A validated configuration.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The address for HTTP, if enabled.
    pub(super) http: Option<SocketAddr>,
    /// The address for the Redis protocol, if enabled.
    pub(super) resp: Option<SocketAddr>,
    /// The address for the rate-limit service, if enabled.
    pub(super) rls: Option<SocketAddr>,
    /// The Unix socket for the rate-limit service, if the service listens on a socket.
    pub(super) rls_socket: Option<PathBuf>,
    /// Maximum age of a connection of the rate-limit service.
    pub(super) rls_connection_age: Duration,
    /// The headers and metadata of responses of the rate-limit service.
    pub(super) rls_options: ResponseOptions,
    /// The store of counters.
    pub(super) store: StoreConfig,
    /// Maximum time that a decision waits for the store.
    pub(super) store_deadline: Duration,
    /// The source of rules.
    pub(super) rules: RulesConfig,
    /// Whether tokens are required.
    pub(super) tokens: TokenPolicy,
    /// Host names that the `Host` header may contain, or `None` if the header is not checked.
    pub(super) hosts: Option<AllowedHosts>,
    /// The certificate and key, if TLS is enabled.
    pub(super) tls: Option<TlsFiles>,
    /// How to find the address of a client behind proxies.
    pub(super) client: ClientIp,
    /// The snapshot settings, if the counters are in memory and snapshots are enabled.
    pub(super) snapshots: Option<SnapshotConfig>,
    /// The maximum number of keys in memory; at least one.
    pub(super) capacity: usize,
    /// Threads for connections; at least one.
    pub(super) threads: usize,
    /// The maximum number of connections of each protocol.
    pub(super) connections: usize,
    /// How the heaviest keys are shown.
    pub(super) top_keys: KeyDisplay,
    /// The maximum rate of logged refusals per rule, if refusals are logged.
    pub(super) log_refusals: Option<Rate>,
    /// Maximum time that clients have to finish when the server stops.
    pub(super) drain: Duration,
}

/// A store of counters.
#[derive(Clone, Debug)]
pub(super) enum StoreConfig {
    /// The memory of this process.
    Memory,
    /// Redis or Valkey, by its URL.
    Redis(Secret),
    /// The servers themselves, which share their counters without a store.
    Peers(Box<tollgate_peers::Config>),
}

impl StoreConfig {
    /// Returns the store's scheme, host and database for the log, without user and password.
    pub(super) fn name(&self) -> String {
        let url = match self {
            Self::Memory => return "memory".to_owned(),
            Self::Peers(config) => return format!("peers at {}", config.advertised()),
            Self::Redis(url) => url,
        };
        let (scheme, rest) = url.reveal().split_once("://").unwrap_or(("redis", ""));
        let place = rest.split('?').next().unwrap_or_default();
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        format!("{scheme}://{place}")
    }
}

impl Config {
    /// Validates arguments.
    ///
    /// # Errors
    /// Returns an error if an argument is invalid. The message names the flag, its value and a valid form.
    pub(super) fn new(raw: ServeArgs) -> anyhow::Result<Self> {
        let (http, resp) = (parse_address("--http", &raw.http)?, parse_address("--resp", &raw.resp)?);
        let rls_socket = raw.rls.strip_prefix("unix:").filter(|path| !path.is_empty()).map(PathBuf::from);
        let rls = if rls_socket.is_some() { None } else { parse_address("--rls", &raw.rls)? };
        if http.is_none() && resp.is_none() && rls.is_none() && rls_socket.is_none() {
            bail!("--http, --resp and --rls are all off: nothing to serve");
        }
        if raw.connections == 0 {
            bail!("--connections is 0: no client could connect");
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = raw.threads.unwrap_or_else(cores);
        if threads == 0 || threads > MAX_THREADS {
            bail!("--threads {threads} is out of range (1 to {MAX_THREADS})");
        }
        let rules = source::rules_config(&raw, http)?;
        let store = match &raw.store_file {
            None => parse_store(&raw.store, &raw)?,
            Some(_) if raw.store != "memory" => {
                bail!("--store and --store-file both name a store: leave one of them out")
            }
            Some(file) => {
                let read = std::fs::read_to_string(file);
                parse_store(read.with_context(|| format!("--store-file: cannot read {}", file.display()))?.trim(), &raw)
                    .context("--store-file")?
            }
        };
        check_store_files(&store)?;
        let snapshots = snapshot_config(&raw, &store);
        let tokens = access::token_policy(&raw, &[("--http", http), ("--resp", resp), ("--rls", rls)], &rules)?;
        let on_loopback = http.is_some_and(|http| http.ip().to_canonical().is_loopback());
        let hosts = raw.allowed_hosts.as_deref().map(AllowedHosts::new);
        let hosts = hosts.or_else(|| (tokens == TokenPolicy::NotRequired && on_loopback).then(AllowedHosts::default));
        Ok(Self {
            hosts,
            http,
            resp,
            rls,
            rls_socket,
            rls_connection_age: Duration::from_secs(raw.rls_connection_age.clamp(1, MAX_CONNECTION_AGE_SECONDS)),
            rls_options: ResponseOptions {
                headers: AddedHeaders::parse(&raw.rls_headers).context("--rls-headers")?,
                request_headers: AddedHeaders::parse(&raw.rls_request_headers).context("--rls-request-headers")?,
                metadata: raw.rls_metadata,
            },
            rules,
            tokens,
            tls: raw.tls_cert.zip(raw.tls_key).map(|(certificate, key)| TlsFiles { certificate, key }),
            client: ClientIp::behind(parse_trusted_proxies(&raw.trusted_proxies)?, ForwardedBy::XForwardedFor),
            snapshots,
            store,
            store_deadline: check_deadline(raw.store_deadline)?,
            capacity: parse_count("--capacity", &raw.capacity)?,
            threads,
            connections: raw.connections,
            top_keys: match &*raw.top_keys {
                "plain" => KeyDisplay::Plain,
                "hashed" => KeyDisplay::Hashed,
                "off" => KeyDisplay::Off,
                other => bail!("--top-keys {other}: write plain, hashed or off"),
            },
            log_refusals: parse_refusal_rate(&raw.log_refusals)?,
            drain: Duration::from_secs(raw.drain.min(MAX_INTERVAL_SECONDS)),
        })
    }
}

/// Maximum number of threads. More threads would only cause contention.
const MAX_THREADS: usize = 1_024;
/// The maximum of `--rls-connection-age`: a year, so that adding it to an instant cannot overflow.
const MAX_CONNECTION_AGE_SECONDS: u64 = 365 * 86_400;
/// The maximum of `--store-deadline`.
const MAX_DEADLINE_MS: u64 = 60_000;
/// The maximum of `--drain` and `--snapshot-every`: a day, so that adding it to an instant cannot overflow.
const MAX_INTERVAL_SECONDS: u64 = 86_400;

fn parse_address(flag: &str, text: &str) -> anyhow::Result<Option<SocketAddr>> {
    if text == "off" {
        return Ok(None);
    }
    let wrong = || format!("{flag} {text}: write an address and a port, like 127.0.0.1:8080, or `off`");
    Ok(Some(text.to_socket_addrs().with_context(wrong)?.next().with_context(wrong)?))
}

fn parse_trusted_proxies(text: &str) -> anyhow::Result<TrustedProxies> {
    let networks = match text {
        "none" => return Ok(TrustedProxies::none()),
        "private" => return Ok(TrustedProxies::private()),
        "loopback" => "127.0.0.0/8,::1",
        networks => networks,
    };
    let wrong = || {
        format!(
            "--trusted-proxies {text}: write networks, like 10.0.0.0/8,fd00::/8, or `loopback`, `private` or `none`"
        )
    };
    TrustedProxies::parse(networks.split(',').map(str::trim)).with_context(wrong)
}

fn parse_store(text: &str, raw: &ServeArgs) -> anyhow::Result<StoreConfig> {
    match text.split_once("://") {
        None if text == "memory" => Ok(StoreConfig::Memory),
        Some(("peers", _)) => Ok(StoreConfig::Peers(Box::new(parse_peers(text, raw)?))),
        Some((scheme, _)) if REDIS_SCHEMES.contains(&scheme) => Ok(StoreConfig::Redis(Secret::new(text))),
        // The rest of the URL may contain a password, so it is not shown.
        Some((scheme, _)) => {
            bail!(
                "--store {scheme}://…: no such store; write memory, redis://…, redis+sentinel://…, redis+cluster://… or peers://…"
            )
        }
        None => {
            // The content of a file, and a value with `@`, may be or contain a password.
            let is_shown = raw.store_file.is_none() && !text.contains('@');
            let value = if is_shown { format!(" {text}") } else { String::new() };
            bail!(
                "--store{value}: no such store; write memory, redis://…, redis+sentinel://…, redis+cluster://… or peers://…"
            )
        }
    }
}

fn parse_peers(url: &str, raw: &ServeArgs) -> anyhow::Result<tollgate_peers::Config> {
    let config = tollgate_peers::Config::from_url(url).context("--store")?;
    let listen = parse_address("--peers-listen", &raw.peers_listen)?.context("--peers-listen cannot be off")?;
    let advertised = raw.peers_advertise.as_deref().map(|text| parse_address("--peers-advertise", text)).transpose()?;
    let config = match advertised {
        // If an address is advertised, the local address need not be detected.
        Some(Some(advertised)) => {
            let config = config.listen_at(listen).context("--peers-listen")?;
            config.advertise(advertised).context("--peers-advertise")?
        }
        Some(None) => bail!("--peers-advertise cannot be off"),
        None => config.listen(listen).context("--peers-listen")?,
    };
    let config = match &raw.node {
        Some(node) => config.named(node).context("--node")?,
        None => config,
    };
    let config = config.deadline(check_deadline(raw.store_deadline)?);
    Ok(config.max_keys(parse_count("--capacity", &raw.capacity)?))
}

/// The schemes of Redis and Valkey stores.
const REDIS_SCHEMES: [&str; 6] =
    ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];

/// Checks that the files named in the store URL exist, because every connection would fail without them.
fn check_store_files(store: &StoreConfig) -> anyhow::Result<()> {
    let StoreConfig::Redis(url) = store else { return Ok(()) };
    let query = url.reveal().split_once('?').map_or("", |(_, query)| query);
    for (option, what) in [("ca=", "CA"), ("cert=", "certificate"), ("key=", "key")] {
        for file in query.split('&').filter_map(|pair| pair.strip_prefix(option)) {
            let path = percent_encoding::percent_decode_str(file).decode_utf8_lossy();
            std::fs::metadata(&*path).with_context(|| format!("--store: cannot read the {what} file {path}"))?;
        }
    }
    Ok(())
}

fn snapshot_config(raw: &ServeArgs, store: &StoreConfig) -> Option<SnapshotConfig> {
    let every = Duration::from_secs(raw.snapshot_every.min(MAX_INTERVAL_SECONDS));
    let kept = matches!(store, StoreConfig::Memory) && raw.data != "off" && !every.is_zero();
    kept.then(|| SnapshotConfig { directory: raw.data.clone().into(), every })
}

fn parse_refusal_rate(text: &str) -> anyhow::Result<Option<Rate>> {
    if text == "off" {
        return Ok(None);
    }
    let rate = text.parse().with_context(|| format!("--log-refusals {text}: write a rate, like 1/s, or `off`"))?;
    Ok(Some(rate))
}

fn check_deadline(millis: u64) -> anyhow::Result<Duration> {
    if millis == 0 || millis > MAX_DEADLINE_MS {
        bail!("--store-deadline {millis} is out of range (1 to {MAX_DEADLINE_MS} milliseconds)");
    }
    Ok(Duration::from_millis(millis))
}

/// Parses a count such as 500k or 10M.
pub(in crate::cli) fn parse_count(flag: &str, text: &str) -> anyhow::Result<usize> {
    let scales = [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let scaled = scales.iter().find_map(|(letter, scale)| Some((text.strip_suffix(*letter)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(scale)).filter(|count| *count > 0);
    count.with_context(|| format!("{flag} {text}: write a whole number above 0, like 500k or 10M"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::{CommandFactory, Parser};

    pub(in crate::cli::serve) fn parse_config(line: &str) -> Result<Config, String> {
        let words = ["tollgate", "serve"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Serve(args) = cli.command else { return Err("another command".into()) };
        Config::new(*args).map_err(|error| format!("{error:#}"))
    }

    fn assert_refused(line: &str, expected: &str) {
        let error = parse_config(line).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn default_is_loopback_and_memory() {
        let config = parse_config("").expect("defaults");
        assert_eq!(config.http, Some(([127, 0, 0, 1], 8080).into()));
        assert_eq!(config.resp, Some(([127, 0, 0, 1], 6380).into()));
        assert!(matches!(config.store, StoreConfig::Memory));
        assert_eq!(config.capacity, 1_000_000);
        assert_eq!(config.tokens, TokenPolicy::NotRequired);
        let RulesConfig::Database(database) = config.rules else { panic!("another source") };
        assert_eq!(database.url.reveal(), "sqlite:tollgate-data/rules.db?mode=rwc");
    }

    #[test]
    fn errors_name_the_flag_and_what_would_be_right() {
        assert_refused("--http 8080", "--http 8080: write an address and a port, like 127.0.0.1:8080");
        assert_refused("--http off --resp off", "nothing to serve");
        assert_refused("--store redsi://:secret@host", "--store redsi://…: no such store");
        assert_refused("--store 127.0.0.1:6379", "--store 127.0.0.1:6379: no such store; write memory, redis://…");
        assert_refused("--store :secret@host", "--store: no such store");
        assert_refused(
            "--store memroy",
            "--store memroy: no such store; write memory, redis://…, redis+sentinel://…, redis+cluster://… or peers://…",
        );
        assert_refused("--capacity 0", "--capacity 0: write a whole number above 0, like 500k or 10M");
        assert_refused("--capacity 99999999999999999G", "--capacity");
        assert_refused("--threads 0", "--threads 0 is out of range (1 to 1024)");
        assert_refused("--store-deadline 0", "--store-deadline 0 is out of range (1 to 60000 milliseconds)");
        assert_refused("--top-keys loud", "--top-keys loud: write plain, hashed or off");
        assert_refused("--log-refusals often", "--log-refusals often: write a rate, like 1/s, or `off`");
        assert_refused(
            "--trusted-proxies 10.0.0.0/8,x",
            "--trusted-proxies 10.0.0.0/8,x: write networks, like 10.0.0.0/8",
        );
        assert_refused("--rule x", "--rules");
    }

    #[test]
    fn rules_have_one_source() {
        let from = |line: &str| parse_config(line).expect(line).rules;
        assert!(matches!(from("--rules r.yaml"), RulesConfig::File(path) if path.ends_with("r.yaml")));
        assert!(matches!(from("--data off"), RulesConfig::Inline));
        let RulesConfig::Database(database) = from("--data /var/a%b?c") else { panic!("another source") };
        assert_eq!(database.url.reveal(), "sqlite:/var/a%25b%3Fc/rules.db?mode=rwc");
        let RulesConfig::Database(database) = from("--data off --database postgres://u:p@h/d") else {
            panic!("another source")
        };
        assert_eq!((database.url.reveal(), database.data), ("postgres://u:p@h/d", None));
        let RulesConfig::Service(service) = from("--rules https://h:1 --rules-token t --node n --data d") else {
            panic!("another source")
        };
        assert_eq!((&*service.node, service.data.as_deref()), ("n", Some("d".as_ref())));
        let RulesConfig::Service(service) = from("--rules http://h:1 --http 127.0.0.1:8081") else {
            panic!("another source")
        };
        assert!(service.node.ends_with(":8081"), "{}", service.node);
        assert_refused("--rules r.yaml --database postgres://h/d", "--rules and --database");
        assert_refused("--rules http://h:1 --database postgres://h/d", "--rules and --database");
        assert_refused(
            "--database mysql://u:secret@h/d",
            "--database mysql://…: write postgres://user:password@host/name",
        );
        assert_refused("--rules-token t", "--rules-token is for following a rules service");
        assert_refused("--rules r.yaml --node n", "--node is for following a rules service");
        assert_refused("--rules ftp://h", "`ftp://h` is not the address of a server");
        assert_refused("--rules http://u:p@h:1", "--rules-token");
        assert_refused("--rules http://h:1 --rules-ca x", "cannot read x");
        assert_refused("--rules https://h:1 --rules-token a\u{7f}b", "--rules-token");
        assert_refused("--rules https://h:1 --node \u{e9}\u{7}", "--node");
    }

    #[test]
    fn other_machines_need_tokens_or_insecure() {
        let tokens = |line: &str| parse_config(line).expect(line).tokens;
        assert_eq!(tokens("--http [::1]:80 --resp 127.8.8.8:1"), TokenPolicy::NotRequired);
        assert_eq!(tokens("--tokens required"), TokenPolicy::Required);
        assert_eq!(tokens("--http 0.0.0.0:80"), TokenPolicy::Required);
        assert_eq!(tokens("--resp [::]:80 --rules http://h:1"), TokenPolicy::Required);
        assert_eq!(tokens("--http 0.0.0.0:80 --insecure"), TokenPolicy::NotRequired);
        assert_eq!(tokens("--http 0.0.0.0:80 --insecure --rules r.yaml"), TokenPolicy::NotRequired);
        assert_refused("--resp 0.0.0.0:80 --tokens none", "--resp 0.0.0.0:80 can be reached from other machines");
        assert_refused("--http 0.0.0.0:80 --rules r.yaml", "with --rules FILE there are no tokens");
        assert_refused("--http 0.0.0.0:80 --data off", "with --data off there are no tokens");
        assert_refused("--tokens required --data off", "with --data off there are no tokens");
        assert_refused("--tokens required --insecure", "leave one of them out");
        assert_refused("--tls-cert a", "--tls-key");
        assert_refused("--tokens some", "required");
    }

    #[test]
    fn store_may_be_named_in_a_file() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("store");
        std::fs::write(&file, "rediss://:hunter2@10.0.0.5:6379/2\n").expect("a file");
        let store = parse_config(&format!("--store-file {}", file.display())).expect("a store").store;
        assert_eq!(store.name(), "rediss://10.0.0.5:6379/2");
        assert_refused(&format!("--store redis://h --store-file {}", file.display()), "leave one of them out");
        assert_refused("--store-file nowhere", "--store-file: cannot read nowhere");
        assert_refused("--store rediss://h?ca=nowhere.pem", "cannot read the CA file nowhere.pem");
    }

    #[test]
    fn peers_listen_beyond_loopback_only_with_a_secret() {
        let store = |line: &str| parse_config(line).expect(line).store.name();
        assert_eq!(store("--store peers://127.0.0.1:7401"), "peers at 127.0.0.1:7400");
        assert_eq!(store("--store peers://a --peers-listen [::1]:7"), "peers at [::1]:7");
        assert_refused("--store peers://a --peers-listen 0.0.0.0:7400", "--peers-listen: 0.0.0.0:7400 can be reached");
        assert_refused("--store peers://a --peers-listen off", "--peers-listen cannot be off");
        assert_refused(
            "--store peers://a --peers-advertise 10.0.0.1:7400",
            "--peers-advertise: 10.0.0.1:7400 can be reached",
        );
        assert_refused(
            "--store peers://10.0.0.1:7400",
            "--store: 10.0.0.1:7400: not a loopback address, and there is no secret: add ?secret_file=PATH",
        );
        assert_refused("--store peers://a?secret=x", "unknown option `secret`; available: secret_file, cluster");
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("secret");
        std::fs::write(&file, "0123456789abcdef0123456789abcdef").expect("a file");
        let secured = format!("--store peers://127.0.0.1?secret_file={} --peers-listen 0.0.0.0:9", file.display());
        assert_eq!(store(&secured), "peers at 127.0.0.1:9", "from where it reaches the seed");
        assert_eq!(store(&format!("{secured} --peers-advertise 192.0.2.1:9 --node one")), "peers at 192.0.2.1:9");
    }

    #[test]
    fn hosts_are_checked_on_loopback_without_tokens() {
        let hosts = |line: &str| parse_config(line).expect(line).hosts;
        assert!(hosts("").is_some_and(|hosts| !hosts.accepts("evil.example")));
        assert!(hosts("--allowed-hosts a.example").is_some_and(|hosts| hosts.accepts("a.example")));
        assert_eq!(hosts("--tokens required"), None);
        assert_eq!(hosts("--http 0.0.0.0:80 --insecure"), None);
    }

    #[test]
    fn passwords_are_not_shown() {
        let config = parse_config("--store redis://:hunter2@127.0.0.1/").expect("a store");
        assert!(!format!("{config:?}").contains("hunter2"));
        let config = parse_config("--rules https://h:1 --rules-token hunter2").expect("a service");
        assert!(!format!("{config:?}").contains("hunter2"));
        let config = parse_config("--database postgres://u:hunter2@h/d").expect("a database");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
