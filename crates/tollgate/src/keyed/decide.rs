//! Decisions, reads and refunds for a fingerprint, on the fast path, on the slow path and in the overflow entry.

use std::sync::{MutexGuard, PoisonError, RwLockReadGuard};

use tollgate_core::{Algorithm, Ask, Cost, Mono, Now, Retry, Spent, Time, Verdict, Wall};

use super::change::{KeyedReader, LaterLimits};
use super::overflow_charges::OverflowCharges;
use super::{Keyed, WhenFull, shard_of};
use crate::account::{Account, AccountView};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::sync::Ordering;
use crate::table::{BucketLayout, Buckets, Presence, State, Table};

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Returns the retry time if a single-word state refuses `cost`. Not inlined, because inlining would lengthen the
    /// code of an admission.
    #[inline(never)]
    pub(super) fn refuse_word(&self, word: u64, mono: Time<Mono>, wall: Time<Wall>, cost: Cost) -> Option<Retry> {
        self.limit.try_refuse_from_word(word, &Now::new(mono, wall), cost)
    }

    /// The fastest path for longer states: takes `cost` and returns the stamp. `None`: this path does not apply, and
    /// nothing was taken.
    ///
    /// The arguments and the result fit in registers; a `Now` or a `Verdict` would be passed in memory. For a token
    /// bucket of 7777/s, this path reduces a check from 336 to 193 instructions (callgrind).
    #[inline(never)]
    pub(super) fn try_take_words<S: BucketLayout>(
        &self,
        buckets: &Buckets<S>,
        fingerprint: Fingerprint,
        mono: Time<Mono>,
        wall: Time<Wall>,
        cost: Cost,
    ) -> Option<A::Stamp> {
        if !self.limit.has_words_fast_path() {
            return None;
        }
        let now = Now::new(mono, wall);
        buckets.try_visit_home(fingerprint, self.flags(), |state| self.limit.try_take_from_words(state, &now, cost))
    }

    /// The slow path. Not inlined, because it needs a large stack frame.
    #[inline(never)]
    pub(super) fn check_slow(
        &self,
        fingerprint: Fingerprint,
        mono: Time<Mono>,
        wall: Time<Wall>,
        cost: Cost,
    ) -> Verdict<A::Stamp> {
        self.decide_at(fingerprint, Now::new(mono, wall), Ask::Exactly(cost), |_, verdict| verdict)
    }

    /// Decides on a state that is already locked.
    #[inline(never)]
    pub(super) fn decide_locked(
        &self,
        mut state: State<'_>,
        mono: Time<Mono>,
        wall: Time<Wall>,
        fingerprint: Fingerprint,
        cost: Cost,
    ) -> Verdict<A::Stamp> {
        self.limit.decide(&mut state, &Now::new(mono, wall).with_spread(fingerprint.low), Ask::Exactly(cost))
    }

    #[inline]
    pub(super) fn decide<K: Key + ?Sized, R>(
        &self,
        key: &K,
        ask: Ask,
        read: impl Fn(&AccountView<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let now = self.now();
        self.decide_at(key.fingerprint(&self.secret), now, ask, read)
    }

    #[inline]
    pub(super) fn decide_at<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&AccountView<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let decided = self.table.try_visit_known(fingerprint, self.flags(), |state| {
            let now = now.with_spread(fingerprint.low);
            let verdict = self.limit.decide(state, &now, ask);
            read(&Account { limit: &self.limit, own: None, state: &*state, now }, verdict)
        });
        match decided {
            Some(result) => result,
            None => self.decide_slow(fingerprint, now, ask, read),
        }
    }

    #[inline(never)]
    pub(super) fn decide_slow<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&AccountView<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let changes = self.changes();
        let reader = self.reader(&changes, now);
        let (limit, key_now) = (reader.limit(), reader.now_for_key(fingerprint));
        let arrival = max_spent_by(limit, &key_now, ask);
        let decided = self.table(&changes).upsert(fingerprint, &reader, arrival, |entry, presence| {
            if presence == Presence::New {
                limit.init(&mut entry.state, &key_now);
            }
            reader.visit(fingerprint, entry, |account| {
                let verdict = account.decide(ask);
                read(&account.view(), verdict)
            })
        });
        drop(changes);
        // Uses `now` instead of `key_now`, because the shared overflow entry must not use the windows of one key (phase
        // `Spread`).
        decided.unwrap_or_else(|| self.decide_without_entry(fingerprint, now, ask, read))
    }

    /// Runs `read` on the key's state, or on the state of a new key if the key has no entry.
    pub(super) fn read<K: Key + ?Sized, R>(&self, key: &K, read: impl Fn(&AccountView<'_, A>) -> R) -> R {
        self.read_at(key.fingerprint(&self.secret), self.now(), read)
    }

    pub(super) fn read_at<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        read: impl Fn(&AccountView<'_, A>) -> R,
    ) -> R {
        let found = self.find(fingerprint, now, |account| read(&account.view()));
        found.unwrap_or_else(|| self.read_new(fingerprint, now, read))
    }

    /// Runs `read` on the initial state of this key.
    pub(super) fn read_new<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        read: impl FnOnce(&AccountView<'_, A>) -> R,
    ) -> R {
        let changes = self.changes();
        let reader = self.reader(&changes, now);
        let (limit, now) = (reader.limit(), reader.now_for_key(fingerprint));
        with_new_state(limit, &now, |state| read(&Account { limit, own: None, state: &state, now }))
    }

    pub(super) fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    /// Runs `visit` on the key's entry, if the key has an entry.
    pub(super) fn find<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        visit: impl FnOnce(&mut Account<'_, A, State<'_>>) -> R,
    ) -> Option<R> {
        let changes = self.changes();
        let reader = self.reader(&changes, now);
        self.table(&changes).find(fingerprint, &reader, |entry| reader.visit(fingerprint, entry, visit))
    }

    pub(super) fn changes(&self) -> RwLockReadGuard<'_, LaterLimits<A>> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table in use.
    pub(super) fn table<'a>(&'a self, changes: &'a LaterLimits<A>) -> &'a Table {
        changes.table.as_ref().unwrap_or(&self.table)
    }

    /// Returns a reader for the entries. If there are earlier limits, `now` gets a wall-clock reading, because their
    /// states may need the wall clock even if the current limit does not.
    pub(super) fn reader<'a>(&'a self, changes: &'a LaterLimits<A>, now: Now<'a>) -> KeyedReader<'a, A> {
        let unchanged = self.earlier.is_empty() && changes.later.is_empty();
        let now = if unchanged { now } else { Now::new(now.mono(), self.clock.wall(now.mono())) };
        KeyedReader { earlier: &self.earlier, inline: &self.limit, later: &changes.later, now }
    }

    /// Decides in the shared overflow entry.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_without_entry<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&AccountView<'_, A>, Verdict<A::Stamp>) -> R,
    ) -> R {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let (verdict, result) = self.visit_overflow_entry(now, |account| {
            let verdict = match self.when_full {
                WhenFull::Overflow => account.decide(ask),
                WhenFull::Deny => Verdict::new_refused(Retry::OnRelease),
            };
            (verdict, read(&account.view(), verdict))
        });
        if verdict.taken() > Cost::ZERO {
            self.overflow_charges().add(fingerprint, verdict.taken().get());
        }
        result
    }

    /// Gives back up to `cost` of the `verdict`'s charge, notifies waiters, and returns the amount given back.
    pub(super) fn refund_part(&self, fingerprint: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let refunded = self.refund_without_notifying(fingerprint, verdict, cost);
        if refunded > 0 {
            self.shards.notify(shard_of(fingerprint), fingerprint);
        }
        refunded
    }

    /// Like [`refund_part`](Self::refund_part), without notifying waiters.
    pub(super) fn refund_without_notifying(
        &self,
        fingerprint: Fingerprint,
        verdict: &Verdict<A::Stamp>,
        cost: Cost,
    ) -> u64 {
        let (now, stamp) = (self.now(), Some(verdict.stamp()));
        match self.find(fingerprint, now, |account| account.refund(cost, stamp)) {
            Some(refunded) if refunded > Cost::ZERO => refunded.get(),
            _ => {
                let part = Cost::new(self.overflow_charges().remove(fingerprint, cost.get()));
                if part == Cost::ZERO {
                    return 0;
                }
                self.visit_overflow_entry(now, |account| account.refund(part, stamp)).get()
            }
        }
    }

    /// Runs `visit` on the shared overflow entry.
    pub(super) fn visit_overflow_entry<R>(
        &self,
        now: Now<'_>,
        visit: impl FnOnce(&mut Account<'_, A, &mut [u64]>) -> R,
    ) -> R {
        let changes = self.changes();
        let reader = self.reader(&changes, now);
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner).visit(&reader, visit)
    }

    pub(super) fn overflow_charges(&self) -> MutexGuard<'_, OverflowCharges> {
        self.overflow_charges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns an upper bound on the fraction of the capacity that `ask` takes from a new entry.
pub(crate) fn max_spent_by<A: Algorithm>(limit: &A, now: &Now<'_>, ask: Ask) -> Spent {
    let capacity = limit.capacity();
    let taken = match ask {
        // A limit without state spends nothing.
        _ if limit.words() == 0 => 0,
        Ask::Exactly(cost) if cost.get() > capacity => 0,
        // The excess is charged as debt, unless it exceeds the maximum debt.
        Ask::Regardless(cost) if cost.get() > capacity => {
            with_new_state(limit, now, |state| limit.weigh(&state, now, ask).taken().get())
        }
        Ask::Exactly(cost) | Ask::UpTo(cost) | Ask::Regardless(cost) => cost.get(),
    };
    if taken == 0 { Spent::NOTHING } else { Spent::of(taken.into(), capacity.into()) }
}

/// Runs `read` on the state of a new key.
pub(crate) fn with_new_state<A: Algorithm, R>(limit: &A, now: &Now<'_>, read: impl FnOnce(&[u64]) -> R) -> R {
    // Only the states of logs, leases, many slices and groups of limits are longer than this.
    let (mut short, mut long) = ([0; 8], Vec::new());
    let words = match short.get_mut(..limit.words()) {
        Some(words) => words,
        None => {
            long.resize(limit.words(), 0);
            &mut *long
        }
    };
    limit.init(words, now);
    read(words)
}
