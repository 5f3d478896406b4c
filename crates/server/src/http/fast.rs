//! The fast path of `POST /v1/check`: reads, decides and answers ordinary requests without hyper.
//!
//! hyper builds a header map, a body channel and a boxed future for each request, which cost several times the decision.
//! The fast path parses the bytes of a complete request in place and appends the response to a buffer. One write sends
//! the responses to all pipelined requests of a read.
//!
//! A request is ordinary if it has this request line, at most [`MAX_HEADERS`] headers that are in [`IGNORED`] or that
//! [`parse`] knows, a body of known length that is one object, and a valid token where one is required. Authentication,
//! the `Host` check, the body parser and the operation are those of the slow path. At any other input hyper takes over
//! for the rest of the connection and reads the request again from its first byte. So the fast path writes only
//! decisions and their errors. `tests/http1.rs` compares its responses with those of hyper.
//!
//! Gain: 18,545 instead of 36,887 user instructions per request in the connection's task (callgrind, one connection,
//! no link-time optimisation).

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;

use httparse::{EMPTY_HEADER, Status};
use hyper::StatusCode;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep};
use tollgate::core::{Mono, Time};
use tollgate_engine::Store;
use tollgate_http::headers;

use super::bounds::{HEAD_TIMEOUT, REST_TIMEOUT};
use super::call::{JSON, decision_status, header_limits, new_caller};
use super::problem::Problem;
use super::serve::{HttpConnection, authenticate, bearer_token};
use super::wire::Body;
use super::{json, translate};
use crate::app::App;
use crate::net::lazy_timer::LazyTimer;
use crate::net::protocol::Protocol;
use crate::net::shutdown::ConnectionGuard;
use crate::ops::CHECK;
use crate::ops::run::{Call, MAX_TURN, Reply, run};
use crate::ops::view::Output;

const REQUEST_LINE: &[u8] = b"POST /v1/check HTTP/1.1\r\n";

/// Headers that a check does not depend on and that clients and tracers send.
const IGNORED: [&str; 9] = [
    "user-agent",
    "accept",
    "accept-encoding",
    "accept-language",
    "content-type",
    "sec-fetch-mode",
    "traceparent",
    "tracestate",
    "x-request-id",
];

/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 16;

/// Maximum number of bytes of a request, and of the pipelined requests that are read together.
const READ_BUFFER: usize = 8 * 1024;

/// The number of bytes of responses after which they are written, although further requests were read.
const WRITE_BUFFER: usize = 16 * 1024;

/// Answers checks until hyper has to take over. Returns the bytes that were read and not answered.
///
/// # Errors
/// When the connection fails or a time limit has passed.
pub(super) async fn serve<S: Store, T: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut T,
    app: &App<S>,
    state: &HttpConnection,
    guard: &ConnectionGuard,
    auth_deadline: &mut Option<Pin<Box<Sleep>>>,
) -> io::Result<Vec<u8>> {
    let mut checks = Checks {
        stream,
        app,
        state,
        guard,
        auth_deadline,
        timer: LazyTimer::new(HEAD_TIMEOUT),
        rest_deadline: None,
        buffers: CheckBuffers::default(),
        turn: None,
    };
    while checks.read().await? && checks.answer().await? {}
    let unread = checks.buffers.input[..checks.buffers.filled].to_vec();
    checks.buffers.give_back();
    Ok(unread)
}

/// A connection on the fast path.
struct Checks<'c, S, T> {
    stream: &'c mut T,
    app: &'c App<S>,
    state: &'c HttpConnection,
    guard: &'c ConnectionGuard,
    auth_deadline: &'c mut Option<Pin<Box<Sleep>>>,
    timer: LazyTimer,
    /// When hyper takes over, if a part of a request has arrived.
    rest_deadline: Option<Instant>,
    /// Empty while the connection is idle.
    buffers: CheckBuffers,
    /// When the connection began to occupy its thread; `None` while it waits.
    turn: Option<Time<Mono>>,
}

impl<S: Store, T: AsyncRead + AsyncWrite + Unpin> Checks<'_, S, T> {
    /// Waits for input. Returns false if hyper has to take over: at the end of the stream, when the server stops, and when the
    /// rest of a request is late.
    async fn read(&mut self) -> io::Result<bool> {
        let Self { stream, state, guard, auth_deadline, timer, rest_deadline, buffers, turn, .. } = self;
        let is_partial = buffers.filled > 0;
        let deadline = rest_deadline.unwrap_or_else(|| Instant::now() + HEAD_TIMEOUT);
        poll_fn(|cx| {
            if guard.is_stopping() {
                return Poll::Ready(Ok(false));
            }
            if state.is_authenticated() {
                **auth_deadline = None;
            } else if let Some(timer) = auth_deadline.as_mut()
                && timer.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            buffers.take();
            let mut free = ReadBuf::new(&mut buffers.input[buffers.filled..]);
            if let Poll::Ready(outcome) = Pin::new(&mut **stream).poll_read(cx, &mut free) {
                let read = free.filled().len();
                buffers.filled += read;
                return Poll::Ready(outcome.map(|()| read > 0));
            }
            if !is_partial {
                buffers.give_back();
            }
            *turn = None;
            let late = || if is_partial { Ok(false) } else { Err(io::ErrorKind::TimedOut.into()) };
            timer.poll(cx, deadline).map(|()| late())
        })
        .await
    }

    /// Answers the complete requests in the buffer. Returns false if hyper has to take over.
    async fn answer(&mut self) -> io::Result<bool> {
        let Self { app, state, guard, .. } = *self;
        let mut at = 0;
        let is_done = loop {
            let turn = *self.turn.get_or_insert_with(|| app.now());
            let CheckBuffers { input, filled, responses } = &mut self.buffers;
            match answer_first(app, state, guard, &input[at..*filled], responses).await {
                FastPathStep::Request(length) => at += length,
                // Requests after the last response are not answered.
                FastPathStep::Close => at = *filled,
                FastPathStep::Input if at > 0 || *filled < READ_BUFFER => break true,
                FastPathStep::Input | FastPathStep::Hyper => break false,
            }
            if responses.output.len() >= WRITE_BUFFER || app.now().since(turn) >= MAX_TURN {
                self.write().await?;
                yield_now().await;
                self.turn = None;
            }
        };
        self.buffers.consume(at);
        if at > 0 {
            self.rest_deadline = None;
        }
        if self.buffers.filled > 0 {
            self.rest_deadline.get_or_insert_with(|| Instant::now() + REST_TIMEOUT);
        }
        self.write().await?;
        Ok(is_done)
    }

    async fn write(&mut self) -> io::Result<()> {
        let output = &mut self.buffers.responses.output;
        if !output.is_empty() {
            self.stream.write_all(output).await?;
            self.stream.flush().await?;
            output.clear();
        }
        Ok(())
    }
}

/// What follows.
enum FastPathStep {
    /// The next request, after this number of bytes.
    Request(usize),
    /// More input: the request is incomplete.
    Input,
    /// The end of the connection, because the server is stopping.
    Close,
    /// The slow path. Nothing was decided.
    Hyper,
}

/// Answers the first request of the input.
async fn answer_first<S: Store>(
    app: &App<S>,
    state: &HttpConnection,
    guard: &ConnectionGuard,
    input: &[u8],
    out: &mut ResponseWriter,
) -> FastPathStep {
    let CheckHead { host, token, start, end } = match parse(input) {
        Ok(head) => head,
        Err(next) => return next,
    };
    if let (Some(hosts), Some(host)) = (&app.hosts, host)
        && !hosts.contains(host)
    {
        return FastPathStep::Hyper;
    }
    let Ok(access) = authenticate(app, state, token) else { return FastPathStep::Hyper };
    let Some(body) = input.get(start..end) else { return FastPathStep::Input };
    let Ok(Body::One(item)) = Body::parse(body) else { return FastPathStep::Hyper };
    let Ok(request) = translate::to_input(&app.engine, CHECK.op, &item) else { return FastPathStep::Hyper };
    let mut next = FastPathStep::Request(end);
    run(app, new_caller(&access, None), CHECK, &mut [Call::new(Ok(request))], |reply| {
        let is_last = guard.is_stopping();
        out.write(app, &reply, is_last);
        if is_last {
            next = FastPathStep::Close;
        }
    })
    .await;
    next
}

/// The head of an ordinary check.
struct CheckHead<'i> {
    host: Option<&'i str>,
    token: Option<&'i [u8]>,
    /// The positions of the body.
    start: usize,
    end: usize,
}

fn parse(input: &[u8]) -> Result<CheckHead<'_>, FastPathStep> {
    let Some(after_line) = input.strip_prefix(REQUEST_LINE) else {
        return Err(if REQUEST_LINE.starts_with(input) { FastPathStep::Input } else { FastPathStep::Hyper });
    };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let (length, headers) = match httparse::parse_headers(after_line, &mut headers) {
        Ok(Status::Complete(parsed)) => parsed,
        Ok(Status::Partial) => return Err(FastPathStep::Input),
        Err(_) => return Err(FastPathStep::Hyper),
    };
    let (mut host, mut authorization, mut body_length) = (None, None, None);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let is_ordinary = if is("content-length") {
            body_length.replace(parse_length(header.value).ok_or(FastPathStep::Hyper)?).is_none()
        } else if is("host") {
            let name = str::from_utf8(header.value).ok().filter(|name| name.is_ascii());
            host.replace(name.ok_or(FastPathStep::Hyper)?).is_none()
        } else if is("authorization") {
            authorization.replace(header.value).is_none()
        } else if is("connection") {
            header.value.eq_ignore_ascii_case(b"keep-alive")
        } else {
            IGNORED.iter().any(|name| is(name))
        };
        if !is_ordinary {
            return Err(FastPathStep::Hyper);
        }
    }
    let start = REQUEST_LINE.len() + length;
    let end = start + body_length.ok_or(FastPathStep::Hyper)?;
    if end > READ_BUFFER {
        return Err(FastPathStep::Hyper);
    }
    Ok(CheckHead { host, token: authorization.and_then(bearer_token), start, end })
}

/// Parses the length of a body, if it has at most four digits.
fn parse_length(value: &[u8]) -> Option<usize> {
    let is_short = matches!(value.len(), 1..=4) && value.iter().all(u8::is_ascii_digit);
    is_short.then(|| value.iter().fold(0, |length, digit| 10 * length + usize::from(digit - b'0')))
}

/// Writes responses as hyper does.
#[derive(Default)]
struct ResponseWriter {
    output: Vec<u8>,
    /// The body of the current response, and its rate-limit headers.
    body: Vec<u8>,
    policies: String,
    statuses: String,
}

impl ResponseWriter {
    fn write<S: Store>(&mut self, app: &App<S>, reply: &Reply<'_>, is_last: bool) {
        let (output, decision) = match reply.result {
            Ok(output @ Output::Decision(decision)) => (output, decision),
            Ok(_) => return self.write_problem(app, &Problem::bug(), is_last),
            Err(error) => return self.write_problem(app, &Problem::from_op(error, ""), is_last),
        };
        let Self { output: out, body, policies, statuses } = self;
        body.clear();
        policies.clear();
        statuses.clear();
        json::write(body, output);
        headers::write_lists(policies, statuses, decision.retry(), header_limits(decision));
        let mut number = itoa::Buffer::new();
        let fields = [
            ("content-type", JSON),
            ("retry-after", decision.retry().map_or("", |retry| number.format(headers::retry_after(retry)))),
            ("ratelimit-policy", policies),
            ("ratelimit", statuses),
        ];
        write_response(out, decision_status(decision), fields, body, is_last, app.wall_ms());
    }

    #[cold]
    fn write_problem<S: Store>(&mut self, app: &App<S>, problem: &Problem, is_last: bool) {
        app.metrics.front_counters(Protocol::Http).malformed();
        let response = problem.to_response();
        let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let status = problem.status();
        write_response(&mut self.output, status, fields, &problem.to_json(), is_last, app.wall_ms());
    }
}

/// Writes a response. Headers without a value are left out.
fn write_response<'f>(
    out: &mut Vec<u8>,
    status: StatusCode,
    fields: impl IntoIterator<Item = (&'f str, &'f str)>,
    body: &[u8],
    is_last: bool,
    now_ms: i64,
) {
    let reason = status.canonical_reason().unwrap_or("<none>");
    put(out, &["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"]);
    let connection = ("connection", if is_last { "close" } else { "" });
    for (name, value) in fields.into_iter().chain([connection]).filter(|(_, value)| !value.is_empty()) {
        put(out, &[name, ": ", value, "\r\n"]);
    }
    put(out, &["content-length: ", itoa::Buffer::new().format(body.len()), "\r\ndate: "]);
    with_date(now_ms.div_euclid(1_000), |date| put(out, &[date, "\r\n\r\n"]));
    out.extend_from_slice(body);
}

#[inline]
fn put(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

thread_local! {
    /// The last second for which a date was formatted, and the date.
    static DATE: RefCell<(i64, String)> = const { RefCell::new((0, String::new())) };
}

/// Passes the date at `second` since 1970 on, in the form of HTTP. It is formatted once a second.
fn with_date(second: i64, pass: impl FnOnce(&str)) {
    DATE.with_borrow_mut(|(last, date)| {
        if *last != second || date.is_empty() {
            let time = Timestamp::from_second(second).unwrap_or_default();
            (*last, *date) = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        }
        pass(date);
    });
}

/// The buffers of a connection while it has input. Each thread pools a few, so that they stay in its cache and idle
/// connections hold none.
#[derive(Default)]
struct CheckBuffers {
    input: Vec<u8>,
    filled: usize,
    responses: ResponseWriter,
}

/// Number of unused buffers that a thread keeps.
const SPARE_BUFFERS: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<CheckBuffers>> = const { RefCell::new(Vec::new()) };
}

impl CheckBuffers {
    /// Takes buffers from the pool, if the connection has none.
    fn take(&mut self) {
        if self.input.is_empty() {
            *self = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
            self.input.resize(READ_BUFFER, 0);
        }
    }

    /// Returns the buffers to the pool.
    fn give_back(&mut self) {
        let mut buffers = std::mem::take(self);
        buffers.filled = 0;
        buffers.responses.output.shrink_to(2 * WRITE_BUFFER);
        buffers.responses.body.shrink_to(WRITE_BUFFER);
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS {
                spare.push(buffers);
            }
        });
    }

    /// Removes the first bytes of the input.
    fn consume(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}

#[cfg(test)]
mod tests;
