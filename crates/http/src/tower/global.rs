//! One limit for all requests.

use std::fmt;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::core::Algorithm;
use tollgate::{Concurrency, Limiter, Limits, Report, Verdict};

use super::config::{LayerConfig, Policy};
use super::decide::{Counter, Decision, Gate, Release, take};
use super::layer::LimitLayer;
use crate::headers::UNNAMED;
use crate::request::RequestView;

/// Decides by a [`Limiter`] that all clients share.
pub struct Global<A: Algorithm, C> {
    limiter: Arc<Limiter<A, C>>,
    release: Release,
}

impl<A, C> LimitLayer<Global<A, C>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
{
    /// Takes 1 from one limit for each request of any client, which protects the service itself. Where the limit says to wait,
    /// requests wait as they do with [`by_key`](LimitLayer::by_key).
    ///
    /// ```
    /// use tollgate::{Limiter, TokenBucket};
    /// use tollgate_http::LimitLayer;
    ///
    /// let all = LimitLayer::global(Limiter::new(TokenBucket::new("5000/s".parse()?, 500)?)).name("all");
    /// // Router::new().route(…).layer(all)
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn global(limiter: impl Into<Arc<Limiter<A, C>>>) -> Self {
        Self::for_all(limiter.into(), Release::Never)
    }

    fn for_all(limiter: Arc<Limiter<A, C>>, release: Release) -> Self {
        let policy = Policy::new(UNNAMED, Some(limiter.limit().clone().into()));
        Self::with(Global { limiter, release }, LayerConfig::new(policy))
    }
}

impl<C: Clock> LimitLayer<Global<Concurrency, C>> {
    /// Limits how many requests are in flight in the whole service; [`in_flight`](LimitLayer::in_flight) says how long a
    /// request counts.
    pub fn global_in_flight(limiter: impl Into<Arc<Limiter<Concurrency, C>>>) -> Self {
        Self::for_all(limiter.into(), Release::AtEnd)
    }
}

impl<A, C> Gate for Global<A, C>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
{
    #[inline]
    fn decide(&self, _: &RequestView<'_>, config: &Arc<LayerConfig>) -> Decision {
        take(&self.limiter, self.release, config)
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
        f.debug_struct("Global").field("limiter", &self.limiter).field("release", &self.release).finish()
    }
}
