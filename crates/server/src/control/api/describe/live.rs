//! Descriptions of live data and browser sessions.

use serde_json::{Value, json};

use crate::live::{MAX_TRACKED_RULES, MAX_VIEWERS, ONE_SECOND_POINTS};

/// Returns the OpenAPI descriptions of the paths for live data and browser sessions.
pub(super) fn live_paths() -> Value {
    let query = |name: &str, schema: Value, description: &str| json!({"name": name, "in": "query", "required": false, "schema": schema, "description": description});
    let text = || json!({"type": "string"});
    let ok = |description: &str, content_type: &str, schema: Value| json!({"200": {"description": description, "content": {content_type: {"schema": schema}}}});
    let session = || ok("The caller", "application/json", json!({"$ref": "#/components/schemas/Session"}));
    let history = ok("The history; empty if none is kept", "application/json", json!({"type": "object"}));
    let mut opened = session();
    opened["200"]["headers"] = json!({"set-cookie": {"schema": {"type": "string"}, "description": "The session"}});
    json!({
        "/v1/live": {"get": {
            "tags": ["live"], "operationId": "live",
            "summary": format!("Sends rates and the state of the server once a second, to at most {MAX_VIEWERS} viewers"),
            "responses": ok("Server-sent events, each with a JSON object", "text/event-stream", text()),
        }},
        "/v1/history": {"get": {
            "tags": ["live"], "operationId": "get_history",
            "summary": format!(
                "Returns rates per second: {} minutes in steps of one second and an hour in steps of ten seconds, of all decisions or of one rule",
                ONE_SECOND_POINTS / 60
            ),
            "description": format!(
                "Lists of numbers, oldest first. Without parameters, also the last ten minutes of the {MAX_TRACKED_RULES} busiest rules."
            ),
            "parameters": [
                query("domain", text(), "The domain of the rule; requires `rule`"),
                query("rule", text(), "Only the rule with this id; requires `domain`"),
            ],
            "responses": history,
        }},
        "/v1/rules": {"get": {
            "tags": ["live"], "operationId": "list_rules_in_force",
            "summary": "Lists the rules in force on this server, from any source, with their counts",
            "parameters": [
                query("q", text(), "Search words; each must occur in the domain, the id, the limits or `per`"),
                query("domain", text(), "Only rules of this domain"),
                query("rule", text(), "Only rules with this id"),
                query("state", json!({"type": "string", "enum": ["enforced", "shadow"]}), "Only enforced rules, or only shadow rules"),
                query("after", json!({"type": "integer", "minimum": 0}), "The `next` of the previous page"),
                query("limit", json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}), "The maximum number of items"),
            ],
            "responses": ok("One page of the list", "application/json", json!({"$ref": "#/components/schemas/RulesInForce"})),
        }},
        "/v1/session": {
            "get": {
                "tags": ["session"], "operationId": "get_session",
                "summary": "Returns the name, the role and the domains of the caller", "responses": session(),
            },
            "post": {
                "tags": ["session"], "operationId": "open_session",
                "summary": "Opens a browser session with a token",
                "description": "The reply sets a cookie, which is accepted only with the header `Tollgate-Console`.",
                "requestBody": {"required": true, "content": {"application/json": {"schema": {
                    "type": "object", "required": ["token"], "additionalProperties": false, "properties": {"token": text()},
                }}}},
                "responses": opened,
            },
            "delete": {
                "tags": ["session"], "operationId": "close_session",
                "summary": "Ends the session", "responses": {"204": {"description": "Ended"}},
            },
        },
    })
}
