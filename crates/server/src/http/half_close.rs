//! Answers clients that close their sending side before they read the response, as `nc -N` and some scripts do.
//!
//! A client that has closed only its sending side looks the same as a client that has closed the whole connection,
//! until the server writes. With the option `half_close`, hyper answers both clients, however long that takes.
//! [`HalfCloseStream`] detects the close and ends the connection. If the request waits for capacity, the stream ends
//! the connection at once, because a client that may be gone must not take capacity. Otherwise, the stream ends the
//! connection after [`HALF_CLOSE_TIMEOUT`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::bounds::HALF_CLOSE_TIMEOUT;
use super::serve::HttpConnectionState;

/// A stream for hyper with `half_close`.
#[derive(Debug)]
pub(super) struct HalfCloseStream<T> {
    stream: T,
    state: Arc<HttpConnectionState>,
    /// Bytes to return to the reader before the bytes of the stream.
    unread: Bytes,
    /// The result of hyper's last read, if hyper has read since the last flush.
    last_read: Option<LastRead>,
    /// Present once the client has closed its sending side.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastRead {
    Ready,
    Pending,
}

impl<T: AsyncRead + Unpin> HalfCloseStream<T> {
    /// Wraps a stream from which the bytes `unread` were already read.
    pub(super) fn new(stream: T, state: Arc<HttpConnectionState>, unread: impl Into<Bytes>) -> Self {
        Self { stream, state, unread: unread.into(), last_read: None, timer: None }
    }

    /// Waits until the request in progress must end because its client has closed its sending side. A close is not
    /// detected while there is unread input.
    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.last_read.take() {
            // hyper waits for the rest of the body and detects a close itself.
            Some(LastRead::Pending) => return Poll::Pending,
            // The body may be complete now. Poll hyper again: it reads only if the body is incomplete.
            Some(LastRead::Ready) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {}
        }
        if self.timer.is_none() {
            if !self.unread.is_empty() {
                return Poll::Pending;
            }
            let mut byte = [0];
            let mut peeked = ReadBuf::new(&mut byte);
            let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut peeked));
            if outcome.is_err() {
                return Poll::Ready(());
            }
            if !peeked.filled().is_empty() {
                self.unread = Bytes::copy_from_slice(peeked.filled());
                // Poll hyper again: it may be about to wait for the rest of a body, and would not learn of the byte
                // that was read here.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        if self.state.is_waiting() {
            return Poll::Ready(());
        }
        self.timer.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSE_TIMEOUT))).as_mut().poll(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HalfCloseStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
            self.last_read = Some(if outcome.is_ready() { LastRead::Ready } else { LastRead::Pending });
            return outcome;
        }
        self.last_read = Some(LastRead::Ready);
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..length]);
        self.unread.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HalfCloseStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the stream. Fails if the client has closed its sending side and its request must end now. The check is
    /// here because hyper flushes whenever it is polled, but does not read while it answers a request.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.state.is_answering() && self.poll_abandoned(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
