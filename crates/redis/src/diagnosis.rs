//! Store diagnosis for `tollgate doctor`.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisError};
use tokio::time::{Instant, timeout};

use crate::config::{CONNECT_TIMEOUT, Config};
use crate::link::{Link, PROBE_CALLS, describe, dial, find_cluster, send};
use crate::script::Scripts;

/// Number of timed probes.
const CALLS: usize = 20;

/// The findings of [`diagnose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Server kind and version.
    pub server: String,
    /// Number of timed script calls.
    pub calls: usize,
    /// Median duration of a call.
    pub median: Duration,
    /// Longest duration of a call.
    pub worst: Duration,
    /// Store clock minus local clock, in microseconds; accurate to half a round trip.
    pub clock_difference_us: i64,
    /// The eviction policy, if it can delete counters before they expire.
    pub evicts: Option<String>,
}

/// Connects like a store, runs the real scripts on a separate key, and compares the store's clock with `wall_us`, which
/// returns microseconds since 1970.
///
/// # Errors
/// If the store cannot be used; the message gives the reason.
pub async fn diagnose(config: &Config, wall_us: &dyn Fn() -> u64) -> Result<Diagnosis, String> {
    let scripts = Arc::new(Scripts::new());
    let config = &find_cluster(config.clone()).await;
    let mut link = Link::open(config, &scripts).await?;
    let mut durations = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        link.probe(config).await?;
        durations.push(start.elapsed() / PROBE_CALLS);
    }
    durations.sort_unstable();
    let asked = timeout(CONNECT_TIMEOUT, ask(config, wall_us)).await;
    let (info, clock_difference_us) = asked
        .map_err(|_| format!("no answer to INFO and TIME within {CONNECT_TIMEOUT:?}"))?
        .map_err(|error| describe(&error))?;
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
        calls: CALLS,
        median: durations[CALLS / 2],
        worst: durations[CALLS - 1],
        clock_difference_us,
        evicts,
    })
}

/// Returns the `INFO` text and the clock difference in microseconds.
async fn ask(config: &Config, wall_us: &dyn Fn() -> u64) -> Result<(String, i64), RedisError> {
    let mut connection = dial(config).await?;
    let info = send(&mut connection, &redis::cmd("INFO")).await?;
    let before = wall_us();
    let time = send(&mut connection, &redis::cmd("TIME")).await?;
    let here = before + (wall_us().saturating_sub(before)) / 2;
    let (seconds, micros) = <(u64, u64)>::from_redis_value(time)?;
    let there = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Ok((String::from_redis_value(info)?, there.cast_signed().wrapping_sub(here.cast_signed())))
}
