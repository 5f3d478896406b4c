//! Encodes JSON as `google.protobuf.Struct`.

use serde_json::{Map, Value};

use super::{put_bytes, put_message, put_varint};

/// Appends the fields of a struct.
pub(super) fn put_struct(out: &mut Vec<u8>, map: &Map<String, Value>) {
    for (name, value) in map {
        // An entry of a map field.
        put_message(out, 1, |out| {
            put_bytes(out, 1, name.as_bytes());
            put_message(out, 2, |out| put_value(out, value));
        });
    }
}

/// Appends a value. Default values are also written, because the variants are members of a `oneof`.
fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(&[1 << 3, 0]),
        Value::Number(number) => {
            out.push(2 << 3 | 1);
            out.extend_from_slice(&number.as_f64().unwrap_or_default().to_le_bytes());
        }
        Value::String(text) => {
            out.push(3 << 3 | 2);
            put_varint(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Bool(boolean) => out.extend_from_slice(&[4 << 3, u8::from(*boolean)]),
        Value::Object(map) => put_message(out, 5, |out| put_struct(out, map)),
        Value::Array(values) => put_message(out, 6, |out| {
            for value in values {
                put_message(out, 1, |out| put_value(out, value));
            }
        }),
    }
}
