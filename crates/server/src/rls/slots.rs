//! The concurrency slots that descriptors hold until negative hits release the slots.
//!
//! A proxy charges a descriptor when a stream begins, and sends the same descriptor with negative hits when the stream
//! ends. Releasing a slot requires its receipt, so this module stores receipts by domain and descriptor entries. If the
//! end of a stream is never reported, or is reported to another server, its slot is released when the lease expires.
//!
//! Envoy also sends negative hits immediately after a stream was refused. These negative hits must not release the slot
//! of another stream. Therefore refusals are recorded for a few seconds, and negative hits are first matched with
//! refused streams. If a proxy does not send negative hits for refused streams, a slot may be released too late (when
//! its lease expires), but never too early.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::Receipt;

/// Maximum number of receipts or refused descriptors per generation. Two generations are kept. When the current
/// generation is full, the previous generation is dropped with its unreleased receipts.
const MAX_GENERATION_SIZE: usize = 50_000;

/// Time after a refusal within which its negative hits are expected.
const REFUSAL_EXPIRY: Nanos = Nanos::from_secs(5);

/// The receipts of held slots, and the recently refused streams.
#[derive(Debug, Default)]
pub struct HeldSlots {
    descriptors: Mutex<DescriptorSlots>,
    /// Whether a slot was ever held or refused. Relaxed ordering suffices: if a caller reads a stale `false`, its
    /// refusal counts as one from before the first slot was taken.
    was_ever_used: AtomicBool,
}

/// Receipts and refusals by descriptor, stored separately so that many refusals do not displace receipts.
#[derive(Debug, Default)]
struct DescriptorSlots {
    receipts: Generations<VecDeque<Receipt>>,
    refusals: Generations<RefusedStreams>,
}

/// A bounded map from descriptors to values. When the current generation is full, the previous generation is dropped.
#[derive(Debug, Default)]
struct Generations<T> {
    current: HashMap<Box<[u8]>, T>,
    previous: HashMap<Box<[u8]>, T>,
    /// Number of additions to the current generation.
    added: usize,
}

/// A descriptor's refused streams for which negative hits are still expected.
#[derive(Debug, Default)]
struct RefusedStreams {
    count: u32,
    /// The time at which the last stream was refused.
    last: Option<Time<Mono>>,
}

impl HeldSlots {
    /// Stores the receipt for the slots that a descriptor took.
    pub(super) fn add_receipt(&self, descriptor: Vec<u8>, receipt: Receipt) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.receipts.rotate_if_full();
        descriptors.receipts.added += 1;
        descriptors.receipts.current.entry(descriptor.into()).or_default().push_back(receipt);
        self.was_ever_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether a slot was ever held or refused. Callers can skip the lookup if this method returns false.
    pub(super) fn was_ever_used(&self) -> bool {
        self.was_ever_used.load(Ordering::Relaxed)
    }

    /// Records the refusal of a descriptor, but only if the descriptor holds slots.
    pub(super) fn record_refusal_if_held(&self, descriptor: &[u8], now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        if descriptors.receipts.contains_descriptor(descriptor) {
            descriptors.refusals.add_refusal(descriptor.to_vec(), now);
        }
    }

    /// Records the refusal of a descriptor.
    pub(super) fn record_refusal(&self, descriptor: Vec<u8>, now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.refusals.add_refusal(descriptor, now);
        self.was_ever_used.store(true, Ordering::Relaxed);
    }

    /// Handles negative hits. Removes and returns the oldest receipt of the descriptor. Returns `None` if the negative
    /// hits belong to a refused stream, or if the descriptor has no receipt.
    pub(super) fn take_receipt(&self, descriptor: &[u8], now: Time<Mono>) -> Option<Receipt> {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let DescriptorSlots { receipts, refusals } = &mut *descriptors;
        if refusals.remove_refusal(descriptor, now) {
            return None;
        }
        [&mut receipts.previous, &mut receipts.current].into_iter().find_map(|generation| {
            let held = generation.get_mut(descriptor)?;
            let receipt = held.pop_front();
            if held.is_empty() {
                generation.remove(descriptor);
            }
            receipt
        })
    }
}

impl<T> Generations<T> {
    /// Starts a new generation if the current generation is full, and drops the previous one.
    fn rotate_if_full(&mut self) {
        if self.added == MAX_GENERATION_SIZE {
            self.previous = std::mem::take(&mut self.current);
            self.added = 0;
        }
    }

    fn contains_descriptor(&self, descriptor: &[u8]) -> bool {
        self.current.contains_key(descriptor) || self.previous.contains_key(descriptor)
    }
}

impl Generations<RefusedStreams> {
    /// Adds one expected negative hit for a descriptor.
    fn add_refusal(&mut self, descriptor: Vec<u8>, now: Time<Mono>) {
        let earlier = self.current.remove(&*descriptor).or_else(|| {
            self.rotate_if_full();
            self.added += 1;
            self.previous.remove(&*descriptor)
        });
        let count = earlier.unwrap_or_default().expected_hits(now).saturating_add(1);
        self.current.insert(descriptor.into(), RefusedStreams { count, last: Some(now) });
    }

    /// Removes one expected negative hit of a descriptor. Returns whether a negative hit was expected.
    fn remove_refusal(&mut self, descriptor: &[u8], now: Time<Mono>) -> bool {
        for generation in [&mut self.previous, &mut self.current] {
            let Some(refusals) = generation.get_mut(descriptor) else { continue };
            let pending = refusals.expected_hits(now);
            refusals.count = pending.saturating_sub(1);
            if refusals.count == 0 {
                generation.remove(descriptor);
            }
            if pending > 0 {
                return true;
            }
        }
        false
    }
}

impl RefusedStreams {
    /// Returns the number of refused streams for which negative hits are still expected.
    fn expected_hits(&self, now: Time<Mono>) -> u32 {
        let is_recent = self.last.is_some_and(|last| now.since(last) < REFUSAL_EXPIRY);
        if is_recent { self.count } else { 0 }
    }
}

/// Returns the key of a descriptor. The key consists of the domain and the names and values of the entries, each
/// prefixed with its length.
pub(super) fn descriptor_key(domain: &[u8], entries: &[(&[u8], &[u8])]) -> Vec<u8> {
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
        slots.add_receipt(b"a".into(), Receipt::default());
        slots.record_refusal(b"a".into(), NOW);
        slots.record_refusal(b"a".into(), NOW);
        assert!(slots.take_receipt(b"a", NOW).is_none() && slots.take_receipt(b"a", NOW).is_none(), "two were refused");
        assert!(slots.take_receipt(b"a", NOW).is_some());
        slots.add_receipt(b"a".into(), Receipt::default());
        slots.record_refusal(b"a".into(), NOW);
        let later = NOW.saturating_add(REFUSAL_EXPIRY);
        assert!(slots.take_receipt(b"a", later).is_some(), "the refusal has expired");
        assert!(slots.descriptors.lock().unwrap().receipts.current.is_empty());
    }

    #[test]
    fn refusal_without_a_limit_counts_only_if_a_slot_is_held() {
        let slots = HeldSlots::default();
        assert!(!slots.was_ever_used());
        slots.add_receipt(b"a".into(), Receipt::default());
        slots.record_refusal_if_held(b"a", NOW);
        slots.record_refusal_if_held(b"b", NOW);
        assert!(
            slots.was_ever_used() && slots.take_receipt(b"a", NOW).is_none() && slots.take_receipt(b"a", NOW).is_some()
        );
        assert!(slots.descriptors.lock().unwrap().refusals.current.is_empty(), "nothing is kept for `b`");
    }

    #[test]
    fn refusals_of_many_descriptors_drop_no_receipts() {
        let slots = HeldSlots::default();
        slots.add_receipt(b"a".into(), Receipt::default());
        for number in 0..3 * MAX_GENERATION_SIZE as u32 {
            slots.record_refusal(number.to_be_bytes().into(), NOW);
        }
        assert!(slots.take_receipt(b"a", NOW).is_some());
    }

    #[test]
    fn oldest_receipt_of_a_descriptor_is_released_first() {
        let slots = HeldSlots::default();
        slots.add_receipt(b"a".into(), Receipt::default());
        slots.add_receipt(b"a".into(), Receipt::default());
        assert!(slots.take_receipt(b"b", NOW).is_none());
        assert!(slots.take_receipt(b"a", NOW).is_some() && slots.take_receipt(b"a", NOW).is_some());
        assert!(slots.take_receipt(b"a", NOW).is_none());
    }

    #[test]
    fn receipts_are_bounded_and_the_newest_are_kept() {
        let slots = HeldSlots::default();
        for number in 0..3 * MAX_GENERATION_SIZE as u32 {
            slots.add_receipt(number.to_be_bytes().into(), Receipt::default());
        }
        assert!(slots.take_receipt(&0_u32.to_be_bytes(), NOW).is_none());
        assert!(slots.take_receipt(&(3 * MAX_GENERATION_SIZE as u32 - 1).to_be_bytes(), NOW).is_some());
        let receipts = &slots.descriptors.lock().unwrap().receipts;
        assert!(receipts.current.len() + receipts.previous.len() <= 2 * MAX_GENERATION_SIZE);
    }

    #[test]
    fn different_descriptors_have_different_keys() {
        assert_ne!(descriptor_key(b"d", &[(b"ab", b"c")]), descriptor_key(b"d", &[(b"a", b"bc")]));
        assert_ne!(descriptor_key(b"d", &[(b"a", b"b")]), descriptor_key(b"da", &[(b"", b"b")]));
    }
}
