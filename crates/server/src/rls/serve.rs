//! Serves one connection of the rate-limit service.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate_engine::Store;

use super::bounds::{
    DRAIN_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_STREAMS, MAX_WAITING_CALLS, MESSAGE_TIMEOUT,
    READ_BUFFER_BYTES, STALL_TIMEOUT, WRITE_THRESHOLD_BYTES,
};
use super::decide::decide;
use super::grpc::{GrpcCode, GrpcError, OK_TRAILERS, RESPONSE_HEADERS, put_framed, unframe};
use super::http2::frame::{ConnectionError, ErrorCode};
use super::http2::head::RequestHead;
use super::http2::{Connection, StreamCall};
use super::wire::{Health, RateLimitRequest, RateLimitResponse, WireError, decode_health, encode_health};
use crate::app::App;
use crate::control::auth::{Access, CachedToken};
use crate::http::bearer_token;
use crate::net::lazy_timer::LazyTimer;
use crate::net::linger;
use crate::net::protocol::{AUTH_TIMEOUT, Protocol};
use crate::net::shutdown::ConnectionGuard;
use crate::net::stream::{ReadReady, write_with_timeout};

const SHOULD_RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK_PATH: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH_PATH: &str = "/grpc.health.v1.Health/Watch";

/// The service names that health checks accept. The reference service uses the name `ratelimit`.
const HEALTH_SERVICE_NAMES: [&[u8]; 3] = [b"", b"ratelimit", b"envoy.service.ratelimit.v3.RateLimitService"];

/// Serves a connection until the client closes it or violates the protocol, the maximum age is reached, or the server
/// stops. In the last two cases, received calls are answered first. If tokens are required, a connection without a
/// valid token begins to close after [`AUTH_TIMEOUT`].
pub async fn serve<S: Store + 'static, T: ReadReady>(mut stream: T, app: Arc<App<S>>, guard: ConnectionGuard) {
    guard.register_waker().await;
    let mut session = RlsSession::new(app);
    if let Err(error) = session.run(&mut stream, &guard).await {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
    drop(session);
    linger::close_gracefully(&mut stream).await;
}

/// The stream id and the result of a call that was answered later.
type LateAnswer = (u32, Result<RateLimitResponse, GrpcError>);

/// Why a connection task was woken.
enum WakeReason {
    Input,
    Answer(LateAnswer),
    Time,
    Stop,
}

/// The state of an open connection.
struct RlsSession<S> {
    app: Arc<App<S>>,
    http2: Connection,
    /// The received part of an incomplete frame.
    partial_frame: Vec<u8>,
    /// The time at which the first byte of the incomplete frame arrived.
    partial_since: Duration,
    token: CachedToken,
    is_authenticated: bool,
    /// The calls that wait for a shared store or are delayed.
    waiting_calls: JoinSet<LateAnswer>,
    /// The stream ids of health watches. Streams that the client has reset are removed only when the list is full.
    watches: Vec<u32>,
    /// Number of body bytes that `App::held_bodies` counts for this connection.
    held_body_bytes: usize,
    started_at: Instant,
    timer: LazyTimer,
    last_input: Duration,
    pinged_at: Option<Duration>,
    /// The time at which the server announced that the connection will close.
    closing_since: Option<Duration>,
}

impl<S: Store + 'static> RlsSession<S> {
    fn new(app: Arc<App<S>>) -> Self {
        Self {
            app,
            http2: Connection::new(&[SHOULD_RATE_LIMIT_PATH, HEALTH_CHECK_PATH, HEALTH_WATCH_PATH]),
            partial_frame: Vec::new(),
            partial_since: Duration::ZERO,
            token: CachedToken::default(),
            is_authenticated: false,
            waiting_calls: JoinSet::new(),
            watches: Vec::new(),
            held_body_bytes: 0,
            started_at: Instant::now(),
            timer: LazyTimer::new(MESSAGE_TIMEOUT),
            last_input: Duration::ZERO,
            pinged_at: None,
            closing_since: None,
        }
    }

    async fn run<T: ReadReady>(&mut self, stream: &mut T, guard: &ConnectionGuard) -> io::Result<()> {
        let mut deadline = self.next_deadline();
        while !self.http2.must_close() {
            match self.wait_for_event(stream, guard, deadline).await? {
                WakeReason::Input => {
                    let mut buffers = RlsBuffers::take_from_pool();
                    std::mem::swap(&mut self.http2.out, &mut buffers.output);
                    let outcome = self.serve_input(stream, &mut buffers.input).await;
                    std::mem::swap(&mut self.http2.out, &mut buffers.output);
                    buffers.return_to_pool();
                    if !outcome? {
                        return Ok(());
                    }
                }
                WakeReason::Answer((stream, result)) => self.respond(stream, result.as_ref()),
                WakeReason::Stop => self.start_closing(),
                WakeReason::Time => {}
            }
            self.update_held_bodies();
            if deadline <= self.started_at.elapsed() {
                self.on_deadline()?;
            }
            self.write_output(stream).await?;
            deadline = self.next_deadline();
        }
        Ok(())
    }

    /// Waits for the next event. A waiting connection holds no pooled buffers.
    async fn wait_for_event<T: ReadReady>(
        &mut self,
        stream: &mut T,
        guard: &ConnectionGuard,
        deadline: Duration,
    ) -> io::Result<WakeReason> {
        poll_fn(|cx| {
            if self.closing_since.is_none() && guard.is_stopping() {
                return Poll::Ready(Ok(WakeReason::Stop));
            }
            if !self.waiting_calls.is_empty()
                && let Poll::Ready(Some(ended)) = self.waiting_calls.poll_join_next(cx)
            {
                return Poll::Ready(ended.map(WakeReason::Answer).map_err(io::Error::other));
            }
            if let Poll::Ready(outcome) = stream.poll_readable(cx) {
                return Poll::Ready(outcome.map(|()| WakeReason::Input));
            }
            self.timer.poll(cx, self.started_at + deadline).map(|()| Ok(WakeReason::Time))
        })
        .await
    }

    /// Returns the earliest deadline, as the time since the connection started.
    fn next_deadline(&self) -> Duration {
        let partial = (!self.partial_frame.is_empty()).then_some(self.partial_since);
        let incomplete = [self.http2.incomplete_since(), partial].into_iter().flatten().min();
        let alive = self.pinged_at.map_or(self.last_input + KEEPALIVE_INTERVAL, |pinged| pinged + KEEPALIVE_TIMEOUT);
        [
            Some(alive),
            incomplete.map(|since| since + MESSAGE_TIMEOUT),
            self.http2.blocked_since().map(|since| since + STALL_TIMEOUT),
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

    /// Handles all expired timeouts: starts or finishes closing, sends a PING, or answers calls that are too slow.
    ///
    /// # Errors
    /// Returns an error if the connection must be closed immediately, because the client is too slow, did not answer a
    /// PING or sent no valid token.
    fn on_deadline(&mut self) -> io::Result<()> {
        let now = self.started_at.elapsed();
        let is_due = |since: Duration, limit| since + limit <= now;
        match self.closing_since {
            None if self.needs_token() && is_due(Duration::ZERO, AUTH_TIMEOUT) => self.start_closing(),
            None if self.app.max_connection_age <= now => self.start_closing(),
            Some(since) if is_due(since, DRAIN_TIMEOUT) => {
                if self.needs_token() {
                    return Err(timed_out("no valid token"));
                }
                self.http2.finish_closing();
                // Starts another drain period. The remaining calls have their own deadlines.
                self.closing_since = Some(now);
            }
            None | Some(_) => {}
        }
        if self.http2.blocked_since().is_some_and(|since| is_due(since, STALL_TIMEOUT)) {
            return Err(timed_out("the client does not open its window for responses"));
        }
        if !self.partial_frame.is_empty() && is_due(self.partial_since, MESSAGE_TIMEOUT) {
            return Err(timed_out("a frame did not arrive in time"));
        }
        match self.pinged_at {
            Some(pinged) if is_due(pinged, KEEPALIVE_TIMEOUT) => return Err(timed_out("the client does not answer")),
            None if is_due(self.last_input, KEEPALIVE_INTERVAL) => {
                self.http2.send_ping();
                self.pinged_at = Some(now);
            }
            Some(_) | None => {}
        }
        while let Some(since) = self.http2.incomplete_since()
            && is_due(since, MESSAGE_TIMEOUT)
            && !self.http2.must_close()
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
        self.closing_since = Some(self.started_at.elapsed());
        self.http2.start_closing();
        for stream in std::mem::take(&mut self.watches) {
            if self.app.connections.is_stopping() {
                self.http2.send_part(stream, &health_message(Health::NotServing));
            }
            let error = GrpcError::new(GrpcCode::Unavailable, "the connection closes");
            self.http2.respond_without_body(stream, &error.trailers());
        }
    }

    /// Updates the number of body bytes that the connection holds. If the connection holds more bytes than before and
    /// the total of all connections is too large, closes the connection, unless it holds few bytes.
    fn update_held_bodies(&mut self) {
        let held = self.http2.held_bytes() as usize;
        if held == self.held_body_bytes {
            return;
        }
        let before = std::mem::replace(&mut self.held_body_bytes, held);
        if !self.app.held_bodies.update(before, held) && held > before {
            let detail = "all connections together hold too many bytes of unanswered calls";
            self.http2.close_with_error(ConnectionError::new(ErrorCode::EnhanceYourCalm, detail));
        }
    }

    /// Reads once from the socket and answers all complete calls. Returns false if the client has closed the
    /// connection.
    async fn serve_input<T: ReadReady>(&mut self, stream: &mut T, buffer: &mut [u8]) -> io::Result<bool> {
        let kept = self.partial_frame.len();
        buffer[..kept].copy_from_slice(&self.partial_frame);
        let mut free = ReadBuf::new(&mut buffer[kept..]);
        // Readiness can be spurious. In that case, the connection waits for the next event.
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut free))).await {
            Poll::Pending => return Ok(true),
            Poll::Ready(outcome) => outcome?,
        }
        let read = free.filled().len();
        if read == 0 {
            return Ok(false);
        }
        let now = self.started_at.elapsed();
        (self.last_input, self.pinged_at) = (now, None);
        let mut input = &buffer[..kept + read];
        while let Some(call) = self.http2.next_call(&mut input, now) {
            self.answer_call(call).await;
            if self.http2.out.len() >= WRITE_THRESHOLD_BYTES {
                self.write_output(stream).await?;
            }
        }
        if self.partial_frame.is_empty() || input.len() < kept + read {
            self.partial_since = now;
        }
        self.partial_frame.clear();
        self.partial_frame.extend_from_slice(input);
        self.write_output(stream).await?;
        Ok(true)
    }

    async fn write_output<T: ReadReady>(&mut self, stream: &mut T) -> io::Result<()> {
        if !self.http2.out.is_empty() {
            write_with_timeout(stream, &self.http2.out, STALL_TIMEOUT).await?;
            self.http2.out.clear();
        }
        Ok(())
    }

    /// Answers a call. If the store is shared or the request is delayed, the call is answered later.
    async fn answer_call(&mut self, call: StreamCall<'_>) {
        let StreamCall { stream, head, body } = call;
        let body = match body {
            Ok(body) => body,
            Err(error) => return self.respond(stream, Err(&error.into())),
        };
        if !head.is_post || !head.is_grpc {
            let detail = "this port speaks gRPC: POST with application/grpc";
            return self.respond(stream, Err(&GrpcError::new(GrpcCode::Unimplemented, detail)));
        }
        if *head.path == *HEALTH_CHECK_PATH.as_bytes() {
            return self.respond_health(stream, &body);
        }
        if *head.path == *HEALTH_WATCH_PATH.as_bytes() {
            return self.watch_health(stream, &body);
        }
        let access = match self.authorize(&head) {
            Ok(access) => access,
            Err(error) => return self.respond(stream, Err(&error)),
        };
        if !self.app.engine.store().can_fail() {
            return match decide_message(&self.app, &access, &body).await {
                Ok((response, Duration::ZERO)) => self.respond(stream, Ok(&response)),
                Ok((response, delay)) => self.answer_later(stream, async move {
                    sleep(delay).await;
                    Ok(response)
                }),
                Err(error) => self.respond(stream, Err(&error)),
            };
        }
        let (app, body) = (self.app.clone(), body.into_owned());
        self.answer_later(stream, async move {
            let (response, delay) = decide_message(&app, &access, &body).await?;
            drop(body);
            if !delay.is_zero() {
                sleep(delay).await;
            }
            Ok(response)
        });
    }

    /// Answers a call when the future `response` is ready. Other calls are processed in the meantime.
    fn answer_later<F>(&mut self, stream: u32, response: F)
    where
        F: Future<Output = Result<RateLimitResponse, GrpcError>> + Send + 'static,
    {
        if self.waiting_calls.len() >= MAX_WAITING_CALLS {
            let detail = format!("too many calls of this connection are waiting (maximum {MAX_WAITING_CALLS})");
            return self.respond(stream, Err(&GrpcError::new(GrpcCode::Unavailable, detail)));
        }
        self.waiting_calls.spawn(async move { (stream, response.await) });
    }

    /// Checks the path and the token of a call, and returns the caller's access rights.
    fn authorize(&mut self, head: &RequestHead) -> Result<Access, GrpcError> {
        if *head.path != *SHOULD_RATE_LIMIT_PATH.as_bytes() {
            let path = String::from_utf8_lossy(&head.path);
            let path = &path[..path.floor_char_boundary(100)];
            let detail = format!(
                "no such method: {path}; available: {SHOULD_RATE_LIMIT_PATH}, {HEALTH_CHECK_PATH}, {HEALTH_WATCH_PATH}"
            );
            return Err(GrpcError::new(GrpcCode::Unimplemented, detail));
        }
        if !self.app.auth.requires_tokens() {
            return Ok(Access::Unrestricted);
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
                self.http2
                    .respond(stream, RESPONSE_HEADERS, OK_TRAILERS, |out| put_framed(out, |out| response.encode(out)));
            }
            Err(error) => {
                self.app.metrics.protocol_counters(Protocol::Rls).count_malformed();
                self.http2.respond_without_body(stream, &error.header_block());
            }
        }
    }

    fn respond_health(&mut self, stream: u32, body: &[u8]) {
        match self.requested_health(body) {
            Ok(Health::ServiceUnknown) => {
                self.respond(stream, Err(&GrpcError::new(GrpcCode::NotFound, "no such service")));
            }
            Ok(health) => self
                .http2
                .respond(stream, RESPONSE_HEADERS, OK_TRAILERS, |out| out.extend_from_slice(&health_message(health))),
            Err(error) => self.respond(stream, Err(&error)),
        }
    }

    /// Sends the health status and keeps the stream open until the connection closes. The status changes only when the
    /// server stops.
    fn watch_health(&mut self, stream: u32, body: &[u8]) {
        let health = match self.requested_health(body) {
            Ok(health) => health,
            Err(error) => return self.respond(stream, Err(&error)),
        };
        if self.closing_since.is_some() {
            let error = GrpcError::new(GrpcCode::Unavailable, "the connection closes");
            return self.respond(stream, Err(&error));
        }
        if self.watches.len() >= MAX_STREAMS as usize {
            self.watches.retain(|stream| self.http2.is_stream_open(*stream));
        }
        self.watches.push(stream);
        self.http2.begin_response(stream, RESPONSE_HEADERS);
        if !self.http2.send_part(stream, &health_message(health)) {
            let error = GrpcError::new(GrpcCode::ResourceExhausted, "the client's flow-control window is too small");
            self.http2.respond_without_body(stream, &error.trailers());
        }
    }

    /// Returns the health of the service named in a health check.
    fn requested_health(&self, body: &[u8]) -> Result<Health, GrpcError> {
        let invalid = |error: WireError| GrpcError::new(GrpcCode::InvalidArgument, error.to_string());
        let service = unframe(body).and_then(|message| decode_health(message).map_err(invalid))?;
        Ok(match self.app.connections.is_stopping() {
            _ if !HEALTH_SERVICE_NAMES.contains(&service) => Health::ServiceUnknown,
            true => Health::NotServing,
            false => Health::Serving,
        })
    }
}

impl<S> Drop for RlsSession<S> {
    fn drop(&mut self) {
        self.app.held_bodies.remove(self.held_body_bytes);
    }
}

/// Encodes a health response with its gRPC prefix.
fn health_message(health: Health) -> Vec<u8> {
    let mut message = Vec::new();
    put_framed(&mut message, |out| encode_health(out, health));
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

/// The buffers that a connection uses while it handles input. Each thread has a small pool of buffers, so that the
/// buffers stay in the CPU cache and idle connections hold no buffers.
struct RlsBuffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Maximum number of buffers in a thread's pool.
const MAX_POOLED_BUFFERS: usize = 16;

thread_local! {
    static BUFFER_POOL: RefCell<Vec<RlsBuffers>> = const { RefCell::new(Vec::new()) };
}

impl RlsBuffers {
    fn take_from_pool() -> Self {
        let spare = BUFFER_POOL.with_borrow_mut(Vec::pop);
        spare.unwrap_or_else(|| Self { input: vec![0; READ_BUFFER_BYTES], output: Vec::new() })
    }

    fn return_to_pool(mut self) {
        self.output.clear();
        self.output.shrink_to(2 * WRITE_THRESHOLD_BYTES);
        BUFFER_POOL.with_borrow_mut(|spare| {
            if spare.len() < MAX_POOLED_BUFFERS {
                spare.push(self);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::stalled_client::assert_closes_after;

    /// The HTTP/2 client preface with an empty SETTINGS frame.
    const PREFACE_AND_SETTINGS: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        for sent in ["", PREFACE_AND_SETTINGS] {
            let required = |stream, _, guard| {
                let engine = tollgate_engine::MemoryStore::new(1).and_then(tollgate_engine::Engine::new).unwrap();
                serve(stream, Arc::new(App::new(engine, None).with_token_policy(TokenPolicy::Required)), guard)
            };
            assert_closes_after(AUTH_TIMEOUT, sent, required).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connection_is_closed() {
        // `headers` ends with a HEADERS frame without END_HEADERS, and `half` with half a frame.
        let headers = format!("{PREFACE_AND_SETTINGS}\0\0\x01\x01\0\0\0\0\x01\u{2}");
        let half = format!("{PREFACE_AND_SETTINGS}\0\0\x08\x06\0");
        let keepalive = KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT;
        for (sent, limit) in [
            ("", MESSAGE_TIMEOUT),
            (&PREFACE_AND_SETTINGS[..10], MESSAGE_TIMEOUT),
            (&PREFACE_AND_SETTINGS[..24], MESSAGE_TIMEOUT),
            (&headers, MESSAGE_TIMEOUT),
            (&half, MESSAGE_TIMEOUT),
            (PREFACE_AND_SETTINGS, keepalive),
        ] {
            assert_closes_after(limit, sent, serve).await;
        }
    }
}
