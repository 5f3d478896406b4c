//! Closes connections so that clients receive all replies.
//!
//! If a socket is closed with unread input, or if input arrives after the close, the kernel resets the connection and
//! discards the replies that it has not delivered yet. A client that pipelines requests and reads slowly would then
//! lose the replies to requests that are already decided. Therefore the server first closes only its sending side,
//! discards a bounded amount of input until the client closes too, and then closes the socket.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

/// Maximum time during which input is discarded before the socket is closed.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without input after which the socket is closed, even if the client has not closed its side. The kernel then
/// still delivers the remaining replies, unless the client sends more.
pub const LINGER_IDLE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of discarded bytes: more than the socket buffers of both sides usually hold. After that, the socket
/// stays open until [`LINGER_TIMEOUT`], but nothing is read.
pub const MAX_LINGER_BYTES: usize = 8 * 1024 * 1024;

/// Size of the buffer for discarded input, in bytes.
const DISCARD_BUFFER_BYTES: usize = 4 * 1024;

/// Closes the sending side, then discards input until the client closes its side or a bound is reached. Errors are
/// ignored, because the connection ends in any case. The caller then drops the stream.
pub async fn close_gracefully<T: AsyncRead + AsyncWrite + Unpin>(stream: &mut T) {
    // Boxed to keep the futures of connections small, because each connection needs this only once.
    let _ = Box::pin(timeout(LINGER_TIMEOUT, discard_input(stream))).await;
}

async fn discard_input<T: AsyncRead + AsyncWrite + Unpin>(stream: &mut T) -> io::Result<()> {
    timeout(LINGER_IDLE_TIMEOUT, stream.shutdown()).await??;
    let (mut buffer, mut discarded) = ([0; DISCARD_BUFFER_BYTES], 0);
    while discarded < MAX_LINGER_BYTES {
        match timeout(LINGER_IDLE_TIMEOUT, stream.read(&mut buffer)).await?? {
            0 => return Ok(()),
            length => discarded += length,
        }
    }
    // The client is still sending. The client's input fills the socket buffers until the client cannot send more. The
    // client has the rest of the time to read the replies.
    sleep(LINGER_TIMEOUT).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn input_is_discarded_until_the_client_closes() {
        let (mut client, mut server) = tokio::io::duplex(16);
        server.write_all(b"reply").await.expect("room");
        let closing = tokio::spawn(async move {
            let start = Instant::now();
            close_gracefully(&mut server).await;
            start.elapsed()
        });
        for _ in 0..5 {
            sleep(LINGER_IDLE_TIMEOUT / 2).await;
            client.write_all(b"sixteen bytes...").await.expect("the server reads");
        }
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("an orderly end");
        assert_eq!(received, b"reply");
        drop(client);
        assert_eq!(closing.await.expect("no panic"), LINGER_IDLE_TIMEOUT / 2 * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_does_not_close_delays_the_close_for_a_bounded_time() {
        let (_silent, mut server) = tokio::io::duplex(16);
        let start = Instant::now();
        close_gracefully(&mut server).await;
        assert_eq!(start.elapsed(), LINGER_IDLE_TIMEOUT);

        let (mut endless, mut server) = tokio::io::duplex(16);
        let sending = tokio::spawn(async move {
            while endless.write_all(b"x").await.is_ok() {
                sleep(LINGER_IDLE_TIMEOUT / 2).await;
            }
        });
        let start = Instant::now();
        close_gracefully(&mut server).await;
        assert_eq!(start.elapsed(), LINGER_TIMEOUT);
        drop(server);
        sending.await.expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn discarded_input_is_bounded() {
        let (mut client, mut server) = tokio::io::duplex(1 << 20);
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while client.write_all(&[0; 1 << 16]).await.is_ok() {
                sent += 1 << 16;
            }
            sent
        });
        let start = Instant::now();
        close_gracefully(&mut server).await;
        drop(server);
        let sent = sending.await.expect("no panic");
        assert!((MAX_LINGER_BYTES..MAX_LINGER_BYTES + (2 << 20)).contains(&sent), "{sent}");
        assert_eq!(start.elapsed(), LINGER_TIMEOUT, "the client gets time to read its replies");
    }
}
