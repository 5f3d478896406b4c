//! The contenders of a race: one small struct per limiter and configuration.
//!
//! A contender decides through `&mut self`. Limiters that need exclusive access (throttlecrab, a bare `GcraState`)
//! are therefore measured at their best with one thread. Limiters that can be shared return another handle to the
//! same state for the second thread. `run` is a provided method, so it is compiled once per contender. The virtual
//! call through `dyn Contender` then happens once per [`CHUNK`], not once per decision. Every `decide` is
//! `#[inline(always)]`, so that all contenders are inlined into their loop.

/// Decisions per call of [`Contender::run`] in a race. The length of every key sequence is a multiple of it.
pub(crate) const CHUNK: usize = 512;

/// Cost that [`Contender::fill`] spends on each key in advance: the refill of an hour at [`WIDE_RATE_PER_SECOND`], so
/// that no entry expires during the run.
pub(crate) const FILL_COST: u32 = 3_600_000;

/// Rate of the wide limit, which most cases use: a slow refill with a burst that no run exhausts. So all decisions are
/// allowed, and no state expires after [`Contender::fill`].
pub(crate) const WIDE_RATE_PER_SECOND: u32 = 1_000;
/// Burst of the wide limit.
pub(crate) const WIDE_BURST: u32 = u32::MAX;

/// Period of the limit in the cases that refuse requests: one token per day.
pub(crate) const DENY_PERIOD_SECONDS: u64 = 86_400;

/// One limiter in one configuration.
pub(crate) trait Contender: Send {
    /// Returns the name in the output, such as `governor-dashmap`.
    fn name(&self) -> &'static str;

    /// Decides a cost of 1 for `key` by the contender's own clock, and returns whether it is allowed. A limiter without
    /// keys ignores `key`.
    #[expect(clippy::ptr_arg, reason = "a map with `String` keys is searched with `&String`")]
    fn decide(&mut self, key: &String) -> bool;

    /// Spends [`FILL_COST`] on `key`, so that the entry exists and does not expire. No-op for limiters without keys.
    fn fill(&mut self, _key: &String) {}

    /// Returns another handle to the same state, for another thread; `None` if the limiter cannot be shared.
    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        None
    }

    /// Decides for each key in turn and returns the number of allowed decisions. Only batching contenders override this
    /// method.
    fn run(&mut self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }
}

/// The empty loop: the cost of [`Contender::run`] without decisions.
#[derive(Debug)]
pub(crate) struct EmptyLoop;

impl Contender for EmptyLoop {
    fn name(&self) -> &'static str {
        "empty-loop"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        std::hint::black_box(key.as_ptr());
        true
    }
}
