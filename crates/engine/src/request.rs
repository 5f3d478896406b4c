//! What is asked, in the caller's words.

use std::fmt;

use tollgate::core::Cost;

use crate::inline::InlineLimits;

/// One question: may all of this pass together?
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Whose rules apply. Not looked at if every item brings its own limit.
    pub domain: &'a [u8],
    /// Mostly one.
    pub items: &'a [Item<'a>],
}

impl<'a> Request<'a> {
    /// The most items a request may have.
    pub const MAX_ITEMS: usize = 64;

    /// A question to the rules of a domain.
    pub fn new(domain: &'a (impl AsRef<[u8]> + ?Sized), items: &'a [Item<'a>]) -> Self {
        Self { domain: domain.as_ref(), items }
    }

    /// A question about limits that come along with it.
    pub fn without_rules(items: &'a [Item<'a>]) -> Self {
        Self { domain: &[], items }
    }
}

/// Something to be counted: what is known about it, and what it weighs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Item<'a> {
    /// Its attributes, in order. A name may occur several times: a rule's condition holds if one of them fits, and counting
    /// goes by the first.
    pub entries: &'a [Entry<'a>],
    /// What it weighs. If this is not said, each rule says for itself; most say 1.
    pub cost: Option<Cost>,
    /// A limit to be used instead of the rules.
    pub limit: Option<Inline<'a>>,
}

impl<'a> Item<'a> {
    /// The most entries an item may have.
    pub const MAX_ENTRIES: usize = 128;
    /// The longest name or value of an entry, and the longest key of an inline limit.
    pub const MAX_BYTES: usize = 8192;

    /// Something with these attributes.
    pub fn new(entries: &'a [Entry<'a>]) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Something counted under `key` by a limit of its own.
    pub fn inline(key: &'a (impl AsRef<[u8]> + ?Sized), limits: &'a InlineLimits) -> Self {
        Self { limit: Some(Inline { key: key.as_ref(), limits }), ..Self::default() }
    }

    /// With a weight of its own.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(Cost::new(cost)), ..self }
    }
}

/// An attribute. Bytes, because keys from the network need not be text; rules compare them as they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is called in rules.
    pub name: &'a [u8],
    /// What it is.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// `name` is `value`.
    pub fn new(name: &'a (impl AsRef<[u8]> + ?Sized), value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { name: name.as_ref(), value: value.as_ref() }
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.name.escape_ascii(), self.value.escape_ascii().to_string())
    }
}

/// An inline limit, and what it counts.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a> {
    /// What is counted. The same key in another domain, or under a rule, is another counter.
    pub key: &'a [u8],
    /// From [`Engine::limits`](crate::Engine::limits).
    pub limits: &'a InlineLimits,
}

/// Why a request was not decided. The caller has to change something; nothing was spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// There are no rules for the domain.
    UnknownDomain {
        /// Its name, cut to a readable length.
        domain: String,
    },
    /// There is more of something than is looked at.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// There is nothing to be counted.
    NoItems,
    /// It does not say how much is to be taken at most.
    NoAmount,
    /// The inline limit cannot be kept.
    BadLimit {
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain { domain } => write!(f, "there are no rules for the domain `{domain}`"),
            Self::TooMany { what, given, max } => write!(f, "{what}: {given} are too many, at most {max} are taken"),
            Self::NoItems => f.write_str("the request has no items"),
            Self::NoAmount => f.write_str("the request does not say how much is wanted at most: give it a cost"),
            Self::BadLimit { why } => write!(f, "the limit cannot be kept: {why}"),
        }
    }
}

impl std::error::Error for RequestError {}

/// Whether a request is of a size that is looked at.
pub(crate) fn check_size(request: &Request<'_>) -> Result<(), RequestError> {
    if request.items.is_empty() {
        return Err(RequestError::NoItems);
    }
    let at_most = |what, given, max| if given > max { Err(RequestError::TooMany { what, given, max }) } else { Ok(()) };
    at_most("items of a request", request.items.len(), Request::MAX_ITEMS)?;
    for item in request.items {
        at_most("entries of an item", item.entries.len(), Item::MAX_ENTRIES)?;
        // All bits of all lengths: no length is beyond what these say together.
        let lengths = item.entries.iter().fold(0, |lengths, entry| lengths | entry.name.len() | entry.value.len());
        if lengths >= Item::MAX_BYTES {
            let longest = item.entries.iter().map(|entry| entry.name.len().max(entry.value.len())).max();
            at_most("bytes of an entry", longest.unwrap_or(0), Item::MAX_BYTES)?;
        }
        if let Some(inline) = item.limit {
            at_most("bytes of a key", inline.key.len(), Item::MAX_BYTES)?;
        }
    }
    Ok(())
}
