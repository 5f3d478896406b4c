//! pingora-limits: a count-min sketch with constant memory. This peer is the only approximate one: with more than about
//! a thousand active keys it over-counts. This peer is included as a fast, inexact comparison.

use std::sync::Arc;
use std::time::Duration;

use pingora_limits::rate::Rate;

use crate::contender::{Contender, WIDE_BURST};

/// Compares a counter over one-second intervals with the limit.
pub(crate) struct Keyed {
    rate: Arc<Rate>,
}

impl Keyed {
    /// Returns a counter configured as in the crate's documentation.
    pub(crate) fn new() -> Self {
        Keyed { rate: Arc::new(Rate::new(Duration::from_secs(1))) }
    }
}

impl Contender for Keyed {
    fn name(&self) -> &'static str {
        "pingora-limits"
    }

    #[inline(always)]
    fn decide(&mut self, key: &String) -> bool {
        self.rate.observe(key, 1) <= WIDE_BURST as isize
    }

    fn clone_handle(&self) -> Option<Box<dyn Contender>> {
        Some(Box::new(Keyed { rate: Arc::clone(&self.rate) }))
    }
}
