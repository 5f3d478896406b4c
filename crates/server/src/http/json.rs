//! Writes the outputs of operations as JSON, without serde, which would escape every field name for each decision.

use tollgate_engine::Decision;

use crate::ops::fields::{self, EncodedName, FieldOrder, FieldValue, FieldWriter};
use crate::ops::view::{DecisionView, Output, ViewOptions, write_limit_fields, write_settled_fields};

/// Writes an output as JSON.
pub(super) fn write_output(out: &mut Vec<u8>, output: &Output<'_>) {
    match output {
        Output::Decision(decision) => write_object(out, |object| decision.write_fields(object, false)),
        Output::Refunded(cost) => {
            write_object(out, |object| object.write(fields::REFUNDED, FieldValue::Number(cost.get())));
        }
        Output::Renewed(renewed) => {
            write_object(out, |object| object.write(fields::RENEWED, FieldValue::Bool(*renewed)));
        }
        Output::Settled(settled) => write_object(out, |object| write_settled_fields(settled, object, false)),
        Output::Reset(counters) => {
            write_object(out, |object| object.write(fields::RESET, FieldValue::Number(*counters as u64)));
        }
        Output::Explained(explanation) => out.extend_from_slice(explanation),
        Output::Page(page) => out.extend_from_slice(&page.body),
    }
}

/// Writes a decision in the format of `POST /v1/check`, without a receipt.
pub(crate) fn write_decision_json(out: &mut Vec<u8>, decision: Decision<'_>) {
    let view = DecisionView::new(decision, ViewOptions { taken: false, receipt: false });
    write_output(out, &Output::Decision(view));
}

/// Writes an object with at least one field.
#[inline(always)]
fn write_object(out: &mut Vec<u8>, write: impl FnOnce(&mut JsonFields<'_>)) {
    let start = out.len();
    write(&mut JsonFields(out));
    // Every encoded name begins with a comma. The first comma is replaced by the opening brace.
    out[start] = b'{';
    out.push(b'}');
}

/// Writes the fields of an object.
struct JsonFields<'o>(&'o mut Vec<u8>);

impl FieldWriter for JsonFields<'_> {
    const ORDER: FieldOrder = FieldOrder::Json;

    #[inline(always)]
    fn write(&mut self, name: EncodedName, value: FieldValue<'_>) {
        append_text(self.0, name.json);
        write_value(self.0, value);
    }
}

#[inline(always)]
fn write_value(out: &mut Vec<u8>, value: FieldValue<'_>) {
    match value {
        FieldValue::Wait(None) | FieldValue::Rule(None) => append_text(out, "null"),
        FieldValue::Bool(true) => append_text(out, "true"),
        FieldValue::Bool(false) => append_text(out, "false"),
        FieldValue::Number(number) | FieldValue::Wait(Some(number)) => {
            append_text(out, itoa::Buffer::new().format(number));
        }
        FieldValue::Text(text) | FieldValue::Rule(Some(text)) => write_string(out, text),
        FieldValue::Limits(decision) => write_limits(out, decision),
    }
}

fn write_limits(out: &mut Vec<u8>, decision: &DecisionView<'_>) {
    out.push(b'[');
    for (index, limit) in decision.limits().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_object(out, |object| write_limit_fields(&limit, object));
    }
    out.push(b']');
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.push(b'"');
        append_text(out, text);
        out.push(b'"');
    } else {
        // Serialising a string cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}

#[inline]
fn append_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::core::Cost;
    use tollgate_engine::CommitResult;

    fn value_as_json(value: FieldValue<'_>) -> String {
        let mut out = Vec::new();
        write_value(&mut out, value);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn values_are_valid_json() {
        assert_eq!(value_as_json(FieldValue::Rule(Some("per-client"))), r#""per-client""#);
        assert_eq!(value_as_json(FieldValue::Text("a\"\u{1}ü")), r#""a\"\u0001ü""#);
        assert_eq!(value_as_json(FieldValue::Rule(None)), "null");
        assert_eq!(value_as_json(FieldValue::Wait(Some(1))), "1");
        assert_eq!(value_as_json(FieldValue::Wait(None)), "null");
    }

    #[test]
    fn settlement_is_written_as_an_object() {
        let cost = Cost::new;
        let mut out = Vec::new();
        write_output(&mut out, &Output::Settled(CommitResult { refunded: cost(1), charged: cost(0), unpaid: cost(2) }));
        assert_eq!(out, br#"{"refunded":1,"charged":0,"unpaid":2}"#);
    }

    #[test]
    fn sample_outputs_equal_the_golden_file() {
        let mut out = Vec::new();
        for output in crate::ops::view::tests::sample_outputs() {
            write_output(&mut out, &output);
            out.push(b'\n');
        }
        tollgate_testkit::golden!("json_outputs", String::from_utf8(out).expect("UTF-8"));
    }
}
