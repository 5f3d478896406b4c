//! Limits that change while the table is in use.
//!
//! A state belongs to the limit that it was last charged under, and every entry remembers which one by a small number, its
//! *generation* (see the law of changed parameters in ARCHITECTURE.md). So a change converts nothing: it adds a generation.
//!
//! The limit that the table was made with, or restored with, is kept inline, and the fast paths know only that one. They lock a
//! bucket by comparing its header with [`Keyed::flags`], which a change sets to [`NEVER`]: from then on every decision takes
//! the slow path, which reads the later limits under a lock. This costs a table whose limit never changes nothing, and one
//! whose limit has changed about fifty nanoseconds per decision. A thread that read the flags before the change still decides
//! under the earlier limit; it began before the change ended, so either order is right.
//!
//! If a later limit needs longer states, all entries move to a new table. The buckets of the old one stay locked, so a thread
//! that is about to take the fast path finds them locked and takes the slow path to the new table.

use std::sync::{PoisonError, RwLockReadGuard};

use tollgate_core::{Algorithm, Cells, CellsMut, Now, Spent};

use super::{CapacityError, Keyed};
use crate::account::Account;
use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;
use crate::table::{GENERATIONS, Slot, State, StateReader, Table};

/// Flags that no bucket has.
pub(super) const NEVER: u64 = u64::MAX;

/// What [`Keyed::set_limit`] changed.
#[derive(Debug)]
pub(super) struct LaterLimits<A> {
    /// The limits after the inline one, the last of them in force.
    later: Vec<A>,
    /// The table in use, if a later limit needed longer states.
    table: Option<Table>,
}

impl<A> Default for LaterLimits<A> {
    fn default() -> Self {
        Self { later: Vec::new(), table: None }
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Puts another limit in force, for waiters as well. What was spent stays spent: an entry belongs to the limit it was last
    /// charged under until a request for its key is admitted under the new one. Until then it refills under its own limit, and
    /// what it has used up counts against the capacity of the new one. Peeks, refusals and refunds do not change that.
    ///
    /// Decisions take a read lock after the first change. If the new limit needs longer states than the table has, all entries
    /// are moved to a new table, and decisions wait for that; if there are more entries than the table was made for, the least
    /// spent of them may be lost.
    ///
    /// Entries can belong to 1022 earlier limits at a time. Beyond that, limits without entries are dropped, and if that is not
    /// enough, entries come under the limit in force before this change if it can hold what they have used up.
    ///
    /// # Errors
    /// If the new table does not fit in memory, or 1022 earlier limits have entries with more used up than the limit in force can
    /// hold. The limit then stays as it was, and nothing is forgotten.
    pub fn set_limit(&self, limit: A) -> Result<(), CapacityError> {
        // A snapshot reads the generations while it runs.
        let walking = self.walking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        // Before the table is touched: from here on no fast path begins.
        self.flags.store(NEVER, Ordering::Relaxed);
        let words = limit.words();
        if words > self.table(&changes).state_words() {
            let table = self.rebuild(&changes, words)?;
            changes.table = Some(table);
        }
        if self.generation(&changes) == GENERATIONS - 1 {
            self.drop_unused(&mut changes);
        }
        if self.generation(&changes) == GENERATIONS - 1 {
            return Err(CapacityError { capacity: self.capacity });
        }
        let mut overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
        let words = words.max(overflow.words.len());
        overflow.words.resize(words, 0);
        drop(overflow);
        changes.later.push(limit);
        drop(changes);
        drop(walking);
        self.shards.notify_all();
        Ok(())
    }

    pub(super) fn changes(&self) -> RwLockReadGuard<'_, LaterLimits<A>> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn table<'a>(&'a self, changes: &'a LaterLimits<A>) -> &'a Table {
        changes.table.as_ref().unwrap_or(&self.table)
    }

    fn generation(&self, changes: &LaterLimits<A>) -> u64 {
        (self.earlier.len() + changes.later.len()) as u64
    }

    /// States of earlier limits may have to be read by the wall clock, even if the limit in force does not use it.
    pub(super) fn reader<'a>(&'a self, changes: &'a LaterLimits<A>, now: Now<'a>) -> KeyedReader<'a, A> {
        let unchanged = self.earlier.is_empty() && changes.later.is_empty();
        let now = if unchanged { now } else { Now::new(now.mono(), self.clock.wall(now.mono())) };
        KeyedReader { earlier: &self.earlier, inline: &self.limit, later: &changes.later, now }
    }

    /// Copies every entry to a table with states of `words`, and leaves the old table locked.
    fn rebuild(&self, changes: &LaterLimits<A>, words: usize) -> Result<Table, CapacityError> {
        let capacity = self.capacity;
        let table = Table::new(capacity, words).ok_or(CapacityError { capacity })?;
        let reader = self.reader(changes, self.clock.now());
        self.table(changes).retire(&reader, |fingerprint, from| {
            let copy = |to: &mut Slot<'_>, _| {
                (0..words).for_each(|word| to.state.set(word, from.state.get(word)));
                to.generation = from.generation;
            };
            if !reader.is_new(fingerprint, from) {
                table.upsert(fingerprint, &reader, reader.spent(fingerprint, from), copy);
            }
        });
        Ok(table)
    }

    /// Drops limits set later that no entry uses. If that frees too few, moves entries to the limit in force, where it can hold
    /// what they have used up.
    fn drop_unused(&self, changes: &mut LaterLimits<A>) {
        let reader = self.reader(changes, self.clock.now());
        let table = self.table(changes);
        let mut overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = |overflow: u64| {
            let mut used = vec![false; reader.generation() as usize + 1];
            table.for_each(&reader, |_, slot| used[slot.generation as usize] = true);
            used[overflow as usize] = true;
            used
        };
        let mut used = in_use(overflow.generation);
        if used.iter().filter(|used| **used).count() > used.len() / 2 {
            table.for_each(&reader, |fingerprint, slot| reader.visit(fingerprint, slot, |account| account.adopt()));
            overflow.visit(&reader, |account| account.adopt());
            used = in_use(overflow.generation);
        }
        // The limits that are not in the list of later ones stay, and so does the one in force.
        used[..=self.earlier.len()].fill(true);
        if let Some(in_force) = used.last_mut() {
            *in_force = true;
        }
        let renumbered = |generation: u64| used.iter().take(generation as usize).filter(|used| **used).count() as u64;
        table.for_each(&reader, |_, slot| slot.generation = renumbered(slot.generation));
        overflow.generation = renumbered(overflow.generation);
        let mut used = used.into_iter().skip(self.earlier.len() + 1);
        changes.later.retain(|_| used.next().unwrap_or(true));
    }
}

/// Reads the entries of the table, each under the limit that it belongs to.
pub(super) struct KeyedReader<'a, A> {
    /// The first generations.
    pub(super) earlier: &'a [A],
    /// The generation after them.
    pub(super) inline: &'a A,
    /// The generations after that, the last of them in force.
    pub(super) later: &'a [A],
    pub(super) now: Now<'a>,
}

impl<'a, A: Algorithm> KeyedReader<'a, A> {
    /// Returns the limit in force.
    pub(super) fn limit(&self) -> &'a A {
        self.later.last().unwrap_or(self.inline)
    }

    pub(super) fn now(&self, fingerprint: Fingerprint) -> Now<'a> {
        self.now.with_spread(fingerprint.low)
    }

    /// Returns the limit of a generation.
    pub(super) fn limit_of(&self, generation: u64) -> &'a A {
        let generation = generation as usize;
        match generation.checked_sub(self.earlier.len()) {
            None => self.earlier.get(generation).unwrap_or(self.inline),
            Some(0) => self.inline,
            Some(later) => self.later.get(later - 1).unwrap_or(self.limit()),
        }
    }

    /// Returns the account of a state that belongs to `generation`.
    pub(super) fn account<S>(&self, generation: u64, state: S, now: Now<'a>) -> Account<'a, A, S> {
        let own = (generation != self.generation()).then(|| self.limit_of(generation));
        Account { limit: self.limit(), own, state, now }
    }

    /// Runs `visit` on an entry, which belongs to the limit in force afterwards if it was charged under it.
    pub(super) fn visit<R>(
        &self,
        fingerprint: Fingerprint,
        slot: &mut Slot<'_>,
        visit: impl FnOnce(&mut Account<'_, A, State<'_>>) -> R,
    ) -> R {
        let mut account = self.account(slot.generation, slot.state, self.now(fingerprint));
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
        (self.earlier.len() + self.later.len()) as u64
    }

    fn is_new(&self, fingerprint: Fingerprint, slot: &Slot<'_>) -> bool {
        self.limit_of(slot.generation).is_new(&slot.state, &self.now(fingerprint))
    }

    fn spent(&self, fingerprint: Fingerprint, slot: &Slot<'_>) -> Spent {
        self.limit_of(slot.generation).spent(&slot.state, &self.now(fingerprint))
    }
}
