//! Encodes keys. A key identifies the state of one counter.
//!
//! ```text
//! format  kind  domain       rule         attributes counted by     values
//!   1      'r'  len, bytes   len, bytes   count, (len, bytes)*      (0 | len + 1, bytes)*
//!   1      's'  len, bytes   len, bytes                             an inline limit: domain and key
//! ```
//!
//! Every string is prefixed with its length, so that different tuples never encode to the same bytes. For example,
//! ("a", "b_c") differs from ("a_b", "c"), and a missing value differs from an empty value. The attribute names are
//! included, because a rule that starts to count by other attributes must start with new counters. Everything before
//! the values is known when the rule is loaded.

use tollgate::Limits;

use crate::receipt;
use crate::rules::CountedAddress;

/// The encoding version. Keys with different format versions are never equal.
const FORMAT_VERSION: u8 = 1;

const RULE_KIND: u8 = b'r';
const INLINE_KIND: u8 = b's';

/// Encodes the domain and the id of a rule, which are the first part of the rule's keys.
pub(crate) fn encode_rule_name(domain: &str, rule: &str) -> Box<[u8]> {
    let mut key = vec![FORMAT_VERSION, RULE_KIND];
    push_text(&mut key, domain.as_bytes());
    push_text(&mut key, rule.as_bytes());
    key.into()
}

/// Returns the part of a rule's keys before the values, which all keys of the rule share. For `on_change: reset`,
/// `generation` is the rule's limits. They become part of the prefix, so that a rule with changed limits starts with
/// new counters.
pub(crate) fn counter_key_prefix<'p>(
    domain: &str,
    rule: &str,
    per: impl ExactSizeIterator<Item = &'p str>,
    generation: Option<&Limits>,
) -> Box<[u8]> {
    let mut key = encode_rule_name(domain, rule).into_vec();
    push_length(&mut key, per.len() + usize::from(generation.is_some()));
    if let Some(limits) = generation {
        // No attribute name begins with a zero byte.
        let mut name = vec![0];
        name.extend_from_slice(&receipt::limits_to_bytes(limits));
        push_text(&mut key, &name);
    }
    per.for_each(|attribute| push_text(&mut key, attribute.as_bytes()));
    key.into()
}

/// Appends the value of an alternative attribute, preceded by the alternative's index. The index separates the counters
/// of different alternatives with equal values.
pub(crate) fn push_alternative(key: &mut Vec<u8>, index: u8, value: &[u8]) {
    push_length(key, value.len() + 2);
    key.push(index);
    key.extend_from_slice(value);
}

/// An additional counter that belongs to a rule's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SideCounter {
    /// The ban of the key.
    Ban = b'b' as isize,
    /// The refusals that count towards a ban.
    Refusals = b'n' as isize,
}

/// Appends the key of a side counter to `keys`. `key` is the range in `keys` of the rule's own key.
pub(crate) fn push_side_key(keys: &mut Vec<u8>, key: std::ops::Range<usize>, beside: SideCounter) {
    let start = keys.len();
    keys.extend_from_within(key);
    if let Some(kind) = keys.get_mut(start + 1) {
        *kind = beside as u8;
    }
}

/// Returns whether this is the key of a side counter.
pub(crate) fn is_side_key(key: &[u8]) -> bool {
    key.get(1).is_some_and(|kind| [SideCounter::Ban as u8, SideCounter::Refusals as u8].contains(kind))
}

/// Hashes a key to a stable, uniformly distributed number below 10,000, for `enforce`: FNV-1a with a final mix.
pub(crate) fn enforce_hash(key: &[u8]) -> u16 {
    let mut hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^= hash >> 32;
    ((u128::from(hash) * 10_000) >> 64) as u16
}

/// Appends the value of the next attribute in `per`.
#[inline(always)]
pub(crate) fn push_value(key: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => {
            push_length(key, value.len() + 1);
            key.extend_from_slice(value);
        }
        None => key.push(0),
    }
}

/// Appends an address as the value of the next attribute in `per`.
#[inline(never)]
pub(crate) fn push_address(key: &mut Vec<u8>, value: Option<&[u8]>) {
    match value.and_then(CountedAddress::from_value) {
        Some(counted) => push_value(key, Some(counted.as_bytes())),
        None => push_value(key, value),
    }
}

/// Appends the whole key of an inline limit.
#[inline]
pub(crate) fn push_inline(key: &mut Vec<u8>, domain: &[u8], name: &[u8]) {
    key.extend_from_slice(&[FORMAT_VERSION, INLINE_KIND]);
    push_text(key, domain);
    push_text(key, name);
}

/// Returns the part of a key that [`encode_rule_name`] encodes; `None` if the key does not belong to a rule.
pub(crate) fn rule_name_of(key: &[u8]) -> Option<&[u8]> {
    let mut rest = key.strip_prefix(&[FORMAT_VERSION, RULE_KIND])?;
    for _ in 0..2 {
        let length = take_length(&mut rest)?;
        rest = rest.get(length..)?;
    }
    Some(&key[..key.len() - rest.len()])
}

/// Returns the rule id in the key of a counter or side counter; empty if the key has none.
pub(crate) fn rule_id_of(key: &[u8]) -> &str {
    fn parse(key: &[u8]) -> Option<&str> {
        let (&[FORMAT_VERSION, kind], mut rest) = key.split_first_chunk()? else { return None };
        let domain = take_length(&mut rest).filter(|_| kind != INLINE_KIND)?;
        take_bytes(&mut rest, domain)?;
        let id = take_length(&mut rest)?;
        str::from_utf8(rest.get(..id)?).ok()
    }
    parse(key).unwrap_or_default()
}

/// Returns the part of a key that selects the server. For a rule, this is the first value that the rule counts by or,
/// if there is none, the rule id. For an inline limit, this is its name. A key with another format is returned whole. A
/// rule's side counters, such as its ban, are on the same server as the rule's counter.
pub(crate) fn partition_key(key: &[u8]) -> &[u8] {
    fn parse(key: &[u8]) -> Option<&[u8]> {
        let (&[FORMAT_VERSION, kind], mut rest) = key.split_first_chunk()? else { return None };
        let rest = &mut rest;
        let domain = take_length(rest)?;
        take_bytes(rest, domain)?;
        let length = take_length(rest)?;
        let name = take_bytes(rest, length)?;
        if kind == INLINE_KIND {
            return Some(name);
        }
        let mut values = 0;
        for _ in 0..take_length(rest)? {
            let length = take_length(rest)?;
            // The generation, whose name begins with a zero byte, has no value.
            values += usize::from(take_bytes(rest, length)?.first() != Some(&0));
        }
        let first = if values > 0 { take_length(rest)?.checked_sub(1) } else { None };
        first.map_or(Some(name), |length| take_bytes(rest, length))
    }
    parse(key).unwrap_or(key)
}

/// Returns the domain in a key; empty if the key cannot be decoded.
pub(crate) fn domain_of(key: &[u8]) -> &[u8] {
    let mut rest = key.get(2..).unwrap_or_default();
    take_length(&mut rest).and_then(|length| rest.get(..length)).unwrap_or_default()
}

/// Returns the name in an inline limit's key; empty for other keys.
pub(crate) fn inline_name_of(key: &[u8]) -> &[u8] {
    let parse = |key: &[u8]| {
        let mut rest = key.strip_prefix(&[FORMAT_VERSION, INLINE_KIND])?;
        let length = take_length(&mut rest)?;
        take_bytes(&mut rest, length)?;
        let length = take_length(&mut rest)?;
        Some(key.len() - rest.len()..key.len() - rest.len() + length)
    };
    parse(key).and_then(|range| key.get(range)).unwrap_or_default()
}

/// An attribute in `per`, and its value if present.
pub(crate) type CountedValue<'k> = (&'k [u8], Option<&'k [u8]>);

/// Decodes the attributes and values in a rule's key; `None` for other keys. If an attribute has alternatives, only the
/// alternative that was present is returned. If no alternative was present, the name lists all alternatives.
pub(crate) fn decode_counted_values(key: &[u8]) -> Option<Vec<CountedValue<'_>>> {
    let mut rest = &key[rule_name_of(key)?.len()..];
    let rest = &mut rest;
    let mut names = Vec::new();
    for _ in 0..take_length(rest)? {
        let length = take_length(rest)?;
        names.push(take_bytes(rest, length)?);
    }
    // The generation, whose name begins with a zero byte, has no value.
    names.retain(|name: &&[u8]| name.first() != Some(&0));
    let mut counted = Vec::with_capacity(names.len());
    for name in names {
        let value = match take_length(rest)?.checked_sub(1) {
            Some(length) => Some(take_bytes(rest, length)?),
            None => None,
        };
        counted.push(match value {
            Some(value) => decode_alternative(name, value),
            None => (name, None),
        });
    }
    Some(counted)
}

/// Returns the alternative whose index precedes the value, and the value itself.
fn decode_alternative<'k>(name: &'k [u8], value: &'k [u8]) -> CountedValue<'k> {
    if !name.windows(ALTERNATIVE_SEPARATOR.len()).any(|part| part == ALTERNATIVE_SEPARATOR) {
        return (name, Some(value));
    }
    let (index, value) = value.split_first().map_or((0, value), |(index, value)| (usize::from(*index), value));
    let mut rest = name;
    for at in 0.. {
        let end = rest.windows(ALTERNATIVE_SEPARATOR.len()).position(|part| part == ALTERNATIVE_SEPARATOR);
        let one = &rest[..end.unwrap_or(rest.len())];
        match end {
            Some(end) if at < index => rest = &rest[end + ALTERNATIVE_SEPARATOR.len()..],
            Some(_) | None => return (one.trim_ascii(), Some(value)),
        }
    }
    (name, Some(value))
}

/// Separates alternatives in an attribute name.
const ALTERNATIVE_SEPARATOR: &[u8] = b" or ";

fn take_bytes<'k>(rest: &mut &'k [u8], length: usize) -> Option<&'k [u8]> {
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(length);
        }
    }
    None
}

#[inline]
fn push_text(key: &mut Vec<u8>, text: &[u8]) {
    push_length(key, text.len());
    key.extend_from_slice(text);
}

/// Appends a length as a varint: seven bits per byte, lowest first; the top bit is set if more bytes follow.
#[inline]
fn push_length(key: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        key.push(length as u8 | 0x80);
        length >>= 7;
    }
    key.push(length as u8);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    fn rule_key(domain: &str, rule: &str, per: &[&str], values: &[Option<&str>]) -> Vec<u8> {
        let mut key = counter_key_prefix(domain, rule, per.iter().copied(), None).into_vec();
        values.iter().for_each(|value| push_value(&mut key, value.map(str::as_bytes)));
        key
    }

    fn inline_key(domain: &str, name: &str) -> Vec<u8> {
        let mut key = Vec::new();
        push_inline(&mut key, domain.as_bytes(), name.as_bytes());
        key
    }

    /// Stored keys outlive the process, so these bytes may change only together with `FORMAT_VERSION`.
    #[test]
    fn key_encoding_is_stable() {
        let long = "x".repeat(200);
        assert_eq!(rule_key("api", "r", &["k"], &[Some("v")]), b"\x01r\x03api\x01r\x01\x01k\x02v");
        assert_eq!(rule_key("api", "r", &["k"], &[None]), b"\x01r\x03api\x01r\x01\x01k\x00");
        assert_eq!(rule_key("api", "r", &[], &[]), b"\x01r\x03api\x01r\x00");
        assert_eq!(rule_key("api", "r", &["k"], &[Some(&long)])[..12], *b"\x01r\x03api\x01r\x01\x01k\xc9");
        assert_eq!(inline_key("", "user"), b"\x01s\x00\x04user");
    }

    #[test]
    fn keys_with_the_same_first_value_share_a_server() {
        let placed = |key: &[u8]| String::from_utf8_lossy(partition_key(key)).into_owned();
        assert_eq!(placed(&rule_key("api", "a", &["k"], &[Some("v")])), "v");
        assert_eq!(placed(&rule_key("web", "b", &["k", "l"], &[Some("v"), Some("w")])), "v");
        assert_eq!(placed(&rule_key("api", "a", &["k"], &[None])), "a", "the rule id selects the server");
        assert_eq!(placed(&rule_key("api", "a", &[], &[])), "a");
        assert_eq!(placed(&inline_key("api", "user")), "user");
        assert_eq!(placed(b"anything"), "anything");
        let mut keys = rule_key("api", "a", &["k"], &[Some("v")]);
        let own = keys.len();
        push_side_key(&mut keys, 0..own, SideCounter::Ban);
        assert_eq!(placed(&keys[own..]), "v", "a ban is on the server of its counter");
    }

    #[test]
    fn alternative_that_was_present_is_decoded() {
        let chain = ["user or  api_key or ip"];
        let counted = |push: &dyn Fn(&mut Vec<u8>)| {
            let mut key = counter_key_prefix("d", "r", chain.into_iter(), None).into_vec();
            push(&mut key);
            let (name, value) = decode_counted_values(&key).expect("the key of a rule").remove(0);
            (String::from_utf8_lossy(name).into_owned(), value.map(<[u8]>::to_vec))
        };
        for (index, name) in [(0, "user"), (1, "api_key"), (2, "ip"), (9, "ip")] {
            let expected = (name.to_owned(), Some(b"x".to_vec()));
            assert_eq!(counted(&|key| push_alternative(key, index, b"x")), expected);
        }
        assert_eq!(counted(&|key| push_value(key, None)), (chain[0].to_owned(), None));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panic(bytes: Vec<u8>) {
            prop_assert!(rule_name_of(&bytes).is_none_or(|name| bytes.starts_with(name)));
            decode_counted_values(&bytes);
            domain_of(&bytes);
            inline_name_of(&bytes);
        }

        #[test]
        fn different_tuples_have_different_keys(tuples in proptest::collection::vec(
            ("[ab]{0,2}", "[ab]{0,2}", proptest::collection::vec(("[ab]{0,2}", proptest::option::of("[ab\0]{0,2}")), 0..3)),
            0..200,
        )) {
            let mut known: HashMap<Vec<u8>, _> = HashMap::new();
            for tuple in &tuples {
                let (domain, rule, counted) = tuple;
                let per: Vec<&str> = counted.iter().map(|(name, _)| &**name).collect();
                let values: Vec<Option<&str>> = counted.iter().map(|(_, value)| value.as_deref()).collect();
                let other = known.entry(rule_key(domain, rule, &per, &values)).or_insert(tuple);
                prop_assert_eq!(*other, tuple);
                prop_assert!(!known.contains_key(&inline_key(domain, rule)));
                let inline = inline_key(domain, rule);
                prop_assert_eq!(domain_of(&inline), domain.as_bytes());
                prop_assert_eq!(inline_name_of(&inline), rule.as_bytes());
                let (name, key) = (encode_rule_name(domain, rule), rule_key(domain, rule, &per, &values));
                prop_assert_eq!(rule_name_of(&key), Some(&*name));
                let read = decode_counted_values(&key).unwrap_or_default();
                let read = read.into_iter().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)));
                let expected = counted.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone().map(String::into_bytes)));
                prop_assert!(read.eq(expected));
            }
        }
    }
}
