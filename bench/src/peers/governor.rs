//! governor: GCRA in one atomic word, keyed by a `DashMap`.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use governor::clock::{Clock, DefaultClock, QuantaClock, QuantaUpkeepClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use crate::contender::{Contender, DENY_PERIOD_SECONDS, FILL_COST, WIDE_BURST, WIDE_RATE_PER_SECOND};
use crate::waiting::is_ready;

/// The keyed limiter over `String` keys.
pub(crate) type KeyedLimiter<S> = RateLimiter<String, DashMapStateStore<String, S>, DefaultClock>;
type DirectLimiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// One limiter without keys.
#[derive(Debug)]
pub(crate) struct Direct<C: Clock> {
    name: &'static str,
    limiter: Arc<DirectLimiter<C>>,
}

impl Direct<QuantaClock> {
    /// Returns a limiter with governor's default clock, which is precise.
    pub(crate) fn with_precise_clock() -> Self {
        Direct { name: "governor-direct", limiter: Arc::new(RateLimiter::direct(wide_quota())) }
    }

    /// Returns a limiter with the default clock and a rate of 7777 per second.
    pub(crate) fn with_rate_of_7777() -> Self {
        Direct { name: "governor-direct", limiter: Arc::new(RateLimiter::direct(limit(7777))) }
    }

    /// Returns a limiter with the default clock that refuses everything.
    pub(crate) fn refusing_everything() -> Result<Self> {
        let quota = Quota::with_period(Duration::from_secs(DENY_PERIOD_SECONDS))
            .context("governor rejected a limit of one per day")?;
        let limiter = RateLimiter::direct(quota);
        let _first = limiter.check();
        Ok(Direct { name: "governor-direct", limiter: Arc::new(limiter) })
    }
}

impl Direct<QuantaUpkeepClock> {
    /// Returns a limiter with the clock that a separate thread updates every millisecond.
    pub(crate) fn with_upkeep_clock() -> Result<Self> {
        let clock = QuantaUpkeepClock::from_interval(Duration::from_millis(1))
            .ok()
            .context("governor's upkeep thread did not start")?;
        Ok(Direct {
            name: "governor-direct-upkeep",
            limiter: Arc::new(RateLimiter::direct_with_clock(wide_quota(), clock)),
        })
    }
}

impl<C: Clock + Send + Sync + 'static> Contender for Direct<C>
where
    C::Instant: Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        self.limiter.check().is_ok()
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Direct { name: self.name, limiter: Arc::clone(&self.limiter) }))
    }
}

/// The name of [`UntilReady`].
pub(crate) const UNTIL_READY: &str = "governor-until-ready";

/// Calls `until_ready` with a limit that never makes it wait.
#[derive(Debug)]
pub(crate) struct UntilReady {
    limiter: DirectLimiter<QuantaClock>,
}

impl UntilReady {
    /// Returns a limiter with governor's default clock, which is precise.
    pub(crate) fn new() -> Self {
        UntilReady { limiter: RateLimiter::direct(wide_quota()) }
    }
}

impl Contender for UntilReady {
    fn name(&self) -> &'static str {
        UNTIL_READY
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        is_ready(self.limiter.until_ready())
    }
}

/// The keyed limiter.
#[derive(Debug)]
pub(crate) struct Keyed<S: BuildHasher + Clone> {
    name: &'static str,
    limiter: Arc<KeyedLimiter<S>>,
}

impl Keyed<RandomState> {
    /// Returns a limiter with the default hasher, SipHash.
    pub(crate) fn new() -> Self {
        Keyed {
            name: "governor-dashmap",
            limiter: Arc::new(RateLimiter::dashmap_with_hasher(wide_quota(), RandomState::default())),
        }
    }
}

impl Keyed<ahash::RandomState> {
    /// Returns a limiter with the faster hasher ahash.
    pub(crate) fn with_ahash() -> Self {
        Keyed {
            name: "governor-dashmap-ahash",
            limiter: Arc::new(RateLimiter::dashmap_with_hasher(wide_quota(), ahash::RandomState::default())),
        }
    }
}

impl<S: BuildHasher + Clone + Send + Sync + 'static> Contender for Keyed<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.limiter.check_key(key).is_ok()
    }

    fn fill(&mut self, key: &String) {
        let cost = NonZeroU32::new(FILL_COST).unwrap_or(NonZeroU32::MIN);
        let _allowed = self.limiter.check_key_n(key, cost);
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Keyed { name: self.name, limiter: Arc::clone(&self.limiter) }))
    }
}

fn wide_quota() -> Quota {
    limit(WIDE_RATE_PER_SECOND)
}

fn limit(rate_per_second: u32) -> Quota {
    let rate = NonZeroU32::new(rate_per_second).unwrap_or(NonZeroU32::MIN);
    let burst = NonZeroU32::new(WIDE_BURST).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(rate).allow_burst(burst)
}
