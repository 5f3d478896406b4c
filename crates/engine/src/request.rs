//! Requests.

use std::fmt;

use tollgate::core::Cost;

use crate::inline::InlineLimits;

/// A request: its items are admitted together or not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The domain whose rules apply. Unused if every item has an inline limit.
    pub domain: &'a [u8],
    /// Usually one.
    pub items: &'a [Item<'a>],
}

impl<'a> Request<'a> {
    /// Maximum number of items.
    pub const MAX_ITEMS: usize = 64;

    /// Creates a request to the rules of a domain.
    pub fn new(domain: &'a (impl AsRef<[u8]> + ?Sized), items: &'a [Item<'a>]) -> Self {
        Self { domain: domain.as_ref(), items }
    }

    /// Creates a request with inline limits only.
    pub fn without_rules(items: &'a [Item<'a>]) -> Self {
        Self { domain: &[], items }
    }
}

/// Something to count: its attributes and its cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item<'a> {
    /// The attributes, in order. A name may occur several times: a condition holds if one of the
    /// values matches, and `per` uses the first.
    pub entries: &'a [Entry<'a>],
    /// The cost. If it is not given, each rule determines it; usually 1.
    pub cost: Option<Cost>,
    /// A limit to use instead of the rules.
    pub limit: Option<Inline<'a>>,
}

impl<'a> Item<'a> {
    /// Maximum number of rules that one item may match: a request must not occupy a thread for long.
    pub const MAX_RULES: usize = 256;
    /// Maximum number of attributes.
    pub const MAX_ENTRIES: usize = 128;
    /// Maximum length of the name or value of an attribute, and of the key of an inline limit.
    pub const MAX_BYTES: usize = 8192;

    /// Creates an item with these attributes.
    pub fn new(entries: &'a [Entry<'a>]) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Creates an item that is counted under `key` by an inline limit.
    pub fn inline(key: &'a (impl AsRef<[u8]> + ?Sized), limits: &'a InlineLimits) -> Self {
        Self { limit: Some(Inline { key: key.as_ref(), limits }), ..Self::default() }
    }

    /// Sets the cost.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(Cost::new(cost)), ..self }
    }
}

/// An attribute. Bytes, because values from the network need not be UTF-8; rules compare them as
/// they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name in rules.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Creates an attribute.
    pub fn new(name: &'a (impl AsRef<[u8]> + ?Sized), value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { name: name.as_ref(), value: value.as_ref() }
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.name.escape_ascii(), self.value.escape_ascii().to_string())
    }
}

/// An inline limit and its key.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a> {
    /// The key. The same key in another domain, or under a rule, is another counter.
    pub key: &'a [u8],
    /// The limits, from [`Engine::intern_limits`](crate::Engine::intern_limits).
    pub limits: &'a InlineLimits,
}

/// Why a request was not decided. The caller must change something; nothing was spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// There are no rules for the domain.
    UnknownDomain {
        /// The name of the domain, cut to a readable length.
        domain: String,
    },
    /// There are more of something than allowed.
    TooMany {
        /// The name of what exceeds its maximum.
        what: &'static str,
        /// The number given.
        given: usize,
        /// The maximum.
        max: usize,
    },
    /// The request has no items.
    NoItems,
    /// The request does not state the maximum amount to take.
    NoAmount,
    /// The inline limit is invalid or not supported by the store.
    BadLimit {
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain { domain } => write!(f, "unknown domain `{domain}`"),
            Self::TooMany { what, given, max } => write!(f, "too many {what}: {given} (maximum {max})"),
            Self::NoItems => f.write_str("the request has no items"),
            Self::NoAmount => f.write_str("missing cost: the amount to take at most"),
            Self::BadLimit { why } => write!(f, "unsupported limit: {why}"),
        }
    }
}

impl std::error::Error for RequestError {}

/// Checks the sizes of a request.
pub(crate) fn check_size(request: &Request<'_>) -> Result<(), RequestError> {
    if request.items.is_empty() {
        return Err(RequestError::NoItems);
    }
    let at_most = |what, given, max| if given > max { Err(RequestError::TooMany { what, given, max }) } else { Ok(()) };
    at_most("items", request.items.len(), Request::MAX_ITEMS)?;
    for item in request.items {
        at_most("attributes of an item", item.entries.len(), Item::MAX_ENTRIES)?;
        // The bitwise or of all lengths bounds each of them.
        let lengths = item.entries.iter().fold(0, |lengths, entry| lengths | entry.name.len() | entry.value.len());
        if lengths >= Item::MAX_BYTES {
            let longest = item.entries.iter().map(|entry| entry.name.len().max(entry.value.len())).max();
            at_most("bytes in an attribute", longest.unwrap_or(0), Item::MAX_BYTES)?;
        }
        if let Some(inline) = item.limit {
            at_most("bytes in a key", inline.key.len(), Item::MAX_BYTES)?;
        }
    }
    Ok(())
}
