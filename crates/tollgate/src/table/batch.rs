//! Many keys at once: their memory is fetched together, and their locks are taken together.
//!
//! A decision on a large table spends most of its time waiting for one cache line. A core can wait for about sixteen lines at
//! a time, if no load depends on an earlier one. So a batch first loads one word of each key's bucket, in a loop with nothing
//! else in it ([`touch_all`](Buckets::touch_all)). A lock is an atomic operation that later loads wait for, so the locks of
//! [`GROUP`] keys are taken in a row and their latencies overlap.

use std::hint::black_box;

use super::Buckets;
use super::bucket::{Bucket, LINE_WORDS, Shape, State};
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;

/// Keys that are fetched together.
pub(crate) const BATCH: usize = 16;
/// Keys that are locked together.
const GROUP: usize = 4;

impl<S: Shape> Buckets<S> {
    /// The fast path for up to [`BATCH`] keys, in order: calls `visit` with the index of each key and its state. Without a state the
    /// fast path does not apply to this key; no lock is held then.
    #[inline]
    pub(crate) fn try_home_many(
        &self,
        fingerprints: &[Fingerprint],
        flags: u64,
        mut visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        let homes = self.touch_all(fingerprints);
        for (first, (fingerprints, homes)) in fingerprints.chunks(GROUP).zip(homes.chunks(GROUP)).enumerate() {
            self.visit_group(fingerprints, homes, flags, |index, state| visit(first * GROUP + index, state));
        }
    }

    /// Loads a word of every line that decisions about up to [`BATCH`] keys will read, and returns the home buckets.
    #[inline]
    pub(crate) fn touch_all(&self, fingerprints: &[Fingerprint]) -> [usize; BATCH] {
        let mut touched = 0;
        let mut homes = [0; BATCH];
        for (home, fingerprint) in homes.iter_mut().zip(fingerprints) {
            *home = self.home(*fingerprint);
            let words = self.words_of(*home);
            // The line of the header and, with longer states, the next one, where most states begin.
            let next = words.get(LINE_WORDS).map_or(0, |word| word.load(Ordering::Relaxed));
            touched ^= words[0].load(Ordering::Relaxed) ^ next;
        }
        // The other buckets of keys that are not at home. These loads wait for the first ones, but not for each other.
        for (fingerprint, home) in fingerprints.iter().zip(&homes) {
            if !Bucket::is_at_home(self.words_of(*home), self.shape, *fingerprint) {
                touched ^= self.words_of(self.other(*fingerprint))[0].load(Ordering::Relaxed);
            }
        }
        // The compiler would drop loads whose results are not used.
        black_box(touched);
        homes
    }

    /// Locks the home buckets of a few keys before it reads any of them. Try-lock only: blocking out of order could deadlock.
    #[inline]
    fn visit_group(
        &self,
        fingerprints: &[Fingerprint],
        homes: &[usize],
        flags: u64,
        mut visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        let mut locked = [const { None }; GROUP];
        let mut holder = [0; GROUP];
        for index in 0..fingerprints.len().min(GROUP) {
            // Keys in one bucket share its lock.
            holder[index] = (0..index).find(|earlier| homes[*earlier] == homes[index]).unwrap_or(index);
            if holder[index] == index {
                locked[index] = Bucket::lock_at(flags, self.words_of(homes[index]), homes[index], self.shape);
            }
        }
        for (index, fingerprint) in fingerprints.iter().enumerate().take(GROUP) {
            let bucket = locked[holder[index]].as_ref();
            match bucket.and_then(|bucket| bucket.find(*fingerprint).map(|entry| bucket.state(entry))) {
                Some(mut state) => visit(index, Some(&mut state)),
                None => {
                    // The slow path may wait for any lock, so none may be held. The rest of the group takes the slow path too.
                    locked = [const { None }; GROUP];
                    visit(index, None);
                }
            }
        }
    }
}
