//! A server that is asked by a command: sent to, waited for, and its refusals told so that one knows what to do.

mod failure;
pub(super) mod show;
mod waiting;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::config::Secret;
use crate::config::remote::{Change, ServerArgs};
use crate::percent;
pub(super) use failure::Refused;
use failure::{refused, unreachable};
pub(super) use waiting::Waiting;

/// How long one answer is waited for; applying a hundred thousand rules takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest answer that is read.
const MAX_ANSWER: usize = 256 << 20;
/// How much of a list is asked for at a time; the most that is given.
const PAGE: usize = 1_000;

/// A server.
pub(super) struct Remote {
    client: Client,
    runtime: Runtime,
    /// What may be shown of the token, if there is one.
    token: Option<String>,
}

/// What a server answered, if it did what it was asked to.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl Remote {
    pub(super) fn new(args: &ServerArgs) -> anyhow::Result<Self> {
        let token = args.token.as_deref().map(str::trim).filter(|token| !token.is_empty());
        if let Some(token) = token {
            ensure!(
                token.chars().all(|letter| letter.is_ascii_graphic()),
                "the token has characters that no token has"
            );
        }
        let client = Client::new(&args.server, token.map(Secret::new), args.ca.as_deref())?;
        if client.shows_its_token() {
            writeln!(
                std::io::stderr(),
                "warning: everybody on the way to {} can read the token; use https",
                args.server
            )?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, runtime, token: token.map(failure::shown) })
    }

    /// Its address.
    pub(super) fn url(&self) -> &str {
        self.client.url().as_str().trim_end_matches('/')
    }

    /// A request to be filled in.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> anyhow::Result<RequestBuilder> {
        // Addresses have no such steps, however they are written.
        if let Some(step) = path.iter().find(|part| matches!(**part, "." | ".." | "")) {
            bail!("`{step}` cannot be a part of an address; `tollgate rules apply` takes rules with any id");
        }
        Ok(self.client.request(method, path))
    }

    /// Sends a request and reads all of the answer. `doing` is shown to whoever waits for long.
    ///
    /// # Errors
    /// [`Refused`] if the server says no, and anything else if it could not be asked.
    pub(super) fn send(&self, request: RequestBuilder, doing: &str) -> anyhow::Result<Answer> {
        let answer = self.runtime.block_on(async {
            let waiting = Waiting::new(doing);
            let exchange = async {
                let mut response =
                    request.timeout(PATIENCE).send().await.map_err(|error| unreachable(&self.client, &error))?;
                let status = response.status();
                let mut body = Vec::new();
                while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(&self.client, &error))? {
                    body.extend_from_slice(&chunk);
                    ensure!(body.len() <= MAX_ANSWER, "the answer has more than {MAX_ANSWER} bytes");
                }
                Ok(Answer { status, body })
            };
            waiting.during(exchange).await
        })?;
        match answer.status.is_success() || answer.status == StatusCode::TOO_MANY_REQUESTS {
            true => Ok(answer),
            false => Err(refused(&self.client, self.token.as_deref(), &answer).into()),
        }
    }

    /// A document.
    pub(super) fn get(&self, path: &[&str], doing: &str) -> anyhow::Result<Answer> {
        self.send(self.request(Method::GET, path)?, doing)
    }

    /// A list, page by page, to its end or to `most` items.
    pub(super) fn list(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        most: Option<usize>,
        what: &str,
    ) -> anyhow::Result<Listed> {
        let mut listed = Listed { items: Vec::new(), next: None };
        loop {
            let left = most.map_or(PAGE, |most| most.saturating_sub(listed.items.len()).min(PAGE));
            let mut request = self.request(Method::GET, path)?.query(query).query(&[("limit", left)]);
            if let Some(after) = &listed.next {
                request = request.query(&[("after", after)]);
            }
            let doing = match listed.items.len() {
                0 => format!("reading {what}"),
                count => format!("reading {what}, {count} so far"),
            };
            let page: Listed = self.send(request, &doing)?.parse()?;
            // A page without items and with a next one would go on for ever.
            let ended = page.next.is_none() || page.items.is_empty();
            listed.items.extend(page.items);
            listed.next = page.next;
            if ended || most.is_some_and(|most| listed.items.len() >= most) {
                return Ok(listed);
            }
        }
    }
}

/// A list as it was sent, or several pages of it.
#[derive(Deserialize)]
pub(super) struct Listed {
    pub(super) items: Vec<Value>,
    #[serde(default)]
    next: Option<String>,
}

impl Listed {
    /// Whether there is more of it.
    pub(super) fn is_cut(&self) -> bool {
        self.next.is_some()
    }

    /// As one document.
    pub(super) fn to_json(&self) -> Value {
        match &self.next {
            Some(next) => json!({"items": self.items, "next": next}),
            None => json!({"items": self.items}),
        }
    }

    /// What the items are.
    pub(super) fn parse<T: DeserializeOwned>(self) -> anyhow::Result<Vec<T>> {
        let items = self.items.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
        items.context("the server sends what this program does not know; are they of the same version?")
    }
}

impl Answer {
    /// What was sent.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let body = serde_json::from_slice(&self.body);
        body.context("the server sends what this program does not know; is it a tollgate of the same version?")
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A change as it is sent: on what condition, and what for.
pub(super) fn with_change(request: RequestBuilder, change: &Change) -> RequestBuilder {
    let request = match change.if_version {
        Some(version) => request.header("if-match", format!("\"{version}\"")),
        None => request,
    };
    with_comment(request, change.comment.as_deref())
}

/// What a change is for, as it is sent.
pub(super) fn with_comment(request: RequestBuilder, comment: Option<&str>) -> RequestBuilder {
    match comment {
        Some(comment) => request.header("tollgate-comment", in_header(comment)),
        None => request,
    }
}

/// Headers have ASCII only, and the percent sign begins what had to be written otherwise.
fn in_header(text: &str) -> String {
    percent::encode(text.as_bytes(), |byte| matches!(byte, b' '..=b'~') && byte != b'%')
}

/// Attributes as they are given on the command line.
pub(super) fn attributes(words: &[String]) -> anyhow::Result<Vec<(&str, &str)>> {
    let attributes = words.iter().map(|word| {
        let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
        pair.with_context(|| format!("`{word}` is no attribute; write it like client_ip=192.0.2.1"))
    });
    attributes.collect()
}

/// The body of a question about a request. An attribute that is given several times has several values.
pub(super) fn question(domain: &str, attributes: &[(&str, &str)], cost: Option<u64>) -> String {
    let mut values: serde_json::Map<String, Value> = serde_json::Map::new();
    for (name, value) in attributes {
        let list = values.entry(*name).or_insert_with(|| json!([]));
        list.as_array_mut().into_iter().for_each(|list| list.push(json!(value)));
    }
    let mut body = json!({"domain": domain, "attributes": values});
    if let Some(cost) = cost {
        body["cost"] = json!(cost);
    }
    body.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_survive_a_header() {
        assert_eq!(in_header("100% für\nuns ~"), "100%25 f%C3%BCr%0Auns ~");
    }

    #[test]
    fn attributes_given_twice_have_two_values() {
        let words = ["role=a", "role=b", "path=/x=y"].map(String::from);
        let body = question("api", &attributes(&words).unwrap(), Some(3));
        assert_eq!(body, r#"{"attributes":{"path":["/x=y"],"role":["a","b"]},"cost":3,"domain":"api"}"#);
        assert!(attributes(&["=x".into()]).is_err() && attributes(&["x".into()]).is_err());
    }
}
