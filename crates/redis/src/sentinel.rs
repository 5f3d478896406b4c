//! Finds the primary through Redis Sentinel.
//!
//! Whenever a connection is opened, the sentinels are asked one after the other. After a failover, the old primary
//! refuses writes or is gone, so the connection is opened again and the sentinels name the new primary. A partitioned
//! sentinel may still name the old primary, so a server is used only if the server itself reports that it is a primary.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, FromRedisValue, RedisConnectionInfo, Value};
use tokio::time::timeout;

use crate::config::Config;
use crate::link::{describe_dial_error, describe_error, dial_to, send_command};

/// Timeout for each sentinel, and for the server that it names.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// The sentinels and the name of the primary that they watch.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Sentinels {
    /// Hosts and ports of the sentinels.
    pub(crate) seeds: Vec<(String, u16)>,
    /// The name of the primary in the sentinels' configuration.
    pub(crate) master: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("seeds", &self.seeds).field("master", &self.master).finish_non_exhaustive()
    }
}

impl Sentinels {
    /// Connects to the primary.
    ///
    /// # Errors
    /// Returns the problem with each sentinel, or with the server that the sentinel named.
    pub(crate) async fn connect(&self, config: &Config) -> Result<MultiplexedConnection, String> {
        let mut problems = Vec::new();
        for (host, port) in &self.seeds {
            let found = timeout(ANSWER_TIMEOUT, self.find_primary(config, host, *port)).await;
            let primary = match found.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}"))) {
                Ok(primary) => primary,
                Err(why) => {
                    problems.push(format!("{host}:{port}: {why}"));
                    continue;
                }
            };
            let connected = timeout(ANSWER_TIMEOUT, open_primary(config, &primary)).await;
            match connected.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}"))) {
                Ok(connection) => return Ok(connection),
                Err(why) => problems.push(format!("{host}:{port} names {}:{}: {why}", primary.0, primary.1)),
            }
        }
        Err(format!("no primary for `{}`: {}", self.master, problems.join("; ")))
    }

    /// Asks one sentinel for the primary's host and port.
    async fn find_primary(&self, config: &Config, host: &str, port: u16) -> Result<(String, u16), String> {
        let mut settings = RedisConnectionInfo::default();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let server = with_address(&config.server, host, port).set_redis_settings(settings);
        let mut connection = dial_to(config, server).await.map_err(|error| describe_dial_error(&error, config))?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        match send_command(&mut connection, &question).await.map_err(|error| describe_error(&error))? {
            Value::Nil => {
                let known = watched_masters(&mut connection).await;
                Err(format!("the sentinel watches no master `{}`; known: {}", self.master, known.join(", ")))
            }
            reply => {
                let (host, port) = <(String, String)>::from_redis_value(reply).map_err(|error| error.to_string())?;
                let port = port.parse().map_err(|_| format!("{port} is not a port"))?;
                Ok((host, port))
            }
        }
    }
}

/// Returns the names of the masters that a sentinel watches.
async fn watched_masters(connection: &mut MultiplexedConnection) -> Vec<String> {
    let reply = send_command(connection, redis::cmd("SENTINEL").arg("MASTERS")).await.unwrap_or(Value::Nil);
    let fields = Vec::<Vec<String>>::from_redis_value(reply).unwrap_or_default();
    // Each master is a list of field names and values, starting with `name` and its value.
    fields.into_iter().filter_map(|fields| fields.into_iter().nth(1)).collect()
}

/// Connects to a server and checks that it is a primary.
async fn open_primary(config: &Config, (host, port): &(String, u16)) -> Result<MultiplexedConnection, String> {
    let connection = dial_to(config, with_address(&config.server, host, *port)).await;
    let mut connection = connection.map_err(|error| describe_dial_error(&error, config))?;
    match send_command(&mut connection, &redis::cmd("ROLE")).await.map_err(|error| describe_error(&error))? {
        Value::Array(fields) => match fields.first().map(String::from_redis_value_ref) {
            Some(Ok(role)) if role == "master" => Ok(connection),
            Some(Ok(role)) => Err(format!("the server's role is {role}, not master")),
            Some(Err(_)) | None => Err("unexpected reply to ROLE".to_owned()),
        },
        _ => Err("unexpected reply to ROLE".to_owned()),
    }
}

/// Returns the same connection settings with another host and port.
pub(crate) fn with_address(server: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match server.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    server.clone().set_addr(address)
}
