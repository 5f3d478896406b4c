//! Limits by key: the same limit for each client.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate::clock::Clock;
use tollgate::{Algorithm, Concurrency, Keyed, Limits, Nanos, Outcome, Report, Verdict};
use tower_service::Service;

use super::body::{Held, LimitedBody};
use super::future::{Note, ResponseFuture};
use super::hold::{Pledge, Taken};
use super::layer::{LimitLayer, Limited};
use super::manners::{Manners, Missing, Policy, Tell};
use super::refusal::{Reason, Refusal};
use crate::asked::Asked;
use crate::headers::UNNAMED;
use crate::identify::{Identify, Identity};

/// Decides by a [`Keyed`] limiter.
pub struct ByKey<A: Algorithm, C, I> {
    keyed: Arc<Keyed<A, C>>,
    identify: I,
    release: Release,
}

/// When what a request took is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// Not at all: it has happened.
    Never,
    /// When the last of the answer has been taken.
    AtEnd,
}

impl<A, C, I> LimitLayer<ByKey<A, C, I>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
    I: Identify,
{
    /// Each request takes 1 from the limit of whoever sends it.
    ///
    /// Where the limit says to wait, as a [`LeakyBucket`](tollgate::LeakyBucket) does, the request waits before the service sees
    /// it, for no longer than the limit's `max_wait` or what its burst takes to flow out. Who goes away meanwhile gives
    /// the turn back. Waiting needs a tokio runtime with time enabled.
    pub fn by_key(keyed: impl Into<Arc<Keyed<A, C>>>, identify: I) -> Self {
        Self::new(keyed.into(), identify, Release::Never)
    }

    fn new(keyed: Arc<Keyed<A, C>>, identify: I, release: Release) -> Self {
        let policy = Policy::new(UNNAMED, Some(keyed.limit().clone().into()));
        Self::with(ByKey { keyed, identify, release }, Manners::new(policy))
    }
}

impl<C: Clock, I: Identify> LimitLayer<ByKey<Concurrency, C, I>> {
    /// Each client has so many requests in flight at a time.
    ///
    /// A request is in flight until the last of its answer's body was taken, or the body is dropped: a download or a stream is
    /// work until its end, and one that answers at once with a stream that lasts hours should not count as done. If the
    /// service fails or the request is abandoned, that ends it too. What takes longer than the lease counts no more.
    pub fn in_flight(keyed: impl Into<Arc<Keyed<Concurrency, C>>>, identify: I) -> Self {
        Self::new(keyed.into(), identify, Release::AtEnd)
    }
}

/// What all are counted under who do not say who they are, or say that they are nobody.
const TOGETHER: &[u8] = b"";

/// What becomes of a request.
enum Ruling {
    Pass(Note, Option<Held>),
    Wait(Nanos, Note, Box<dyn Pledge>),
    Refuse(Reason, Option<Report>),
}

impl<A, C, I> ByKey<A, C, I>
where
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
    I: Identify,
{
    #[inline]
    fn rule(&self, asked: &Asked<'_>, manners: &Arc<Manners>) -> Ruling {
        let identity = match (self.identify.identify(asked), manners.missing) {
            (Some(identity), _) => identity,
            (None, Missing::Together) => Identity::from(TOGETHER),
            (None, Missing::Pass) => return Ruling::Pass(Note::Nothing, None),
            (None, Missing::Refuse) => return Ruling::Refuse(Reason::Unidentified, None),
        };
        let key = identity.as_ref();
        if manners.tell == Tell::Refused {
            let verdict = self.keyed.check(key, 1);
            if verdict.outcome() == Outcome::Allow && self.release == Release::Never {
                return Ruling::Pass(Note::Nothing, None);
            }
            return self.rule_at_length(key, verdict, None, manners);
        }
        let (verdict, report) = self.keyed.check_and_report(key, 1);
        self.rule_at_length(key, verdict, Some(report), manners)
    }

    fn rule_at_length(
        &self,
        key: &[u8],
        verdict: Verdict<A::Stamp>,
        report: Option<Report>,
        manners: &Arc<Manners>,
    ) -> Ruling {
        let note = report.map_or(Note::Nothing, |report| Note::Told(manners.clone(), report));
        match verdict.outcome() {
            Outcome::Allow => {
                let held =
                    (self.release == Release::AtEnd).then(|| Box::new(Taken::new(&self.keyed, key, verdict)) as Held);
                Ruling::Pass(note, held)
            }
            outcome @ (Outcome::Delay(_) | Outcome::Deny(_)) if manners.observing => {
                Ruling::Pass(Note::Observed(outcome), None)
            }
            Outcome::Delay(wait) => Ruling::Wait(wait, note, Box::new(Taken::new(&self.keyed, key, verdict))),
            Outcome::Deny(retry) => {
                let report = report.unwrap_or_else(|| self.keyed.report(key, 1));
                Ruling::Refuse(Reason::Exceeded(retry), Some(report))
            }
        }
    }
}

impl<S, A, C, I, B, R> Service<Request<B>> for Limited<S, ByKey<A, C, I>>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    A: Algorithm + Send + Sync + 'static,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync + 'static,
    I: Identify,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, Request<B>, S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.gate.rule(&Asked::of(&request), &self.manners) {
            Ruling::Pass(note, held) => ResponseFuture::passing(self.inner.call(request), note, held),
            Ruling::Wait(wait, note, pledge) => {
                let sleep = tokio::time::sleep(wait.into());
                ResponseFuture::waiting(sleep, self.take_ready(), request, note, pledge)
            }
            Ruling::Refuse(reason, report) => {
                let refusal = Refusal { policy: self.manners.name(), reason };
                let response = self.manners.refuse(&Asked::of(&request), &refusal, |headers| {
                    if let Some(report) = report {
                        self.manners.tell(headers, &report, refusal.retry());
                    }
                });
                ResponseFuture::refused(response)
            }
        }
    }
}

impl<A: Algorithm + fmt::Debug, C, I> fmt::Debug for ByKey<A, C, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByKey").field("keyed", &self.keyed).field("release", &self.release).finish_non_exhaustive()
    }
}
