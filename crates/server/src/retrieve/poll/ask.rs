//! One question to a rules service, and its answer within bounds of size and time.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use reqwest::{Method, Response, StatusCode};
use tokio::time::timeout;
use tollgate_engine::rules::MAX_FILE_BYTES;

use crate::client::Client;
use crate::control::model::{Refused, Snapshot};
use crate::percent;

/// Bytes of an answer: the largest rule file, with every character escaped, and as much again for tokens.
pub(super) const MAX_ANSWER: usize = 4 * MAX_FILE_BYTES;

/// The longest name of a set that is kept.
const MAX_ETAG: usize = 256;

/// Bytes of an answer that is only shown, such as that of an error.
const MAX_TOLD: usize = 2_000;

/// What a node says of itself with every question.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// What it is called.
    pub(super) node: String,
    /// The revision it runs.
    pub(super) running: Option<i64>,
    /// What it would not run.
    pub(super) refused: Option<Refused>,
}

/// How long the parts of a question may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long the service may wait for a change, in whole seconds.
    pub(super) wait: Duration,
    /// For the answer to begin, beyond that.
    pub(super) begin: Duration,
    /// For the rest of it.
    pub(super) rest: Duration,
}

/// What a service answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// The set that was named is still the newest.
    Unchanged,
    /// A set, and what the service calls it.
    Set(Option<String>, Arc<Snapshot>),
}

/// Asks for a set other than the one named `known`.
///
/// # Errors
/// Why there is no answer that can be understood, for the log.
pub(super) async fn ask(
    client: &Client,
    told: &Told,
    known: Option<&str>,
    patience: Patience,
) -> Result<Answer, String> {
    let mut request = client.request(Method::GET, &["v1", "snapshot"]).header("tollgate-node", &told.node);
    if !patience.wait.is_zero() {
        request = request.query(&[("wait", patience.wait.as_secs())]);
    }
    if let Some(running) = told.running {
        request = request.header("tollgate-running", running);
    }
    if let Some(refused) = &told.refused {
        request = request.header("tollgate-refused", format!("{} {}", refused.revision, encode(&refused.why, MAX_WHY)));
    }
    if let Some(known) = known {
        request = request.header(IF_NONE_MATCH, known);
    }
    let late = |what: &str, time: Duration| format!("{what} within {} s", time.as_secs());
    let time = patience.wait + patience.begin;
    let response = timeout(time, request.send()).await.map_err(|_| late("it did not answer", time))?;
    let response = response.map_err(|error| in_words(&error))?;
    let status = response.status();
    let etag = response.headers().get(ETAG).map(HeaderValue::to_str);
    let etag = etag.and_then(Result::ok).filter(|etag| etag.len() <= MAX_ETAG).map(str::to_owned);
    if status == StatusCode::NOT_MODIFIED && known.is_some() {
        return Ok(Answer::Unchanged);
    }
    let most = if status == StatusCode::OK { MAX_ANSWER } else { MAX_TOLD };
    let body = timeout(patience.rest, read(response, most)).await;
    let body = body.map_err(|_| late("its answer did not arrive", patience.rest))?;
    if status != StatusCode::OK {
        return Err(refusal(status, &body.unwrap_or_default()));
    }
    let body = body?;
    // A large set takes a while to read, and this thread has others to serve.
    let set = tokio::task::spawn_blocking(move || serde_json::from_slice(&body)).await;
    let set = set.map_err(|error| error.to_string())?;
    let set: Snapshot = set.map_err(|error| format!("its answer is no set of rules: {error}"))?;
    Ok(Answer::Set(etag, Arc::new(set)))
}

async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, String> {
    let too_large = || format!("its answer has more than {most} bytes");
    if response.content_length().is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| in_words(&error))? {
        if body.len() + part.len() > most {
            return Err(too_large());
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// What is at the bottom of an error; the address is told beside it, and what was being done is always the same.
fn in_words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let words = cause.to_string();
    // The TLS library ends some with a link.
    words.split(": https://").next().unwrap_or_default().to_owned()
}

/// What a service says that gives no rules.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Problem {
        detail: String,
    }
    let detail = serde_json::from_slice::<Problem>(body).map(|problem| problem.detail).unwrap_or_default();
    // It is logged, and comes from outside.
    let detail: String = detail.chars().filter(|letter| !letter.is_control()).collect();
    let help = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; give a good token with --rules-token",
        StatusCode::NOT_FOUND => "; is it a rules service?",
        _ => "",
    };
    let colon = if detail.is_empty() { "" } else { ": " };
    format!("it answered {status}{colon}{detail}{help}")
}

/// Bytes of a reason in a header.
const MAX_WHY: usize = 1_000;

/// A text as a header can carry it, cut to `most` bytes.
fn encode(text: &str, most: usize) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    let mut encoded = String::new();
    for letter in text.chars() {
        let letter = percent::encode(letter.encode_utf8(&mut [0; 4]).as_bytes(), plain);
        if encoded.len() + letter.len() > most {
            break;
        }
        encoded.push_str(&letter);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_a_header_and_is_not_cut_within_a_letter() {
        assert_eq!(encode("a: b%\n\u{e9}", 100), "a:%20b%25%0A%C3%A9");
        assert_eq!(encode("ab\u{e9}\u{e9}", 10), "ab%C3%A9");
        assert_eq!(encode("", 10), "");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let problem = br#"{"detail":"the token has expired\u001b[0m"}"#;
        let told = refusal(StatusCode::UNAUTHORIZED, problem);
        assert_eq!(
            told,
            "it answered 401 Unauthorized: the token has expired[0m; give a good token with --rules-token"
        );
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"<html>"), "it answered 502 Bad Gateway");
    }
}
