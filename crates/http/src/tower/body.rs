//! The response body: the service's body, or the text of a refusal.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// The concurrency slot that a response holds until its body has ended. Dropping this value frees the slot.
pub(super) type HeldCharge = Box<dyn Any + Send + Sync>;

pin_project! {
    /// The response body of a [`LimitLayer`](super::LimitLayer): the service's body, or the text of a refusal.
    ///
    /// With a concurrency limit, the body holds the request's slot until the last frame, or until the body is dropped.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        kind: BodyKind<B>,
        held: Option<HeldCharge>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = BodyKindProjection]
    enum BodyKind<B> {
        Inner { #[pin] body: B },
        Refusal { text: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    #[inline]
    pub(super) fn from_service(body: B, held: Option<HeldCharge>) -> Self {
        Self { kind: BodyKind::Inner { body }, held }
    }

    pub(super) fn from_refusal(text: Bytes) -> Self {
        Self { kind: BodyKind::Refusal { text: Some(text).filter(|text| !text.is_empty()) }, held: None }
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
            BodyKindProjection::Inner { body } => ready!(body.poll_frame(context)),
            BodyKindProjection::Refusal { text } => text.take().map(|text| Ok(Frame::data(text.into()))),
        };
        // The slot is freed before the last frame is returned, because the client may send its next request before the
        // body is dropped.
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
            BodyKind::Inner { body } => body.size_hint(),
            BodyKind::Refusal { text } => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl<B: Body> BodyKind<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner { body } => body.is_end_stream(),
            Self::Refusal { text } => text.is_none(),
        }
    }
}
