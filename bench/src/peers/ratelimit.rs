//! ratelimit: a token bucket in atomics.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ratelimit::Ratelimiter;

use crate::contender::{Contender, DENY_PERIOD_SECONDS, WIDE_BURST, WIDE_RATE_PER_SECOND};

/// One limiter without keys.
pub(crate) struct Direct {
    limiter: Arc<Ratelimiter>,
}

impl Direct {
    /// Returns a limiter with the wide limit.
    pub(crate) fn new() -> Result<Self> {
        let limiter = Ratelimiter::builder(u64::from(WIDE_RATE_PER_SECOND))
            .max_tokens(u64::from(WIDE_BURST))
            .initial_available(u64::from(WIDE_BURST))
            .build()?;
        Ok(Direct { limiter: Arc::new(limiter) })
    }

    /// Returns a limiter that refuses everything.
    pub(crate) fn refusing_everything() -> Result<Self> {
        let limiter = Ratelimiter::builder(1)
            .period(Duration::from_secs(DENY_PERIOD_SECONDS))
            .max_tokens(1)
            .initial_available(0)
            .build()?;
        Ok(Direct { limiter: Arc::new(limiter) })
    }
}

impl Contender for Direct {
    fn name(&self) -> &'static str {
        "ratelimit"
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        self.limiter.try_wait().is_ok()
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Direct { limiter: Arc::clone(&self.limiter) }))
    }
}
