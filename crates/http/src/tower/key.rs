//! One limit per client.

use std::fmt;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::core::Algorithm;
use tollgate::{Concurrency, Keyed, Limits, Report, Verdict};

use super::config::{LayerConfig, OnUnidentified, Policy};
use super::decide::{Counter, Decision, Gate, Release, refuse_uncounted, take};
use super::future::Note;
use super::layer::LimitLayer;
use super::refusal::Reason;
use crate::headers::UNNAMED;
use crate::identify::{Identify, Identity};
use crate::request::RequestView;

/// Decides by a [`Keyed`] limiter.
pub struct ByKey<A: Algorithm, C, I> {
    keyed: Arc<Keyed<A, C>>,
    identify: I,
    release: Release,
}

impl<A, C, I> LimitLayer<ByKey<A, C, I>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
    I: Identify,
{
    /// Takes 1 from the limit of the client for each request.
    ///
    /// If the limit delays, as a [`LeakyBucket`](tollgate::LeakyBucket) does, the request waits
    /// before the service sees it, at most for the limit's `max_wait`, or as long as its burst
    /// takes to drain. A request that is abandoned while waiting returns its turn. Waiting needs a
    /// tokio runtime with time enabled.
    pub fn by_key(keyed: impl Into<Arc<Keyed<A, C>>>, identify: I) -> Self {
        Self::per_key(keyed.into(), identify, Release::Never)
    }

    fn per_key(keyed: Arc<Keyed<A, C>>, identify: I, release: Release) -> Self {
        let policy = Policy::new(UNNAMED, Some(keyed.limit().into()));
        Self::with(ByKey { keyed, identify, release }, LayerConfig::new(policy))
    }
}

impl<C: Clock, I: Identify> LimitLayer<ByKey<Concurrency, C, I>> {
    /// Limits how many requests each client has in flight.
    ///
    /// A request is in flight until the body of its response has ended or was dropped, so a download counts until its
    /// last byte. A failing service and an abandoned request end it as well. A request that takes longer than the lease
    /// of the limit stops counting when the lease ends.
    pub fn in_flight(keyed: impl Into<Arc<Keyed<Concurrency, C>>>, identify: I) -> Self {
        Self::per_key(keyed.into(), identify, Release::AtEnd)
    }
}

/// The key of all requests without an identity.
const UNIDENTIFIED: &[u8] = b"";

impl<A, C, I> Gate for ByKey<A, C, I>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
    I: Identify,
{
    #[inline]
    fn decide(&self, request: &RequestView<'_>, config: &Arc<LayerConfig>) -> Decision {
        let identity = match self.identify.identify(request) {
            Some(identity) => identity,
            None => match (config.on_unidentified, self.identify.setup_hint()) {
                (Some(OnUnidentified::CountTogether), _) | (None, None) => Identity::from(UNIDENTIFIED),
                (Some(OnUnidentified::Allow), _) => return Decision::Pass(Note::Nothing, None),
                (Some(OnUnidentified::Refuse), _) => return refuse_uncounted(Reason::Unidentified, config),
                (None, Some(hint)) => return refuse_uncounted(Reason::Misconfigured(hint), config),
            },
        };
        take(&KeyCounter { keyed: &self.keyed, key: identity.as_ref() }, self.release, config)
    }
}

struct KeyCounter<'a, A: Algorithm, C> {
    keyed: &'a Arc<Keyed<A, C>>,
    key: &'a [u8],
}

impl<A, C> Counter for KeyCounter<'_, A, C>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
{
    type Stamp = A::Stamp;

    #[inline(always)]
    fn check(&self) -> Verdict<A::Stamp> {
        self.keyed.check(self.key, 1)
    }

    fn check_and_report(&self) -> (Verdict<A::Stamp>, Report) {
        self.keyed.check_and_report(self.key, 1)
    }

    fn report(&self) -> Report {
        self.keyed.report(self.key, 1)
    }

    fn refund(&self, verdict: Verdict<A::Stamp>) -> impl FnOnce() + Send + Sync + 'static {
        let (keyed, key) = (self.keyed.clone(), Box::<[u8]>::from(self.key));
        move || _ = keyed.refund(&key, &verdict)
    }
}

impl<A: Algorithm + fmt::Debug, C, I> fmt::Debug for ByKey<A, C, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByKey").field("keyed", &self.keyed).field("release", &self.release).finish_non_exhaustive()
    }
}
