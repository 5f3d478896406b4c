//! A table of texts that is built once and then only read.
//!
//! A look costs one place in memory however many texts there are: a slot of 32 bytes, found by hash. Most texts are short,
//! and two words that overlap say all of them; only of a longer one the rest is elsewhere. Texts belong to *spaces*, so that
//! one table serves for the values of all attributes and for the segments of all paths: the same text in two spaces is two
//! entries.
//!
//! What is in the table was written by whoever wrote the rules, so nobody gains by texts whose hashes meet.

/// Texts with a number for each.
#[derive(Debug)]
pub(super) struct Lookup {
    /// A power of two of them, at most half of them taken.
    slots: Box<[Slot]>,
    /// Those that two words do not say.
    texts: Box<[u8]>,
}

/// Half a line of memory, and never across two.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot {
    told: Told,
    /// Where the text begins, if it is long.
    text: u32,
    value: u32,
}

const EMPTY: Slot = Slot { told: Told { kind: u64::MAX, first: 0, last: 0 }, text: 0, value: 0 };

/// What a text of up to [`SHORT`] bytes is told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    /// The space in the upper half, the length in the lower. All ones if a slot is empty.
    kind: u64,
    first: u64,
    last: u64,
}

/// The longest text that two words say.
const SHORT: usize = 16;

impl Lookup {
    /// A table of what is given, which has no text twice in a space.
    pub(super) fn new(entries: &[(u32, Box<[u8]>, u32)]) -> Self {
        let mut slots = vec![EMPTY; (entries.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
        let (mut texts, last) = (Vec::new(), slots.len() - 1);
        for (space, text, value) in entries {
            let told = Told::of(*space, text);
            let mut place = told.hash(text);
            while slots[place & last].told.kind != EMPTY.told.kind {
                place = place.wrapping_add(1);
            }
            slots[place & last] = Slot { told, text: texts.len() as u32, value: *value };
            if text.len() > SHORT {
                texts.extend_from_slice(text);
            }
        }
        Self { slots, texts: texts.into() }
    }

    /// The number of a text.
    // In the caller's midst: saving and restoring registers would take as long as all of this.
    #[inline(always)]
    pub(super) fn get(&self, space: u32, text: &[u8]) -> Option<u32> {
        let told = Told::of(space, text);
        let (mut place, last) = (told.hash(text), self.slots.len() - 1);
        loop {
            let slot = &self.slots[place & last];
            if slot.told == told && (text.len() <= SHORT || self.says(slot, text)) {
                return Some(slot.value);
            }
            // Half of the slots are empty, so one comes soon.
            if slot.told.kind == EMPTY.told.kind {
                return None;
            }
            place = place.wrapping_add(1);
        }
    }

    /// Whether the whole text of a slot is this one.
    #[inline(never)]
    fn says(&self, slot: &Slot, text: &[u8]) -> bool {
        self.texts.get(slot.text as usize..).is_some_and(|texts| texts.starts_with(text))
    }
}

impl Told {
    #[inline(always)]
    fn of(space: u32, text: &[u8]) -> Self {
        let (first, last) = ends(text);
        Self { kind: u64::from(space) << 32 | text.len() as u64 & u64::from(u32::MAX), first, last }
    }

    #[inline(always)]
    fn hash(&self, text: &[u8]) -> usize {
        let between = if text.len() > SHORT { hash_between(text) } else { 0x9E37_79B9_7F4A_7C15 };
        mix(self.kind ^ self.first ^ between, self.last ^ 0xA076_1D64_78BD_642F) as usize
    }
}

/// Of all but the first and the last word.
#[inline(never)]
fn hash_between(text: &[u8]) -> u64 {
    let words = text.as_chunks().0.iter().skip(1);
    words.fold(0x9E37_79B9_7F4A_7C15, |hash, word| mix(hash ^ u64::from_le_bytes(*word), 0xD6E8_FEB8_6659_FD93))
}

/// All bits of a product, folded: each depends on all of both factors.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Two words that up to [`SHORT`] bytes are told by, if their number is known. They overlap where there are fewer.
#[inline(always)]
fn ends(text: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
    }
    let Some(last) = text.len().checked_sub(1) else { return (0, 0) };
    // Of three these are all, of fewer some twice.
    (u64::from(text[0]) | u64::from(text[last / 2 + last % 2]) << 8, text[last].into())
}

/// Whether two texts are the same.
#[inline]
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && if one.len() > SHORT { one == other } else { ends(one) == ends(other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found_in_its_own_space() {
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
