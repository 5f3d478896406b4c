//! One limit for all requests.

use std::fmt;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::core::Algorithm;
use tollgate::{Limiter, Report, Verdict};

use super::config::LayerConfig;
use super::decide::{Counter, Decider, Decision, RefundTime, decide_by_counter};
use crate::request::RequestView;

/// Decides with a [`Limiter`] that all clients share.
pub struct Global<A: Algorithm, C> {
    limiter: Arc<Limiter<A, C>>,
    refund_time: RefundTime,
}

impl<A: Algorithm, C> Global<A, C> {
    pub(super) fn new(limiter: Arc<Limiter<A, C>>, refund_time: RefundTime) -> Self {
        Self { limiter, refund_time }
    }
}

impl<A, C> Decider for Global<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
{
    #[inline]
    fn decide(&self, _: &RequestView<'_>, config: &Arc<LayerConfig>) -> Decision {
        decide_by_counter(&self.limiter, self.refund_time, config)
    }
}

impl<A, C> Counter for Arc<Limiter<A, C>>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
{
    type Stamp = A::Stamp;

    #[inline]
    fn check(&self) -> Verdict<A::Stamp> {
        Limiter::check(self, 1)
    }

    fn check_and_report(&self) -> (Verdict<A::Stamp>, Report) {
        Limiter::check_and_report(self, 1)
    }

    fn report(&self) -> Report {
        Limiter::report(self, 1)
    }

    fn refund(&self, verdict: Verdict<A::Stamp>) -> impl FnOnce() + Send + Sync + 'static {
        let limiter = self.clone();
        move || _ = Limiter::refund(&limiter, &verdict)
    }
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Global<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Global").field("limiter", &self.limiter).field("refund_time", &self.refund_time).finish()
    }
}
