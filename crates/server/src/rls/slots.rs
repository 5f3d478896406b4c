//! The concurrency slots that descriptors hold, so that negative hits release them.
//!
//! A proxy charges a descriptor when a stream begins, and sends the same descriptor with negative hits when it ends. A slot
//! belongs to its holder, so its receipt is kept here, under the domain and the entries of the descriptor. A slot whose end is
//! never reported, or is reported to another server, is released when its lease ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use tollgate_engine::Receipt;

/// Maximum number of receipts of a generation. Two generations are kept, so that the receipts of slots that are never released are dropped.
const MAX_GENERATION: usize = 50_000;

/// The receipts of slots that are held.
#[derive(Debug, Default)]
pub struct HeldSlots {
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    current: HashMap<Box<[u8]>, VecDeque<Receipt>>,
    previous: HashMap<Box<[u8]>, VecDeque<Receipt>>,
    /// The receipts that were added to the current generation.
    added: usize,
}

impl HeldSlots {
    /// Keeps the receipt of slots that a descriptor took.
    pub(super) fn hold(&self, descriptor: Vec<u8>, receipt: Receipt) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.added == MAX_GENERATION {
            generations.previous = std::mem::take(&mut generations.current);
            generations.added = 0;
        }
        generations.added += 1;
        generations.current.entry(descriptor.into()).or_default().push_back(receipt);
    }

    /// Removes and returns the oldest receipt of a descriptor.
    pub(super) fn release(&self, descriptor: &[u8]) -> Option<Receipt> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { current, previous, .. } = &mut *generations;
        [previous, current].into_iter().find_map(|generation| {
            let receipts = generation.get_mut(descriptor)?;
            let receipt = receipts.pop_front();
            if receipts.is_empty() {
                generation.remove(descriptor);
            }
            receipt
        })
    }
}

/// Returns the key of the slots of a descriptor: its domain and entries, each with its length.
pub(super) fn name(domain: &[u8], entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut name = Vec::with_capacity(64);
    for part in [domain].into_iter().chain(entries.iter().flat_map(|(key, value)| [*key, *value])) {
        name.extend_from_slice(&(part.len() as u32).to_be_bytes());
        name.extend_from_slice(part);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_receipt_of_a_descriptor_is_released_first() {
        let slots = HeldSlots::default();
        slots.hold(b"a".into(), Receipt::default());
        slots.hold(b"a".into(), Receipt::default());
        assert!(slots.release(b"b").is_none());
        assert!(slots.release(b"a").is_some() && slots.release(b"a").is_some());
        assert!(slots.release(b"a").is_none());
    }

    #[test]
    fn receipts_are_bounded_and_the_newest_are_kept() {
        let slots = HeldSlots::default();
        for number in 0..3 * MAX_GENERATION as u32 {
            slots.hold(number.to_be_bytes().into(), Receipt::default());
        }
        assert!(slots.release(&0_u32.to_be_bytes()).is_none());
        assert!(slots.release(&(3 * MAX_GENERATION as u32 - 1).to_be_bytes()).is_some());
        let generations = slots.generations.lock().unwrap();
        assert!(generations.current.len() + generations.previous.len() <= 2 * MAX_GENERATION);
    }

    #[test]
    fn names_differ_where_descriptors_do() {
        assert_ne!(name(b"d", &[(b"ab", b"c")]), name(b"d", &[(b"a", b"bc")]));
        assert_ne!(name(b"d", &[(b"a", b"b")]), name(b"da", &[(b"", b"b")]));
    }
}
