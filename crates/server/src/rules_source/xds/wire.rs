//! Encodes and decodes the xDS messages in the wire format of Protocol Buffers: outgoing `DiscoveryRequest`, and
//! incoming `DiscoveryResponse` with `RateLimitConfig` resources. Does not depend on sockets or rules.

use serde_json::{Map, Value, json};

use crate::rls::wire::{MessageFields, UNIT_NAMES, WireError, put_bytes, put_message, put_number};

/// The type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Maximum number of resources of a response.
pub const MAX_RESOURCES: usize = 10_000;

/// Maximum depth of descriptors.
pub const MAX_DEPTH: usize = 16;

/// Maximum number of bytes of the error text in a refusal.
pub const MAX_ERROR_TEXT_BYTES: usize = 4 * 1024;

/// `DiscoveryRequest`: a subscription, or the acknowledgement or refusal of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryRequest<'a> {
    /// The version in force, or empty if there is none.
    pub version: &'a str,
    /// The id of this node.
    pub node: &'a str,
    /// The nonce of the response that this request acknowledges or refuses. Empty in the first request.
    pub nonce: &'a str,
    /// The reason, if this request refuses a response.
    pub error: Option<&'a str>,
}

impl DiscoveryRequest<'_> {
    /// Encodes the request.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, 1, self.version.as_bytes());
        put_message(&mut out, 2, |out| put_bytes(out, 1, self.node.as_bytes()));
        put_bytes(&mut out, 4, TYPE_URL.as_bytes());
        put_bytes(&mut out, 5, self.nonce.as_bytes());
        if let Some(error) = self.error {
            put_message(&mut out, 6, |out| {
                // INVALID_ARGUMENT.
                put_number(out, 1, 3);
                put_bytes(out, 2, &error.as_bytes()[..error.floor_char_boundary(MAX_ERROR_TEXT_BYTES)]);
            });
        }
        out
    }
}

/// `DiscoveryResponse`: all resources of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryResponse<'a> {
    /// The version.
    pub version: &'a [u8],
    /// The type and the bytes of each resource.
    pub resources: Vec<(&'a [u8], &'a [u8])>,
    /// The type of the resources.
    pub type_url: &'a [u8],
    /// The nonce, which the next request repeats.
    pub nonce: &'a [u8],
}

impl<'a> DiscoveryResponse<'a> {
    /// Decodes a response, but not its resources.
    ///
    /// # Errors
    /// Returns an error if the response is malformed or has too many resources.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (mut response, mut fields) = (Self::default(), MessageFields::new(bytes));
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => response.version = value.expect_bytes("version_info")?,
                2 => {
                    if response.resources.len() == MAX_RESOURCES {
                        return Err(WireError::TooMany { what: "resources", max: MAX_RESOURCES });
                    }
                    response.resources.push(decode_any(value.expect_bytes("resources")?)?);
                }
                4 => response.type_url = value.expect_bytes("type_url")?,
                5 => response.nonce = value.expect_bytes("nonce")?,
                _ => {}
            }
        }
        Ok(response)
    }
}

fn decode_any(bytes: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let (mut type_url, mut content, mut fields) = (&[][..], &[][..], MessageFields::new(bytes));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => type_url = value.expect_bytes("type_url")?,
            2 => content = value.expect_bytes("value")?,
            _ => {}
        }
    }
    Ok((type_url, content))
}

/// A resource as a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// The name of the resource.
    pub name: String,
    /// A file of the reference service, in JSON.
    pub text: String,
}

impl ConfigFile {
    /// Translates a `RateLimitConfig` to a file of the reference service.
    ///
    /// # Errors
    /// Returns an error if the resource is malformed, nests descriptors too deeply, or contains text that is not UTF-8.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (mut name, mut file) = (String::new(), json!({"descriptors": []}));
        let (mut descriptors, mut fields) = (Vec::new(), MessageFields::new(bytes));
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => name = decode_text(value.expect_bytes("name")?)?,
                2 => file["domain"] = decode_text(value.expect_bytes("domain")?)?.into(),
                3 => descriptors.push(decode_descriptor(value.expect_bytes("descriptors")?, 1)?),
                _ => {}
            }
        }
        file["descriptors"] = descriptors.into();
        Ok(Self { name, text: file.to_string() })
    }
}

fn decode_descriptor(bytes: &[u8], depth: usize) -> Result<Value, WireError> {
    if depth > MAX_DEPTH {
        return Err(WireError::TooMany { what: "levels of descriptors", max: MAX_DEPTH });
    }
    let (mut map, mut below, mut fields) = (Map::new(), Vec::new(), MessageFields::new(bytes));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => drop(map.insert("key".into(), decode_text(value.expect_bytes("key")?)?.into())),
            2 => drop(map.insert("value".into(), decode_text(value.expect_bytes("value")?)?.into())),
            3 => drop(map.insert("rate_limit".into(), decode_policy(value.expect_bytes("rate_limit")?)?)),
            4 => below.push(decode_descriptor(value.expect_bytes("descriptors")?, depth + 1)?),
            5 if value.expect_varint("shadow_mode")? != 0 => drop(map.insert("shadow_mode".into(), true.into())),
            _ => {}
        }
    }
    // An empty `value` is removed, because Protocol Buffers do not distinguish an empty string from an absent one.
    map.retain(|name, value| name != "value" || *value != "");
    if !below.is_empty() {
        map.insert("descriptors".into(), below.into());
    }
    Ok(map.into())
}

fn decode_policy(bytes: &[u8]) -> Result<Value, WireError> {
    let (mut unit, mut requests, mut is_unlimited) = (0, 0, false);
    let (mut map, mut replaced, mut fields) = (Map::new(), Vec::new(), MessageFields::new(bytes));
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => unit = value.expect_varint("unit")?,
            2 => requests = value.expect_varint("requests_per_unit")? as u32,
            3 => is_unlimited = value.expect_varint("unlimited")? != 0,
            4 => drop(map.insert("name".into(), decode_text(value.expect_bytes("name")?)?.into())),
            5 => replaced.push(decode_replaced_name(value.expect_bytes("replaces")?)?),
            _ => {}
        }
    }
    map.retain(|_, name| *name != "");
    if is_unlimited {
        map.insert("unlimited".into(), true.into());
    } else {
        let unit = usize::try_from(unit).ok().and_then(|unit| UNIT_NAMES.get(unit)).unwrap_or(&UNIT_NAMES[0]);
        map.insert("unit".into(), unit.to_ascii_lowercase().into());
        map.insert("requests_per_unit".into(), requests.into());
    }
    if !replaced.is_empty() {
        map.insert("replaces".into(), replaced.into());
    }
    Ok(map.into())
}

fn decode_replaced_name(bytes: &[u8]) -> Result<Value, WireError> {
    let (mut name, mut fields) = (String::new(), MessageFields::new(bytes));
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            name = decode_text(value.expect_bytes("name")?)?;
        }
    }
    Ok(json!({ "name": name }))
}

fn decode_text(bytes: &[u8]) -> Result<String, WireError> {
    str::from_utf8(bytes).map(str::to_owned).map_err(|_| WireError::Utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_message(&mut out, number, |out| out.extend_from_slice(bytes));
        out
    }

    #[test]
    fn resource_becomes_a_file_of_the_reference_service() {
        let policy =
            [vec![0x08, 2, 0x10, 5], encode_field(4, b"n"), encode_field(5, &encode_field(1, b"other"))].concat();
        let below = [encode_field(1, b"user"), encode_field(3, &[0x18, 1]), vec![0x28, 1]].concat();
        let descriptor =
            [encode_field(1, b"path"), encode_field(2, b"/a"), encode_field(3, &policy), encode_field(4, &below)]
                .concat();
        let bytes = [
            encode_field(1, b"r"),
            encode_field(2, b"edge"),
            encode_field(3, &descriptor),
            encode_field(15, b"unknown"),
        ]
        .concat();
        let file = ConfigFile::decode(&bytes).expect("a resource");
        assert_eq!(file.name, "r");
        assert_eq!(
            serde_json::from_str::<Value>(&file.text).expect("JSON"),
            json!({"domain": "edge", "descriptors": [{
                "key": "path", "value": "/a",
                "rate_limit": {"unit": "minute", "requests_per_unit": 5, "name": "n", "replaces": [{"name": "other"}]},
                "descriptors": [{"key": "user", "shadow_mode": true, "rate_limit": {"unlimited": true}}],
            }]})
        );
    }

    #[test]
    fn depth_text_and_numbers_are_bounded() {
        let mut deep = encode_field(1, b"k");
        for _ in 0..MAX_DEPTH {
            deep = [encode_field(1, b"k"), encode_field(4, &deep)].concat();
        }
        let error = ConfigFile::decode(&encode_field(3, &deep)).expect_err("too deep");
        assert_eq!(error.to_string(), "too many levels of descriptors (maximum 16)");
        assert_eq!(ConfigFile::decode(&encode_field(2, &[0xff])), Err(WireError::Utf8));
        let many = encode_field(2, b"").repeat(MAX_RESOURCES + 1);
        assert!(DiscoveryResponse::decode(&many).is_err());
        let unknown = ConfigFile::decode(&encode_field(3, &encode_field(3, &[0x08, 0x63]))).expect("a resource");
        assert!(unknown.text.contains(r#""unit":"unknown""#), "{}", unknown.text);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = (DiscoveryResponse::decode(&bytes), ConfigFile::decode(&bytes));
        }
    }

    #[test]
    fn request_repeats_version_and_nonce_and_has_the_mistakes() {
        let out = DiscoveryRequest { version: "1", node: "n", nonce: "x", error: Some("wrong") }.to_bytes();
        let expected = [
            encode_field(1, b"1"),
            encode_field(2, &encode_field(1, b"n")),
            encode_field(4, TYPE_URL.as_bytes()),
            encode_field(5, b"x"),
            encode_field(6, &[&[0x08, 3][..], &encode_field(2, b"wrong")].concat()),
        ];
        assert_eq!(out, expected.concat());
    }
}
