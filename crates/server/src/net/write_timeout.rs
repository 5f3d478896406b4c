//! A stream that fails when the client stops reading.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail if the socket buffer stays full for `timeout`. The timer runs only while a write is
/// pending, which is rare.
#[derive(Debug)]
pub struct WriteTimeout<T> {
    stream: T,
    timeout: Duration,
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeout<T> {
    /// Wraps a stream with a write timeout.
    pub fn new(stream: T, timeout: Duration) -> Self {
        Self { stream, timeout, stall_timer: None }
    }

    /// Runs the timer while a write is pending. Returns an error when the timer expires.
    fn apply_timeout<R>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.stall_timer = None;
            return outcome;
        }
        let timeout = self.timeout;
        let timer = self.stall_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.apply_timeout(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.apply_timeout(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.apply_timeout(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.apply_timeout(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn write_fails_after_the_limit_if_the_client_does_not_read() {
        let (client, server) = tokio::io::duplex(4);
        let timeout = Duration::from_secs(30);
        let mut stream = WriteTimeout::new(server, timeout);
        let start = Instant::now();
        let error = stream.write_all(b"more than four").await.expect_err("the client reads nothing");
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, timeout));
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_not_disconnected() {
        let (mut client, server) = tokio::io::duplex(4);
        let mut stream = WriteTimeout::new(server, Duration::from_secs(30));
        let reads = async {
            for _ in 0..4 {
                sleep(Duration::from_secs(20)).await;
                let mut bytes = [0; 4];
                tokio::io::AsyncReadExt::read_exact(&mut client, &mut bytes).await.expect("bytes");
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(b"sixteen bytes..."), reads);
        written.expect("the client reads");
    }
}
