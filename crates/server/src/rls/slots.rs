//! The concurrency slots that descriptors hold. Negative hits release them.
//!
//! A proxy charges a descriptor when a stream begins, and sends the same descriptor with negative hits when the stream
//! ends. Releasing a slot needs its receipt, so receipts are kept here by domain and descriptor entries. If the end of
//! a stream is never reported, or is reported to another server, its slot is released when the lease expires.
//!
//! Envoy also sends negative hits for a refused stream, immediately. They must not release the slot of another stream.
//! Therefore refusals are counted for a few seconds, and negative hits are first matched to refused streams. If a proxy
//! does not send negative hits for refused streams, a slot may be released too late (when its lease expires), but never
//! too early.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::Receipt;

/// Maximum number of receipts per generation, and also of refused descriptors. Two generations are kept. When the
/// current generation is full, the previous one is dropped together with the receipts that were never released.
const MAX_GENERATION: usize = 50_000;

/// Time after the last refusal within which negative hits for refused streams are expected.
const REFUSED_FOR: Nanos = Nanos::from_secs(5);

/// The receipts of held slots, and the recently refused streams.
#[derive(Debug, Default)]
pub struct HeldSlots {
    descriptors: Mutex<Descriptors>,
    /// Whether a slot was ever held or refused. Every access is relaxed: a caller that still reads false was refused
    /// before the first slot was taken.
    is_used: AtomicBool,
}

/// Receipts and refusals by descriptor. They are stored separately, so that refusals of many descriptors do not
/// displace receipts.
#[derive(Debug, Default)]
struct Descriptors {
    receipts: Generations<VecDeque<Receipt>>,
    refusals: Generations<RefusedStreams>,
}

/// Values by descriptor. When the current generation is full, the previous one is dropped.
#[derive(Debug, Default)]
struct Generations<T> {
    current: HashMap<Box<[u8]>, T>,
    previous: HashMap<Box<[u8]>, T>,
    /// Number of additions to the current generation.
    added: usize,
}

/// The refused streams of a descriptor whose negative hits are outstanding.
#[derive(Debug, Default)]
struct RefusedStreams {
    count: u32,
    /// When the last stream was refused.
    last: Option<Time<Mono>>,
}

impl HeldSlots {
    /// Stores the receipt of slots that a descriptor took.
    pub(super) fn hold(&self, descriptor: Vec<u8>, receipt: Receipt) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.receipts.rotate_if_full();
        descriptors.receipts.added += 1;
        descriptors.receipts.current.entry(descriptor.into()).or_default().push_back(receipt);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether a slot was ever held or refused. If not, callers can skip the lookup.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Counts the refusal of a descriptor if the descriptor holds slots. Does nothing otherwise.
    pub(super) fn refuse_if_held(&self, descriptor: &[u8], now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        if descriptors.receipts.has(descriptor) {
            descriptors.refusals.count(descriptor.to_vec(), now);
        }
    }

    /// Counts the refusal of a descriptor.
    pub(super) fn refuse(&self, descriptor: Vec<u8>, now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.refusals.count(descriptor, now);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Handles negative hits. Removes and returns the oldest receipt of the descriptor. Returns `None` if the hits
    /// belong to a refused stream or the descriptor has no receipt.
    pub(super) fn release(&self, descriptor: &[u8], now: Time<Mono>) -> Option<Receipt> {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let Descriptors { receipts, refusals } = &mut *descriptors;
        if refusals.take(descriptor, now) {
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
    /// Drops the previous generation if the current one is full.
    fn rotate_if_full(&mut self) {
        if self.added == MAX_GENERATION {
            self.previous = std::mem::take(&mut self.current);
            self.added = 0;
        }
    }

    fn has(&self, descriptor: &[u8]) -> bool {
        self.current.contains_key(descriptor) || self.previous.contains_key(descriptor)
    }
}

impl Generations<RefusedStreams> {
    /// Adds one to the outstanding refusals of a descriptor.
    fn count(&mut self, descriptor: Vec<u8>, now: Time<Mono>) {
        let earlier = self.current.remove(&*descriptor).or_else(|| {
            self.rotate_if_full();
            self.added += 1;
            self.previous.remove(&*descriptor)
        });
        let count = earlier.unwrap_or_default().pending(now).saturating_add(1);
        self.current.insert(descriptor.into(), RefusedStreams { count, last: Some(now) });
    }

    /// Removes one outstanding refusal of a descriptor. Returns whether there was one.
    fn take(&mut self, descriptor: &[u8], now: Time<Mono>) -> bool {
        for generation in [&mut self.previous, &mut self.current] {
            let Some(refusals) = generation.get_mut(descriptor) else { continue };
            let pending = refusals.pending(now);
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
    /// Returns the number of refused streams whose negative hits are outstanding.
    fn pending(&self, now: Time<Mono>) -> u32 {
        let is_recent = self.last.is_some_and(|last| now.since(last) < REFUSED_FOR);
        if is_recent { self.count } else { 0 }
    }
}

/// Returns the key of a descriptor: the domain and the names and values of the entries, each prefixed with its length.
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
        assert!(slots.release(b"a", later).is_some(), "the refusal has expired");
        assert!(slots.descriptors.lock().unwrap().receipts.current.is_empty());
    }

    #[test]
    fn refusal_without_a_limit_counts_only_if_a_slot_is_held() {
        let slots = HeldSlots::default();
        assert!(!slots.is_used());
        slots.hold(b"a".into(), Receipt::default());
        slots.refuse_if_held(b"a", NOW);
        slots.refuse_if_held(b"b", NOW);
        assert!(slots.is_used() && slots.release(b"a", NOW).is_none() && slots.release(b"a", NOW).is_some());
        assert!(slots.descriptors.lock().unwrap().refusals.current.is_empty(), "nothing is kept for `b`");
    }

    #[test]
    fn refusals_of_many_descriptors_drop_no_receipts() {
        let slots = HeldSlots::default();
        slots.hold(b"a".into(), Receipt::default());
        for number in 0..3 * MAX_GENERATION as u32 {
            slots.refuse(number.to_be_bytes().into(), NOW);
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
        let receipts = &slots.descriptors.lock().unwrap().receipts;
        assert!(receipts.current.len() + receipts.previous.len() <= 2 * MAX_GENERATION);
    }

    #[test]
    fn names_differ_where_descriptors_do() {
        assert_ne!(name(b"d", &[(b"ab", b"c")]), name(b"d", &[(b"a", b"bc")]));
        assert_ne!(name(b"d", &[(b"a", b"b")]), name(b"da", &[(b"", b"b")]));
    }
}
