//! Packed counts of past slices.

use crate::algorithm::{Cells, CellsMut};

/// Layout of the past slices' counts, several per word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SliceRing {
    pub(super) head: HeadLayout,
    /// Index of the first word.
    pub(super) first: usize,
    slices: u64,
    /// Binary logarithm of the number of counts per word.
    log2_counts_per_word: u32,
}

/// Storage of the sum and the current count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HeadLayout {
    /// The sum and the count share one word.
    Packed,
    /// The sum and the count have one word each.
    Wide,
}

impl SliceRing {
    /// Returns the layout for counts up to `largest`.
    #[inline]
    pub(super) const fn new(slices: u64, largest: u64) -> Self {
        let log2_counts_per_word = match largest {
            0..=0xFF => 3,
            0x100..=0xFFFF => 2,
            0x1_0000..=0xFFFF_FFFF => 1,
            _ => 0,
        };
        let (head, first) = if log2_counts_per_word > 0 { (HeadLayout::Packed, 2) } else { (HeadLayout::Wide, 3) };
        Self { head, first, slices, log2_counts_per_word }
    }

    pub(super) const fn words(self) -> usize {
        self.slices.div_ceil(1 << self.log2_counts_per_word) as usize
    }

    /// Returns the word index of the count of slice `number`, its bit offset, and the largest count.
    #[inline]
    const fn count_position(self, number: u64) -> (usize, u32, u64) {
        let slot = number % self.slices;
        let bits = 64 >> self.log2_counts_per_word;
        (
            self.first + (slot >> self.log2_counts_per_word) as usize,
            (slot as u32 & ((1 << self.log2_counts_per_word) - 1)) * bits,
            u64::MAX >> (64 - bits),
        )
    }

    /// Returns a slice number with the same ring position as the slice `back` slices before `number`.
    pub(super) const fn slice_number_before(self, number: u64, back: u64) -> u64 {
        number.wrapping_add(self.slices - back)
    }

    /// Returns the count of the slice `back` slices before `number`.
    pub(super) fn count_before<S: Cells + ?Sized>(self, state: &S, number: u64, back: u64) -> u64 {
        self.get(state, self.slice_number_before(number, back))
    }

    #[inline]
    pub(super) fn get<S: Cells + ?Sized>(self, state: &S, number: u64) -> u64 {
        let (word, shift, mask) = self.count_position(number);
        state.get(word) >> shift & mask
    }

    #[inline]
    pub(super) fn set<S: CellsMut + ?Sized>(self, state: &mut S, number: u64, count: u64) {
        let (word, shift, mask) = self.count_position(number);
        state.set(word, state.get(word) & !(mask << shift) | count.min(mask) << shift);
    }

    pub(super) fn clear<S: CellsMut + ?Sized>(self, state: &mut S) {
        (self.first..self.first + self.words()).for_each(|word| state.set(word, 0));
    }
}
