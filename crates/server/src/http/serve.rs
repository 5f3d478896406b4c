//! Serves one HTTP connection.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tollgate_engine::Store;

use super::body::ReplyBody;
use super::bounds::{
    BODY_TIMEOUT, HEAD_TIMEOUT, MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, RESERVED_CONNECTION_LIFETIME,
    WRITE_TIMEOUT,
};
use super::call::call_operation;
use super::half_close::HalfCloseStream;
use super::problem::Problem;
use super::receive::{busy_problem, discard_body, read_body, read_body_with_permits};
use super::{fast, forward};
use super::{route, web};
use crate::app::App;
use crate::console::{self, session};
use crate::control::api::{self, bounds::FILE_TIMEOUT};
use crate::control::auth::{Access, AuthError, CachedToken};
use crate::live;
use crate::net::linger;
use crate::net::protocol::{AUTH_TIMEOUT, Protocol};
use crate::net::shutdown::ConnectionGuard;
use crate::net::write_timeout::WriteTimeout;
use crate::ops::Op;
use crate::rls;

/// A response of the HTTP front end.
pub type HttpResponse = Response<ReplyBody>;

const IDEMPOTENCY_KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// Whether a connection uses the fast path for checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// Ordinary checks are answered without hyper.
    Enabled,
    /// hyper parses every request. Tests compare the responses with those of the fast path.
    Disabled,
}

/// Serves a connection until the client closes it, a timeout expires, or the server stops.
pub async fn serve<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    peer: Option<IpAddr>,
    app: Arc<App<S>>,
    guard: ConnectionGuard,
    fast_path: FastPath,
) {
    guard.register_waker().await;
    let connection_state =
        Arc::new(HttpConnectionState { is_reserved: guard.is_reserved(), ..HttpConnectionState::default() });
    let mut stream = WriteTimeout::new(stream, WRITE_TIMEOUT);
    let first_request = if guard.is_reserved() {
        Some(RESERVED_CONNECTION_LIFETIME)
    } else {
        app.auth.requires_tokens().then_some(AUTH_TIMEOUT)
    };
    let mut deadline = first_request.map(|limit| Box::pin(sleep(limit)));
    let mut unread = Vec::new();
    if fast_path == FastPath::Enabled && !guard.is_reserved() {
        match fast::serve(&mut stream, &app, &connection_state, &guard, &mut deadline).await {
            Ok(input) => unread = input,
            Err(error) => {
                tracing::debug!(%error, connection = guard.id(), "connection closed");
                return;
            }
        }
    }
    let service = service_fn(|request| {
        let (app, state) = (app.clone(), connection_state.clone());
        async move { Ok::<_, Infallible>(answer_request(&app, &state, peer, request).await) }
    });
    let mut has_unread = !unread.is_empty();
    let stream = HalfCloseStream::new(stream, connection_state.clone(), unread);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut is_closing = false;
    let outcome = poll_fn(|cx| {
        let mut connection = Pin::new(&mut connection);
        // Let hyper read the unread input first, because a graceful shutdown closes a connection from which hyper has
        // read nothing.
        if std::mem::take(&mut has_unread)
            && let Poll::Ready(outcome) = connection.as_mut().poll(cx)
        {
            return Poll::Ready(outcome);
        }
        if !is_closing && guard.is_stopping() {
            is_closing = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Some(timer) = &mut deadline {
            if connection_state.is_authenticated() {
                deadline = None;
            } else if timer.as_mut().poll(cx).is_ready() {
                if is_closing || !connection_state.is_answering() {
                    return Poll::Ready(Ok(()));
                }
                // A request in progress may still complete within the body timeout.
                is_closing = true;
                connection.as_mut().graceful_shutdown();
                timer.as_mut().reset(Instant::now() + BODY_TIMEOUT);
                let _ = timer.as_mut().poll(cx);
            }
        }
        connection.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, connection = guard.id(), "connection closed");
    }
    // A reserved connection does not linger, because that would extend its lifetime.
    if !guard.is_reserved() {
        linger::close_gracefully(connection.into_parts().io.inner_mut()).await;
    }
}

/// The state shared by the requests of a connection.
#[derive(Debug, Default)]
pub(super) struct HttpConnectionState {
    /// Never contended, because the requests of a connection are served in sequence.
    token: Mutex<CachedToken>,
    /// Whether a valid token was sent. Relaxed ordering suffices, because no other data depends on this flag.
    authenticated: AtomicBool,
    /// Whether a request is being answered.
    answering: AtomicBool,
    /// Whether the request that is being answered waits for capacity.
    waiting: AtomicBool,
    /// Whether only health checks are answered.
    is_reserved: bool,
}

impl HttpConnectionState {
    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    pub(super) fn set_answering(&self, is_answering: bool) {
        self.answering.store(is_answering, Ordering::Relaxed);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn set_waiting(&self, is_waiting: bool) {
        self.waiting.store(is_waiting, Ordering::Relaxed);
    }
}

async fn answer_request<S: Store + 'static>(
    app: &Arc<App<S>>,
    state: &HttpConnectionState,
    peer: Option<IpAddr>,
    request: Request<Incoming>,
) -> HttpResponse {
    let (head, body) = request.into_parts();
    state.set_answering(true);
    let (protocol, answer) = match forward::ForwardAuthTarget::parse(&head.uri) {
        Some(_) if state.is_reserved => (Protocol::Forward, Err(connection_limit_problem())),
        Some(target) => (Protocol::Forward, answer_forward_auth(app, state, peer, target, &head).await),
        None => (Protocol::Http, answer_api_request(app, state, head, body).await),
    };
    let mut answer = answer.unwrap_or_else(|problem| {
        app.metrics.protocol_counters(protocol).count_malformed();
        problem.to_response()
    });
    state.set_answering(false);
    state.set_waiting(false);
    if state.is_reserved {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Answers a forward-auth call. The body is part of the client's request and is not read.
async fn answer_forward_auth<S: Store>(
    app: &App<S>,
    state: &HttpConnectionState,
    peer: Option<IpAddr>,
    target: Result<forward::ForwardAuthTarget<'_>, Problem>,
    head: &Parts,
) -> Result<HttpResponse, Problem> {
    let target = target?;
    let token = head.headers.get(forward::TOKEN_HEADER).map(HeaderValue::as_bytes);
    let token = token.or(target.token.as_ref().map(|token| token.as_bytes()));
    let access = authenticate(app, state, token)?;
    forward::answer(app, &access, &target, head, peer).await
}

/// Answers a request to the API, the console or the rules service.
///
/// Rare branches are boxed. Otherwise the rare branches would enlarge the future of every request, which hyper moves.
async fn answer_api_request<S: Store + 'static>(
    app: &Arc<App<S>>,
    state: &HttpConnectionState,
    head: Parts,
    body: Incoming,
) -> Result<HttpResponse, Problem> {
    let found = route::find_operation(&head.method, head.uri.path());
    if found.is_err() && head.uri.path() == rls::HEALTHCHECK_PATH {
        return rls::healthcheck_body(app)
            .map(|body| new_response(StatusCode::OK, "text/plain", body))
            .ok_or_else(|| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Stopping", "the server is stopping"));
    }
    if found.is_err() && !state.is_reserved {
        if console::owns_path(head.uri.path()) {
            web::check_navigation(app.hosts.as_ref(), &head)?;
            return console::answer(&head);
        }
        if head.uri.path() == session::SESSION_PATH && head.method == Method::POST {
            web::check_page_and_host(app.hosts.as_ref(), &head)?;
            let body = Box::pin(read_body(body, session::MAX_BODY_BYTES, BODY_TIMEOUT)).await?;
            return session::open_session(app, &head, &body);
        }
    }
    let mut credentials = None;
    let access = match &found {
        Ok(spec) if spec.role.is_none() => Access::Unrestricted,
        Ok(_) | Err(_) if state.is_reserved => return Err(connection_limit_problem()),
        Ok(_) | Err(_) if !app.auth.requires_tokens() => Access::Unrestricted,
        Ok(_) | Err(_) => match bearer_from_headers(&head) {
            // A caller that sends a token needs no lookup of a browser session.
            token if token.is_some() => authenticate(app, state, token)?,
            token => {
                let credentials = credentials.insert(session::Credentials::from_request(app, &head, token));
                authenticate(app, state, credentials.token())?
            }
        },
    };
    web::check_page_and_host(app.hosts.as_ref(), &head)?;
    match found {
        Ok(spec) => {
            let body = read_body(body, MAX_BODY_BYTES, BODY_TIMEOUT).await?;
            let key = head.headers.get(IDEMPOTENCY_KEY_HEADER).map(HeaderValue::as_bytes);
            state.set_waiting(spec.op == Op::Acquire);
            call_operation(app, &access, spec, key, &body).await
        }
        Err(_) if head.uri.path() == rls::JSON_PATH && head.method == Method::POST => {
            let body = Box::pin(read_body(body, rls::bounds::MAX_MESSAGE_BYTES, BODY_TIMEOUT)).await?;
            let answer = Box::pin(rls::answer_json(app, &access, &body)).await;
            let (status, body) = answer.map_err(|error| Problem::from_op_error(&error, ""))?;
            Ok(new_response(status, "application/json", body))
        }
        Err(_) if head.uri.path() == session::SESSION_PATH => session::answer(app, &head, &access),
        Err(_) if live::owns_path(head.uri.path()) => {
            let credentials = credentials
                .unwrap_or_else(|| session::Credentials::from_request(app, &head, bearer_from_headers(&head)));
            Box::pin(live::answer(app, &head, credentials)).await
        }
        Err(_) if api::owns_path(head.uri.path()) => Box::pin(call_rules_service(app, access, head, body)).await,
        Err(problem) => match problem.allowed_methods() {
            Some(methods) if head.method == Method::OPTIONS => Ok(options_response(methods.clone())),
            Some(_) | None => Err(problem),
        },
    }
}

/// Returns the access rights that the caller's token grants.
#[inline]
pub(super) fn authenticate<S: Store>(
    app: &App<S>,
    state: &HttpConnectionState,
    token: Option<&[u8]>,
) -> Result<Access, AuthError> {
    if !app.auth.requires_tokens() {
        return Ok(Access::Unrestricted);
    }
    let mut cached = state.token.lock().unwrap_or_else(PoisonError::into_inner);
    let access = app.auth.authenticate(&mut cached, token, || app.wall_ms()).cloned()?;
    state.authenticated.store(true, Ordering::Relaxed);
    Ok(access)
}

/// Returns the token of the header `Authorization: Bearer …`.
fn bearer_from_headers(head: &Parts) -> Option<&[u8]> {
    bearer_token(head.headers.get(AUTHORIZATION)?.as_bytes())
}

/// Returns the token of an `Authorization` value of the form `Bearer …`.
pub(crate) fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Passes a request to the rules service, if this server runs one.
async fn call_rules_service<S: Store>(
    app: &App<S>,
    access: Access,
    head: Parts,
    body: Incoming,
) -> Result<HttpResponse, Problem> {
    let Some(service) = app.source.service() else {
        let detail = app.source.why_no_service();
        return Err(Problem::new(StatusCode::NOT_FOUND, "No rules service", detail));
    };
    if api::uploads_log(&head) {
        return replay_log(service, access, head, body).await;
    }
    if !api::accepts_rule_files(head.uri.path()) {
        let body = read_body(body, api::bounds::MAX_RULE_BYTES, BODY_TIMEOUT).await?;
        return Ok(service.answer(head, body, access).await);
    }
    // The total memory for files is bounded. A slow client holds memory permits for the bytes it has sent, but no
    // processing permit.
    let (body, _received) =
        read_body_with_permits(body, api::bounds::MAX_FILE_BYTES, FILE_TIMEOUT, Some(service.upload_permits())).await?;
    let Ok(Ok(_turn)) = timeout(FILE_TIMEOUT, service.rule_file_permits().acquire()).await else {
        return Err(busy_problem());
    };
    Ok(service.answer(head, body, access).await)
}

/// Receives a log and replays it. The replay permit is acquired before the log is received, which bounds the memory for
/// logs.
async fn replay_log(
    service: &api::RulesService,
    access: Access,
    mut head: Parts,
    body: Incoming,
) -> Result<HttpResponse, Problem> {
    api::check_may_replay(&access)?;
    let Some(turn) = service.begin_replay() else {
        discard_body(body, api::bounds::MAX_UPLOAD_BYTES, BODY_TIMEOUT).await;
        let detail =
            format!("another log is being replayed (maximum {} at a time); try again later", api::bounds::MAX_REPLAYS);
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail).with_retry_after(10));
    };
    head.extensions.insert(turn);
    let body = read_body(body, api::bounds::MAX_UPLOAD_BYTES, FILE_TIMEOUT).await?;
    Ok(service.answer(head, body, access).await)
}

fn connection_limit_problem() -> Problem {
    let detail = "too many connections; only /healthz and /readyz are answered, try again later";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too many connections", detail)
}

/// Returns the response to an `OPTIONS` request.
fn options_response(methods: HeaderValue) -> HttpResponse {
    let mut answer = Response::new(ReplyBody::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().insert(ALLOW, methods);
    answer
}

/// Returns a response with a body.
pub(super) fn new_response(status: StatusCode, kind: &'static str, body: impl Into<ReplyBody>) -> HttpResponse {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::net::stalled_client::assert_closes_after;

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_token_is_closed_where_tokens_are_required() {
        for sent in ["", "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"] {
            let required = |stream, _, guard| {
                let engine = tollgate_engine::MemoryStore::new(1).and_then(tollgate_engine::Engine::new).unwrap();
                serve(
                    stream,
                    None,
                    Arc::new(App::new(engine, None).with_token_policy(TokenPolicy::Required)),
                    guard,
                    FastPath::Enabled,
                )
            };
            let answer = assert_closes_after(AUTH_TIMEOUT, sent, required).await;
            assert_eq!(answer.starts_with("HTTP/1.1 200 OK"), !sent.is_empty(), "{sent}: {answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_stalls_times_out() {
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
        for (sent, timeout, answer) in [
            ("", HEAD_TIMEOUT, ""),
            (&head[..20], HEAD_TIMEOUT, ""),
            (&format!("{head}{{\"key\""), BODY_TIMEOUT, "HTTP/1.1 408 Request Timeout"),
        ] {
            let received = assert_closes_after(timeout, sent, |stream, app, guard| {
                serve(stream, None, app, guard, FastPath::Enabled)
            })
            .await;
            assert!(received.starts_with(answer), "{sent}: {received}");
        }
    }
}
