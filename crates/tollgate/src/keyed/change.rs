//! Limits that change while there are states under earlier ones.

use std::sync::PoisonError;

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Now, Spent};

use super::{CapacityError, Keyed};
use crate::account::Account;
use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::table::{GENERATIONS, Slot, State, StateReader, Table};

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Puts another limit in force. What was spent stays spent: an entry belongs to the limit it was last charged under until a
    /// request for its key is admitted under the new one. Until then it refills under its own limit, and what it has used up
    /// counts against the capacity of the new one. Peeks, refusals and refunds change nothing about that.
    ///
    /// Only where the new limit needs larger entries than the table has is everything moved to a new table at once; should
    /// there be more entries than the table was made for, the least spent of them may find no room in it.
    ///
    /// Entries can belong to 1022 earlier limits at a time. Beyond that, limits without entries are dropped, and if that is not
    /// enough, entries come under the limit in force before this change, if it can hold what they have used up.
    ///
    /// # Errors
    /// When the new table does not fit in memory, or 1022 earlier limits have entries with more used up than the limit in force
    /// can hold. The limit then stays as it was, and nothing is forgotten.
    pub fn set_limit(&mut self, limit: A) -> Result<(), CapacityError> {
        let words = limit.words().max(self.table.state_words());
        if words > self.table.state_words() {
            self.rebuild(words)?;
        }
        if self.earlier.len() as u64 == GENERATIONS - 1 {
            self.drop_earlier();
        }
        if self.earlier.len() as u64 == GENERATIONS - 1 {
            return Err(CapacityError { capacity: self.capacity });
        }
        let overflow = self.overflow.get_mut().unwrap_or_else(PoisonError::into_inner);
        overflow.words.resize(words.max(overflow.words.len()), 0);
        self.earlier.push(std::mem::replace(&mut self.limit, limit));
        self.flags = self.table.flags(self.earlier.len() as u64);
        Ok(())
    }

    /// States of earlier limits may have to be read by the wall clock, though the one in force does without.
    pub(super) fn reader<'a>(&'a self, now: Now<'a>) -> KeyedReader<'a, A> {
        let now = if self.earlier.is_empty() { now } else { Now::new(now.mono(), self.clock.wall(now.mono())) };
        KeyedReader { limit: &self.limit, earlier: &self.earlier, now }
    }

    /// Moves every entry to a table with room for states of `words`.
    fn rebuild(&mut self, words: usize) -> Result<(), CapacityError> {
        let capacity = self.capacity;
        let table = Table::new(capacity, words).ok_or(CapacityError { capacity })?;
        let reader = self.reader(self.clock.now());
        self.table.for_each(&reader, |fingerprint, from| {
            let copy = |to: &mut Slot<'_>, _| {
                (0..words).for_each(|word| to.state.set(word, from.state.get(word)));
                to.generation = from.generation;
            };
            if !reader.is_new(fingerprint, from) {
                table.upsert(fingerprint, &reader, reader.spent(fingerprint, from), copy);
            }
        });
        self.table = table;
        Ok(())
    }

    /// Drops earlier limits that no entry belongs to; if that are too few, entries come under the limit in force where it holds
    /// what they have used up.
    fn drop_earlier(&mut self) {
        let reader = self.reader(self.clock.now());
        let count_used = |reader: &KeyedReader<'_, A>| {
            let mut used = vec![false; self.earlier.len() + 1];
            self.table.for_each(reader, |_, slot| used[slot.generation as usize] = true);
            used[self.overflow.lock().unwrap_or_else(PoisonError::into_inner).generation as usize] = true;
            used
        };
        let mut used = count_used(&reader);
        if used.iter().filter(|used| **used).count() > used.len() / 2 {
            self.table
                .for_each(&reader, |fingerprint, slot| reader.visit(fingerprint, slot, |account| account.adopt()));
            self.on_overflow(reader.now, |account| account.adopt());
            used = count_used(&reader);
        }
        // The generation in force stays, after all others.
        let last = self.earlier.len();
        used[last] = true;
        let renumbered = |generation: u64| used.iter().take(generation as usize).filter(|used| **used).count() as u64;
        self.table.for_each(&reader, |_, slot| slot.generation = renumbered(slot.generation));
        let overflow = self.overflow.get_mut().unwrap_or_else(PoisonError::into_inner);
        overflow.generation = renumbered(overflow.generation);
        let mut generations = used.iter();
        self.earlier.retain(|_| generations.next().copied().unwrap_or(false));
    }
}

impl<A: Algorithm, S: CellsMut> Account<'_, A, S> {
    /// Comes under the limit in force without a request, if it holds what is used up.
    fn adopt(&mut self) {
        if let Some(own) = self.own
            && self.weigh(Ask::Regardless(Cost::ZERO)).is_admitted()
        {
            self.limit.convert(own, &mut self.state, &self.now);
            self.own = None;
        }
    }
}

/// Judges the entries of the table, each by the limit that it belongs to.
pub(super) struct KeyedReader<'a, A> {
    pub(super) limit: &'a A,
    pub(super) earlier: &'a [A],
    pub(super) now: Now<'a>,
}

impl<'a, A: Algorithm> KeyedReader<'a, A> {
    pub(super) fn now(&self, fingerprint: Fingerprint) -> Now<'a> {
        self.now.with_spread(fingerprint.low)
    }

    /// The limit that an entry belongs to.
    pub(super) fn limit_of(&self, slot: &Slot<'_>) -> &'a A {
        self.earlier.get(slot.generation as usize).unwrap_or(self.limit)
    }

    /// Runs `visit` on an entry, which belongs to the limit in force afterwards if it was charged under it.
    pub(super) fn visit<R>(
        &self,
        fingerprint: Fingerprint,
        slot: &mut Slot<'_>,
        visit: impl FnOnce(&mut Account<'_, A, State<'_>>) -> R,
    ) -> R {
        let own = self.earlier.get(slot.generation as usize);
        let mut account = Account { limit: self.limit, own, state: slot.state, now: self.now(fingerprint) };
        let result = visit(&mut account);
        if account.own.is_none() {
            slot.generation = self.generation();
        }
        result
    }
}

impl<A: Algorithm> StateReader for KeyedReader<'_, A> {
    #[inline]
    fn generation(&self) -> u64 {
        self.earlier.len() as u64
    }

    fn is_new(&self, fingerprint: Fingerprint, slot: &Slot<'_>) -> bool {
        self.limit_of(slot).is_new(&slot.state, &self.now(fingerprint))
    }

    fn spent(&self, fingerprint: Fingerprint, slot: &Slot<'_>) -> Spent {
        self.limit_of(slot).spent(&slot.state, &self.now(fingerprint))
    }
}
