//! The RLS v3 messages in the Protocol Buffers wire format. This module does not depend on limits or decisions.
//!
//! Decoding borrows from the input and skips unknown fields. Decoding fails if a known field has the wrong wire type, if
//! the message contains a group, if a length exceeds the input, if a varint has more than 64 bits, or if there are too
//! many descriptors or entries.

mod structs;

use std::fmt;

use super::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};

/// The unit names, indexed by unit number.
pub(crate) const UNIT_NAMES: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

/// The message `RateLimitRequest` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitRequest<'a> {
    /// The domain whose rules are applied.
    pub domain: &'a [u8],
    /// The descriptors to count, in order.
    pub descriptors: Vec<Descriptor<'a>>,
    /// The cost of each descriptor without its own `hits_addend`. The value 0 means that the field is absent.
    pub hits_addend: u32,
}

/// The message `RateLimitDescriptor` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Keys and values, in order. Keys may repeat.
    pub entries: Vec<(&'a [u8], &'a [u8])>,
    /// An inline limit that replaces the rules.
    pub limit: Option<LimitOverride>,
    /// The cost of the descriptor. An explicit 0 charges nothing.
    pub hits_addend: Option<u64>,
    /// Whether the cost is refunded instead of charged.
    pub is_negative_hits: bool,
}

/// The message `RateLimitOverride` of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitOverride {
    /// The number of requests per unit.
    pub requests_per_unit: u32,
    /// The unit number of the protocol; 0 means unknown.
    pub unit: u64,
}

/// Why a message cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message ends within a field.
    Truncated,
    /// A varint has more than 64 bits.
    Varint,
    /// A tag has field number 0 or an unknown wire type.
    Tag,
    /// A known field has a wrong wire type.
    Type(&'static str),
    /// A string is not UTF-8.
    Utf8,
    /// There are more elements than allowed.
    TooMany {
        /// The kind of elements.
        what: &'static str,
        /// The maximum.
        max: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message ends within a field"),
            Self::Varint => f.write_str("a varint has more than 64 bits"),
            Self::Tag => f.write_str("a field has number 0 or an unknown wire type"),
            Self::Utf8 => f.write_str("a string is not UTF-8"),
            Self::Type(field) => write!(f, "the field `{field}` has the wrong wire type"),
            Self::TooMany { what, max } => write!(f, "too many {what} (maximum {max})"),
        }
    }
}

impl std::error::Error for WireError {}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WireValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A value of 4 or 8 bytes. No known field has this type.
    Fixed,
}

impl<'a> WireValue<'a> {
    pub(crate) fn expect_varint(self, field: &'static str) -> Result<u64, WireError> {
        if let Self::Varint(number) = self { Ok(number) } else { Err(WireError::Type(field)) }
    }

    pub(crate) fn expect_bytes(self, field: &'static str) -> Result<&'a [u8], WireError> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(WireError::Type(field)) }
    }
}

/// The fields of a message, in order.
pub(crate) struct MessageFields<'a>(&'a [u8]);

impl<'a> MessageFields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Returns the number and the value of the next field, or `None` at the end of the message.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, WireValue<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.take_varint()?;
        let value = match tag & 7 {
            0 => WireValue::Varint(self.take_varint()?),
            1 => self.take_bytes(8).map(|_| WireValue::Fixed)?,
            2 => {
                let length = usize::try_from(self.take_varint()?).map_err(|_| WireError::Truncated)?;
                WireValue::Bytes(self.take_bytes(length)?)
            }
            5 => self.take_bytes(4).map(|_| WireValue::Fixed)?,
            // Groups are rejected, because they are obsolete and skipping them would need a stack.
            _ => return Err(WireError::Tag),
        };
        if tag >> 3 == 0 { Err(WireError::Tag) } else { Ok(Some((tag >> 3, value))) }
    }

    fn take_bytes(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(WireError::Truncated)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(WireError::Varint);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(WireError::Varint)
    }
}

impl<'a> RateLimitRequest<'a> {
    /// Decodes a request.
    ///
    /// # Errors
    /// Returns an error if the message is malformed or has too many descriptors or entries.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (mut request, mut fields) = (Self::default(), MessageFields(bytes));
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => request.domain = value.expect_bytes("domain")?,
                2 => {
                    let descriptor = Descriptor::decode(value.expect_bytes("descriptors")?)?;
                    push_bounded(&mut request.descriptors, descriptor, "descriptors", MAX_DESCRIPTORS)?;
                }
                // Truncated to 32 bits, as in other protobuf decoders.
                3 => request.hits_addend = value.expect_varint("hits_addend")? as u32,
                _ => {}
            }
        }
        Ok(request)
    }
}

impl<'a> Descriptor<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (mut descriptor, mut fields) = (Self::default(), MessageFields(bytes));
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    let entry = decode_entry(value.expect_bytes("entries")?)?;
                    push_bounded(&mut descriptor.entries, entry, "entries of a descriptor", MAX_ENTRIES)?;
                }
                2 => descriptor.limit.get_or_insert_default().decode(value.expect_bytes("limit")?)?,
                3 => {
                    let mut fields = MessageFields(value.expect_bytes("hits_addend")?);
                    let hits = descriptor.hits_addend.get_or_insert(0);
                    while let Some((number, value)) = fields.next()? {
                        if number == 1 {
                            *hits = value.expect_varint("hits_addend.value")?;
                        }
                    }
                }
                4 => descriptor.is_negative_hits = value.expect_varint("is_negative_hits")? != 0,
                _ => {}
            }
        }
        Ok(descriptor)
    }
}

impl LimitOverride {
    /// Decodes a limit and merges it into this limit. Protocol Buffers require that repeated occurrences of a message
    /// field are merged.
    fn decode(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let mut fields = MessageFields(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => self.requests_per_unit = value.expect_varint("requests_per_unit")? as u32,
                2 => self.unit = value.expect_varint("unit")?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn decode_entry(bytes: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let (mut key, mut text, mut fields) = (&[][..], &[][..], MessageFields(bytes));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = value.expect_bytes("key")?,
            2 => text = value.expect_bytes("value")?,
            _ => {}
        }
    }
    Ok((key, text))
}

fn push_bounded<T>(list: &mut Vec<T>, element: T, what: &'static str, max: usize) -> Result<(), WireError> {
    if list.len() == max {
        return Err(WireError::TooMany { what, max });
    }
    list.push(element);
    Ok(())
}

/// Returns the field `service` of `grpc.health.v1.HealthCheckRequest`.
///
/// # Errors
/// Returns an error if the message is malformed.
pub fn decode_health(bytes: &[u8]) -> Result<&[u8], WireError> {
    let (mut service, mut fields) = (&[][..], MessageFields(bytes));
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            service = value.expect_bytes("service")?;
        }
    }
    Ok(service)
}

/// A code of `RateLimitResponse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseCode {
    /// The request is admitted.
    #[default]
    Ok = 1,
    /// The request is refused.
    OverLimit = 2,
}

/// The message `RateLimitResponse` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitResponse {
    /// Whether the request is admitted.
    pub code: ResponseCode,
    /// One status per descriptor, in order.
    pub statuses: Vec<DescriptorStatus>,
    /// Headers to add to the response for the client.
    pub headers: Vec<(String, String)>,
    /// Headers to add to the request for the application.
    pub request_headers: Vec<(String, String)>,
    /// The body of a refusal.
    pub body: String,
    /// Dynamic metadata for the proxy.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The message `DescriptorStatus` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorStatus {
    /// Whether the descriptor is within its limit.
    pub code: ResponseCode,
    /// The limit, if one applies.
    pub limit: Option<CurrentLimit>,
    /// The remaining capacity of the limit.
    pub remaining: u32,
    /// Seconds until the limit is completely unused or, for a refused request, until the request would be admitted.
    pub reset_seconds: Option<u64>,
}

/// The message `RateLimit` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentLimit {
    /// The number of requests per unit.
    pub requests_per_unit: u32,
    /// The unit number of the protocol; 0 if the protocol has no unit for the window.
    pub unit: u32,
    /// The id of the rule.
    pub name: String,
}

impl RateLimitResponse {
    /// Appends the encoded response.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, 1, self.code as u64);
        for status in &self.statuses {
            put_message(out, 2, |out| status.encode(out));
        }
        put_headers(out, 3, &self.headers);
        put_headers(out, 4, &self.request_headers);
        put_bytes(out, 5, self.body.as_bytes());
        if let Some(metadata) = &self.metadata {
            put_message(out, 6, |out| structs::put_struct(out, metadata));
        }
    }
}

impl DescriptorStatus {
    fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, 1, self.code as u64);
        if let Some(limit) = &self.limit {
            put_message(out, 2, |out| {
                put_number(out, 1, limit.requests_per_unit.into());
                put_number(out, 2, limit.unit.into());
                put_bytes(out, 3, limit.name.as_bytes());
            });
        }
        put_number(out, 3, self.remaining.into());
        if let Some(seconds) = self.reset_seconds {
            put_message(out, 4, |out| put_number(out, 1, seconds));
        }
    }
}

/// The status in `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The service answers.
    Serving = 1,
    /// The server is stopping.
    NotServing = 2,
    /// The service does not exist.
    ServiceUnknown = 3,
}

/// Appends `grpc.health.v1.HealthCheckResponse`.
pub fn encode_health(out: &mut Vec<u8>, health: Health) {
    put_number(out, 1, health as u64);
}

/// Appends headers as repeated `HeaderValue` messages.
fn put_headers(out: &mut Vec<u8>, field: u8, headers: &[(String, String)]) {
    for (name, value) in headers {
        put_message(out, field, |out| {
            put_bytes(out, 1, name.as_bytes());
            put_bytes(out, 2, value.as_bytes());
        });
    }
}

/// Appends a varint field. The default value 0 is not written.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        out.push(field << 3);
        put_varint(out, number);
    }
}

/// Appends a string or bytes field. An empty value is not written.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(field << 3 | 2);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// Appends a message field, even if the message is empty. The closure `write` appends the message. One byte is reserved
/// for the length of the message, which is known only afterwards. If the length needs more than one byte, the further
/// bytes are inserted.
pub(crate) fn put_message(out: &mut Vec<u8>, field: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[field << 3 | 2, 0]);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    let mut varint = Vec::with_capacity(5);
    if length < 0x80 {
        out[start - 1] = length as u8;
    } else {
        put_varint(&mut varint, length as u64);
        out.splice(start - 1..start, varint);
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests;
