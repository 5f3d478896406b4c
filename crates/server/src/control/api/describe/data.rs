//! The calls that decide, and those that tell how the server is.

use serde_json::{Map, Value, json};

/// What these calls take and give.
pub(super) fn schemas() -> Value {
    let whole = json!({"type": "integer", "minimum": 0});
    let wait =
        json!({"type": ["integer", "null"], "minimum": 0, "description": "Milliseconds; null where no wait helps"});
    let one = json!([{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]);
    let outcome = json!({"type": "string", "enum": ["allow", "deny", "delay"]});
    let cost = json!({"type": "integer", "minimum": 0, "description": "What it weighs; 1, or what the rule says, unless given"});
    let receipt = json!({"type": "boolean", "description": "Whether a receipt is wanted, to give back by"});
    json!({
        "ByRules": {
            "type": "object", "additionalProperties": false, "required": ["domain"],
            "properties": {
                "domain": {"type": "string", "description": "Whose rules"},
                "attributes": {
                    "type": "object", "maxProperties": 64, "description": "What is known about the request",
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
                "key": {"type": "string", "description": "Who is counted"},
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
            "description": "One request, or a batch of them, which is answered with a list; mistakes are told in their places.",
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
                "receipt": {"type": "string", "description": "What a decision gave"},
                "cost": {"type": "integer", "minimum": 0, "description": "For a commit: what it turned out to be"},
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
                "rule": {"type": ["string", "null"], "description": "Which rule decided; null for a limit sent along"},
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

/// Verbs that end in a decision, with what each does.
const DECIDES: &[(&str, &str)] = &[
    ("check", "Takes what the request costs, or refuses it and takes nothing"),
    ("peek", "Tells what a check would say, and takes nothing"),
    ("take-up-to", "Takes as much of the cost as there is"),
    ("charge", "Takes the cost regardless, into debt"),
    ("drain", "Takes all there is"),
    ("reserve", "Takes, and gives a receipt to settle by"),
];

/// Verbs that are no decisions, with what each takes, gives and does.
const ACTS: &[(&str, &str, &str)] = &[
    ("commit", "Receipts", "Settles a reservation at what it really weighed"),
    ("cancel", "Receipts", "Gives a reservation back"),
    ("release", "Receipts", "Gives a slot back"),
    ("renew", "Receipts", "Holds a slot longer"),
    ("refund", "Receipts", "Gives back what a decision took"),
    ("reset", "Asks", "Forgets what was spent; for operators"),
    ("explain", "Asks", "Tells why a check would say what it would, and takes nothing"),
];

/// The calls.
pub(super) fn paths() -> Value {
    let mut paths = Map::new();
    let decided = json!({
        "200": answer("It may pass, or it was a batch", &schema("Decisions")),
        "409": {"description": "A request with this Idempotency-Key is being answered"},
        "422": {"description": "This Idempotency-Key came with another request"},
        "429": answer("It may not pass; a rule may say another status", &schema("Decision")),
    });
    for (verb, what) in DECIDES {
        paths.insert(format!("/v1/{verb}"), json!({"post": call("decisions", verb, what, Some("Asks"), &decided)}));
    }
    let what = "Takes when there is enough, or refuses when the time is over";
    paths.insert("/v1/acquire".into(), json!({"post": call("decisions", "acquire", what, Some("Waiting"), &decided)}));
    let done = json!({
        "200": answer("What was done, one by one for a list", &json!({"type": ["object", "array"]})),
        "409": decided["409"], "422": decided["422"],
    });
    for (verb, takes, what) in ACTS {
        paths.insert(format!("/v1/{verb}"), json!({"post": call("decisions", verb, what, Some(takes), &done)}));
    }
    let mode = json!({"200": answer("The mode", &schema("Enforcement"))});
    paths.insert("/v1/enforcement".into(), json!({
        "get": call("operations", "enforcement", "Whether refusals are enforced", None, &mode),
        "post": call("operations", "set_enforcement", "The kill switch of this server; for operators", Some("Enforcement"), &mode),
    }));
    let told = |kind: &str, what: &str, schema: Value| json!({"200": {"description": what, "content": {kind: {"schema": schema}}}});
    let text = json!({"type": "string"});
    for (path, name, what, responses) in [
        ("/healthz", "health", "Whether the server runs", told("text/plain; charset=utf-8", "It does", text.clone())),
        ("/readyz", "readiness", "Whether the server takes requests", {
            let mut told = told("text/plain; charset=utf-8", "It does, perhaps without its store", text.clone());
            told["503"] =
                json!({"description": "It is stopping", "content": {"text/plain; charset=utf-8": {"schema": text}}});
            told
        }),
        (
            "/metrics",
            "metrics",
            "All counters, for Prometheus",
            told("text/plain; version=0.0.4; charset=utf-8", "The counters", text.clone()),
        ),
        (
            "/v1/top",
            "top",
            "The keys that use most, by rule",
            told("application/json", "The keys", json!({"type": "object"})),
        ),
        (
            "/v1/rules-status",
            "rules_status",
            "Where the rules come from, and how that went",
            told("application/json", "How things stand", schema("RulesStatus")),
        ),
        (
            "/openapi.json",
            "description",
            "This description",
            told("application/json", "The description", json!({"type": "object"})),
        ),
    ] {
        paths.insert(path.into(), json!({"get": call("operations", name, what, None, &responses)}));
    }
    Value::Object(paths)
}

fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn answer(what: &str, schema: &Value) -> Value {
    json!({"description": what, "content": {"application/json": {"schema": schema}}})
}

fn call(tag: &str, name: &str, what: &str, takes: Option<&str>, responses: &Value) -> Value {
    let mut call = json!({
        "tags": [tag], "operationId": name.replace('-', "_"), "summary": what, "responses": responses,
    });
    if let Some(takes) = takes {
        call["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema(takes)}}});
    }
    // The others change nothing, and take no notice of it.
    if takes.is_some() && !matches!(name, "peek" | "explain" | "set_enforcement") {
        call["parameters"] = json!([{
            "name": "Idempotency-Key", "in": "header", "required": false, "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            "description": "Asking again under the same key is answered as the first time, for some minutes",
        }]);
    }
    call
}
