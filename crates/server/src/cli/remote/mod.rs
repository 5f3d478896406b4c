//! The client side of commands that call a server: requests, answers and errors.

mod error;
pub(super) mod output;
mod progress;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::client::{Client, Secret};
pub(super) use error::ErrorAnswer;
use error::{describe_error_answer, describe_unreachable};
use output::OutputArgs;
pub(super) use progress::Progress;

/// Timeout of a request. It is longer than the sum of the server's own timeouts, so that the server's error arrives
/// first.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum size of an answer in bytes.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
/// Page size of lists. Servers return at most this number of items per page.
const PAGE_SIZE: usize = 1_000;

/// The server to call, and the token for it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerArgs {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "TOLLGATE_SERVER", global = true)]
    server: String,

    /// The token, if the server requires one; set it in the environment so that other users do not see it
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,

    /// Extra CA certificates (PEM) for the server
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA", global = true)]
    ca: Option<PathBuf>,
}

/// The comment and the expected version of a change.
#[derive(Clone, Debug, Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    comment: CommentArgs,

    /// Change nothing unless this is the current version
    #[arg(long, value_name = "VERSION")]
    pub(super) if_version: Option<i64>,
}

/// The comment of a change.
#[derive(Clone, Debug, Args)]
pub(super) struct CommentArgs {
    /// A comment for the history and the audit log
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub(super) comment: Option<String>,
}

/// A request to decide, peek at or explain.
#[derive(Clone, Debug, Args)]
pub(super) struct RequestArgs {
    /// The domain of the rules
    #[arg(value_name = "DOMAIN")]
    pub(super) domain: String,

    /// The attributes of the request, such as client_ip=192.0.2.1
    #[arg(value_name = "NAME=VALUE")]
    pub(super) attributes: Vec<String>,

    /// The cost of the request; by default the cost in each rule
    #[arg(long, value_name = "COST")]
    pub(super) cost: Option<u64>,
}

impl RequestArgs {
    /// Returns the attributes.
    ///
    /// # Errors
    /// Returns an error if an attribute has no name.
    pub(super) fn attributes(&self) -> anyhow::Result<Vec<(&str, &str)>> {
        let attributes = self.attributes.iter().map(|word| {
            let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
            pair.with_context(|| format!("`{word}` is not an attribute; write it like client_ip=192.0.2.1"))
        });
        attributes.collect()
    }

    /// Adds to an error about an unknown domain that the domain comes first, if an attribute is in its place.
    pub(super) fn with_hint(&self, error: anyhow::Error) -> anyhow::Error {
        let domain = &self.domain;
        if !domain.contains('=') || !error.to_string().contains("unknown domain") {
            return error;
        }
        anyhow::anyhow!("{error:#}; the domain comes first, then the attributes: DOMAIN {domain}")
    }

    /// Returns the JSON body of the request. A repeated attribute becomes an array of values.
    ///
    /// # Errors
    /// Returns an error if an attribute has no name.
    pub(super) fn to_json(&self) -> anyhow::Result<String> {
        let mut values: Map<String, Value> = Map::new();
        for (name, value) in self.attributes()? {
            let list = values.entry(name).or_insert_with(|| json!([]));
            list.as_array_mut().into_iter().for_each(|list| list.push(json!(value)));
        }
        let mut body = json!({"domain": self.domain, "attributes": values});
        if let Some(cost) = self.cost {
            body["cost"] = json!(cost);
        }
        Ok(body.to_string())
    }
}

/// A client for the server that a command calls.
pub(super) struct Remote {
    client: Client,
    runtime: Runtime,
    /// The part of the token that may be shown, if there is a token.
    token: Option<String>,
}

/// A successful answer, or an answer with status 429, which contains a decision.
pub(super) struct ServerAnswer {
    status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl ServerArgs {
    fn token(&self) -> Option<&str> {
        self.token.as_deref().map(str::trim).filter(|token| !token.is_empty())
    }

    /// Returns the part of the token that may be shown, if there is a token.
    pub(super) fn displayed_token(&self) -> Option<String> {
        self.token().map(error::display_token)
    }

    /// Returns a client of the server.
    ///
    /// # Errors
    /// Returns an error if the address, the token or the CA certificate file is invalid.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        if let Some(token) = self.token() {
            ensure!(token.chars().all(|char| char.is_ascii_graphic()), "invalid characters in the token");
        }
        Client::new(&self.server, self.token().map(Secret::new), self.ca.as_deref())
    }
}

impl Remote {
    pub(super) fn new(args: &ServerArgs) -> anyhow::Result<Self> {
        let client = args.client()?;
        if client.exposes_token() {
            let server = &args.server;
            writeln!(std::io::stderr(), "warning: the token is sent to {server} without encryption; use https")?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, runtime, token: args.displayed_token() })
    }

    /// Returns the address of the server.
    pub(super) fn url(&self) -> &str {
        self.client.url().as_str().trim_end_matches('/')
    }

    /// Returns a request builder with the token set.
    ///
    /// # Errors
    /// Returns an error if a segment of `path` is empty, `.` or `..`.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> anyhow::Result<RequestBuilder> {
        // `.` and `..` are resolved in URLs even if they are percent-encoded.
        if let Some(segment) = path.iter().find(|part| matches!(**part, "." | ".." | "")) {
            bail!(
                "`{segment}` cannot be part of a URL; a rule with the id `.` or `..` can only be changed with `tollgate rules apply`"
            );
        }
        Ok(self.client.request(method, path))
    }

    /// Sends a request and reads the whole answer. `doing` is shown during a long wait.
    ///
    /// # Errors
    /// Returns an [`ErrorAnswer`] if the server answers with an error status, and another error if the server cannot be
    /// reached.
    pub(super) fn send(&self, request: RequestBuilder, doing: &str) -> anyhow::Result<ServerAnswer> {
        let exchange = async {
            let mut response = request
                .timeout(REQUEST_TIMEOUT)
                .send()
                .await
                .map_err(|error| describe_unreachable(&self.client, &error))?;
            let status = response.status();
            let mut body = Vec::new();
            while let Some(chunk) =
                response.chunk().await.map_err(|error| describe_unreachable(&self.client, &error))?
            {
                body.extend_from_slice(&chunk);
                ensure!(body.len() <= MAX_RESPONSE_BYTES, "answer too large (maximum {MAX_RESPONSE_BYTES} bytes)");
            }
            Ok(ServerAnswer { status, body })
        };
        let answer = self.runtime.block_on(async { Progress::new(doing).show_during(exchange).await })?;
        match answer.status.is_success() || answer.status == StatusCode::TOO_MANY_REQUESTS {
            true => Ok(answer),
            false => Err(describe_error_answer(&self.client, self.token.as_deref(), &answer).into()),
        }
    }

    /// Sends a GET request.
    pub(super) fn get(&self, path: &[&str]) -> anyhow::Result<ServerAnswer> {
        self.send(self.request(Method::GET, path)?, "reading")
    }

    /// Sends a POST request with a JSON body.
    pub(super) fn post(&self, path: &[&str], body: String) -> anyhow::Result<ServerAnswer> {
        self.send(with_json(self.request(Method::POST, path)?, body), "waiting for an answer")
    }

    /// Gets a list page by page: at most `most` items, or the whole list if `most` is `None`.
    pub(super) fn get_list(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        most: Option<usize>,
        what: &str,
    ) -> anyhow::Result<ListAnswer> {
        let mut listed = ListAnswer { items: Vec::new(), next: None };
        loop {
            let left = most.map_or(PAGE_SIZE, |most| most.saturating_sub(listed.items.len()).min(PAGE_SIZE));
            let mut request = self.request(Method::GET, path)?.query(query).query(&[("limit", left)]);
            if let Some(after) = &listed.next {
                request = request.query(&[("after", after)]);
            }
            let doing = match listed.items.len() {
                0 => format!("reading {what}"),
                count => format!("reading {what}, {count} so far"),
            };
            let page: ListAnswer = self.send(request, &doing)?.parse()?;
            // An empty page ends the list even if it has a `next`, because following `next` could loop forever.
            let ended = page.next.is_none() || page.items.is_empty();
            listed.items.extend(page.items);
            listed.next = page.next;
            if ended || most.is_some_and(|most| listed.items.len() >= most) {
                return Ok(listed);
            }
        }
    }
}

/// A list from the server: one page, or several pages joined.
#[derive(Deserialize)]
pub(super) struct ListAnswer {
    pub(super) items: Vec<Value>,
    #[serde(default)]
    next: Option<String>,
}

const UNEXPECTED_ANSWER: &str = "unexpected answer; is the server a tollgate server of the same version?";

impl ListAnswer {
    /// Returns whether the list has more items.
    pub(super) fn has_more(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the list as one document.
    pub(super) fn to_json(&self) -> Value {
        match &self.next {
            Some(next) => json!({"items": self.items, "next": next}),
            None => json!({"items": self.items}),
        }
    }

    /// Parses the items.
    pub(super) fn parse<T: DeserializeOwned>(self) -> anyhow::Result<Vec<T>> {
        self.items.into_iter().map(serde_json::from_value).collect::<Result<_, _>>().context(UNEXPECTED_ANSWER)
    }

    /// Prints the list, as JSON or as text.
    pub(super) fn print<T: DeserializeOwned>(
        self,
        output: OutputArgs,
        text: impl FnOnce(Vec<T>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if output.json { output::print_json(&self.to_json()) } else { text(self.parse()?) }
    }
}

impl ServerAnswer {
    /// Parses the answer.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_slice(&self.body).context(UNEXPECTED_ANSWER)
    }

    /// Prints the answer, as JSON or as text.
    pub(super) fn print<T: DeserializeOwned>(
        &self,
        output: OutputArgs,
        text: impl FnOnce(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if output.json { output::print_json(&self.parse::<Value>()?) } else { text(self.parse()?) }
    }

    pub(super) fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Adds a JSON body to a request.
pub(super) fn with_json(request: RequestBuilder, body: String) -> RequestBuilder {
    request.header("content-type", "application/json").body(body)
}

/// Adds the expected version and the comment of a change to a request.
pub(super) fn with_change(request: RequestBuilder, change: &ChangeArgs) -> RequestBuilder {
    let request = match change.if_version {
        Some(version) => request.header("if-match", format!("\"{version}\"")),
        None => request,
    };
    with_comment(request, &change.comment)
}

/// Adds a comment to a request.
pub(super) fn with_comment(request: RequestBuilder, args: &CommentArgs) -> RequestBuilder {
    match &args.comment {
        Some(comment) => request.header("tollgate-comment", encode_for_header(comment)),
        None => request,
    }
}

/// Percent-encodes a string for a header, because headers must be ASCII without control characters.
fn encode_for_header(text: &str) -> String {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_encoded_for_headers() {
        assert_eq!(encode_for_header("100% für\nuns ~"), "100%25 f%C3%BCr%0Auns ~");
    }

    #[test]
    fn repeated_attributes_have_several_values() {
        let request = |words: &[&str]| RequestArgs {
            domain: "api".into(),
            attributes: words.iter().map(|word| (*word).to_owned()).collect(),
            cost: Some(3),
        };
        let body = request(&["role=a", "role=b", "path=/x=y"]).to_json().unwrap();
        assert_eq!(body, r#"{"attributes":{"path":["/x=y"],"role":["a","b"]},"cost":3,"domain":"api"}"#);
        assert!(request(&["=x"]).attributes().is_err() && request(&["x"]).attributes().is_err());
    }
}
