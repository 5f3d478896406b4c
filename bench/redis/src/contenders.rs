//! The contenders: Tollgate's store, scripts that are called once per request, and `INCR`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use redis::aio::MultiplexedConnection;
use tollgate_core::{Ask, Cost, Limits};
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreVerb};
use tollgate_redis::{Config, RedisStore, script};
use tollgate_testkit::servers::Server;

/// A way to decide a request on Redis.
#[derive(Clone, Debug)]
pub(crate) enum Contender {
    Ours(&'static str, TollgateStore),
    Each(&'static str, ScriptPerRequest),
    Incr(&'static str, Incr),
}

impl Contender {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours(name, _) | Self::Each(name, _) | Self::Incr(name, _) => name,
        }
    }

    /// Returns the number of calls and charges so far; `None` if every request makes a separate call.
    pub(crate) fn counts(&self) -> Option<(u64, u64)> {
        match self {
            Self::Ours(_, ours) => Some((ours.store.counts().calls, ours.store.counts().charges)),
            Self::Each(..) | Self::Incr(..) => None,
        }
    }

    /// Makes one request for the given key, and returns whether the request passes.
    pub(crate) async fn ask(&self, key: u32) -> Result<bool> {
        match self {
            Self::Ours(_, ours) => ours.ask(key).await,
            Self::Each(_, each) => each.ask(key).await,
            Self::Incr(_, incr) => incr.ask(key).await,
        }
    }
}

/// Tollgate's store.
#[derive(Clone, Debug)]
pub(crate) struct TollgateStore {
    pub(crate) store: Arc<RedisStore>,
    limits: Arc<Limits>,
    keys: usize,
    consistency: Consistency,
}

struct OneLimit<'a>(&'a Limits);

impl tollgate::ledger::LimitTable for OneLimit<'_> {
    fn get(&self, id: u32) -> Option<&Limits> {
        (id == 0).then_some(self.0)
    }
}

impl TollgateStore {
    /// Creates a contender that charges `keys` keys per request.
    pub(crate) async fn new(url: &str, limits: Limits, keys: usize) -> Result<Self> {
        let namespace = format!("ours{}x{keys}", limits.as_slice().len());
        let mut one = Self::with_namespace(url, &namespace, limits, Consistency::Strict).await?;
        one.keys = keys;
        Ok(one)
    }

    /// Creates a contender that charges one key per request. Contenders with the same namespace share their keys.
    pub(crate) async fn with_namespace(
        url: &str,
        namespace: &str,
        limits: Limits,
        consistency: Consistency,
    ) -> Result<Self> {
        let config = Config::from_url(url)?.namespace(namespace)?.deadline(Duration::from_secs(1));
        let (store, limits) = (Arc::new(RedisStore::connect(config).await), Arc::new(limits));
        Ok(Self { store, limits, keys: 1, consistency })
    }

    pub(crate) async fn ask(&self, key: u32) -> Result<bool> {
        let keys: Vec<Vec<u8>> =
            (0..self.keys).map(|place| format!("bench:{place}:user{key:06}").into_bytes()).collect();
        let charges: Vec<Charge<'_>> = keys
            .iter()
            .map(|key| Charge {
                key,
                limits_id: 0,
                limits: &self.limits,
                earlier: &[],
                ask: Ask::Exactly(Cost::ONE),
                stamps: None,
                windows: &[],
                consistency: self.consistency,
            })
            .collect();
        let mut answers = Answers::default();
        let groups = [Group { verb: StoreVerb::Check, charges: &charges }];
        self.store.run(Batch { limit_table: &OneLimit(&self.limits), groups: &groups }, &mut answers).await;
        Ok(answers.group(0)?.outcome().is_admitted())
    }
}

/// A script that is called once per request.
#[derive(Clone, Debug)]
pub(crate) struct ScriptPerRequest {
    connection: MultiplexedConnection,
    sha: String,
    prefix: &'static str,
    arguments: Vec<Vec<u8>>,
}

/// The common GCRA script, with the theoretical arrival time in microseconds. The script returns whether the request is
/// allowed, the remaining amount, the retry wait and the reset time.
const GCRA_SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new = tat + cost * interval
local over = new - now - burst * interval
if over > 0 then return { 0, math.floor((burst * interval - (tat - now)) / interval), over, tat - now } end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000) + 1000)
return { 1, math.floor(-over / interval), 0, new - now }
";

impl ScriptPerRequest {
    /// Returns the store's own script with one charge of one token bucket: 1,000,000 per second, with a burst of the
    /// same size.
    pub(crate) async fn store_script(server: &Server) -> Result<Self> {
        let charge = [&[0, 0, 1, 0, 1, 1][..], &1_u64.to_le_bytes()[..7]].concat();
        let million = [0xce, 0, 0x0f, 0x42, 0x40];
        let numbers = [&[0x91, 0x97, 1, 1, 1, 0][..], &million, &million, &million].concat();
        Self::new(server, script::GENERAL_SOURCE, "script", vec![charge, numbers]).await
    }

    /// Returns the common GCRA script with a limit that is never reached.
    pub(crate) async fn gcra_script(server: &Server) -> Result<Self> {
        Self::new(server, GCRA_SCRIPT, "plain", vec![b"1".to_vec(), b"1000000".to_vec(), b"1".to_vec()]).await
    }

    /// Returns the common GCRA script with a limit of one token per day.
    pub(crate) async fn refusing_gcra_script(server: &Server) -> Result<Self> {
        Self::new(server, GCRA_SCRIPT, "refusing", vec![b"86400000000".to_vec(), b"1".to_vec(), b"1".to_vec()]).await
    }

    async fn new(server: &Server, source: &str, prefix: &'static str, arguments: Vec<Vec<u8>>) -> Result<Self> {
        let client = redis::Client::open(server.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        connection.set_response_timeout(Duration::from_secs(5));
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(source).query_async(&mut connection).await?;
        Ok(Self { connection, sha, prefix, arguments })
    }

    async fn ask(&self, key: u32) -> Result<bool> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(format!("{}:{{bench:0:user{key:06}}}", self.prefix)).arg(&self.arguments);
        match command.query_async(&mut self.connection.clone()).await? {
            redis::Value::BulkString(reply) => Ok(reply.get(7) == Some(&0)),
            redis::Value::Array(reply) => Ok(reply.first() == Some(&redis::Value::Int(1))),
            other => bail!("not a reply of a script: {other:?}"),
        }
    }
}

/// The baseline: one `INCR` per request.
#[derive(Clone, Debug)]
pub(crate) struct Incr {
    connection: MultiplexedConnection,
}

impl Incr {
    pub(crate) async fn new(server: &Server) -> Result<Self> {
        let mut connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
        connection.set_response_timeout(Duration::from_secs(5));
        Ok(Self { connection })
    }

    async fn ask(&self, key: u32) -> Result<bool> {
        let mut command = redis::cmd("INCR");
        command.arg(format!("incr:{key:06}"));
        let _: i64 = command.query_async(&mut self.connection.clone()).await?;
        Ok(true)
    }
}
