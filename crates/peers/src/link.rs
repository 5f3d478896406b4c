//! One link to a peer: a connection, its send queue (`outbox.rs`), and its received frames.
//!
//! A peer that sends nothing for [`SILENCE_TIMEOUT`] is considered gone, because nodes send heartbeats more often (see
//! `members.rs`).

use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use crate::frame::{FrameBuffer, LengthError};
use crate::outbox::{Outbox, WRITE_TIMEOUT};

/// A peer that sends nothing for this time is considered gone.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes per read.
const MAX_READ_BYTES: usize = 64 << 10;

/// Reason why a link ended.
#[derive(Debug)]
pub(crate) enum LinkEndReason {
    /// The peer closed the link.
    Closed,
    /// An I/O error occurred.
    Failed(io::Error),
    /// The peer does not read.
    NotReading,
    /// The peer sent nothing for [`SILENCE_TIMEOUT`].
    Silent,
    /// The peer sent an invalid frame length.
    LengthError(LengthError),
    /// The peer sent an invalid message.
    BadMessage(String),
    /// This node ended the link.
    Ended,
}

impl fmt::Display for LinkEndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the peer"),
            Self::Failed(error) => write!(f, "{error}"),
            Self::NotReading => write!(f, "peer does not read: a write made no progress for {WRITE_TIMEOUT:?}"),
            Self::Silent => write!(f, "peer silent for {SILENCE_TIMEOUT:?}"),
            Self::LengthError(bad) => write!(f, "{bad}"),
            Self::BadMessage(why) => write!(f, "invalid message: {why}"),
            Self::Ended => f.write_str("ended by this node"),
        }
    }
}

/// Receiver of a link's frames.
pub(crate) trait Receive {
    /// Handles a complete frame, including its length prefix.
    ///
    /// # Errors
    /// Fails if the message is invalid. The link then ends.
    fn frame(&mut self, frame: &[u8]) -> Result<(), String>;

    /// Called after the complete frames of one read were handled. Frames after an invalid frame are not handled.
    fn end_of_read(&mut self) {}
}

/// Reads frames until the link ends.
async fn read_from<R: AsyncRead + Unpin>(
    stream: &mut R,
    frames: &mut FrameBuffer,
    to: &mut impl Receive,
) -> LinkEndReason {
    let mut silence = pin!(sleep(SILENCE_TIMEOUT));
    loop {
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(why) = to.frame(frame) {
                        to.end_of_read();
                        return LinkEndReason::BadMessage(why);
                    }
                }
                Ok(None) => break,
                Err(bad) => {
                    to.end_of_read();
                    return LinkEndReason::LengthError(bad);
                }
            }
        }
        to.end_of_read();
        if let Err(end) = read_before_silence(stream, frames, silence.as_mut()).await {
            return end;
        }
    }
}

/// Reads once from the connection into the frame buffer, or ends the link after [`SILENCE_TIMEOUT`]. `silence` is one
/// timer for all reads, which is set again only when it fires.
async fn read_before_silence<R: AsyncRead + Unpin>(
    stream: &mut R,
    frames: &mut FrameBuffer,
    mut silence: Pin<&mut Sleep>,
) -> Result<(), LinkEndReason> {
    let silent_at = Instant::now() + SILENCE_TIMEOUT;
    let mut read = pin!(read_more(stream, frames));
    loop {
        tokio::select! {
            biased;
            read = &mut read => return read,
            () = silence.as_mut() => {
                if Instant::now() >= silent_at {
                    return Err(LinkEndReason::Silent);
                }
                silence.as_mut().reset(silent_at);
            }
        }
    }
}

/// Reads once from the connection into the frame buffer.
pub(crate) async fn read_more<R: AsyncRead + Unpin>(
    stream: &mut R,
    frames: &mut FrameBuffer,
) -> Result<(), LinkEndReason> {
    let buffer = frames.buffer();
    buffer.reserve(MAX_READ_BYTES);
    match stream.read_buf(buffer).await {
        Ok(0) => Err(LinkEndReason::Closed),
        Ok(_) => Ok(()),
        // TLS reports this error if the connection was closed without `close_notify`.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(LinkEndReason::Closed),
        Err(error) => Err(LinkEndReason::Failed(error)),
    }
}

/// Runs both directions of a link until one of them ends.
pub(crate) async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Send + Unpin + 'static>(
    (reader, writer): (&mut R, W),
    frames: &mut FrameBuffer,
    outbox: &Outbox,
    to: &mut impl Receive,
) -> LinkEndReason {
    let _end = outbox.begin(writer);
    tokio::select! {
        end = read_from(reader, frames, to) => end,
        end = outbox.write_all() => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use crate::outbox::MAX_QUEUED_BYTES;
    use tokio::io::{AsyncWriteExt, duplex, split};

    #[derive(Default)]
    struct Received(Vec<Vec<u8>>);

    impl Receive for Received {
        fn frame(&mut self, whole: &[u8]) -> Result<(), String> {
            let (_, body) = frame::kind_and_body(whole);
            if body == b"bad" {
                return Err("bad".to_owned());
            }
            self.0.push(body.to_vec());
            Ok(())
        }
    }

    /// Runs a link over a pipe that buffers `room` bytes. `peer` runs at the other end.
    async fn run_link_over_pipe<F: Future<Output = ()>>(
        room: usize,
        outbox: &Outbox,
        peer: impl FnOnce(tokio::io::DuplexStream) -> F,
    ) -> (LinkEndReason, Received) {
        let (near, far) = duplex(room);
        let (mut reader, writer) = split(near);
        let (mut frames, mut received) = (FrameBuffer::default(), Received::default());
        let near = async {
            let end = run((&mut reader, writer), &mut frames, outbox, &mut received).await;
            drop(reader);
            end
        };
        let (end, ()) = tokio::join!(near, peer(far));
        (end, received)
    }

    #[tokio::test(start_paused = true)]
    async fn queued_frames_share_a_write_and_are_written_before_the_link_closes() {
        let outbox = Outbox::default();
        for body in [b"one", b"two"] {
            assert!(outbox.push(|to| frame::push(to, 0xFF, |to| to.extend_from_slice(body))));
        }
        outbox.close();
        assert!(!outbox.push(|to| to.push(1)), "a closing outbox accepts nothing");
        let (end, _) = run_link_over_pipe(1 << 16, &outbox, async |mut far| {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"\x04\0\0\0\xffone\x04\0\0\0\xfftwo");
        })
        .await;
        assert!(matches!(end, LinkEndReason::Ended), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_never_reads_is_disconnected_and_its_queue_is_freed() {
        const BYTES_PER_PUSH: usize = 1 << 20;
        let outbox = Outbox::default();
        while outbox.push(|to| to.resize(to.len() + BYTES_PER_PUSH, 0)) {}
        assert!((MAX_QUEUED_BYTES..=MAX_QUEUED_BYTES + BYTES_PER_PUSH).contains(&outbox.queued_bytes()), "{outbox:?}");
        let (end, _) = run_link_over_pipe(64, &outbox, async |mut far| {
            // The peer sends but never reads.
            while far.write_all(b"\x01\0\0\0\xff").await.is_ok() {
                sleep(SILENCE_TIMEOUT / 2).await;
            }
        })
        .await;
        assert!(matches!(end, LinkEndReason::NotReading), "{end}");
        assert_eq!(outbox.queued_bytes(), 0);
        assert!(!outbox.push(|to| to.push(1)), "an ended outbox accepts nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_peer_is_dropped() {
        let (end, _) = run_link_over_pipe(1 << 16, &Outbox::default(), async |mut far| {
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        })
        .await;
        assert!(matches!(end, LinkEndReason::Silent), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn bad_frames_and_messages_end_the_link() {
        for (sent, expected) in [
            (&b"\x03\0\0\0\xffab\x04\0\0\0\xffbad"[..], "invalid message: bad"),
            (b"\xff\xff\xff\xff", "frame of 4294967295 bytes (1 to 1048576)"),
            (b"\x03\0\0\0\xffab\x05\0\0\0x", "closed by the peer"),
        ] {
            let (end, received) = run_link_over_pipe(1 << 16, &Outbox::default(), async |mut far| {
                far.write_all(sent).await.unwrap();
                far.shutdown().await.unwrap();
            })
            .await;
            assert_eq!(end.to_string(), expected);
            assert!(received.0.iter().all(|body| body == b"ab"));
        }
    }
}
