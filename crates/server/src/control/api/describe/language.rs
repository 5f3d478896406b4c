//! Schemas of rules, overrides and rule files. Schemas cannot express every constraint; `POST /v1/validate` checks all
//! of them.

use serde_json::{Value, json};

use super::operations::ALGORITHMS;

const RATE_PATTERN: &str = "^[0-9]{1,9}[kM]?/[0-9]{0,4}(s|m|h|d|second|minute|hour|day)$";

/// Returns the schemas with the most common keys of the rule language; other keys are accepted.
pub(super) fn rule_schemas() -> Value {
    let limit = json!({"type": "string", "description": "A rate, such as 100/s, 5/15m or 10k/day", "pattern": RATE_PATTERN, "example": "100/s"});
    let burst = json!({"type": "integer", "minimum": 1, "description": "Burst size"});
    json!({
        "Rule": {
            "type": "object",
            "description": "A rule as in a file. The rule language has more keys than these.",
            "properties": {
                "id": {"type": "string", "description": "The same id as in the path; may be omitted"},
                "when": {"type": "object", "description": "Conditions, by attribute"},
                "per": {"type": "array", "items": {"type": "string"}, "description": "The attributes to count by"},
                "limit": limit.clone(),
                "burst": burst.clone(),
                "algorithm": {"type": "string", "enum": ALGORITHMS},
            },
            "example": {"per": ["client_ip"], "limit": "100/s"},
        },
        "Override": {
            "type": "object",
            "description": "An override as in a file, without `when`.",
            "properties": {
                "limit": limit,
                "burst": burst,
                "unlimited": {"type": "boolean"},
                "until": {"type": "string", "format": "date-time", "description": "When the override expires"},
                "attribute": {"type": "string", "description": "The attribute of the value in the path; by default the first attribute of the rule's `per`"},
            },
            "example": {"limit": "1000/s", "until": "2030-01-01T00:00:00Z"},
        },
        "RuleFile": {
            "type": "object",
            "description": "A rule file with one or more domains, or a rule file of the reference Envoy service.",
            "example": {"domain": "api", "rules": [{"id": "per-client", "per": ["client_ip"], "limit": "100/s"}]},
        },
    })
}

/// Makes the request bodies of rule calls refer to the schemas of [`rule_schemas`].
pub(super) fn refer_to_schemas(paths: &mut Value) {
    let rule = "/v1/domains/{domain}/rules/{id}";
    for (path, method, schema) in [
        (rule, "put", "Rule"),
        (&format!("{rule}/overrides/{{value}}"), "put", "Override"),
        ("/v1/validate", "post", "RuleFile"),
        ("/v1/apply", "post", "RuleFile"),
    ] {
        for kind in ["application/json", "application/yaml"] {
            paths[path][method]["requestBody"]["content"][kind] =
                json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}});
        }
    }
    // The body is optional, because a request with an empty file is valid. The response then reports the mistake.
    paths["/v1/validate"]["post"]["requestBody"]["required"] = json!(false);
}
