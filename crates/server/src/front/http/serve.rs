//! One HTTP connection, from its first request to its last.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tollgate_engine::Store;

use super::limits::{BODY_TIMEOUT, HEAD_TIMEOUT, MAX_BODY, MAX_HEAD, MAX_HEADERS};
use super::problem::Problem;
use super::route::{self, Route};
use crate::drain::Guest;
use crate::front::accept::Protocol;
use crate::gate::Gate;
use crate::once::{Begun, MAX_KEY};

/// What is sent back.
pub type Answer = Response<Full<Bytes>>;

/// Serves a connection until its client leaves, stalls, or the server stops.
pub async fn serve<S: Store + 'static, T: AsyncRead + AsyncWrite + Unpin>(stream: T, gate: Arc<Gate<S>>, guest: Guest) {
    guest.register().await;
    let service = service_fn(|request| {
        let gate = gate.clone();
        async move { Ok::<_, Infallible>(answer(&gate, request).await) }
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
        if !told && guest.is_asked_to_leave() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
    // Clients come and go as they like: how a connection ended is of interest to nobody but a debugger.
    if let Err(error) = outcome {
        tracing::debug!(%error, connection = guest.id(), "a connection ended");
    }
}

async fn answer<S: Store>(gate: &Gate<S>, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let outcome = match route::find(&head.method, head.uri.path()) {
        // A page somewhere must not turn off the limits of whoever looks at it.
        Ok(_) if head.headers.contains_key(ORIGIN) => {
            let detail = "requests of web pages, which have the header Origin, are not answered; ask from a program";
            Err(Problem::new(StatusCode::FORBIDDEN, "Forbidden", detail))
        }
        Ok(route) => match read(body).await {
            Ok(body) => match head.headers.get(IDEMPOTENCY_KEY) {
                None => route::run(gate, route, &body).await,
                Some(key) => once(gate, key, route, &body).await,
            },
            Err(problem) => Err(problem),
        },
        Err(problem) => Err(problem),
    };
    outcome.unwrap_or_else(|problem| {
        gate.mistaken(Protocol::Http);
        tell(&problem)
    })
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

/// Answers a request that is to be carried out once, however often it is asked. Those that change nothing take no notice.
async fn once<S: Store>(gate: &Gate<S>, key: &HeaderValue, route: Route, body: &[u8]) -> Result<Answer, Problem> {
    if !route.takes() {
        return route::run(gate, route, body).await;
    }
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Problem::bad_request(format!("an idempotency-key has 1 to {MAX_KEY} bytes")));
    }
    let ticket = match gate.once.begin(key.as_bytes(), (route, body), gate.now()) {
        Begun::First(ticket) => ticket,
        Begun::Again(mut answer) => {
            answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            return Ok(answer);
        }
        Begun::Running => {
            let detail = "a request with this idempotency-key is being answered; ask again when it is";
            return Err(Problem::new(StatusCode::CONFLICT, "Conflict", detail));
        }
        Begun::Different => {
            let detail = "this idempotency-key came with another request; take a new key for every request";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "Key used before", detail));
        }
    };
    let answer = route::run(gate, route, body).await?;
    if answer.status().is_success() {
        let size = answer.body().size_hint().exact().unwrap_or(0);
        ticket.answered(&answer, usize::try_from(size).unwrap_or(usize::MAX));
    }
    Ok(answer)
}

/// The body, within its bounds of size and time. Where it came whole, which is nearly always, nothing is copied.
async fn read(mut body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("a body has at most {MAX_BODY} bytes; send a large batch in parts");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
    };
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let all = async {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Problem::bad_request(format!("the body broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + rest.len() + data.len() > MAX_BODY {
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
    timeout(BODY_TIMEOUT, all).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "Body too slow", detail))
    })
}

/// A problem as an answer.
fn tell(problem: &Problem) -> Answer {
    let mut answer = respond(problem.status(), "application/problem+json", problem.to_json());
    if let Some(Ok(methods)) = problem.allow().map(HeaderValue::from_str) {
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
    use crate::front::stalled::hangs_up_after;

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
