//! Converts parsed JSON items to the inputs of operations.

use tollgate::core::Cost;
use tollgate_engine::rules::LimitText;
use tollgate_engine::{Attribute, Engine, Store};

use super::wire::{ReceiptField, WireRequest};
use crate::ops::Op;
use crate::ops::error::OpError;
use crate::ops::inline_limit;
use crate::ops::input::{self, Input, LimitsInput, RequestInput};

/// Converts an item to the input of an operation.
///
/// # Errors
/// Returns an error if a required field is missing, or if a field is invalid or not allowed for the operation.
pub(super) fn to_input<'a, S: Store>(
    engine: &Engine<S>,
    op: Op,
    item: &'a WireRequest<'a>,
) -> Result<Input<'a>, OpError> {
    match op {
        Op::Refund | Op::Renew | Op::Commit => {
            let receipt = parse_receipt(item)?;
            check_settlement_fields(op, item)?;
            Ok(Input::Receipt(receipt, item.cost.map(Cost::new)))
        }
        Op::Acquire => {
            let wait = input::parse_wait(item.wait_ms)?;
            Ok(Input::Request(RequestInput { wait, ..parse_request(engine, item)? }))
        }
        Op::Decide(_) | Op::Reset | Op::Explain if item.wait_ms.is_some() => {
            Err(OpError::invalid("wait_ms", "only /v1/acquire waits; remove `wait_ms`"))
        }
        Op::Decide(_) | Op::Reset | Op::Explain => Ok(Input::Request(parse_request(engine, item)?)),
        Op::SetEnforcement | Op::Page(_) => Ok(Input::None),
    }
}

/// Refuses the fields that do not belong to a settlement. If these fields were ignored, a refund with a cost would
/// return more than the caller expects.
fn check_settlement_fields(op: Op, item: &WireRequest<'_>) -> Result<(), OpError> {
    let WireRequest { domain, attributes, cost, key, limit, burst, algorithm, wait_ms, receipt: _ } = item;
    if cost.is_some() && op != Op::Commit {
        return Err(OpError::invalid(
            "cost",
            "only a commit settles at another cost; remove `cost`, or use /v1/commit",
        ));
    }
    let fields = [
        ("domain", domain.is_some()),
        ("attributes", attributes.is_some()),
        ("key", key.is_some()),
        ("limit", limit.is_some()),
        ("burst", burst.is_some()),
        ("algorithm", algorithm.is_some()),
        ("wait_ms", wait_ms.is_some()),
    ];
    match fields.into_iter().find(|(_, is_given)| *is_given) {
        Some((field, _)) => {
            Err(OpError::invalid(field, format!("a settlement takes only a receipt; remove `{field}`")))
        }
        None => Ok(()),
    }
}

fn parse_receipt(item: &WireRequest<'_>) -> Result<tollgate_engine::Receipt, OpError> {
    match &item.receipt {
        Some(ReceiptField::Given(text)) => input::parse_receipt(text.as_bytes()),
        Some(ReceiptField::Wanted(_)) | None => {
            let detail = "`receipt` must be the receipt of an earlier decision requested with \"receipt\":true";
            Err(OpError::invalid("receipt", detail))
        }
    }
}

fn parse_request<'a, S: Store>(engine: &Engine<S>, item: &'a WireRequest<'a>) -> Result<RequestInput<'a>, OpError> {
    let receipt = match &item.receipt {
        Some(ReceiptField::Given(_)) => {
            let detail = "`receipt` must be true or false here; send a receipt to /v1/commit, /v1/refund or /v1/renew";
            return Err(OpError::invalid("receipt", detail));
        }
        Some(ReceiptField::Wanted(wanted)) => *wanted,
        None => false,
    };
    let limits = match (&item.domain, &item.key) {
        (Some(_), Some(_)) => {
            let detail = "give either `domain` with `attributes` or `key` with `limit`, not both";
            return Err(OpError::invalid("key", detail));
        }
        (None, None) => {
            let detail = "give either `domain` with `attributes`, to decide by rules, or `key` with `limit`, such as \
                          {\"key\":\"alice\",\"limit\":\"10/s\"}";
            return Err(OpError::invalid("", detail));
        }
        (Some(domain), None) => {
            let fields = [
                ("limit", item.limit.is_some()),
                ("burst", item.burst.is_some()),
                ("algorithm", item.algorithm.is_some()),
            ];
            if let Some((field, _)) = fields.into_iter().find(|(_, given)| *given) {
                let detail = format!("`{field}` belongs to `key`; with `domain` the rules decide");
                return Err(OpError::invalid(field, detail));
            }
            let pairs = item.attributes.iter().flat_map(|attributes| &attributes.0);
            let attributes = pairs.map(|(name, value)| Attribute::new(name.as_bytes(), value.as_bytes())).collect();
            LimitsInput::Rules { domain: domain.as_bytes(), attributes }
        }
        (None, Some(_)) if item.attributes.is_some() => {
            let detail = "`attributes` belong to `domain`; with `key` only the inline limit decides";
            return Err(OpError::invalid("attributes", detail));
        }
        (None, Some(key)) => {
            let Some(limit) = &item.limit else {
                return Err(OpError::invalid("limit", "a `key` needs a `limit`, such as \"10/s\" or \"5/15m\""));
            };
            let text = LimitText { limit, burst: item.burst, algorithm: item.algorithm.as_deref() };
            LimitsInput::Inline { key: key.as_bytes(), limits: inline_limit::resolve_limit(engine, &text)? }
        }
    };
    Ok(RequestInput { receipt, ..RequestInput::new(limits, item.cost.map(Cost::new)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire::Body;
    use crate::ops::Verb;
    use tollgate_engine::MemoryStore;

    fn assert_input(json: &str, expected: &str) {
        let Ok(Body::One(item)) = Body::parse(json.as_bytes()) else { panic!("{json} is an object") };
        let engine = Engine::new(MemoryStore::new(10).expect("a table")).expect("an engine");
        let result = format!("{:?}", to_input(&engine, Op::Decide(Verb::Check), &item)).replace('\\', "");
        assert!(result.contains(expected), "{json}\n{result}");
    }

    #[test]
    fn item_is_decided_by_rules_or_an_inline_limit() {
        assert_input(r#"{"domain":"api","attributes":{"a":"b","a":"c"}}"#, r#"attributes: [a="b", a="c"]"#);
        assert_input(r#"{"domain":"api"}"#, "attributes: []");
        assert_input(r#"{"key":"k","limit":"1/s","burst":7}"#, "Inline { key: [107]");
        assert_input(r#"{"key":"k","limit":"1/s","receipt":true}"#, "receipt: true");
    }

    #[test]
    fn wrong_items_are_reported_with_the_field_and_a_correction() {
        assert_input(r#"{"receipt":"abc","domain":"d"}"#, "send a receipt to /v1/commit");
        assert_input("{}", "give either `domain` with `attributes`");
        assert_input(r#"{"domain":"a","key":"b"}"#, r#"field: Some("key")"#);
        assert_input(r#"{"domain":"a","burst":1}"#, "`burst` belongs to `key`");
        assert_input(r#"{"domain":"a","wait_ms":1}"#, "only /v1/acquire waits");
        assert_input(r#"{"key":"a"}"#, "a `key` needs a `limit`");
        assert_input(r#"{"key":"a","limit":"1/s","attributes":{}}"#, "`attributes` belong to `domain`");
    }
}
