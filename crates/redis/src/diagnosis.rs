//! Store diagnosis for `tollgate doctor`.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisError};
use tokio::time::{Instant, timeout};

use crate::cluster::fetch_lane_addresses;
use crate::config::{CONNECT_TIMEOUT, Config};
use crate::link::{Link, PROBE_CALLS, describe_error, dial, find_cluster, send_command, timeout_hint};
use crate::script::Scripts;
use crate::sentinel::with_address;

/// Number of timed probes, of [`PROBE_CALLS`] script calls each.
const TIMED_PROBES: usize = 20;

/// The findings of [`diagnose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Server kind and version.
    pub server: String,
    /// Number of timed probes. A probe consists of three script calls, one after another.
    pub probes: usize,
    /// Median of the probes' durations per call.
    pub median: Duration,
    /// Longest of the probes' durations per call.
    pub worst: Duration,
    /// Store clock minus local clock, in microseconds; accurate to half a round trip.
    pub clock_difference_us: i64,
    /// The eviction policy, if it can delete counters before they expire.
    pub evicts: Option<String>,
}

/// Connects to the store, runs the real scripts on a separate key, and measures the clock difference. `wall_us` returns
/// the local time in microseconds since 1970.
///
/// # Errors
/// Fails if the store cannot be used; the message gives the reason.
pub async fn diagnose(config: &Config, wall_us: &dyn Fn() -> u64) -> Result<Diagnosis, String> {
    let scripts = Arc::new(Scripts::new());
    let (mut link, config) = open_link(&find_cluster(config.clone()).await, &scripts).await?;
    let config = &config;
    let mut durations = Vec::with_capacity(TIMED_PROBES);
    for _ in 0..TIMED_PROBES {
        let start = Instant::now();
        link.probe(config).await?;
        durations.push(start.elapsed() / PROBE_CALLS);
    }
    durations.sort_unstable();
    let asked = timeout(CONNECT_TIMEOUT, fetch_info_and_clock(config, wall_us)).await;
    let (info, clock_difference_us) = asked
        .map_err(|_| format!("no answer to INFO and TIME within {CONNECT_TIMEOUT:?}"))?
        .map_err(|error| describe_error(&error))?;
    let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let server = match (line("valkey_version"), line("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    };
    // Counters have an expiry, so the volatile-* policies can evict them too.
    let policy = line("maxmemory_policy").filter(|policy| *policy != "noeviction");
    let evicts = policy.filter(|_| line("maxmemory").is_some_and(|bytes| bytes != "0")).map(str::to_owned);
    Ok(Diagnosis {
        server,
        probes: TIMED_PROBES,
        median: durations[TIMED_PROBES / 2],
        worst: durations[TIMED_PROBES - 1],
        clock_difference_us,
        evicts,
    })
}

/// Connects to the store; in a cluster, to the first listed node that answers and knows the slots. Returns the
/// configuration of that node. The probe alone would also pass on a single server, which has no slots.
async fn open_link(config: &Config, scripts: &Arc<Scripts>) -> Result<(Link, Config), String> {
    let Some(nodes) = &config.cluster else { return Ok((Link::open(config, scripts).await?, config.clone())) };
    let mut failures = Vec::new();
    for (host, port) in nodes.iter() {
        let node = Config { server: with_address(&config.server, host, *port), ..config.clone() };
        match open_cluster_node(&node, host, *port, scripts).await {
            Ok(link) => return Ok((link, node)),
            Err(why) => failures.push(format!("{host}:{port}: {why}")),
        }
    }
    Err(failures.join("; "))
}

/// Asks a cluster node for the slots, as the store does at the start, and then probes the node.
async fn open_cluster_node(node: &Config, host: &str, port: u16, scripts: &Arc<Scripts>) -> Result<Link, String> {
    let asked = timeout(CONNECT_TIMEOUT, fetch_lane_addresses(node, host, port)).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}{}", timeout_hint(node))))?;
    Link::open(node, scripts).await
}

/// Returns the `INFO` text and the clock difference in microseconds.
async fn fetch_info_and_clock(config: &Config, wall_us: &dyn Fn() -> u64) -> Result<(String, i64), RedisError> {
    let mut connection = dial(config).await?;
    let info = send_command(&mut connection, &redis::cmd("INFO")).await?;
    let before = wall_us();
    let time = send_command(&mut connection, &redis::cmd("TIME")).await?;
    let here = before + (wall_us().saturating_sub(before)) / 2;
    let (seconds, micros) = <(u64, u64)>::from_redis_value(time)?;
    let there = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Ok((String::from_redis_value(info)?, there.cast_signed().wrapping_sub(here.cast_signed())))
}
