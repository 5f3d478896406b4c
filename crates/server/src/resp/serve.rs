//! One connection of the Redis protocol, from its first byte to its last.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_engine::Store;

use super::command::Session;
use super::decide::{decide, waits};
use super::limits::{MAX_COMMAND, READ_BUFFER, STALLED};
use super::memo::Memo;
use super::pipeline::{Next, answer};
use super::wire::Replies;
use crate::app::App;
use crate::net::shutdown::ConnectionGuard;
use crate::net::stream::ReadReady;

/// Serves a connection until its client leaves, breaks the protocol or the limits, or the server stops.
pub async fn serve<S: Store, T: ReadReady>(mut stream: T, app: Arc<App<S>>, guard: ConnectionGuard) {
    guard.register().await;
    let mut session = Session::new(guard.id());
    // Clients come and go as they like: how a connection ended is of interest to nobody but a debugger.
    if let Err(error) = converse(&mut stream, &app, &mut session, &guard).await {
        tracing::debug!(%error, connection = guard.id(), "a connection ended");
    }
    // One that has no room for it is not waited for.
    let _ = poll_fn(|cx| Poll::Ready(stream.poll_farewell(cx))).await;
}

async fn converse<S: Store, T: ReadReady>(
    stream: &mut T,
    app: &App<S>,
    session: &mut Session,
    guard: &ConnectionGuard,
) -> io::Result<()> {
    while is_spoken_to(stream, guard).await? {
        let mut buffers = ConnectionBuffers::take();
        let outcome = buffers.work_off(stream, app, session).await;
        buffers.give_back();
        match outcome? {
            Then::Wait => {}
            Then::End => break,
        }
    }
    Ok(())
}

/// Waits for bytes to read. No memory is held meanwhile: a thousand idle connections cost what their sockets do.
async fn is_spoken_to<T: ReadReady>(stream: &mut T, guard: &ConnectionGuard) -> io::Result<bool> {
    poll_fn(|cx| match guard.is_stopping() {
        true => Poll::Ready(Ok(false)),
        false => stream.poll_input(cx).map_ok(|()| true),
    })
    .await
}

enum Then {
    Wait,
    End,
}

/// What it takes to answer: buffers and the limits seen lately. A few are kept by each thread and lent to whichever
/// connection has something to say, so that they are warm and their number is that of connections in mid-command.
struct ConnectionBuffers {
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    memo: Memo,
}

/// Desks a thread keeps while nobody needs them.
const SPARE_BUFFERS: usize = 16;

thread_local! {
    static BUFFERS: RefCell<Vec<ConnectionBuffers>> = const { RefCell::new(Vec::new()) };
}

impl ConnectionBuffers {
    fn take() -> Self {
        let spare = BUFFERS.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Self { input: vec![0; READ_BUFFER], filled: 0, output: Vec::new(), memo: Memo::new() })
    }

    fn give_back(mut self) {
        self.filled = 0;
        self.input.truncate(READ_BUFFER);
        self.input.shrink_to(READ_BUFFER);
        self.output.clear();
        self.output.shrink_to(4 * READ_BUFFER);
        BUFFERS.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(self);
            }
        });
    }

    /// Reads, answers and writes until every byte received has been answered.
    async fn work_off<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
    ) -> io::Result<Then> {
        let mut deadline = None;
        loop {
            let free = &mut self.input[self.filled..];
            // With nothing left over, the bytes that were announced are there.
            let read = match deadline {
                None => stream.read(free).await?,
                Some(deadline) => timeout_at(deadline, stream.read(free)).await??,
            };
            if read == 0 {
                return Ok(Then::End);
            }
            self.filled += read;
            let received = self.filled;
            match self.answer_all(stream, app, session).await? {
                Next::Read if self.filled == 0 => return Ok(Then::Wait),
                Next::Read => {
                    // The command that has begun has its time from its first byte on, however slowly the others come.
                    if deadline.is_none() || self.filled < received {
                        deadline = Some(Instant::now() + STALLED);
                    }
                    self.make_room();
                }
                // Seen to before.
                Next::Write | Next::Decide => {}
                Next::Close => return Ok(Then::End),
            }
        }
    }

    /// Answers all commands that are there, and keeps what is left.
    async fn answer_all<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
    ) -> io::Result<Next> {
        let mut at = 0;
        loop {
            let mut replies = Replies { bytes: std::mem::take(&mut self.output), version: session.version };
            let (mut used, mut next) = answer(app, session, &mut self.memo, &self.input[at..self.filled], &mut replies);
            if next == Next::Decide {
                let asked = &self.input[at + used..self.filled];
                used += match waits(asked) {
                    false => decide(app, &session.access, asked, &mut replies).await,
                    true => tokio::select! {
                        used = decide(app, &session.access, asked, &mut replies) => used,
                        () = poll_fn(|cx| stream.poll_gone(cx)) => return Ok(Next::Close),
                    },
                };
                next = Next::Write;
            }
            session.version = replies.version;
            self.output = replies.bytes;
            at += used;
            if !self.output.is_empty() {
                write(stream, &self.output).await?;
                self.output.clear();
            }
            if next != Next::Write {
                self.input.copy_within(at..self.filled, 0);
                self.filled -= at;
                return Ok(next);
            }
        }
    }

    /// Makes a full buffer larger. It follows what has arrived, not what was announced: a length is a few bytes, and would
    /// otherwise buy as much memory as it names. The parser lets no command be larger than the limit.
    fn make_room(&mut self) {
        if self.filled == self.input.len() {
            self.input.resize((2 * self.filled).min(MAX_COMMAND + 1), 0);
        }
    }
}

/// Writes all of it; what the kernel does not take at once, the client must within [`STALLED`].
async fn write<T: ReadReady>(stream: &mut T, bytes: &[u8]) -> io::Result<()> {
    let mut all = pin!(async {
        stream.write_all(bytes).await?;
        stream.flush().await
    });
    // Nearly always the kernel has room, and no timer is needed.
    match poll_fn(|cx| Poll::Ready(all.as_mut().poll(cx))).await {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => timeout(STALLED, all).await?,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stalled_client::hangs_up_after;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stalls_within_a_command_is_not_waited_for() {
        for (sent, answer) in [("*2\r\n", ""), ("PING\r\n*1\r\n$4\r\nPI", "+PONG\r\n"), ("PIN", "")] {
            assert_eq!(hangs_up_after(STALLED, sent, serve).await, answer, "{sent}");
        }
    }
}
