//! The event stream of one viewer (server-sent events).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tollgate_engine::Store;

use crate::app::App;
use crate::console::session::Credentials;

/// A connected viewer.
struct Viewer<S> {
    app: Arc<App<S>>,
    credentials: Credentials,
    events: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

type NextEvent<S> = Pin<Box<dyn Future<Output = Option<(Bytes, Viewer<S>)>> + Send>>;

/// The body of `GET /v1/live`. The stream ends when the server stops, or when the viewer's session or token becomes
/// invalid.
pub(super) struct EventStream<S> {
    next: Option<NextEvent<S>>,
}

impl<S: Store + 'static> EventStream<S> {
    /// Starts a stream. The stream holds the viewer permit until it ends.
    pub(super) fn new(app: Arc<App<S>>, credentials: Credentials, permit: OwnedSemaphorePermit) -> Self {
        let events = app.live.events.subscribe();
        Self { next: Some(Box::pin(next_event(Viewer { app, credentials, events, _permit: permit }))) }
    }
}

async fn next_event<S: Store>(mut viewer: Viewer<S>) -> Option<(Bytes, Viewer<S>)> {
    // Does not fail, because the viewer holds a reference to the app, and the app contains the sender.
    viewer.events.changed().await.ok()?;
    if viewer.app.connections.is_stopping() || !viewer.credentials.touch_if_valid(&viewer.app) {
        return None;
    }
    let event = viewer.events.borrow_and_update().clone();
    Some((event, viewer))
}

impl<S: Store + 'static> Body for EventStream<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let event = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(event.map(|(event, viewer)| {
            self.next = Some(Box::pin(next_event(viewer)));
            Ok(Frame::data(event))
        }))
    }
}
