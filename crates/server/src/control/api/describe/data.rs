//! The calls that decide, and those that report the state of the server.

use serde_json::{Map, Value, json};

use crate::ops::idempotency::MAX_KEY;
use crate::ops::{Op, TABLE};

/// Returns the schemas of these calls.
pub(super) fn schemas() -> Value {
    let whole = json!({"type": "integer", "minimum": 0});
    let wait = json!({"type": ["integer", "null"], "minimum": 0, "description": "Milliseconds; null if waiting does not help"});
    let one = json!([{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]);
    let outcome = json!({"type": "string", "enum": ["allow", "deny", "delay"]});
    let cost =
        json!({"type": "integer", "minimum": 0, "description": "The cost; by default 1, or what the rule specifies"});
    let receipt = json!({"type": "boolean", "description": "Whether to return a receipt for refunds"});
    json!({
        "ByRules": {
            "type": "object", "additionalProperties": false, "required": ["domain"],
            "properties": {
                "domain": {"type": "string", "description": "The domain of the rules"},
                "attributes": {
                    "type": "object", "maxProperties": 64, "description": "The attributes of the request",
                    "additionalProperties": {"anyOf": [
                        {"type": "string"}, {"type": "integer"}, {"type": "boolean"},
                        {"type": "array", "items": {"anyOf": one}, "maxItems": 64},
                    ]},
                },
                "cost": cost, "receipt": receipt,
            },
            "example": {"domain": "api", "attributes": {"path": "/login", "client_ip": "192.0.2.1"}},
        },
        "BySentLimit": {
            "type": "object", "additionalProperties": false, "required": ["key", "limit"],
            "properties": {
                "key": {"type": "string", "description": "The key to count by"},
                "limit": {"type": "string", "description": "A rate, such as 10/s, 5/15m or 10k/day; a whole number for `concurrency`"},
                "burst": {"type": "integer", "minimum": 1},
                "algorithm": {"type": "string", "enum": [
                    "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "interval_bucket", "concurrency",
                ]},
                "cost": cost, "receipt": receipt,
            },
            "example": {"key": "alice", "limit": "10/s"},
        },
        "Ask": {"anyOf": [{"$ref": "#/components/schemas/BySentLimit"}, {"$ref": "#/components/schemas/ByRules"}]},
        "Asks": {
            "description": "One request, or a batch, which is answered with a list that has errors in their positions.",
            "anyOf": [
                {"$ref": "#/components/schemas/Ask"},
                {"type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/Ask"}},
            ],
        },
        "Waiting": {
            "description": "A request, and how long to wait for it.",
            "type": "object", "required": ["wait_ms"],
            "properties": {"wait_ms": {"type": "integer", "minimum": 0}},
            "example": {"key": "alice", "limit": "10/s", "wait_ms": 1000},
        },
        "Receipt": {
            "type": "object", "required": ["receipt"], "additionalProperties": false,
            "properties": {
                "receipt": {"type": "string", "description": "The receipt of a decision"},
                "cost": {"type": "integer", "minimum": 0, "description": "For a commit: the actual cost"},
            },
        },
        "Receipts": {"anyOf": [
            {"$ref": "#/components/schemas/Receipt"},
            {"type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/Receipt"}},
        ]},
        "Decision": {
            "type": "object",
            "required": ["allowed", "outcome", "rule", "standing", "retry_after_ms", "limits"],
            "properties": {
                "allowed": {"type": "boolean"},
                "outcome": outcome,
                "rule": {"type": ["string", "null"], "description": "The rule that decided; null for an inline limit"},
                "standing": {"type": "string", "enum": ["exact", "fallback"]},
                "retry_after_ms": wait,
                "taken": whole, "delay_ms": whole,
                "counted": {"type": "boolean", "description": "False if no limit counted the request"},
                "observed": outcome, "shadow_refused": {"type": "boolean"}, "banned": {"type": "boolean"},
                "message": {"type": "string"}, "drop": {"type": "boolean"}, "receipt": {"type": "string"},
                "limits": {"type": "array", "items": {
                    "type": "object", "required": ["limit", "remaining"],
                    "properties": {
                        "rule": {"type": ["string", "null"]}, "limit": whole, "remaining": whole, "retry_after_ms": wait,
                        "reset_after_ms": wait, "shadow": {"type": "boolean"},
                    },
                }},
            },
        },
        "Decisions": {"anyOf": [
            {"$ref": "#/components/schemas/Decision"},
            {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/Decision"}, {"$ref": "#/components/schemas/Problem"}]}},
        ]},
        "Enforcement": {
            "type": "object", "required": ["mode"], "additionalProperties": false,
            "properties": {"mode": {"type": "string", "enum": ["enforce", "observe"]}},
        },
    })
}

/// Returns the paths of these calls.
pub(super) fn paths() -> Value {
    let mut paths = Map::new();
    let decided = json!({
        "200": response("Allowed, or a batch", &schema("Decisions")),
        "409": {"description": "A request with this Idempotency-Key is in progress"},
        "422": {"description": "This Idempotency-Key was used for another request"},
        "429": response("Refused; a rule may set another status", &schema("Decision")),
    });
    let done = json!({
        "200": response("The result, or a list of results", &json!({"type": ["object", "array"]})),
        "409": decided["409"], "422": decided["422"],
    });
    for spec in TABLE {
        let (body, responses) = match spec.op {
            Op::Decide(_) => ("Asks", &decided),
            Op::Acquire => ("Waiting", &decided),
            Op::Commit | Op::Refund | Op::Renew => ("Receipts", &done),
            Op::Reset | Op::Explain => ("Asks", &done),
            Op::SetEnforcement | Op::Page(_) => continue,
        };
        let mut call = call("decisions", spec.path.trim_start_matches("/v1/"), spec.summary, Some(body), responses);
        if spec.keyed {
            call["parameters"] = json!([{
                "name": "Idempotency-Key", "in": "header", "required": false,
                "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
                "description": "A repeated request with the same key gets the first response, for some minutes",
            }]);
        }
        paths.insert(spec.path.into(), json!({"post": call}));
    }
    let mode = json!({"200": response("The mode", &schema("Enforcement"))});
    paths.insert("/v1/enforcement".into(), json!({
        "get": call("operations", "enforcement", "Whether refusals are enforced", None, &mode),
        "post": call("operations", "set_enforcement", "The kill switch of this server; for operators", Some("Enforcement"), &mode),
    }));
    let plain = |kind: &str, what: &str, schema: Value| json!({"200": {"description": what, "content": {kind: {"schema": schema}}}});
    let text = json!({"type": "string"});
    for (path, name, what, responses) in [
        ("/healthz", "health", "Whether the server runs", plain("text/plain; charset=utf-8", "It does", text.clone())),
        ("/readyz", "readiness", "Whether the server accepts requests", {
            let mut ready = plain("text/plain; charset=utf-8", "It does, possibly without its store", text.clone());
            ready["503"] =
                json!({"description": "It is stopping", "content": {"text/plain; charset=utf-8": {"schema": text}}});
            ready
        }),
        (
            "/metrics",
            "metrics",
            "Metrics in the Prometheus text format",
            plain("text/plain; version=0.0.4; charset=utf-8", "The metrics", text.clone()),
        ),
        (
            "/v1/top",
            "top",
            "The heaviest keys, by rule",
            plain("application/json", "The keys", json!({"type": "object"})),
        ),
        (
            "/v1/rules-status",
            "rules_status",
            "The source of the rules, and the result of the last load",
            plain("application/json", "The status", schema("RulesStatus")),
        ),
        (
            "/openapi.json",
            "description",
            "This description",
            plain("application/json", "The description", json!({"type": "object"})),
        ),
    ] {
        paths.insert(path.into(), json!({"get": call("operations", name, what, None, &responses)}));
    }
    Value::Object(paths)
}

fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn response(what: &str, schema: &Value) -> Value {
    json!({"description": what, "content": {"application/json": {"schema": schema}}})
}

fn call(tag: &str, name: &str, what: &str, takes: Option<&str>, responses: &Value) -> Value {
    let mut call = json!({
        "tags": [tag], "operationId": name.replace('-', "_"), "summary": what, "responses": responses,
    });
    if let Some(takes) = takes {
        call["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema(takes)}}});
    }
    call
}
