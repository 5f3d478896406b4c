//! The values that a condition accepts. Long lists of strings are hash sets, so that a comparison
//! needs only one lookup.

use rustc_hash::FxHashSet;

use crate::rules::{Cidr, Glob, Pattern, parse_address};

/// The strings, patterns and networks of one condition.
#[derive(Debug)]
pub(super) struct Values {
    texts: StringSet,
    globs: Box<[Glob]>,
    prefixes: Box<[Box<[u8]>]>,
    networks: Option<Box<Networks>>,
}

/// A set of strings. Comparing up to [`MAX_LISTED_STRINGS`] strings one by one is faster than hashing the value.
#[derive(Debug)]
enum StringSet {
    SmallList(Box<[Box<[u8]>]>),
    Many(FxHashSet<Box<[u8]>>),
}

const MAX_LISTED_STRINGS: usize = 8;

#[derive(Debug)]
struct Networks {
    /// The distinct prefix lengths in bits.
    bits: Box<[u8]>,
    known: FxHashSet<(u8, [u8; 16])>,
    /// Whether values that are not addresses match too.
    other_than_addresses: bool,
}

impl Values {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        let (mut texts, mut globs, mut prefixes, mut networks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut other_than_addresses = false;
        for pattern in patterns {
            match pattern {
                Pattern::Equals(text) => texts.push(Box::<[u8]>::from(text.as_bytes())),
                Pattern::Glob(glob) => globs.push(glob.clone()),
                Pattern::Prefix(text) => prefixes.push(Box::<[u8]>::from(text.as_bytes())),
                Pattern::Cidr(network) => networks.push(*network),
                Pattern::NotAnAddress => other_than_addresses = true,
            }
        }
        let texts = if texts.len() <= MAX_LISTED_STRINGS {
            StringSet::SmallList(texts.into())
        } else {
            StringSet::Many(texts.into_iter().collect())
        };
        let any = !networks.is_empty() || other_than_addresses;
        let networks = any.then(|| Box::new(Networks::new(&networks, other_than_addresses)));
        Self { texts, globs: globs.into(), prefixes: prefixes.into(), networks }
    }

    #[inline]
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let among_texts = match &self.texts {
            StringSet::SmallList(texts) => texts.iter().any(|text| **text == *value),
            StringSet::Many(texts) => texts.contains(value),
        };
        among_texts
            || self.globs.iter().any(|glob| glob.matches(value))
            || self.prefixes.iter().any(|prefix| value.starts_with(prefix))
            || self.networks.as_ref().is_some_and(|networks| networks.matches(value))
    }
}

impl Networks {
    fn new(networks: &[Cidr], other_than_addresses: bool) -> Self {
        let mut bits: Vec<u8> = networks.iter().map(Cidr::bits).collect();
        bits.sort_unstable();
        bits.dedup();
        let known = networks.iter().map(|network| (network.bits(), network.bytes())).collect();
        Self { bits: bits.into(), known, other_than_addresses }
    }

    fn matches(&self, value: &[u8]) -> bool {
        let Some(address) = parse_address(value) else { return self.other_than_addresses };
        self.bits.iter().any(|bits| self.known.contains(&(*bits, Cidr::bytes_of(address, *bits))))
    }
}
