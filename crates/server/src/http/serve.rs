//! One HTTP connection, from its first request to its last.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tollgate_engine::Store;

use super::limits::{BODY_TIMEOUT, HEAD_TIMEOUT, MAX_BODY, MAX_HEAD, MAX_HEADERS};
use super::problem::Problem;
use super::route::{self, Route};
use crate::app::App;
use crate::control::api::{self, limits::FILE_TIMEOUT};
use crate::control::auth::{Access, AuthError, Shown};
use crate::net::accept::Protocol;
use crate::net::shutdown::ConnectionGuard;
use crate::ops::idempotency::{Begun, Given, MAX_KEY};

/// What is sent back.
pub type Answer = Response<Full<Bytes>>;

/// Serves a connection until its client leaves, stalls, or the server stops.
pub async fn serve<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    app: Arc<App<S>>,
    guard: ConnectionGuard,
) {
    guard.register().await;
    // Requests of a connection come one after the other, so nobody ever waits for this lock.
    let shown = Arc::new(Mutex::new(Shown::default()));
    let service = service_fn(|request| {
        let (app, shown) = (app.clone(), shown.clone());
        async move { Ok::<_, Infallible>(answer(&app, &shown, request).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut told = false;
    let outcome = poll_fn(|cx| {
        if !told && guard.is_stopping() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
    // Clients come and go as they like: how a connection ended is of interest to nobody but a debugger.
    if let Err(error) = outcome {
        tracing::debug!(%error, connection = guard.id(), "a connection ended");
    }
}

async fn answer<S: Store>(app: &App<S>, shown: &Mutex<Shown>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let found = route::find(&head.method, head.uri.path());
    let access = match &found {
        Ok(route) if route.is_open() => Access::Local,
        Ok(_) | Err(_) => match admit(app, shown, &head) {
            Ok(access) => access,
            Err(error) => return tell_stranger(app, error),
        },
    };
    let outcome = match found {
        // A page somewhere must not turn off the limits of whoever looks at it.
        _ if head.headers.contains_key(ORIGIN) => {
            let detail = "requests of web pages, which have the header Origin, are not answered; ask from a program";
            Err(Problem::forbidden(detail))
        }
        Ok(route) => match read(body, MAX_BODY, BODY_TIMEOUT).await {
            Ok(body) => match head.headers.get(IDEMPOTENCY_KEY) {
                None => route::run(app, &access, route, &body).await,
                Some(key) => once(app, &access, key, route, &body).await,
            },
            Err(problem) => Err(problem),
        },
        Err(_) if api::owns(head.uri.path()) => control(app, access, head, body).await,
        Err(problem) if head.method == Method::OPTIONS => match problem.allow() {
            Some(methods) => Ok(allow(StatusCode::NO_CONTENT, methods)),
            None => Err(problem),
        },
        Err(problem) => Err(problem),
    };
    outcome.unwrap_or_else(|problem| {
        app.mistaken(Protocol::Http);
        tell(&problem)
    })
}

/// Who asks, by the token that is shown. Where none is asked for, nothing is looked at.
#[inline]
fn admit<S: Store>(app: &App<S>, shown: &Mutex<Shown>, head: &Parts) -> Result<Access, AuthError> {
    if !app.guards.ask() {
        return Ok(Access::Local);
    }
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    let token = head.headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    app.guards.admit(&mut shown, token, || app.wall_ms()).cloned()
}

/// The token of `Authorization: Bearer …`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn tell_stranger<S: Store>(app: &App<S>, error: AuthError) -> Answer {
    app.mistaken(Protocol::Http);
    let mut answer = tell(&Problem::new(StatusCode::UNAUTHORIZED, "Unauthorized", error.to_string()));
    let challenge = HeaderValue::from_static(match error {
        AuthError::NoToken => "Bearer realm=\"tollgate\"",
        AuthError::Unknown | AuthError::Expired => "Bearer realm=\"tollgate\", error=\"invalid_token\"",
    });
    answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    answer
}

/// Has a request answered by the rules service, if this server is one.
async fn control<S: Store>(app: &App<S>, access: Access, head: Parts, body: Incoming) -> Result<Answer, Problem> {
    let Some(service) = app.origin.service() else {
        let detail = app.origin.elsewhere();
        return Err(Problem::new(StatusCode::NOT_FOUND, "No rules service", detail));
    };
    if !api::takes_files(head.uri.path()) {
        let body = read(body, api::limits::MAX_RULE, BODY_TIMEOUT).await?;
        return Ok(service.answer(head, body, access).await);
    }
    // A few at a time, so that what they take together is bounded too.
    let place = timeout(FILE_TIMEOUT, service.large().acquire()).await;
    let Ok(Ok(_place)) = place else {
        let detail = "too many rule files are being read already; send it again later";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail));
    };
    let body = read(body, api::limits::MAX_FILE, FILE_TIMEOUT).await?;
    Ok(service.answer(head, body, access).await)
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

/// Answers a request that is to be carried out once, however often it is asked. Those that change nothing take no notice.
async fn once<S: Store>(
    app: &App<S>,
    access: &Access,
    key: &HeaderValue,
    route: Route,
    body: &[u8],
) -> Result<Answer, Problem> {
    if !route.takes() {
        return route::run(app, access, route, body).await;
    }
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Problem::bad_request(format!("an idempotency-key has 1 to {MAX_KEY} bytes")));
    }
    let ticket = match app.once.begin(key.as_bytes(), (route, body), app.now()) {
        Begun::First(ticket) => ticket,
        Begun::Again(Given::Http(mut answer)) => {
            answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            return Ok(answer);
        }
        Begun::Running => {
            let detail = "a request with this idempotency-key is being answered; ask again when it is";
            return Err(Problem::new(StatusCode::CONFLICT, "Conflict", detail));
        }
        Begun::Different | Begun::Again(Given::Resp(_)) => {
            let detail = "this idempotency-key came with another request; take a new key for every request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "Key used before", detail));
        }
    };
    let answer = route::run(app, access, route, body).await?;
    if answer.status().is_success() {
        let size = answer.body().size_hint().exact().unwrap_or(0);
        ticket.answered(&Given::Http(answer.clone()), usize::try_from(size).unwrap_or(usize::MAX));
    }
    Ok(answer)
}

/// The body, within its bounds of size and time. Where it came whole, which is nearly always, nothing is copied.
async fn read(mut body: Incoming, most: usize, patience: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("a body has at most {most} bytes here; send what is larger in parts");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let all = async {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Problem::bad_request(format!("the body broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + rest.len() + data.len() > most {
                return Err(too_large());
            }
            if first.is_empty() {
                first = data;
            } else {
                rest.extend_from_slice(&data);
            }
            if body.is_end_stream() {
                break;
            }
        }
        Ok(if rest.is_empty() { first } else { [&first[..], &rest[..]].concat().into() })
    };
    timeout(patience, all).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", patience.as_secs());
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "Body too slow", detail))
    })
}

/// A problem as an answer.
fn tell(problem: &Problem) -> Answer {
    let mut answer = respond(problem.status(), "application/problem+json", problem.to_json());
    if let Some(Ok(methods)) = problem.allow().map(HeaderValue::from_str) {
        answer.headers_mut().insert(ALLOW, methods);
    }
    if problem.status() == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

/// The methods that would be right.
fn allow(status: StatusCode, methods: &str) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    if let Ok(methods) = HeaderValue::from_str(methods) {
        answer.headers_mut().insert(ALLOW, methods);
    }
    answer
}

/// An answer of bytes.
pub(super) fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stalled_client::hangs_up_after;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stalls_is_not_waited_for() {
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
        for (sent, timeout, answer) in [
            ("", HEAD_TIMEOUT, ""),
            (&head[..20], HEAD_TIMEOUT, ""),
            (&format!("{head}{{\"key\""), BODY_TIMEOUT, "HTTP/1.1 408 Request Timeout"),
        ] {
            let told = hangs_up_after(timeout, sent, serve).await;
            assert!(told.starts_with(answer), "{sent}: {told}");
        }
    }
}
