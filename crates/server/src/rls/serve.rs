//! One connection of the rate-limit service.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
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
use tollgate_engine::Store;

use super::decide::decide;
use super::grpc::{GrpcBody, GrpcCode, GrpcError, frame, read, respond};
use super::limits::{KEEPALIVE_EVERY, KEEPALIVE_TIMEOUT, MAX_HEADERS, MAX_PENDING_RESETS, MAX_STREAMS};
use super::wire::{RateLimitRequest, decode_health, encode_health};
use crate::app::App;
use crate::control::auth::CachedToken;
use crate::http::bearer;
use crate::net::protocol::Protocol;
use crate::net::shutdown::ConnectionGuard;
use crate::ops::error::{ErrorKind, OpError};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// The names of the service that a health check may ask about; the reference service has the second.
const SERVICES: [&[u8]; 3] = [b"", b"ratelimit", b"envoy.service.ratelimit.v3.RateLimitService"];

/// Serves a connection until the client closes it, its age is reached, or the server stops. Calls that have arrived are answered.
pub async fn serve<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    app: Arc<App<S>>,
    guard: ConnectionGuard,
) {
    guard.register().await;
    let mut aged = pin!(tokio::time::sleep(app.max_connection_age));
    let cached = Arc::new(Mutex::new(CachedToken::default()));
    let service = service_fn(|request| {
        let (app, cached) = (app.clone(), cached.clone());
        async move { Ok::<_, Infallible>(answer(&app, &cached, request).await) }
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
    let outcome = poll_fn(|cx| {
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

async fn answer<S: Store>(app: &App<S>, cached: &Mutex<CachedToken>, request: Request<Incoming>) -> Response<GrpcBody> {
    let result = try_answer(app, cached, request).await;
    if result.is_err() {
        app.metrics.front(Protocol::Rls).malformed();
    }
    respond(result)
}

async fn try_answer<S: Store>(
    app: &App<S>,
    cached: &Mutex<CachedToken>,
    request: Request<Incoming>,
) -> Result<Vec<u8>, GrpcError> {
    let (head, body) = request.into_parts();
    let is_grpc = head.headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if head.method != Method::POST || !is_grpc {
        return Err(GrpcError::new(GrpcCode::Unimplemented, "this port speaks gRPC: POST with application/grpc"));
    }
    match head.uri.path() {
        SHOULD_RATE_LIMIT => {
            authenticate(app, cached, &head)?;
            let message = read(Request::from_parts(head, body)).await?;
            let request = RateLimitRequest::decode(&message);
            let request = request.map_err(|error| GrpcError::new(GrpcCode::InvalidArgument, error.to_string()))?;
            let response = decide(app, &request).await.map_err(error)?;
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

fn authenticate<S: Store>(app: &App<S>, cached: &Mutex<CachedToken>, head: &Parts) -> Result<(), GrpcError> {
    if !app.auth.requires_tokens() {
        return Ok(());
    }
    let mut cached = cached.lock().unwrap_or_else(PoisonError::into_inner);
    let admitted = app.auth.authenticate(&mut cached, bearer(head), || app.wall_ms());
    admitted.map(|_| ()).map_err(|error| GrpcError::new(GrpcCode::Unauthenticated, error.to_string()))
}

fn error(error: OpError) -> GrpcError {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::Forbidden | ErrorKind::KeyInUse | ErrorKind::KeyReused => {
            GrpcCode::InvalidArgument
        }
        ErrorKind::NotRecorded | ErrorKind::StoreFailed => GrpcCode::Unavailable,
    };
    GrpcError::new(code, error.detail)
}
