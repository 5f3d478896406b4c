//! Why a server did not do it, for somebody who has to decide what to do next.

use std::error::Error;
use std::fmt;
use std::fmt::Write as _;

use reqwest::StatusCode;
use serde::Deserialize;

use super::Answer;
use super::show::{clean, time};
use crate::client::Client;
use crate::control::model::Finding;

/// The server was asked and said no. Nothing was changed.
#[derive(Debug)]
pub(in crate::command) struct Refused {
    pub(in crate::command) status: StatusCode,
    message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Refused {}

/// A problem (RFC 9457), as far as it is shown.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    pointer: Option<String>,
    #[serde(default)]
    mistakes: Vec<Finding>,
    #[serde(default)]
    current: Option<i64>,
    #[serde(default)]
    author: Option<String>,
    #[serde(default)]
    at_ms: Option<i64>,
    #[serde(default)]
    diff: Option<String>,
}

/// So much of a token as may be shown: what it is called by in lists, not its secret.
pub(super) fn shown(token: &str) -> String {
    match token.split('_').collect::<Vec<_>>().as_slice() {
        ["tg", id, _] => format!("`{}`", clean(id)),
        _ => "that was given, which is none that `tollgate tokens create` made,".to_owned(),
    }
}

/// What is to be said about an answer that is no success.
pub(super) fn refused(client: &Client, token: Option<&str>, answer: &Answer) -> Refused {
    let (url, status) = (client.url().as_str().trim_end_matches('/'), answer.status);
    let problem: Option<Problem> = serde_json::from_slice(&answer.body).ok();
    let Some(problem) = problem.filter(|problem| problem.detail.is_some() || problem.title.is_some()) else {
        let first = answer.text();
        let first: String = clean(first.lines().next().unwrap_or_default()).chars().take(200).collect();
        return Refused { status, message: format!("{url} answers {status}, and not as a tollgate would: {first}") };
    };
    let detail = clean(problem.detail.as_deref().or(problem.title.as_deref()).unwrap_or_default());
    let mut message = match (status, token) {
        (StatusCode::UNAUTHORIZED, None) => format!(
            "{url} asks for a token: {detail}\n\
             give one with --token or TOLLGATE_TOKEN; an admin makes them with `tollgate tokens create`, the first one \
             with `tollgate tokens create --role admin --data DIR` beside the server"
        ),
        (StatusCode::UNAUTHORIZED, Some(token)) => format!(
            "{url} does not take the token {token}: {detail}\n\
             an admin sees with `tollgate tokens list` whether it was revoked or has expired"
        ),
        (StatusCode::FORBIDDEN, Some(token)) => format!("the token {token} may not do that: {detail}"),
        (StatusCode::SERVICE_UNAVAILABLE, _) => format!("{url} cannot do that now: {detail}"),
        _ => detail,
    };
    if let Some(pointer) = problem.pointer.filter(|pointer| !pointer.is_empty()) {
        let _ = write!(message, " (at {})", clean(&pointer));
    }
    // Of one mistake, the detail says everything; of several, it begins with the first.
    if problem.mistakes.len() > 1 {
        message = format!("there are {} mistakes:", problem.mistakes.len());
    }
    for Finding { line, column, problem, help } in problem.mistakes.iter().filter(|_| problem.mistakes.len() > 1) {
        let _ = write!(message, "\n{line}:{column}: {}", clean(problem));
        if let Some(help) = help {
            let _ = write!(message, "; {}", clean(help));
        }
    }
    if status == StatusCode::PRECONDITION_FAILED {
        message.push_str(&in_between(&problem.author, problem.at_ms, problem.current, problem.diff.as_deref()));
    }
    Refused { status, message }
}

/// Who changed it, and what.
fn in_between(author: &Option<String>, at_ms: Option<i64>, current: Option<i64>, diff: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(author) = author {
        let _ = write!(text, "\nchanged by {}", clean(author));
        if let Some(at_ms) = at_ms {
            let _ = write!(text, " at {}", time(at_ms));
        }
        if let Some(current) = current {
            let _ = write!(text, ", now version {current}");
        }
    }
    for line in diff.unwrap_or_default().lines() {
        let _ = write!(text, "\n  {}", clean(line));
    }
    text
}

/// What is to be said when there was no answer.
pub(super) fn unreachable(client: &Client, error: &reqwest::Error) -> anyhow::Error {
    let url = client.url().as_str().trim_end_matches('/');
    // The innermost reason says it without the address, which has been told.
    let mut reason: &dyn Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let reason = reason.to_string();
    if error.is_timeout() {
        return anyhow::anyhow!("{url} did not answer in time; whether it did what it was asked to is not known");
    }
    if reason.contains("CaUsedAsEndEntity") {
        return anyhow::anyhow!(
            "the certificate of {url} is one of an authority, not of a server; sign one with it for the server, as \
             docs/operating.md shows"
        );
    }
    if reason.contains("certificate") {
        return anyhow::anyhow!(
            "the certificate of {url} is not believed: {reason}; name the one of its authority with --ca FILE"
        );
    }
    if reason.contains("InvalidContentType") {
        return anyhow::anyhow!("{url} does not speak TLS; its address probably begins with http://");
    }
    if error.is_connect() {
        return anyhow::anyhow!(
            "cannot reach {url}: {reason}; --server or TOLLGATE_SERVER says where the server is, `tollgate serve` starts one"
        );
    }
    let hint =
        if client.url().scheme() == "http" { "; if it speaks TLS, its address begins with https://" } else { "" };
    anyhow::anyhow!("{url} broke off: {reason}; whether it did what it was asked to is not known{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, token: Option<&str>, body: &str) -> String {
        let client = Client::new("http://127.0.0.1:1", None, None).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, body: body.into() };
        refused(&client, token.map(shown).as_deref(), &answer).to_string()
    }

    #[test]
    fn what_the_server_says_is_told_with_what_to_do() {
        let problem = r#"{"title":"Unauthorized","detail":"there is no token"}"#;
        assert!(told(401, None, problem).contains("give one with --token or TOLLGATE_TOKEN"));
        let text = told(401, Some("tg_3f9a_0123456789"), problem);
        assert!(text.contains("does not take the token `3f9a`: there") && !text.contains("0123"), "{text}");
        assert!(!told(401, Some("hunter2"), problem).contains("hunter2"));
        let text = told(403, Some("tg_3f9a_0123456789"), r#"{"detail":"this needs the role editor"}"#);
        assert_eq!(text, "the token `3f9a` may not do that: this needs the role editor");
        let changed = r#"{"detail":"it was changed","current":4,"author":"ann","diff":"- limit: 1/s\n+ limit: 2/s\n"}"#;
        assert_eq!(
            told(412, None, changed),
            "it was changed\nchanged by ann, now version 4\n  - limit: 1/s\n  + limit: 2/s"
        );
        let one = r#"{"line":1,"column":2,"problem":"p","help":"h"}"#;
        assert_eq!(told(422, None, &format!(r#"{{"detail":"p; h","mistakes":[{one}]}}"#)), "p; h");
        let several = format!(r#"{{"detail":"there are 2 mistakes; the first: p; h","mistakes":[{one},{one}]}}"#);
        assert_eq!(told(422, None, &several), "there are 2 mistakes:\n1:2: p; h\n1:2: p; h");
        assert!(told(502, None, "<html>\nx").ends_with("and not as a tollgate would: <html>"));
    }
}
