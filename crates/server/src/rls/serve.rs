//! Serves one connection of the rate-limit service.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate_engine::Store;

use super::bounds::{
    DRAIN_TIMEOUT, KEEPALIVE_EVERY, KEEPALIVE_TIMEOUT, LINGER, MAX_STREAMS, MAX_WAITING_CALLS, MESSAGE_TIMEOUT,
    READ_BUFFER, STALLED, WRITE_BUFFER,
};
use super::decide::decide;
use super::grpc::{GrpcCode, GrpcError, HEAD, OK, frame, unframe};
use super::http2::frame::{ConnectionError, ErrorCode};
use super::http2::head::Head;
use super::http2::{Connection, StreamCall};
use super::wire::{Health, RateLimitRequest, RateLimitResponse, WireError, decode_health, encode_health};
use crate::app::App;
use crate::control::auth::{Access, CachedToken};
use crate::http::bearer_token;
use crate::net::lazy_timer::LazyTimer;
use crate::net::protocol::{AUTH_TIMEOUT, Protocol};
use crate::net::shutdown::ConnectionGuard;
use crate::net::stream::{ReadReady, write};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The service names that health checks accept. `ratelimit` is the name in the reference service.
const SERVICES: [&[u8]; 3] = [b"", b"ratelimit", b"envoy.service.ratelimit.v3.RateLimitService"];

/// Serves a connection until the client closes it or violates the protocol, the maximum age is reached, or the server
/// stops. In the last two cases, calls that have arrived are answered first. If tokens are required, a connection
/// without a valid token is closed in the same way after [`AUTH_TIMEOUT`].
pub async fn serve<S: Store + 'static, T: ReadReady>(mut stream: T, app: Arc<App<S>>, guard: ConnectionGuard) {
    guard.register().await;
    let mut session = RlsSession::new(app);
    if let Err(error) = session.run(&mut stream, &guard).await {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
    drop(session);
    // Reads the remaining input, because closing a socket with unread input resets the connection, and the client could
    // lose the last responses.
    let ended = async {
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Best effort within [`LINGER`]; errors are ignored.
    let _ = timeout(LINGER, ended).await;
}

/// The result of a call that waited, with its stream id.
type Answer = (u32, Result<RateLimitResponse, GrpcError>);

/// The reason why a connection task was woken.
enum WakeReason {
    Input,
    Answer(Answer),
    Time,
    Stop,
}

/// The state of an open connection.
struct RlsSession<S> {
    app: Arc<App<S>>,
    http2: Connection,
    /// The received part of an incomplete frame.
    partial: Vec<u8>,
    /// When the first byte of the incomplete frame arrived.
    partial_since: Duration,
    token: CachedToken,
    is_authenticated: bool,
    /// The calls that wait for a shared store or are delayed.
    waiting: JoinSet<Answer>,
    /// The streams of health watches. Streams that the client has reset are removed when the list is full.
    watches: Vec<u32>,
    /// Bytes of bodies counted for this connection in `App::held_bodies`.
    held: usize,
    start: Instant,
    timer: LazyTimer,
    last_input: Duration,
    pinged: Option<Duration>,
    /// The time at which the client was told that the connection closes.
    closing_since: Option<Duration>,
}

impl<S: Store + 'static> RlsSession<S> {
    fn new(app: Arc<App<S>>) -> Self {
        Self {
            app,
            http2: Connection::new(&[SHOULD_RATE_LIMIT, HEALTH_CHECK, HEALTH_WATCH]),
            partial: Vec::new(),
            partial_since: Duration::ZERO,
            token: CachedToken::default(),
            is_authenticated: false,
            waiting: JoinSet::new(),
            watches: Vec::new(),
            held: 0,
            start: Instant::now(),
            timer: LazyTimer::new(MESSAGE_TIMEOUT),
            last_input: Duration::ZERO,
            pinged: None,
            closing_since: None,
        }
    }

    async fn run<T: ReadReady>(&mut self, stream: &mut T, guard: &ConnectionGuard) -> io::Result<()> {
        let mut deadline = self.deadline();
        while !self.http2.is_closed() {
            match self.wait(stream, guard, deadline).await? {
                WakeReason::Input => {
                    let mut buffers = Buffers::take();
                    std::mem::swap(&mut self.http2.out, &mut buffers.output);
                    let outcome = self.serve_input(stream, &mut buffers.input).await;
                    std::mem::swap(&mut self.http2.out, &mut buffers.output);
                    buffers.give_back();
                    if !outcome? {
                        return Ok(());
                    }
                }
                WakeReason::Answer((stream, result)) => self.respond(stream, result.as_ref()),
                WakeReason::Stop => self.start_closing(),
                WakeReason::Time => {}
            }
            self.count_held();
            if deadline <= self.start.elapsed() {
                self.on_deadline()?;
            }
            self.write(stream).await?;
            deadline = self.deadline();
        }
        Ok(())
    }

    /// Waits for the next event. While it waits, the connection holds no buffers.
    async fn wait<T: ReadReady>(
        &mut self,
        stream: &mut T,
        guard: &ConnectionGuard,
        deadline: Duration,
    ) -> io::Result<WakeReason> {
        poll_fn(|cx| {
            if self.closing_since.is_none() && guard.is_stopping() {
                return Poll::Ready(Ok(WakeReason::Stop));
            }
            if !self.waiting.is_empty()
                && let Poll::Ready(Some(ended)) = self.waiting.poll_join_next(cx)
            {
                return Poll::Ready(ended.map(WakeReason::Answer).map_err(io::Error::other));
            }
            if let Poll::Ready(outcome) = stream.poll_readable(cx) {
                return Poll::Ready(outcome.map(|()| WakeReason::Input));
            }
            self.timer.poll(cx, self.start + deadline).map(|()| Ok(WakeReason::Time))
        })
        .await
    }

    /// Returns the next deadline, as time since the connection started.
    fn deadline(&self) -> Duration {
        let partial = (!self.partial.is_empty()).then_some(self.partial_since);
        let incomplete = [self.http2.waiting_since(), partial].into_iter().flatten().min();
        let alive = self.pinged.map_or(self.last_input + KEEPALIVE_EVERY, |pinged| pinged + KEEPALIVE_TIMEOUT);
        [
            Some(alive),
            incomplete.map(|since| since + MESSAGE_TIMEOUT),
            self.http2.blocked_since().map(|since| since + STALLED),
            match self.closing_since {
                Some(since) => Some(since + DRAIN_TIMEOUT),
                None if self.needs_token() => Some(AUTH_TIMEOUT.min(self.app.max_connection_age)),
                None => Some(self.app.max_connection_age),
            },
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(Duration::MAX)
    }

    fn needs_token(&self) -> bool {
        self.app.auth.requires_tokens() && !self.is_authenticated
    }

    /// Handles the timeouts that have expired: closes the connection, pings, or ends calls that are too slow.
    ///
    /// # Errors
    /// Returns an error if the client did not respond to a PING or is too slow.
    fn on_deadline(&mut self) -> io::Result<()> {
        let now = self.start.elapsed();
        let is_due = |since: Duration, limit| since + limit <= now;
        match self.closing_since {
            None if self.needs_token() && is_due(Duration::ZERO, AUTH_TIMEOUT) => self.start_closing(),
            None if self.app.max_connection_age <= now => self.start_closing(),
            Some(since) if is_due(since, DRAIN_TIMEOUT) => {
                if self.needs_token() {
                    return Err(timed_out("no valid token"));
                }
                self.http2.finish_closing();
                // Restarts the drain timeout, because the remaining calls have their own deadlines.
                self.closing_since = Some(now);
            }
            None | Some(_) => {}
        }
        if self.http2.blocked_since().is_some_and(|since| is_due(since, STALLED)) {
            return Err(timed_out("the client does not open its window for responses"));
        }
        if !self.partial.is_empty() && is_due(self.partial_since, MESSAGE_TIMEOUT) {
            return Err(timed_out("a frame did not arrive in time"));
        }
        match self.pinged {
            Some(pinged) if is_due(pinged, KEEPALIVE_TIMEOUT) => return Err(timed_out("the client does not answer")),
            None if is_due(self.last_input, KEEPALIVE_EVERY) => {
                self.http2.ping();
                self.pinged = Some(now);
            }
            Some(_) | None => {}
        }
        while let Some(since) = self.http2.waiting_since()
            && is_due(since, MESSAGE_TIMEOUT)
            && !self.http2.is_closed()
        {
            if let Some(StreamCall { stream, body: Err(error), .. }) =
                self.http2.expire_incomplete(now.saturating_sub(MESSAGE_TIMEOUT))
            {
                self.respond(stream, Err(&error.into()));
            }
        }
        Ok(())
    }

    fn start_closing(&mut self) {
        self.closing_since = Some(self.start.elapsed());
        self.http2.start_closing();
        for stream in std::mem::take(&mut self.watches) {
            if self.app.connections.is_stopping() {
                self.http2.send_part(stream, &health_message(Health::NotServing));
            }
            let error = GrpcError::new(GrpcCode::Unavailable, "the connection closes");
            self.http2.respond_without_body(stream, &error.trailers());
        }
    }

    /// Counts the bodies that the connection holds, and closes the connection if the total of all connections is too
    /// large.
    fn count_held(&mut self) {
        let held = self.http2.held_bytes() as usize;
        if held == self.held {
            return;
        }
        let before = std::mem::replace(&mut self.held, held);
        if !self.app.held_bodies.replace(before, held) && held > before {
            let detail = "all connections together hold too many bytes of calls that are not answered";
            self.http2.close_with_error(ConnectionError::new(ErrorCode::EnhanceYourCalm, detail));
        }
    }

    /// Reads once and answers all complete calls. Returns false at the end of the stream.
    async fn serve_input<T: ReadReady>(&mut self, stream: &mut T, buffer: &mut [u8]) -> io::Result<bool> {
        let kept = self.partial.len();
        buffer[..kept].copy_from_slice(&self.partial);
        let mut free = ReadBuf::new(&mut buffer[kept..]);
        // Readiness can be spurious. The connection then waits for its events again.
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut free))).await {
            Poll::Pending => return Ok(true),
            Poll::Ready(outcome) => outcome?,
        }
        let read = free.filled().len();
        if read == 0 {
            return Ok(false);
        }
        let now = self.start.elapsed();
        (self.last_input, self.pinged) = (now, None);
        let mut input = &buffer[..kept + read];
        while let Some(call) = self.http2.next(&mut input, now) {
            self.answer(call).await;
            if self.http2.out.len() >= WRITE_BUFFER {
                self.write(stream).await?;
            }
        }
        if self.partial.is_empty() || input.len() < kept + read {
            self.partial_since = now;
        }
        self.partial.clear();
        self.partial.extend_from_slice(input);
        self.write(stream).await?;
        Ok(true)
    }

    async fn write<T: ReadReady>(&mut self, stream: &mut T) -> io::Result<()> {
        if !self.http2.out.is_empty() {
            write(stream, &self.http2.out, STALLED).await?;
            self.http2.out.clear();
        }
        Ok(())
    }

    /// Answers a call. If the store is shared or the request is delayed, the answer is sent later.
    async fn answer(&mut self, call: StreamCall<'_>) {
        let StreamCall { stream, head, body } = call;
        let body = match body {
            Ok(body) => body,
            Err(error) => return self.respond(stream, Err(&error.into())),
        };
        if !head.is_post || !head.is_grpc {
            let detail = "this port speaks gRPC: POST with application/grpc";
            return self.respond(stream, Err(&GrpcError::new(GrpcCode::Unimplemented, detail)));
        }
        if *head.path == *HEALTH_CHECK.as_bytes() {
            return self.respond_health(stream, &body);
        }
        if *head.path == *HEALTH_WATCH.as_bytes() {
            return self.watch_health(stream, &body);
        }
        let access = match self.authorize(&head) {
            Ok(access) => access,
            Err(error) => return self.respond(stream, Err(&error)),
        };
        if !self.app.engine.store().can_fail() {
            return match decide_message(&self.app, &access, &body).await {
                Ok((response, Duration::ZERO)) => self.respond(stream, Ok(&response)),
                Ok((response, delay)) => self.wait_for(stream, async move {
                    sleep(delay).await;
                    Ok(response)
                }),
                Err(error) => self.respond(stream, Err(&error)),
            };
        }
        let (app, body) = (self.app.clone(), body.into_owned());
        self.wait_for(stream, async move {
            let (response, delay) = decide_message(&app, &access, &body).await?;
            drop(body);
            if !delay.is_zero() {
                sleep(delay).await;
            }
            Ok(response)
        });
    }

    /// Answers a call when the future `response` is ready. Later calls do not wait for it.
    fn wait_for<F>(&mut self, stream: u32, response: F)
    where
        F: Future<Output = Result<RateLimitResponse, GrpcError>> + Send + 'static,
    {
        if self.waiting.len() >= MAX_WAITING_CALLS {
            let detail = format!("too many calls of this connection are waiting (maximum {MAX_WAITING_CALLS})");
            return self.respond(stream, Err(&GrpcError::new(GrpcCode::Unavailable, detail)));
        }
        self.waiting.spawn(async move { (stream, response.await) });
    }

    /// Checks the path and the token of a call, and returns the rights of the caller.
    fn authorize(&mut self, head: &Head) -> Result<Access, GrpcError> {
        if *head.path != *SHOULD_RATE_LIMIT.as_bytes() {
            let path = String::from_utf8_lossy(&head.path);
            let path = &path[..path.floor_char_boundary(100)];
            let detail =
                format!("no such method: {path}; available: {SHOULD_RATE_LIMIT}, {HEALTH_CHECK}, {HEALTH_WATCH}");
            return Err(GrpcError::new(GrpcCode::Unimplemented, detail));
        }
        if !self.app.auth.requires_tokens() {
            return Ok(Access::Local);
        }
        let token = head.authorization.as_deref().and_then(bearer_token);
        let access = self.app.auth.authenticate(&mut self.token, token, || self.app.wall_ms());
        let access = access.map_err(|error| GrpcError::new(GrpcCode::Unauthenticated, error.to_string()))?;
        self.is_authenticated = true;
        Ok(access.clone())
    }

    fn respond(&mut self, stream: u32, result: Result<&RateLimitResponse, &GrpcError>) {
        match result {
            Ok(response) => {
                self.http2.respond(stream, HEAD, OK, |out| frame(out, |out| response.encode(out)));
            }
            Err(error) => {
                self.app.metrics.front_counters(Protocol::Rls).malformed();
                self.http2.respond_without_body(stream, &error.block());
            }
        }
    }

    fn respond_health(&mut self, stream: u32, body: &[u8]) {
        match self.health(body) {
            Ok(Health::ServiceUnknown) => {
                self.respond(stream, Err(&GrpcError::new(GrpcCode::NotFound, "no such service")));
            }
            Ok(health) => self.http2.respond(stream, HEAD, OK, |out| out.extend_from_slice(&health_message(health))),
            Err(error) => self.respond(stream, Err(&error)),
        }
    }

    /// Sends the health and keeps the stream open until the connection closes. The health changes only when the server
    /// stops.
    fn watch_health(&mut self, stream: u32, body: &[u8]) {
        let health = match self.health(body) {
            Ok(health) => health,
            Err(error) => return self.respond(stream, Err(&error)),
        };
        if self.closing_since.is_some() {
            let error = GrpcError::new(GrpcCode::Unavailable, "the connection closes");
            return self.respond(stream, Err(&error));
        }
        if self.watches.len() >= MAX_STREAMS as usize {
            self.watches.retain(|stream| self.http2.is_open(*stream));
        }
        self.watches.push(stream);
        self.http2.begin_response(stream, HEAD);
        if !self.http2.send_part(stream, &health_message(health)) {
            let error = GrpcError::new(GrpcCode::ResourceExhausted, "the client's flow-control window is too small");
            self.http2.respond_without_body(stream, &error.trailers());
        }
    }

    /// Returns the health of the service named in a health check.
    fn health(&self, body: &[u8]) -> Result<Health, GrpcError> {
        let invalid = |error: WireError| GrpcError::new(GrpcCode::InvalidArgument, error.to_string());
        let service = unframe(body).and_then(|message| decode_health(message).map_err(invalid))?;
        Ok(match self.app.connections.is_stopping() {
            _ if !SERVICES.contains(&service) => Health::ServiceUnknown,
            true => Health::NotServing,
            false => Health::Serving,
        })
    }
}

impl<S> Drop for RlsSession<S> {
    fn drop(&mut self) {
        self.app.held_bodies.remove(self.held);
    }
}

/// Encodes a health response with its gRPC prefix.
fn health_message(health: Health) -> Vec<u8> {
    let mut message = Vec::new();
    frame(&mut message, |out| encode_health(out, health));
    message
}

/// Decodes and decides the message of a call.
async fn decide_message<S: Store>(
    app: &App<S>,
    access: &Access,
    body: &[u8],
) -> Result<(RateLimitResponse, Duration), GrpcError> {
    let request = RateLimitRequest::decode(unframe(body)?);
    let request = request.map_err(|error| GrpcError::new(GrpcCode::InvalidArgument, error.to_string()))?;
    Ok(decide(app, access, &request).await?)
}

fn timed_out(detail: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, detail)
}

/// The buffers of a connection while it handles input. Each thread pools a few of them, so that they stay in the CPU
/// cache and idle connections hold none.
struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Maximum number of unused buffers in a thread's pool.
const SPARE_BUFFERS: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    fn take() -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Self { input: vec![0; READ_BUFFER], output: Vec::new() })
    }

    fn give_back(mut self) {
        self.output.clear();
        self.output.shrink_to(2 * WRITE_BUFFER);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(self);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::stalled_client::closes_after;

    /// The HTTP/2 preface with empty SETTINGS.
    const OPENING: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        for sent in ["", OPENING] {
            let required = |stream, _, guard| {
                let engine = tollgate_engine::MemoryStore::new(1).and_then(tollgate_engine::Engine::new).unwrap();
                serve(stream, Arc::new(App::new(engine, None).with_tokens(TokenPolicy::Required)), guard)
            };
            closes_after(AUTH_TIMEOUT, sent, required).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_stalls_is_closed() {
        // Two inputs: a HEADERS frame without END_HEADERS, and half a frame.
        let headers = format!("{OPENING}\0\0\x01\x01\0\0\0\0\x01\u{2}");
        let half = format!("{OPENING}\0\0\x08\x06\0");
        let keepalive = KEEPALIVE_EVERY + KEEPALIVE_TIMEOUT;
        for (sent, limit) in [
            ("", MESSAGE_TIMEOUT),
            (&OPENING[..10], MESSAGE_TIMEOUT),
            (&OPENING[..24], MESSAGE_TIMEOUT),
            (&headers, MESSAGE_TIMEOUT),
            (&half, MESSAGE_TIMEOUT),
            (OPENING, keepalive),
        ] {
            closes_after(limit, sent, serve).await;
        }
    }
}
