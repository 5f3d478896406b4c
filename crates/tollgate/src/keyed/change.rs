//! Limits that change while the table is in use.
//!
//! A state belongs to the limit under which it was last charged. Every entry stores a small number that identifies that
//! limit, its *generation* ("Changed parameters" in ARCHITECTURE.md). So a change adds a generation and converts no
//! states.
//!
//! The limit with which the table was created or restored is stored inline, and the fast paths use only that limit. The
//! fast paths lock a bucket only if its header matches `Keyed::flags`. A change sets these flags to
//! [`FLAGS_OF_NO_BUCKET`], so every later decision takes the slow path, which reads the later limits under a lock. A
//! table whose limit never changes has no extra cost. After a change, a decision takes about 50 ns longer. A thread
//! that read the flags before the change still decides under the earlier limit. The decision of such a thread overlaps
//! the change, so either order is correct.
//!
//! If a later limit needs longer states, all entries move to a new table. All buckets of the old table that were ever
//! used stay locked. So a thread on the fast path finds a locked bucket and takes the slow path to the new table.

use tollgate_core::{Algorithm, Cells, CellsMut, Now, Spent};

use super::overflow::OverflowEntry;
use crate::account::Account;
use crate::fingerprint::Fingerprint;
use crate::table::{LockedEntry, State, StateReader, Table};

/// Flags that no bucket has.
pub(super) const FLAGS_OF_NO_BUCKET: u64 = u64::MAX;

/// The changes made by [`Keyed::set_limit`](super::Keyed::set_limit).
#[derive(Debug)]
pub(super) struct LaterLimits<A> {
    /// The limits that replaced the inline limit, in order. The last is the current limit.
    pub(super) later: Vec<A>,
    /// The table in use, if a later limit needed longer states.
    pub(super) table: Option<Table>,
}

impl<A> Default for LaterLimits<A> {
    fn default() -> Self {
        Self { later: Vec::new(), table: None }
    }
}

/// Interprets the state of each entry by the limit that was in force when the entry was last charged.
pub(super) struct KeyedReader<'a, A> {
    /// The limits of the first generations.
    pub(super) earlier: &'a [A],
    /// The limit of the generation after `earlier`.
    pub(super) inline: &'a A,
    /// The limits of the later generations. The last is the current limit.
    pub(super) later: &'a [A],
    pub(super) now: Now<'a>,
}

impl<'a, A: Algorithm> KeyedReader<'a, A> {
    /// Returns the current limit.
    pub(super) fn limit(&self) -> &'a A {
        self.later.last().unwrap_or(self.inline)
    }

    pub(super) fn now_for_key(&self, fingerprint: Fingerprint) -> Now<'a> {
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

    /// Runs `visit` on an entry. If `visit` charges the entry under the current limit, the entry belongs to that limit
    /// afterwards.
    pub(super) fn visit<R>(
        &self,
        fingerprint: Fingerprint,
        entry: &mut LockedEntry<'_>,
        visit: impl FnOnce(&mut Account<'_, A, State<'_>>) -> R,
    ) -> R {
        let mut account = self.account(entry.generation, entry.state, self.now_for_key(fingerprint));
        let result = visit(&mut account);
        if account.own.is_none() {
            entry.generation = self.generation();
        }
        result
    }

    /// Copies every used entry of `from` to a new table with longer states, and leaves the old table locked.
    pub(super) fn move_to_longer_table(&self, from: &Table, longer: &Table) {
        from.visit_all_and_stay_locked(self, |fingerprint, from| {
            let copy = |to: &mut LockedEntry<'_>, _| {
                (0..longer.state_words()).for_each(|word| to.state.set(word, from.state.get(word)));
                to.generation = from.generation;
            };
            if !self.is_unused(fingerprint, from) {
                longer.upsert(fingerprint, self, self.spent(fingerprint, from), copy);
            }
        });
    }

    /// Removes the generations without entries and renumbers the remaining generations. If more than half of the
    /// generations have entries, first converts each entry whose used amount is within the current limit to that limit.
    /// Returns, for each later limit, whether it is still in use.
    pub(super) fn renumber_generations(&self, table: &Table, overflow: &mut OverflowEntry) -> Vec<bool> {
        let in_use = |overflow: u64| {
            let mut used = vec![false; self.generation() as usize + 1];
            table.for_each(self, |_, entry| used[entry.generation as usize] = true);
            used[overflow as usize] = true;
            used
        };
        let mut used = in_use(overflow.generation);
        if used.iter().filter(|used| **used).count() > used.len() / 2 {
            table.for_each(self, |fingerprint, entry| {
                self.visit(fingerprint, entry, |account| account.convert_if_within_limit());
            });
            overflow.visit(self, |account| account.convert_if_within_limit());
            used = in_use(overflow.generation);
        }
        // Always keeps the earlier limits, the inline limit and the current limit.
        used[..=self.earlier.len()].fill(true);
        if let Some(in_force) = used.last_mut() {
            *in_force = true;
        }
        let renumbered = |generation: u64| used.iter().take(generation as usize).filter(|used| **used).count() as u64;
        table.for_each(self, |_, entry| entry.generation = renumbered(entry.generation));
        overflow.generation = renumbered(overflow.generation);
        used.split_off(self.earlier.len() + 1)
    }
}

impl<A: Algorithm> StateReader for KeyedReader<'_, A> {
    #[inline]
    fn generation(&self) -> u64 {
        (self.earlier.len() + self.later.len()) as u64
    }

    fn is_unused(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> bool {
        self.limit_of(entry.generation).is_unused(&entry.state, &self.now_for_key(fingerprint))
    }

    fn spent(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> Spent {
        self.limit_of(entry.generation).spent(&entry.state, &self.now_for_key(fingerprint))
    }
}
