//! Errors from a server, with the next step for the user.

use std::error::Error;
use std::fmt;
use std::fmt::Write as _;

use reqwest::StatusCode;

use super::ServerAnswer;
use super::output::{format_time, replace_control_characters};
use crate::client::Client;
use crate::control::model::Finding;
use crate::http::problem::ProblemDetails;

/// The server answered with an error status. Unless the status is 5xx, nothing was changed.
#[derive(Debug)]
pub(in crate::cli) struct ErrorAnswer {
    pub(in crate::cli) status: StatusCode,
    message: String,
}

impl fmt::Display for ErrorAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ErrorAnswer {}

/// Returns the part of a token that may be shown: its id, not its secret.
pub(super) fn display_token(token: &str) -> String {
    match token.split('_').collect::<Vec<_>>().as_slice() {
        ["tg", id, _] => format!("`{}`", replace_control_characters(id)),
        _ => "(not created by `tollgate tokens create`)".to_owned(),
    }
}

/// Describes an unsuccessful answer.
pub(super) fn describe_error_answer(client: &Client, token: Option<&str>, answer: &ServerAnswer) -> ErrorAnswer {
    let (url, status) = (client.url().as_str().trim_end_matches('/'), answer.status);
    let problem: Option<ProblemDetails> = serde_json::from_slice(&answer.body).ok();
    let Some(problem) = problem.filter(|problem| !problem.detail.is_empty()) else {
        let first = answer.body_text();
        let first: String =
            replace_control_characters(first.lines().next().unwrap_or_default()).chars().take(200).collect();
        return ErrorAnswer {
            status,
            message: format!("{url} answered {status} and is not a tollgate server: {first}"),
        };
    };
    let detail = replace_control_characters(&problem.detail);
    let mut message = match (status, token) {
        (StatusCode::UNAUTHORIZED, None) => format!(
            "{url} requires a token: {detail}\n\
             set one with --token or TOLLGATE_TOKEN; an admin creates them with `tollgate tokens create`, the first one \
             with `tollgate tokens create --role admin --data DIR` on the machine of the server"
        ),
        (StatusCode::UNAUTHORIZED, Some(token)) => format!(
            "{url} refused the token {token}: {detail}\n\
             `tollgate tokens list` shows an admin whether it was revoked or has expired"
        ),
        (StatusCode::FORBIDDEN, Some(token)) => format!("the token {token} may not do that: {detail}"),
        (StatusCode::SERVICE_UNAVAILABLE, _) => format!("{url} is unavailable: {detail}"),
        _ => detail,
    };
    if let Some(pointer) = problem.pointer.as_ref().filter(|pointer| !pointer.is_empty()) {
        let _ = write!(message, " (at {})", replace_control_characters(pointer));
    }
    // `detail` describes only the first mistake, so several mistakes are listed here.
    if problem.mistakes.len() > 1 {
        message = format!("{} mistakes:", problem.mistakes.len());
    }
    for Finding { line, column, problem, help } in problem.mistakes.iter().filter(|_| problem.mistakes.len() > 1) {
        let _ = write!(message, "\n{line}:{column}: {}", replace_control_characters(problem));
        if let Some(help) = help {
            let _ = write!(message, "; {}", replace_control_characters(help));
        }
    }
    if status == StatusCode::PRECONDITION_FAILED {
        message.push_str(&describe_last_change(&problem));
    }
    ErrorAnswer { status, message }
}

/// Describes a conflicting change by another author.
fn describe_last_change(problem: &ProblemDetails) -> String {
    let ProblemDetails { author, at_ms, current, diff, .. } = problem;
    let mut text = String::new();
    if let Some(author) = author {
        let _ = write!(text, "\nlast changed by {}", replace_control_characters(author));
        if let Some(at_ms) = at_ms {
            let _ = write!(text, " at {}", format_time(*at_ms));
        }
        if let Some(current) = current {
            let _ = write!(text, ", now version {current}");
        }
    }
    for line in diff.as_deref().unwrap_or_default().lines() {
        let _ = write!(text, "\n  {}", replace_control_characters(line));
    }
    text
}

/// Describes a failure to get an answer.
pub(super) fn describe_unreachable(client: &Client, error: &reqwest::Error) -> anyhow::Error {
    let url = client.url().as_str().trim_end_matches('/');
    // Uses the innermost cause, because the outer errors repeat the address.
    let mut reason: &dyn Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let reason = reason.to_string();
    if error.is_timeout() {
        return anyhow::anyhow!("no answer from {url} in time; the request may or may not have been carried out");
    }
    if reason.contains("CaUsedAsEndEntity") {
        return anyhow::anyhow!(
            "the certificate of {url} is a CA certificate; use it to sign a certificate for the server, as docs/operating.md shows"
        );
    }
    if reason.contains("certificate") {
        return anyhow::anyhow!(
            "the certificate of {url} is not trusted: {reason}; set its CA certificate with --ca FILE"
        );
    }
    if reason.contains("InvalidContentType") {
        return anyhow::anyhow!("{url} does not use TLS; its address probably begins with http://");
    }
    if error.is_connect() {
        return anyhow::anyhow!(
            "cannot reach {url}: {reason}; set the server with --server or TOLLGATE_SERVER, or start one with `tollgate serve`"
        );
    }
    let hint = if client.url().scheme() == "http" { "; if it uses TLS, its address begins with https://" } else { "" };
    anyhow::anyhow!("{url} closed the connection: {reason}; the request may or may not have been carried out{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_message(status: u16, token: Option<&str>, body: &str) -> String {
        let client = Client::new("http://127.0.0.1:1", None, None).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        let answer = ServerAnswer { status, body: body.into() };
        describe_error_answer(&client, token.map(display_token).as_deref(), &answer).to_string()
    }

    #[test]
    fn refusals_say_what_to_do() {
        let problem = r#"{"title":"Unauthorized","detail":"there is no token"}"#;
        assert!(error_message(401, None, problem).contains("set one with --token or TOLLGATE_TOKEN"));
        let text = error_message(401, Some("tg_3f9a_0123456789"), problem);
        assert!(text.contains("refused the token `3f9a`: there") && !text.contains("0123"), "{text}");
        assert!(!error_message(401, Some("hunter2"), problem).contains("hunter2"));
        let text = error_message(403, Some("tg_3f9a_0123456789"), r#"{"detail":"this call needs the role editor"}"#);
        assert_eq!(text, "the token `3f9a` may not do that: this call needs the role editor");
        let changed = r#"{"detail":"it was changed","current":4,"author":"ann","diff":"- limit: 1/s\n+ limit: 2/s\n"}"#;
        assert_eq!(
            error_message(412, None, changed),
            "it was changed\nlast changed by ann, now version 4\n  - limit: 1/s\n  + limit: 2/s"
        );
        let one = r#"{"line":1,"column":2,"problem":"p","help":"h"}"#;
        assert_eq!(error_message(422, None, &format!(r#"{{"detail":"p; h","mistakes":[{one}]}}"#)), "p; h");
        let several = format!(r#"{{"detail":"there are 2 mistakes; the first: p; h","mistakes":[{one},{one}]}}"#);
        assert_eq!(error_message(422, None, &several), "2 mistakes:\n1:2: p; h\n1:2: p; h");
        assert!(error_message(502, None, "<html>\nx").ends_with("and is not a tollgate server: <html>"));
    }
}
