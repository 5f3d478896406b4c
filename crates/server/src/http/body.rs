//! The body of a response: bytes, or a stream that ends when its reader leaves or the server stops.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

/// The body of a response.
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it.
    Whole(Full<Bytes>),
    /// All of it, in frames.
    Long(LongBody),
    /// Parts as they become available.
    Stream(UnsyncBoxBody<Bytes, Infallible>),
}

impl Default for ReplyBody {
    fn default() -> Self {
        Self::Whole(Full::default())
    }
}

impl<T: Into<Bytes>> From<T> for ReplyBody {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        if bytes.len() > MAX_FRAME { Self::Long(LongBody::new(bytes)) } else { Self::Whole(Full::new(bytes)) }
    }
}

/// The bytes of a response that are passed to the kernel before other connections have their turn.
const MAX_FRAME: usize = 256 * 1024;

/// A long body. After each frame it lets other connections have their turn: a client that reads fast would keep the thread busy
/// for milliseconds otherwise.
#[derive(Debug)]
pub struct LongBody {
    rest: Bytes,
    must_yield: bool,
}

impl LongBody {
    fn new(rest: Bytes) -> Self {
        Self { rest, must_yield: false }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if std::mem::take(&mut self.must_yield) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.must_yield = true;
        let frame = self.rest.split_to(self.rest.len().min(MAX_FRAME));
        Poll::Ready(Some(frame).filter(|frame| !frame.is_empty()))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx),
            Self::Long(body) => body.poll_frame(cx).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Long(body) => body.rest.is_empty(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Long(body) => SizeHint::with_exact(body.rest.len() as u64),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn long_body_arrives_whole_and_yields_after_each_frame() {
        let bytes: Bytes = (0..3 * MAX_FRAME + 1).map(|at| at as u8).collect::<Vec<_>>().into();
        let mut body = ReplyBody::from(bytes.clone());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_ready());
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
        let rest = body.collect().await.expect("infallible").to_bytes();
        assert_eq!(rest, bytes.slice(MAX_FRAME..));
    }
}
