//! JSON bodies to messages. Nothing here knows what a limit is, or a decision.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::limits::{MAX_ATTRIBUTES, MAX_BATCH};

/// One request, or a batch of them.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// An object.
    One(Box<Item<'a>>),
    /// A list of objects, at most [`MAX_BATCH`].
    Many(Vec<Item<'a>>),
}

/// A request: by the rules of a domain, or with a limit of its own.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `domain` and `attributes`, or with `key` and `limit`")]
pub struct Item<'a> {
    /// Whose rules.
    #[serde(borrow, default)]
    pub domain: Option<Text<'a>>,
    /// What is known about the request.
    #[serde(borrow, default)]
    pub attributes: Option<Attributes<'a>>,
    /// What it weighs; 1 unless given.
    #[serde(default, deserialize_with = "whole")]
    pub cost: Option<u64>,
    /// Who is counted, for a limit sent along.
    #[serde(borrow, default)]
    pub key: Option<Text<'a>>,
    /// A rate such as `10/s`.
    #[serde(borrow, default)]
    pub limit: Option<Text<'a>>,
    /// The most that can pass at once.
    #[serde(default, deserialize_with = "whole")]
    pub burst: Option<u64>,
    /// `token_bucket` unless given.
    #[serde(borrow, default)]
    pub algorithm: Option<Text<'a>>,
    /// In an acquire, how long to wait at most.
    #[serde(default, deserialize_with = "whole")]
    pub wait_ms: Option<u64>,
    /// In a check, whether a receipt is wanted; in a refund, the receipt.
    #[serde(borrow, default)]
    pub receipt: Option<ReceiptField<'a>>,
}

/// `true` or `false`, or the text of a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "true, false, or the text of a receipt")]
pub enum ReceiptField<'a> {
    /// Whether one is wanted.
    Wanted(bool),
    /// One that was given.
    Given(#[serde(borrow)] Text<'a>),
}

/// A text, borrowed from the body where nothing in it is escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

/// Names and values in the order they were given. A value is a text, a whole number or a truth value, or a list of them, which
/// stands for the name given several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a>(pub Vec<(Text<'a>, Text<'a>)>);

impl<'a> Body<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// With the place and what was expected there.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Body<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bodies;
        impl<'de> Visitor<'de> for Bodies {
            type Value = Body<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object, or a list of objects")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let item = Item::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Body::One(Box::new(item)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MAX_BATCH {
                        return Err(A::Error::custom(format_args!("a batch has at most {MAX_BATCH} requests")));
                    }
                    items.push(item);
                }
                Ok(Body::Many(items))
            }
        }
        deserializer.deserialize_any(Bodies)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Texts)
    }
}

/// A number that counts something, in words that say so where it does not.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number below 2^64")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Whole)
}

/// One value, or several.
enum Values<'a> {
    One(Text<'a>),
    Many(Vec<Text<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Values<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a whole number, a truth value, or a list of these")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Values::One(Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Values::One(Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Values::One(Text(Cow::Borrowed(if value { "true" } else { "false" }))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Values::One(Text(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Values::One(Text(Cow::Owned(number.to_string()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<Values<'de>>()? {
            let Values::One(value) = value else { return Err(A::Error::custom("a list of lists is no attribute")) };
            if values.len() == MAX_ATTRIBUTES {
                return Err(too_many());
            }
            values.push(value);
        }
        Ok(Values::Many(values))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Maps;
        impl<'de> Visitor<'de> for Maps {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, values)) = map.next_entry::<Text<'de>, Values<'de>>()? {
                    match values {
                        Values::One(value) => pairs.push((name, value)),
                        Values::Many(values) => pairs.extend(values.into_iter().map(|value| (name.clone(), value))),
                    }
                    if pairs.len() > MAX_ATTRIBUTES {
                        return Err(too_many());
                    }
                }
                Ok(Attributes(pairs))
            }
        }
        deserializer.deserialize_map(Maps)
    }
}

fn too_many<E: Error>() -> E {
    E::custom(format_args!("a request has at most {MAX_ATTRIBUTES} attributes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(json: &str) -> String {
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
    fn a_body_is_an_object_or_a_list() {
        for (json, expected) in [
            (r#"{"domain":"api","attributes":{"path":"/a\u0062"},"cost":3}"#, "api [path=/ab] 3"),
            (
                r#"{"attributes":{"n":1,"m":-2,"b":true,"l":["x","y"],"n":"again"}}"#,
                " [n=1 m=-2 b=true l=x l=y n=again] 1",
            ),
            ("[]", "0 items"),
            ("[{},{}]", "2 items"),
        ] {
            assert_eq!(one(json), expected, "{json}");
        }
    }

    #[test]
    fn mistakes_are_told_with_what_was_expected() {
        for (json, expected) in [
            ("", "EOF while parsing a value"),
            ("{", "EOF while parsing an object"),
            ("7", "expected an object, or a list of objects"),
            (r#"{"domian":"api"}"#, "unknown field `domian`, expected one of `domain`, `attributes`"),
            (r#"{"domain":7}"#, "expected a text"),
            (r#"{"cost":-1}"#, "expected a whole number"),
            (r#"{"cost":"1"}"#, "expected a whole number"),
            (r#"{"attributes":{"a":null}}"#, "expected a text, a whole number, a truth value, or a list of these"),
            (r#"{"attributes":{"a":[["b"]]}}"#, "a list of lists is no attribute"),
            (r#"{"domain":"a"} x"#, "trailing characters"),
            (r#"{"domain":"a","domain":"b"}"#, "duplicate field `domain`"),
        ] {
            assert!(one(json).contains(expected), "{json}: {}", one(json));
        }
        assert!(Body::parse(b"{\"domain\":\"\xff\"}").unwrap_err().to_string().contains("unicode"));
    }

    #[test]
    fn limits_hold_at_their_edge() {
        let batch = |count: usize| one(&format!("[{}]", vec!["{}"; count].join(",")));
        assert_eq!(batch(MAX_BATCH), "1000 items");
        assert!(batch(MAX_BATCH + 1).contains("at most 1000 requests"));
        let attributes = |count: usize| {
            let pairs: Vec<_> = (0..count).map(|n| format!(r#""a{n}":"""#)).collect();
            one(&format!(r#"{{"attributes":{{{}}}}}"#, pairs.join(",")))
        };
        assert!(attributes(MAX_ATTRIBUTES).contains("a127="));
        assert!(attributes(MAX_ATTRIBUTES + 1).contains("at most 128 attributes"));
        // However deep, the parser gives up before the stack does.
        assert!(Body::parse("[".repeat(100_000).as_bytes()).is_err());
        assert!(Body::parse(format!("{{\"attributes\":{{\"a\":{}", "[".repeat(100_000)).as_bytes()).is_err());
    }

    #[test]
    fn what_is_not_escaped_is_borrowed() {
        let Ok(Body::One(item)) = Body::parse(br#"{"key":"a","limit":"1\u002fs"}"#) else { panic!("an object") };
        assert!(matches!(item.key, Some(Text(Cow::Borrowed("a")))));
        assert!(matches!(item.limit, Some(Text(Cow::Owned(_)))));
    }
}
