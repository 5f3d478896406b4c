//! The overflow entry, which all keys without an entry share, and refunds against it.
//!
//! A table of fixed size cannot have an entry for every key that a flood invents. A key without an entry must not be
//! admitted uncounted, and must not evict a key that has used up more. So all such keys are counted in one state under
//! the same limit: together they get what one key gets. `WhenFull::Deny` refuses them instead.
//!
//! A refund has to find out where its tokens were taken, since the key may have an entry meanwhile, or have had one
//! before. Stamps do not say: leases are numbered by the clock, and buckets have no stamps. So
//! [`OverflowCharges`](super::overflow_charges::OverflowCharges) lists what each key took from the overflow entry. A refund goes to the key's
//! own entry first, then to the overflow entry, and there never gives back more than the list says.

use tollgate_core::Algorithm;

use super::change::KeyedReader;
use crate::account::Account;
use crate::table::StateReader;

/// What happens to a new key when every entry it could use is taken by a key with more used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The key is counted in one state together with all other keys without an entry.
    ///
    /// A key can refund there what it took there: the last 1,024 charges that were not refunded are remembered, as many
    /// as there can be leases. Older charges, and those from before a restored snapshot, cannot be refunded. If the key
    /// has an entry meanwhile, a refund goes to that entry first, and to the shared state only if the entry accepts
    /// nothing.
    #[default]
    Overflow,
    /// The key is refused for as long as the table is full.
    Deny,
}

/// The state that all keys without an entry share.
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
