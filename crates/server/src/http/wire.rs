//! Parses JSON bodies. This module does not depend on limits or decisions.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::bounds::{MAX_ATTRIBUTE_VALUES, MAX_BATCH};

/// A parsed body: one request, or a batch of requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// An object.
    One(Box<WireRequest<'a>>),
    /// A list of objects, at most [`MAX_BATCH`].
    Many(Vec<WireRequest<'a>>),
}

/// An item of a body: a request or a receipt. A request is decided by the rules of a domain or by an inline limit.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `domain` and `attributes`, or with `key` and `limit`")]
pub struct WireRequest<'a> {
    /// The domain whose rules decide.
    #[serde(borrow, default)]
    pub domain: Option<JsonString<'a>>,
    /// The attributes of the request.
    #[serde(borrow, default)]
    pub attributes: Option<Attributes<'a>>,
    /// The cost; for a commit, the actual cost. Default for a decision: set by each rule, or 1 for an inline limit.
    #[serde(default, deserialize_with = "deserialize_integer")]
    pub cost: Option<u64>,
    /// The key by which an inline limit counts.
    #[serde(borrow, default)]
    pub key: Option<JsonString<'a>>,
    /// A rate such as `10/s`, or a number for concurrency.
    #[serde(borrow, default, deserialize_with = "deserialize_rate_or_count")]
    pub limit: Option<JsonString<'a>>,
    /// The burst size.
    #[serde(default, deserialize_with = "deserialize_integer")]
    pub burst: Option<u64>,
    /// The algorithm. Default: `token_bucket`.
    #[serde(borrow, default)]
    pub algorithm: Option<JsonString<'a>>,
    /// Maximum wait of an acquire.
    #[serde(default, deserialize_with = "deserialize_integer")]
    pub wait_ms: Option<u64>,
    /// For a decision, whether to return a receipt. For a settlement, the receipt.
    #[serde(borrow, default)]
    pub receipt: Option<ReceiptField<'a>>,
}

/// `true` or `false`, or a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "true, false, or a receipt")]
pub enum ReceiptField<'a> {
    /// Whether to return a receipt.
    Wanted(bool),
    /// A receipt to settle.
    Given(#[serde(borrow)] JsonString<'a>),
}

/// A string, borrowed from the body if it contains no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct JsonString<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Attribute names and values, in the order of the body. A value is a string, an integer, a boolean or a list.
/// Each list element becomes a separate pair with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a>(pub Vec<(JsonString<'a>, JsonString<'a>)>);

impl<'a> Body<'a> {
    /// Parses a body.
    ///
    /// # Errors
    /// Returns an error with a line and a column if the body is not valid JSON or has the wrong structure.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

/// Parses a body that is a list, some items at a time.
#[derive(Debug)]
pub struct ListReader<'a> {
    unread: &'a [u8],
    /// Whether an item was read. If so, a comma or the end of the list must follow.
    has_read_item: bool,
}

/// Number of bytes of a list after which [`ListReader::read_items`] stops. Parsing this many bytes takes less than
/// 0.1 ms.
const MAX_STEP_BYTES: usize = 8 * 1024;

/// Result of [`ListReader::read_items`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListProgress {
    /// More items may follow.
    More,
    /// The list is complete.
    End,
    /// The list is invalid. [`Body::parse`] returns the error.
    Invalid,
}

impl<'a> ListReader<'a> {
    /// Creates a reader. Returns `None` if the body is not a list.
    pub fn new(body: &'a [u8]) -> Option<Self> {
        Some(Self { unread: skip_whitespace(body).strip_prefix(b"[")?, has_read_item: false })
    }

    /// Reads up to `count` more items and appends them to `items`. Stops earlier after 8 KiB.
    pub fn read_items(&mut self, items: &mut Vec<WireRequest<'a>>, count: usize) -> ListProgress {
        let unread_before = self.unread.len();
        for _ in 0..count {
            if unread_before - self.unread.len() >= MAX_STEP_BYTES {
                break;
            }
            self.unread = skip_whitespace(self.unread);
            match self.unread {
                [b']', after @ ..] if skip_whitespace(after).is_empty() => return ListProgress::End,
                [b',', after @ ..] if self.has_read_item => self.unread = after,
                _ if !self.has_read_item => {}
                _ => return ListProgress::Invalid,
            }
            self.has_read_item = true;
            let mut values = serde_json::Deserializer::from_slice(self.unread).into_iter();
            match values.next() {
                Some(Ok(ListItem(item))) if items.len() < MAX_BATCH => items.push(item),
                Some(Ok(_) | Err(_)) | None => return ListProgress::Invalid,
            }
            self.unread = &self.unread[values.byte_offset()..];
        }
        ListProgress::More
    }
}

/// Skips leading JSON white space.
fn skip_whitespace(bytes: &[u8]) -> &[u8] {
    let space = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    &bytes[space..]
}

impl std::ops::Deref for JsonString<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Body<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;
        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = Body<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, or a list of objects")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let item = WireRequest::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Body::One(Box::new(item)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(ListItem(item)) = list.next_element()? {
                    if items.len() == MAX_BATCH {
                        return Err(A::Error::custom(format_args!(
                            "too many requests in a batch (maximum {MAX_BATCH})"
                        )));
                    }
                    items.push(item);
                }
                Ok(Body::Many(items))
            }
        }
        deserializer.deserialize_any(BodyVisitor)
    }
}

/// An item of a list. Unlike a derived implementation, this one does not accept a list of the fields in order.
struct ListItem<'a>(WireRequest<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for ListItem<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = ListItem<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `domain` and `attributes`, or with `key` and `limit`")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                WireRequest::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(ListItem)
            }
        }
        deserializer.deserialize_any(ObjectVisitor)
    }
}

/// Parses a non-negative integer.
fn deserialize_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct IntegerVisitor;
    impl Visitor<'_> for IntegerVisitor {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an integer from 0 to 2^64 - 1")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(IntegerVisitor)
}

/// Parses a string or a non-negative integer.
fn deserialize_rate_or_count<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<JsonString<'a>>, D::Error> {
    struct RateOrCountVisitor;
    impl<'de> Visitor<'de> for RateOrCountVisitor {
        type Value = Option<JsonString<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a rate such as \"10/s\", or an integer for concurrency")
        }

        fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
            Ok(Some(JsonString(Cow::Borrowed(text))))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(JsonString(Cow::Owned(text.to_owned()))))
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(JsonString(Cow::Owned(number.to_string()))))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(RateOrCountVisitor)
}

/// The JSON value of an attribute: a single value, or a list of values.
enum AttributeValues<'a> {
    One(JsonString<'a>),
    Many(Vec<JsonString<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for AttributeValues<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = AttributeValues<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, an integer, a boolean, or a list of these")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(AttributeValues::One(JsonString(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(AttributeValues::One(JsonString(Cow::Owned(text.to_owned()))))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(AttributeValues::One(JsonString(Cow::Borrowed(if value { "true" } else { "false" }))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(AttributeValues::One(JsonString(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(AttributeValues::One(JsonString(Cow::Owned(number.to_string()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<AttributeValues<'de>>()? {
            let AttributeValues::One(value) = value else {
                return Err(A::Error::custom("an attribute value cannot be a list of lists"));
            };
            if values.len() == MAX_ATTRIBUTE_VALUES {
                return Err(too_many_attributes());
            }
            values.push(value);
        }
        Ok(AttributeValues::Many(values))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AttributesVisitor;
        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                // An empty list counts as one value. Otherwise, a body could contain any number of empty lists.
                let (mut pairs, mut count) = (Vec::new(), 0);
                while let Some((name, values)) = map.next_entry::<JsonString<'de>, AttributeValues<'de>>()? {
                    match values {
                        AttributeValues::One(value) => {
                            count += 1;
                            pairs.push((name, value));
                        }
                        AttributeValues::Many(values) => {
                            count += values.len().max(1);
                            pairs.extend(values.into_iter().map(|value| (name.clone(), value)));
                        }
                    }
                    if count > MAX_ATTRIBUTE_VALUES {
                        return Err(too_many_attributes());
                    }
                }
                Ok(Attributes(pairs))
            }
        }
        deserializer.deserialize_map(AttributesVisitor)
    }
}

fn too_many_attributes<E: Error>() -> E {
    E::custom(format_args!("too many attributes (maximum {MAX_ATTRIBUTE_VALUES})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_and_describe(json: &str) -> String {
        match Body::parse(json.as_bytes()) {
            Ok(Body::One(item)) => {
                let pairs = item.attributes.unwrap_or_default().0;
                let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", name.0, value.0)).collect();
                format!("{} [{}] {}", item.domain.unwrap_or_default().0, pairs.join(" "), item.cost.unwrap_or(1))
            }
            Ok(Body::Many(items)) => format!("{} items", items.len()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn body_is_an_object_or_a_list() {
        for (json, expected) in [
            (r#"{"domain":"api","attributes":{"path":"/a\u0062"},"cost":3}"#, "api [path=/ab] 3"),
            (
                r#"{"attributes":{"n":1,"m":-2,"b":true,"l":["x","y"],"n":"again"}}"#,
                " [n=1 m=-2 b=true l=x l=y n=again] 1",
            ),
            ("[]", "0 items"),
            ("[{},{}]", "2 items"),
        ] {
            assert_eq!(parse_and_describe(json), expected, "{json}");
        }
    }

    #[test]
    fn list_parsed_in_parts_equals_the_list_parsed_whole() {
        for json in [
            "[]",
            " [ ] ",
            "[{}]",
            r#"[{"key":"a"} , {"key":"b","limit":"1/s"},{"domain":"d","attributes":{"x":"]"}}] "#,
            "[{},]",
            "[,{}]",
            "[{} {}]",
            "[{}",
            "[{}] x",
            "[7]",
            "[{}]]",
            r#"[{"domian":1}]"#,
            r#"[["api",{"a":"1"},3]]"#,
        ] {
            for count in 1..4 {
                let mut reader = ListReader::new(json.as_bytes()).expect("a list");
                let mut items = Vec::new();
                let end = std::iter::repeat_with(|| reader.read_items(&mut items, count))
                    .find(|read| *read != ListProgress::More);
                let read = (end == Some(ListProgress::End)).then_some(Body::Many(items));
                assert_eq!(read, Body::parse(json.as_bytes()).ok(), "{json}");
            }
        }
        assert!(ListReader::new(b"{}").is_none());
        let long_item = format!(r#"[{{"key":"{}"}},{{}}]"#, "k".repeat(MAX_STEP_BYTES));
        let (mut reader, mut items) = (ListReader::new(long_item.as_bytes()).expect("a list"), Vec::new());
        assert_eq!((reader.read_items(&mut items, 64), items.len()), (ListProgress::More, 1));
        assert_eq!((reader.read_items(&mut items, 64), items.len()), (ListProgress::End, 2));
        let many = format!("[{}{{}}]", "{},".repeat(MAX_BATCH));
        let mut items = Vec::new();
        let read = ListReader::new(many.as_bytes()).map(|mut reader| reader.read_items(&mut items, 2 * MAX_BATCH));
        assert_eq!((read, items.len()), (Some(ListProgress::Invalid), MAX_BATCH));
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (json, expected) in [
            ("", "EOF while parsing a value"),
            ("{", "EOF while parsing an object"),
            ("7", "expected an object, or a list of objects"),
            (r#"{"domian":"api"}"#, "unknown field `domian`, expected one of `domain`, `attributes`"),
            (r#"{"domain":7}"#, "expected a string"),
            (r#"{"cost":-1}"#, "expected an integer"),
            (r#"{"cost":"1"}"#, "expected an integer"),
            (r#"{"attributes":{"a":null}}"#, "expected a string, an integer, a boolean, or a list of these"),
            (r#"{"attributes":{"a":[["b"]]}}"#, "an attribute value cannot be a list of lists"),
            (r#"{"domain":"a"} x"#, "trailing characters"),
            (r#"{"domain":"a","domain":"b"}"#, "duplicate field `domain`"),
        ] {
            assert!(parse_and_describe(json).contains(expected), "{json}: {}", parse_and_describe(json));
        }
        assert!(Body::parse(b"{\"domain\":\"\xff\"}").unwrap_err().to_string().contains("unicode"));
    }

    #[test]
    fn input_at_a_bound_is_accepted_and_above_it_refused() {
        let batch = |count: usize| parse_and_describe(&format!("[{}]", vec!["{}"; count].join(",")));
        assert_eq!(batch(MAX_BATCH), "1000 items");
        assert!(batch(MAX_BATCH + 1).contains("too many requests in a batch (maximum 1000)"));
        let attributes = |count: usize| {
            let pairs: Vec<_> = (0..count).map(|n| format!(r#""a{n}":"""#)).collect();
            parse_and_describe(&format!(r#"{{"attributes":{{{}}}}}"#, pairs.join(",")))
        };
        assert!(attributes(MAX_ATTRIBUTE_VALUES).contains("a127="));
        assert!(attributes(MAX_ATTRIBUTE_VALUES + 1).contains("too many attributes (maximum 128)"));
        let empty_lists =
            |count| parse_and_describe(&format!(r#"{{"attributes":{{{}"b":[]}}}}"#, r#""a":[],"#.repeat(count)));
        assert_eq!(empty_lists(MAX_ATTRIBUTE_VALUES - 1), " [] 1");
        assert!(empty_lists(MAX_ATTRIBUTE_VALUES).contains("too many attributes (maximum 128)"));
        // The JSON parser limits the nesting depth.
        assert!(Body::parse("[".repeat(100_000).as_bytes()).is_err());
        assert!(Body::parse(format!("{{\"attributes\":{{\"a\":{}", "[".repeat(100_000)).as_bytes()).is_err());
    }

    #[test]
    fn unescaped_strings_are_borrowed() {
        let Ok(Body::One(item)) = Body::parse(br#"{"key":"a","limit":"1\u002fs"}"#) else { panic!("an object") };
        assert!(matches!(item.key, Some(JsonString(Cow::Borrowed("a")))));
        assert!(matches!(item.limit, Some(JsonString(Cow::Owned(_)))));
        let Ok(Body::One(item)) = Body::parse(br#"{"key":"a","limit":1}"#) else { panic!("an object") };
        assert_eq!(item.limit.as_deref(), Some("1"), "a number for concurrency");
    }
}
