//! Handles one HTTP call of an operation, from request body to response.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use tokio::task::{spawn_blocking, yield_now};
use tollgate_engine::{Enforcement, Store};
use tollgate_http::Styles;
use tollgate_http::headers::{self, LimitStatus};

use super::body::LongResponseWriter;
use super::bounds::{FULL_RESPONSE_BYTES, MAX_EXPLAINED_REQUESTS};
use super::problem::Problem;
use super::serve::{HttpResponse, new_response};
use super::wire::{Body, ListProgress, ListReader, WireRequest};
use super::{explain, json, route, translate};
use crate::app::App;
use crate::control::auth::Access;
use crate::net::protocol::Protocol;
use crate::ops::idempotency::KeyLookup;
use crate::ops::input::Input;
use crate::ops::run::{Call, Caller, Reply, run, run_list};
use crate::ops::view::{DecisionView, Output};
use crate::ops::{Op, OperationSpec};

pub(super) const JSON_CONTENT_TYPE: &str = "application/json";
/// The logged error of a call that got no reply. A missing reply is a bug, because an operation replies to every call.
pub(super) const NO_REPLY: &str = "the operation returned no reply";

/// The logged error of a check whose reply is not a decision, which is a bug.
pub(super) const NO_DECISION: &str = "the reply to a check is not a decision";

const REPLAYED_HEADER: &str = "idempotency-replayed";

/// Runs an operation on a request body, with the caller's idempotency key if there is one.
///
/// # Errors
/// Returns a problem if the body is invalid, the idempotency key cannot be used, or the operation fails. If a list item
/// fails, the call succeeds and the response contains the problem at the index of the item.
pub(super) async fn call_operation<S: Store>(
    app: &App<S>,
    access: &Access,
    spec: &OperationSpec,
    key: Option<&[u8]>,
    body: &[u8],
) -> Result<HttpResponse, Problem> {
    let is_full = AtomicBool::new(false);
    let caller = new_caller(access, Some(&is_full));
    let key = match key.filter(|_| spec.keyed) {
        None => KeyLookup::NoKey,
        Some(key) => app
            .idempotency
            .look_up_or_insert(access, key, (Protocol::Http, spec.op, body), app.now())
            .map_err(|error| Problem::from_op_error(&error, ""))?,
    };
    let parsed;
    let input = match spec.op {
        Op::Page(_) => Ok(Input::None),
        Op::SetEnforcement => Ok(Input::Enforcement(parse_enforcement(body)?)),
        Op::Decide(_) | Op::Acquire | Op::Commit | Op::Refund | Op::Renew | Op::Reset | Op::Explain => {
            parsed = match body.len() {
                ..=MAX_BYTES_PARSED_AT_ONCE => Body::parse(body).map_err(|error| Problem::from_json_error(&error))?,
                // Boxed to keep the future small, because long bodies are rare.
                _ => Box::pin(parse_in_parts(body)).await?,
            };
            match &parsed {
                Body::One(item) => translate::to_input(&app.engine, spec.op, item),
                Body::Many(_) if spec.op == Op::Acquire => {
                    return Err(Problem::bad_request("/v1/acquire does not accept a list; send one request at a time"));
                }
                Body::Many(items) if spec.op == Op::Explain && items.len() > MAX_EXPLAINED_REQUESTS => {
                    let detail =
                        format!("too many requests to explain: {} (maximum {MAX_EXPLAINED_REQUESTS})", items.len());
                    return Err(Problem::bad_request(detail));
                }
                // Boxed because hyper moves this future, which should stay small for a single request.
                Body::Many(items) => return Ok(Box::pin(call_list(app, caller, spec, key, items)).await),
            }
        }
    };
    let mut answer = None;
    run(app, caller, spec, &mut [Call { input, key }], |reply| answer = Some(to_response(&reply))).await;
    answer.unwrap_or_else(|| Err(Problem::internal_error("call failed", &NO_REPLY)))
}

/// Returns an HTTP caller with the given access rights.
pub(super) fn new_caller<'a>(access: &'a Access, is_full: Option<&'a AtomicBool>) -> Caller<'a> {
    let format_explanation = |explanation: &_| explain::to_json(explanation).to_string();
    Caller { protocol: Protocol::Http, access, is_full, format_explanation }
}

/// Maximum length of a body that is parsed in one step, in bytes. Longer bodies are parsed in parts.
const MAX_BYTES_PARSED_AT_ONCE: usize = 8 * 1024;

/// Number of items to parse before yielding to other connections.
const ITEMS_PER_PARSE_STEP: usize = 64;

/// Parses a long body. After each part of a list, yields to other connections.
async fn parse_in_parts(body: &[u8]) -> Result<Body<'_>, Problem> {
    let Some(mut reader) = ListReader::new(body) else {
        return Body::parse(body).map_err(|error| Problem::from_json_error(&error));
    };
    let mut items = Vec::new();
    loop {
        match reader.read_items(&mut items, ITEMS_PER_PARSE_STEP) {
            ListProgress::More => yield_now().await,
            ListProgress::End => return Ok(Body::Many(items)),
            // Leave the loop to parse the whole body again, which finds the position of the error.
            ListProgress::Invalid => break,
        }
    }
    // Parsing again may take milliseconds, so it runs on a blocking thread.
    let copy = body.to_vec();
    Err(match spawn_blocking(move || Body::parse(&copy).err()).await {
        Ok(Some(error)) => Problem::from_json_error(&error),
        Ok(None) => Problem::internal_error("cannot parse a body", &"invalid in parts, but valid as a whole"),
        Err(error) => Problem::internal_error("cannot parse a body", &error),
    })
}

async fn call_list<S: Store>(
    app: &App<S>,
    caller: Caller<'_>,
    spec: &OperationSpec,
    key: KeyLookup<'_>,
    items: &[WireRequest<'_>],
) -> HttpResponse {
    let call = |item| Call::new(translate::to_input(&app.engine, spec.op, item));
    let mut out = LongResponseWriter::default();
    out.part.push(b'[');
    let mut is_replay = false;
    run_list(app, caller, spec, key, items, call, |Reply { index, result, replayed }| {
        is_replay |= replayed;
        if index > 0 {
            out.part.push(b',');
        }
        match result {
            Ok(output) => {
                match output {
                    Output::Explained(explanation) => out.push_bytes(explanation.clone()),
                    _ => json::write_output(&mut out.part, output),
                }
                if let Some(is_full) = caller.is_full.filter(|_| out.written_bytes() > FULL_RESPONSE_BYTES) {
                    is_full.store(true, Ordering::Relaxed);
                }
            }
            Err(error) => {
                app.metrics.protocol_counters(Protocol::Http).count_malformed();
                out.part.extend_from_slice(&Problem::from_op_error(error, &format!("/{index}")).to_json());
            }
        }
        out.end_item();
    })
    .await;
    out.part.push(b']');
    with_replayed_header(new_response(StatusCode::OK, JSON_CONTENT_TYPE, out), is_replay)
}

/// Decides a request from a file and returns the response body of `POST /v1/check`.
///
/// # Errors
/// Returns a problem if the request is invalid.
pub(crate) async fn decide_json_request<S: Store>(app: &App<S>, body: &[u8]) -> Result<Bytes, Problem> {
    let spec = route::find_operation(&Method::POST, "/v1/check")?;
    let answer = call_operation(app, &Access::Unrestricted, spec, None, body).await?;
    let Ok(body) = answer.into_body().collect().await;
    Ok(body.to_bytes())
}

fn to_response(reply: &Reply<'_>) -> Result<HttpResponse, Problem> {
    let output = reply.result.map_err(|error| Problem::from_op_error(error, ""))?;
    let answer = match output {
        Output::Page(page) => {
            let status = if page.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            new_response(status, page.content_type, page.body.clone())
        }
        Output::Decision(decision) => {
            let mut answer = new_response(decision_status(decision), JSON_CONTENT_TYPE, output_to_json(output));
            headers::add(answer.headers_mut(), Styles::IETF, decision.retry(), header_limits(decision));
            answer
        }
        Output::Refunded(_) | Output::Renewed(_) | Output::Settled(_) | Output::Reset(_) | Output::Explained(_) => {
            new_response(StatusCode::OK, JSON_CONTENT_TYPE, output_to_json(output))
        }
    };
    Ok(with_replayed_header(answer, reply.replayed))
}

/// Returns the limits to report in the rate-limit headers: all except shadow limits.
pub(super) fn header_limits<'d>(decision: &'d DecisionView<'_>) -> impl Iterator<Item = LimitStatus<'d>> {
    decision.limits().filter(|limit| !limit.shadow).map(LimitStatus::from)
}

thread_local! {
    /// Scratch buffer for responses, so that each response is allocated once, with its exact length.
    static SCRATCH_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Maximum capacity of the scratch buffer between responses, in bytes.
const MAX_SCRATCH_BYTES: usize = 16 * 1024;

fn output_to_json(output: &Output<'_>) -> Bytes {
    SCRATCH_BUFFER.with_borrow_mut(|out| {
        out.clear();
        json::write_output(out, output);
        let written = Bytes::copy_from_slice(out);
        out.shrink_to(MAX_SCRATCH_BYTES);
        written
    })
}

fn with_replayed_header(mut answer: HttpResponse, replayed: bool) -> HttpResponse {
    if replayed {
        answer.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    }
    answer
}

/// Returns 200 for an admitted request. For a refused request, returns the status configured in the rule, or 429.
pub(super) fn decision_status(decision: &DecisionView<'_>) -> StatusCode {
    if decision.is_allowed() {
        return StatusCode::OK;
    }
    decision.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

fn parse_enforcement(body: &[u8]) -> Result<Enforcement, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, expecting = "an object with `mode`")]
    struct EnforcementBody {
        mode: Mode,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Enforce,
        Observe,
    }

    let switch: EnforcementBody = serde_json::from_slice(body).map_err(|error| Problem::from_json_error(&error))?;
    Ok(match switch.mode {
        Mode::Enforce => Enforcement::Enforce,
        Mode::Observe => Enforcement::Observe,
    })
}
