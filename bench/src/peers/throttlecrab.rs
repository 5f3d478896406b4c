//! throttlecrab: GCRA over a hash map with expiry. The limiter needs exclusive access, so threads share it behind a
//! mutex.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use throttlecrab::{PeriodicStore, RateLimiter};

use crate::contender::{Contender, FILL_COST, WIDE_BURST, WIDE_RATE_PER_SECOND};

/// Interval that disables clean-up during the speed cases, because a clean-up would stall one slice.
const NO_CLEANUP: Duration = Duration::from_secs(86_400);

/// The limiter without a lock, for one thread.
pub(crate) struct Owned {
    limiter: RateLimiter<PeriodicStore>,
}

impl Owned {
    /// Returns a limiter with space for `capacity` keys, as its documentation advises.
    pub(crate) fn new(capacity: usize) -> Self {
        Owned { limiter: new_limiter(capacity) }
    }
}

impl Contender for Owned {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        check(&mut self.limiter, key, 1)
    }

    fn fill(&mut self, key: &String) {
        check(&mut self.limiter, key, FILL_COST);
    }
}

/// The limiter behind a standard mutex, as its documentation advises for threads.
pub(crate) struct Locked {
    limiter: Arc<Mutex<RateLimiter<PeriodicStore>>>,
}

impl Locked {
    /// Returns a limiter with space for `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Self {
        Locked { limiter: Arc::new(Mutex::new(new_limiter(capacity))) }
    }
}

impl Contender for Locked {
    fn name(&self) -> &'static str {
        "throttlecrab-mutex"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.limiter.lock().is_ok_and(|mut limiter| check(&mut limiter, key, 1))
    }

    fn fill(&mut self, key: &String) {
        if let Ok(mut limiter) = self.limiter.lock() {
            check(&mut limiter, key, FILL_COST);
        }
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Locked { limiter: Arc::clone(&self.limiter) }))
    }
}

fn new_limiter(capacity: usize) -> RateLimiter<PeriodicStore> {
    let store = PeriodicStore::builder().capacity(capacity).cleanup_interval(NO_CLEANUP).build();
    RateLimiter::new(store)
}

fn check(limiter: &mut RateLimiter<PeriodicStore>, key: &str, cost: u32) -> bool {
    limiter
        .rate_limit(key, i64::from(WIDE_BURST), i64::from(WIDE_RATE_PER_SECOND), 1, i64::from(cost), SystemTime::now())
        .is_ok_and(|(allowed, _)| allowed)
}
