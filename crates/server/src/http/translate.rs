//! Messages to requests, and decisions to JSON.

use tollgate::{Nanos, Outcome, Retry};
use tollgate_engine::rules::Refusal;
use tollgate_engine::{Decision, Entry, LimitReport};

use super::problem::Problem;
use super::wire::{Item, ReceiptField};

/// What an item asks by.
#[derive(Debug)]
pub(super) enum Basis<'a> {
    /// The rules of a domain, with what is known about the request.
    Rules { domain: &'a str, entries: Vec<Entry<'a>> },
    /// A limit of its own.
    Sent { key: &'a str, limit: &'a str, burst: Option<u64>, algorithm: Option<&'a str> },
}

/// Sorts out which of the ways of asking an item is. `pointer` is its place in the body.
///
/// # Errors
/// When it is none of them, or several.
pub(super) fn basis<'a>(item: &'a Item<'a>, pointer: &str) -> Result<Basis<'a>, Problem> {
    let wrong = |detail: &str, member: &str| Problem::bad_request(detail).at(format!("{pointer}/{member}"));
    if let Some(ReceiptField::Given(_)) = &item.receipt {
        return Err(wrong("a receipt is to give back or to settle; here `receipt` is true or false", "receipt"));
    }
    match (&item.domain, &item.key) {
        (Some(_), Some(_)) => {
            Err(wrong("give either `domain` with `attributes` or `key` with `limit`, not both", "key"))
        }
        (None, None) => {
            let detail = "give either `domain` with `attributes`, to decide by rules, or `key` with `limit`, such as \
                          {\"key\":\"alice\",\"limit\":\"10/s\"}";
            Err(Problem::bad_request(detail).at(pointer))
        }
        (Some(domain), None) => {
            let stray = [
                ("limit", item.limit.is_some()),
                ("burst", item.burst.is_some()),
                ("algorithm", item.algorithm.is_some()),
            ];
            if let Some((member, _)) = stray.iter().find(|(_, given)| *given) {
                return Err(wrong(&format!("`{member}` belongs to `key`; with `domain` the rules say it"), member));
            }
            let pairs = item.attributes.iter().flat_map(|attributes| &attributes.0);
            let entries = pairs.map(|(name, value)| Entry::new(name.as_bytes(), value.as_bytes())).collect();
            Ok(Basis::Rules { domain, entries })
        }
        (None, Some(key)) => {
            if item.attributes.is_some() {
                return Err(wrong(
                    "`attributes` belong to `domain`; with `key` nothing else is looked at",
                    "attributes",
                ));
            }
            let Some(limit) = &item.limit else {
                return Err(wrong("a `key` needs a `limit`, such as \"10/s\" or \"5/15m\"", "limit"));
            };
            Ok(Basis::Sent { key, limit, burst: item.burst, algorithm: item.algorithm.as_deref() })
        }
    }
}

/// What is told beyond the decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tells {
    /// How much was taken.
    pub(super) taken: bool,
    /// A receipt.
    pub(super) receipt: bool,
}

/// Writes a decision as JSON.
pub(super) fn write_decision(out: &mut Vec<u8>, decision: &Decision<'_>, tells: Tells) {
    out.extend_from_slice(if decision.is_allowed() {
        b"{\"allowed\":true,\"outcome\":"
    } else {
        b"{\"allowed\":false,\"outcome\":"
    });
    out.extend_from_slice(word(decision.outcome()));
    out.extend_from_slice(b",\"rule\":");
    rule(out, decision.rule().unwrap_or_default());
    out.extend_from_slice(b",\"standing\":\"");
    out.extend_from_slice(decision.standing().as_str().as_bytes());
    out.extend_from_slice(b"\",\"retry_after_ms\":");
    retry(out, decision.retry().unwrap_or(Retry::NOW));
    if tells.taken {
        out.extend_from_slice(b",\"taken\":");
        number(out, decision.taken().get());
        if !decision.is_counted() {
            out.extend_from_slice(b",\"counted\":false");
        }
    }
    if let Outcome::Delay(wait) = decision.outcome() {
        out.extend_from_slice(b",\"delay_ms\":");
        number(out, wait.as_millis_ceil());
    }
    if let Some(observed) = decision.observed() {
        out.extend_from_slice(b",\"observed\":");
        out.extend_from_slice(word(observed));
    }
    if decision.is_shadow_refused() {
        out.extend_from_slice(b",\"shadow_refused\":true");
    }
    if let Some(refusal) = decision.refusal() {
        write_refusal(out, refusal);
    }
    if decision.is_banned() {
        out.extend_from_slice(b",\"banned\":true");
    }
    if decision.is_closed() {
        out.extend_from_slice(b",\"closed\":true");
    }
    out.extend_from_slice(b",\"limits\":[");
    for (place, limit) in decision.reports().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write_limit(out, &limit);
    }
    out.push(b']');
    if tells.receipt {
        out.extend_from_slice(b",\"receipt\":\"");
        // Its letters need no escaping.
        out.extend_from_slice(decision.receipt().to_string().as_bytes());
        out.push(b'"');
    }
    out.push(b'}');
}

/// How the rule wants its refusal to be told, for gateways that tell it.
fn write_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    if let Some(status) = refusal.status {
        out.extend_from_slice(b",\"status\":");
        number(out, status.into());
    }
    if let Some(message) = &refusal.message {
        out.extend_from_slice(b",\"message\":");
        rule(out, message);
    }
    if refusal.silent {
        out.extend_from_slice(b",\"drop\":true");
    }
}

fn write_limit(out: &mut Vec<u8>, limit: &LimitReport<'_>) {
    out.extend_from_slice(b"{\"rule\":");
    rule(out, limit.rule);
    out.extend_from_slice(b",\"limit\":");
    number(out, limit.report.limit);
    out.extend_from_slice(b",\"remaining\":");
    number(out, limit.report.remaining);
    out.extend_from_slice(b",\"retry_after_ms\":");
    retry(out, limit.report.retry);
    out.extend_from_slice(b",\"reset_after_ms\":");
    number(out, limit.report.reset.as_millis_ceil());
    if limit.shadow {
        out.extend_from_slice(b",\"shadow\":true");
    }
    out.push(b'}');
}

fn word(outcome: Outcome) -> &'static [u8] {
    match outcome {
        Outcome::Allow => b"\"allow\"",
        Outcome::Delay(_) => b"\"delay\"",
        Outcome::Deny(_) => b"\"deny\"",
    }
}

/// Milliseconds, rounded up; null where no wait helps.
fn retry(out: &mut Vec<u8>, retry: Retry) {
    match retry {
        Retry::After(wait) => number(out, millis(wait)),
        Retry::OnRelease | Retry::Never => out.extend_from_slice(b"null"),
    }
}

fn millis(wait: Nanos) -> u64 {
    wait.as_millis_ceil()
}

/// The name of a rule, null for a limit that came along with the request; or another text.
fn rule(out: &mut Vec<u8>, rule: &str) {
    if rule.is_empty() {
        return out.extend_from_slice(b"null");
    }
    let plain = rule.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
    if plain {
        out.push(b'"');
        out.extend_from_slice(rule.as_bytes());
        out.push(b'"');
    } else {
        // A text always serialises.
        let _ = serde_json::to_writer(out, rule);
    }
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire::Body;

    fn check(json: &str, expected: &str) {
        let Ok(Body::One(item)) = Body::parse(json.as_bytes()) else { panic!("{json} is an object") };
        let told = match basis(&item, "/3") {
            Ok(basis) => format!("{basis:?}"),
            Err(problem) => String::from_utf8(problem.to_json()).expect("text"),
        };
        assert!(told.contains(expected), "{json}\n{told}");
    }

    #[test]
    fn an_item_asks_by_rules_or_by_a_limit_of_its_own() {
        check(
            r#"{"domain":"api","attributes":{"a":"b","a":"c"}}"#,
            r#"Rules { domain: "api", entries: [a="b", a="c"] }"#,
        );
        check(r#"{"domain":"api"}"#, "entries: []");
        check(
            r#"{"key":"k","limit":"1/s","burst":7}"#,
            r#"Sent { key: "k", limit: "1/s", burst: Some(7), algorithm: None }"#,
        );
    }

    #[test]
    fn what_is_neither_is_told_with_what_would_be_right() {
        check(r#"{"receipt":"abc","domain":"d"}"#, "a receipt is to give back");
        check("{}", "give either `domain` with `attributes`");
        check(r#"{"domain":"a","key":"b"}"#, r#""pointer":"/3/key""#);
        check(r#"{"domain":"a","burst":1}"#, "`burst` belongs to `key`");
        check(r#"{"key":"a"}"#, "a `key` needs a `limit`");
        check(r#"{"key":"a","limit":"1/s","attributes":{}}"#, "`attributes` belong to `domain`");
    }

    #[test]
    fn names_and_waits_are_written_as_json() {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(written(&|out| rule(out, "per-client")), r#""per-client""#);
        assert_eq!(written(&|out| rule(out, "a\"\u{1}ü")), r#""a\"\u0001ü""#);
        assert_eq!(written(&|out| rule(out, "")), "null");
        assert_eq!(written(&|out| retry(out, Retry::After(Nanos::from_nanos(1)))), "1");
        assert_eq!(written(&|out| retry(out, Retry::Never)), "null");
    }
}
