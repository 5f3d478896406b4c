//! Forward-auth: a reverse proxy calls this endpoint before it forwards a client request.
//!
//! The endpoint is `ANY /v1/forward-auth/{domain}[/{rest}]`. With `rest`, the call itself is the client request, with
//! the path `/{rest}` (Envoy's `ext_authz` works this way). Without `rest`, the headers `X-Forwarded-Method`, `-Uri`,
//! `-Host` and `-Proto` describe the client request. The query may then contain two options: `refuse` (the status of a
//! refusal) and `token` (the proxy's token).
//!
//! The proxy copies the client's headers into the call. `Origin` and `Authorization` therefore describe the client and
//! do not authenticate the proxy. The proxy sends its own token in `Tollgate-Token` or `?token=`.

mod attributes;
pub(crate) mod path;

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tollgate::Outcome;
use tollgate_engine::{Attribute, Store};
use tollgate_http::Styles;
use tollgate_http::headers::{self, LimitStatus};

use super::body::ReplyBody;
use super::call::{NO_DECISION, NO_REPLY, decision_status};
use super::problem::Problem;
use super::serve::HttpResponse;
use crate::app::App;
use crate::control::auth::Access;
use crate::net::protocol::Protocol;
use crate::ops::CHECK_SPEC;
use crate::ops::input::{Input, LimitsInput, RequestInput};
use crate::ops::run::{Call, Caller, run};
use crate::ops::view::{DecisionView, Output};
use attributes::ClientRequest;

const FORWARD_AUTH_PREFIX: &str = "/v1/forward-auth/";

/// The header with the proxy's token.
pub(super) const TOKEN_HEADER: HeaderName = HeaderName::from_static("tollgate-token");

/// The header with the status that the rule sets for a refusal. The option `refuse` replaces the status of the response
/// but not this header.
const STATUS_HEADER: HeaderName = HeaderName::from_static("tollgate-status");

/// The parsed target of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForwardAuthTarget<'a> {
    domain: Cow<'a, str>,
    /// The client's path with its leading slash, if the call itself is the client request.
    rest: Option<&'a str>,
    /// The status to send for a refusal.
    refuse: Option<StatusCode>,
    /// The proxy's token.
    pub(super) token: Option<Cow<'a, str>>,
}

impl<'a> ForwardAuthTarget<'a> {
    /// Parses the target of a call. Returns `None` for other endpoints.
    pub(super) fn parse(uri: &'a Uri) -> Option<Result<Self, Problem>> {
        uri.path().strip_prefix(FORWARD_AUTH_PREFIX).map(|path| Self::parse_path_and_query(path, uri.query()))
    }

    fn parse_path_and_query(path: &'a str, query: Option<&'a str>) -> Result<Self, Problem> {
        let (domain, rest) = match path.find('/') {
            Some(slash) => (&path[..slash], Some(&path[slash..])),
            None => (path, None),
        };
        let decoded = |text: &'a str, name: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map_err(|_| Problem::bad_request(format!("the {name} is not UTF-8")))
        };
        let mut target = Self { domain: decoded(domain, "domain")?, rest, refuse: None, token: None };
        // With `rest`, the query belongs to the client request.
        let query = query.filter(|query| rest.is_none() && !query.is_empty());
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "refuse" => target.refuse = Some(parse_refusal_status(value)?),
                "token" => target.token = Some(decoded(value, "token")?),
                _ => {
                    let detail = format!("unknown parameter `{name}`; available: refuse, token");
                    return Err(Problem::bad_request(detail));
                }
            }
        }
        Ok(target)
    }
}

fn parse_refusal_status(text: &str) -> Result<StatusCode, Problem> {
    let status = text.parse().ok().filter(|status| (400..=599).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| Problem::bad_request(format!("`refuse={text}` is not a status from 400 to 599")))
}

/// Decides the client request that a call describes. The response to a delayed request is sent after the delay.
///
/// # Errors
/// Returns a problem if the call does not describe a client request, or if the check fails, for example because the
/// domain is unknown.
pub(super) async fn answer<S: Store>(
    app: &App<S>,
    access: &Access,
    target: &ForwardAuthTarget<'_>,
    head: &Parts,
    peer: Option<IpAddr>,
) -> Result<HttpResponse, Problem> {
    let original = ClientRequest { head, client_path: target.rest, peer, client: &app.client };
    let rules = app.engine.rules();
    let names = rules.attributes(target.domain.as_bytes()).unwrap_or_default();
    let values = original.read_attributes(names)?;
    let attributes = values.iter().map(|(name, value)| Attribute::new(*name, &**value)).collect();
    let limits = LimitsInput::Rules { domain: target.domain.as_bytes(), attributes };
    let calls = &mut [Call::new(Ok(Input::Request(RequestInput::new(limits, None))))];
    let mut answer = None;
    let format_explanation = ToString::to_string;
    let caller = Caller { protocol: Protocol::Forward, access, is_full: None, format_explanation };
    run(app, caller, CHECK_SPEC, calls, |reply| {
        answer = Some(match reply.result {
            Ok(Output::Decision(decision)) => Ok((decision_response(decision, target), decision.outcome)),
            Ok(_) => Err(Problem::internal_error("call failed", &NO_DECISION)),
            Err(error) => Err(Problem::from_op_error(error, "")),
        });
    })
    .await;
    let (answer, outcome) = answer.unwrap_or_else(|| Err(Problem::internal_error("call failed", &NO_REPLY)))?;
    if let Outcome::Delay(wait) = outcome {
        // Nothing is refunded if the proxy stops waiting, because a proxy that fails open forwards the request anyway.
        tokio::time::sleep(wait.into()).await;
    }
    Ok(answer)
}

fn decision_response(decision: &DecisionView<'_>, target: &ForwardAuthTarget<'_>) -> HttpResponse {
    let mut answer = Response::new(ReplyBody::default());
    if !decision.is_allowed() {
        let refusal = decision_status(decision);
        answer = Response::new(ReplyBody::from(refusal_body(decision, refusal)));
        *answer.status_mut() = match target.refuse {
            Some(status) => status,
            // Envoy treats a 5xx status as a failed check, and lets the request pass if Envoy is configured to fail
            // open.
            None if target.rest.is_some() && refusal.is_server_error() => StatusCode::TOO_MANY_REQUESTS,
            None => refusal,
        };
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(STATUS_HEADER, HeaderValue::from(refusal.as_u16()));
    }
    let limits = decision.limits().filter(|limit| !limit.shadow).map(LimitStatus::from);
    headers::add(answer.headers_mut(), Styles::IETF, decision.retry(), limits);
    answer
}

/// Returns the body of a refusal, which the proxy sends to the client.
fn refusal_body(decision: &DecisionView<'_>, status: StatusCode) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct RefusalBody<'a> {
        r#type: &'static str,
        title: &'static str,
        status: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        violated_policies: Vec<&'a str>,
    }
    let body = RefusalBody {
        r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Too many requests",
        status: status.as_u16(),
        detail: decision.message(),
        violated_policies: decision.rule().into_iter().collect(),
    };
    // Serialising a struct of numbers and strings cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_and_describe(target: &str) -> Option<Result<String, String>> {
        let uri: Uri = target.parse().expect("a target");
        let read = |target: ForwardAuthTarget<'_>| {
            let ForwardAuthTarget { domain, rest, refuse, token } = target;
            format!("{domain} {rest:?} {refuse:?} {token:?}")
        };
        Some(ForwardAuthTarget::parse(&uri)?.map(read).map_err(|problem| problem.detail().to_owned()))
    }

    #[test]
    fn target_names_the_domain_and_the_options_of_the_proxy() {
        for (target, expected) in [
            ("/v1/forward-auth/api", "api None None None"),
            ("/v1/forward-auth/a%2Fb?refuse=403&token=t%2B", "a/b None Some(403) Some(\"t+\")"),
            ("/v1/forward-auth/api/", "api Some(\"/\") None None"),
            // With `rest`, the query comes from the client, and the client must not choose the status.
            ("/v1/forward-auth/api/a/../b?refuse=200&x", "api Some(\"/a/../b\") None None"),
        ] {
            assert_eq!(parse_and_describe(target), Some(Ok(expected.into())), "{target}");
        }
        assert_eq!(parse_and_describe("/v1/forward-auth"), None);
        assert_eq!(parse_and_describe("/v1/check"), None);
    }

    #[test]
    fn wrong_options_are_reported_with_their_value() {
        for (query, expected) in [
            ("refuse=200", "`refuse=200` is not a status from 400 to 599"),
            ("refuse=", "`refuse=` is not a status"),
            ("refused=403", "unknown parameter `refused`; available: refuse, token"),
            ("token=%ff", "the token is not UTF-8"),
        ] {
            let error =
                parse_and_describe(&format!("/v1/forward-auth/api?{query}")).and_then(Result::err).expect(query);
            assert!(error.contains(expected), "{query}: {error}");
        }
    }
}
