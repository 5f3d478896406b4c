//! Writes the counters of an in-memory engine to a snapshot, and restores an engine from a snapshot.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tollgate::Limits;
use tollgate::clock::Clock;
use tollgate::snapshot::{RestoreError, SnapshotReader, SnapshotWriter};

use super::{Engine, RulesInForce};
use crate::inline::{IDS_PER_RANGE, Interner, LimitsById};
use crate::memory::MemoryStore;
use crate::ruleset::{FIRST_INLINE_ID, RuleSet};
use crate::store::Store;

impl<C: Clock + Send + Sync, F: Store> Engine<MemoryStore<C>, F> {
    /// Writes all counters (usage, quotas, bans and leases), and returns their number.
    ///
    /// Decisions continue during the write. Each counter is written with its value at the time when it is visited.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_snapshot<W: Write>(&self, to: &mut SnapshotWriter<W>) -> io::Result<u64> {
        let running = self.running.load_full();
        self.store.write_snapshot(&*running, to)
    }

    /// Returns the number of keys with usage, estimated if there are many. Decisions continue during the count.
    pub fn count_used_keys(&self) -> u64 {
        let running = self.running.load_full();
        self.store.count_used_keys(&*running)
    }

    /// Returns an engine without rules. Its store has space for `keys` keys and contains the counters of a snapshot.
    /// Rules that are loaded later use these counters if their domain, id and `per` match, even if their limits have
    /// changed.
    ///
    /// # Errors
    /// If the snapshot cannot be read or is damaged.
    pub fn restored<R: Read>(
        keys: usize,
        clock: Arc<C>,
        fallback: F,
        from: &mut SnapshotReader<R>,
    ) -> Result<Self, RestoreError> {
        let (mut rules, interner, limits_by_id) = (RuleSet::empty(), Interner::default(), LimitsById::new());
        let mut inline = 0;
        let store = MemoryStore::restored(keys, clock, from, |id, limits: &Limits| {
            if id < FIRST_INLINE_ID {
                return Some(rules.register_limits(limits));
            }
            // If there are more inline limits than ids, the excess limits are dropped, as in a running process.
            inline += usize::from(interner.find(limits).is_none());
            (inline <= IDS_PER_RANGE).then(|| interner.add(limits, &limits_by_id).0.entry().id)
        })?;
        let engine = Self::with_fallback(store, fallback);
        engine.running.store(Arc::new(RulesInForce::new(Arc::new(rules), Arc::default(), Arc::new(limits_by_id))));
        Ok(Self { interner, ..engine })
    }
}
