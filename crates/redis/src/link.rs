//! A connection to the store, and calls of the scripts on it.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value,
};
use tokio::time::timeout;
use tollgate_core::{Ask, Cost, Limit, Nanos, Rate, TokenBucket};
use tollgate_engine::store::{Charge, StoreVerb};

use crate::config::{CONNECT_TIMEOUT, Config};
use crate::params::EncodedLimits;
use crate::request::{Call, Decider, QueuedCharge, QueuedGroup, calls};
use crate::script::{Script, Scripts};

/// A connection on which the scripts were probed.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// The store refused it before it changed anything.
    Refused(String),
    /// The same, because the server has become a replica.
    ReadOnly(String),
    /// The connection broke, or the reply is invalid. The call may have been carried out.
    Lost(String),
    /// No answer within the deadline; it may still arrive, and is then ignored.
    Late,
}

impl CallError {
    /// Describes the error in one line, for the log.
    pub(crate) fn describe(&self, config: &Config) -> String {
        match self {
            Self::Refused(why) | Self::ReadOnly(why) => format!("refused: {why}"),
            Self::Lost(why) => format!("connection lost: {why}"),
            Self::Late => format!("no answer within {:?}", config.deadline),
        }
    }
}

impl Link {
    /// Connects, loads the scripts and lets them write and delete a key of their own. A ping would not
    /// prove that the scripts can run and write: a replica, a full store and a user without
    /// permission all answer pings.
    ///
    /// # Errors
    /// Why the store cannot be used, for the log.
    pub(crate) async fn open(config: &Config, scripts: &Arc<Scripts>) -> Result<Self, String> {
        // The timeout of the client does not cover everything it does, so this one is around all of
        // it.
        let connection = timeout(CONNECT_TIMEOUT, connect(config, scripts)).await;
        let connection = connection.map_err(|_| format!("no connection within {:?}", CONNECT_TIMEOUT))?;
        let mut connection = connection.map_err(|error| describe(&error))?;
        if timeout(CONNECT_TIMEOUT, is_cluster(&mut connection)).await.unwrap_or(false) {
            return Err(CLUSTER.to_owned());
        }
        let mut link = Self { connection, scripts: scripts.clone() };
        link.probe(config).await?;
        Ok(link)
    }

    /// Lets the scripts run every command that they need on a key of their own: an error after the first write of a call would
    /// leave open what was decided.
    ///
    /// # Errors
    /// Why the store cannot be used, for the log.
    pub(crate) async fn probe(&mut self, config: &Config) -> Result<(), String> {
        for groups in probe(config)? {
            let calls = calls(groups.iter().enumerate(), self.scripts.special.is_some());
            for result in self.call(&calls, config).await {
                result.map_err(|error| error.describe(config))?;
            }
        }
        Ok(())
    }

    /// Sends all calls in one write; returns their results. A store that does not know a script is sent its
    /// source, within the same deadline; nothing else is repeated.
    pub(crate) async fn call(&mut self, calls: &[Call<'_>], config: &Config) -> Vec<Result<Vec<u8>, CallError>> {
        let mut results = vec![Err(CallError::Late); calls.len()];
        // At the deadline, calls that were answered keep their results.
        let _ = timeout(config.deadline, self.call_without_deadline(calls, &mut results)).await;
        results
    }

    async fn call_without_deadline(&mut self, calls: &[Call<'_>], results: &mut [Result<Vec<u8>, CallError>]) {
        let commands = calls.iter().map(|call| call.command(["EVALSHA", self.script(call.decider).sha()])).collect();
        let mut unknown = Vec::new();
        for (index, reply) in self.send_all(commands).await.into_iter().enumerate() {
            match reply {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => unknown.push(index),
                reply => results[index] = read_reply(reply),
            }
        }
        if unknown.is_empty() {
            return;
        }
        let whole = |index: &usize| calls[*index].command(["EVAL", self.script(calls[*index].decider).source()]);
        let commands = unknown.iter().map(whole).collect();
        for (index, reply) in unknown.iter().zip(self.send_all(commands).await) {
            results[*index] = read_reply(reply);
        }
    }

    fn script(&self, decider: Decider) -> &Script {
        match decider {
            Decider::Special => self.scripts.special.as_ref().unwrap_or(&self.scripts.general),
            Decider::General => &self.scripts.general,
        }
    }

    /// Sends commands in one write; returns a reply for each.
    async fn send_all(&mut self, commands: Vec<Cmd>) -> Vec<Result<Value, RedisError>> {
        if let [command] = &*commands {
            return vec![send(&mut self.connection, command).await];
        }
        let (mut pipeline, count) = (redis::Pipeline::with_capacity(commands.len()), commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        match self.connection.send_packed_commands(&pipeline, 0, count).await {
            // The client returns errors of the server as values.
            Ok(values) if values.len() == count => values.into_iter().map(Value::extract_error).collect(),
            Ok(_) => vec![Err((ErrorKind::UnexpectedReturnType, "fewer replies than commands").into()); count],
            Err(error) => vec![Err(error); count],
        }
    }
}

fn read_reply(reply: Result<Value, RedisError>) -> Result<Vec<u8>, CallError> {
    match reply {
        Ok(Value::BulkString(reply)) => Ok(reply),
        Ok(_) => Err(CallError::Lost("unexpected reply of the script".to_owned())),
        // Errors of the server are raised by the first write or before, see the scripts.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            Err(CallError::ReadOnly(describe(&error)))
        }
        Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Err(CallError::Refused(describe(&error)))
        }
        Err(error) => Err(CallError::Lost(describe(&error))),
    }
}

/// A node of a cluster answers for some keys and redirects others, so it would seem to be up and
/// down in turns. It counts as down.
const CLUSTER: &str = "Redis Cluster is not supported; use a server outside of a cluster";

/// Whether the server says that it belongs to a cluster. One that does not say is used like any
/// other.
async fn is_cluster(connection: &mut MultiplexedConnection) -> bool {
    let said = send(connection, redis::cmd("INFO").arg("cluster")).await;
    let text = said.and_then(|value| Ok(String::from_redis_value(value)?));
    text.is_ok_and(|text| text.lines().any(|line| line.trim_end() == "cluster_enabled:1"))
}

/// The number of calls of a probe.
pub(crate) const PROBE_CALLS: u32 = 3;

/// Returns the groups of each call of a probe: the special script sets a key and changes it in place, the general one deletes it
/// and then asks what it is. Keys of limits have braces, so none has this name.
fn probe(config: &Config) -> Result<[Vec<QueuedGroup>; PROBE_CALLS as usize], String> {
    let rate = Rate::new(1_000, Nanos::SECOND).map_err(|error| error.to_string())?;
    let bucket = TokenBucket::new(rate, 1_000).map_err(|error| error.to_string())?;
    let limits = Limit::from(bucket).into();
    let charge = Charge {
        key: b"",
        limits_id: 0,
        limits: &limits,
        earlier: &[],
        ask: Ask::Exactly(Cost::ONE),
        stamps: None,
        windows: &[],
    };
    let encoded = Arc::new(EncodedLimits::new(&limits)?);
    let key = format!("{}:probe", config.namespace).into_bytes();
    let group = |verb| QueuedGroup { charges: vec![QueuedCharge::new(verb, &charge, 0, key.clone(), encoded.clone())] };
    let three = (0..3).map(|_| group(StoreVerb::Check)).collect();
    Ok([three, vec![group(StoreVerb::Reset)], vec![group(StoreVerb::Peek)]])
}

/// Sends a command. The client returns errors of the server as values, which are extracted here.
pub(crate) async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await?.extract_error()
}

async fn connect(config: &Config, scripts: &Scripts) -> Result<MultiplexedConnection, RedisError> {
    let mut connection = dial(config).await?;
    // Before authentication the server rejects anything as long as the script, with a misleading
    // error.
    send(&mut connection, &redis::cmd("PING")).await?;
    for script in [Some(&scripts.general), scripts.special.as_ref()].into_iter().flatten() {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        send(&mut connection, &load).await?;
    }
    Ok(connection)
}

/// Connects without timeouts: callers have their own.
pub(crate) async fn dial(config: &Config) -> Result<MultiplexedConnection, RedisError> {
    match &config.sentinels {
        Some(sentinels) => {
            let connected = sentinels.connect(config).await;
            connected.map_err(|why| (ErrorKind::InvalidClientConfig, "sentinel", why).into())
        }
        None => dial_to(config, config.server.clone()).await,
    }
}

/// Connects to one server.
pub(crate) async fn dial_to(config: &Config, server: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client(config, server)?.get_multiplexed_async_connection_with_config(&settings).await
}

#[cfg(feature = "tls")]
fn client(config: &Config, server: ConnectionInfo) -> Result<Client, RedisError> {
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

    if !matches!(server.addr(), ConnectionAddr::TcpTls { .. }) {
        return Client::open(server);
    }
    // If the process has already chosen a provider, that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root_cert = config.authority.as_ref().map(std::fs::read).transpose()?;
    let client_tls = match &config.certificate {
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: std::fs::read(certificate)?, client_key: std::fs::read(key)? })
        }
        None => None,
    };
    Client::build_with_tls(server, TlsCertificates { client_tls, root_cert })
}

#[cfg(not(feature = "tls"))]
fn client(_config: &Config, server: ConnectionInfo) -> Result<Client, RedisError> {
    Client::open(server)
}

/// Describes an error in one line, for the log: the message of the server with its code, without
/// the position in the script.
pub(crate) fn describe(error: &RedisError) -> String {
    let mut text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // Our own message, see `dial`.
        (None, Some(detail)) if error.kind() == ErrorKind::InvalidClientConfig => detail.to_owned(),
        _ => error.to_string(),
    };
    text.truncate(text.find(['\r', '\n']).unwrap_or(text.len()));
    if let Some(place) = text.find(", on @user_script").and_then(|place| text[..place].rfind(" script: ")) {
        text.truncate(place);
    }
    text
}
