//! A connection to the store, for script calls.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value,
};
use tokio::time::timeout;
use tollgate_core::{Ask, Cost, Limit, Nanos, Rate, TokenBucket};
use tollgate_engine::store::{Charge, Consistency, StoreVerb};

use crate::config::{CONNECT_TIMEOUT, Config};
use crate::lanes::HASH_TAGS;
use crate::params::EncodedLimits;
use crate::request::{Call, GroupKind, QueuedCharge, QueuedGroup, Route, ScriptKind, build_calls};
use crate::script::{Script, Scripts};

/// A probed connection. Clones share the connection, and their calls are sent in order.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
}

/// Reason why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// The store refused the call before the call changed anything.
    Refused(String),
    /// The server is now a replica, and refused the call before the call changed anything.
    ReadOnly(String),
    /// The keys are on another server of the cluster.
    Moved(String),
    /// The keys are being moved to another server, and are no longer on this server.
    Ask(String),
    /// The keys are being moved to another server, and only some of them are still on this server.
    TryAgain,
    /// Too few replicas acknowledged the call. Contains the number of replicas that acknowledged the call.
    Unreplicated(i64),
    /// The connection broke, or the reply is invalid. The call may have been executed.
    Lost(String),
    /// No answer within the deadline. A later answer is ignored.
    Late,
}

impl CallError {
    /// Describes the error in one line, for the log.
    pub(crate) fn describe(&self, config: &Config) -> String {
        match self {
            Self::Refused(why) | Self::ReadOnly(why) => format!("refused: {why}"),
            Self::Moved(address) | Self::Ask(address) => format!("the keys are at {address}"),
            Self::TryAgain => "the keys are being moved".to_owned(),
            Self::Unreplicated(count) => format!("acknowledged by {count} of {} replicas", config.wait),
            Self::Lost(why) => format!("connection lost: {why}"),
            Self::Late => format!("no answer within {:?}", config.deadline),
        }
    }
}

impl Link {
    /// Connects, loads the scripts, and probes them with a separate key. A ping would not prove that the scripts can
    /// run and write: a replica, a full store and a user without permission all answer pings.
    ///
    /// # Errors
    /// Fails if the store cannot be used; the message gives the reason, for the log.
    pub(crate) async fn open(config: &Config, scripts: &Arc<Scripts>) -> Result<Self, String> {
        // The client's own timeout does not cover the whole attempt, so this timeout encloses the attempt.
        let connection = timeout(CONNECT_TIMEOUT, connect(config, scripts)).await;
        let hint = timeout_hint(config);
        let connection = connection.map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}{hint}"))?;
        let mut connection = connection.map_err(|error| describe_dial_error(&error, config))?;
        if config.cluster.is_none() && timeout(CONNECT_TIMEOUT, is_cluster(&mut connection)).await.unwrap_or(false) {
            return Err(UNDETECTED_CLUSTER.to_owned());
        }
        let mut link = Self { connection, scripts: scripts.clone() };
        link.probe(config).await?;
        Ok(link)
    }

    /// Runs every command that the scripts may call after their first write, on a separate key. If such a command
    /// failed later, the outcome of its call would be unknown.
    ///
    /// # Errors
    /// Fails if the store cannot be used; the message gives the reason, for the log.
    pub(crate) async fn probe(&mut self, config: &Config) -> Result<(), String> {
        for groups in probe_groups(config)? {
            let calls = build_calls(groups.iter().enumerate(), self.scripts.special.is_some());
            for result in self.call(&calls, config).await {
                match result {
                    // The probe key's lane may be on another server, so a redirection is not a fault.
                    Err(CallError::Moved(_) | CallError::Ask(_)) if config.cluster.is_some() => {}
                    result => drop(result.map_err(|error| error.describe(config))?),
                }
            }
        }
        Ok(())
    }

    /// Sends all calls in one write and returns their results. If the store does not know a script, the call is sent
    /// again with the script's source, within the same deadline. No other call is sent again.
    pub(crate) async fn call(&mut self, calls: &[Call<'_>], config: &Config) -> Vec<Result<Vec<u8>, CallError>> {
        let mut results = vec![Err(CallError::Late); calls.len()];
        // After a timeout, calls that were answered keep their results.
        let _ = timeout(config.deadline, self.call_without_deadline(calls, config, &mut results)).await;
        results
    }

    async fn call_without_deadline(
        &mut self,
        calls: &[Call<'_>],
        config: &Config,
        results: &mut [Result<Vec<u8>, CallError>],
    ) {
        let known = |call: &Call<'_>| call.to_command(["EVALSHA", self.script_for(call.script_kind).sha()]);
        let commands = calls.iter().map(|call| (call.route.asking, known(call))).collect();
        let mut unknown = Vec::new();
        for (index, reply) in self.send_all(commands, config).await.into_iter().enumerate() {
            match reply {
                Err(error) if error.kind() == Some(ErrorKind::Server(ServerErrorKind::NoScript)) => unknown.push(index),
                reply => results[index] = read_reply(reply, config),
            }
        }
        if unknown.is_empty() {
            return;
        }
        let whole = |call: &Call<'_>| call.to_command(["EVAL", self.script_for(call.script_kind).source()]);
        let commands = unknown.iter().map(|index| (calls[*index].route.asking, whole(&calls[*index]))).collect();
        for (index, reply) in unknown.iter().zip(self.send_all(commands, config).await) {
            results[*index] = read_reply(reply, config);
        }
    }

    fn script_for(&self, script_kind: ScriptKind) -> &Script {
        match script_kind {
            ScriptKind::Special => self.scripts.special.as_ref().unwrap_or(&self.scripts.general),
            ScriptKind::General => &self.scripts.general,
            ScriptKind::Merge => &self.scripts.merge,
            ScriptKind::Exchange => &self.scripts.exchange,
        }
    }

    /// Sends commands in one write, each optionally after `ASKING`. Returns one reply per command. If too few replicas
    /// acknowledge the writes, all successful commands get [`SendError::Unreplicated`].
    async fn send_all(&mut self, commands: Vec<(bool, Cmd)>, config: &Config) -> Vec<Result<Value, SendError>> {
        if let [(false, command)] = &*commands
            && config.wait == 0
        {
            return vec![send_command(&mut self.connection, command).await.map_err(SendError::Client)];
        }
        let mut pipeline = redis::Pipeline::with_capacity(commands.len() * 2 + 1);
        let mut places = Vec::with_capacity(commands.len());
        let mut count = 0;
        for (asking, command) in commands {
            if asking {
                pipeline.cmd("ASKING");
                count += 1;
            }
            places.push(count);
            pipeline.add_command(command);
            count += 1;
        }
        if config.wait > 0 {
            let longest = (config.deadline / 2).as_millis().max(1) as u64;
            pipeline.cmd("WAIT").arg(config.wait).arg(longest);
            count += 1;
        }
        let mut values = match self.connection.send_packed_commands(&pipeline, 0, count).await {
            Ok(values) if values.len() == count => values,
            Ok(_) => {
                let error = RedisError::from((ErrorKind::UnexpectedReturnType, "fewer replies than commands"));
                return places.iter().map(|_| Err(SendError::Client(error.clone()))).collect();
            }
            Err(error) => return places.iter().map(|_| Err(SendError::Client(error.clone()))).collect(),
        };
        let acknowledged = match values.last() {
            Some(Value::Int(count)) if config.wait > 0 => *count,
            _ => i64::from(config.wait),
        };
        let reply = |place: usize| {
            // The client returns server errors as values.
            let value = std::mem::replace(&mut values[place], Value::Nil).extract_error().map_err(SendError::Client)?;
            if acknowledged < i64::from(config.wait) { Err(SendError::Unreplicated(acknowledged)) } else { Ok(value) }
        };
        places.into_iter().map(reply).collect()
    }
}

/// Reason why a command has no reply.
enum SendError {
    Client(RedisError),
    Unreplicated(i64),
}

impl SendError {
    fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Client(error) => Some(error.kind()),
            Self::Unreplicated(_) => None,
        }
    }
}

fn read_reply(reply: Result<Value, SendError>, config: &Config) -> Result<Vec<u8>, CallError> {
    let error = match reply {
        Ok(Value::BulkString(reply)) => return Ok(reply),
        Ok(_) => return Err(CallError::Lost("unexpected reply of the script".to_owned())),
        Err(SendError::Unreplicated(count)) => return Err(CallError::Unreplicated(count)),
        Err(SendError::Client(error)) => error,
    };
    // The scripts raise errors only before or at their first write.
    Err(match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly) => CallError::ReadOnly(describe_error(&error)),
        ErrorKind::Server(ServerErrorKind::Moved) => CallError::Moved(redirect_address(&error, config)),
        ErrorKind::Server(ServerErrorKind::Ask) => CallError::Ask(redirect_address(&error, config)),
        ErrorKind::Server(ServerErrorKind::TryAgain) => CallError::TryAgain,
        ErrorKind::Server(_) | ErrorKind::Extension => CallError::Refused(describe_error(&error)),
        _ => CallError::Lost(describe_error(&error)),
    })
}

/// Returns the target address of a redirection. An empty host means the redirecting server's host.
fn redirect_address(error: &RedisError, config: &Config) -> String {
    let address = error.redirect_node().map_or("", |(address, _)| address);
    match address.strip_prefix(':') {
        Some(port) => format!("{}:{port}", config.address.rsplit_once(':').map_or("", |(host, _)| host)),
        None => address.to_owned(),
    }
}

/// Error for a server that was not detected as a cluster node when the store was created. If such a server were used as
/// a single server, it would serve some keys and redirect other keys, so the store would alternate between up and down.
const UNDETECTED_CLUSTER: &str = "this server belongs to a Redis Cluster and did not answer at the start; write redis+cluster://host:port, or start again";

/// Asks a single server whether it belongs to a cluster. If so, returns the configuration of the cluster. A server that
/// does not answer is treated as a single server until [`Link::open`] checks again.
pub(crate) async fn find_cluster(config: Config) -> Config {
    if config.cluster.is_some() || config.sentinels.is_some() {
        return config;
    }
    let asked = async { Ok::<_, RedisError>(is_cluster(&mut dial(&config).await?).await) };
    match timeout(CONNECT_TIMEOUT, asked).await {
        Ok(Ok(true)) => config.into_cluster_config(),
        Ok(Ok(false) | Err(_)) | Err(_) => config,
    }
}

/// Returns whether the server reports that it belongs to a cluster. On an error, the server is treated as a single
/// server.
async fn is_cluster(connection: &mut MultiplexedConnection) -> bool {
    let info = send_command(connection, redis::cmd("INFO").arg("cluster")).await;
    let text = info.and_then(|value| Ok(String::from_redis_value(value)?));
    text.is_ok_and(|text| text.lines().any(|line| line.trim_end() == "cluster_enabled:1"))
}

/// Number of calls in a probe.
pub(crate) const PROBE_CALLS: u32 = 3;

/// Returns the groups of each call in a probe. The special script sets a key and changes it in place; the general
/// script deletes the key and then checks that it does not exist. No limit key has the name of this key: without a
/// cluster, limit keys contain braces; in a cluster, the part after the tag starts differently.
fn probe_groups(config: &Config) -> Result<[Vec<QueuedGroup>; PROBE_CALLS as usize], String> {
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
        consistency: Consistency::Strict,
    };
    let encoded = Arc::new(EncodedLimits::new(&limits)?);
    let tag = if config.cluster.is_some() { format!("{{{}}}", HASH_TAGS[0]) } else { String::new() };
    let key = format!("{}:{tag}probe", config.namespace).into_bytes();
    let group = |verb| QueuedGroup {
        charges: vec![QueuedCharge::new(verb, &charge, 0, key.clone(), encoded.clone())],
        route: Route::default(),
        kind: GroupKind::Charges,
        unsent: None,
    };
    let three = (0..3).map(|_| group(StoreVerb::Check)).collect();
    Ok([three, vec![group(StoreVerb::Reset)], vec![group(StoreVerb::Peek)]])
}

/// Sends a command, and converts error values from the server to errors.
pub(crate) async fn send_command(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await?.extract_error()
}

async fn connect(config: &Config, scripts: &Scripts) -> Result<MultiplexedConnection, RedisError> {
    let mut connection = dial(config).await?;
    // Sends a short command first, because an unauthenticated server answers a long command with a misleading error.
    send_command(&mut connection, &redis::cmd("PING")).await?;
    for script in scripts.all() {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.source());
        send_command(&mut connection, &load).await?;
    }
    Ok(connection)
}

/// Connects, without a timeout; callers apply their own timeout.
pub(crate) async fn dial(config: &Config) -> Result<MultiplexedConnection, RedisError> {
    match &config.sentinels {
        Some(sentinels) => {
            let connected = sentinels.connect(config).await;
            connected.map_err(|why| (ErrorKind::InvalidClientConfig, "sentinel", why).into())
        }
        None => dial_to(config, config.server.clone()).await,
    }
}

/// Connects to one server, without a timeout.
pub(crate) async fn dial_to(config: &Config, server: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    new_client(config, server)?.get_multiplexed_async_connection_with_config(&settings).await
}

#[cfg(feature = "tls")]
fn new_client(config: &Config, server: ConnectionInfo) -> Result<Client, RedisError> {
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

    if !matches!(server.addr(), ConnectionAddr::TcpTls { .. }) {
        return Client::open(server);
    }
    // Fails if the process has already installed a provider, which is then used.
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
fn new_client(_config: &Config, server: ConnectionInfo) -> Result<Client, RedisError> {
    Client::open(server)
}

/// Returns the part of an error message that names a likely cause of a timeout while connecting. A server without TLS
/// mistakes the TLS handshake for an incomplete command, and waits for more bytes.
pub(crate) fn timeout_hint(config: &Config) -> &'static str {
    match config.server.addr() {
        redis::ConnectionAddr::TcpTls { .. } => {
            " (does the port speak TLS? if not, write redis instead of rediss in the URL)"
        }
        _ => "",
    }
}

/// Describes why a server cannot be reached, for the log.
pub(crate) fn describe_dial_error(error: &RedisError, config: &Config) -> String {
    let is_plain = !matches!(config.server.addr(), redis::ConnectionAddr::TcpTls { .. });
    // A TLS port answers a plain command with an alert, which is not a Redis reply, and closes the connection.
    let is_closed = error.is_connection_dropped() && !error.is_connection_refusal();
    if is_plain && (error.kind() == ErrorKind::Parse || is_closed) {
        return format!("{}; if the port expects TLS, write rediss:// instead of redis://", describe_error(error));
    }
    describe_error(error)
}

/// Describes an error in one line, for the log: the server's error code and message, without the script position.
pub(crate) fn describe_error(error: &RedisError) -> String {
    let mut text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        // `dial` created this error message.
        (None, Some(detail)) if error.kind() == ErrorKind::InvalidClientConfig => detail.to_owned(),
        _ => error.to_string(),
    };
    text.truncate(text.find(['\r', '\n']).unwrap_or(text.len()));
    if let Some(place) = text.find(", on @user_script").and_then(|place| text[..place].rfind(" script: ")) {
        text.truncate(place);
    }
    text
}
