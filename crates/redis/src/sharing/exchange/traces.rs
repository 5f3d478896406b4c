//! Random exchanges and charges. The scripts in real servers and the Rust pool execute the same steps, and all results
//! must agree to the microsecond.

use tollgate::ledger::LimitTable;
use tollgate_core::{Ask, FixedWindow, Limit, Nanos, Phase, TokenBucket};
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreVerb};
use tollgate_share::lease::{LeaseReport, Pool, PoolLimit};
use tollgate_testkit::servers::{Kind, RespConnection, Server};
use tollgate_testkit::simulator::{Random, run_seeds};

use super::*;
use crate::store::RedisStore;
use crate::{Config, Scripts};

/// A time in 2026, in microseconds.
const START: u64 = 1_790_000_000_000_000;
const KEY: &[u8] = b"k";

struct NoLimitTable;

impl LimitTable for NoLimitTable {
    fn get(&self, _: u32) -> Option<&Limits> {
        None
    }
}

/// Returns scripts with a manual clock. Expiries are delayed by about fifty years, so that the server expires no key.
fn scripts() -> Scripts {
    Scripts::with_clock(|source| {
        source
            .replace("redis.call('TIME')", "redis.call('MGET', 'clock:seconds', 'clock:micros')")
            .replace("local MARGIN = 4", "local MARGIN = 6000000000")
    })
}

fn draw_limit(random: &mut Random) -> Limit {
    let burst = random.pick(&[1, 3, 10, 50, 200, 1_000]);
    let max_debt = random.pick(&[0, 5, 100]);
    if random.happens_in_percent(60) {
        let rate = random.pick(&["7/s", "100/s", "7777/s", "3/min", "1/day", "1000/s"]);
        TokenBucket::new(rate.parse().unwrap(), burst).unwrap().max_debt(max_debt).unwrap().into()
    } else {
        let length = Nanos::from_millis(random.pick(&[500, 1_000, 3_000, 60_000]));
        let window = FixedWindow::new(burst, length).unwrap().max_debt(max_debt).unwrap();
        window.phase(random.pick(&[Phase::Epoch, Phase::Spread])).into()
    }
}

struct Trace<'a> {
    random: Random,
    store: &'a RedisStore,
    clock: &'a mut RespConnection,
    limits: Limits,
    encoded: Arc<EncodedLimits>,
    pool_limits: Vec<PoolLimit>,
    pool: Pool,
    /// Whether the key does not exist.
    is_absent: bool,
    /// The leases of all nodes: epoch, slice expiry and remaining amount.
    leases: Vec<(u64, u64, u64)>,
    now: u64,
}

impl Trace<'_> {
    fn nanos(&self) -> u64 {
        self.now * 1_000
    }

    fn advance_clock(&mut self) {
        let random = &mut self.random;
        self.now += match random.below(6) {
            0 | 1 => 0,
            2 => random.below(20),
            3 => random.below(200_000),
            4 => random.below(1_500_000),
            _ => random.below(9_000_000),
        };
        // After the clock is set back, a charge may find leases of a later window. The general script applies the floor
        // before it reads the charge, which contains the start of a spread window. The script may therefore choose a
        // different window than Rust. The difference is within the tolerance for clock steps. The test does not set the
        // clock back for spread windows, because it compares exact results.
        let is_spread = |pool_limit: &PoolLimit| matches!(pool_limit, PoolLimit::Window { offset, .. } if *offset > 0);
        if random.happens_in_percent(3) && !self.pool_limits.iter().any(is_spread) {
            self.now -= random.pick(&[1, 1_000, 999_999, 1_000_001, 3_000_000, 20_000_000]);
        }
        let (seconds, micros) = ((self.now / 1_000_000).to_string(), (self.now % 1_000_000).to_string());
        self.clock.command(&["MSET", "clock:seconds", &seconds, "clock:micros", &micros]);
        if self.random.happens_in_percent(2) {
            self.clock.command(&["DEL", "tollgate:{k}"]);
            self.is_absent = true;
        }
        if self.is_absent {
            self.pool = Pool::new(&self.pool_limits, 0, self.nanos());
        }
    }

    /// Adopts the epoch of a new pool. The store keeps a pool only while tokens are leased or the pool is hungry, and
    /// creates a new pool when needed.
    fn adopt_epoch(&mut self, said: &ExchangeAnswer) {
        self.pool.advance_to(self.nanos());
        if let ExchangeAnswer::Granted(grant) = said
            && grant.epoch != self.pool.epoch
            && self.pool.slices.is_empty()
        {
            assert_eq!(grant.epoch, self.now, "a new pool");
            (self.pool.epoch, self.pool.hungry_until) = (self.now, 0);
        }
    }

    fn draw_exchange(&mut self) -> Exchange {
        let random = &mut self.random;
        let mut settle = Vec::new();
        for _ in 0..random.below(3) {
            if self.leases.is_empty() {
                break;
            }
            let lease = random.below(self.leases.len() as u64) as usize;
            let (epoch, slice_expiry, left) = self.leases.swap_remove(lease);
            let spent = random.below(left + 1);
            let back = if random.happens_in_percent(50) { 0 } else { random.below(left - spent + 1) };
            let held = left - spent - back;
            settle.push(LeaseReport { epoch, slice_expiry, spent, back, held });
        }
        let most = self.pool_limits.iter().map(PoolLimit::capacity).min().unwrap_or(1);
        let need = match random.below(4) {
            0 => 0,
            1 => 1,
            2 => random.below(most / 2 + 2),
            _ => random.below(most + 3),
        };
        let need = if random.happens_in_percent(30) { Need::Hold(need) } else { Need::Spend(need) };
        let wants = random.pick(&[0, 1, 5, most / 4, most, 10 * most]);
        Exchange { need, wants, settle }
    }

    async fn exchange(&mut self) {
        let exchange = self.draw_exchange();
        let place = format!("at {}: {exchange:?} of {:?} by {:?}", self.now, self.pool, self.limits);
        let (said, _) = self.store.sharing.send_exchange(0, KEY, &self.encoded, &exchange).await.unwrap();
        self.adopt_epoch(&said);
        let expected = self.pool.exchange(&self.pool_limits, self.nanos(), &exchange);
        let ExchangeAnswer::Granted(grant) = said else { panic!("{said:?} {place}") };
        assert_eq!(grant, expected, "{place}");
        self.is_absent = false;
        // Holders adopt the epoch of the pool to which they reported.
        let now = self.nanos();
        for settle in exchange.settle.iter().filter(|settle| settle.held > 0 && settle.slice_expiry > now) {
            self.leases.push((grant.epoch, settle.slice_expiry, settle.held));
        }
        if grant.leased > 0 {
            self.leases.push((grant.epoch, grant.slice_expiry, grant.leased));
        }
    }

    /// Compares a strict charge, which must use the same state as the leases.
    async fn charge(&mut self) {
        let most = self.pool_limits.iter().map(PoolLimit::capacity).min().unwrap_or(1);
        let cost = self.random.below(most + 2).max(1);
        let (verb, ask, need) = match self.random.below(6) {
            0 | 1 => (StoreVerb::Check, Ask::Exactly(Cost::new(cost)), Need::Spend(cost)),
            2 => (StoreVerb::Check, Ask::UpTo(Cost::new(cost)), Need::UpTo(cost)),
            3 => (StoreVerb::Check, Ask::Regardless(Cost::new(cost)), Need::Regardless(cost)),
            4 => (StoreVerb::Refund, Ask::Exactly(Cost::new(cost)), Need::Refund(cost)),
            _ => (StoreVerb::Reset, Ask::Exactly(Cost::new(cost)), Need::Reset),
        };
        let (limits, consistency) = (&self.limits, Consistency::Strict);
        let charge =
            Charge { key: KEY, limits_id: 0, limits, earlier: &[], ask, stamps: None, windows: &[], consistency };
        let (charges, mut answers) = ([charge], Answers::default());
        let groups = [Group { verb, charges: &charges }];
        let place = format!("at {}: {verb:?} {ask:?} of {:?} by {:?}", self.now, self.pool, self.limits);
        self.store.ask_store(Batch { limit_table: &NoLimitTable, groups: &groups }, &mut answers).await;
        let answer = answers.group(0).unwrap();
        let (said, before) = (&answer.charges()[0], self.pool.clone());
        if verb == StoreVerb::Refund && self.is_absent {
            return;
        }
        let grant = self.pool.exchange(&self.pool_limits, self.nanos(), &Exchange { need, ..Exchange::default() });
        self.pool.hungry_until = before.hungry_until;
        if verb == StoreVerb::Check {
            assert_eq!(said.outcome.is_admitted(), grant.refused.is_none(), "{place}");
            let taken = if said.outcome.is_admitted() { said.taken.get() } else { 0 };
            assert_eq!(taken, grant.taken, "{place}");
            let left = answer.reports(said).iter().map(|report| report.remaining).min().unwrap_or(0);
            assert_eq!(left, grant.left, "{place}");
        }
        // An operation without effect is not written, so the store may keep an expired pool with its old epoch.
        let is_written = match verb {
            StoreVerb::Reset => true,
            // A refund is written if any limit is in use.
            StoreVerb::Refund => {
                let mut touched = before.clone();
                touched.advance_to(self.nanos());
                self.pool_limits
                    .iter()
                    .zip(&touched.levels)
                    .any(|(pool_limit, level)| pool_limit.used(*level, self.nanos()) > 0)
            }
            StoreVerb::Check | StoreVerb::Peek | StoreVerb::Renew => said.taken > Cost::ZERO,
        };
        if is_written {
            let is_needed = !self.pool.slices.is_empty() || self.pool.hungry_until > self.nanos();
            self.is_absent = verb == StoreVerb::Reset && !is_needed;
        } else {
            self.pool = before;
        }
    }
}

/// Runs traces on Redis and on Valkey. `TOLLGATE_SEEDS` sets the number of traces.
#[test]
fn script_pools_match_rust_pools() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kind in Kind::ALL {
        let server = Server::start(kind);
        let mut clock = server.connect();
        clock.command(&["MSET", "clock:seconds", "0", "clock:micros", "0"]);
        let config = Config::from_url(&server.url()).unwrap().deadline(Duration::from_secs(5));
        let store = runtime.block_on(RedisStore::with_scripts(config, scripts()));
        let clock = std::cell::RefCell::new(clock);
        run_seeds(40, |seed| {
            println!("{kind:?}, seed {seed}");
            let mut random = Random::new(seed);
            let mut limits = vec![draw_limit(&mut random)];
            if random.happens_in_percent(25) {
                limits.push(draw_limit(&mut random));
            }
            let limits = Limits::new(limits).unwrap();
            let offset = spread_number(KEY).wrapping_mul(1_000);
            let pool_limits: Vec<PoolLimit> =
                limits.as_slice().iter().map(|limit| PoolLimit::new(limit, offset).unwrap()).collect();
            let encoded = Arc::new(EncodedLimits::new(&limits).unwrap());
            let pool = Pool::new(&pool_limits, 0, START * 1_000);
            let mut clock = clock.borrow_mut();
            clock.command(&["DEL", "tollgate:{k}"]);
            let (store, clock, leases) = (&store, &mut *clock, Vec::new());
            let (is_absent, now) = (true, START);
            let mut trace = Trace { random, store, clock, limits, encoded, pool_limits, pool, is_absent, leases, now };
            runtime.block_on(async {
                for _ in 0..120 {
                    trace.advance_clock();
                    if trace.random.happens_in_percent(20) { trace.charge().await } else { trace.exchange().await }
                }
            });
            Ok(())
        });
    }
}
