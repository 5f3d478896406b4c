//! One request to a rules service, bounded in size and time.

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use reqwest::{Method, Response, StatusCode};
use tokio::time::timeout;
use tollgate_engine::rules::MAX_FILE_BYTES;

use crate::client::Client;
use crate::control::model::{RefusedRevision, Snapshot};
use crate::http::problem::ProblemDetails;

/// The maximum size of a response: twice the largest rule file, because characters may be escaped, plus the same amount
/// for tokens.
pub(super) const MAX_RESPONSE_BYTES: usize = 4 * MAX_FILE_BYTES;

/// The maximum length of an ETag.
const MAX_ETAG_BYTES: usize = 256;

/// The maximum size of an error response.
const MAX_ERROR_BODY_BYTES: usize = 2_000;

/// The report that a node sends with every request.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    /// The name of the node.
    pub(super) node: String,
    /// The revision that the node runs.
    pub(super) running: Option<i64>,
    /// The last revision that the node refused.
    pub(super) refused: Option<RefusedRevision>,
}

/// Timeouts of the parts of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollTimeouts {
    /// Maximum time that the service waits for a change, in whole seconds.
    pub(super) wait: Duration,
    /// Timeout for the response head, counted from the end of `wait`.
    pub(super) head: Duration,
    /// Timeout for the response body.
    pub(super) body: Duration,
}

/// The response of a service.
#[derive(Debug)]
pub(super) enum PollAnswer {
    /// The snapshot with the known ETag is still the newest.
    Unchanged,
    /// A different snapshot and its ETag.
    Snapshot(Option<String>, Arc<Snapshot>),
}

/// Requests a snapshot whose ETag differs from `known`.
///
/// # Errors
/// Returns the reason for the failure, as text for the log.
pub(super) async fn fetch_snapshot(
    client: &Client,
    node: &NodeState,
    known: Option<&str>,
    timeouts: PollTimeouts,
) -> Result<PollAnswer, String> {
    let mut request = client.request(Method::GET, &["v1", "snapshot"]).header("tollgate-node", &node.node);
    if !timeouts.wait.is_zero() {
        request = request.query(&[("wait", timeouts.wait.as_secs())]);
    }
    if let Some(running) = node.running {
        request = request.header("tollgate-running", running);
    }
    if let Some(refused) = &node.refused {
        request = request.header(
            "tollgate-refused",
            format!("{} {}", refused.revision, encode_for_header(&refused.why, MAX_REASON_BYTES)),
        );
    }
    if let Some(known) = known {
        request = request.header(IF_NONE_MATCH, known);
    }
    let late = |what: &str, time: Duration| format!("{what} within {} s", time.as_secs());
    let time = timeouts.wait + timeouts.head;
    let response = timeout(time, request.send()).await.map_err(|_| late("no answer", time))?;
    let response = response.map_err(|error| root_cause(&error))?;
    let status = response.status();
    let etag = response.headers().get(ETAG).map(HeaderValue::to_str);
    let etag = etag.and_then(Result::ok).filter(|etag| etag.len() <= MAX_ETAG_BYTES).map(str::to_owned);
    if status == StatusCode::NOT_MODIFIED && known.is_some() {
        return Ok(PollAnswer::Unchanged);
    }
    let most = if status == StatusCode::OK { MAX_RESPONSE_BYTES } else { MAX_ERROR_BODY_BYTES };
    let body = timeout(timeouts.body, read_body(response, most)).await;
    let body = body.map_err(|_| late("incomplete answer", timeouts.body))?;
    if status != StatusCode::OK {
        return Err(describe_error_response(status, &body.unwrap_or_default()));
    }
    let body = body?;
    // Parses on a blocking thread, because parsing a large snapshot would delay the other tasks of this thread.
    let snapshot = tokio::task::spawn_blocking(move || serde_json::from_slice(&body)).await;
    let snapshot = snapshot.map_err(|error| error.to_string())?;
    let snapshot: Snapshot = snapshot.map_err(|error| format!("the answer is not a rule set: {error}"))?;
    Ok(PollAnswer::Snapshot(etag, Arc::new(snapshot)))
}

async fn read_body(mut response: Response, most: usize) -> Result<Vec<u8>, String> {
    let too_large = || format!("answer too large (maximum {most} bytes)");
    if response.content_length().is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| root_cause(&error))? {
        if body.len() + part.len() > most {
            return Err(too_large());
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// Returns the innermost cause of an error, without the address, which the log line already contains.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let words = cause.to_string();
    // Some messages of the TLS library end with a link.
    words.split(": https://").next().unwrap_or_default().to_owned()
}

/// Describes an error response.
fn describe_error_response(status: StatusCode, body: &[u8]) -> String {
    let detail = serde_json::from_slice::<ProblemDetails>(body).map(|problem| problem.detail).unwrap_or_default();
    // Control characters are removed, because the text comes from another server and is logged.
    let detail: String = detail.chars().filter(|char| !char.is_control()).collect();
    let help = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; set a valid token with --rules-token",
        StatusCode::NOT_FOUND => "; is it a rules service?",
        _ => "",
    };
    let colon = if detail.is_empty() { "" } else { ": " };
    format!("the answer is {status}{colon}{detail}{help}")
}

/// The maximum size of a reason in a header.
const MAX_REASON_BYTES: usize = 1_000;

/// Percent-encodes a string for a header. Truncates the result to at most `most` bytes, between two characters.
fn encode_for_header(text: &str, most: usize) -> String {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
    let mut encoded = String::new();
    for char in text.chars() {
        let char = utf8_percent_encode(char.encode_utf8(&mut [0; 4]), ESCAPED).to_string();
        if encoded.len() + char.len() > most {
            break;
        }
        encoded.push_str(&char);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_encoded_and_cut_between_characters() {
        assert_eq!(encode_for_header("a: b%\n\u{e9}", 100), "a:%20b%25%0A%C3%A9");
        assert_eq!(encode_for_header("ab\u{e9}\u{e9}", 10), "ab%C3%A9");
        assert_eq!(encode_for_header("", 10), "");
    }

    #[test]
    fn error_response_is_described_with_a_remedy() {
        let problem = br#"{"detail":"the token has expired\u001b[0m"}"#;
        let text = describe_error_response(StatusCode::UNAUTHORIZED, problem);
        assert_eq!(
            text,
            "the answer is 401 Unauthorized: the token has expired[0m; set a valid token with --rules-token"
        );
        assert_eq!(describe_error_response(StatusCode::BAD_GATEWAY, b"<html>"), "the answer is 502 Bad Gateway");
    }
}
