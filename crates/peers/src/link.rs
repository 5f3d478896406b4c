//! One link to a peer: a connection, its send queue, and its received frames.
//!
//! Frames are appended to one buffer. The writer takes the whole buffer whenever the connection is idle. So a frame on
//! an idle connection is written at once, and frames queued during a write share the next write.
//!
//! Asks are batched further. While an ask is unanswered, later asks are held until an answer arrives, and then share
//! one write. The system calls and wake-ups of a write cost more CPU time than several decisions. Asks to a peer that
//! needs more than [`MAX_HOLD`] for an answer are not held, because they could miss their deadline.
//!
//! The buffer is bounded by [`MAX_QUEUED`], and a write without progress for [`WRITE_TIMEOUT`] ends the link. A peer
//! that never reads therefore costs bounded memory for a bounded time and does not affect other links. A peer that
//! sends nothing for [`SILENCE`] is considered gone, because nodes send heartbeats more often (see `members.rs`).

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::frame::{Frames, LengthError};

/// Maximum number of bytes queued for one peer.
pub const MAX_QUEUED: usize = 32 << 20;
/// Maximum time that a write may take without progress.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which asks wait for the answer to an earlier ask. It is a small part of the usual deadline.
const MAX_HOLD: Duration = Duration::from_millis(1);
/// A peer that sends nothing for this time is considered gone.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Maximum bytes per read.
const MAX_READ_BYTES: usize = 64 << 10;
/// Write buffers larger than this are shrunk after the write.
const MAX_KEPT_BUFFER: usize = 256 << 10;

/// Reason why a link ended.
#[derive(Debug)]
pub(crate) enum LinkEndReason {
    /// The peer closed the link.
    Closed,
    /// An I/O error occurred.
    Failed(io::Error),
    /// The peer does not read.
    NotReading,
    /// The peer sent nothing for [`SILENCE`].
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
            Self::Silent => write!(f, "peer silent for {SILENCE:?}"),
            Self::LengthError(bad) => write!(f, "{bad}"),
            Self::BadMessage(why) => write!(f, "invalid message: {why}"),
            Self::Ended => f.write_str("ended by this node"),
        }
    }
}

/// Queue of frames to write to a peer.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    wake: Notify,
}

#[derive(Default)]
struct OutboxState {
    bytes: Vec<u8>,
    /// Asks that wait until an earlier ask is answered.
    held_asks: Vec<u8>,
    /// When the last asks were queued, if no answer has arrived since.
    asked_at: Option<Instant>,
    /// Whether the last answer arrived within [`MAX_HOLD`].
    answers_fast: bool,
    /// Whether the link ends once the queue is written.
    closing: bool,
    /// Whether the link has ended.
    ended: bool,
}

impl OutboxState {
    /// Returns whether frames can be queued.
    fn is_open(&self) -> bool {
        !self.ended && !self.closing && self.bytes.len() + self.held_asks.len() <= MAX_QUEUED
    }

    /// Moves the held asks to the end of the queue.
    fn release(&mut self) {
        let Self { bytes, held_asks, .. } = self;
        bytes.append(held_asks);
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the frames that `encode` appends. Returns `false` if the link has ended or its queue is full.
    pub(crate) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queued = self.lock();
        if !queued.is_open() {
            return false;
        }
        let was_idle = queued.bytes.is_empty();
        encode(&mut queued.bytes);
        drop(queued);
        if was_idle {
            self.wake.notify_one();
        }
        true
    }

    /// Queues an ask like [`push`](Self::push). Holds the ask back if an earlier one was sent less than [`MAX_HOLD`] ago,
    /// is unanswered, and the peer answered the one before within that time.
    pub(crate) fn push_ask(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let now = Instant::now();
        let mut queued = self.lock();
        if !queued.is_open() {
            return false;
        }
        let was_idle = queued.bytes.is_empty();
        if was_idle && queued.answers_fast && queued.asked_at.is_some_and(|at| now < at + MAX_HOLD) {
            encode(&mut queued.held_asks);
            return true;
        }
        queued.asked_at = Some(now);
        queued.release();
        encode(&mut queued.bytes);
        drop(queued);
        if was_idle {
            self.wake.notify_one();
        }
        true
    }

    /// Queues the held asks. Called when an answer has arrived, or when an ask has expired without one.
    pub(crate) fn release_asks(&self) {
        let now = Instant::now();
        let mut queued = self.lock();
        if let Some(at) = queued.asked_at.take() {
            queued.answers_fast = now < at + MAX_HOLD;
        }
        if !queued.held_asks.is_empty() {
            queued.asked_at = Some(now);
            queued.release();
            drop(queued);
            self.wake.notify_one();
        }
    }

    /// Returns the number of queued bytes.
    pub(crate) fn queued(&self) -> usize {
        let queued = self.lock();
        queued.bytes.len() + queued.held_asks.len()
    }

    /// Ends the link after the queue is written.
    pub(crate) fn close(&self) {
        let mut queued = self.lock();
        queued.closing = true;
        queued.release();
        drop(queued);
        self.wake.notify_one();
    }

    /// Ends the link and discards its queue.
    pub(crate) fn end(&self) {
        let mut queued = self.lock();
        queued.ended = true;
        (queued.bytes, queued.held_asks) = (Vec::new(), Vec::new());
        drop(queued);
        self.wake.notify_one();
    }

    /// Swaps the queued bytes with `spare`, an empty buffer. Returns whether any bytes were queued, or `None` if the
    /// link should end.
    fn take(&self, spare: &mut Vec<u8>) -> Option<bool> {
        let mut queued = self.lock();
        if queued.bytes.is_empty() {
            return if queued.closing || queued.ended { None } else { Some(false) };
        }
        std::mem::swap(&mut queued.bytes, spare);
        Some(true)
    }

    /// Writes queued bytes until the link ends.
    async fn write_to<W: AsyncWrite + Unpin>(&self, stream: &mut W) -> LinkEndReason {
        let mut buffer = Vec::new();
        loop {
            match self.take(&mut buffer) {
                None => {
                    // Best effort: the peer may already have closed the connection.
                    let _ = timeout(WRITE_TIMEOUT, stream.shutdown()).await;
                    return LinkEndReason::Ended;
                }
                Some(true) => {
                    if let Err(end) = write_all(stream, &buffer).await {
                        return end;
                    }
                    buffer.clear();
                    buffer.shrink_to(MAX_KEPT_BUFFER);
                }
                Some(false) => self.wake.notified().await,
            }
        }
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("queued", &self.queued()).finish_non_exhaustive()
    }
}

async fn write_all<W: AsyncWrite + Unpin>(stream: &mut W, mut bytes: &[u8]) -> Result<(), LinkEndReason> {
    while !bytes.is_empty() {
        match timeout(WRITE_TIMEOUT, stream.write(bytes)).await {
            Ok(Ok(0)) => return Err(LinkEndReason::Closed),
            Ok(Ok(written)) => bytes = &bytes[written..],
            Ok(Err(error)) => return Err(LinkEndReason::Failed(error)),
            Err(_) => return Err(LinkEndReason::NotReading),
        }
    }
    match timeout(WRITE_TIMEOUT, stream.flush()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(LinkEndReason::Failed(error)),
        Err(_) => Err(LinkEndReason::NotReading),
    }
}

/// Receiver of a link's frames.
pub(crate) trait Receive {
    /// Handles a complete frame, including its length prefix.
    ///
    /// # Errors
    /// Fails if the message is invalid. The link then ends.
    fn frame(&mut self, frame: &[u8]) -> Result<(), String>;

    /// Called after all complete frames of one read were handled.
    fn end_of_read(&mut self) {}
}

/// Reads frames until the link ends.
async fn read_from<R: AsyncRead + Unpin>(stream: &mut R, frames: &mut Frames, to: &mut impl Receive) -> LinkEndReason {
    loop {
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(why) = to.frame(frame) {
                        return LinkEndReason::BadMessage(why);
                    }
                }
                Ok(None) => break,
                Err(bad) => return LinkEndReason::LengthError(bad),
            }
        }
        to.end_of_read();
        if let Err(end) = read_more(stream, frames).await {
            return end;
        }
    }
}

/// Reads once from the connection into the frame buffer.
pub(crate) async fn read_more<R: AsyncRead + Unpin>(stream: &mut R, frames: &mut Frames) -> Result<(), LinkEndReason> {
    let buffer = frames.buffer();
    buffer.reserve(MAX_READ_BYTES);
    match timeout(SILENCE, stream.read_buf(buffer)).await {
        Ok(Ok(0)) => Err(LinkEndReason::Closed),
        Ok(Ok(_)) => Ok(()),
        // TLS reports this error if the connection was closed without `close_notify`.
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(LinkEndReason::Closed),
        Ok(Err(error)) => Err(LinkEndReason::Failed(error)),
        Err(_) => Err(LinkEndReason::Silent),
    }
}

/// Runs both directions of a link until one of them ends.
pub(crate) async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    (reader, writer): (&mut R, &mut W),
    frames: &mut Frames,
    outbox: &Outbox,
    to: &mut impl Receive,
) -> LinkEndReason {
    let end = tokio::select! {
        end = read_from(reader, frames, to) => end,
        end = outbox.write_to(writer) => end,
    };
    outbox.end();
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use tokio::io::{duplex, split};

    #[derive(Default)]
    struct Received(Vec<Vec<u8>>);

    impl Receive for Received {
        fn frame(&mut self, whole: &[u8]) -> Result<(), String> {
            let (_, body) = frame::parts(whole);
            if body == b"bad" {
                return Err("bad".to_owned());
            }
            self.0.push(body.to_vec());
            Ok(())
        }
    }

    /// Runs a link over a pipe that buffers `room` bytes. `peer` runs at the other end.
    async fn link<F: Future<Output = ()>>(
        room: usize,
        outbox: &Outbox,
        peer: impl FnOnce(tokio::io::DuplexStream) -> F,
    ) -> (LinkEndReason, Received) {
        let (near, far) = duplex(room);
        let (mut reader, mut writer) = split(near);
        let (mut frames, mut received) = (Frames::default(), Received::default());
        let near = async {
            let end = run((&mut reader, &mut writer), &mut frames, outbox, &mut received).await;
            drop((reader, writer));
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
        let (end, _) = link(1 << 16, &outbox, async |mut far| {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"\x04\0\0\0\xffone\x04\0\0\0\xfftwo");
        })
        .await;
        assert!(matches!(end, LinkEndReason::Ended), "{end}");
    }

    #[tokio::test(start_paused = true)]
    async fn asks_share_a_write_while_an_ask_of_a_fast_peer_is_unanswered() {
        let outbox = Outbox::default();
        let ask = |number: u8| assert!(outbox.push_ask(|to| to.push(number)));
        let written = || {
            let mut buffer = Vec::new();
            outbox.take(&mut buffer).unwrap();
            buffer
        };
        ask(1);
        ask(2);
        assert_eq!(written(), [1, 2], "the link is idle, so the first write is not delayed");
        ask(3);
        assert_eq!(written(), [3], "nothing is known about the peer, so asks are not held");
        outbox.release_asks();
        ask(4);
        assert_eq!(written(), [4]);
        ask(5);
        ask(6);
        assert_eq!((written(), outbox.queued()), (vec![], 2));
        assert!(outbox.push(|to| to.push(9)), "other frames are not held");
        assert_eq!(written(), [9]);
        outbox.release_asks();
        assert_eq!(written(), [5, 6]);
        ask(7);
        tokio::time::advance(MAX_HOLD).await;
        ask(8);
        assert_eq!(written(), [7, 8], "the answer is late, so asks are no longer held");
        tokio::time::advance(MAX_HOLD).await;
        outbox.release_asks();
        ask(10);
        assert_eq!(written(), [10]);
        ask(11);
        assert_eq!(written(), [11], "the peer is slow");
        outbox.release_asks();
        ask(12);
        assert_eq!(written(), [12]);
        ask(13);
        outbox.close();
        assert_eq!(written(), [13], "held asks are written before the link closes");
        assert!(!outbox.push_ask(|to| to.push(14)), "a closing outbox accepts no ask");
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_never_reads_is_cut_and_its_queue_is_freed() {
        const PUSHED_BYTES: usize = 1 << 20;
        let outbox = Outbox::default();
        while outbox.push(|to| to.resize(to.len() + PUSHED_BYTES, 0)) {}
        assert!((MAX_QUEUED..=MAX_QUEUED + PUSHED_BYTES).contains(&outbox.queued()), "{outbox:?}");
        let (end, _) = link(64, &outbox, async |mut far| {
            // The peer sends but never reads.
            while far.write_all(b"\x01\0\0\0\xff").await.is_ok() {
                tokio::time::sleep(SILENCE / 2).await;
            }
        })
        .await;
        assert!(matches!(end, LinkEndReason::NotReading), "{end}");
        assert_eq!(outbox.queued(), 0);
        assert!(!outbox.push(|to| to.push(1)), "an ended outbox accepts nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_peer_is_dropped() {
        let (end, _) = link(1 << 16, &Outbox::default(), async |mut far| {
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
            let (end, received) = link(1 << 16, &Outbox::default(), async |mut far| {
                far.write_all(sent).await.unwrap();
                far.shutdown().await.unwrap();
            })
            .await;
            assert_eq!(end.to_string(), expected);
            assert!(received.0.iter().all(|body| body == b"ab"));
        }
    }
}
