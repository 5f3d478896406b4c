//! The primaries of a Redis Cluster, and the routing of lanes to primaries.
//!
//! Every primary has its own queue, connection and circuit breaker, so a failing primary affects only its own lanes. A
//! task refreshes the slot map at regular intervals, and when a primary is lost or a slot moves.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate_engine::store::StoreError;

use crate::batcher::{CallCounters, Health};
use crate::config::{CONNECT_TIMEOUT, Config, PROBE_EVERY};
use crate::lanes::{HASH_TAGS, LANE_SLOT_STRIDE, LaneCount, SHARDS, shard_of};
use crate::link::{describe_dial_error, describe_error, dial_to, send_command, timeout_hint};
use crate::primary::Primary;
use crate::script::Scripts;
use crate::sentinel::with_address;

/// Refresh interval of the slot map while the cluster is stable.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of primaries; further primaries are ignored. Redis recommends at most 1,000 nodes per cluster.
const MAX_PRIMARIES: usize = 1_000;

/// The primaries of a cluster, and the primary of each lane.
pub(crate) struct Cluster {
    config: Config,
    scripts: Arc<Scripts>,
    counters: Arc<CallCounters>,
    routes: RwLock<Routes>,
    /// The lane count of the store, set when it is first known.
    lane_count: OnceLock<LaneCount>,
    /// Notified when the slot map must be refreshed.
    stale: Arc<Notify>,
    health: watch::Sender<Health>,
}

#[derive(Debug, Default)]
struct Routes {
    /// The primary of each lane, if known.
    lanes: Vec<Option<Arc<Primary>>>,
    /// The primaries by `host:port`.
    primaries: HashMap<String, Arc<Primary>>,
}

impl Cluster {
    /// Starts the task that tracks the cluster. The task ends when the `Cluster` is dropped.
    pub(crate) fn start(config: Config, scripts: Arc<Scripts>, counters: Arc<CallCounters>) -> Arc<Self> {
        let lane_count = config.lanes.map_or_else(OnceLock::new, OnceLock::from);
        let cluster = Arc::new(Self {
            config,
            scripts,
            counters,
            routes: RwLock::default(),
            lane_count,
            stale: Arc::default(),
            health: watch::channel(Health::Connecting).0,
        });
        tokio::spawn(track_cluster(Arc::downgrade(&cluster), cluster.stale.clone()));
        cluster
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Returns the lane of a partition key.
    pub(crate) fn lane_of(&self, partition_key: &[u8]) -> u8 {
        self.lane_of_shard(shard_of(partition_key))
    }

    /// Returns the lane of a shard. While the lane count is unknown, no lane has a primary, so the result is not used.
    pub(crate) fn lane_of_shard(&self, shard: u8) -> u8 {
        self.lane_count.get().map_or(shard, |count| count.lane_of_shard(shard))
    }

    /// Returns the primary of a lane.
    ///
    /// # Errors
    /// Fails if the primary is unknown.
    pub(crate) fn primary(&self, lane: usize) -> Result<Arc<Primary>, StoreError> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let known = routes.lanes.get(lane).cloned().flatten();
        known.ok_or_else(|| StoreError::Unavailable {
            why: match &*self.health.borrow() {
                Health::Down { why } => format!("{} is down: {why}", self.config.address),
                Health::Up | Health::Connecting => format!("no primary of lane {lane} is known"),
            },
        })
    }

    /// Returns the lowest lane that has the same primary as `lane`, or `lane` itself if its primary is unknown.
    pub(crate) fn first_lane_of_primary(&self, lane: usize) -> usize {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(primary)) = routes.lanes.get(lane) else { return lane };
        let is_same = |other: &Option<Arc<Primary>>| other.as_ref().is_some_and(|other| Arc::ptr_eq(other, primary));
        routes.lanes.iter().position(is_same).unwrap_or(lane)
    }

    /// Returns the primary at the target address of a redirection.
    ///
    /// # Errors
    /// Fails if the address is invalid, or there are too many primaries.
    pub(crate) fn primary_at(&self, address: &str) -> Result<Arc<Primary>, StoreError> {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        self.find_or_start(&mut routes, address)
            .ok_or_else(|| StoreError::Unavailable { why: format!("cannot use {address}: invalid, or too many nodes") })
    }

    /// Records that a lane has moved to `address`.
    pub(crate) fn move_lane(&self, lane: usize, address: &str) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let primary = self.find_or_start(&mut routes, address);
        if let Some(known) = routes.lanes.get_mut(lane) {
            *known = primary;
        }
        self.stale.notify_one();
    }

    fn find_or_start(&self, routes: &mut Routes, address: &str) -> Option<Arc<Primary>> {
        if let Some(known) = routes.primaries.get(address) {
            return Some(known.clone());
        }
        let (host, port) = split_address(address).filter(|_| routes.primaries.len() < MAX_PRIMARIES)?;
        let config = Config {
            server: with_address(&self.config.server, &host, port),
            address: address.to_owned(),
            cluster: Some(Arc::default()),
            ..self.config.clone()
        };
        let primary = Primary::start(config, self.scripts.clone(), self.counters.clone(), Some(self.stale.clone()));
        let primary = Arc::new(primary);
        routes.primaries.insert(address.to_owned(), primary.clone());
        Some(primary)
    }

    /// Fetches the slot map from the first node that answers. If the lane count is known, applies the slot map even if
    /// the count cannot be checked.
    ///
    /// # Errors
    /// Fails if no node answers, or if the lane count cannot be checked or differs.
    async fn refresh(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        for (host, port) in self.addresses_to_ask() {
            let asked = timeout(CONNECT_TIMEOUT, fetch_lane_addresses(&self.config, &host, port)).await;
            let hint = timeout_hint(&self.config);
            match asked.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}{hint}"))) {
                Ok(addresses) => {
                    let checked = self.check_lane_count(&addresses).await;
                    match self.lane_count.get().filter(|_| !matches!(checked, Err(LaneCountError::Different(_)))) {
                        Some(count) => self.set_lane_primaries(&addresses, *count),
                        None => *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Routes::default(),
                    }
                    return checked.map_err(|error| match error {
                        LaneCountError::Unchecked(why) | LaneCountError::Different(why) => why,
                    });
                }
                Err(why) => problems.push(format!("{host}:{port}: {why}")),
            }
        }
        Err(problems.join("; "))
    }

    /// Returns the known primaries that are up, then the seeds.
    fn addresses_to_ask(&self) -> Vec<(String, u16)> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let up = routes.primaries.iter().filter(|(_, primary)| *primary.watch_health().borrow() == Health::Up);
        let up = up.filter_map(|(address, _)| split_address(address));
        up.chain(self.config.cluster.iter().flat_map(|seeds| seeds.iter().cloned())).collect()
    }

    /// Reads the lane count from lane 0, which every store uses. If the store has no lane count, records this node's
    /// count, or two lanes per primary if this node has no count either. If this node has a count, checks that the
    /// count in the store is equal.
    async fn check_lane_count(&self, addresses: &[Option<String>]) -> Result<(), LaneCountError> {
        let Some((host, port)) = addresses.first().and_then(|address| split_address(address.as_deref()?)) else {
            return Err(LaneCountError::Unchecked("lane 0 has no primary".to_owned()));
        };
        let own = self.lane_count.get().copied();
        let primaries: HashSet<&String> = addresses.iter().flatten().collect();
        // While slots are being assigned, the number of primaries may still grow.
        let chosen = addresses.iter().all(Option::is_some).then(|| LaneCount::for_primaries(primaries.len()));
        let recorded = async {
            let mut first = dial_to(&self.config, with_address(&self.config.server, &host, port)).await?;
            record_lane_count(&mut first, &self.config.namespace, own.or(chosen)).await
        };
        let (key, found) = match timeout(CONNECT_TIMEOUT, recorded).await {
            Ok(Ok(recorded)) => recorded,
            Ok(Err(error)) => {
                return Err(LaneCountError::Unchecked(format!("{host}:{port}: {}", describe_error(&error))));
            }
            Err(_) => {
                return Err(LaneCountError::Unchecked(format!("{host}:{port}: no answer within {CONNECT_TIMEOUT:?}")));
            }
        };
        let Some(found) = found else {
            return Err(LaneCountError::Unchecked(
                "the cluster has no lane count yet, and slots have no primary".to_owned(),
            ));
        };
        let recorded = found.strip_prefix("lanes=").and_then(|count| LaneCount::new(count.parse().ok()?));
        match (recorded, own) {
            (Some(recorded), None) => {
                self.lane_count.get_or_init(|| recorded);
                Ok(())
            }
            (Some(recorded), Some(own)) if recorded == own => Ok(()),
            (_, Some(own)) => Err(LaneCountError::Different(format!(
                "the store has `{found}` in {key}, but this node needs `lanes={}`: it would count keys in other lanes",
                own.get()
            ))),
            (None, None) => Err(LaneCountError::Different(format!(
                "the store has `{found}` in {key}, expected `lanes=` and a number from 1 to 64"
            ))),
        }
    }

    fn set_lane_primaries(&self, addresses: &[Option<String>], count: LaneCount) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let used = (0..).zip(addresses).map(|(lane, address)| address.as_ref().filter(|_| count.uses_lane(lane)));
        let used: Vec<Option<&String>> = used.collect();
        let lanes = used.iter().map(|address| self.find_or_start(&mut routes, (*address)?)).collect();
        routes.lanes = lanes;
        routes.primaries.retain(|address, _| used.contains(&Some(address)));
    }

    /// Returns the overall health: up if the primaries of all lanes are up.
    fn overall_health(&self) -> Health {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = self.lane_count.get() else { return Health::Connecting };
        let unserved = count.get().saturating_sub(routes.lanes.iter().flatten().count() as u8);
        if unserved > 0 {
            return Health::Down { why: format!("{unserved} of {} lanes have no primary", count.get()) };
        }
        let mut connecting = false;
        for (address, primary) in &routes.primaries {
            match &*primary.watch_health().borrow() {
                Health::Up => {}
                Health::Connecting => connecting = true,
                Health::Down { why } => return Health::Down { why: format!("{address}: {why}") },
            }
        }
        if connecting { Health::Connecting } else { Health::Up }
    }
}

/// Reason why the lane count check failed.
enum LaneCountError {
    /// The lane count cannot be read from lane 0. If this node already knows the count, the other lanes can still be
    /// used.
    Unchecked(String),
    /// The store has another lane count, so no lane may be used.
    Different(String),
}

/// Splits `host:port`.
fn split_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Asks one node for the address of each lane's primary.
///
/// # Errors
/// Fails if the node does not answer, is not part of a cluster, or knows no slots; the message gives the reason.
pub(crate) async fn fetch_lane_addresses(
    config: &Config,
    host: &str,
    port: u16,
) -> Result<Vec<Option<String>>, String> {
    let mut connection = dial_to(config, with_address(&config.server, host, port))
        .await
        .map_err(|error| describe_dial_error(&error, config))?;
    let slots = send_command(&mut connection, redis::cmd("CLUSTER").arg("SLOTS")).await.map_err(|error| {
        let why = describe_error(&error);
        let hint = if why.contains("cluster support disabled") { "; write redis:// for a single server" } else { "" };
        format!("{why}{hint}")
    })?;
    let addresses = lane_addresses(slots, host).ok_or("unexpected reply to CLUSTER SLOTS")?;
    if addresses.iter().all(Option::is_none) {
        return Err("no slots are assigned: the cluster was not created yet".to_owned());
    }
    Ok(addresses)
}

/// Keeps the routes and the health up to date until the cluster is dropped.
async fn track_cluster(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    loop {
        let Some(cluster_now) = cluster.upgrade() else { return };
        let refreshed = cluster_now.refresh().await;
        let health = match refreshed {
            Ok(()) => cluster_now.overall_health(),
            Err(why) => Health::Down { why },
        };
        let is_up = health == Health::Up;
        // While some primaries are still connecting, the overall health does not change.
        if health != Health::Connecting {
            cluster_now.health.send_if_modified(|known| std::mem::replace(known, health.clone()) != health);
        }
        drop(cluster_now);
        if is_up {
            let _ = timeout(REFRESH_EVERY, stale.notified()).await;
        } else {
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }
}

/// Returns the address of the primary of each possible lane from a `CLUSTER SLOTS` reply. An empty host means `asked`,
/// the host that sent the reply.
fn lane_addresses(slots: Value, asked: &str) -> Option<Vec<Option<String>>> {
    let mut lanes = vec![None; SHARDS];
    let Value::Array(ranges) = slots else { return None };
    for range in ranges {
        let Value::Array(fields) = range else { return None };
        let [first, last, primary, ..] = <[Value; 3]>::try_from(fields.into_iter().take(3).collect::<Vec<_>>()).ok()?;
        let (first, last) = (u16::from_redis_value(first).ok()?, u16::from_redis_value(last).ok()?);
        let Value::Array(node) = primary else { return None };
        let mut node = node.into_iter();
        let host = node.next().and_then(|host| String::from_redis_value(host).ok()).filter(|host| !host.is_empty());
        let port = u16::from_redis_value(node.next()?).ok()?;
        let address = format!("{}:{port}", host.as_deref().unwrap_or(asked));
        for (lane, known) in lanes.iter_mut().enumerate() {
            if (first..=last).contains(&(lane as u16 * LANE_SLOT_STRIDE)) {
                *known = Some(address.clone());
            }
        }
    }
    Some(lanes)
}

/// Records the lane count `count` in the store, unless the store already has a lane count. Returns the key and its
/// value.
async fn record_lane_count(
    connection: &mut MultiplexedConnection,
    namespace: &str,
    count: Option<LaneCount>,
) -> Result<(String, Option<String>), RedisError> {
    let key = format!("{namespace}:{{{}}}meta", HASH_TAGS[0]);
    if let Some(count) = count {
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(format!("lanes={}", count.get())).arg("NX");
        send_command(connection, &set).await?;
    }
    let found = send_command(connection, redis::cmd("GET").arg(&key)).await?;
    let found = match found {
        Value::Nil => None,
        found => Some(String::from_redis_value(found).unwrap_or_default()),
    };
    Ok((key, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_map_becomes_lane_addresses() {
        let node = |host: &str, port| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString(b"id".to_vec())])
        };
        let range = |first, last, host: &str, port| {
            Value::Array(vec![Value::Int(first), Value::Int(last), node(host, port), node("replica", 1)])
        };
        let slots = Value::Array(vec![range(0, 255, "a", 1), range(256, 8_000, "", 2)]);
        let lanes = lane_addresses(slots, "asked").unwrap();
        assert_eq!(lanes[0].as_deref(), Some("a:1"));
        assert_eq!((lanes[1].as_deref(), lanes[31].as_deref()), (Some("asked:2"), Some("asked:2")));
        assert_eq!(lanes[32], None, "slot 8192 belongs to no range");
        assert_eq!(lane_addresses(Value::Array(vec![Value::Int(1)]), "asked"), None);
        assert_eq!(lane_addresses(Value::Nil, "asked"), None);
    }
}
