//! Numbers that change while there are states under earlier ones.

use std::sync::{Mutex, PoisonError};

use tollgate_core::{Algorithm, Cells, CellsMut, Now, Spent};

use super::{Keyed, TooLarge};
use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::table::{GENERATIONS, Owner, State, Table};

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Puts other numbers in force. What was spent stays spent: an entry is converted when it is next looked at.
    ///
    /// Only where the new limit needs larger entries than the table has is everything moved to a new table at once; should
    /// there be more entries than the table was made for, the least spent of them may find no room in it. And every thousand
    /// changes, all entries that were not looked at in between are converted at once.
    ///
    /// # Errors
    /// When that table does not fit in memory; the old numbers then stay in force.
    pub fn set_limit(&mut self, limit: A) -> Result<(), TooLarge> {
        let words = limit.words().max(self.table.state_words());
        if words > self.table.state_words() {
            self.rebuild(words)?;
        } else if self.earlier.len() as u64 == GENERATIONS - 1 {
            self.table.begin_anew(&self.judge(self.clock.now()));
            self.earlier.clear();
        }
        let now = self.clock.now();
        let mut overflow = self.overflow.get_mut().unwrap_or_else(PoisonError::into_inner).to_vec();
        overflow.resize(words, 0);
        limit.convert(&self.limit, &mut *overflow, &now);
        self.overflow = Mutex::new(overflow.into());
        self.earlier.push(std::mem::replace(&mut self.limit, limit));
        Ok(())
    }

    /// States of earlier numbers may have to be read by the wall clock, though those in force do without.
    pub(super) fn judge<'a>(&'a self, now: Now<'a>) -> Judge<'a, A> {
        let now = if self.earlier.is_empty() { now } else { Now::new(now.mono(), self.clock.wall(now.mono())) };
        Judge { limit: &self.limit, earlier: &self.earlier, now }
    }

    /// Moves every entry to a table with room for states of `words`, under the numbers in force alone.
    fn rebuild(&mut self, words: usize) -> Result<(), TooLarge> {
        let capacity = self.capacity;
        let table = Table::new(capacity, words).ok_or(TooLarge { capacity })?;
        let now = self.clock.now();
        let new_owner = Judge { limit: &self.limit, earlier: &[], now };
        self.table.for_each(&self.judge(now), |print, from| {
            let copy = |to: &mut State<'_>, _| (0..words).for_each(|word| to.set(word, from.get(word)));
            if !new_owner.is_new(print, from) {
                table.enter(print, &new_owner, new_owner.spent(print, from), copy);
            }
        });
        self.table = table;
        self.earlier.clear();
        Ok(())
    }
}

/// Tells the table what its entries are worth.
pub(super) struct Judge<'a, A> {
    pub(super) limit: &'a A,
    pub(super) earlier: &'a [A],
    pub(super) now: Now<'a>,
}

impl<A> Judge<'_, A> {
    pub(super) fn now(&self, print: Fingerprint) -> Now<'_> {
        self.now.with_spread(print.low)
    }
}

impl<A: Algorithm> Owner for Judge<'_, A> {
    #[inline]
    fn generation(&self) -> u64 {
        self.earlier.len() as u64
    }

    fn convert(&self, print: Fingerprint, state: &mut State<'_>, written_under: u64) {
        if let Some(old) = self.earlier.get(written_under as usize) {
            self.limit.convert(old, state, &self.now(print));
        }
    }

    fn is_new(&self, print: Fingerprint, state: &State<'_>) -> bool {
        self.limit.is_new(state, &self.now(print))
    }

    fn spent(&self, print: Fingerprint, state: &State<'_>) -> Spent {
        self.limit.spent(state, &self.now(print))
    }
}
