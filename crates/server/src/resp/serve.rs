//! Serves one connection of the Redis protocol.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::AsyncReadExt;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};
use tollgate::core::{Mono, Time};
use tollgate_engine::Store;

use super::bounds::{FIRST_COMMAND_TIMEOUT, INITIAL_READ_BUFFER, MAX_COMMAND_BYTES, STALL_TIMEOUT};
use super::pipeline::{NextStep, answer_commands};
use super::session::Session;
use super::throttle::ThrottleLimitCache;
use super::wire::Replies;
use crate::app::App;
use crate::net::linger;
use crate::net::shutdown::ConnectionGuard;
use crate::net::stream::{ReadReady, write_with_timeout};
use crate::ops::run::MAX_TURN;

/// Serves a connection until the client closes it or violates the protocol, a timeout expires, or the server stops.
pub async fn serve<S: Store, T: ReadReady>(mut stream: T, app: Arc<App<S>>, guard: ConnectionGuard) {
    guard.register_waker().await;
    let mut session = Session::new(guard.id());
    if let Err(error) = serve_until_closed(&mut stream, &app, &mut session, &guard).await {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
    linger::close_gracefully(&mut stream).await;
}

async fn serve_until_closed<S: Store, T: ReadReady>(
    stream: &mut T,
    app: &App<S>,
    session: &mut Session,
    guard: &ConnectionGuard,
) -> io::Result<()> {
    let mut first_command = Some(Instant::now() + FIRST_COMMAND_TIMEOUT);
    while wait_for_input(stream, app, session, guard, first_command).await? {
        let mut buffers = ConnectionBuffers::take_from_pool();
        let outcome = buffers.serve_commands(stream, app, session, guard, first_command.take()).await;
        buffers.return_to_pool();
        match outcome? {
            AfterAnswer::Wait => {}
            AfterAnswer::Close => break,
        }
    }
    Ok(())
}

/// Waits for input. Returns false if the server stops or the deadline passes. The first command has a deadline. If
/// tokens are required, an unauthenticated connection has an earlier deadline instead, which commands do not extend.
async fn wait_for_input<S: Store, T: ReadReady>(
    stream: &mut T,
    app: &App<S>,
    session: &Session,
    guard: &ConnectionGuard,
    first_command: Option<Instant>,
) -> io::Result<bool> {
    match session.auth_deadline(&app.auth).or(first_command) {
        None => wait_until_readable(stream, guard).await,
        Some(deadline) if deadline <= Instant::now() => Ok(false),
        Some(deadline) => timeout_at(deadline, wait_until_readable(stream, guard)).await.unwrap_or(Ok(false)),
    }
}

/// Waits for input. Returns false if the server stops. An idle connection holds no buffers, only its socket.
async fn wait_until_readable<T: ReadReady>(stream: &mut T, guard: &ConnectionGuard) -> io::Result<bool> {
    poll_fn(|cx| match guard.is_stopping() {
        true => Poll::Ready(Ok(false)),
        false => stream.poll_readable(cx).map_ok(|()| true),
    })
    .await
}

enum AfterAnswer {
    Wait,
    Close,
}

/// The buffers of a connection with commands in progress. Each thread has a small pool of buffers: idle connections
/// hold none, and reused buffers stay in the CPU cache.
struct ConnectionBuffers {
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    cache: ThrottleLimitCache,
}

/// Maximum number of unused buffers in a thread's pool.
const MAX_POOLED_BUFFERS: usize = 16;

thread_local! {
    static BUFFER_POOL: RefCell<Vec<ConnectionBuffers>> = const { RefCell::new(Vec::new()) };
}

impl ConnectionBuffers {
    fn take_from_pool() -> Self {
        let spare = BUFFER_POOL.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Self {
            input: vec![0; INITIAL_READ_BUFFER],
            filled: 0,
            output: Vec::new(),
            cache: ThrottleLimitCache::new(),
        })
    }

    fn return_to_pool(mut self) {
        self.filled = 0;
        self.input.truncate(INITIAL_READ_BUFFER);
        self.input.shrink_to(INITIAL_READ_BUFFER);
        self.output.clear();
        self.output.shrink_to(4 * INITIAL_READ_BUFFER);
        BUFFER_POOL.with_borrow_mut(|spare| {
            if spare.len() < MAX_POOLED_BUFFERS {
                spare.push(self);
            }
        });
    }

    /// Reads, answers and writes until every received byte is answered. The first read also has the first-command
    /// deadline, because readiness can be spurious.
    async fn serve_commands<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
        guard: &ConnectionGuard,
        mut first_command: Option<Instant>,
    ) -> io::Result<AfterAnswer> {
        let mut deadline = None;
        loop {
            let auth_deadline = session.auth_deadline(&app.auth);
            if auth_deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(AfterAnswer::Close);
            }
            let free = &mut self.input[self.filled..];
            // The read has no deadline between commands, because a client may pause there for any time. Such a read
            // rarely waits, because the caller has waited until the stream was readable.
            let read = match [deadline, auth_deadline, first_command.take()].into_iter().flatten().min() {
                None => stream.read(free).await?,
                Some(deadline) => timeout_at(deadline, stream.read(free)).await??,
            };
            if read == 0 {
                return Ok(AfterAnswer::Close);
            }
            self.filled += read;
            // The flag is loaded before the commands are answered. If the server stops while commands are answered, the
            // rest of a partial command is still awaited.
            let (received, was_stopping) = (self.filled, guard.is_stopping());
            match self.answer_all(stream, app, session).await? {
                AfterAnswer::Close => return Ok(AfterAnswer::Close),
                AfterAnswer::Wait if self.filled == 0 => return Ok(AfterAnswer::Wait),
                // Close now: a client that always sends part of the next command would prevent a stopping server from
                // exiting.
                AfterAnswer::Wait if was_stopping && self.filled < received => return Ok(AfterAnswer::Close),
                AfterAnswer::Wait => {
                    // The timeout of a command starts with its first byte. Later bytes do not extend the timeout.
                    if deadline.is_none() || self.filled < received {
                        deadline = Some(Instant::now() + STALL_TIMEOUT);
                    }
                    self.grow_if_full();
                }
            }
        }
    }

    /// Answers all complete commands. A partial command stays in the buffer. Yields to other connections after
    /// [`MAX_TURN`].
    async fn answer_all<S: Store, T: ReadReady>(
        &mut self,
        stream: &mut T,
        app: &App<S>,
        session: &mut Session,
    ) -> io::Result<AfterAnswer> {
        let (mut at, mut turn_start) = (0, app.now());
        loop {
            let mut replies = Replies::new(std::mem::take(&mut self.output), session.version);
            let input = &self.input[at..self.filled];
            let (used, then) = match answer_commands(app, session, &mut self.cache, input, &mut replies) {
                (used, NextStep::Read) => (used, Some(AfterAnswer::Wait)),
                (used, NextStep::Close) => (used, Some(AfterAnswer::Close)),
                (used, NextStep::Write) => (used, None),
                (used, NextStep::Run(batch)) if batch.may_wait() => tokio::select! {
                    biased;
                    () = batch.run(app, &session.access, &mut replies) => (used, None),
                    () = poll_fn(|cx| stream.poll_closed(cx)) => return Ok(AfterAnswer::Close),
                },
                (used, NextStep::Run(batch)) => {
                    batch.run(app, &session.access, &mut replies).await;
                    (used, None)
                }
            };
            at += used;
            session.version = replies.version;
            self.output = replies.bytes;
            if !self.output.is_empty() {
                write_with_timeout(stream, &self.output, STALL_TIMEOUT).await?;
                self.output.clear();
            }
            if let Some(then) = then {
                self.input.copy_within(at..self.filled, 0);
                self.filled -= at;
                yield_if_due(app, &mut turn_start).await;
                return Ok(then);
            }
            yield_if_due(app, &mut turn_start).await;
        }
    }

    /// Doubles a full buffer. The buffer grows with the received bytes, not with the announced length, so that a few
    /// bytes cannot cause a large allocation. The parser bounds the size of every command.
    fn grow_if_full(&mut self) {
        if self.filled == self.input.len() {
            self.input.resize((2 * self.filled).min(MAX_COMMAND_BYTES + 1), 0);
        }
    }
}

/// Yields to other connections if a turn has lasted [`MAX_TURN`].
async fn yield_if_due<S: Store>(app: &App<S>, turn_start: &mut Time<Mono>) {
    if app.now().since(*turn_start) >= MAX_TURN {
        yield_now().await;
        *turn_start = app.now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::protocol::AUTH_TIMEOUT;
    use crate::net::stalled_client::assert_closes_after;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tollgate_engine::{Engine, MemoryStore};

    fn new_app() -> Arc<App<MemoryStore>> {
        Arc::new(App::new(Engine::new(MemoryStore::new(1).unwrap()).unwrap(), None))
    }

    /// Returns the client's and the server's end of a connection.
    async fn connect() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        let refused = "-NOAUTH Authentication required.\r\n";
        // A partial command does not extend the deadline.
        for (sent, answer) in [("", ""), ("PING\r\n", refused), ("PING\r\nPI", refused), ("RESET\r\n", "+RESET\r\n")] {
            let required = |stream, _, guard| {
                let engine = MemoryStore::new(1).and_then(Engine::new).unwrap();
                serve(stream, Arc::new(App::new(engine, None).with_token_policy(TokenPolicy::Required)), guard)
            };
            assert_eq!(assert_closes_after(AUTH_TIMEOUT, sent, required).await, answer, "{sent}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_server_answers_the_commands_in_progress_and_closes() {
        let (mut client, stream) = connect().await;
        let app = new_app();
        let guard = app.connections.register_connection(crate::net::protocol::Protocol::Resp, 1).unwrap();
        let serving = tokio::spawn(serve(stream, app.clone(), guard));
        client.write_all(b"PING\r\nPI").await.unwrap();
        let mut reply = [0; 7];
        client.read_exact(&mut reply).await.unwrap();
        app.connections.stop();
        let stopped_at = Instant::now();
        client.write_all(b"NG\r\nPI").await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&reply[..], &rest[..]), (&b"+PONG\r\n"[..], &b"+PONG\r\n"[..]));
        serving.await.unwrap();
        assert!(stopped_at.elapsed() < STALL_TIMEOUT, "the partial command must not delay the end");
    }

    /// One pipeline is answered in many turns, so that other connections are served in between.
    #[tokio::test]
    async fn long_pipeline_yields_to_other_connections() {
        let ((mut busy, busy_stream), (mut other, other_stream), app) = (connect().await, connect().await, new_app());
        for stream in [busy_stream, other_stream] {
            let guard = app.connections.register_connection(crate::net::protocol::Protocol::Resp, 2).unwrap();
            tokio::spawn(serve(stream, app.clone(), guard));
        }
        // Together, the replies exceed the largest possible socket buffers, so the client must read while the server
        // writes.
        const COMMANDS: usize = 1_800;
        let pipeline = b"COMMAND\r\n".repeat(COMMANDS);
        let reading = tokio::spawn(async move {
            busy.write_all(&pipeline).await.unwrap();
            busy.shutdown().await.unwrap();
            let mut replies = Vec::new();
            busy.read_to_end(&mut replies).await.unwrap();
            replies.len()
        });
        let mut answered = 0;
        while !reading.is_finished() {
            other.write_all(b"PING\r\n").await.unwrap();
            other.read_exact(&mut [0; 7]).await.unwrap();
            answered += 1;
        }
        assert!(reading.await.unwrap() > COMMANDS * 1_000);
        assert!(answered >= 10, "only {answered} answers on another connection");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_never_sends_a_command_is_closed() {
        assert_eq!(assert_closes_after(FIRST_COMMAND_TIMEOUT, "", serve).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_stalls_within_a_command_times_out() {
        for (sent, answer) in [("*2\r\n", ""), ("PING\r\n*1\r\n$4\r\nPI", "+PONG\r\n"), ("PIN", "")] {
            assert_eq!(assert_closes_after(STALL_TIMEOUT, sent, serve).await, answer, "{sent}");
        }
    }
}
