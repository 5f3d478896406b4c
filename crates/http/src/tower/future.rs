//! What becomes of a request whose decision is made: the service's answer, the same after a wait, or a refusal.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tollgate::{Outcome, Report};
use tower_service::Service;

use super::body::{Held, LimitedBody};
use super::hold::Pledge;
use super::manners::Manners;
use super::refusal::Observed;

pin_project! {
    /// The answer of a service with limits by key around it.
    pub struct ResponseFuture<S, Q, F, B> {
        #[pin]
        state: State<S, Q, F, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Q, F, B> {
        Passing { #[pin] future: F, note: Note, held: Option<Held> },
        // In a box, since it is large and rare.
        Waiting { waiting: Pin<Box<Waiting<S, Q>>> },
        Refused { response: Option<Box<Response<LimitedBody<B>>>> },
    }
}

pin_project! {
    struct Waiting<S, Q> {
        #[pin]
        sleep: Sleep,
        service: S,
        request: Option<Q>,
        note: Option<Note>,
        pledge: Box<dyn Pledge>,
    }
}

/// What is to be added to the answer.
pub(super) enum Note {
    Nothing,
    Told(Arc<Manners>, Report),
    Observed(Outcome),
}

impl<S, Q, F, B> ResponseFuture<S, Q, F, B> {
    #[inline]
    pub(super) fn passing(future: F, note: Note, held: Option<Held>) -> Self {
        Self { state: State::Passing { future, note, held } }
    }

    /// Calls the ready `service` when the wait is over. Dropped before that, what was reserved is given back.
    pub(super) fn waiting(sleep: Sleep, service: S, request: Q, note: Note, pledge: Box<dyn Pledge>) -> Self {
        let waiting = Waiting { sleep, service, request: Some(request), note: Some(note), pledge };
        Self { state: State::Waiting { waiting: Box::pin(waiting) } }
    }

    pub(super) fn refused(response: Response<LimitedBody<B>>) -> Self {
        Self { state: State::Refused { response: Some(Box::new(response)) } }
    }
}

impl<S, Q, F, B, E> Future for ResponseFuture<S, Q, F, B>
where
    S: Service<Q, Future = F>,
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<LimitedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Passing { future, note, held } => {
                    let mut response = ready!(future.poll(context))?;
                    match note {
                        Note::Nothing => {}
                        Note::Told(manners, report) => manners.tell(response.headers_mut(), report, None),
                        Note::Observed(outcome) => _ = response.extensions_mut().insert(Observed(*outcome)),
                    }
                    let held = held.take();
                    return Poll::Ready(Ok(response.map(|body| LimitedBody::inner(body, held))));
                }
                StateProjection::Waiting { waiting } => {
                    let waiting = waiting.as_mut().project();
                    ready!(waiting.sleep.poll(context));
                    // None of them is taken twice: this state is left at once.
                    let (Some(request), Some(note)) = (waiting.request.take(), waiting.note.take()) else {
                        return Poll::Pending;
                    };
                    waiting.pledge.keep();
                    State::Passing { future: waiting.service.call(request), note, held: None }
                }
                StateProjection::Refused { response } => {
                    // Who asks again after the answer gets nothing more.
                    return response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(*response)));
                }
            };
            state.set(next);
        }
    }
}

impl<S, Q, F, B> fmt::Debug for ResponseFuture<S, Q, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Passing { .. } => "passing",
            State::Waiting { .. } => "waiting",
            State::Refused { .. } => "refused",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
