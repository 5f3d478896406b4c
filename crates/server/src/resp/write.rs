//! Writes outputs and errors as replies of the Redis protocol.

use super::wire::Replies;
use crate::ops::error::{ErrorKind, OpError};
use crate::ops::view::{Field, FieldValue, Output, limit_fields, settled_fields};

/// Field order of a decision in this protocol, as indices into [`DecisionView::fields`]. The receipt comes early, and
/// the flags come directly before the limits.
///
/// [`DecisionView::fields`]: crate::ops::view::DecisionView::fields
const FIELD_ORDER: [usize; 16] = [0, 1, 2, 3, 4, 16, 5, 6, 7, 8, 10, 11, 9, 12, 13, 14];
const LIMITS: usize = 15;

/// Writes an output. Booleans are 0 and 1.
pub(super) fn write(replies: &mut Replies, output: &Output<'_>, replayed: bool) {
    let replayed = ("replayed", if replayed { FieldValue::Bool(true) } else { FieldValue::Absent });
    match output {
        Output::Decision(decision) => {
            let fields = decision.fields();
            let ordered = FIELD_ORDER.iter().map(|index| &fields[*index]);
            write_fields(replies, ordered.chain([&replayed, &fields[LIMITS]]));
        }
        Output::Settled(settled) => write_fields(replies, settled_fields(settled).iter().chain([&replayed])),
        Output::Refunded(cost) => replies.write_integer(saturate(cost.get())),
        Output::Renewed(renewed) => replies.write_integer((*renewed).into()),
        Output::Reset(counters) => replies.write_integer(saturate(*counters as u64)),
        Output::Explained(explanation) => replies.write_bulk(explanation.as_bytes()),
        Output::Page(page) => replies.write_bulk(&page.body),
    }
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

fn write_fields<'f>(replies: &mut Replies, fields: impl Iterator<Item = &'f Field<'f>> + Clone) {
    let present = fields.filter(|(_, value)| !matches!(value, FieldValue::Absent));
    replies.begin_map(present.clone().count());
    for (name, value) in present {
        replies.write_bulk(name);
        match value {
            FieldValue::Absent | FieldValue::Rule(None) => replies.null(),
            FieldValue::Bool(value) => replies.write_integer((*value).into()),
            FieldValue::Number(number) | FieldValue::Wait(Some(number)) => replies.write_integer(saturate(*number)),
            FieldValue::Wait(None) => replies.write_integer(-1),
            FieldValue::Text(text) | FieldValue::Rule(Some(text)) => replies.write_bulk(text),
            FieldValue::Limits(decision) => {
                replies.begin_array(decision.limits().count());
                decision.limits().for_each(|limit| write_fields(replies, limit_fields(&limit).iter()));
            }
        }
    }
}

/// Converts to the protocol's signed integers, saturating at the maximum.
fn saturate(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
