//! Writes outputs and errors as replies.

use super::wire::Replies;
use crate::ops::error::{ErrorKind, OpError};
use crate::ops::fields::{EncodedName, FieldCount, FieldOrder, FieldValue, FieldWriter};
use crate::ops::view::{DecisionView, Output, write_limit_fields, write_settled_fields};

/// Writes an output as a reply. Booleans are written as 0 and 1.
pub(super) fn write_output(replies: &mut Replies, output: &Output<'_>, replayed: bool) {
    match output {
        Output::Decision(decision) => write_decision(replies, decision, replayed),
        Output::Settled(settled) => {
            let mut count = FieldCount::default();
            write_settled_fields(settled, &mut count, replayed);
            replies.begin_map(count.0);
            write_settled_fields(settled, &mut RespFields(replies), replayed);
        }
        Output::Refunded(cost) => replies.write_integer(to_saturated_i64(cost.get())),
        Output::Renewed(renewed) => replies.write_integer((*renewed).into()),
        Output::Reset(counters) => replies.write_integer(to_saturated_i64(*counters as u64)),
        Output::Explained(explanation) => replies.write_bulk(explanation),
        Output::Page(page) => replies.write_bulk(&page.body),
    }
}

fn write_decision(replies: &mut Replies, decision: &DecisionView<'_>, replayed: bool) {
    let mut count = FieldCount::default();
    decision.write_fields(&mut count, replayed);
    replies.begin_map(count.0);
    decision.write_fields(&mut RespFields(replies), replayed);
}

fn write_limits(replies: &mut Replies, decision: &DecisionView<'_>) {
    replies.begin_array(decision.limit_count());
    decision.limits().for_each(|limit| {
        let mut count = FieldCount::default();
        write_limit_fields(&limit, &mut count);
        replies.begin_map(count.0);
        write_limit_fields(&limit, &mut RespFields(replies));
    });
}

/// Writes an error of an operation, with its Redis error code.
pub(super) fn write_error(replies: &mut Replies, error: &OpError) {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::KeyReused | ErrorKind::StoreFailed => "ERR",
        ErrorKind::Forbidden => "NOPERM",
        ErrorKind::KeyInUse | ErrorKind::NotRecorded => "TRYAGAIN",
    };
    replies.write_error_reply(&format!("{code} {}", error.detail));
}

/// Writes the pairs of a map. The caller must have written the header of the map.
struct RespFields<'r>(&'r mut Replies);

impl FieldWriter for RespFields<'_> {
    const ORDER: FieldOrder = FieldOrder::Resp;

    #[inline(always)]
    fn write(&mut self, name: EncodedName, value: FieldValue<'_>) {
        let Self(replies) = self;
        replies.bytes.extend_from_slice(name.resp.as_bytes());
        match value {
            FieldValue::Rule(None) => replies.write_null(),
            FieldValue::Bool(value) => replies.write_integer(value.into()),
            FieldValue::Number(number) | FieldValue::Wait(Some(number)) => {
                replies.write_integer(to_saturated_i64(number));
            }
            FieldValue::Wait(None) => replies.write_integer(-1),
            FieldValue::Text(text) | FieldValue::Rule(Some(text)) => replies.write_bulk(text),
            FieldValue::Limits(decision) => write_limits(replies, decision),
        }
    }
}

/// Converts a number to a signed integer of the protocol, saturating at the maximum.
fn to_saturated_i64(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::view::tests::sample_outputs;
    use crate::resp::wire::RespVersion;

    #[test]
    fn sample_outputs_equal_the_golden_file() {
        let mut page = String::new();
        for (version, replayed) in [(RespVersion::Two, false), (RespVersion::Two, true), (RespVersion::Three, false)] {
            for output in sample_outputs() {
                let mut replies = Replies::new(Vec::new(), version);
                write_output(&mut replies, &output, replayed);
                page += &format!("{}\n", replies.bytes.escape_ascii());
            }
        }
        tollgate_testkit::golden!("resp_outputs", page);
    }
}
