//! Many keys at once: their memory is fetched together, and neighbours in one bucket share its lock.
//!
//! A decision on a large table spends most of its time waiting for one cache line. A core can wait for about sixteen lines at
//! a time, if no load depends on an earlier one. So a batch first loads one word of each key's bucket, in a loop with nothing
//! else in it ([`touch_all`](Buckets::touch_all)), and only then takes the first lock, which later loads wait for.
//!
//! With a million keys a decision takes about a fifth of the time of a single one; with one key, 8 ns instead of 16.

use std::hint::black_box;

use super::Buckets;
use super::bucket::{Bucket, LINE_WORDS, Shape, State};
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;

/// Keys that are fetched together.
pub(crate) const BATCH: usize = 16;

impl<S: Shape> Buckets<S> {
    /// The fast path for up to [`BATCH`] keys, in order: calls `visit` with the index of each key and its state. Without a state the
    /// fast path does not apply to this key; no lock is held then.
    #[inline]
    pub(crate) fn try_visit_home_many(
        &self,
        fingerprints: &[Fingerprint],
        flags: u64,
        mut visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        let homes = self.touch_all(fingerprints);
        let mut index = 0;
        while let Some(home) = homes[..fingerprints.len()].get(index).copied() {
            let first = index;
            if let Some(bucket) = Bucket::lock_at(flags, self.words_of(home), home, self.shape) {
                // Consecutive keys of one bucket share its lock, and consecutive requests for one key its search.
                while let Some(fingerprint) = fingerprints.get(index).copied()
                    && homes[index] == home
                    && let Some(entry) = bucket.find(fingerprint)
                {
                    let mut state = bucket.state(entry);
                    while fingerprints.get(index) == Some(&fingerprint) {
                        visit(index, Some(&mut state));
                        index += 1;
                    }
                }
            }
            // The slow path may wait for any lock, so none may be held.
            if index == first {
                visit(index, None);
                index += 1;
            }
        }
    }

    /// Loads a word of every line that decisions about up to [`BATCH`] keys will read, and returns the home buckets.
    #[inline]
    pub(crate) fn touch_all(&self, fingerprints: &[Fingerprint]) -> [usize; BATCH] {
        let mut touched = 0;
        let mut homes = [0; BATCH];
        let mut previous = None;
        for (home, fingerprint) in homes.iter_mut().zip(fingerprints) {
            if let Some((same, index)) = previous
                && same == *fingerprint
            {
                *home = index;
                continue;
            }
            *home = self.home_of(*fingerprint);
            previous = Some((*fingerprint, *home));
            let words = self.words_of(*home);
            // The line of the header and, with longer states, the next one, where most states begin.
            let next = words.get(LINE_WORDS).map_or(0, |word| word.load(Ordering::Relaxed));
            touched ^= words[0].load(Ordering::Relaxed) ^ next;
        }
        // The other buckets of keys that are not in their home bucket. These loads depend on the first ones, but not on
        // each other.
        for (fingerprint, home) in fingerprints.iter().zip(&homes) {
            if !Bucket::is_at_home(self.words_of(*home), self.shape, *fingerprint) {
                touched ^= self.words_of(self.other_of(*fingerprint))[0].load(Ordering::Relaxed);
            }
        }
        // The compiler would drop loads whose results are not used.
        black_box(touched);
        homes
    }
}
