//! Outputs to JSON. Decisions are written by hand: with serde every field name would be escaped again for each of them.

use tollgate::Retry;
use tollgate_engine::{LimitReport, Settled};

use super::explain;
use crate::ops::view::{DecisionView, Output, outcome_name, retry_ms};

/// Writes an output as JSON.
pub(super) fn write(out: &mut Vec<u8>, output: &Output<'_>) {
    match output {
        Output::Decision(decision) => write_decision(out, decision),
        Output::Refunded(cost) => object(out, &[("refunded", cost.get())]),
        Output::Renewed(renewed) => {
            put(out, "{\"renewed\":");
            put(out, if *renewed { "true}" } else { "false}" });
        }
        Output::Settled(Settled { refunded, charged, unpaid }) => {
            object(out, &[("refunded", refunded.get()), ("charged", charged.get()), ("unpaid", unpaid.get())]);
        }
        Output::Reset(counters) => object(out, &[("reset", *counters as u64)]),
        Output::Explained(explanation) => put(out, &explain::to_json(explanation).to_string()),
        Output::Page(page) => out.extend_from_slice(&page.body),
    }
}

fn write_decision(out: &mut Vec<u8>, decision: &DecisionView<'_>) {
    put(
        out,
        if decision.is_allowed() { "{\"allowed\":true,\"outcome\":\"" } else { "{\"allowed\":false,\"outcome\":\"" },
    );
    put(out, outcome_name(decision.outcome));
    put(out, "\",\"rule\":");
    name(out, decision.rule.as_deref().unwrap_or_default());
    put(out, ",\"standing\":\"");
    put(out, decision.standing.as_str());
    put(out, "\",\"retry_after_ms\":");
    number_or_null(out, retry_ms(decision.retry().unwrap_or(Retry::NOW)));
    field(out, ",\"taken\":", decision.taken.map(|taken| taken.get()));
    if decision.uncounted {
        put(out, ",\"counted\":false");
    }
    field(out, ",\"delay_ms\":", decision.delay_ms());
    if let Some(observed) = decision.observed {
        put(out, ",\"observed\":\"");
        put(out, outcome_name(observed));
        out.push(b'"');
    }
    let [shadow_refused, flags @ ..] = decision.flags();
    flag(out, shadow_refused);
    field(out, ",\"status\":", decision.status.map(u64::from));
    if let Some(message) = &decision.message {
        put(out, ",\"message\":");
        name(out, message);
    }
    flags.into_iter().for_each(|named| flag(out, named));
    put(out, ",\"limits\":[");
    for (index, limit) in decision.limits().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_limit(out, &limit);
    }
    out.push(b']');
    if let Some(receipt) = &decision.receipt {
        put(out, ",\"receipt\":\"");
        // Its characters need no escaping.
        put(out, receipt);
        out.push(b'"');
    }
    out.push(b'}');
}

fn write_limit(out: &mut Vec<u8>, limit: &LimitReport<'_>) {
    put(out, "{\"rule\":");
    name(out, limit.rule);
    put(out, ",\"limit\":");
    number(out, limit.report.limit);
    put(out, ",\"remaining\":");
    number(out, limit.report.remaining);
    put(out, ",\"retry_after_ms\":");
    number_or_null(out, retry_ms(limit.report.retry));
    put(out, ",\"reset_after_ms\":");
    number(out, limit.report.reset.as_millis_ceil());
    flag(out, ("shadow", limit.shadow));
    out.push(b'}');
}

/// Writes an object of numbers.
fn object(out: &mut Vec<u8>, fields: &[(&str, u64)]) {
    for (index, (field, value)) in fields.iter().enumerate() {
        put(out, if index == 0 { "{\"" } else { ",\"" });
        put(out, field);
        put(out, "\":");
        number(out, *value);
    }
    out.push(b'}');
}

#[inline]
fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn field(out: &mut Vec<u8>, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        put(out, name);
        number(out, value);
    }
}

/// Writes a flag if it holds.
fn flag(out: &mut Vec<u8>, (name, holds): (&str, bool)) {
    if holds {
        put(out, ",\"");
        put(out, name);
        put(out, "\":true");
    }
}

/// Writes a string; an empty one, the name of an inline limit, is null.
fn name(out: &mut Vec<u8>, text: &str) {
    if text.is_empty() {
        return put(out, "null");
    }
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.push(b'"');
        put(out, text);
        out.push(b'"');
    } else {
        // A string always serialises.
        let _ = serde_json::to_writer(out, text);
    }
}

fn number_or_null(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => put(out, "null"),
    }
}

fn number(out: &mut Vec<u8>, number: u64) {
    put(out, itoa::Buffer::new().format(number));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::core::{Cost, Nanos};

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn names_and_waits_are_valid_json() {
        assert_eq!(written(|out| name(out, "per-client")), r#""per-client""#);
        assert_eq!(written(|out| name(out, "a\"\u{1}ü")), r#""a\"\u0001ü""#);
        assert_eq!(written(|out| name(out, "")), "null");
        assert_eq!(written(|out| number_or_null(out, retry_ms(Retry::After(Nanos::from_nanos(1))))), "1");
        assert_eq!(written(|out| number_or_null(out, retry_ms(Retry::Never))), "null");
    }

    #[test]
    fn settled_amounts_are_an_object() {
        let cost = Cost::new;
        let settled = Settled { refunded: cost(1), charged: cost(0), unpaid: cost(2) };
        let text = written(|out| write(out, &Output::Settled(settled)));
        assert_eq!(text, r#"{"refunded":1,"charged":0,"unpaid":2}"#);
        assert_eq!(written(|out| write(out, &Output::Renewed(true))), r#"{"renewed":true}"#);
    }
}
