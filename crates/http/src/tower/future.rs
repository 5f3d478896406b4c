//! The response future: the service's response, immediately or after a wait, or a refusal.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tollgate::{Outcome, Report};
use tower_service::Service;

use super::body::{HeldCharge, LimitedBody};
use super::config::LayerConfig;
use super::grant::Grant;
use super::refusal::ObservedOutcome;

pin_project! {
    /// The response future of a [`LimitLayer`](super::LimitLayer) that decides within the process.
    pub struct ResponseFuture<S, Q, F, B> {
        #[pin]
        state: FutureState<S, Q, F, B>,
    }
}

pin_project! {
    // Most requests are admitted, and their responses get no headers. A separate variant keeps the other states and
    // their fields off this path: they took a sixth of the time that the layer adds.
    #[project = FutureStateProjection]
    enum FutureState<S, Q, F, B> {
        Admitted { #[pin] future: F },
        Slow { #[pin] state: SlowState<S, Q, F, B> },
    }
}

pin_project! {
    #[project = SlowStateProjection]
    enum SlowState<S, Q, F, B> {
        Passing { #[pin] future: F, addition: ResponseAddition, held: Option<HeldCharge> },
        // Boxed, because the variant is large and rare.
        Waiting { waiting: Pin<Box<WaitingRequest<S, Q>>> },
        Refused { response: Option<Box<Response<LimitedBody<B>>>> },
    }
}

pin_project! {
    struct WaitingRequest<S, Q> {
        #[pin]
        sleep: Sleep,
        service: S,
        request: Option<Q>,
        addition: Option<ResponseAddition>,
        grant: Box<dyn Grant>,
    }
}

/// Data that the layer adds to the service's response.
pub(super) enum ResponseAddition {
    Nothing,
    Report(Arc<LayerConfig>, Report),
    Observed(Outcome),
}

impl<S, Q, F, B> ResponseFuture<S, Q, F, B> {
    /// Returns the service's response as it is.
    #[inline]
    pub(super) fn admitted(future: F) -> Self {
        Self { state: FutureState::Admitted { future } }
    }

    pub(super) fn passing(future: F, addition: ResponseAddition, held: Option<HeldCharge>) -> Self {
        Self::slow(SlowState::Passing { future, addition, held })
    }

    /// Calls `service` after the wait. Dropping the future before then refunds the charge.
    pub(super) fn waiting(
        sleep: Sleep,
        service: S,
        request: Q,
        addition: ResponseAddition,
        grant: Box<dyn Grant>,
    ) -> Self {
        let waiting = WaitingRequest { sleep, service, request: Some(request), addition: Some(addition), grant };
        Self::slow(SlowState::Waiting { waiting: Box::pin(waiting) })
    }

    pub(super) fn refused(response: Response<LimitedBody<B>>) -> Self {
        Self::slow(SlowState::Refused { response: Some(Box::new(response)) })
    }

    fn slow(state: SlowState<S, Q, F, B>) -> Self {
        Self { state: FutureState::Slow { state } }
    }
}

impl<S, Q, F, B, E> Future for ResponseFuture<S, Q, F, B>
where
    S: Service<Q, Future = F>,
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<LimitedBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            FutureStateProjection::Admitted { future } => {
                let response = ready!(future.poll(context))?;
                Poll::Ready(Ok(response.map(|body| LimitedBody::from_service(body, None))))
            }
            FutureStateProjection::Slow { state } => state.poll(context),
        }
    }
}

impl<S, Q, F, B, E> Future for SlowState<S, Q, F, B>
where
    S: Service<Q, Future = F>,
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<LimitedBody<B>>, E>;

    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project() {
                SlowStateProjection::Passing { future, addition, held } => {
                    let mut response = ready!(future.poll(context))?;
                    match addition {
                        ResponseAddition::Nothing => {}
                        ResponseAddition::Report(config, report) => {
                            config.add_headers(response.headers_mut(), report, None);
                        }
                        ResponseAddition::Observed(outcome) => {
                            _ = response.extensions_mut().insert(ObservedOutcome(*outcome));
                        }
                    }
                    let held = held.take();
                    return Poll::Ready(Ok(response.map(|body| LimitedBody::from_service(body, held))));
                }
                SlowStateProjection::Waiting { waiting } => {
                    let waiting = waiting.as_mut().project();
                    ready!(waiting.sleep.poll(context));
                    // Always `Some`: the future leaves this state as soon as it has taken the request.
                    let (Some(request), Some(addition)) = (waiting.request.take(), waiting.addition.take()) else {
                        return Poll::Pending;
                    };
                    waiting.grant.commit();
                    SlowState::Passing { future: waiting.service.call(request), addition, held: None }
                }
                SlowStateProjection::Refused { response } => {
                    // A future polled after completion stays pending.
                    return response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(*response)));
                }
            };
            self.set(next);
        }
    }
}

impl<S, Q, F, B> fmt::Debug for ResponseFuture<S, Q, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            FutureState::Admitted { .. } => "admitted",
            FutureState::Slow { state: SlowState::Passing { .. } } => "passing",
            FutureState::Slow { state: SlowState::Waiting { .. } } => "waiting",
            FutureState::Slow { state: SlowState::Refused { .. } } => "refused",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
