//! Plain and TLS streams for the Redis-protocol front end and the rate-limit service.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// A stream that can wait for input without a read buffer, so that thousands of idle connections need no buffers.
pub trait ReadReady: AsyncRead + AsyncWrite + Unpin {
    /// Waits until a read would return bytes, the end of the stream or an error.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits until the client closes the connection. A close is not detected while there is unread input.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// Writes all bytes. If the socket buffer is full, waits at most `limit` for the client to read.
///
/// # Errors
/// Returns an error if the connection fails or the client does not read in time.
pub async fn write_with_timeout<T: ReadReady>(stream: &mut T, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let mut all = pin!(async {
        stream.write_all(bytes).await?;
        stream.flush().await
    });
    // Fast path without a timer: the socket buffer almost always accepts everything.
    match poll_fn(|cx| Poll::Ready(all.as_mut().poll(cx))).await {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => timeout(limit, all).await?,
    }
}

impl ReadReady for TcpStream {
    #[inline]
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [0];
        match ready!(self.poll_peek(cx, &mut ReadBuf::new(&mut byte))) {
            Ok(0) | Err(_) => Poll::Ready(()),
            Ok(_) => Poll::Pending,
        }
    }
}

/// A TLS stream that implements [`ReadReady`] by reading one byte ahead. Socket readiness is not enough, because the
/// socket may contain only part of a TLS record.
#[derive(Debug)]
pub struct TlsReadReady {
    stream: TlsStream<TcpStream>,
    peeked_byte: Option<u8>,
}

impl TlsReadReady {
    /// Wraps a TLS stream.
    pub fn new(stream: TlsStream<TcpStream>) -> Self {
        Self { stream, peeked_byte: None }
    }

    /// Reads one byte ahead. Returns false at the end of the stream.
    fn poll_peek_byte(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.peeked_byte.is_none() {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            self.peeked_byte = buffer.filled().first().copied();
        }
        Poll::Ready(Ok(self.peeked_byte.is_some()))
    }
}

impl ReadReady for TlsReadReady {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_peek_byte(cx).map_ok(|_| ())
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match ready!(self.poll_peek_byte(cx)) {
            Ok(true) => Poll::Pending,
            Ok(false) | Err(_) => Poll::Ready(()),
        }
    }
}

impl AsyncRead for TlsReadReady {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(byte) = self.peeked_byte.filter(|_| buf.remaining() > 0) else {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        };
        self.peeked_byte = None;
        buf.put_slice(&[byte]);
        // One byte was already returned, so an error is left to the next read.
        let _ = Pin::new(&mut self.stream).poll_read(cx, buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsReadReady {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
