//! Requests: the engine's input.

use std::fmt;

use tollgate::core::Cost;

use crate::inline::InternedLimits;

/// A request. Either all of its items are admitted, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The domain whose rules apply. The domain is also part of the keys of inline limits.
    pub domain: &'a [u8],
    /// The items, usually one.
    pub items: &'a [Item<'a>],
}

impl<'a> Request<'a> {
    /// Maximum number of items.
    pub const MAX_ITEMS: usize = 64;
    /// Maximum number of rules that all items together may match. The maximum bounds the time for which a request
    /// occupies a thread.
    pub const MAX_MATCHES: usize = 4096;

    /// Creates a request that is decided by the rules of a domain.
    pub fn new(domain: &'a (impl AsRef<[u8]> + ?Sized), items: &'a [Item<'a>]) -> Self {
        Self { domain: domain.as_ref(), items }
    }

    /// Creates a request with inline limits only.
    pub fn without_rules(items: &'a [Item<'a>]) -> Self {
        Self { domain: &[], items }
    }
}

/// A unit of work to count: attributes and a cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item<'a> {
    /// The attributes, in order. A name may occur several times. A condition then holds if any of the values matches
    /// (with `not`: if none matches), and `per` uses the first value.
    pub attributes: &'a [Attribute<'a>],
    /// The cost. If `None`, each rule determines the cost, which is usually 1.
    pub cost: Option<Cost>,
    /// An inline limit, used instead of rules.
    pub limit: Option<InlineLimit<'a>>,
}

impl<'a> Item<'a> {
    /// Maximum number of rules that one item may match. The maximum bounds the time for which an item occupies a
    /// thread.
    pub const MAX_RULES: usize = 256;
    /// Maximum number of attributes.
    pub const MAX_ATTRIBUTES: usize = 128;
    /// Maximum length of the name or value of an attribute, and of the key of an inline limit.
    pub const MAX_BYTES: usize = 8192;

    /// Creates an item with these attributes.
    pub fn new(attributes: &'a [Attribute<'a>]) -> Self {
        Self { attributes, ..Self::default() }
    }

    /// Creates an item that is counted under `key` by an inline limit.
    pub fn inline(key: &'a (impl AsRef<[u8]> + ?Sized), limits: &'a InternedLimits) -> Self {
        Self { limit: Some(InlineLimit { key: key.as_ref(), limits }), ..Self::default() }
    }

    /// Sets the cost.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(Cost::new(cost)), ..self }
    }
}

/// An attribute. Names and values are bytes, because values from the network need not be UTF-8. Rules compare the bytes
/// unchanged, except for addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The attribute name used in rules.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Creates an attribute.
    pub fn new(name: &'a (impl AsRef<[u8]> + ?Sized), value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { name: name.as_ref(), value: value.as_ref() }
    }
}

impl fmt::Debug for Attribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.name.escape_ascii(), self.value.escape_ascii().to_string())
    }
}

/// An inline limit and its key.
#[derive(Clone, Copy, Debug)]
pub struct InlineLimit<'a> {
    /// The key. The same key in another domain, or under a rule, is a different counter.
    pub key: &'a [u8],
    /// The limits, from [`Engine::intern_limits`](crate::Engine::intern_limits).
    pub limits: &'a InternedLimits,
}

/// Reason why a request was not decided. Nothing was spent, and the same request would fail again under the same rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// There are no rules for the domain.
    UnknownDomain {
        /// The name of the domain, truncated to a readable length.
        domain: String,
    },
    /// A count or length exceeds its maximum.
    TooMany {
        /// The name of the counted things, such as "items".
        what: &'static str,
        /// The count or length in the request.
        given: usize,
        /// The maximum.
        max: usize,
    },
    /// The request has no items.
    NoItems,
    /// The request asks for as much as possible, but does not state a maximum.
    NoAmount,
    /// The inline limit is invalid or not supported by the store.
    BadLimit {
        /// The problem.
        why: String,
    },
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain { domain } => write!(f, "unknown domain `{domain}`"),
            Self::TooMany { what, given, max } => write!(f, "too many {what}: {given} (maximum {max})"),
            Self::NoItems => f.write_str("the request has no items"),
            Self::NoAmount => f.write_str("missing cost: the maximum amount to take"),
            Self::BadLimit { why } => write!(f, "unsupported limit: {why}"),
        }
    }
}

impl std::error::Error for RequestError {}

/// Checks a request against the maximum counts and lengths.
#[inline]
pub(crate) fn check_size(request: &Request<'_>) -> Result<(), RequestError> {
    let is_short =
        |attribute: &Attribute<'_>| attribute.name.len() <= Item::MAX_BYTES && attribute.value.len() <= Item::MAX_BYTES;
    let fits = |item: &Item<'_>| {
        item.attributes.len() <= Item::MAX_ATTRIBUTES
            && item.limit.is_none_or(|inline| inline.key.len() <= Item::MAX_BYTES)
            && item.attributes.iter().all(is_short)
    };
    let has_few_items = (1..=Request::MAX_ITEMS).contains(&request.items.len());
    if has_few_items && request.items.iter().all(fits) { Ok(()) } else { check_each_size(request) }
}

#[inline(never)]
fn check_each_size(request: &Request<'_>) -> Result<(), RequestError> {
    if request.items.is_empty() {
        return Err(RequestError::NoItems);
    }
    let at_most = |what, given, max| if given > max { Err(RequestError::TooMany { what, given, max }) } else { Ok(()) };
    at_most("items", request.items.len(), Request::MAX_ITEMS)?;
    for item in request.items {
        at_most("attributes of an item", item.attributes.len(), Item::MAX_ATTRIBUTES)?;
        let longest = item.attributes.iter().map(|attribute| attribute.name.len().max(attribute.value.len())).max();
        at_most("bytes in an attribute", longest.unwrap_or(0), Item::MAX_BYTES)?;
        if let Some(inline) = item.limit {
            at_most("bytes in a key", inline.key.len(), Item::MAX_BYTES)?;
        }
    }
    Ok(())
}
