//! One limit per client.

use std::fmt;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::core::Algorithm;
use tollgate::{Keyed, Report, Verdict};

use super::config::{LayerConfig, OnUnidentified};
use super::decide::{Counter, Decider, Decision, RefundTime, decide_by_counter, refuse_uncounted};
use super::refusal::Reason;
use crate::identify::Identify;
use crate::request::RequestView;

/// Decides with a [`Keyed`] limiter.
pub struct ByKey<A: Algorithm, C, I> {
    keyed: Arc<Keyed<A, C>>,
    identify: I,
    refund_time: RefundTime,
}

impl<A: Algorithm, C, I> ByKey<A, C, I> {
    pub(super) fn new(keyed: Arc<Keyed<A, C>>, identify: I, refund_time: RefundTime) -> Self {
        Self { keyed, identify, refund_time }
    }
}

/// The key shared by all requests without an identity.
const UNIDENTIFIED_KEY: &[u8] = b"";

impl<A, C, I> Decider for ByKey<A, C, I>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
    I: Identify,
{
    #[inline]
    fn decide(&self, request: &RequestView<'_>, config: &Arc<LayerConfig>) -> Decision {
        let identity = self.identify.identify(request);
        let key = match &identity {
            Some(identity) => identity.as_ref(),
            None => match (config.on_unidentified, self.identify.setup_hint()) {
                (Some(OnUnidentified::CountTogether), _) | (None, None) => UNIDENTIFIED_KEY,
                (Some(OnUnidentified::Allow), _) => return Decision::Admit,
                (Some(OnUnidentified::Refuse), _) => return refuse_uncounted(Reason::Unidentified, config),
                (None, Some(hint)) => return refuse_uncounted(Reason::Misconfigured(hint), config),
            },
        };
        decide_by_counter(&SingleKeyCounter { keyed: &self.keyed, key }, self.refund_time, config)
    }
}

struct SingleKeyCounter<'a, A: Algorithm, C> {
    keyed: &'a Arc<Keyed<A, C>>,
    key: &'a [u8],
}

impl<A, C> Counter for SingleKeyCounter<'_, A, C>
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
        f.debug_struct("ByKey")
            .field("keyed", &self.keyed)
            .field("refund_time", &self.refund_time)
            .finish_non_exhaustive()
    }
}
