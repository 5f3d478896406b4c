//! Shared test helpers.
#![allow(dead_code, reason = "no test uses all helpers")]
#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

pub(crate) mod model;
pub(crate) mod random;

use std::time::Duration;

use tollgate_core::{Ask, Cost, Limit, Limits, Nanos, Outcome, Report, Stamps, TokenBucket, Window};
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreError, StoreVerb};
use tollgate_redis::{Config, Health, RedisStore, Scripts};
use tollgate_testkit::conformance::Subject;
use tollgate_testkit::servers::{Kind, RespConnection, Server};

/// A deadline that is long enough on a loaded machine, for tests that are not about deadlines.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(5);

/// Connects to a server, with the deadline [`LONG_DEADLINE`].
pub(crate) async fn store(server: &Server) -> RedisStore {
    RedisStore::connect(config_for(server)).await
}

pub(crate) fn config_for(server: &Server) -> Config {
    Config::from_url(&server.url()).unwrap().deadline(LONG_DEADLINE)
}

/// A store for the conformance suite, with the clock of its server.
pub(crate) struct RealTimeSubject {
    store: RedisStore,
}

impl Subject for RealTimeSubject {
    type Store = RedisStore;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn unit(&self) -> Nanos {
        // This unit is longer than the usual delays on a loaded machine.
        Nanos::SECOND
    }

    fn is_time_frozen(&self) -> bool {
        false
    }

    fn tick(&self) -> Nanos {
        Nanos::from_micros(1)
    }

    async fn wait(&mut self, length: Nanos) {
        tokio::time::sleep(length.into()).await;
    }
}

/// Runs a case of the conformance suite on the store at `url`.
pub(crate) fn run_case(url: &str, test: impl AsyncFnOnce(&mut RealTimeSubject)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::connect(Config::from_url(url).unwrap().deadline(LONG_DEADLINE)).await;
        wait_until_up(&store).await;
        // A case that hangs fails instead of blocking the run.
        tokio::time::timeout(Duration::from_secs(60), test(&mut RealTimeSubject { store })).await.unwrap();
    });
}

/// A charge that owns its data.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) key: Vec<u8>,
    pub(crate) limits_id: u32,
    pub(crate) limits: Limits,
    pub(crate) ask: Ask,
    pub(crate) stamps: Option<Stamps>,
    /// Equivalent stamps for the model, which numbers leases differently.
    pub(crate) model_stamps: Option<Stamps>,
    pub(crate) windows: Vec<Window>,
    pub(crate) consistency: Consistency,
}

impl OwnedCharge {
    pub(crate) fn new(key: &str, limits: impl Into<Limits>, cost: u64) -> Self {
        let (key, limits) = (key.as_bytes().to_vec(), limits.into());
        Self {
            key,
            limits_id: 0,
            limits,
            ask: Ask::Exactly(Cost::new(cost)),
            stamps: None,
            model_stamps: None,
            windows: Vec::new(),
            consistency: Consistency::Strict,
        }
    }

    pub(crate) fn borrow(&self) -> Charge<'_> {
        Charge {
            key: &self.key,
            limits_id: self.limits_id,
            limits: &self.limits,
            earlier: &[],
            ask: self.ask,
            stamps: self.stamps.as_ref(),
            windows: &self.windows,
            consistency: self.consistency,
        }
    }
}

/// Stored values contain their own parameters, so this table is never used.
pub(crate) struct NoLimitTable;

impl tollgate::ledger::LimitTable for NoLimitTable {
    fn get(&self, _: u32) -> Option<&Limits> {
        None
    }
}

/// The outcome of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChargeOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) taken: u64,
    pub(crate) stamps: Stamps,
    pub(crate) reports: Vec<Report>,
}

/// Runs groups in one batch and returns their outcomes.
pub(crate) async fn run_groups(
    store: &impl Store,
    groups: &[(StoreVerb, Vec<OwnedCharge>)],
) -> Vec<Result<Vec<ChargeOutcome>, StoreError>> {
    let charges: Vec<Vec<Charge<'_>>> =
        groups.iter().map(|(_, charges)| charges.iter().map(OwnedCharge::borrow).collect()).collect();
    let groups: Vec<Group<'_>> =
        groups.iter().zip(&charges).map(|((verb, _), charges)| Group { verb: *verb, charges }).collect();
    let mut answers = Answers::default();
    store.run(Batch { limit_table: &NoLimitTable, groups: &groups }, &mut answers).await;
    (0..groups.len())
        .map(|place| {
            let group = answers.group(place)?;
            let said = |answer: &tollgate_engine::store::Answer| ChargeOutcome {
                outcome: answer.outcome,
                taken: answer.taken.get(),
                stamps: group.stamps(answer),
                reports: group.reports(answer).to_vec(),
            };
            Ok(group.charges().iter().map(said).collect())
        })
        .collect()
}

/// Makes one check of cost 1 and returns whether it passes.
pub(crate) async fn check(store: &impl Store, key: &str, limit: impl Into<Limit>) -> Result<bool, StoreError> {
    let charge = OwnedCharge::new(key, limit.into(), 1);
    let mut said = run_groups(store, &[(StoreVerb::Check, vec![charge])]).await;
    said.remove(0).map(|said| said[0].outcome.is_admitted())
}

/// Returns the remaining amount of a limit, without taking anything.
pub(crate) async fn remaining(store: &impl Store, key: &str, limit: impl Into<Limit>) -> u64 {
    let charge = OwnedCharge::new(key, limit.into(), 1);
    run_groups(store, &[(StoreVerb::Peek, vec![charge])]).await.remove(0).unwrap()[0].reports[0].remaining
}

/// Returns a bucket that does not refill during a test.
pub(crate) fn bucket(burst: u64) -> Limit {
    TokenBucket::new("1/day".parse().unwrap(), burst).unwrap().into()
}

/// Returns the name of a key in the server.
pub(crate) fn name_of(key: &str) -> String {
    format!("tollgate:{{{key}}}")
}

/// Runs a test on each kind of server.
pub(crate) fn on_redis_and_valkey(test: impl AsyncFn(Server)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(test(Server::start(kind)));
    }
}

/// Waits until the store has the expected health.
pub(crate) async fn wait_until(store: &RedisStore, what: &str, is_so: impl Fn(&Health) -> bool) -> Health {
    let mut health = store.watch_health();
    let waited = tokio::time::timeout(Duration::from_secs(60), health.wait_for(is_so)).await;
    waited.unwrap_or_else(|_| panic!("the store is {:?}, expected {what}", store.health())).unwrap().clone()
}

pub(crate) async fn wait_until_up(store: &RedisStore) {
    wait_until(store, "up", |health| *health == Health::Up).await;
}

/// Waits until the store is down, and returns the reason.
pub(crate) async fn wait_until_down(store: &RedisStore) -> String {
    match wait_until(store, "down", |health| matches!(health, Health::Down { .. })).await {
        Health::Down { why } => why,
        health => panic!("{health:?}"),
    }
}

/// Returns scripts with a manual clock, which [`StoreClock::set`] sets.
pub(crate) fn manual_clock_scripts() -> Scripts {
    let replaced = [
        ("redis.call('TIME')", "redis.call('MGET', 'clock:seconds', 'clock:micros')"),
        // The server expires keys by its own clock, which is unrelated to the manual clock. Expiries are therefore
        // delayed by about fifty years.
        ("local MARGIN = 4", "local MARGIN = 6000000000"),
    ];
    Scripts::with_clock(|source| {
        replaced.iter().fold(source.to_owned(), |source, (line, other)| {
            assert_eq!(source.matches(line).count(), 1, "a script contains `{line}` exactly once");
            source.replace(line, other)
        })
    })
}

/// The manual clock of a server's scripts.
pub(crate) struct StoreClock(RespConnection);

impl StoreClock {
    pub(crate) fn on_server(server: &Server) -> Self {
        Self(server.connect())
    }

    pub(crate) fn set(&mut self, micros: u64) {
        let (seconds, micros) = ((micros / 1_000_000).to_string(), (micros % 1_000_000).to_string());
        self.0.command(&["MSET", "clock:seconds", &seconds, "clock:micros", &micros]);
    }
}

/// Starts a server, and returns the server, a store and the store's manual clock.
pub(crate) async fn with_manual_clock(kind: Kind) -> (Server, RedisStore, StoreClock) {
    with_manual_clock_and(kind, manual_clock_scripts()).await
}

/// Starts a server like [`with_manual_clock`], but with the given scripts.
pub(crate) async fn with_manual_clock_and(kind: Kind, scripts: Scripts) -> (Server, RedisStore, StoreClock) {
    let server = Server::start(kind);
    let mut store_clock = StoreClock::on_server(&server);
    store_clock.set(0);
    let store = RedisStore::with_scripts(config_for(&server), scripts).await;
    (server, store, store_clock)
}
