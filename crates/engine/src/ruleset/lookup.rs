//! A table of texts that is built once and then only read.
//!
//! A look costs two places in memory however many texts there are: a slot of 20 bytes, found by hash, and the text itself, to
//! be sure. Texts belong to *spaces*, so that one table serves for the values of all attributes and for the segments of
//! all paths: the same text in two spaces is two entries.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// Texts with a number for each.
#[derive(Debug)]
pub(super) struct Lookup {
    /// A power of two of them, at most half of them taken.
    slots: Box<[Slot]>,
    texts: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The lower half of the hash.
    hash: u32,
    /// Where the text begins.
    text: u32,
    /// Its length. All ones if the slot is empty.
    length: u32,
    space: u32,
    value: u32,
}

const EMPTY: Slot = Slot { hash: 0, text: 0, length: u32::MAX, space: 0, value: 0 };

impl Lookup {
    /// A table of what is given, which has no text twice in a space.
    pub(super) fn new(entries: &[(u32, Box<[u8]>, u32)]) -> Self {
        let mut slots = vec![EMPTY; (entries.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
        let mut texts = Vec::new();
        for (space, text, value) in entries {
            let hash = hash(*space, text);
            let mut place = place(hash, slots.len());
            while slots[place].length != EMPTY.length {
                place = (place + 1) & (slots.len() - 1);
            }
            let (start, length) = (texts.len() as u32, text.len() as u32);
            slots[place] = Slot { hash: hash as u32, text: start, length, space: *space, value: *value };
            texts.extend_from_slice(text);
        }
        Self { slots, texts: texts.into() }
    }

    /// The number of a text.
    #[inline]
    pub(super) fn get(&self, space: u32, text: &[u8]) -> Option<u32> {
        let hash = hash(space, text);
        let mut place = place(hash, self.slots.len());
        loop {
            let slot = &self.slots[place];
            if slot.hash == hash as u32 && slot.space == space && slot.length as usize == text.len() {
                let start = slot.text as usize;
                if self.texts[start..start + text.len()] == *text {
                    return Some(slot.value);
                }
            }
            // Half of the slots are empty, so one comes soon.
            if slot.length == EMPTY.length {
                return None;
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }
}

#[inline]
fn hash(space: u32, text: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u32(space);
    hasher.write(text);
    hasher.finish()
}

/// The upper half of the hash says where to begin: the lower one is compared.
#[inline]
fn place(hash: u64, slots: usize) -> usize {
    (hash >> 32) as usize & (slots - 1)
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
