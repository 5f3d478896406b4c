//! The contenders of a race: one small struct per limiter and configuration.
//!
//! A contender decides through `&mut self`, so that limiters that need exclusive access (throttlecrab, a bare
//! `GcraState`) are measured at their best with one thread; those that can be shared return another handle to the
//! same state for the second thread. `run` is a provided method, hence compiled once per contender: the call through
//! `dyn Contender` is paid once per [`CHUNK`], not per decision. Every `decide` is `#[inline(always)]`, so that the
//! compiler does not inline one contender into its loop and not another.

/// Decisions per call of [`Contender::run`], and the granularity of every key sequence.
pub(crate) const CHUNK: usize = 512;

/// Decisions that [`Contender::fill`] spends on each key beforehand: an hour's worth of [`WIDE_RATE_PER_SECOND`], so
/// that no entry expires during the run.
pub(crate) const FILL_COST: u32 = 3_600_000;

/// The limit of every case on the allowed path: a slow refill with a burst that no run exhausts, so that all
/// decisions are allowed, and no state expires between [`Contender::fill`] and the end.
pub(crate) const WIDE_RATE_PER_SECOND: u32 = 1_000;
/// See [`WIDE_RATE_PER_SECOND`].
pub(crate) const WIDE_BURST: u32 = u32::MAX;

/// The limit of every denied case: one a day.
pub(crate) const DENY_PERIOD_SECONDS: u64 = 86_400;

/// One limiter in one configuration.
pub(crate) trait Contender: Send {
    /// Returns the name in the output, such as `governor-dashmap`.
    fn name(&self) -> &'static str;

    /// Decides one unit for `key` by the contender's own clock; a limiter without keys ignores it. True is allowed.
    #[expect(clippy::ptr_arg, reason = "a map with `String` keys is asked with `&String`")]
    fn decide(&mut self, key: &String) -> bool;

    /// Spends [`FILL_COST`] for `key`, so that the entry exists and does not expire. Limiters without keys do
    /// nothing.
    fn fill(&mut self, _key: &String) {}

    /// Returns another handle to the same state, for another thread; `None` if the limiter cannot be shared.
    fn share(&self) -> Option<Box<dyn Contender>> {
        None
    }

    /// Decides for each key in turn and returns how many were allowed. Only batching contenders override it.
    fn run(&mut self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }
}

/// The empty loop: the cost of [`Contender::run`] without decisions.
#[derive(Debug)]
pub(crate) struct Empty;

impl Contender for Empty {
    fn name(&self) -> &'static str {
        "empty-loop"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        std::hint::black_box(key.as_ptr());
        true
    }
}
