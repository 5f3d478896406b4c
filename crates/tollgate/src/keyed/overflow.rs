//! The shared overflow entry for keys without a slot, and refunds against it.

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

/// What happens to a new key when every entry it could have is in use and more spent than the newcomer would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is counted together with all others that found no room.
    ///
    /// What a key took there it can give back there, whatever the algorithm and never more than it took: the last 1,024
    /// takings that were not given back are written down, as many as there can be leases. What is older, or was taken
    /// before a snapshot was restored, stays taken until time gives it back. And once a key has found room after all, what it
    /// gives back goes to its own entry first, and to what is shared only if nothing was missing there.
    #[default]
    Overflow,
    /// It is refused, for as long as that lasts.
    Deny,
}

/// The state that all keys without an entry of their own share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Overflow {
    pub(super) words: Vec<u64>,
    /// The generation of parameters that it belongs to.
    pub(super) generation: u64,
}

impl Overflow {
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

    /// Gives back without telling those who wait.
    pub(super) fn undo(&self, fingerprint: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let (now, stamp) = (self.now(), Some(verdict.stamp()));
        match self.find(fingerprint, now, |account| account.refund(cost, stamp)) {
            Some(refunded) if refunded > Cost::ZERO => refunded.get(),
            _ => {
                let part = Cost::new(self.takings().strike_out(fingerprint, cost.get()));
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
