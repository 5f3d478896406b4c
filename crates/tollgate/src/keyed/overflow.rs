//! The overflow entry, which all keys without an entry share, and its refunds.
//!
//! A table of fixed size cannot have an entry for every key that a flood invents. A key without an entry must not be
//! admitted uncounted, and must not evict a key that has used more. So all such keys share one state under the same
//! limit: together they get the rate of a single key. `WhenFull::Deny` refuses such keys instead.
//!
//! A refund must determine which entry was charged, because the key may have gained or lost an entry since. Stamps do
//! not identify the entry: leases are numbered by the clock, and buckets have no stamps. So
//! [`OverflowCharges`](super::overflow_charges::OverflowCharges) records each key's charges to the overflow entry. A
//! refund is applied to the key's own entry first. If that entry accepts nothing, the refund is applied to the overflow
//! entry, up to the recorded charges.

use tollgate_core::Algorithm;

use super::change::KeyedReader;
use crate::account::Account;
use crate::table::StateReader;

/// Policy for a new key when all entries in its buckets belong to keys that have used more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// All keys without an entry share one state; in a [`Ledger`](crate::ledger::Ledger), one state per limits id.
    ///
    /// In a [`Keyed`](crate::Keyed), the last 1,024 charges to the shared state can be refunded. This is also the
    /// maximum number of leases of a limit. Older charges, and charges from before a restored snapshot, cannot be
    /// refunded. If the key has gained an entry since, a refund is applied to that entry first, and to the shared state
    /// only if the entry accepts nothing. In a ledger, no charge to a shared state can be refunded.
    #[default]
    Overflow,
    /// The key is refused while the table is full.
    Deny,
}

/// The state that all keys without an entry share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OverflowEntry {
    pub(super) words: Vec<u64>,
    /// The generation of the limit under which `words` was last charged.
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
