//! In-process decisions: the code shared by per-key and global limits, and the service that calls it.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollgate::core::Nanos;
use tollgate::{Outcome, Report, Retry, Verdict};
use tower_service::Service;

use super::body::{HeldCharge, LimitedBody};
use super::config::{LayerConfig, SendHeaders};
use super::future::{ResponseAddition, ResponseFuture};
use super::grant::{Grant, RefundOnDrop};
use super::layer::LimitService;
use super::refusal::{Reason, Refusal};
use crate::request::RequestView;

/// Decides requests without waiting for I/O.
pub(super) trait Decider {
    fn decide(&self, request: &RequestView<'_>, config: &Arc<LayerConfig>) -> Decision;
}

/// The decision for one request.
pub(super) enum Decision {
    /// Passes the request, and leaves the response as it is.
    Admit,
    /// Passes the request, adds data to the response, and may hold a concurrency slot until the response ends.
    Pass(ResponseAddition, Option<HeldCharge>),
    Wait(Nanos, ResponseAddition, Box<dyn Grant>),
    Refuse(Reason, Option<Report>),
}

/// When an admitted request refunds its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefundTime {
    /// Never, because the limit is a rate.
    Never,
    /// When the response body ends or is dropped.
    AtEnd,
}

/// The counter to which a request is charged: a limiter, or one key of a keyed limiter.
pub(super) trait Counter {
    type Stamp: Copy;

    fn check(&self) -> Verdict<Self::Stamp>;
    fn check_and_report(&self) -> (Verdict<Self::Stamp>, Report);
    fn report(&self) -> Report;
    /// Returns a closure that refunds the charge of `verdict`.
    fn refund(&self, verdict: Verdict<Self::Stamp>) -> impl FnOnce() + Send + Sync + 'static;
}

/// Charges 1 to `counter` and converts the verdict to a decision.
#[inline(always)]
pub(super) fn decide_by_counter<C: Counter>(
    counter: &C,
    refund_time: RefundTime,
    config: &Arc<LayerConfig>,
) -> Decision {
    if config.send_headers == SendHeaders::OnRefusal {
        let verdict = counter.check();
        if verdict.is_allowed() && refund_time == RefundTime::Never {
            return Decision::Admit;
        }
        return apply_verdict(counter, verdict, None, refund_time, config);
    }
    let (verdict, report) = counter.check_and_report();
    apply_verdict(counter, verdict, Some(report), refund_time, config)
}

#[inline(never)]
fn apply_verdict<C: Counter>(
    counter: &C,
    verdict: Verdict<C::Stamp>,
    report: Option<Report>,
    refund_time: RefundTime,
    config: &Arc<LayerConfig>,
) -> Decision {
    let addition = report.map_or(ResponseAddition::Nothing, |report| ResponseAddition::Report(config.clone(), report));
    match verdict.outcome() {
        Outcome::Allow => {
            let held = (refund_time == RefundTime::AtEnd)
                .then(|| Box::new(RefundOnDrop::new(counter.refund(verdict))) as HeldCharge);
            Decision::Pass(addition, held)
        }
        outcome @ (Outcome::Delay(_) | Outcome::Deny(_)) if config.observing => {
            Decision::Pass(ResponseAddition::Observed(outcome), None)
        }
        Outcome::Delay(wait) => Decision::Wait(wait, addition, Box::new(RefundOnDrop::new(counter.refund(verdict)))),
        Outcome::Deny(retry) => {
            let report = report.unwrap_or_else(|| counter.report());
            Decision::Refuse(Reason::Exceeded(retry), Some(report))
        }
    }
}

/// Refuses a request without counting it. An observing layer only reports the refusal.
pub(super) fn refuse_uncounted(reason: Reason, config: &LayerConfig) -> Decision {
    if config.observing {
        return Decision::Pass(ResponseAddition::Observed(Outcome::Deny(Retry::Never)), None);
    }
    Decision::Refuse(reason, None)
}

impl<S, G, B, R> Service<Request<B>> for LimitService<S, G>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    G: Decider,
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
        match self.decider.decide(&RequestView::new(&request), &self.config) {
            Decision::Admit => ResponseFuture::admitted(self.inner.call(request)),
            Decision::Pass(addition, held) => ResponseFuture::passing(self.inner.call(request), addition, held),
            Decision::Wait(wait, addition, grant) => {
                let sleep = tokio::time::sleep(wait.into());
                ResponseFuture::waiting(sleep, self.take_ready(), request, addition, grant)
            }
            Decision::Refuse(reason, report) => {
                let refusal = Refusal { policy: self.config.name(), reason };
                let response = self.config.refuse(&RequestView::new(&request), &refusal, |headers| {
                    if let Some(report) = report {
                        self.config.add_headers(headers, &report, refusal.retry());
                    }
                });
                ResponseFuture::refused(response)
            }
        }
    }
}
