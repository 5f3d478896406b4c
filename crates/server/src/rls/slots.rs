//! The concurrency slots that descriptors hold, so that negative hits release them.
//!
//! A proxy charges a descriptor when a stream begins, and sends the same descriptor with negative hits when it ends. A slot
//! belongs to its holder, so its receipt is kept here, under the domain and the entries of the descriptor. A slot whose end is
//! never reported, or is reported to another server, is released when its lease ends.
//!
//! Envoy sends the negative hits of a refused stream as well, at once. They must not release the
//! slot of another stream, so refusals are counted for a while, and negative hits are taken for
//! those of a refused stream first. Where a proxy does not send them, a slot may be released later
//! than its stream ends, when its lease ends; never earlier.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::Receipt;

/// Maximum number of receipts of a generation. Two generations are kept, so that the receipts of slots that are never released are dropped.
const MAX_GENERATION: usize = 50_000;

/// How long the negative hits of a refused stream are expected after the last refusal.
const REFUSED_FOR: Nanos = Nanos::from_secs(5);

/// The receipts of slots that are held.
#[derive(Debug, Default)]
pub struct HeldSlots {
    generations: Mutex<Generations>,
    /// Whether there has been a slot or a refusal. Relaxed: a caller that does not see it yet was refused before the slot was taken.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct Generations {
    current: HashMap<Box<[u8]>, DescriptorSlots>,
    previous: HashMap<Box<[u8]>, DescriptorSlots>,
    /// The receipts and descriptors that were added to the current generation.
    added: usize,
}

/// The slots of a descriptor.
#[derive(Debug, Default)]
struct DescriptorSlots {
    receipts: VecDeque<Receipt>,
    /// The refused streams whose negative hits have not arrived, and when the last was refused.
    refused: u32,
    refused_at: Option<Time<Mono>>,
}

impl HeldSlots {
    /// Keeps the receipt of slots that a descriptor took.
    pub(super) fn hold(&self, descriptor: Vec<u8>, receipt: Receipt) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.make_room();
        generations.added += 1;
        generations.current.entry(descriptor.into()).or_default().receipts.push_back(receipt);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether there has been a slot, so that servers without concurrency limits do not look for any.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Remembers that a descriptor was refused, if it holds slots here.
    pub(super) fn refuse_if_held(&self, descriptor: &[u8], now: Time<Mono>) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { current, previous, .. } = &mut *generations;
        if let Some(slots) = current.get_mut(descriptor).or(previous.get_mut(descriptor)) {
            slots.refuse(now);
        }
    }

    /// Remembers that a descriptor was refused and took no slot.
    pub(super) fn refuse(&self, descriptor: Vec<u8>, now: Time<Mono>) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if !generations.current.contains_key(&*descriptor) {
            generations.make_room();
            generations.added += 1;
        }
        generations.current.entry(descriptor.into()).or_default().refuse(now);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the oldest receipt of a descriptor; `None` if a stream has ended that
    /// was refused.
    pub(super) fn release(&self, descriptor: &[u8], now: Time<Mono>) -> Option<Receipt> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { current, previous, .. } = &mut *generations;
        for slots in [&mut *previous, &mut *current].into_iter().filter_map(|it| it.get_mut(descriptor)) {
            slots.refused = slots.pending_refusals(now);
            if slots.refused > 0 {
                slots.refused -= 1;
                return None;
            }
        }
        [previous, current].into_iter().find_map(|generation| {
            let slots = generation.get_mut(descriptor)?;
            let receipt = slots.receipts.pop_front();
            if slots.receipts.is_empty() {
                generation.remove(descriptor);
            }
            receipt
        })
    }
}

impl Generations {
    /// Drops the previous generation if the current one is full.
    fn make_room(&mut self) {
        if self.added == MAX_GENERATION {
            self.previous = std::mem::take(&mut self.current);
            self.added = 0;
        }
    }
}

impl DescriptorSlots {
    fn refuse(&mut self, now: Time<Mono>) {
        self.refused = self.pending_refusals(now).saturating_add(1);
        self.refused_at = Some(now);
    }

    /// Returns the number of refused streams whose negative hits are still expected.
    fn pending_refusals(&self, now: Time<Mono>) -> u32 {
        let is_recent = self.refused_at.is_some_and(|refused| now.since(refused) < REFUSED_FOR);
        if is_recent { self.refused } else { 0 }
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

    const NOW: Time<Mono> = Time::from_nanos(0);

    #[test]
    fn negative_hits_of_a_refused_stream_release_no_slot() {
        let slots = HeldSlots::default();
        slots.hold(b"a".into(), Receipt::default());
        slots.refuse(b"a".into(), NOW);
        slots.refuse(b"a".into(), NOW);
        assert!(slots.release(b"a", NOW).is_none() && slots.release(b"a", NOW).is_none(), "two were refused");
        assert!(slots.release(b"a", NOW).is_some());
        slots.hold(b"a".into(), Receipt::default());
        slots.refuse(b"a".into(), NOW);
        let later = NOW.saturating_add(REFUSED_FOR);
        assert!(slots.release(b"a", later).is_some(), "they are not expected any longer");
        assert!(slots.generations.lock().unwrap().current.is_empty());
    }

    #[test]
    fn refusal_without_a_limit_counts_where_a_slot_is_held() {
        let slots = HeldSlots::default();
        assert!(!slots.is_used());
        slots.hold(b"a".into(), Receipt::default());
        slots.refuse_if_held(b"a", NOW);
        slots.refuse_if_held(b"b", NOW);
        assert!(slots.is_used() && slots.release(b"a", NOW).is_none() && slots.release(b"a", NOW).is_some());
        assert!(slots.generations.lock().unwrap().current.is_empty(), "nothing is kept for `b`");
    }

    #[test]
    fn refusals_of_one_descriptor_drop_no_receipts() {
        let slots = HeldSlots::default();
        slots.hold(b"a".into(), Receipt::default());
        for _ in 0..3 * MAX_GENERATION {
            slots.refuse(b"b".into(), NOW);
        }
        assert!(slots.release(b"a", NOW).is_some());
    }

    #[test]
    fn oldest_receipt_of_a_descriptor_is_released_first() {
        let slots = HeldSlots::default();
        slots.hold(b"a".into(), Receipt::default());
        slots.hold(b"a".into(), Receipt::default());
        assert!(slots.release(b"b", NOW).is_none());
        assert!(slots.release(b"a", NOW).is_some() && slots.release(b"a", NOW).is_some());
        assert!(slots.release(b"a", NOW).is_none());
    }

    #[test]
    fn receipts_are_bounded_and_the_newest_are_kept() {
        let slots = HeldSlots::default();
        for number in 0..3 * MAX_GENERATION as u32 {
            slots.hold(number.to_be_bytes().into(), Receipt::default());
        }
        assert!(slots.release(&0_u32.to_be_bytes(), NOW).is_none());
        assert!(slots.release(&(3 * MAX_GENERATION as u32 - 1).to_be_bytes(), NOW).is_some());
        let generations = slots.generations.lock().unwrap();
        assert!(generations.current.len() + generations.previous.len() <= 2 * MAX_GENERATION);
    }

    #[test]
    fn names_differ_where_descriptors_do() {
        assert_ne!(name(b"d", &[(b"ab", b"c")]), name(b"d", &[(b"a", b"bc")]));
        assert_ne!(name(b"d", &[(b"a", b"b")]), name(b"da", &[(b"", b"b")]));
    }
}
