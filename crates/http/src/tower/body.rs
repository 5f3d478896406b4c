//! The response body: the service's body, or the text of a refusal.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// The slot that a response holds until its body has ended; dropping it frees the slot.
pub(super) type HeldCharge = Box<dyn Any + Send + Sync>;

pin_project! {
    /// The response body of a [`LimitLayer`](super::LimitLayer): the service's body, or the text of a refusal.
    ///
    /// With a limit on requests in flight, it holds the slot until the last frame, or until the body is dropped.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        kind: Kind<B>,
        held: Option<HeldCharge>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Refusal { text: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    #[inline]
    pub(super) fn from_service(body: B, held: Option<HeldCharge>) -> Self {
        Self { kind: Kind::Inner { body }, held }
    }

    pub(super) fn from_refusal(text: Bytes) -> Self {
        Self { kind: Kind::Refusal { text: Some(text).filter(|text| !text.is_empty()) }, held: None }
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = match this.kind.as_mut().project() {
            KindProjection::Inner { body } => ready!(body.poll_frame(context)),
            KindProjection::Refusal { text } => text.take().map(|text| Ok(Frame::data(text.into()))),
        };
        // Freed before the last frame is passed on, because the client may send its next request before the body is
        // dropped.
        if this.held.is_some() {
            let more_follows = match &frame {
                Some(Ok(frame)) => !frame.is_trailers() && !this.kind.is_end_stream(),
                Some(Err(_)) | None => false,
            };
            if !more_follows {
                *this.held = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.kind.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Refusal { text } => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl<B: Body> Kind<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner { body } => body.is_end_stream(),
            Self::Refusal { text } => text.is_none(),
        }
    }
}
