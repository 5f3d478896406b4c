//! Tollgate's limiters, called through the public API.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tollgate::clock::{CachedClock, Clock, PreciseClock};
use tollgate::core::{Algorithm, Nanos};
use tollgate::{IntervalBucket, Limiter, Rate, SlidingSlices, TokenBucket};

use crate::contender::{Contender, DENY_PERIOD_SECONDS, FILL_COST, WIDE_BURST, WIDE_RATE_PER_SECOND};
use crate::waiting::is_ready;

/// The name of [`Batched`].
pub(crate) const BATCHED: &str = "ours-batch16";

/// The name of [`ClockReading`].
pub(crate) const CLOCK_READING: &str = "clock-reading";

const BATCH: usize = 16;

/// One limiter without keys.
pub(crate) struct Direct<C> {
    limiter: Arc<Limiter<TokenBucket, C>>,
}

impl Direct<PreciseClock> {
    /// Returns a limiter with the default clock.
    pub(crate) fn with_precise_clock() -> Result<Self> {
        Ok(Direct { limiter: Arc::new(Limiter::new(wide_bucket()?)) })
    }

    /// Returns a limiter with the default clock and a rate whose exact state has two words.
    pub(crate) fn with_two_word_state() -> Result<Self> {
        Ok(Direct { limiter: Arc::new(Limiter::new(limit(7777)?)) })
    }

    /// Returns a limiter with the default clock that refuses everything.
    pub(crate) fn refusing_everything() -> Result<Self> {
        let a_day = Rate::new(1, Nanos::from_secs(DENY_PERIOD_SECONDS))?;
        let limiter = Limiter::new(TokenBucket::new(a_day, 1)?);
        limiter.drain();
        Ok(Direct { limiter: Arc::new(limiter) })
    }
}

impl Direct<CachedClock> {
    /// Returns a limiter with the cached clock, which a separate thread updates every millisecond.
    pub(crate) fn with_cached_clock() -> Result<Self> {
        let clock = CachedClock::start(Duration::from_millis(1))?;
        Ok(Direct { limiter: Arc::new(Limiter::with_clock(wide_bucket()?, clock)) })
    }
}

impl<C: Clock + Send + Sync + 'static> Contender for Direct<C> {
    fn name(&self) -> &'static str {
        "ours"
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        self.limiter.check(1).is_allowed()
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Direct { limiter: Arc::clone(&self.limiter) }))
    }
}

/// Calls [`Limiter::acquire`] with a limit that never makes it wait.
pub(crate) struct Acquiring<C> {
    name: &'static str,
    limiter: Arc<Limiter<TokenBucket, C>>,
}

impl Acquiring<PreciseClock> {
    /// Returns a limiter with the default clock.
    pub(crate) fn with_precise_clock() -> Result<Self> {
        Ok(Acquiring { name: "ours", limiter: Arc::new(Limiter::new(wide_bucket()?)) })
    }
}

impl Acquiring<CachedClock> {
    /// Returns a limiter with the cached clock, which a separate thread updates every millisecond.
    pub(crate) fn with_cached_clock() -> Result<Self> {
        let clock = CachedClock::start(Duration::from_millis(1))?;
        Ok(Acquiring { name: "ours-cached", limiter: Arc::new(Limiter::with_clock(wide_bucket()?, clock)) })
    }
}

impl<C: Clock + Send + Sync + 'static> Contender for Acquiring<C> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        is_ready(self.limiter.acquire(1))
    }
}

/// One of Tollgate's limiters under another name, for cases in which it is a peer.
pub(crate) struct Named<T>(pub(crate) &'static str, pub(crate) T);

impl<T: Contender> Contender for Named<T> {
    fn name(&self) -> &'static str {
        self.0
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.1.decide(key)
    }
}

/// Only reads the precise clock. No decision with that clock can be faster.
pub(crate) struct ClockReading(pub(crate) PreciseClock);

impl Contender for ClockReading {
    fn name(&self) -> &'static str {
        CLOCK_READING
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        black_box(self.0.mono());
        true
    }
}

/// The keyed limiter, one decision at a time.
pub(crate) struct Keyed {
    limiter: Arc<tollgate::Keyed>,
}

impl Keyed {
    /// Creates a limiter for `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        Ok(Keyed { limiter: Arc::new(tollgate::Keyed::new(wide_bucket()?, capacity)?) })
    }

    /// Creates a limiter for `capacity` keys, with a rate whose exact state has two words.
    pub(crate) fn with_two_word_state(capacity: usize) -> Result<Self> {
        Ok(Keyed { limiter: Arc::new(tollgate::Keyed::new(limit(7777)?, capacity)?) })
    }

    /// Returns the limiter itself.
    pub(crate) fn into_limiter(self) -> Arc<tollgate::Keyed> {
        self.limiter
    }

    /// Returns whether the key has an entry that is in use.
    pub(crate) fn has_usage(&self, key: &str) -> bool {
        self.limiter.report(key, 1).remaining < u64::from(WIDE_BURST)
    }
}

impl Contender for Keyed {
    fn name(&self) -> &'static str {
        "ours"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.limiter.check(key, 1).is_allowed()
    }

    fn fill(&mut self, key: &String) {
        let _ = self.limiter.check(key, u64::from(FILL_COST));
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Keyed { limiter: Arc::clone(&self.limiter) }))
    }
}

/// The keyed limiter, in batches of sixteen keys.
pub(crate) struct Batched {
    limiter: Arc<tollgate::Keyed>,
}

impl Batched {
    /// Creates a limiter for `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        Ok(Batched { limiter: Arc::new(tollgate::Keyed::new(wide_bucket()?, capacity)?) })
    }
}

impl Contender for Batched {
    fn name(&self) -> &'static str {
        BATCHED
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.limiter.check(key, 1).is_allowed()
    }

    fn fill(&mut self, key: &String) {
        let _ = self.limiter.check(key, u64::from(FILL_COST));
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Batched { limiter: Arc::clone(&self.limiter) }))
    }

    fn run(&mut self, keys: &[String]) -> usize {
        let mut allowed = 0;
        for batch in keys.chunks(BATCH) {
            let requests = batch.iter().map(|key| (key, 1));
            self.limiter.check_many(requests, |verdict| allowed += usize::from(verdict.is_allowed()));
        }
        allowed
    }
}

/// The keyed limiter with any algorithm. The token bucket serves as the reference.
pub(crate) struct AnyAlgorithm<A: Algorithm> {
    name: &'static str,
    /// Cost that prevents an entry from expiring during the run.
    fill: u64,
    limiter: Arc<tollgate::Keyed<A>>,
}

/// Name of the reference that the other algorithms are compared with.
pub(crate) const TOKEN_BUCKET: &str = "token-bucket";

impl AnyAlgorithm<TokenBucket> {
    /// Returns the keyed limiter with a token bucket.
    pub(crate) fn token_bucket(capacity: usize) -> Result<Self> {
        Ok(AnyAlgorithm {
            name: TOKEN_BUCKET,
            fill: FILL_COST.into(),
            limiter: Arc::new(tollgate::Keyed::new(wide_bucket()?, capacity)?),
        })
    }
}

impl AnyAlgorithm<IntervalBucket> {
    /// Returns the keyed limiter with an interval bucket that has the same refill per second as the token bucket.
    pub(crate) fn interval_bucket(capacity: usize) -> Result<Self> {
        let limit =
            IntervalBucket::new(u64::from(WIDE_RATE_PER_SECOND), Nanos::SECOND)?.burst(u64::from(WIDE_BURST))?;
        Ok(AnyAlgorithm {
            name: "ours",
            fill: FILL_COST.into(),
            limiter: Arc::new(tollgate::Keyed::new(limit, capacity)?),
        })
    }
}

impl AnyAlgorithm<SlidingSlices> {
    /// Returns the keyed limiter with a limit per ten seconds that the race never reaches. The window has ten slices,
    /// so that slices end during the race. The limit determines how many counts share a word.
    pub(crate) fn sliding_slices(capacity: usize, limit: u64) -> Result<Self> {
        let limit = SlidingSlices::new(limit, Nanos::from_secs(10), Nanos::SECOND)?.max_debt(0)?;
        Ok(AnyAlgorithm { name: "ours", fill: 1, limiter: Arc::new(tollgate::Keyed::new(limit, capacity)?) })
    }
}

impl<A: Algorithm<Stamp: Send> + Send + Sync + 'static> Contender for AnyAlgorithm<A> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.limiter.check(key, 1).is_allowed()
    }

    fn fill(&mut self, key: &String) {
        let _ = self.limiter.check(key, self.fill);
    }
}

/// A keyed limiter whose entries have a given lifetime, with microsecond resolution.
pub(crate) struct Expiring {
    limiter: tollgate::Keyed,
}

impl Expiring {
    /// Creates a limiter for `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let limit = TokenBucket::new(Rate::per_second(1_000_000)?, 10_000_000)?;
        Ok(Expiring { limiter: tollgate::Keyed::new(limit, capacity)? })
    }

    /// Creates an entry that is unused again after `lifetime`, which must be at most ten seconds.
    pub(crate) fn spend(&mut self, key: &String, lifetime: Duration) {
        let micros = u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX);
        let _ = self.limiter.check(key, micros);
    }

    /// Decides a cost of 1.
    pub(crate) fn decide(&mut self, key: &String) -> bool {
        self.limiter.check(key, 1).is_allowed()
    }
}

fn wide_bucket() -> Result<TokenBucket> {
    limit(WIDE_RATE_PER_SECOND)
}

fn limit(rate_per_second: u32) -> Result<TokenBucket> {
    Ok(TokenBucket::new(Rate::per_second(u64::from(rate_per_second))?, u64::from(WIDE_BURST))?)
}
