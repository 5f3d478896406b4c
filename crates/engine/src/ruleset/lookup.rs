//! A read-only hash table of byte strings.
//!
//! A lookup usually reads one 32-byte slot, regardless of the table size. Most strings are short and fit into two
//! overlapping words. Longer strings are stored separately. Each string belongs to a *space*, and the same string in
//! two spaces is two entries. So one table serves the values of all attributes and the segments of all paths.
//!
//! The strings come from rule authors, so the hash need not resist deliberate collisions.

/// Maps strings to numbers.
#[derive(Debug)]
pub(super) struct Lookup {
    /// The slots; their number is a power of two, and at most half are occupied.
    slots: Box<[Slot]>,
    /// The strings longer than [`MAX_SHORT_BYTES`].
    texts: Box<[u8]>,
}

/// Half a cache line, aligned so that it never spans two lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot {
    key: StringKey,
    /// The offset of a long string in `texts`.
    text: u32,
    value: u32,
}

const EMPTY_SLOT: Slot = Slot { key: StringKey { kind: u64::MAX, first: 0, last: 0 }, text: 0, value: 0 };

/// Identifies a string of up to [`MAX_SHORT_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StringKey {
    /// The space in the upper half, and the length in the lower half. All ones for an empty slot.
    kind: u64,
    first: u64,
    last: u64,
}

/// Maximum length of a string that fits into two words.
pub(super) const MAX_SHORT_BYTES: usize = 16;

impl Lookup {
    /// Builds a table. A string may occur only once per space.
    pub(super) fn new(entries: &[(u32, Box<[u8]>, u32)]) -> Self {
        let mut slots = vec![EMPTY_SLOT; (entries.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
        let (mut texts, last) = (Vec::new(), slots.len() - 1);
        for (space, text, value) in entries {
            let key = StringKey::for_text(*space, text);
            let mut index = key.hash(text);
            while slots[index & last].key.kind != EMPTY_SLOT.key.kind {
                index = index.wrapping_add(1);
            }
            slots[index & last] = Slot { key, text: texts.len() as u32, value: *value };
            if text.len() > MAX_SHORT_BYTES {
                texts.extend_from_slice(text);
            }
        }
        Self { slots, texts: texts.into() }
    }

    /// Returns the number to which a string maps; `None` if the table does not contain the string. Always inlined,
    /// because a call would take as long as the lookup.
    #[inline(always)]
    pub(super) fn get(&self, space: u32, text: &[u8]) -> Option<u32> {
        let key = StringKey::for_text(space, text);
        let (mut index, last) = (key.hash(text), self.slots.len() - 1);
        loop {
            let slot = &self.slots[index & last];
            if slot.key == key && (text.len() <= MAX_SHORT_BYTES || self.equals_long(slot, text)) {
                return Some(slot.value);
            }
            // At least half of the slots are empty, so the loop is short.
            if slot.key.kind == EMPTY_SLOT.key.kind {
                return None;
            }
            index = index.wrapping_add(1);
        }
    }

    /// Returns whether the slot's long string equals `text`.
    #[inline(never)]
    fn equals_long(&self, slot: &Slot, text: &[u8]) -> bool {
        self.texts.get(slot.text as usize..).is_some_and(|texts| texts.starts_with(text))
    }
}

impl StringKey {
    #[inline(always)]
    pub(super) fn for_text(space: u32, text: &[u8]) -> Self {
        let (first, last) = first_and_last_bytes(text);
        Self { kind: u64::from(space) << 32 | text.len() as u64 & u64::from(u32::MAX), first, last }
    }

    #[inline(always)]
    fn hash(&self, text: &[u8]) -> usize {
        let between = if text.len() > MAX_SHORT_BYTES { hash_middle_words(text) } else { 0x9E37_79B9_7F4A_7C15 };
        folded_mul(self.kind ^ self.first ^ between, self.last ^ 0xA076_1D64_78BD_642F) as usize
    }
}

/// Hashes all complete words after the first. The last eight bytes are hashed separately.
#[inline(never)]
fn hash_middle_words(text: &[u8]) -> u64 {
    let words = text.as_chunks().0.iter().skip(1);
    words.fold(0x9E37_79B9_7F4A_7C15, |hash, word| folded_mul(hash ^ u64::from_le_bytes(*word), 0xD6E8_FEB8_6659_FD93))
}

/// Multiplies and combines both halves of the product, so that all bits of both factors affect the result.
#[inline]
fn folded_mul(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Returns two words that identify a string of known length, up to [`MAX_SHORT_BYTES`] bytes. The words overlap if the
/// string is shorter.
#[inline(always)]
fn first_and_last_bytes(text: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
    }
    let Some(last) = text.len().checked_sub(1) else { return (0, 0) };
    // Covers strings of one to three bytes. In a string of one or two bytes, some bytes are read more than once.
    (u64::from(text[0]) | u64::from(text[last / 2 + last % 2]) << 8, text[last].into())
}

/// Returns whether two strings are equal; fast for short strings.
#[inline]
pub(super) fn equals_short(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && if one.len() > MAX_SHORT_BYTES {
            one == other
        } else {
            first_and_last_bytes(one) == first_and_last_bytes(other)
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_is_found_in_its_own_space() {
        let texts = ["", "a", "b", "ab", &"x".repeat(1024)];
        let entries: Vec<_> = (0..600)
            .flat_map(|space| {
                texts.iter().map(move |text| (space, text.as_bytes().into(), space * 10 + text.len() as u32 % 9))
            })
            .collect();
        let lookup = Lookup::new(&entries);
        for (space, text, value) in &entries {
            assert_eq!(lookup.get(*space, text), Some(*value));
        }
        assert_eq!(lookup.get(600, b"a"), None);
        assert_eq!(lookup.get(3, b"c"), None);
        assert_eq!(lookup.get(3, &[b'x'; 1025]), None);
        assert_eq!(Lookup::new(&[]).get(0, b""), None);
    }
}
