//! Counts the nodes that use the store. During a store outage, each node enforces its share of the limits, computed
//! from this count.
//!
//! Every second, each node adds itself to a sorted set, with the store's time as the score, and counts the recent
//! entries. A node that stops removes its entry; the entry of a crashed node expires. During an outage the last count
//! is used. The census has its own connection, and decisions never wait for the census.
//!
//! If the count is too low, the nodes together admit too much. If the count is too high, the nodes together admit too
//! little. So a higher count is used immediately. A lower count is used only after several lower counts in a row,
//! because nodes return one by one after a store stall.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::config::{CONNECT_TIMEOUT, Config};
use crate::lanes::HASH_TAGS;
use crate::link::{dial, send_command};

/// Interval at which a node renews its entry.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of consecutive lower counts before a lower count is used.
const MIN_LOWER_COUNTS: u32 = 3;

/// KEYS[1]: the sorted set; ARGV[1]: the node's name. Removes entries that are at least four seconds old.
const CENSUS_SCRIPT: &str = "\
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 4)
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])";

/// This node's membership in the census.
#[derive(Clone, Debug)]
pub struct Membership {
    leave: mpsc::Sender<oneshot::Sender<()>>,
}

impl Membership {
    /// Returns a membership and the receiver of its leave request.
    pub(crate) fn new() -> (Self, mpsc::Receiver<oneshot::Sender<()>>) {
        let (leave, leaving) = mpsc::channel(1);
        (Self { leave }, leaving)
    }

    /// Removes this node from the census. Used when the node stops. Completes when the server has removed the node or
    /// the census has ended, and after at most two seconds.
    pub async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.leave.send(done).await.is_ok() {
            // The wait fails only if the census has ended, and its end also removes the node.
            let _ = left.await;
        }
    }
}

/// Keeps this node in the census and sends changed counts to `nodes`, until the store is dropped or the node leaves.
pub(crate) async fn run_census(
    config: Config,
    cluster: Option<Arc<Cluster>>,
    nodes: watch::Sender<u32>,
    mut leaving: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let tag = if cluster.is_some() { format!("{{{}}}", HASH_TAGS[0]) } else { String::new() };
    let key = format!("{}:{tag}nodes", config.namespace);
    let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let mut enter = redis::cmd("EVAL");
    enter.arg(CENSUS_SCRIPT).arg(1).arg(&key).arg(&name);
    let mut leave = redis::cmd("ZREM");
    leave.arg(&key).arg(&name);
    let mut connection = None;
    let mut steady = StableCount::default();
    let done = loop {
        match timeout(CONNECT_TIMEOUT, send_census_command(&mut connection, &config, cluster.as_deref(), &enter)).await
        {
            // This node is counted even if the store reports 0.
            Ok(Ok(count)) => {
                let count = steady.next(*nodes.borrow(), count.max(1));
                nodes.send_if_modified(|known| std::mem::replace(known, count) != count);
            }
            Ok(Err(_)) | Err(_) => {
                connection = None;
                steady = StableCount::default();
            }
        }
        tokio::select! {
            () = nodes.closed() => break None,
            done = leaving.recv() => break done,
            () = tokio::time::sleep(RENEWAL_INTERVAL) => {}
        }
    };
    // If the store does not answer, the entry expires.
    let _ = timeout(CONNECT_TIMEOUT, send_census_command(&mut connection, &config, cluster.as_deref(), &leave)).await;
    if let Some(done) = done {
        let _ = done.send(());
    }
}

async fn send_census_command(
    connection: &mut Option<MultiplexedConnection>,
    config: &Config,
    cluster: Option<&Cluster>,
    command: &Cmd,
) -> Result<u32, RedisError> {
    let connection = match (connection, cluster) {
        (Some(connection), _) => connection,
        (connection, None) => connection.insert(dial(config).await?),
        (connection, Some(cluster)) => {
            let primary = cluster
                .primary(0)
                .map_err(|error| RedisError::from((ErrorKind::InvalidClientConfig, "cluster", error.to_string())))?;
            connection.insert(dial(primary.config()).await?)
        }
    };
    match send_command(connection, command).await? {
        Value::Int(count) => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
        _ => Ok(0),
    }
}

/// Uses a higher count immediately, and a lower count only after [`MIN_LOWER_COUNTS`] lower counts in a row.
#[derive(Debug, Default)]
struct StableCount {
    /// Number of consecutive new counts below the current count.
    lower: u32,
    /// The highest of these lower counts.
    highest: u32,
}

impl StableCount {
    /// Returns the count to use, given the current count (`known`) and a new count.
    fn next(&mut self, known: u32, count: u32) -> u32 {
        if count >= known {
            *self = Self::default();
            return count;
        }
        self.lower += 1;
        self.highest = self.highest.max(count);
        if self.lower < MIN_LOWER_COUNTS {
            return known;
        }
        std::mem::take(self).highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_count_is_used_immediately_and_a_lower_count_only_if_it_persists() {
        let (mut steady, mut known) = (StableCount::default(), 1);
        let seen = [5, 1, 2, 5, 4, 3, 4, 1, 1, 1, 2];
        let taken = seen.map(|count| {
            known = steady.next(known, count);
            known
        });
        assert_eq!(taken, [5, 5, 5, 5, 5, 5, 4, 4, 4, 1, 2]);
    }
}
