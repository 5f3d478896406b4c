//! The arguments of `tollgate serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::observe::log::LogFormat;
use crate::rls::MetadataWhen;

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct ServeArgs {
    /// The source of rules: a file, a folder, or the URL of a rules service or an xDS server; by default this server's
    /// own database
    ///
    /// A file (YAML or JSON) is read again when it changes. In a folder, all *.yaml, *.yml and *.json files are read
    /// together. A rules service is another `tollgate serve`, given as `https://host:port`. A change arrives within a
    /// second. The last good rules are stored in the data directory, so that this server can start while the service is
    /// unreachable. An xDS server, `xds://host:port` or `xds+tls://host:port`, sends the configuration of the reference
    /// rate-limit service. Envoy Gateway is such a server. If new rules contain a mistake, all of them are refused and
    /// the rules in force stay. Without rules, requests contain inline limits.
    #[arg(long, value_name = "PATH|URL", env = "TOLLGATE_RULES")]
    pub(super) rules: Option<String>,

    /// The data directory, or `off`; it contains the rules with their history and tokens, or the last good rules of a
    /// service
    ///
    /// With `off` there is no database and no rules API, and nothing is written to disk.
    #[arg(long, value_name = "DIR", default_value = "tollgate-data", env = "TOLLGATE_DATA")]
    pub(super) data: String,

    /// A PostgreSQL database for rules, postgres://user:password@host/name, instead of the data directory
    #[arg(long, value_name = "URL", env = "TOLLGATE_DATABASE", hide_env_values = true)]
    pub(super) database: Option<String>,

    /// The token for the rules service; set it in the environment so that other users do not see it
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_RULES_TOKEN", hide_env_values = true)]
    pub(super) rules_token: Option<String>,

    /// Extra CA certificates (PEM) for the rules service; an xDS server is verified only with these certificates
    #[arg(long, value_name = "FILE", env = "TOLLGATE_RULES_CA")]
    pub(super) rules_ca: Option<PathBuf>,

    /// The certificate of this node (PEM), if an xDS server requires one
    #[arg(long, value_name = "FILE", requires = "rules_key", env = "TOLLGATE_RULES_CERT")]
    pub(super) rules_cert: Option<PathBuf>,

    /// The private key of --rules-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "rules_cert", env = "TOLLGATE_RULES_KEY")]
    pub(super) rules_key: Option<PathBuf>,

    /// The name of this node: for a rules service (default: host name and HTTP port) and for peers (default: address)
    #[arg(long, value_name = "NAME", env = "TOLLGATE_NODE")]
    pub(super) node: Option<String>,

    /// The store of counters: `memory`, a Redis or Valkey server that several servers share, or `peers`, which shares
    /// counters among the servers themselves
    ///
    /// `redis://[user:password@]host[:port][/db][?namespace=name]`, or
    /// `redis+sentinel://[user:password@]sentinel[:port],…/master[/db]`, or
    /// `redis+cluster://[user:password@]host[:port],…`. Write `rediss` instead of `redis` for TLS, and add `?ca=FILE`
    /// for your own CA and `cert=FILE&key=FILE` for a client certificate. Servers with the same store and namespace
    /// share limits. While the store is unreachable, the `on_fault` of each rule applies.
    ///
    /// `peers://host[:port],…?secret_file=FILE[&cluster=name]`: servers that share limits among themselves, without a
    /// store. Name a few of the servers, or a DNS name that resolves to all of them. Without a secret, only loopback
    /// addresses are allowed.
    #[arg(long, value_name = "URL", default_value = "memory", env = "TOLLGATE_STORE", hide_env_values = true)]
    pub(super) store: String,

    /// A file with the URL of the store, so that the password is not on the command line
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_FILE")]
    pub(super) store_file: Option<PathBuf>,

    /// Address on which this server listens for the other servers of `--store peers://…`; port 0 chooses a free port
    ///
    /// With `0.0.0.0` or `[::]`, this server advertises the local address from which it reaches the first host in
    /// --store.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400", env = "TOLLGATE_PEERS_LISTEN")]
    pub(super) peers_listen: String,

    /// The address at which other servers of `--store peers://…` reach this server, if it is not the listening address
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_PEERS_ADVERTISE")]
    pub(super) peers_advertise: Option<String>,

    /// Milliseconds that a decision waits for a shared store before the rule's `on_fault` applies
    #[arg(long, value_name = "MS", default_value_t = 10, env = "TOLLGATE_STORE_DEADLINE")]
    pub(super) store_deadline: u64,

    /// Address for HTTP, or `off`; port 0 chooses a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", env = "TOLLGATE_HTTP")]
    pub(super) http: String,

    /// Address for the Redis protocol, or `off`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6380", env = "TOLLGATE_RESP")]
    pub(super) resp: String,

    /// Address for Envoy's rate-limit service (gRPC), such as 127.0.0.1:8081 or unix:PATH, or `off`
    #[arg(long, value_name = "ADDR", default_value = "off", env = "TOLLGATE_RLS")]
    pub(super) rls: String,

    /// Seconds after which a connection of the rate-limit service is closed, so that clients spread over new servers
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400, env = "TOLLGATE_RLS_CONNECTION_AGE")]
    pub(super) rls_connection_age: u64,

    /// Headers that the rate-limit service adds to responses: `ietf`, `x-ratelimit`, `both`, `off`, or three header
    /// names
    ///
    /// `ietf` adds RateLimit and RateLimit-Policy. `x-ratelimit` adds X-RateLimit-Limit, -Remaining and -Reset of the
    /// tightest limit. Three header names, separated by commas, replace the names of `x-ratelimit`. A refusal always
    /// has Retry-After.
    #[arg(long, value_name = "STYLE", default_value = "ietf", env = "TOLLGATE_RLS_HEADERS")]
    pub(super) rls_headers: String,

    /// Headers that the rate-limit service adds to admitted requests, for the application; written like --rls-headers
    #[arg(long, value_name = "STYLE", default_value = "off", env = "TOLLGATE_RLS_REQUEST_HEADERS")]
    pub(super) rls_request_headers: String,

    /// Which responses of the rate-limit service contain dynamic metadata: those with a matching rule that has
    /// `metadata`, or all
    #[arg(long, value_name = "WHEN", default_value = "rules", env = "TOLLGATE_RLS_METADATA")]
    pub(super) rls_metadata: MetadataWhen,

    /// Proxies whose `X-Forwarded-For` is trusted by forward-auth: `loopback`, `private`, `none`, or networks separated
    /// by commas
    #[arg(long, value_name = "NETWORKS", default_value = "loopback", env = "TOLLGATE_TRUSTED_PROXIES")]
    pub(super) trusted_proxies: String,

    /// The server's certificate chain (PEM): enables TLS on all ports
    ///
    /// The certificate and the key are read again when they change; connections stay open.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TOLLGATE_TLS_CERT")]
    pub(super) tls_cert: Option<PathBuf>,

    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TOLLGATE_TLS_KEY")]
    pub(super) tls_key: Option<PathBuf>,

    /// Whether callers must send a token: `required` (the default if other machines can connect) or `none`
    ///
    /// If tokens are required, all calls except health checks and the files and login of the console need a token.
    /// Tokens are created with `tollgate tokens create`, and come from the database or from the rules service.
    #[arg(long, value_name = "WHEN", env = "TOLLGATE_TOKENS")]
    pub(super) tokens: Option<TokensArg>,

    /// Let other machines connect without tokens, because something else restricts access
    #[arg(long, env = "TOLLGATE_INSECURE")]
    pub(super) insecure: bool,

    /// Seconds between snapshots of the counters in the data directory; 0 disables snapshots
    ///
    /// With the store `memory`, counts, quotas, bans and leases survive a restart. A killed process loses all counts
    /// since the last snapshot. The server also writes a snapshot on SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, env = "TOLLGATE_SNAPSHOT_EVERY")]
    pub(super) snapshot_every: u64,

    /// Additional host names that a loopback server without tokens accepts; loopback names are always accepted; `*` for
    /// any
    ///
    /// The host name of a web page can be made to resolve to this machine (DNS rebinding), so requests for other hosts
    /// are refused with 421. Add a host name here if a proxy on this machine forwards the Host header of its clients.
    #[arg(long, value_name = "HOST,...", env = "TOLLGATE_ALLOWED_HOSTS")]
    pub(super) allowed_hosts: Option<String>,

    /// The maximum number of keys in memory, such as 500k or 10M
    ///
    /// Memory is allocated as keys arrive, about 40 bytes per key with a token bucket. When the table is full, the keys
    /// that have spent the least are evicted.
    #[arg(long, value_name = "KEYS", default_value = "1M", env = "TOLLGATE_CAPACITY")]
    pub(super) capacity: String,

    /// Threads that serve connections; by default one per core
    #[arg(long, value_name = "COUNT", env = "TOLLGATE_THREADS")]
    pub(super) threads: Option<usize>,

    /// The maximum number of connections of each protocol; further connections are refused
    ///
    /// The number is lowered if the process cannot open that many files. A few extra HTTP connections are accepted for
    /// health checks.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, env = "TOLLGATE_CONNECTIONS")]
    pub(super) connections: usize,

    /// How `GET /v1/top` shows the heaviest keys: `plain`, `hashed`, or `off` to track none
    #[arg(long, value_name = "HOW", default_value = "plain", env = "TOLLGATE_TOP_KEYS")]
    pub(super) top_keys: String,

    /// Log refusals with their explanations, up to this rate for each rule, such as `1/s`; or `off`
    ///
    /// `--top-keys` determines how values from requests are shown. All rules together log at most 100 lines a second.
    #[arg(long, value_name = "RATE", default_value = "off", env = "TOLLGATE_LOG_REFUSALS")]
    pub(super) log_refusals: String,

    /// The format of the log on standard error: `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "TOLLGATE_LOG_FORMAT")]
    pub(super) log_format: LogFormat,

    /// The minimum level of logged events: error, warn, info, debug or trace; by default the value of RUST_LOG, or info
    /// if it is not set
    #[arg(long, value_name = "LEVEL", env = "TOLLGATE_LOG_LEVEL")]
    pub(super) log_level: Option<String>,

    /// Seconds that clients have to finish after a stop signal
    #[arg(long, value_name = "SECONDS", default_value_t = 10, env = "TOLLGATE_DRAIN")]
    pub(super) drain: u64,
}

/// Whether callers must send a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TokensArg {
    /// Callers must send a token.
    Required,
    /// Callers need no token.
    None,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  tollgate serve                                       on loopback, with rules from its API
  tollgate serve --rules rules.yaml                    with a file, read again when it changes
  tollgate serve --rules https://rules.internal:8080   with the rules of another server
  tollgate serve --store redis://10.0.0.5:6379         limits shared with other servers
  tollgate serve --store peers://a,b,c?secret_file=s --peers-listen 0.0.0.0:7400   limits shared without a store
  tollgate serve --http 0.0.0.0:8080 --resp off        for other machines, HTTP only, with tokens
  tollgate serve --data off                            without rules; nothing is written to disk

It stops on SIGTERM or SIGINT, after answering the requests that it has received.";
