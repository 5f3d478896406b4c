//! gcra: a bare state owned by the caller, and an asynchronous limiter over a `DashMap`.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gcra::{GcraState, RateLimit, RateLimiter};

use crate::contender::{Contender, FILL_COST, WIDE_BURST, WIDE_RATE_PER_SECOND};

/// One state, owned by one thread.
#[derive(Debug)]
pub(crate) struct Direct {
    state: GcraState,
    limit: RateLimit,
}

impl Direct {
    /// Returns a state with the wide limit.
    pub(crate) fn new() -> Self {
        Direct { state: GcraState::default(), limit: wide_limit() }
    }
}

impl Contender for Direct {
    fn name(&self) -> &'static str {
        "gcra-state"
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        self.state.check_and_modify(&self.limit, 1).is_ok()
    }
}

/// The keyed limiter.
pub(crate) struct Keyed {
    limiter: Arc<RateLimiter<String>>,
    limit: RateLimit,
}

impl Keyed {
    /// Returns a limiter with space for `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Self {
        Keyed { limiter: Arc::new(RateLimiter::new(capacity)), limit: wide_limit() }
    }

    /// Decides through `check`, which is asynchronous in form only: it never waits, so one poll completes it.
    fn check(&self, key: &str, cost: u32) -> bool {
        let check = pin!(self.limiter.check(key.to_owned(), &self.limit, cost));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome.is_ok(),
            Poll::Pending => false,
        }
    }
}

impl Contender for Keyed {
    fn name(&self) -> &'static str {
        "gcra"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.check(key, 1)
    }

    fn fill(&mut self, key: &String) {
        self.check(key, FILL_COST);
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Keyed { limiter: Arc::clone(&self.limiter), limit: self.limit.clone() }))
    }
}

/// Returns the wide limit. The crate computes its refill rate as burst ÷ period, so the period is chosen to give the
/// same refill rate as the other contenders.
fn wide_limit() -> RateLimit {
    let period = Duration::from_secs(1) * (WIDE_BURST / WIDE_RATE_PER_SECOND);
    RateLimit::new(WIDE_BURST, period)
}
