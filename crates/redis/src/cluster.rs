//! The primaries of a Redis Cluster, and the routing of lanes to primaries.
//!
//! Every primary has its own queue, connection and circuit breaker, so a failing primary affects only its own lanes. A
//! task refreshes the slot map at regular intervals, and when a primary is lost or a slot moves.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate_engine::store::StoreError;

use crate::batcher::{CallCounters, Health};
use crate::config::{CONNECT_TIMEOUT, Config, PROBE_EVERY};
use crate::lanes::{LANES, SLOTS_PER_LANE, TAGS};
use crate::link::{describe, describe_dial, dial_to, send};
use crate::primary::Primary;
use crate::script::Scripts;
use crate::sentinel::with_address;

/// Refresh interval of the slot map while the cluster is stable.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of primaries; further primaries are ignored. A cluster has at most 1,000 nodes.
const MAX_PRIMARIES: usize = 1_000;

/// The primaries of a cluster, and the primary of each lane.
pub(crate) struct Cluster {
    config: Config,
    scripts: Arc<Scripts>,
    counters: Arc<CallCounters>,
    routes: RwLock<Routes>,
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
    /// Starts the task that tracks the cluster. It ends when the `Cluster` is dropped.
    pub(crate) fn start(config: Config, scripts: Arc<Scripts>, counters: Arc<CallCounters>) -> Arc<Self> {
        let cluster = Arc::new(Self {
            config,
            scripts,
            counters,
            routes: RwLock::default(),
            stale: Arc::default(),
            health: watch::channel(Health::Connecting).0,
        });
        tokio::spawn(follow(Arc::downgrade(&cluster), cluster.stale.clone()));
        cluster
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Returns the primary of a lane.
    ///
    /// # Errors
    /// If the primary is unknown.
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

    /// Returns the lowest lane of the primary that has a lane; the lane itself if its primary is unknown.
    pub(crate) fn first_lane_of_primary(&self, lane: usize) -> usize {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(primary)) = routes.lanes.get(lane) else { return lane };
        let is_same = |other: &Option<Arc<Primary>>| other.as_ref().is_some_and(|other| Arc::ptr_eq(other, primary));
        routes.lanes.iter().position(is_same).unwrap_or(lane)
    }

    /// Returns the primary at an address that a redirection names.
    ///
    /// # Errors
    /// If the address is invalid, or there are too many primaries.
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

    /// Fetches the slot map from the first node that answers, and applies it even if the lane count cannot be checked.
    ///
    /// # Errors
    /// If some lanes cannot be used.
    async fn refresh(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        for (host, port) in self.nodes() {
            let asked = timeout(CONNECT_TIMEOUT, self.ask(&host, port)).await;
            match asked.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}"))) {
                Ok(addresses) => {
                    let checked = self.check_lanes(&addresses).await;
                    let is_different = matches!(checked, Err(LanesError::Different(_)));
                    self.use_lanes(if is_different { &[] } else { &addresses });
                    return checked.map_err(|error| match error {
                        LanesError::Unchecked(why) | LanesError::Different(why) => why,
                    });
                }
                Err(why) => problems.push(format!("{host}:{port}: {why}")),
            }
        }
        Err(problems.join("; "))
    }

    /// Returns the known primaries that are up, then the seeds.
    fn nodes(&self) -> Vec<(String, u16)> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let up = routes.primaries.iter().filter(|(_, primary)| *primary.watch_health().borrow() == Health::Up);
        let up = up.filter_map(|(address, _)| split_address(address));
        up.chain(self.config.cluster.iter().flat_map(|seeds| seeds.iter().cloned())).collect()
    }

    /// Asks one node for the primary's address of each lane.
    async fn ask(&self, host: &str, port: u16) -> Result<Vec<Option<String>>, String> {
        let mut connection = dial_to(&self.config, with_address(&self.config.server, host, port))
            .await
            .map_err(|error| describe_dial(&error, &self.config))?;
        let slots = send(&mut connection, redis::cmd("CLUSTER").arg("SLOTS")).await.map_err(|error| {
            let why = describe(&error);
            let hint =
                if why.contains("cluster support disabled") { "; write redis:// for a single server" } else { "" };
            format!("{why}{hint}")
        })?;
        let addresses = lanes_by_slots(slots, host).ok_or("unexpected reply to CLUSTER SLOTS")?;
        if addresses.iter().all(Option::is_none) {
            return Err("it knows no slots: the cluster was not created yet".to_owned());
        }
        Ok(addresses)
    }

    /// Checks the store's lane count, which is recorded in the first lane, against this node's.
    async fn check_lanes(&self, addresses: &[Option<String>]) -> Result<(), LanesError> {
        let Some((host, port)) = addresses.first().and_then(|address| split_address(address.as_deref()?)) else {
            return Err(LanesError::Unchecked("lane 0 has no primary".to_owned()));
        };
        let recorded = async {
            let mut first = dial_to(&self.config, with_address(&self.config.server, &host, port)).await?;
            recorded_lanes(&mut first, &self.config.namespace).await
        };
        let (key, found) = match timeout(CONNECT_TIMEOUT, recorded).await {
            Ok(Ok(recorded)) => recorded,
            Ok(Err(error)) => return Err(LanesError::Unchecked(format!("{host}:{port}: {}", describe(&error)))),
            Err(_) => {
                return Err(LanesError::Unchecked(format!("{host}:{port}: no answer within {CONNECT_TIMEOUT:?}")));
            }
        };
        if found != format!("lanes={LANES}") {
            return Err(LanesError::Different(format!(
                "the store says `{found}` in {key}, this node needs `lanes={LANES}`: it would count keys elsewhere"
            )));
        }
        Ok(())
    }

    fn use_lanes(&self, addresses: &[Option<String>]) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let lanes = addresses
            .iter()
            .map(|address| address.as_deref().and_then(|address| self.find_or_start(&mut routes, address)))
            .collect();
        routes.lanes = lanes;
        let in_use = |address: &String| addresses.iter().flatten().any(|used| used == address);
        routes.primaries.retain(|address, _| in_use(address));
    }

    /// Returns the overall health: up if the primaries of all lanes are up.
    fn overall(&self) -> Health {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let unserved = routes.lanes.iter().filter(|lane| lane.is_none()).count();
        if routes.lanes.is_empty() || unserved > 0 {
            return Health::Down {
                why: format!("{} of {LANES} lanes have no primary", LANES - routes.lanes.len() + unserved),
            };
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

/// Result of a failed lane count check.
enum LanesError {
    /// The server of the first lane did not answer. Other lanes can still be used.
    Unchecked(String),
    /// The store has another lane count, so no lane may be used.
    Different(String),
}

/// Splits `host:port`.
fn split_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Keeps the routes and the health up to date until the cluster is dropped.
async fn follow(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    loop {
        let Some(cluster_now) = cluster.upgrade() else { return };
        let refreshed = cluster_now.refresh().await;
        let health = match refreshed {
            Ok(()) => cluster_now.overall(),
            Err(why) => Health::Down { why },
        };
        let is_up = health == Health::Up;
        // While some primaries are still connecting, the last health stays.
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

/// Returns the primary's address of each lane from a `CLUSTER SLOTS` reply. An empty host means `asked`, the host that
/// sent the reply.
fn lanes_by_slots(slots: Value, asked: &str) -> Option<Vec<Option<String>>> {
    let mut lanes = vec![None; LANES];
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
            if (first..=last).contains(&(lane as u16 * SLOTS_PER_LANE)) {
                *known = Some(address.clone());
            }
        }
    }
    Some(lanes)
}

/// Records the lane count in the store, unless one is already recorded. Returns the key and its value.
async fn recorded_lanes(
    connection: &mut MultiplexedConnection,
    namespace: &str,
) -> Result<(String, String), RedisError> {
    let key = format!("{namespace}:{{{}}}meta", TAGS[0]);
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(format!("lanes={LANES}")).arg("NX");
    send(connection, &set).await?;
    let found = send(connection, redis::cmd("GET").arg(&key)).await?;
    Ok((key, String::from_redis_value(found).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_become_lanes() {
        let node = |host: &str, port| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString(b"id".to_vec())])
        };
        let range = |first, last, host: &str, port| {
            Value::Array(vec![Value::Int(first), Value::Int(last), node(host, port), node("replica", 1)])
        };
        let slots = Value::Array(vec![range(0, 255, "a", 1), range(256, 8_000, "", 2)]);
        let lanes = lanes_by_slots(slots, "asked").unwrap();
        assert_eq!(lanes[0].as_deref(), Some("a:1"));
        assert_eq!((lanes[1].as_deref(), lanes[31].as_deref()), (Some("asked:2"), Some("asked:2")));
        assert_eq!(lanes[32], None, "slot 8192 belongs to no range");
        assert_eq!(lanes_by_slots(Value::Array(vec![Value::Int(1)]), "asked"), None);
        assert_eq!(lanes_by_slots(Value::Nil, "asked"), None);
    }
}
