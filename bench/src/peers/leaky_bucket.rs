//! leaky-bucket: designed for waiting. Decisions without waiting use its `try_acquire`.

use std::sync::Arc;
use std::time::Duration;

use leaky_bucket::RateLimiter;

use crate::contender::{Contender, DENY_PERIOD_SECONDS, WIDE_BURST, WIDE_RATE_PER_SECOND};
use crate::waiting::is_ready;

/// One limiter without keys.
pub(crate) struct Direct {
    limiter: Arc<RateLimiter>,
}

impl Direct {
    /// Returns a limiter with the wide limit.
    pub(crate) fn new() -> Self {
        let burst = WIDE_BURST as usize;
        Direct {
            limiter: Arc::new(
                RateLimiter::builder()
                    .max(burst)
                    .initial(burst)
                    .refill(WIDE_RATE_PER_SECOND as usize)
                    .interval(Duration::from_secs(1))
                    .build(),
            ),
        }
    }

    /// Returns a limiter that refuses everything.
    pub(crate) fn refusing_everything() -> Self {
        Direct {
            limiter: Arc::new(
                RateLimiter::builder()
                    .max(1)
                    .initial(0)
                    .refill(1)
                    .interval(Duration::from_secs(DENY_PERIOD_SECONDS))
                    .build(),
            ),
        }
    }
}

impl Contender for Direct {
    fn name(&self) -> &'static str {
        "leaky-bucket"
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        self.limiter.try_acquire(1)
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Direct { limiter: Arc::clone(&self.limiter) }))
    }
}

/// Calls `acquire` with a limit that never makes it wait.
pub(crate) struct Acquiring {
    limiter: Direct,
}

impl Acquiring {
    /// Returns a limiter with the wide limit.
    pub(crate) fn new() -> Self {
        Acquiring { limiter: Direct::new() }
    }
}

impl Contender for Acquiring {
    fn name(&self) -> &'static str {
        "leaky-bucket-acquire"
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        is_ready(self.limiter.limiter.acquire(1))
    }
}
