//! The overflow entry, which all keys without an entry share, and refunds against it.
//!
//! A table of fixed size cannot have an entry for every key that a flood invents. Such a key must not be admitted without being
//! counted, and must not evict a key that has used up more. So all of them are counted in one state under the same limit: as
//! one key, they get what one key gets. `WhenFull::Deny` refuses them instead.
//!
//! A refund has to find out where its tokens were taken, since the key may have an entry meanwhile, or have had one before. Stamps do
//! not say: leases are numbered by the clock, and buckets have no stamps. So [`Takings`] lists what keys took here. A refund
//! goes to the key's own entry first, then to the overflow entry, and there never gives back more than the list says.

use std::sync::{MutexGuard, PoisonError};

use tollgate_core::{Algorithm, Ask, Cost, Now, Retry, Verdict};

use super::change::KeyedReader;
use super::takings::Takings;
use super::{Keyed, shard_of};
use crate::account::{Account, AccountView};
use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;
use crate::table::StateReader;

/// What happens to a new key when every entry it could have is in use and more spent than the new key would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is counted in one state together with all other keys without an entry.
    ///
    /// A key can refund there what it took there: the last 1,024 takings that were not refunded are remembered, as many as there
    /// can be leases. What is older, or was taken before a snapshot was restored, stays taken until it refills. If the key has
    /// an entry meanwhile, a refund goes to that entry first, and to the shared state only if the entry accepts nothing.
    #[default]
    Overflow,
    /// It is refused for as long as the table is full.
    Deny,
}

/// The state that all keys without an entry of their own share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OverflowEntry {
    pub(super) words: Vec<u64>,
    /// The generation of parameters that it belongs to.
    pub(super) generation: u64,
}

impl OverflowEntry {
    pub(super) fn visit<A: Algorithm, R>(
        &mut self,
        reader: &KeyedReader<'_, A>,
        visit: impl FnOnce(&mut Account<'_, A, &mut [u64]>) -> R,
    ) -> R {
        let mut account = reader.account(self.generation, &mut *self.words, reader.now);
        let result = visit(&mut account);
        if account.own.is_none() {
            self.generation = reader.generation();
        }
        result
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
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
        let (verdict, result) = self.on_overflow(now, |account| {
            let verdict = match self.when_full {
                WhenFull::Overflow => account.decide(ask),
                WhenFull::Deny => Verdict::refused(Retry::OnRelease),
            };
            (verdict, read(&account.view(), verdict))
        });
        if verdict.taken() > Cost::ZERO {
            self.takings().add(fingerprint, verdict.taken().get());
        }
        result
    }

    pub(super) fn refund_part(&self, fingerprint: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let refunded = self.undo(fingerprint, verdict, cost);
        if refunded > 0 {
            self.shards.notify(shard_of(fingerprint), fingerprint);
        }
        refunded
    }

    /// Gives back without notifying waiters.
    pub(super) fn undo(&self, fingerprint: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let (now, stamp) = (self.now(), Some(verdict.stamp()));
        match self.find(fingerprint, now, |account| account.refund(cost, stamp)) {
            Some(refunded) if refunded > Cost::ZERO => refunded.get(),
            _ => {
                let part = Cost::new(self.takings().remove(fingerprint, cost.get()));
                if part == Cost::ZERO {
                    return 0;
                }
                self.on_overflow(now, |account| account.refund(part, stamp)).get()
            }
        }
    }

    /// Runs `visit` on the shared overflow entry.
    pub(super) fn on_overflow<R>(&self, now: Now<'_>, visit: impl FnOnce(&mut Account<'_, A, &mut [u64]>) -> R) -> R {
        let changes = self.changes();
        let reader = self.reader(&changes, now);
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner).visit(&reader, visit)
    }

    pub(super) fn takings(&self) -> MutexGuard<'_, Takings> {
        self.takings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
