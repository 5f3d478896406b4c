//! How many nodes share the store, which is what a node has to know when it must decide without it.
//!
//! Every node enters itself into a list, with the store's time, and counts who has done so lately. When the store is gone the
//! last number stays: that is when it is needed. It only ever matters then, so it has a connection of its own and may fail
//! without anybody noticing.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{CONNECT_TIMEOUT, Config};
use crate::link::{dial, send};

/// How often a node says that it is there.
const EVERY: Duration = Duration::from_secs(2);

/// KEYS[1] the list, ARGV[1] who is there. Whoever has not been heard of for ten seconds is struck off.
const SCRIPT: &str = "\
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 10)
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])";

/// Takes part, and tells `nodes` whenever the number changes, for as long as anybody wants to know.
pub(crate) async fn take_part(config: Config, nodes: watch::Sender<u32>) {
    let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(1).arg(format!("{}:nodes", config.namespace)).arg(name);
    let mut connection = None;
    loop {
        let counted = timeout(CONNECT_TIMEOUT, count(&mut connection, &config, &command)).await;
        match counted {
            Ok(Ok(count)) => {
                nodes.send_if_modified(|known| std::mem::replace(known, count) != count);
            }
            Ok(Err(_)) | Err(_) => connection = None,
        }
        tokio::select! {
            () = nodes.closed() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn count(
    connection: &mut Option<MultiplexedConnection>,
    config: &Config,
    command: &Cmd,
) -> Result<u32, RedisError> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(dial(config).await?),
    };
    match send(connection, command).await? {
        // At least this one.
        Value::Int(count) => Ok(u32::try_from(count).unwrap_or(u32::MAX).max(1)),
        _ => Ok(1),
    }
}
