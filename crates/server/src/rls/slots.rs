//! The concurrency slots that descriptors hold, so that negative hits release them.
//!
//! A proxy charges a descriptor when a stream begins, and sends the same descriptor with negative hits when it ends. A slot
//! belongs to its holder, so its receipt is kept here, under the domain and the entries of the descriptor. A slot whose end is
//! never reported, or is reported to another server, is released when its lease ends.
//!
//! Envoy sends the negative hits of a refused stream as well, at once. They must not release the
//! slot of another stream, so refusals are counted for a while, and negative hits are matched to
//! refused streams first. Where a proxy does not send them, a slot may be released later
//! than its stream ends, when its lease ends; never earlier.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::Receipt;

/// Maximum number of receipts, and of refused descriptors, of a generation. Two generations are kept, so
/// that what is never released is dropped.
const MAX_GENERATION: usize = 50_000;

/// How long the negative hits of a refused stream are expected after the last refusal.
const REFUSED_FOR: Nanos = Nanos::from_secs(5);

/// The receipts of slots that are held.
#[derive(Debug, Default)]
pub struct HeldSlots {
    descriptors: Mutex<Descriptors>,
    /// Whether there has been a slot or a refusal. Relaxed: a caller that does not see it yet was refused before the slot was taken.
    is_used: AtomicBool,
}

/// Receipts and refusals are apart, so that refusals of many descriptors drop no receipts.
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
    /// What was added to the current generation.
    added: usize,
}

/// The refused streams of a descriptor whose negative hits have not arrived, and when the last was refused.
#[derive(Debug, Default)]
struct RefusedStreams {
    count: u32,
    last: Option<Time<Mono>>,
}

impl HeldSlots {
    /// Keeps the receipt of slots that a descriptor took.
    pub(super) fn hold(&self, descriptor: Vec<u8>, receipt: Receipt) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.receipts.make_room();
        descriptors.receipts.added += 1;
        descriptors.receipts.current.entry(descriptor.into()).or_default().push_back(receipt);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether there has been a slot, so that servers without concurrency limits do not look for any.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Remembers that a descriptor was refused, if it holds slots here.
    pub(super) fn refuse_if_held(&self, descriptor: &[u8], now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        if descriptors.receipts.has(descriptor) {
            descriptors.refusals.count(descriptor.to_vec(), now);
        }
    }

    /// Remembers that a descriptor was refused and took no slot.
    pub(super) fn refuse(&self, descriptor: Vec<u8>, now: Time<Mono>) {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.refusals.count(descriptor, now);
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the oldest receipt of a descriptor; `None` if a stream has ended that
    /// was refused.
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
    fn make_room(&mut self) {
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
    /// Counts a refusal, together with those before it.
    fn count(&mut self, descriptor: Vec<u8>, now: Time<Mono>) {
        let earlier = self.current.remove(&*descriptor).or_else(|| {
            self.make_room();
            self.added += 1;
            self.previous.remove(&*descriptor)
        });
        let count = earlier.unwrap_or_default().pending(now).saturating_add(1);
        self.current.insert(descriptor.into(), RefusedStreams { count, last: Some(now) });
    }

    /// Takes off one refusal whose negative hits are expected; returns whether there was one.
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
    /// Returns the number of refused streams whose negative hits are still expected.
    fn pending(&self, now: Time<Mono>) -> u32 {
        let is_recent = self.last.is_some_and(|last| now.since(last) < REFUSED_FOR);
        if is_recent { self.count } else { 0 }
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
        assert!(slots.descriptors.lock().unwrap().receipts.current.is_empty());
    }

    #[test]
    fn refusal_without_a_limit_counts_where_a_slot_is_held() {
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
