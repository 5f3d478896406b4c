//! The contenders: the engine, the same checks without rules, and limitador.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use tollgate::{Keyed, TokenBucket};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, CandidateRules, Decisions, Engine, Item, MemoryStore, Request};

use crate::rules::{Attributes, NEVER_REACHED_LIMIT, limitador_condition, matching_requests, rule_file};

/// The engine with a given number of rules.
pub(crate) struct EngineWithRules {
    engine: Engine<MemoryStore>,
    requests: Vec<Attributes>,
    /// Time to parse the rules and put them in force, in milliseconds.
    pub(crate) loaded_ms: f64,
}

impl EngineWithRules {
    pub(crate) fn new(size: usize) -> Result<Self> {
        Self::with_limit(size, NEVER_REACHED_LIMIT)
    }

    pub(crate) fn with_limit(size: usize, limit: &str) -> Result<Self> {
        let (text, requests) = (rule_file(size, limit), matching_requests(size));
        let engine = Engine::new(MemoryStore::new(100_000)?)?;
        let started = Instant::now();
        engine.put(&Rules::read(&[Source { name: "made up", text: text.as_bytes() }])?)?;
        Ok(Self { engine, requests, loaded_ms: started.elapsed().as_secs_f64() * 1e3 })
    }

    /// Returns the nanoseconds per search for the rules that match a request.
    pub(crate) fn nanos_to_find_rules(&self, requests: usize) -> f64 {
        let rules = self.engine.rules();
        let mut matched = CandidateRules::default();
        nanos_per_call(&self.request_attributes(requests), |attributes| {
            let matching = rules.candidates(b"api", attributes, &mut matched).map_or(0, <[u32]>::len);
            assert_eq!(black_box(matching), 2);
        })
    }

    /// Returns the nanoseconds per decision.
    pub(crate) fn nanos_per_decision(&self, requests: usize) -> f64 {
        let mut decisions = Decisions::default();
        nanos_per_call(&self.request_attributes(requests), |attributes| {
            assert!(self.decide(attributes, &mut decisions));
        })
    }

    pub(crate) fn decide(&self, attributes: &[Attribute<'_>], decisions: &mut Decisions) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let items = [Item::new(attributes)];
        let request = Request::new("api", &items);
        match std::pin::pin!(self.engine.check(&request, decisions)).poll(&mut context) {
            std::task::Poll::Ready(decision) => decision.is_ok_and(|decision| decision.is_admitted()),
            std::task::Poll::Pending => false,
        }
    }

    pub(crate) fn request_attributes(&self, requests: usize) -> Vec<[Attribute<'_>; 4]> {
        let requests = self.requests[..requests].iter();
        requests.map(|attributes| attributes.each_ref().map(|(name, value)| Attribute::new(*name, value))).collect()
    }
}

/// The two checks of a request, without the engine.
pub(crate) struct BareChecks {
    limiters: [Keyed; 2],
}

impl BareChecks {
    pub(crate) fn new() -> Result<Self> {
        let limit = TokenBucket::new("1000000/s".parse()?, 1_000_000)?;
        Ok(Self { limiters: [Keyed::new(limit, 100_000)?, Keyed::new(limit, 100_000)?] })
    }

    #[inline(always)]
    pub(crate) fn decide(&self, client: &[u8]) -> bool {
        self.limiters.iter().all(|limiter| limiter.check(client, 1).is_allowed())
    }
}

/// The same conditions in limitador, with limits that no run reaches.
pub(crate) struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
    contexts: Vec<Context<'static>>,
}

impl Limitador {
    pub(crate) fn new(size: usize) -> Result<Self> {
        let limiter = RateLimiter::new(100_000);
        for n in 0..size {
            let condition = limitador_condition(n).try_into().ok().context("a condition")?;
            let variable = "client".try_into().ok().context("a variable")?;
            ensure!(limiter.add_limit(Limit::with_id(
                format!("rule-{n}"),
                "api",
                1_000_000_000,
                1,
                vec![condition],
                vec![variable]
            )));
        }
        let context = |attributes: Attributes| {
            let mut values: HashMap<String, String> =
                attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            // In limitador, a condition on a missing attribute is an error.
            values.insert("plan".into(), "none".into());
            Context::from(values)
        };
        let contexts = matching_requests(size).into_iter().take(100).map(context).collect();
        Ok(Self { limiter, namespace: "api".into(), contexts })
    }

    /// Returns the nanoseconds per decision.
    pub(crate) fn nanos_per_decision(&self, times: usize) -> Result<f64> {
        let started = Instant::now();
        for n in 0..times {
            let checked = self.limiter.check_rate_limited_and_update(&self.namespace, &self.contexts[n % 100], 1);
            let checked = checked.ok().context("a decision")?;
            ensure!(
                !checked.limited && checked.counters.len() == 2,
                "limitador matched {} limits, expected 2",
                checked.counters.len()
            );
        }
        Ok(started.elapsed().as_nanos() as f64 / times as f64)
    }
}

/// Calls per measurement: few enough to finish before the scheduler preempts the thread.
const CALLS_PER_MEASUREMENT: usize = 1_000;

/// Returns the nanoseconds per call.
fn nanos_per_call(requests: &[[Attribute<'_>; 4]], mut call: impl FnMut(&[Attribute<'_>])) -> f64 {
    let started = Instant::now();
    for n in 0..CALLS_PER_MEASUREMENT {
        call(black_box(&requests[n % requests.len()]));
    }
    started.elapsed().as_nanos() as f64 / CALLS_PER_MEASUREMENT as f64
}
