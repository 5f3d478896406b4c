//! Many keys at once: their memory is fetched together, and their locks are waited for together.

use std::hint::black_box;

use super::Buckets;
use super::bucket::{Bucket, LINE_WORDS, Shape, State};
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;

/// Keys that are fetched together: as many lines as a core can wait for at a time.
pub(crate) const BATCH: usize = 16;
/// Keys that are locked together.
const GROUP: usize = 4;

impl<S: Shape> Buckets<S> {
    /// [`try_take_fast`](super::Table::try_take_fast) for up to [`BATCH`] keys, in order: `visit` is called with the place of each and its state,
    /// or with none if that does not apply; nothing is locked then.
    #[inline]
    pub(crate) fn try_home_many(
        &self,
        prints: &[Fingerprint],
        flags: u64,
        mut visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        let homes = self.touch_all(prints);
        for (first, (prints, homes)) in prints.chunks(GROUP).zip(homes.chunks(GROUP)).enumerate() {
            self.visit_group(prints, homes, flags, |place, state| visit(first * GROUP + place, state));
        }
    }

    /// Loads what decisions about up to [`BATCH`] keys will look at, and returns the homes. None of these loads waits for
    /// another, so a core fetches all of them at the same time; with anything longer than this between them it would not.
    #[inline]
    pub(crate) fn touch_all(&self, prints: &[Fingerprint]) -> [usize; BATCH] {
        let mut touched = 0;
        let mut homes = [0; BATCH];
        for (home, print) in homes.iter_mut().zip(prints) {
            *home = self.home(*print);
            let words = self.words_of(*home);
            // The header's line, and with longer states the next: that is where most of them begin.
            let next = words.get(LINE_WORDS).map_or(0, |word| word.load(Ordering::Relaxed));
            touched ^= words[0].load(Ordering::Relaxed) ^ next;
        }
        // Some are not at home. These loads wait for the first, but again not for each other.
        for (print, home) in prints.iter().zip(&homes) {
            if !Bucket::is_at_home(self.words_of(*home), self.shape, *print) {
                touched ^= self.words_of(self.other(*print))[0].load(Ordering::Relaxed);
            }
        }
        // They are wanted for their effect on the cache, which the compiler does not know of.
        black_box(touched);
        homes
    }

    /// Locks the homes of a few keys before it looks into any: what comes after a lock waits for it, so locks in a row are
    /// waited for only once. None is waited for in the other sense, since they are not taken in order.
    #[inline]
    fn visit_group(
        &self,
        prints: &[Fingerprint],
        homes: &[usize],
        flags: u64,
        mut visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        let mut locked = [const { None }; GROUP];
        let mut holder = [0; GROUP];
        for place in 0..prints.len().min(GROUP) {
            // Keys in one bucket share its lock: the same key many times over is locked once.
            holder[place] = (0..place).find(|earlier| homes[*earlier] == homes[place]).unwrap_or(place);
            if holder[place] == place {
                locked[place] = Bucket::lock_at(flags, self.words_of(homes[place]), homes[place], self.shape);
            }
        }
        for (place, print) in prints.iter().enumerate().take(GROUP) {
            let bucket = locked[holder[place]].as_ref();
            match bucket.and_then(|bucket| bucket.find(*print).map(|entry| bucket.state(entry))) {
                Some(mut state) => visit(place, Some(&mut state)),
                None => {
                    // The long way may wait for any lock, so none may be held. The rest of the group goes without, too.
                    locked = [const { None }; GROUP];
                    visit(place, None);
                }
            }
        }
    }
}
