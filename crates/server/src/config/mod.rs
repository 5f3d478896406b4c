//! What the server is told, checked: after this nobody validates again.

pub mod raw;
pub mod remote;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::observe::top_keys::Names;
use raw::ServeArgs;

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where HTTP is spoken, if at all.
    pub http: Option<SocketAddr>,
    /// Where the Redis protocol is spoken, if at all.
    pub resp: Option<SocketAddr>,
    /// Where what was spent is kept.
    pub store: StoreConfig,
    /// How long a decision waits for it.
    pub store_deadline: Duration,
    /// What is decided by.
    pub rules: Option<PathBuf>,
    /// Keys in memory at a time; at least one.
    pub capacity: usize,
    /// Threads for connections; at least one.
    pub threads: usize,
    /// Connections at a time.
    pub connections: usize,
    /// How the keys that use most are shown.
    pub top_keys: Names,
    /// How long clients have to finish when the server stops.
    pub drain: Duration,
}

/// A store that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// This process.
    Memory,
    /// A Redis or Valkey.
    Redis(Secret),
}

impl StoreConfig {
    /// In one word, for the log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
        }
    }
}

/// A text that is not shown: the address of a store may contain its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A text to be kept from logs.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever needs it to connect.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Config {
    /// Checks what was written.
    ///
    /// # Errors
    /// With the name of the flag, what was given and what would be right.
    pub fn new(raw: ServeArgs) -> anyhow::Result<Self> {
        let (http, resp) = (address("--http", &raw.http)?, address("--resp", &raw.resp)?);
        if http.is_none() && resp.is_none() {
            bail!("--http and --resp are both off: there is nothing to serve");
        }
        if raw.connections == 0 {
            bail!("--connections is 0: nobody could connect");
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = raw.threads.unwrap_or_else(cores);
        if threads == 0 || threads > MAX_THREADS {
            bail!("--threads is {threads}, it must be between 1 and {MAX_THREADS}");
        }
        Ok(Self {
            http,
            resp,
            store: store(&raw.store)?,
            store_deadline: deadline(raw.store_deadline)?,
            rules: raw.rules,
            capacity: count("--capacity", &raw.capacity)?,
            threads,
            connections: raw.connections,
            top_keys: match &*raw.top_keys {
                "plain" => Names::Plain,
                "hashed" => Names::Hashed,
                "off" => Names::Off,
                other => bail!("--top-keys {other}: write plain, hashed or off"),
            },
            drain: Duration::from_secs(raw.drain.min(MAX_DRAIN_SECONDS)),
        })
    }
}

/// More threads than this wait for each other.
const MAX_THREADS: usize = 1_024;
/// Nobody waits longer than a minute to be limited.
const MAX_DEADLINE_MS: u64 = 60_000;
/// A day, so that no instant overflows.
const MAX_DRAIN_SECONDS: u64 = 86_400;

fn address(flag: &str, text: &str) -> anyhow::Result<Option<SocketAddr>> {
    if text == "off" {
        return Ok(None);
    }
    let wrong = || format!("{flag} {text}: write an address and a port, like 127.0.0.1:8080, or `off`");
    Ok(Some(text.to_socket_addrs().with_context(wrong)?.next().with_context(wrong)?))
}

fn store(text: &str) -> anyhow::Result<StoreConfig> {
    match text.split_once("://") {
        None if text == "memory" => Ok(StoreConfig::Memory),
        Some(("redis" | "rediss", _)) => Ok(StoreConfig::Redis(Secret(text.to_owned()))),
        // The rest is not repeated, since it may contain a password.
        Some((scheme, _)) => {
            bail!("--store {scheme}://…: there is no such store, write memory, redis://… or rediss://…")
        }
        None => bail!("--store: what was given is no store, write memory, redis://… or rediss://…"),
    }
}

fn deadline(millis: u64) -> anyhow::Result<Duration> {
    if millis == 0 || millis > MAX_DEADLINE_MS {
        bail!("--store-deadline is {millis}, it must be between 1 and {MAX_DEADLINE_MS} milliseconds");
    }
    Ok(Duration::from_millis(millis))
}

pub(crate) fn count(flag: &str, text: &str) -> anyhow::Result<usize> {
    let scales = [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let scaled = scales.iter().find_map(|(letter, scale)| Some((text.strip_suffix(*letter)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(scale)).filter(|count| *count > 0);
    count.with_context(|| format!("{flag} {text}: write a whole number above 0, like 500k or 10M"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    fn config(line: &str) -> Result<Config, String> {
        let words = ["tollgate", "serve"].into_iter().chain(line.split_whitespace());
        let raw::Command::Serve(args) = raw::Cli::try_parse_from(words).map_err(|error| error.to_string())?.command
        else {
            return Err("another command".into());
        };
        Config::new(args).map_err(|error| format!("{error:#}"))
    }

    fn refused(line: &str, expected: &str) {
        let error = config(line).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }

    #[test]
    fn the_command_line_is_well_formed() {
        raw::Cli::command().debug_assert();
    }

    #[test]
    fn nothing_configured_is_loopback_and_memory() {
        let config = config("").expect("defaults");
        assert_eq!(config.http, Some(([127, 0, 0, 1], 8080).into()));
        assert_eq!(config.resp, Some(([127, 0, 0, 1], 6380).into()));
        assert_eq!((config.store, config.capacity, config.rules), (StoreConfig::Memory, 1_000_000, None));
    }

    #[test]
    fn mistakes_name_the_flag_and_what_would_be_right() {
        refused("--http 8080", "--http 8080: write an address and a port, like 127.0.0.1:8080");
        refused("--http off --resp off", "nothing to serve");
        refused("--store redsi://:secret@host", "--store redsi://…: there is no such store");
        refused("--store memroy", "write memory, redis://… or rediss://…");
        refused("--capacity 0", "--capacity 0: write a whole number above 0, like 500k or 10M");
        refused("--capacity 99999999999999999G", "--capacity");
        refused("--threads 0", "--threads is 0, it must be between 1 and 1024");
        refused("--store-deadline 0", "--store-deadline is 0, it must be between 1 and 60000 milliseconds");
        refused("--top-keys loud", "--top-keys loud: write plain, hashed or off");
        refused("--rule x", "--rules");
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = config("--store redis://:hunter2@127.0.0.1/").expect("a store");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
