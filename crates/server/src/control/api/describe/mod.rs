//! The OpenAPI description of all calls. Handlers describe the calls of the rules service; the module `operations`
//! describes decisions and server pages; the module `live` describes live data.

mod language;
mod live;
mod operations;
pub(super) mod shared;

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use crate::console::session::SessionView;
use crate::http::problem::ProblemDetails;
use crate::live::RulesInForcePage;
use crate::observe::peers::PeersPage;
use crate::observe::top_keys::TopKeysPage;
use crate::rules_source::status::RulesStatus;

/// Returns the description as JSON.
pub fn openapi_document() -> Bytes {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    DOCUMENT.get_or_init(|| Bytes::from(openapi_text())).clone()
}

/// Returns the description as stored in `docs/openapi.json`, with one line per value.
pub fn openapi_text() -> String {
    // Serialising a JSON value cannot fail.
    serde_json::to_string_pretty(&description_tree()).unwrap_or_default() + "\n"
}

fn description_tree() -> Value {
    let (_, described) = super::routes().split_for_parts();
    let mut tree = serde_json::to_value(described).unwrap_or_default();
    tree["info"] = json!({
        "title": "Tollgate",
        "description": "An exact, fast and bounded rate limiter. This API decides requests and manages rules.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    });
    tree["servers"] = json!([{"url": "/", "description": "The server that returned this description"}]);
    tree["security"] = json!([{"token": []}]);
    tree["tags"] = tag_descriptions();
    tree["components"]["securitySchemes"] = json!({"token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token created by `tollgate tokens create` or POST /v1/tokens; required if the server requires tokens.",
    }});
    insert_all(
        &mut tree["components"]["schemas"],
        json!({
            "Problem": ProblemDetails::schema(), "Peers": PeersPage::schema(), "RulesStatus": RulesStatus::schema(), "TopKeys": TopKeysPage::schema(),
            "RulesInForce": RulesInForcePage::schema(), "Session": SessionView::schema(),
        }),
    );
    insert_all(&mut tree["components"]["schemas"], language::rule_schemas());
    insert_all(&mut tree["components"]["schemas"], operations::operation_schemas());
    describe_token_grants(&mut tree);
    insert_all(&mut tree["paths"], operations::operation_paths());
    insert_all(&mut tree["paths"], live::live_paths());
    language::refer_to_schemas(&mut tree["paths"]);
    for (path, item) in tree["paths"].as_object_mut().into_iter().flatten() {
        for (method, call) in item.as_object_mut().into_iter().flatten() {
            add_shared_parts(path, method, call);
        }
    }
    tree
}

fn tag_descriptions() -> Value {
    json!([
        {"name": "decisions", "description": "Decides whether requests may pass."},
        {"name": "operations", "description": "Health, metrics and the kill switch."},
        {"name": "live", "description": "Rates, their history, and the rules in force on this server."},
        {"name": "session", "description": "Browser sessions."},
        {"name": "rules", "description": "The rules of a domain."},
        {"name": "history", "description": "The versions of a rule."},
        {"name": "overrides", "description": "Replacement limits for one attribute value, such as one customer."},
        {"name": "files", "description": "Whole rule files."},
        {"name": "nodes", "description": "Nodes that follow this service."},
        {"name": "tokens", "description": "Tokens and their roles."},
        {"name": "audit", "description": "The audit log."},
    ])
}

fn insert_all(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Adds the errors that calls share. Also adds the ETag of responses and If-None-Match to calls that use ETags.
fn add_shared_parts(path: &str, method: &str, call: &mut Value) {
    let open = matches!(path, "/healthz" | "/readyz");
    let writes = call.get("requestBody").is_some();
    let mut common: Vec<(&str, &str)> =
        vec![("403", "The token does not have the required role, or the request came from a web page")];
    if open {
        call["security"] = json!([]);
    } else {
        common.push(("401", "No valid token"));
    }
    common.extend([("400", "The request is invalid"), ("503", "Temporarily unavailable")]);
    if writes {
        common.extend([
            ("408", "The body did not arrive in time"),
            ("413", "The body is too large"),
            ("415", "The content type is not accepted"),
        ]);
    }
    if super::owns_path(path) {
        common.push(("404", "No such resource, or no rules service"));
        if !matches!(method, "get") {
            common.extend([
                ("409", "A conflict with existing data, or a bound is reached"),
                ("412", "The version is not the expected one"),
                ("422", "The rules have mistakes"),
            ]);
        }
    }
    let matches = call["parameters"].as_array().into_iter().flatten().any(|given| given["name"] == "If-Match");
    let responses = as_object(&mut call["responses"]);
    for (status, description) in common {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    }
    let known = responses.contains_key("304");
    let has_etag = known || matches;
    for (status, response) in responses.iter_mut() {
        if has_etag && matches!(status.as_str(), "200" | "201") && response.get("headers").is_none() {
            let etag =
                json!({"schema": {"type": "string"}, "description": "The version, for If-Match and If-None-Match"});
            response["headers"] = json!({"etag": etag});
        }
        // Unless described otherwise, an error response has a `Problem` body.
        if status.as_str() >= "400" && response.get("content").is_none() {
            let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
            response["content"] = json!({"application/problem+json": problem});
        }
    }
    if let Some(unauthorized) = responses.get_mut("401") {
        unauthorized["headers"] = json!({"www-authenticate": {"schema": {"type": "string"}}});
    }
    if known {
        if !call["parameters"].is_array() {
            call["parameters"] = json!([]);
        }
        let given = call["parameters"].as_array_mut();
        for given in given.into_iter().filter(|given| given.iter().all(|one| one["name"] != "If-None-Match")) {
            given.push(json!({
                "name": "If-None-Match", "in": "header", "required": false, "schema": {"type": "string"},
                "description": "The ETag of the version that the reader has",
            }));
        }
    }
    // Uses `get_mut`, because indexing would insert null for a missing member.
    for parameter in call.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let pattern = match (parameter["name"].as_str(), known) {
            (Some("If-Match"), _) | (Some("If-None-Match"), true) => ETAG_PATTERN,
            (Some("If-None-Match"), false) => r"^\*$",
            _ => continue,
        };
        parameter["schema"] = json!({"type": "string", "pattern": pattern});
    }
}

/// An ETag or `*`.
const ETAG_PATTERN: &str = r#"^(\*|(W/)?"[0-9a-f-]+")$"#;

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        // `value` was made an object above.
        _ => unreachable!("an object"),
    }
}

/// Allows additional fields in a stored token, but not in the request body that creates a token.
fn describe_token_grants(tree: &mut Value) {
    let mut grant = tree["components"]["schemas"]["TokenGrant"].clone();
    tree["components"]["schemas"]["NewToken"] = grant.clone();
    if let Some(fields) = grant.as_object_mut() {
        fields.remove("additionalProperties");
    }
    tree["components"]["schemas"]["TokenGrant"] = grant;
    let body = &mut tree["paths"]["/v1/tokens"]["post"]["requestBody"]["content"]["application/json"];
    body["schema"] = json!({"$ref": "#/components/schemas/NewToken"});
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_described_with_its_errors() {
        let tree = description_tree();
        let paths = tree["paths"].as_object().unwrap();
        for path in
            ["/v1/check", "/v1/domains/{domain}/rules/{id}", "/v1/snapshot", "/openapi.json", "/v1/rules-status"]
        {
            assert!(paths.contains_key(path), "{path}");
        }
        let mut ids = std::collections::HashSet::new();
        for (path, item) in paths {
            for (method, call) in item.as_object().unwrap() {
                for status in ["400", "403", "503"] {
                    assert!(call["responses"][status]["content"].is_object(), "{method} {path} {status}");
                }
                assert!(call["tags"][0].is_string(), "{method} {path}");
                let id = call["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{method} {path}: a second {id}");
            }
        }
    }

    #[test]
    fn every_reference_resolves() {
        fn collect_references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    map.values().for_each(|value| collect_references(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| collect_references(value, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let tree = description_tree();
        let mut found = Vec::new();
        collect_references(&tree, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            assert!(tree.pointer(&reference[1..]).is_some(), "{reference}");
        }
    }
}
