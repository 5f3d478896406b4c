//! The send queue of a link.
//!
//! Frames are appended to one buffer. A flush takes the whole buffer together with the write half of the connection,
//! and writes without holding the lock. Frames that are queued during a write share the next write.
//!
//! The link's own task flushes the queue, on the peers thread. Each switch of threads delays an ask, so two kinds of
//! frames are written elsewhere. If an ask is this node's only unanswered ask, its caller writes it. Answers are
//! written at the end of the read that contained the asks. The caller's thread and the reading thread each make only
//! one write call. The link's task writes frames that were queued meanwhile, and bytes that the connection does not
//! accept yet. With all processes on one core, writing these frames elsewhere reduced the median time of a decision by
//! another node from 36.3 µs to 31.5 µs. A bare echo takes 13.7 µs.
//!
//! Asks are batched further. While an ask is unanswered, later asks are held until an answer arrives, and then share
//! one write. The system calls and wake-ups of a write cost more CPU time than several decisions. Asks to a peer that
//! needs more than [`MAX_HOLD`] for an answer are not held, because they could miss their deadline. After an answer, held
//! asks are sent without waiting for the next asks of the answered callers. Such a wait raised the asks per write from
//! 16 to 23, with 64 callers and two homes, but saved no CPU time.
//!
//! The queue is bounded by [`MAX_QUEUED_BYTES`], and a write without progress for [`WRITE_TIMEOUT`] ends the link. A
//! peer that never reads therefore costs bounded memory for a bounded time and does not affect other links.

#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::link::LinkEndReason;

/// A queue with more bytes than this accepts no further frames. One push can therefore exceed this size.
pub const MAX_QUEUED_BYTES: usize = 32 << 20;
/// Maximum time that a write may take without progress.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which asks wait for the answer to an earlier ask: a small part of the usual deadline.
const MAX_HOLD: Duration = Duration::from_millis(1);
/// Maximum number of bytes that [`Outbox::flush`] writes. Longer queues are left to the link's task.
const MAX_DIRECT_BYTES: usize = 64 << 10;
/// Write buffers larger than this are shrunk after the write.
const MAX_KEPT_BUFFER: usize = 256 << 10;

/// Queue of frames to write to a peer.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    /// Wakes the link's task.
    wake: Notify,
}

/// Decides which asks wait until an earlier ask is answered.
#[derive(Debug, Default)]
struct AskHold {
    /// When the last asks were sent, if no answer has arrived since.
    sent_at: Option<Instant>,
    /// Whether the last answer arrived within [`MAX_HOLD`].
    answers_fast: bool,
}

impl AskHold {
    /// Returns whether an ask made at `now` is held. The expected answer to an earlier ask then releases the held ask.
    fn should_hold(&self, now: Instant) -> bool {
        self.answers_fast && self.sent_at.is_some_and(|at| now < at + MAX_HOLD)
    }

    fn on_sent(&mut self, now: Instant) {
        self.sent_at = Some(now);
    }

    fn on_answers(&mut self, now: Instant) {
        if let Some(at) = self.sent_at.take() {
            self.answers_fast = now < at + MAX_HOLD;
        }
    }
}

/// The write half of a connection.
type LinkWriter = Box<dyn AsyncWrite + Send + Unpin>;

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they change independently of each other")]
struct OutboxState {
    bytes: Vec<u8>,
    /// An empty buffer, which replaces `bytes` during a write.
    spare: Vec<u8>,
    /// The write half of the connection. `None` before the link begins, while a thread writes, and after the link
    /// ended.
    writer: Option<LinkWriter>,
    /// A write that the link's task has to continue.
    interrupted: Option<InterruptedWrite>,
    /// Whether the queue contains asks.
    has_asks: bool,
    hold: AskHold,
    /// Whether the link's task was woken for asks that it has not written yet.
    is_task_woken: bool,
    /// Whether a flush found another thread writing. That thread or the link's task then writes the queue.
    is_flush_waiting: bool,
    /// Why the last write failed.
    failed: Option<LinkEndReason>,
    /// Whether the link ends once the queue is written.
    closing: bool,
    /// Whether the link has ended.
    ended: bool,
    /// Whether the link's task has ended, so that no thread may put the write half back.
    is_over: bool,
}

/// A write of which the connection accepted only the first bytes.
struct InterruptedWrite {
    writer: LinkWriter,
    buffer: Vec<u8>,
    written: usize,
}

/// Progress of a non-blocking write.
enum WriteProgress {
    Complete,
    /// The connection accepted this many bytes.
    Partial(usize),
}

/// Work that a flush leaves to the link's task.
#[derive(PartialEq)]
enum LeftOver {
    Nothing,
    Work,
}

/// The next step of the link's task.
enum NextStep {
    Wait,
    Continue(InterruptedWrite),
    Close(LinkWriter),
    End(LinkEndReason),
}

impl OutboxState {
    fn queue(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let is_open = !self.ended && !self.closing && self.bytes.len() <= MAX_QUEUED_BYTES;
        if is_open {
            encode(&mut self.bytes);
        }
        is_open
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the frames that `encode` appends, and wakes the link's task to write them. Returns `false` if the link
    /// has ended or its queue is full.
    pub(crate) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let is_queued = self.queue(encode);
        if is_queued {
            self.wake.notify_one();
        }
        is_queued
    }

    /// Queues frames like [`push`](Self::push), but wakes no task. The caller then flushes the queue.
    pub(crate) fn queue(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.lock().queue(encode)
    }

    /// Queues an ask like [`push`](Self::push). Writes the ask at once if it is this node's only unanswered ask. Holds
    /// the ask if an unanswered ask was sent less than [`MAX_HOLD`] ago and the peer's last answer took less than
    /// [`MAX_HOLD`].
    pub(crate) fn push_ask(&self, is_only: bool, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let now = Instant::now();
        let mut queued = self.lock();
        if !queued.queue(encode) {
            return false;
        }
        queued.has_asks = true;
        let wakes_task =
            !is_only && !queued.hold.should_hold(now) && !std::mem::replace(&mut queued.is_task_woken, true);
        drop(queued);
        if is_only {
            self.flush();
        } else if wakes_task {
            self.wake.notify_one();
        }
        true
    }

    /// Sends the held asks, after answers have arrived or asks have expired.
    pub(crate) fn release_asks(&self) {
        self.lock().hold.on_answers(Instant::now());
        self.flush();
    }

    /// Writes the queue to the connection, or leaves it to the link's task.
    pub(crate) fn flush(&self) {
        if self.flush_up_to(MAX_DIRECT_BYTES) == LeftOver::Work {
            self.wake.notify_one();
        }
    }

    /// Writes the queue. If another thread is writing, that thread or the link's task writes the queue afterwards.
    /// Leaves queues above `max_bytes`, and bytes that the connection does not accept at once, to the link's task.
    fn flush_up_to(&self, max_bytes: usize) -> LeftOver {
        let mut queued = self.lock();
        while !queued.bytes.is_empty() && queued.bytes.len() <= max_bytes {
            let Some(mut writer) = queued.writer.take() else {
                queued.is_flush_waiting = true;
                return LeftOver::Nothing;
            };
            (queued.is_task_woken, queued.is_flush_waiting) = (false, false);
            if std::mem::take(&mut queued.has_asks) {
                queued.hold.on_sent(Instant::now());
            }
            let mut buffer = std::mem::take(&mut queued.spare);
            std::mem::swap(&mut buffer, &mut queued.bytes);
            drop(queued);
            let written = try_write_all(&mut writer, &buffer);
            queued = self.lock();
            if queued.is_over {
                return LeftOver::Nothing;
            }
            match written {
                Ok(WriteProgress::Complete) => {
                    queued.writer = Some(writer);
                    buffer.clear();
                    buffer.shrink_to(MAX_KEPT_BUFFER);
                    queued.spare = buffer;
                }
                Ok(WriteProgress::Partial(written)) => {
                    queued.interrupted = Some(InterruptedWrite { writer, buffer, written });
                    return LeftOver::Work;
                }
                Err(end) => {
                    queued.failed = Some(end);
                    return LeftOver::Work;
                }
            }
            // A caller's thread writes only once. Before the link closes, its task writes the whole queue.
            let is_task = max_bytes == usize::MAX;
            if !is_task || !(queued.is_flush_waiting || queued.closing) {
                break;
            }
        }
        let is_long = queued.bytes.len() > max_bytes;
        let is_done = !is_long && !queued.is_flush_waiting && !queued.closing && !queued.ended;
        if is_done { LeftOver::Nothing } else { LeftOver::Work }
    }

    /// Returns the number of queued bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.lock().bytes.len()
    }

    /// Ends the link after the queue is written.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Ends the link and discards its queue.
    pub(crate) fn end(&self) {
        let mut queued = self.lock();
        (queued.ended, queued.bytes) = (true, Vec::new());
        drop(queued);
        self.wake.notify_one();
    }

    /// Starts writing to a connection. The link ends when the returned guard is dropped.
    pub(crate) fn begin(&self, writer: impl AsyncWrite + Send + Unpin + 'static) -> EndOutboxOnDrop<'_> {
        self.lock().writer = Some(Box::new(writer));
        EndOutboxOnDrop(self)
    }

    /// Writes the frames that no other thread writes, until the link ends.
    pub(crate) async fn write_all(&self) -> LinkEndReason {
        loop {
            // The next step of this task handles any work that the flush leaves.
            let _ = self.flush_up_to(usize::MAX);
            match self.next_step() {
                NextStep::Wait => self.wake.notified().await,
                NextStep::Continue(InterruptedWrite { mut writer, buffer, written }) => {
                    if let Err(end) = write_rest(&mut writer, &buffer[written..]).await {
                        return end;
                    }
                    self.lock().writer = Some(writer);
                }
                NextStep::Close(mut writer) => {
                    // Best effort: the peer may already have closed the connection.
                    let _ = timeout(WRITE_TIMEOUT, writer.shutdown()).await;
                    return LinkEndReason::Ended;
                }
                NextStep::End(end) => return end,
            }
        }
    }

    fn next_step(&self) -> NextStep {
        let mut queued = self.lock();
        if let Some(end) = queued.failed.take() {
            return NextStep::End(end);
        }
        if let Some(write) = queued.interrupted.take() {
            return NextStep::Continue(write);
        }
        if !queued.closing && !queued.ended {
            return NextStep::Wait;
        }
        // A thread that is still writing wakes this task afterwards.
        queued.writer.take().map_or(NextStep::Wait, NextStep::Close)
    }
}

/// A guard that ends the link when the guard is dropped, even if the peers thread panics.
pub(crate) struct EndOutboxOnDrop<'a>(&'a Outbox);

impl Drop for EndOutboxOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
        let mut queued = self.0.lock();
        (queued.writer, queued.interrupted, queued.is_over) = (None, None, true);
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("queued", &self.queued_bytes()).finish_non_exhaustive()
    }
}

/// Writes as many bytes as the connection accepts without waiting.
fn try_write_all(writer: &mut LinkWriter, bytes: &[u8]) -> Result<WriteProgress, LinkEndReason> {
    // If the connection accepts no more bytes, the link's task polls it again with its own waker.
    let (mut context, mut written) = (Context::from_waker(Waker::noop()), 0);
    while written < bytes.len() {
        match Pin::new(&mut *writer).poll_write(&mut context, &bytes[written..]) {
            Poll::Ready(Ok(0)) => return Err(LinkEndReason::Closed),
            Poll::Ready(Ok(count)) => written += count,
            Poll::Ready(Err(error)) => return Err(LinkEndReason::Failed(error)),
            Poll::Pending => return Ok(WriteProgress::Partial(written)),
        }
    }
    match Pin::new(writer).poll_flush(&mut context) {
        Poll::Ready(Ok(())) => Ok(WriteProgress::Complete),
        Poll::Ready(Err(error)) => Err(LinkEndReason::Failed(error)),
        Poll::Pending => Ok(WriteProgress::Partial(written)),
    }
}

/// Writes all bytes, waiting while the connection accepts none.
async fn write_rest(writer: &mut LinkWriter, mut bytes: &[u8]) -> Result<(), LinkEndReason> {
    while !bytes.is_empty() {
        match timeout(WRITE_TIMEOUT, writer.write(bytes)).await {
            Ok(Ok(0)) => return Err(LinkEndReason::Closed),
            Ok(Ok(written)) => bytes = &bytes[written..],
            Ok(Err(error)) => return Err(LinkEndReason::Failed(error)),
            Err(_) => return Err(LinkEndReason::NotReading),
        }
    }
    match timeout(WRITE_TIMEOUT, writer.flush()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(LinkEndReason::Failed(error)),
        Err(_) => Err(LinkEndReason::NotReading),
    }
}
