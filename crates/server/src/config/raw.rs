//! What was written on the command line or in the environment, unchecked.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use super::remote::keys::{KEYS_EXAMPLES, KeysArgs};
use super::remote::rules::{RULES_EXAMPLES, RulesArgs};
use super::remote::tokens::{TOKENS_EXAMPLES, TokensArgs};
use super::remote::{AUDIT_EXAMPLES, AuditArgs, ServerArgs};

/// An exact, fast and bounded rate limiter.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about, long_about = LONG_ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// What the words of a command line say. A server that is named there beside a rule file would not be asked; one in the
    /// environment is there for other commands.
    ///
    /// # Errors
    /// When they say nothing that can be done, or ask for help.
    pub fn read<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(words)?;
        let written = |args: &ArgMatches, id| args.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(("explain", args)) = matches.subcommand()
            && written(args, "rules")
            && written(args, "server")
        {
            let problem = "the argument '--rules <FILE>' cannot be used with '--server <URL>': it is one or the other that explains";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, problem));
        }
        Self::from_arg_matches(&matches)
    }
}

/// The things the program does, one module of `command` each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer requests over HTTP and the Redis protocol.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Look for mistakes in rule files, without serving.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Decide requests from lines of JSON, at the times they say, without serving.
    #[command(after_help = DECIDE_EXAMPLES)]
    Decide(DecideArgs),
    /// Write rule files in their canonical form, with their comments.
    #[command(after_help = FMT_EXAMPLES)]
    Fmt(FmtArgs),
    /// Make rules of limits that were written for Envoy or nginx.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Tell why a request is decided as it is.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Look at the rules of a server, and change them.
    #[command(after_help = RULES_EXAMPLES)]
    Rules(RulesArgs),
    /// Say who may do what with a server.
    #[command(after_help = TOKENS_EXAMPLES)]
    Tokens(TokensArgs),
    /// Look at what was spent, and give it back.
    #[command(after_help = KEYS_EXAMPLES)]
    Keys(KeysArgs),
    /// Show who changed what, and when.
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(AuditArgs),
}

/// Where to listen, and what to decide by.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where rules come from: a file, or the URL of a rules service to follow; this server's own database unless given
    ///
    /// A file, YAML or JSON, is read again whenever it changes. A service, `https://host:port` of another `tollgate serve`, is
    /// followed: a change there arrives here within a second, and the last good rules are kept in the data directory for a start
    /// while it is away. Rules with mistakes are refused as a whole and the running ones stay. Without rules, callers send their
    /// limits along.
    #[arg(long, value_name = "FILE|URL", env = "TOLLGATE_RULES")]
    pub rules: Option<String>,

    /// Directory for what has to last: the rules with their history and tokens, or the last good rules of a service; or `off`
    ///
    /// With `off` there is no database and no API for rules, for machines where nothing may be written.
    #[arg(long, value_name = "DIR", default_value = "tollgate-data", env = "TOLLGATE_DATA")]
    pub data: String,

    /// A PostgreSQL to keep rules in, postgres://user:password@host/name, in place of the data directory
    #[arg(long, value_name = "URL", env = "TOLLGATE_DATABASE", hide_env_values = true)]
    pub database: Option<String>,

    /// The token to show to the rules service; better given by the environment, where other users do not see it
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_RULES_TOKEN", hide_env_values = true)]
    pub rules_token: Option<String>,

    /// Certificates in PEM to believe the rules service by, besides those the system believes
    #[arg(long, value_name = "FILE", env = "TOLLGATE_RULES_CA")]
    pub rules_ca: Option<PathBuf>,

    /// What this node calls itself to the rules service; its host name and HTTP port unless given
    #[arg(long, value_name = "NAME", env = "TOLLGATE_NODE")]
    pub node: Option<String>,

    /// Where to keep what was spent: `memory`, or a Redis or Valkey shared by several servers
    ///
    /// `redis://[user:password@]host[:port][/db][?namespace=name]`, or `rediss://…` for TLS, with `?ca=FILE` for an
    /// authority of your own. Servers with the same store and namespace share limits. What is to happen while it cannot be
    /// reached is said by each rule's `on_fault`.
    #[arg(long, value_name = "URL", default_value = "memory", env = "TOLLGATE_STORE", hide_env_values = true)]
    pub store: String,

    /// Milliseconds a decision waits for a shared store before it is made without
    #[arg(long, value_name = "MS", default_value_t = 10, env = "TOLLGATE_STORE_DEADLINE")]
    pub store_deadline: u64,

    /// Address for HTTP, or `off`; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", env = "TOLLGATE_HTTP")]
    pub http: String,

    /// Address for the Redis protocol, or `off`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6380", env = "TOLLGATE_RESP")]
    pub resp: String,

    /// The server's certificate in PEM, with those that lead to it: HTTP and the Redis protocol are then spoken over TLS
    ///
    /// Read again whenever it or the key changes; connections stay.
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "TOLLGATE_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "TOLLGATE_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Whether callers have to show a token: `required`, the default where other machines can connect, or `none`
    ///
    /// Of every call but /healthz and /readyz. Tokens are made with `tollgate tokens create`, and come from the database or from the
    /// rules service that is followed.
    #[arg(long, value_name = "WHEN", env = "TOLLGATE_TOKENS")]
    pub tokens: Option<TokensWhen>,

    /// Let other machines connect without tokens, because something else keeps strangers out
    #[arg(long, env = "TOLLGATE_INSECURE")]
    pub insecure: bool,

    /// How many keys are kept in memory at a time, such as 500k or 10M
    ///
    /// Memory is taken as keys come, about 40 bytes each for a token bucket. When all places are taken, keys that have spent
    /// least give way.
    #[arg(long, value_name = "KEYS", default_value = "1M", env = "TOLLGATE_CAPACITY")]
    pub capacity: String,

    /// Threads that serve connections; one for each core unless given
    #[arg(long, value_name = "COUNT", env = "TOLLGATE_THREADS")]
    pub threads: Option<usize>,

    /// Connections at a time, of all kinds; further ones are turned away
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, env = "TOLLGATE_CONNECTIONS")]
    pub connections: usize,

    /// How `GET /v1/top` shows the keys that use most: `plain`, `hashed`, or `off` to keep no such list
    #[arg(long, value_name = "HOW", default_value = "plain", env = "TOLLGATE_TOP_KEYS")]
    pub top_keys: String,

    /// Refusals to tell in the log, each with its explanation: at most so many for each rule, such as `1/s`, or `off`
    ///
    /// Values that requests bring are shown as `--top-keys` says. For all rules together there are at most 100 lines a second.
    #[arg(long, value_name = "RATE", default_value = "off", env = "TOLLGATE_LOG_REFUSALS")]
    pub log_refusals: String,

    /// Seconds that clients have to finish when the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10, env = "TOLLGATE_DRAIN")]
    pub drain: u64,
}

/// When tokens are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokensWhen {
    /// Of every call.
    Required,
    /// Never.
    None,
}

/// What to look through.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Rule files, or folders whose *.yaml, *.yml and *.json are taken; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// What to decide, and by what.
#[derive(Clone, Debug, Args)]
pub struct DecideArgs {
    /// Rules to decide by, YAML or JSON, or a file of the reference Envoy service; without, requests bring their limits
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,

    /// The requests, one JSON object to a line; standard input unless given
    #[arg(value_name = "FILE")]
    pub requests: Option<PathBuf>,

    /// How many keys are kept, such as 500k or 10M
    #[arg(long, value_name = "KEYS", default_value = "1M")]
    pub capacity: String,
}

/// What to format.
#[derive(Clone, Debug, Args)]
pub struct FmtArgs {
    /// The rule files
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Change nothing, and fail if something would change
    #[arg(long)]
    pub check: bool,
}

/// What to import.
#[derive(Clone, Debug, Args)]
pub struct ImportArgs {
    /// The file with the limits
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Whose file it is; found out unless given
    #[arg(long, value_name = "SYSTEM")]
    pub from: Option<ImportFrom>,

    /// The domain of the rules, for nginx, which has none
    #[arg(long, value_name = "NAME", default_value = "nginx")]
    pub domain: String,
}

/// Whose limits are imported.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ImportFrom {
    /// The reference Envoy rate-limit service: a domain and nested descriptors.
    Envoy,
    /// nginx: `limit_req` and `limit_conn` with their zones.
    Nginx,
}

/// What to explain, and by what.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// A rule file to explain by, as if nothing had been spent, instead of a server
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,

    /// What the request costs; each rule says for itself unless given
    #[arg(long, value_name = "COST")]
    pub cost: Option<u64>,

    /// Whose rules
    #[arg(value_name = "DOMAIN")]
    pub domain: String,

    /// What is known about the request, such as client_ip=192.0.2.1
    #[arg(value_name = "NAME=VALUE")]
    pub attributes: Vec<String>,

    /// The server to ask, by whose rules and by what has been spent there it is explained.
    #[command(flatten)]
    pub server: ServerArgs,
}

const LONG_ABOUT: &str = "\
An exact, fast and bounded rate limiter.

`tollgate serve` needs no configuration: it listens on this machine only, keeps its counts in memory and its rules in the \
directory tollgate-data, and takes limits from its callers until it is given rules.";

const EXAMPLES: &str = "\
Examples:
  tollgate serve
  curl -i -d '{\"key\":\"alice\",\"limit\":\"3/m\"}' http://127.0.0.1:8080/v1/check
  redis-cli -p 6380 CL.THROTTLE alice 2 3 60";

const SERVE_EXAMPLES: &str = "\
Examples:
  tollgate serve                                       on loopback, by rules that are set through its API
  tollgate serve --rules rules.yaml                    by a file, read again when it changes
  tollgate serve --rules https://rules.internal:8080   by the rules of another server
  tollgate serve --store redis://10.0.0.5:6379         limits shared with other servers
  tollgate serve --http 0.0.0.0:8080 --resp off        for other machines, HTTP only, with tokens
  tollgate serve --data off                            without rules, nothing is written anywhere

It stops on SIGTERM or SIGINT, after answering what it has been asked.";

const CHECK_EXAMPLES: &str = "\
Examples:
  tollgate check rules.yaml
  tollgate check rules/ login.yaml      all of them together, as `rules apply` takes them

Each mistake is told with its file, line and column. The status is 1 if there are any.";

const DECIDE_EXAMPLES: &str = "\
Examples:
  tollgate decide --rules rules.yaml requests.jsonl
  echo '{\"key\":\"alice\",\"limit\":\"3/m\"}' | tollgate decide
  echo '{\"at\":1700000000000,\"domain\":\"api\",\"attributes\":{\"path\":\"/login\"}}' | tollgate decide --rules rules.yaml

Each line is the body of a POST to /v1/check and is answered by a line with the body of its answer. If the first line \
has `at`, milliseconds since 1970 or a time like 2030-01-31T18:00:00Z, 2030-01-31T18:00:00+01:00 or \
2030-01-31T18:00[Europe/Paris], time is what the lines say: later ones may repeat it or go on, and without it happen at the \
time of the one before. Otherwise they happen when they are read.

A line that cannot be understood is answered in its place with the problem and its number, and the status is 1.";

const FMT_EXAMPLES: &str = "\
Examples:
  tollgate fmt rules.yaml
  tollgate fmt --check rules/*.yaml      for continuous integration

Comments stay with what they are about. A file in which something would be lost, such as what anchors and aliases share, is \
left as it is, and told. The status is 1 then, and with --check if a file is not in its form.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  tollgate import envoy.yaml > rules.yaml
  tollgate import --domain edge /etc/nginx/nginx.conf > rules.yaml

What could not be carried over is told on the standard error stream, with its line and why; the status is 0 as long as \
there are rules. Files of the reference Envoy service need not be imported: `serve --rules` and `check` take them as they are.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  tollgate explain api path=/login client_ip=192.0.2.1
  tollgate explain --rules rules.yaml api path=/login client_ip=192.0.2.1

It takes nothing. Rules that are met are marked with +: what they count by, which override applies and why, and how each limit \
stands. The others are marked with - and the first condition that does not hold.";
