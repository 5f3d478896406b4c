//! Converts explanations to JSON.

use serde_json::{Value, json};
use tollgate::Outcome;
use tollgate_engine::rules::{Consistency, OnFault};
use tollgate_engine::{
    BanState, BanStatus, CostSource, CostValue, Explanation, FailedCondition, LimitState, MatchExplanation,
    MatchResult, OverrideExplanation, OverrideMismatch, OverridePosition, Refill, RuleExplanation,
};

use crate::ops::view::{outcome_name, retry_ms};

/// Returns an explanation as JSON.
pub(super) fn to_json(explanation: &Explanation) -> Value {
    let mut value = json!({
        "version": explanation.version,
        "domain": explanation.domain,
        "allowed": explanation.outcome.is_admitted(),
        "outcome": outcome_name(explanation.outcome),
        "observed": explanation.observed.map(outcome_name),
        "retry_after_ms": retry_to_json(explanation.outcome),
        "standing": explanation.exactness.as_str(),
        "rule": explanation.decides.as_deref().and_then(rule_id),
        "rules": explanation.rules.iter().map(rule_to_json).collect::<Vec<_>>(),
        "left_out": explanation.left_out,
        "text": explanation.to_string(),
    });
    if let Outcome::Delay(wait) = explanation.outcome {
        value["delay_ms"] = json!(wait.as_millis_ceil());
    }
    value
}

fn rule_to_json(explained: &RuleExplanation) -> Value {
    let mut value = match &explained.why {
        MatchResult::Matches(matched) => match_to_json(matched),
        MatchResult::ConditionFailed(failed) => merge_fields(json!({"why": "condition"}), condition_to_json(failed)),
        MatchResult::DecidedBefore { by } => json!({"why": "decided_before", "by": by}),
        MatchResult::OtherAttributes => json!({"why": "other_attributes"}),
        MatchResult::ExpressionFailed { part, of, values } => {
            json!({"why": "expression", "part": part, "parts": of, "values": pairs_to_json(values)})
        }
        MatchResult::OutsideSchedule { schedule } => json!({"why": "outside_schedule", "schedule": schedule}),
    };
    value["rule"] = json!(rule_id(&explained.rule));
    value["position"] = json!(explained.position);
    value["matches"] = json!(matches!(explained.why, MatchResult::Matches(_)));
    value
}

/// Returns the rule id, or `None` for an inline limit.
fn rule_id(rule: &str) -> Option<&str> {
    Some(rule).filter(|rule| !rule.is_empty())
}

fn condition_to_json(failed: &FailedCondition) -> Value {
    json!({"attribute": failed.attribute, "expected": failed.expected, "found": failed.found})
}

/// Converts pairs of names and values to a JSON object.
fn pairs_to_json(pairs: &[(String, Option<String>)]) -> Value {
    pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>().into()
}

fn match_to_json(matched: &MatchExplanation) -> Value {
    let mut value = json!({
        "why": matched.effect.as_str(),
        "counted_by": pairs_to_json(&matched.counted),
        "cost": matched.cost,
        "shadow": matched.shadow,
        "refuses": matched.refuses,
        "banned": matched.remaining_ban_time().is_some(),
        "limits": matched.limits.iter().map(limit_to_json).collect::<Vec<_>>(),
    });
    match &matched.cost_by {
        CostSource::Rule => {}
        CostSource::Request => value["cost_by"] = json!("request"),
        CostSource::Case(when) => {
            value["cost_by"] = json!({"when": when.iter().map(ToString::to_string).collect::<Vec<_>>()});
        }
        CostSource::Attribute { name, value: cost } => {
            value["cost_by"] = match cost {
                CostValue::Number => json!({"attribute": name}),
                CostValue::Missing => json!({"attribute": name, "problem": "missing"}),
                CostValue::AboveMaximum(value) => {
                    json!({"attribute": name, "problem": "above_maximum", "value": value})
                }
                CostValue::NotANumber(value) => json!({"attribute": name, "problem": "not_a_number", "value": value}),
            };
        }
    }
    if !matched.suffice.is_empty() {
        value["suffice"] = json!(matched.suffice);
    }
    if let Some(longest) = matched.delays {
        value["max_wait_ms"] = json!(longest.as_millis_ceil());
    }
    if let Some(by) = &matched.replaced_by {
        value["replaced_by"] = json!(by);
    }
    match matched.consistency {
        Consistency::Strict => {}
        Consistency::Leased => value["consistency"] = json!("leased"),
        Consistency::Eventual(every) => {
            value["consistency"] = json!("eventual");
            value["sync_every_ms"] = json!(every.length().as_millis_ceil());
        }
    }
    if let Some(fault) = matched.fault {
        value["on_fault"] = json!(match fault {
            OnFault::Local => "local",
            OnFault::Open => "open",
            OnFault::Closed => "closed",
        });
    }
    if let Some(overrides) = &matched.overrides {
        value["overrides"] = overrides_to_json(overrides);
    }
    if let Some(ban) = &matched.ban {
        value["ban"] = ban_to_json(ban);
    }
    value
}

fn overrides_to_json(overrides: &OverrideExplanation) -> Value {
    let applies = overrides.applies.as_ref();
    let skipped = overrides.skipped.iter().map(|skipped| {
        let why = match &skipped.why {
            OverrideMismatch::ConditionFailed(failed) => condition_to_json(failed),
            OverrideMismatch::Expired(until) => json!({"ended": until}),
        };
        merge_fields(position_to_json(&skipped.position), why)
    });
    let for_others: serde_json::Map<String, Value> =
        overrides.for_others.iter().map(|(attribute, count)| (attribute.clone(), json!(count))).collect();
    json!({
        "applies": applies.map(|it| {
            let when: Vec<String> = it.when.iter().map(ToString::to_string).collect();
            merge_fields(position_to_json(&it.position), json!({"when": when, "until": it.until}))
        }),
        "skipped": skipped.collect::<Vec<_>>(),
        "more_skipped": overrides.more_skipped,
        "for_others": for_others,
        "after": overrides.after,
    })
}

/// Converts the position of an override to JSON, with the name of the override if it has one.
fn position_to_json(position: &OverridePosition) -> Value {
    let value = json!({"position": position.to_string()});
    match position {
        OverridePosition::Named(name) => merge_fields(value, json!({"name": name})),
        OverridePosition::At(_) | OverridePosition::InRule(_) => value,
    }
}

fn ban_to_json(ban: &BanState) -> Value {
    let value = json!({
        "after": ban.after,
        "within_ms": ban.within.as_millis_ceil(),
        "for_ms": ban.length.as_millis_ceil(),
    });
    match &ban.status {
        BanStatus::Banned { left, until } => {
            merge_fields(value, json!({"left_ms": left.as_millis_ceil(), "until": until}))
        }
        BanStatus::Not { refusals } => merge_fields(value, json!({"refusals": refusals})),
        BanStatus::NotEvaluated => merge_fields(value, json!({"evaluated": false})),
    }
}

fn limit_to_json(state: &LimitState) -> Value {
    let LimitState { written, report, refill, .. } = state;
    let value = json!({
        "written": written,
        "limit": report.limit,
        "remaining": report.remaining,
        "retry_after_ms": retry_ms(report.retry),
        "reset_after_ms": report.reset.as_millis_ceil(),
    });
    match refill {
        Refill::ByCalendar { zone, began, resets } => {
            merge_fields(value, json!({"zone": zone, "began": began, "resets": resets}))
        }
        Refill::Steadily | Refill::ByWindow | Refill::Sliding | Refill::Slots => value,
    }
}

/// Adds the fields of the object `more` to the object `value`.
fn merge_fields(mut value: Value, more: Value) -> Value {
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

fn retry_to_json(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Allow | Outcome::Delay(_) => json!(0),
        Outcome::Deny(retry) => json!(retry_ms(retry)),
    }
}
