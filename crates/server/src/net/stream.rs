//! What the front ends need of a stream, encrypted or not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream of which one can tell that there is something to read, or that nobody is there any more, without taking memory for
/// what is read. The front end for the Redis protocol waits so, for each of its thousands of idle connections.
pub trait ReadReady: AsyncRead + AsyncWrite + Unpin {
    /// Waits for something to read, an end or an error.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits for the client to leave. One that sends more is not noticed when it does.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Says that nothing more will come, if that has to be said and there is room for it.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl ReadReady for TcpStream {
    #[inline]
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [0];
        match ready!(self.poll_peek(cx, &mut ReadBuf::new(&mut byte))) {
            Ok(0) | Err(_) => Poll::Ready(()),
            Ok(_) => Poll::Pending,
        }
    }

    fn poll_farewell(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // Closing says it.
        Poll::Ready(())
    }
}

/// An encrypted stream that can be heard. That bytes have arrived says nothing there, since they may be half a record, so one byte is
/// read ahead.
#[derive(Debug)]
pub struct TlsReadReady {
    stream: TlsStream<TcpStream>,
    ahead: Option<u8>,
}

impl TlsReadReady {
    /// A stream of which nothing was read yet.
    pub fn new(stream: TlsStream<TcpStream>) -> Self {
        Self { stream, ahead: None }
    }

    /// Reads a byte ahead, if none was: whether there is one.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.ahead.is_none() {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            self.ahead = buffer.filled().first().copied();
        }
        Poll::Ready(Ok(self.ahead.is_some()))
    }
}

impl ReadReady for TlsReadReady {
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ahead(cx).map_ok(|_| ())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match ready!(self.poll_ahead(cx)) {
            Ok(true) => Poll::Pending,
            Ok(false) | Err(_) => Poll::Ready(()),
        }
    }

    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.stream).poll_shutdown(cx).map(drop)
    }
}

impl AsyncRead for TlsReadReady {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(byte) = self.ahead.filter(|_| buf.remaining() > 0) else {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        };
        self.ahead = None;
        buf.put_slice(&[byte]);
        // There is something, whatever comes of the rest; what is wrong with that is told when it is read.
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
