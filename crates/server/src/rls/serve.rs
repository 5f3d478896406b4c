//! One connection of the rate-limit service.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tollgate_engine::Store;

use super::bounds::{DRAIN_TIMEOUT, KEEPALIVE_EVERY, KEEPALIVE_TIMEOUT, MAX_HEADERS, MAX_PENDING_RESETS, MAX_STREAMS};
use super::decide::decide;
use super::grpc::{GrpcBody, GrpcCode, GrpcError, frame, read, respond};
use super::wire::{RateLimitRequest, decode_health, encode_health};
use crate::app::App;
use crate::control::auth::{Access, CachedToken};
use crate::http::bearer;
use crate::net::protocol::{AUTH_TIMEOUT, Protocol};
use crate::net::shutdown::ConnectionGuard;
use crate::ops::error::{ErrorKind, OpError};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// The names of the service that a health check may ask about; the reference service has the second.
const SERVICES: [&[u8]; 3] = [b"", b"ratelimit", b"envoy.service.ratelimit.v3.RateLimitService"];

/// The token of a connection, which its calls share.
#[derive(Debug, Default)]
struct RlsConnection {
    cached: Mutex<CachedToken>,
    /// Whether a valid token was sent. Relaxed: it orders nothing.
    authenticated: AtomicBool,
}

/// Serves a connection until the client closes it, its age is reached, or the server stops. Calls that have arrived are answered.
/// Where tokens are required, a connection without a valid one is closed in the same way after [`AUTH_TIMEOUT`].
pub async fn serve<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    app: Arc<App<S>>,
    guard: ConnectionGuard,
) {
    guard.register().await;
    let mut aged = pin!(sleep(app.max_connection_age));
    let state = Arc::new(RlsConnection::default());
    let service = service_fn(|request| {
        let (app, state) = (app.clone(), state.clone());
        async move { Ok::<_, Infallible>(answer(&app, &state, request).await) }
    });
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .keep_alive_interval(KEEPALIVE_EVERY)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut is_closing = false;
    let mut is_overdue = false;
    let mut deadline = app.auth.requires_tokens().then(|| Box::pin(sleep(AUTH_TIMEOUT)));
    let outcome = poll_fn(|cx| {
        if let Some(timer) = &mut deadline {
            if state.authenticated.load(Ordering::Relaxed) {
                deadline = None;
            } else if timer.as_mut().poll(cx).is_ready() {
                if is_overdue {
                    return Poll::Ready(Ok(()));
                }
                (is_overdue, is_closing) = (true, true);
                connection.as_mut().graceful_shutdown();
                timer.as_mut().reset(Instant::now() + DRAIN_TIMEOUT);
                let _ = timer.as_mut().poll(cx);
            }
        }
        if !is_closing && (guard.is_stopping() || aged.as_mut().poll(cx) == Poll::Ready(())) {
            is_closing = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
}

async fn answer<S: Store>(app: &App<S>, state: &RlsConnection, request: Request<Incoming>) -> Response<GrpcBody> {
    let result = try_answer(app, state, request).await;
    if result.is_err() {
        app.metrics.front(Protocol::Rls).malformed();
    }
    respond(result)
}

async fn try_answer<S: Store>(
    app: &App<S>,
    state: &RlsConnection,
    request: Request<Incoming>,
) -> Result<Vec<u8>, GrpcError> {
    let (head, body) = request.into_parts();
    let is_grpc = head.headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if head.method != Method::POST || !is_grpc {
        return Err(GrpcError::new(GrpcCode::Unimplemented, "this port speaks gRPC: POST with application/grpc"));
    }
    match head.uri.path() {
        SHOULD_RATE_LIMIT => {
            let access = authenticate(app, state, &head)?;
            let message = read(Request::from_parts(head, body)).await?;
            let request = RateLimitRequest::decode(&message);
            let request = request.map_err(|error| GrpcError::new(GrpcCode::InvalidArgument, error.to_string()))?;
            let response = decide(app, &access, &request).await.map_err(error)?;
            Ok(frame(|out| response.encode(out)))
        }
        HEALTH_CHECK => {
            let message = read(Request::from_parts(head, body)).await?;
            let service = decode_health(&message);
            let service = service.map_err(|error| GrpcError::new(GrpcCode::InvalidArgument, error.to_string()))?;
            if !SERVICES.contains(&service) {
                return Err(GrpcError::new(GrpcCode::NotFound, "no such service"));
            }
            Ok(frame(|out| encode_health(out, !app.connections.is_stopping())))
        }
        path => {
            let detail = format!("no such method: {path}; available: {SHOULD_RATE_LIMIT}, {HEALTH_CHECK}");
            Err(GrpcError::new(GrpcCode::Unimplemented, detail))
        }
    }
}

fn authenticate<S: Store>(app: &App<S>, state: &RlsConnection, head: &Parts) -> Result<Access, GrpcError> {
    if !app.auth.requires_tokens() {
        return Ok(Access::Local);
    }
    let mut cached = state.cached.lock().unwrap_or_else(PoisonError::into_inner);
    let admitted = app.auth.authenticate(&mut cached, bearer(head), || app.wall_ms());
    let access = admitted.map_err(|error| GrpcError::new(GrpcCode::Unauthenticated, error.to_string()))?;
    state.authenticated.store(true, Ordering::Relaxed);
    Ok(access.clone())
}

fn error(error: OpError) -> GrpcError {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::KeyInUse | ErrorKind::KeyReused => GrpcCode::InvalidArgument,
        ErrorKind::Forbidden => GrpcCode::PermissionDenied,
        ErrorKind::NotRecorded | ErrorKind::StoreFailed => GrpcCode::Unavailable,
    };
    GrpcError::new(code, error.detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::stalled_client::hangs_up_after;

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        // Nothing, and the preface of HTTP/2 with empty settings.
        for sent in ["", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
            let required = |stream, _, guard| {
                let engine = tollgate_engine::MemoryStore::new(1).and_then(tollgate_engine::Engine::new).unwrap();
                serve(stream, Arc::new(App::new(engine, None).with_tokens(TokenPolicy::Required)), guard)
            };
            hangs_up_after(AUTH_TIMEOUT, sent, required).await;
        }
    }
}
