//! `POST /v1/explain`: why a request is decided as it is, as JSON.

use serde_json::{Value, json};
use tollgate::{Outcome, Retry};
use tollgate_engine::rules::OnFault;
use tollgate_engine::{
    BanStands, BanState, CostBy, Explained, Explanation, LimitState, Met, NotHeld, OverridePlace, Overrides, Refill,
    Unmet, Weight, Why,
};

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
        "rule": explanation.decides.as_deref().and_then(named),
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
        Why::Unmet(unmet) => with(json!({"why": "condition"}), of_unmet(unmet)),
        Why::Judged { by } => json!({"why": "judged", "by": by}),
        Why::Others => json!({"why": "others"}),
        Why::Expression { part, of, values } => {
            json!({"why": "expression", "part": part, "parts": of, "values": of_pairs(values)})
        }
        Why::NotNow { schedule } => json!({"why": "not_now", "schedule": schedule}),
    };
    told["rule"] = json!(named(&explained.rule));
    told["place"] = json!(explained.place);
    told["met"] = json!(matches!(explained.why, Why::Met(_)));
    told
}

/// The id of a rule; none for a limit that came along with the request.
fn named(rule: &str) -> Option<&str> {
    Some(rule).filter(|rule| !rule.is_empty())
}

fn of_unmet(unmet: &Unmet) -> Value {
    json!({"attribute": unmet.attribute, "expected": unmet.expected, "found": unmet.found})
}

/// Names and values, as one map.
fn of_pairs(pairs: &[(String, Option<String>)]) -> Value {
    pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>().into()
}

fn of_met(met: &Met) -> Value {
    let mut told = json!({
        "why": met.effect.as_str(),
        "counted_by": of_pairs(&met.counted),
        "cost": met.cost,
        "shadow": met.shadow,
        "refuses": met.refuses,
        "banned": met.banned().is_some(),
        "limits": met.limits.iter().map(limit).collect::<Vec<_>>(),
    });
    match &met.cost_by {
        CostBy::Rule => {}
        CostBy::Request => told["cost_by"] = json!("request"),
        CostBy::Attribute { name, said } => {
            told["cost_by"] = match said {
                Weight::Number => json!({"attribute": name}),
                Weight::Missing => json!({"attribute": name, "problem": "missing"}),
                Weight::TooMuch(value) => json!({"attribute": name, "problem": "too_much", "value": value}),
                Weight::NoNumber(value) => json!({"attribute": name, "problem": "no_number", "value": value}),
            };
        }
    }
    if !met.suffice.is_empty() {
        told["suffice"] = json!(met.suffice);
    }
    if let Some(longest) = met.delays {
        told["max_wait_ms"] = json!(longest.as_millis_ceil());
    }
    if let Some(by) = &met.replaced_by {
        told["replaced_by"] = json!(by);
    }
    if let Some(fault) = met.fault {
        told["on_fault"] = json!(match fault {
            OnFault::Local => "local",
            OnFault::Open => "open",
            OnFault::Closed => "closed",
        });
    }
    if let Some(overrides) = &met.overrides {
        told["overrides"] = of_overrides(overrides);
    }
    if let Some(ban) = &met.ban {
        told["ban"] = of_ban(ban);
    }
    told
}

fn of_overrides(overrides: &Overrides) -> Value {
    let applies = overrides.applies.as_ref();
    let unmet = overrides.unmet.iter().map(|unmet| {
        let why = match &unmet.why {
            NotHeld::Unmet(unmet) => of_unmet(unmet),
            NotHeld::Ended(until) => json!({"ended": until}),
        };
        with(of_place(&unmet.place), why)
    });
    let for_others: serde_json::Map<String, Value> =
        overrides.for_others.iter().map(|(attribute, count)| (attribute.clone(), json!(count))).collect();
    json!({
        "applies": applies.map(|it| {
            let when: Vec<String> = it.when.iter().map(ToString::to_string).collect();
            with(of_place(&it.place), json!({"when": when, "until": it.until}))
        }),
        "unmet": unmet.collect::<Vec<_>>(),
        "more_unmet": overrides.more_unmet,
        "for_others": for_others,
        "behind": overrides.behind,
    })
}

/// Where an override stands, in words, and what it is known by.
fn of_place(place: &OverridePlace) -> Value {
    let told = json!({"place": place.to_string()});
    match place {
        OverridePlace::Named(name) => with(told, json!({"name": name})),
        OverridePlace::At(_) | OverridePlace::Own(_) => told,
    }
}

fn of_ban(ban: &BanState) -> Value {
    let told = json!({
        "after": ban.after,
        "within_ms": ban.within.as_millis_ceil(),
        "for_ms": ban.length.as_millis_ceil(),
    });
    match &ban.stands {
        BanStands::Banned { left, until } => with(told, json!({"left_ms": left.as_millis_ceil(), "until": until})),
        BanStands::Not { refusals } => with(told, json!({"refusals": refusals})),
        BanStands::NotLookedAt => with(told, json!({"looked_at": false})),
    }
}

fn limit(state: &LimitState) -> Value {
    let LimitState { written, report, refill, .. } = state;
    let told = json!({
        "written": written,
        "limit": report.limit,
        "remaining": report.remaining,
        "retry_after_ms": wait(report.retry),
        "reset_after_ms": report.reset.as_millis_ceil(),
    });
    match refill {
        Refill::ByCalendar { zone, began, resets } => {
            with(told, json!({"zone": zone, "began": began, "resets": resets}))
        }
        Refill::Steadily | Refill::ByWindow | Refill::Sliding | Refill::Slots => told,
    }
}

/// One map with what another one says besides.
fn with(mut told: Value, more: Value) -> Value {
    if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
        told.extend(more);
    }
    told
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
