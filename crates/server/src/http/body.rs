//! Response bodies: bytes in memory, or a stream that is produced while it is sent.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::yield_now;

/// The body of a response.
#[derive(Debug)]
pub enum ReplyBody {
    /// A complete body, sent as one frame.
    Whole(Full<Bytes>),
    /// A complete body, sent in several frames.
    Long(LongBody),
    /// A body that is still being produced.
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
        if bytes.len() > MAX_FRAME_BYTES { Self::Long(LongBody::new([bytes])) } else { Self::Whole(Full::new(bytes)) }
    }
}

/// Builds a long response item by item. The response is stored in parts, because a single large buffer would be copied
/// each time it grows, and freeing it would delay other connections.
#[derive(Debug, Default)]
pub struct LongResponseWriter {
    parts: Vec<Bytes>,
    /// The current part, to which items are appended.
    pub part: Vec<u8>,
    /// Total length of the finished parts.
    finished_length: usize,
}

impl LongResponseWriter {
    /// Returns the number of bytes written so far.
    pub fn written_bytes(&self) -> usize {
        self.finished_length + self.part.len()
    }

    /// Adds bytes as a separate part, without copying them.
    pub fn push_bytes(&mut self, bytes: Bytes) {
        self.finish_part();
        self.finished_length += bytes.len();
        self.parts.push(bytes);
    }

    /// Starts a new part if the current part has reached the frame size. Call this after each item.
    pub fn end_item(&mut self) {
        if self.part.len() >= MAX_FRAME_BYTES {
            self.finish_part();
        }
    }

    fn finish_part(&mut self) {
        self.finished_length += self.part.len();
        self.parts.push(std::mem::take(&mut self.part).into());
    }
}

impl From<LongResponseWriter> for ReplyBody {
    fn from(mut written: LongResponseWriter) -> Self {
        if written.parts.is_empty() {
            return Self::from(written.part);
        }
        written.parts.push(written.part.into());
        Self::Long(LongBody::new(written.parts))
    }
}

/// Maximum frame size in bytes. A long body yields to other connections after each frame.
const MAX_FRAME_BYTES: usize = 64 * 1024;

/// A long body that yields to other connections after each frame. If it did not yield, a client that reads fast could
/// occupy the thread for milliseconds.
#[derive(Debug)]
pub struct LongBody {
    parts: VecDeque<Bytes>,
    /// Number of bytes that have not been sent yet.
    unsent: usize,
    must_yield: bool,
}

impl LongBody {
    fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Self { unsent: parts.iter().map(Bytes::len).sum(), parts, must_yield: false }
    }

    /// Returns the next bytes to send.
    fn next_frame(&mut self) -> Option<Bytes> {
        let part = self.parts.front_mut()?;
        let frame = part.split_to(part.len().min(MAX_FRAME_BYTES));
        if part.is_empty() {
            self.parts.pop_front();
        }
        self.unsent -= frame.len();
        Some(frame)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if std::mem::take(&mut self.must_yield) {
            // Wakes this task after the event loop has looked for new input. A task that wakes itself directly runs up
            // to 61 times before the event loop looks for input, and would send 4 MB in that time.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        self.must_yield = true;
        Poll::Ready(self.next_frame())
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
            Self::Long(body) => body.unsent == 0,
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Long(body) => SizeHint::with_exact(body.unsent as u64),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::net::UdpSocket;

    #[tokio::test]
    async fn long_body_is_complete_and_yields_after_its_first_frame() {
        let bytes: Bytes = (0..3 * MAX_FRAME_BYTES + 1).map(|at| at as u8).collect::<Vec<_>>().into();
        let mut body = ReplyBody::from(bytes.clone());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_ready());
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
        let rest = body.collect().await.expect("infallible").to_bytes();
        assert_eq!(rest, bytes.slice(MAX_FRAME_BYTES..));
    }

    #[tokio::test]
    async fn other_connections_are_read_between_the_frames_of_a_long_body() {
        let mut body = ReplyBody::from(vec![0; 50 * MAX_FRAME_BYTES]);
        let other = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = other.local_addr().expect("bound");
        let is_received = Arc::new(AtomicBool::new(false));
        let received = is_received.clone();
        tokio::spawn(async move {
            other.recv(&mut [0]).await.expect("a datagram");
            received.store(true, Ordering::Relaxed);
        });
        // The other task waits for input before the datagram is sent.
        yield_now().await;
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        sender.send_to(b"x", address).expect("loopback");
        let frames_before = tokio::spawn(async move {
            let mut frames = 0;
            while !is_received.load(Ordering::Relaxed) && body.frame().await.is_some() {
                frames += 1;
            }
            frames
        });
        assert!(frames_before.await.expect("no panic") <= 2);
    }

    #[tokio::test]
    async fn response_written_in_parts_is_complete() {
        for items in [0, 1, 50_000] {
            let (mut written, mut expected) = (LongResponseWriter::default(), Vec::new());
            for item in 0..items {
                let text = format!("item {item},");
                written.part.extend_from_slice(text.as_bytes());
                written.end_item();
                expected.extend_from_slice(text.as_bytes());
                if item == 1_000 {
                    written.push_bytes(Bytes::from_static(b"bytes,"));
                    expected.extend_from_slice(b"bytes,");
                }
            }
            assert_eq!(written.written_bytes(), expected.len());
            let body = ReplyBody::from(written);
            assert_eq!(body.size_hint().exact(), Some(expected.len() as u64));
            assert_eq!(body.collect().await.expect("infallible").to_bytes(), expected);
        }
    }
}
