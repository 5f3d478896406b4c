//! The fast path of `POST /v1/check`: reads, decides and answers ordinary requests without hyper.
//!
//! For each request, hyper builds a header map, a body channel and a boxed future. Together, these objects cost several
//! times as much as the decision. The fast path parses the bytes of a complete request in place and appends the
//! response to a buffer. One write usually sends the responses to all pipelined requests that were read together.
//!
//! A request is ordinary if all of these conditions hold:
//! - The request line is [`CHECK_REQUEST_LINE`].
//! - The request has at most [`READ_BUFFER_SIZE`] bytes and [`MAX_FAST_PATH_HEADERS`] headers. Each header is in
//!   [`IGNORED_HEADERS`] or accepted by [`parse_head`].
//! - The length of the body is known, and the body is one JSON object that describes a valid request.
//! - The server accepts the `Host`, and the token is valid if the server requires tokens.
//!
//! If a request is not ordinary, hyper takes over the connection permanently and reads that request again from its
//! first byte. The fast path therefore writes only decisions and their errors. The fast path shares authentication, the
//! `Host` check, the body parser and the operation with the slow path. `tests/http1.rs` compares the
//! responses of both paths.
//!
//! With the fast path, a request takes 18,545 instead of 36,887 user instructions in the task of its connection
//! (measured with callgrind on one connection, without link-time optimisation).

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

use super::bounds::{HEAD_TIMEOUT, PARTIAL_CHECK_TIMEOUT};
use super::call::{JSON_CONTENT_TYPE, NO_DECISION, decision_status, header_limits, new_caller};
use super::problem::Problem;
use super::serve::{HttpConnectionState, authenticate, bearer_token};
use super::wire::Body;
use super::{json, translate};
use crate::app::App;
use crate::net::lazy_timer::LazyTimer;
use crate::net::protocol::Protocol;
use crate::net::shutdown::ConnectionGuard;
use crate::ops::CHECK_SPEC;
use crate::ops::run::{Call, MAX_TURN, Reply, run};
use crate::ops::view::Output;

const CHECK_REQUEST_LINE: &[u8] = b"POST /v1/check HTTP/1.1\r\n";

/// Headers that clients and tracers often send and that do not affect a check.
const IGNORED_HEADERS: [&str; 9] = [
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

/// Maximum number of headers of a request on the fast path.
const MAX_FAST_PATH_HEADERS: usize = 16;

/// Size of the read buffer in bytes. This size bounds a request on the fast path, and the total size of the pipelined
/// requests in one read.
const READ_BUFFER_SIZE: usize = 8 * 1024;

/// Number of buffered response bytes that triggers a write, even if the read buffer contains further requests.
const WRITE_THRESHOLD: usize = 16 * 1024;

/// Answers checks until hyper has to take over. Returns the input that was read but not answered.
///
/// # Errors
/// Returns an error if the connection fails or times out.
pub(super) async fn serve<S: Store, T: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut T,
    app: &App<S>,
    state: &HttpConnectionState,
    guard: &ConnectionGuard,
    auth_deadline: &mut Option<Pin<Box<Sleep>>>,
) -> io::Result<Vec<u8>> {
    let mut checks = FastConnection {
        stream,
        app,
        state,
        guard,
        auth_deadline,
        timer: LazyTimer::new(HEAD_TIMEOUT),
        rest_deadline: None,
        buffers: CheckBuffers::default(),
        turn_start: None,
    };
    while checks.read_input().await? && checks.answer_buffered().await? {}
    let unread = checks.buffers.input[..checks.buffers.filled].to_vec();
    checks.buffers.return_to_pool();
    Ok(unread)
}

/// A connection on the fast path.
struct FastConnection<'c, S, T> {
    stream: &'c mut T,
    app: &'c App<S>,
    state: &'c HttpConnectionState,
    guard: &'c ConnectionGuard,
    auth_deadline: &'c mut Option<Pin<Box<Sleep>>>,
    timer: LazyTimer,
    /// Deadline for the rest of a partially received request, after which hyper takes over. `None` if there is no
    /// partial request.
    rest_deadline: Option<Instant>,
    /// Empty while the connection is idle.
    buffers: CheckBuffers,
    /// When the connection began to occupy its thread. `None` while the connection waits for input.
    turn_start: Option<Time<Mono>>,
}

impl<S: Store, T: AsyncRead + AsyncWrite + Unpin> FastConnection<'_, S, T> {
    /// Waits for input. Returns false if hyper has to take over: at the end of the stream, on shutdown, or if the rest
    /// of a request is late.
    async fn read_input(&mut self) -> io::Result<bool> {
        let Self { stream, state, guard, auth_deadline, timer, rest_deadline, buffers, turn_start, .. } = self;
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
            buffers.take_from_pool();
            let mut free = ReadBuf::new(&mut buffers.input[buffers.filled..]);
            if let Poll::Ready(outcome) = Pin::new(&mut **stream).poll_read(cx, &mut free) {
                let read = free.filled().len();
                buffers.filled += read;
                return Poll::Ready(outcome.map(|()| read > 0));
            }
            if !is_partial {
                buffers.return_to_pool();
            }
            *turn_start = None;
            let late = || if is_partial { Ok(false) } else { Err(io::ErrorKind::TimedOut.into()) };
            timer.poll(cx, deadline).map(|()| late())
        })
        .await
    }

    /// Answers the complete requests in the buffer. Returns false if hyper has to take over.
    async fn answer_buffered(&mut self) -> io::Result<bool> {
        let Self { app, state, guard, .. } = *self;
        let mut at = 0;
        let is_done = loop {
            let turn_start = *self.turn_start.get_or_insert_with(|| app.now());
            let CheckBuffers { input, filled, responses } = &mut self.buffers;
            match answer_first_request(app, state, guard, &input[at..*filled], responses).await {
                FastPathStep::NextRequest(length) => at += length,
                // The last response announced that the connection closes, so further requests are discarded.
                FastPathStep::Close => at = *filled,
                FastPathStep::ReadMore if at > 0 || *filled < READ_BUFFER_SIZE => break true,
                FastPathStep::ReadMore | FastPathStep::PassToHyper => break false,
            }
            if responses.output.len() >= WRITE_THRESHOLD || app.now().since(turn_start) >= MAX_TURN {
                self.write_responses().await?;
                yield_now().await;
                self.turn_start = None;
            }
        };
        self.buffers.consume_input(at);
        if at > 0 {
            self.rest_deadline = None;
        }
        if self.buffers.filled > 0 {
            self.rest_deadline.get_or_insert_with(|| Instant::now() + PARTIAL_CHECK_TIMEOUT);
        }
        self.write_responses().await?;
        Ok(is_done)
    }

    async fn write_responses(&mut self) -> io::Result<()> {
        let output = &mut self.buffers.responses.output;
        if !output.is_empty() {
            self.stream.write_all(output).await?;
            self.stream.flush().await?;
            output.clear();
        }
        Ok(())
    }
}

/// What the fast path has to do next.
enum FastPathStep {
    /// Answer the next request, which starts after this number of bytes.
    NextRequest(usize),
    /// Read more input, because the request is incomplete.
    ReadMore,
    /// Close the connection, because the server is stopping.
    Close,
    /// Pass the request to hyper, because it is not ordinary. Nothing was decided.
    PassToHyper,
}

/// Answers the first request in the input.
async fn answer_first_request<S: Store>(
    app: &App<S>,
    state: &HttpConnectionState,
    guard: &ConnectionGuard,
    input: &[u8],
    out: &mut ResponseWriter,
) -> FastPathStep {
    let CheckHead { host, token, body_start, body_end } = match parse_head(input) {
        Ok(head) => head,
        Err(next) => return next,
    };
    if let (Some(hosts), Some(host)) = (&app.hosts, host)
        && !hosts.accepts(host)
    {
        return FastPathStep::PassToHyper;
    }
    let Ok(access) = authenticate(app, state, token) else { return FastPathStep::PassToHyper };
    let Some(body) = input.get(body_start..body_end) else { return FastPathStep::ReadMore };
    let Ok(Body::One(item)) = Body::parse(body) else { return FastPathStep::PassToHyper };
    let Ok(request) = translate::to_input(&app.engine, CHECK_SPEC.op, &item) else { return FastPathStep::PassToHyper };
    let mut next = FastPathStep::NextRequest(body_end);
    run(app, new_caller(&access, None), CHECK_SPEC, &mut [Call::new(Ok(request))], |reply| {
        let is_last = guard.is_stopping();
        out.write_reply(app, &reply, is_last);
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
    /// Position of the first byte of the body.
    body_start: usize,
    /// Position after the last byte of the body.
    body_end: usize,
}

fn parse_head(input: &[u8]) -> Result<CheckHead<'_>, FastPathStep> {
    let Some(after_line) = input.strip_prefix(CHECK_REQUEST_LINE) else {
        let is_partial = CHECK_REQUEST_LINE.starts_with(input);
        return Err(if is_partial { FastPathStep::ReadMore } else { FastPathStep::PassToHyper });
    };
    let mut headers = [EMPTY_HEADER; MAX_FAST_PATH_HEADERS];
    let (length, headers) = match httparse::parse_headers(after_line, &mut headers) {
        Ok(Status::Complete(parsed)) => parsed,
        Ok(Status::Partial) => return Err(FastPathStep::ReadMore),
        Err(_) => return Err(FastPathStep::PassToHyper),
    };
    let (mut host, mut authorization, mut body_length) = (None, None, None);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let is_ordinary = if is("content-length") {
            body_length.replace(parse_content_length(header.value).ok_or(FastPathStep::PassToHyper)?).is_none()
        } else if is("host") {
            let name = str::from_utf8(header.value).ok().filter(|name| name.is_ascii());
            host.replace(name.ok_or(FastPathStep::PassToHyper)?).is_none()
        } else if is("authorization") {
            authorization.replace(header.value).is_none()
        } else if is("connection") {
            header.value.eq_ignore_ascii_case(b"keep-alive")
        } else {
            IGNORED_HEADERS.iter().any(|name| is(name))
        };
        if !is_ordinary {
            return Err(FastPathStep::PassToHyper);
        }
    }
    let body_start = CHECK_REQUEST_LINE.len() + length;
    let body_end = body_start + body_length.ok_or(FastPathStep::PassToHyper)?;
    if body_end > READ_BUFFER_SIZE {
        return Err(FastPathStep::PassToHyper);
    }
    Ok(CheckHead { host, token: authorization.and_then(bearer_token), body_start, body_end })
}

/// Parses a `Content-Length` value. Returns `None` if the value is not a number of one to four digits.
fn parse_content_length(value: &[u8]) -> Option<usize> {
    let is_short = matches!(value.len(), 1..=4) && value.iter().all(u8::is_ascii_digit);
    is_short.then(|| value.iter().fold(0, |length, digit| 10 * length + usize::from(digit - b'0')))
}

/// Writes responses in the same form as hyper.
#[derive(Default)]
struct ResponseWriter {
    output: Vec<u8>,
    /// Scratch buffer for the body of a response.
    body: Vec<u8>,
    /// Scratch buffer for the header `RateLimit-Policy`.
    policies: String,
    /// Scratch buffer for the header `RateLimit`.
    statuses: String,
}

impl ResponseWriter {
    fn write_reply<S: Store>(&mut self, app: &App<S>, reply: &Reply<'_>, is_last: bool) {
        let (output, decision) = match reply.result {
            Ok(output @ Output::Decision(decision)) => (output, decision),
            Ok(_) => {
                let problem = Problem::internal_error("call failed", &NO_DECISION);
                return self.write_problem(app, &problem, is_last);
            }
            Err(error) => return self.write_problem(app, &Problem::from_op_error(error, ""), is_last),
        };
        let Self { output: out, body, policies, statuses } = self;
        body.clear();
        policies.clear();
        statuses.clear();
        json::write_output(body, output);
        headers::write_lists(policies, statuses, decision.retry(), header_limits(decision));
        let mut number = itoa::Buffer::new();
        let fields = [
            ("content-type", JSON_CONTENT_TYPE),
            ("retry-after", decision.retry().map_or("", |retry| number.format(headers::retry_after(retry)))),
            ("ratelimit-policy", policies),
            ("ratelimit", statuses),
        ];
        write_response(out, decision_status(decision), fields, body, is_last, app.wall_ms());
    }

    #[cold]
    fn write_problem<S: Store>(&mut self, app: &App<S>, problem: &Problem, is_last: bool) {
        app.metrics.protocol_counters(Protocol::Http).count_malformed();
        let response = problem.to_response();
        let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let status = problem.status();
        write_response(&mut self.output, status, fields, &problem.to_json(), is_last, app.wall_ms());
    }
}

/// Writes a response. Headers with an empty value are left out.
fn write_response<'f>(
    out: &mut Vec<u8>,
    status: StatusCode,
    fields: impl IntoIterator<Item = (&'f str, &'f str)>,
    body: &[u8],
    is_last: bool,
    now_ms: i64,
) {
    let reason = status.canonical_reason().unwrap_or("<none>");
    append_texts(out, &["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"]);
    let connection = ("connection", if is_last { "close" } else { "" });
    for (name, value) in fields.into_iter().chain([connection]).filter(|(_, value)| !value.is_empty()) {
        append_texts(out, &[name, ": ", value, "\r\n"]);
    }
    append_texts(out, &["content-length: ", itoa::Buffer::new().format(body.len()), "\r\ndate: "]);
    with_http_date(now_ms.div_euclid(1_000), |date| append_texts(out, &[date, "\r\n\r\n"]));
    out.extend_from_slice(body);
}

#[inline]
fn append_texts(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

thread_local! {
    /// The last formatted date, with its time in seconds since 1970.
    static FORMATTED_DATE: RefCell<(i64, String)> = const { RefCell::new((0, String::new())) };
}

/// Calls `pass` with the HTTP date of the time `second` (seconds since 1970). Each thread formats a date at most once
/// per second.
fn with_http_date(second: i64, pass: impl FnOnce(&str)) {
    FORMATTED_DATE.with_borrow_mut(|(last, date)| {
        if *last != second || date.is_empty() {
            let time = Timestamp::from_second(second).unwrap_or_default();
            (*last, *date) = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        }
        pass(date);
    });
}

/// The buffers of a connection that has input. Each thread has a small pool of buffers: idle connections hold none, and
/// reused buffers stay in the CPU cache.
#[derive(Default)]
struct CheckBuffers {
    input: Vec<u8>,
    filled: usize,
    responses: ResponseWriter,
}

/// Maximum number of unused buffers in a thread's pool.
const MAX_POOLED_BUFFERS: usize = 16;

thread_local! {
    static BUFFER_POOL: RefCell<Vec<CheckBuffers>> = const { RefCell::new(Vec::new()) };
}

impl CheckBuffers {
    /// Takes buffers from the pool if the connection has none.
    fn take_from_pool(&mut self) {
        if self.input.is_empty() {
            *self = BUFFER_POOL.with_borrow_mut(Vec::pop).unwrap_or_default();
            self.input.resize(READ_BUFFER_SIZE, 0);
        }
    }

    /// Moves the buffers to the pool.
    fn return_to_pool(&mut self) {
        let mut buffers = std::mem::take(self);
        buffers.filled = 0;
        buffers.responses.output.shrink_to(2 * WRITE_THRESHOLD);
        buffers.responses.body.shrink_to(WRITE_THRESHOLD);
        BUFFER_POOL.with_borrow_mut(|spare| {
            if spare.len() < MAX_POOLED_BUFFERS {
                spare.push(buffers);
            }
        });
    }

    /// Removes the first `count` bytes of the input.
    fn consume_input(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}

#[cfg(test)]
mod tests;
