//! Sends random requests to the script in a real server and to the core functions, and compares the results to the
//! microsecond. A result is the outcome, the amount, the stamps, and for every limit the remaining amount, the wait and
//! the reset. Each charge uses one of two versions of its key's limits, which change occasionally.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use support::model::{Model, ask};
use support::random::{self, Rng};
use support::{ChargeOutcome, OwnedCharge, StoreClock, manual_clock_scripts, run_groups, with_manual_clock_and};
use tollgate_core::{Algorithm, Ask, Cost, Limit, Limits, Nanos, Outcome, Params, Phase, Retry, Stamps, Time, Window};
use tollgate_engine::Store;
use tollgate_engine::store::{Consistency, StoreVerb};
use tollgate_redis::{RedisStore, Scripts};
use tollgate_testkit::servers::Kind;

/// A time in 2026, in microseconds.
const START: u64 = 1_790_000_000_000_000;
const KEY_COUNT: u64 = 4;

/// A charge, with the stamps from the script and from the model.
struct StampedCharge {
    key: u64,
    cost: u64,
    script: Stamps,
    model: Stamps,
}

/// One trace: a few keys, each with two versions of its limits, which change occasionally.
struct Trace<'a> {
    seed: u64,
    name: String,
    rng: Rng,
    limits: Box<dyn Fn(&mut Rng) -> Limits>,
    store: &'a RedisStore,
    store_clock: &'a mut StoreClock,
    model: Model,
    rules: Vec<[(u32, Limits); 2]>,
    next_id: u32,
    stamped_charges: Vec<StampedCharge>,
    now: u64,
}

impl Trace<'_> {
    fn new_limits(&mut self) -> (u32, Limits) {
        loop {
            let limits = (self.limits)(&mut self.rng);
            if self.store.check_limits(&limits).is_ok() {
                self.next_id += 1;
                return (self.next_id, limits);
            }
        }
    }

    /// Advances the clock by a short or a long time, and sometimes sets it back.
    fn advance_clock(&mut self) {
        let rng = &mut self.rng;
        let forward = match rng.below(8) {
            0 | 1 => 0,
            2 => rng.any_amount(10),
            3 | 4 => rng.any_amount(3_000_000),
            5 => rng.any_amount(90_000_000_000),
            _ => match self.rules[rng.below(KEY_COUNT) as usize][0].1.as_slice()[0] {
                Limit::FixedWindow(window) => rng.below(window.length().as_nanos() / 500 + 1),
                Limit::SlidingWindow(window) => rng.below(window.length().as_nanos() / 500 + 1),
                // Advances by a few slices or by a fraction of a slice, so that slices expire one by one.
                Limit::SlidingSlices(slices) => rng.below(slices.precision().as_nanos() / 300 + 1),
                Limit::IntervalBucket(bucket) => rng.below(bucket.period().as_nanos() / 500 + 1),
                Limit::SlidingLog(log) => rng.below(log.length().as_nanos() / 2_000 + 1),
                Limit::Concurrency(leases) => rng.below(leases.lease().as_nanos() / 2_000 + 1),
                Limit::TokenBucket(bucket) => {
                    bucket.rate().per().as_nanos() / 1_000 / u64::from(bucket.rate().count()) + rng.below(2)
                }
                Limit::LeakyBucket(bucket) => {
                    bucket.rate().per().as_nanos() / 1_000 / u64::from(bucket.rate().count()) + rng.below(2)
                }
                _ => 0,
            },
        };
        self.now += forward;
        if rng.one_in(25) {
            self.now -= rng.pick(&[1, 1_000, 999_999, 1_000_000, 1_000_001, 3_000_000, 100_000_000_000]);
        }
    }

    /// Returns two windows that contain now: one of a day, and one of seven seconds.
    fn current_windows(&self) -> Vec<Window> {
        let window = |length: u64, offset: u64| {
            let start = (self.now - offset) / length * length + offset;
            Window::new(Time::from_nanos(start * 1_000), Time::from_nanos((start + length) * 1_000)).unwrap()
        };
        vec![window(86_400_000_000, 3_600_000_000), window(7_000_000, 0)]
    }

    /// Returns one of the two versions of a key's limits.
    fn version_of_limits(&mut self, key: u64) -> (u32, Limits) {
        self.rules[key as usize][usize::from(self.rng.one_in(3))].clone()
    }

    fn draw_charge(&mut self, key: u64, windows: &[Window]) -> OwnedCharge {
        let (limits_id, limits) = self.version_of_limits(key);
        let rng = &mut self.rng;
        let capacity = limits.as_slice().iter().map(Algorithm::capacity).min().unwrap_or(1);
        let cost = match rng.below(6) {
            0 => rng.below(2),
            1 => 1,
            2 => rng.any_amount(capacity.clamp(1, 1 << 45)),
            3 => rng.any_amount((capacity / 3).clamp(1, 1 << 45)),
            4 => rng.below(capacity.clamp(1, 1 << 45) * 2 + 2),
            _ => rng.pick(&[1, 2, 3, u64::MAX]),
        };
        let kind = rng.pick(&[0, 0, 0, 0, 1, 2]);
        let handed = !rng.one_in(10);
        let windows = windows_for(&limits, if handed { windows } else { &[] });
        OwnedCharge {
            key: vec![b'k', key as u8],
            limits_id,
            limits,
            ask: ask(kind, cost),
            stamps: None,
            model_stamps: None,
            windows,
            consistency: Consistency::Strict,
        }
    }

    fn draw_group(&mut self) -> (StoreVerb, Vec<OwnedCharge>) {
        let windows = self.current_windows();
        let verb = self.rng.pick(&[
            StoreVerb::Check,
            StoreVerb::Check,
            StoreVerb::Check,
            StoreVerb::Check,
            StoreVerb::Check,
            StoreVerb::Peek,
            StoreVerb::Refund,
            StoreVerb::Renew,
        ]);
        let verb = if self.rng.one_in(40) { StoreVerb::Reset } else { verb };
        let first = self.rng.below(KEY_COUNT);
        let count = if self.rng.one_in(3) { self.rng.any_amount(KEY_COUNT) } else { 1 };
        let charges = (0..count).map(|place| {
            let key = (first + place) % KEY_COUNT;
            let mut charge = self.draw_charge(key, &windows);
            if matches!(verb, StoreVerb::Refund | StoreVerb::Renew)
                && !self.stamped_charges.is_empty()
                && self.rng.one_in(2)
            {
                let stamped_charge = self.rng.below(self.stamped_charges.len() as u64) as usize;
                let (limits_id, limits) = self.version_of_limits(self.stamped_charges[stamped_charge].key);
                let stamped_charge = &self.stamped_charges[stamped_charge];
                charge.key = vec![b'k', stamped_charge.key as u8];
                (charge.limits_id, charge.limits) = (limits_id, limits);
                charge.windows = windows_for(&charge.limits, &windows);
                charge.ask = Ask::Exactly(Cost::new(stamped_charge.cost));
                (charge.stamps, charge.model_stamps) = (Some(stamped_charge.script), Some(stamped_charge.model));
            }
            charge
        });
        let mut charges: Vec<OwnedCharge> = charges.collect();
        charges.dedup_by(|a, b| a.key == b.key);
        if charges.len() > 1 && (1..charges.len()).any(|n| charges[..n].iter().any(|other| other.key == charges[n].key))
        {
            charges.truncate(1);
        }
        (verb, charges)
    }

    async fn run(&mut self, calls: usize) {
        self.rules = (0..KEY_COUNT).map(|_| [self.new_limits(), self.new_limits()]).collect();
        for call in 0..calls {
            self.advance_clock();
            if self.rng.one_in(15) {
                let (key, version) = (self.rng.below(KEY_COUNT) as usize, self.rng.below(2) as usize);
                self.rules[key][version] = self.new_limits();
            }
            let count = self.rng.any_amount(3);
            let groups: Vec<_> = (0..count).map(|_| self.draw_group()).collect();
            self.store_clock.set(self.now);
            let said = run_groups(self.store, &groups).await;
            let mut refused = None;
            for ((verb, charges), said) in groups.iter().zip(said) {
                let place = format!("{} with seed {}, call {call} at {}", self.name, self.seed, self.now);
                let said = said.unwrap_or_else(|error| panic!("{place}: {error}"));
                self.compare(*verb, charges, &said, &place);
                refused = match (&**charges, said[0].outcome) {
                    ([charge], Outcome::Deny(Retry::After(wait))) if *verb == StoreVerb::Check => {
                        Some((charge.clone(), wait))
                    }
                    // In a larger group, another charge may affect the wait.
                    _ => None,
                };
            }
            if let Some((charge, wait)) = refused
                && charge.windows.is_empty()
                // Skips limits with `initial`: if the key becomes unused during the wait, they treat it as a new key, and the
                // advertised wait no longer holds.
                && charge.limits.starts_full()
                && self.rng.one_in(3)
            {
                self.peek_around_end_of_wait(charge, wait).await;
            }
        }
    }

    /// Peeks one tick before the end of the advertised wait and at its end. The first peek must be refused, and the
    /// second must be admitted.
    async fn peek_around_end_of_wait(&mut self, charge: OwnedCharge, wait: Nanos) {
        let wait = wait.as_nanos() / 1_000;
        for (ticks, is_admitted) in [(wait - 1, false), (1, true)] {
            self.now += ticks;
            self.store_clock.set(self.now);
            let groups = [(StoreVerb::Peek, vec![charge.clone()])];
            let said = run_groups(self.store, &groups).await.remove(0).unwrap();
            let place = format!("{} with seed {} at {}", self.name, self.seed, self.now);
            self.compare(StoreVerb::Peek, &groups[0].1, &said, &place);
            assert_eq!(
                said[0].outcome.is_admitted(),
                is_admitted,
                "{place}, after a wait of {wait}: {said:?} {charge:?} {:?}",
                self.model.limits_of_state(&charge.key)
            );
        }
    }

    fn compare(&mut self, verb: StoreVerb, charges: &[OwnedCharge], said: &[ChargeOutcome], place: &str) {
        let expected = self.model.run(verb, charges, self.now);
        assert_eq!(said.len(), expected.len(), "{place}");
        if verb == StoreVerb::Reset {
            // After a reset, a lease number may be reused within the same microsecond.
            self.stamped_charges
                .retain(|stamped_charge| charges.iter().all(|charge| u64::from(charge.key[1]) != stamped_charge.key));
        }
        for ((charge, said), expected) in charges.iter().zip(said).zip(&expected) {
            let answer = |said: &ChargeOutcome| (said.outcome, said.taken, said.reports.clone());
            assert_eq!(answer(said), answer(expected), "{place}: {verb:?} {charge:#?}");
            if verb == StoreVerb::Check && said.taken > 0 {
                self.compare_stamps(charge, said, expected, place);
                self.stamped_charges.push(StampedCharge {
                    key: charge.key[1].into(),
                    cost: said.taken,
                    script: said.stamps,
                    model: expected.stamps,
                });
                if self.stamped_charges.len() > 20 {
                    self.stamped_charges.remove(0);
                }
            }
            if let Outcome::Deny(Retry::After(wait)) = said.outcome {
                assert!(wait.as_nanos() > 0, "{place}: a refusal with a wait of zero");
            }
        }
    }

    /// Compares all stamps except lease stamps, because the script and the model number leases differently.
    fn compare_stamps(&self, charge: &OwnedCharge, said: &ChargeOutcome, expected: &ChargeOutcome, place: &str) {
        for (n, limit) in charge.limits.as_slice().iter().enumerate() {
            if !matches!(limit, Limit::Concurrency(_)) {
                assert_eq!(said.stamps.get(n), expected.stamps.get(n), "{place}: {charge:?}");
            }
        }
    }
}

/// Returns the windows if a limit refers to a calendar window, and otherwise an empty list.
fn windows_for(limits: &Limits, windows: &[Window]) -> Vec<Window> {
    let refers = |limit: &Limit| matches!(limit.params(), Params::FixedWindow { phase: Phase::Given(_), .. });
    if limits.as_slice().iter().any(refers) { windows.to_vec() } else { Vec::new() }
}

/// Runs traces with one kind of limits on Redis and on Valkey. `TOLLGATE_TRACES` sets the number of traces, and
/// `TOLLGATE_SEED` repeats a single trace.
fn run_traces(name: &str, limits: fn(&mut Rng) -> Limits) {
    trace_with(name, limits, manual_clock_scripts);
}

fn trace_with(name: &str, limits: fn(&mut Rng) -> Limits, scripts: fn() -> Scripts) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TOLLGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TOLLGATE_TRACES").unwrap_or(12),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let (server, store, mut store_clock) = with_manual_clock_and(kind, scripts()).await;
            for seed in seeds.clone() {
                server.command(&["FLUSHALL"]);
                let mut trace = Trace {
                    seed,
                    name: format!("{name} on {kind:?}"),
                    rng: Rng::new(seed),
                    limits: Box::new(limits),
                    store: &store,
                    store_clock: &mut store_clock,
                    model: Model::default(),
                    rules: Vec::new(),
                    next_id: 0,
                    stamped_charges: Vec::new(),
                    now: START,
                };
                trace.run(150).await;
            }
        });
    }
}

#[test]
fn token_buckets_decide_as_in_rust() {
    run_traces("token buckets", |rng| random::token_bucket(rng).into());
}

#[test]
fn token_buckets_decide_as_in_rust_by_the_general_script_alone() {
    let scripts = || manual_clock_scripts().without_special();
    trace_with("token buckets, general script", |rng| random::token_bucket(rng).into(), scripts);
}

#[test]
fn leaky_buckets_decide_as_in_rust() {
    run_traces("leaky buckets", |rng| random::leaky_bucket(rng).into());
}

#[test]
fn interval_buckets_decide_as_in_rust() {
    run_traces("interval buckets", |rng| random::interval_bucket(rng).into());
}

#[test]
fn sliding_slices_decide_as_in_rust() {
    run_traces("sliding slices", |rng| random::sliding_slices(rng).into());
}

#[test]
fn fixed_windows_decide_as_in_rust() {
    run_traces("fixed windows", |rng| random::fixed_window(rng).into());
}

#[test]
fn sliding_windows_decide_as_in_rust() {
    run_traces("sliding windows", |rng| random::sliding_window(rng).into());
}

#[test]
fn sliding_logs_decide_as_in_rust() {
    run_traces("sliding logs", |rng| random::sliding_log(rng).into());
}

#[test]
fn leases_decide_as_in_rust() {
    run_traces("leases", |rng| random::any_concurrency(rng).into());
}

#[test]
fn groups_of_any_limits_decide_as_in_rust() {
    run_traces("groups", random::any_limits);
}
