//! Serves one connection of the Redis protocol.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};
use tollgate_engine::Store;

use super::bounds::{FIRST_COMMAND, MAX_COMMAND, READ_BUFFER, STALLED};
use super::pipeline::{Next, answer};
use super::session::Session;
use super::throttle::LimitCache;
use super::wire::Replies;
use crate::app::App;
use crate::net::shutdown::ConnectionGuard;
use crate::net::stream::{ReadReady, write};

/// Serves a connection until the client closes it, violates the protocol, a timeout expires, or the server stops.
pub async fn serve<S: Store, T: ReadReady>(mut stream: T, app: Arc<App<S>>, guard: ConnectionGuard) {
    guard.register().await;
    let mut session = Session::new(guard.id());
    if let Err(error) = serve_until_closed(&mut stream, &app, &mut session, &guard).await {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
    // Best effort: polled once, so a client that does not read cannot block the server.
    let _ = poll_fn(|cx| Poll::Ready(stream.poll_close_notify(cx))).await;
}

async fn serve_until_closed<S: Store, T: ReadReady>(
    stream: &mut T,
    app: &App<S>,
    session: &mut Session,
    guard: &ConnectionGuard,
) -> io::Result<()> {
    let mut first_command = Some(Instant::now() + FIRST_COMMAND);
    while wait_for_input(stream, app, session, guard, first_command).await? {
        let mut buffers = ConnectionBuffers::take();
        let outcome = buffers.serve(stream, app, session, first_command.take()).await;
        buffers.give_back();
        match outcome? {
            Then::Wait => {}
            Then::Close => break,
        }
    }
    Ok(())
}

/// Waits for input. Returns false at the deadline of the first command. If tokens are required, an unauthenticated
/// connection has an earlier deadline, whatever it sends.
async fn wait_for_input<S: Store, T: ReadReady>(
    stream: &mut T,
    app: &App<S>,
    session: &Session,
    guard: &ConnectionGuard,
    first_command: Option<Instant>,
) -> io::Result<bool> {
    match session.auth_deadline(&app.auth).or(first_command) {
        None => has_input(stream, guard).await,
        Some(deadline) if deadline <= Instant::now() => Ok(false),
        Some(deadline) => timeout_at(deadline, has_input(stream, guard)).await.unwrap_or(Ok(false)),
    }
}

/// Waits for input; returns false if the server stops. An idle connection holds no buffers, only its socket.
async fn has_input<T: ReadReady>(stream: &mut T, guard: &ConnectionGuard) -> io::Result<bool> {
    poll_fn(|cx| match guard.is_stopping() {
        true => Poll::Ready(Ok(false)),
        false => stream.poll_readable(cx).map_ok(|()| true),
    })
    .await
}

enum Then {
    Wait,
    Close,
}

/// The buffers of a connection with commands in progress. Each thread pools a few of them, so that they stay in the CPU
/// cache and idle connections hold none.
struct ConnectionBuffers {
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    cache: LimitCache,
}

/// Maximum number of unused buffers in a thread's pool.
const SPARE_BUFFERS: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<ConnectionBuffers>> = const { RefCell::new(Vec::new()) };
}

impl ConnectionBuffers {
    fn take() -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Self {
            input: vec![0; READ_BUFFER],
            filled: 0,
            output: Vec::new(),
            cache: LimitCache::new(),
        })
    }

    fn give_back(mut self) {
        self.filled = 0;
        self.input.truncate(READ_BUFFER);
        self.input.shrink_to(READ_BUFFER);
        self.output.clear();
        self.output.shrink_to(4 * READ_BUFFER);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(self);
            }
        });
    }

    /// Reads, answers and writes until every received byte is answered. The first read also has the first-command
    /// deadline, because readiness can be spurious.
    async fn serve<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
        mut first_command: Option<Instant>,
    ) -> io::Result<Then> {
        let mut deadline = None;
        loop {
            let auth_deadline = session.auth_deadline(&app.auth);
            if auth_deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Then::Close);
            }
            let free = &mut self.input[self.filled..];
            // Without a partial command the stream is almost always readable, so the read needs no deadline.
            let read = match [deadline, auth_deadline, first_command.take()].into_iter().flatten().min() {
                None => stream.read(free).await?,
                Some(deadline) => timeout_at(deadline, stream.read(free)).await??,
            };
            if read == 0 {
                return Ok(Then::Close);
            }
            self.filled += read;
            let received = self.filled;
            match self.answer_all(stream, app, session).await? {
                Then::Close => return Ok(Then::Close),
                Then::Wait if self.filled == 0 => return Ok(Then::Wait),
                Then::Wait => {
                    // The timeout of a command starts with its first byte. Later bytes do not extend it.
                    if deadline.is_none() || self.filled < received {
                        deadline = Some(Instant::now() + STALLED);
                    }
                    self.grow_if_full();
                }
            }
        }
    }

    /// Answers all complete commands and keeps a partial one.
    async fn answer_all<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
    ) -> io::Result<Then> {
        let mut at = 0;
        loop {
            let mut replies = Replies { bytes: std::mem::take(&mut self.output), version: session.version };
            let input = &self.input[at..self.filled];
            let (used, then) = match answer(app, session, &mut self.cache, input, &mut replies) {
                (used, Next::Read) => (used, Some(Then::Wait)),
                (used, Next::Close) => (used, Some(Then::Close)),
                (used, Next::Write) => (used, None),
                (used, Next::Run(batch)) if batch.waits() => tokio::select! {
                    biased;
                    () = batch.run(app, &session.access, &mut replies) => (used, None),
                    () = poll_fn(|cx| stream.poll_closed(cx)) => return Ok(Then::Close),
                },
                (used, Next::Run(batch)) => {
                    batch.run(app, &session.access, &mut replies).await;
                    (used, None)
                }
            };
            at += used;
            session.version = replies.version;
            self.output = replies.bytes;
            if !self.output.is_empty() {
                write(stream, &self.output, STALLED).await?;
                self.output.clear();
            }
            if let Some(then) = then {
                self.input.copy_within(at..self.filled, 0);
                self.filled -= at;
                return Ok(then);
            }
        }
    }

    /// Doubles a full buffer. The buffer grows with the received bytes, not with the announced length: a few bytes must
    /// not cause a large allocation. The parser bounds every command.
    fn grow_if_full(&mut self) {
        if self.filled == self.input.len() {
            self.input.resize((2 * self.filled).min(MAX_COMMAND + 1), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::protocol::AUTH_TIMEOUT;
    use crate::net::stalled_client::closes_after;

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        let refused = "-NOAUTH Authentication required.\r\n";
        // A partial command does not extend the deadline.
        for (sent, answer) in [("", ""), ("PING\r\n", refused), ("PING\r\nPI", refused), ("RESET\r\n", "+RESET\r\n")] {
            let required = |stream, _, guard| {
                let engine = tollgate_engine::MemoryStore::new(1).and_then(tollgate_engine::Engine::new).unwrap();
                serve(stream, Arc::new(App::new(engine, None).with_tokens(TokenPolicy::Required)), guard)
            };
            assert_eq!(closes_after(AUTH_TIMEOUT, sent, required).await, answer, "{sent}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_never_sends_a_command_is_closed() {
        assert_eq!(closes_after(FIRST_COMMAND, "", serve).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_stalls_within_a_command_times_out() {
        for (sent, answer) in [("*2\r\n", ""), ("PING\r\n*1\r\n$4\r\nPI", "+PONG\r\n"), ("PIN", "")] {
            assert_eq!(closes_after(STALLED, sent, serve).await, answer, "{sent}");
        }
    }
}
