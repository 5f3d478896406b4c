//! `POST /v1/explain`: why a request is decided as it is, as JSON.

use serde_json::{Value, json};
use tollgate::{Outcome, Report, Retry};
use tollgate_engine::{Explained, Explanation, Met, Why};

/// An explanation as JSON.
pub(super) fn to_json(explanation: &Explanation) -> Value {
    let mut told = json!({
        "version": explanation.version,
        "domain": explanation.domain,
        "allowed": explanation.outcome.is_allowed(),
        "outcome": word(explanation.outcome),
        "observed": explanation.observed.map(word),
        "retry_after_ms": retry(explanation.outcome),
        "standing": explanation.standing.as_str(),
        "rule": explanation.decides,
        "rules": explanation.rules.iter().map(rule).collect::<Vec<_>>(),
        "left_out": explanation.left_out,
        "text": explanation.to_string(),
    });
    if let Outcome::Delay(wait) = explanation.outcome {
        told["delay_ms"] = json!(wait.as_millis_ceil());
    }
    told
}

fn rule(explained: &Explained) -> Value {
    let mut told = match &explained.why {
        Why::Met(met) => of_met(met),
        Why::Unmet(unmet) => json!({
            "why": "condition",
            "attribute": unmet.attribute,
            "expected": unmet.expected,
            "found": unmet.found,
        }),
        Why::Judged { by } => json!({"why": "judged", "by": by}),
        Why::Others => json!({"why": "others"}),
        Why::Expression => json!({"why": "expression"}),
        Why::NotNow => json!({"why": "not_now"}),
    };
    told["rule"] = json!(explained.rule);
    told["place"] = json!(explained.place);
    told["met"] = json!(matches!(explained.why, Why::Met(_)));
    told
}

fn of_met(met: &Met) -> Value {
    let counted: serde_json::Map<String, Value> =
        met.counted.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({
        "why": met.effect.as_str(),
        "counted_by": counted,
        "cost": met.cost,
        "shadow": met.shadow,
        "refuses": met.refuses,
        "banned": met.banned,
        "limits": met.limits.iter().map(|(report, _)| limit(report)).collect::<Vec<_>>(),
    })
}

fn limit(report: &Report) -> Value {
    json!({
        "limit": report.limit,
        "remaining": report.remaining,
        "retry_after_ms": wait(report.retry),
        "reset_after_ms": report.reset.as_millis_ceil(),
    })
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

fn retry(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Allow | Outcome::Delay(_) => json!(0),
        Outcome::Deny(retry) => wait(retry),
    }
}

fn wait(retry: Retry) -> Value {
    match retry {
        Retry::After(wait) => json!(wait.as_millis_ceil()),
        Retry::OnRelease | Retry::Never => Value::Null,
    }
}
