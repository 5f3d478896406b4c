//! Descriptions of the server's operations: decisions, and pages about the server's state. Paths and summaries come
//! from `ops::OPERATIONS`.

use serde_json::{Map, Value, json};

use crate::http::bounds::{MAX_ATTRIBUTE_VALUES, MAX_BATCH};
use crate::ops::idempotency::MAX_KEY_BYTES;
use crate::ops::{OPERATIONS, Op, OperationSpec, ServerPage};

/// The algorithms of the rule language.
pub(super) const ALGORITHMS: [&str; 8] = [
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_window",
    "sliding_slices",
    "sliding_log",
    "interval_bucket",
    "concurrency",
];

/// Returns the schemas of requests and responses.
pub(super) fn operation_schemas() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    let wait = json!({"type": ["integer", "null"], "minimum": 0, "description": "Milliseconds; null if waiting does not help"});
    let one = json!([{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]);
    let outcome = json!({"type": "string", "enum": ["allow", "deny", "delay"]});
    let cost =
        json!({"type": "integer", "minimum": 0, "description": "The cost; by default the cost in the rule, or 1"});
    let receipt = json!({"type": "boolean", "description": "Whether to return a receipt for refunds"});
    let decision = json!({
        "type": "object",
        "required": ["allowed", "outcome", "rule", "standing", "retry_after_ms", "limits"],
        "properties": {
            "allowed": {"type": "boolean"},
            "outcome": outcome,
            "rule": {"type": ["string", "null"], "description": "The rule that decided; null for an inline limit"},
            "standing": {"type": "string", "enum": ["exact", "leased", "eventual", "fallback"]},
            "retry_after_ms": wait,
            "taken": count, "delay_ms": count,
            "counted": {"type": "boolean", "description": "False if no limit counted the request"},
            "observed": outcome, "shadow_refused": {"type": "boolean"}, "banned": {"type": "boolean"},
            "closed": {"type": "boolean", "description": "Refused by `on_fault: closed`, because the store did not answer"},
            "status": {"type": "integer", "description": "The status that the rule sets for refusals"},
            "message": {"type": "string"}, "drop": {"type": "boolean"}, "receipt": {"type": "string"},
            "replayed": {"type": "boolean", "description": "A stored reply to an earlier call with the same idempotency key"},
            "limits": {"type": "array", "items": {
                "type": "object", "required": ["limit", "remaining"],
                "properties": {
                    "rule": {"type": ["string", "null"]}, "limit": count, "remaining": count, "retry_after_ms": wait,
                    "reset_after_ms": wait, "shadow": {"type": "boolean"},
                },
            }},
        },
    });
    json!({
        "RequestByRules": {
            "type": "object", "additionalProperties": false, "required": ["domain"],
            "properties": {
                "domain": {"type": "string", "description": "The domain of the rules"},
                "attributes": {
                    "type": "object", "maxProperties": MAX_ATTRIBUTE_VALUES, "description": "The attributes of the request",
                    "additionalProperties": {"anyOf": [
                        {"type": "string"}, {"type": "integer"}, {"type": "boolean"},
                        {"type": "array", "items": {"anyOf": one}, "maxItems": MAX_ATTRIBUTE_VALUES},
                    ]},
                },
                "cost": cost, "receipt": receipt,
            },
            "example": {"domain": "api", "attributes": {"path": "/login", "client_ip": "192.0.2.1"}},
        },
        "RequestByInlineLimit": {
            "type": "object", "additionalProperties": false, "required": ["key", "limit"],
            "properties": {
                "key": {"type": "string", "description": "The key to count by"},
                "limit": {"type": ["string", "integer"], "minimum": 0, "description": "A rate, such as 10/s, 5/15m or 10k/day; a whole number for `concurrency`"},
                "burst": {"type": "integer", "minimum": 1, "description": "Burst size"},
                "algorithm": {"type": "string", "enum": ALGORITHMS},
                "cost": cost, "receipt": receipt,
            },
            "example": {"key": "alice", "limit": "10/s"},
        },
        "Request": {"anyOf": [schema_reference("RequestByInlineLimit"), schema_reference("RequestByRules")]},
        "Requests": {
            "description": "One request or a batch. The reply to a batch is a list in the same order, which has an error for each failed request.",
            "anyOf": [schema_reference("Request"), {"type": "array", "maxItems": MAX_BATCH, "items": schema_reference("Request")}],
        },
        "AcquireRequest": {
            "description": "A request, and the maximum time to wait for capacity.",
            "type": "object", "required": ["wait_ms"],
            "properties": {"wait_ms": {"type": "integer", "minimum": 0}},
            "example": {"key": "alice", "limit": "10/s", "wait_ms": 1000},
        },
        "Receipt": {
            "type": "object", "required": ["receipt"], "additionalProperties": false,
            "properties": {"receipt": {"type": "string", "description": "The receipt of a decision"}},
        },
        "Receipts": {"anyOf": [schema_reference("Receipt"), {"type": "array", "maxItems": MAX_BATCH, "items": schema_reference("Receipt")}]},
        "Commit": {
            "type": "object", "required": ["receipt", "cost"], "additionalProperties": false,
            "properties": {
                "receipt": {"type": "string", "description": "The receipt of a decision"},
                "cost": {"type": "integer", "minimum": 0, "description": "The actual cost"},
            },
        },
        "Commits": {"anyOf": [schema_reference("Commit"), {"type": "array", "maxItems": MAX_BATCH, "items": schema_reference("Commit")}]},
        "Decision": decision,
        "Decisions": {"anyOf": [
            schema_reference("Decision"), {"type": "array", "items": {"anyOf": [schema_reference("Decision"), schema_reference("Problem")]}},
        ]},
        "Enforcement": {
            "type": "object", "required": ["mode"], "additionalProperties": false,
            "properties": {"mode": {"type": "string", "enum": ["enforce", "observe"]}},
        },
        "EnforcementStatus": {
            "type": "object", "required": ["mode"],
            "properties": {
                "mode": {"type": "string", "enum": ["enforce", "observe"]},
                "fleet": {"type": "string", "enum": ["observe"], "description": "Present while the fleet is in observe mode"},
            },
        },
    })
}

/// Returns the OpenAPI descriptions of the paths of the operations.
pub(super) fn operation_paths() -> Value {
    let in_progress = json!({"description": "A request with this Idempotency-Key is in progress"});
    let reused = json!({"description": "This Idempotency-Key was used for another request"});
    let decision = json!({
        "200": describe_response("Allowed, or the results of a batch", "application/json", &schema_reference("Decisions")), "409": in_progress, "422": reused,
        "429": describe_response("Refused; a rule may set another status", "application/json", &schema_reference("Decision")),
    });
    let result = json!({
        "200": describe_response("The result, or a list of results", "application/json", &json!({"type": ["object", "array"]})),
        "409": in_progress, "422": reused,
    });
    let mut paths = Map::new();
    for spec in OPERATIONS {
        let (tag, body, responses) = match spec.op {
            Op::Decide(_) => ("decisions", Some("Requests"), decision.clone()),
            Op::Acquire => ("decisions", Some("AcquireRequest"), decision.clone()),
            Op::Commit => ("decisions", Some("Commits"), result.clone()),
            Op::Refund | Op::Renew => ("decisions", Some("Receipts"), result.clone()),
            Op::Reset | Op::Explain => ("decisions", Some("Requests"), result.clone()),
            Op::SetEnforcement => ("operations", Some("Enforcement"), page_responses(ServerPage::Enforcement)),
            Op::Page(page) => ("operations", None, page_responses(page)),
        };
        let mut call = json!({
            "tags": [tag], "operationId": operation_id(spec), "summary": spec.summary, "responses": responses,
        });
        if let Some(body) = body {
            call["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema_reference(body)}}});
        }
        if spec.keyed {
            call["parameters"] = json!([{
                "name": "Idempotency-Key", "in": "header", "required": false,
                "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_BYTES},
                "description": "For ten minutes, a repeated request with the same key gets the first response",
            }]);
        }
        let method = if body.is_some() { "post" } else { "get" };
        paths.entry(spec.path).or_insert_with(|| json!({}))[method] = call;
    }
    Value::Object(paths)
}

/// Returns a unique name: the path, with the prefix `set_` for the second operation on the same path.
fn operation_id(spec: &OperationSpec) -> String {
    let name = spec.path.trim_start_matches("/v1").trim_start_matches('/').replace(['-', '.'], "_");
    if spec.op == Op::SetEnforcement { format!("set_{name}") } else { name }
}

fn page_responses(page: ServerPage) -> Value {
    let text = || json!({"type": "string"});
    let (description, body) = match page {
        ServerPage::Enforcement => ("The mode", schema_reference("EnforcementStatus")),
        ServerPage::Health => ("The server runs", text()),
        ServerPage::Readiness => ("The server accepts requests, possibly without its store", text()),
        ServerPage::Metrics => ("The metrics", text()),
        ServerPage::TopKeys => ("The keys", schema_reference("TopKeys")),
        ServerPage::RulesStatus => ("The status", schema_reference("RulesStatus")),
        ServerPage::Peers => ("The servers", schema_reference("Peers")),
        ServerPage::ApiDescription => ("The description", json!({"type": "object"})),
    };
    let mut responses = json!({"200": describe_response(description, page.content_type(), &body)});
    if page == ServerPage::Readiness {
        responses["503"] = describe_response("The server is stopping", page.content_type(), &text());
    }
    responses
}

fn schema_reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn describe_response(description: &str, content_type: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {content_type: {"schema": schema}}})
}
