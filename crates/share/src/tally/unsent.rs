//! What a node took and has not sent: one entry per key and tick, oldest first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tollgate_core::{Limits, Nanos};

use super::{Key, RECENT};

/// The most entries that are unsent.
pub const MAX_UNSENT: usize = 1 << 18;

/// What was taken within one tick, to be applied once.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The number of the payload; the first one of a node is 1.
    pub sequence: u64,
    /// When the last of it was taken, by this node's clock, in nanoseconds. Counted as of the first, the store would refill what
    /// was not yet taken.
    pub taken_at: u64,
    /// What was taken, each key once.
    pub items: Vec<Item>,
}

impl Payload {
    /// Returns how long ago it was taken.
    pub fn age(&self, at: u64) -> Nanos {
        Nanos::from_nanos(at.saturating_sub(self.taken_at))
    }

    /// Returns whether it may still take balances below zero.
    pub fn is_recent(&self, at: u64) -> bool {
        self.age(at).as_nanos() <= RECENT
    }
}

/// What was taken of one key.
#[derive(Clone, Debug)]
pub struct Item {
    /// The key.
    pub key: Key,
    /// Its limits, with debt.
    pub limits: Arc<Limits>,
    /// The amount.
    pub cost: u64,
}

/// What was frozen.
pub(super) struct Frozen {
    pub(super) taken_at: u64,
    pub(super) items: Vec<Item>,
    /// The tokens that are so old that they no longer count.
    pub(super) outdated: u64,
}

#[derive(Debug, Default)]
pub(super) struct Unsent {
    ticks: VecDeque<Tick>,
    entries: usize,
}

#[derive(Debug)]
struct Tick {
    start: u64,
    last: u64,
    items: HashMap<Key, (Arc<Limits>, u64)>,
}

impl Unsent {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds to the present tick, which lasts a second at most. Returns what had to be dropped for it.
    pub(super) fn add(&mut self, key: Key, limits: Arc<Limits>, at: u64, cost: u64) -> Vec<Item> {
        if self.ticks.back().is_none_or(|tick| at >= tick.start.saturating_add(RECENT)) {
            self.ticks.push_back(Tick { start: at, last: at, items: HashMap::new() });
        }
        let Some(tick) = self.ticks.back_mut() else { return Vec::new() };
        tick.last = tick.last.max(at);
        let entry = tick.items.entry(key).or_insert_with(|| {
            self.entries += 1;
            (limits.clone(), 0)
        });
        *entry = (limits, entry.1.saturating_add(cost));
        let mut dropped = Vec::new();
        while self.entries > MAX_UNSENT
            && self.ticks.len() > 1
            && let Some(tick) = self.ticks.pop_front()
        {
            self.entries -= tick.items.len();
            dropped.extend(tick.items.into_iter().map(|(key, (limits, cost))| Item { key, limits, cost }));
        }
        dropped
    }

    /// Takes back up to `cost` of a key, the newest first; returns how much.
    pub(super) fn withdraw(&mut self, key: &[u8], cost: u64) -> u64 {
        let mut rest = cost;
        for tick in self.ticks.iter_mut().rev() {
            if let Some((_, taken)) = tick.items.get_mut(key) {
                let back = rest.min(*taken);
                *taken -= back;
                rest -= back;
            }
        }
        cost - rest
    }

    /// Removes the oldest tick that still counts.
    pub(super) fn freeze(&mut self, at: u64) -> Frozen {
        let mut frozen = Frozen { taken_at: at, items: Vec::new(), outdated: 0 };
        while frozen.items.is_empty()
            && let Some(tick) = self.ticks.pop_front()
        {
            self.entries -= tick.items.len();
            frozen.taken_at = tick.last;
            let age = at.saturating_sub(tick.last);
            for (key, (limits, cost)) in tick.items {
                if age > lasts(&limits) {
                    frozen.outdated += cost;
                } else if cost > 0 {
                    frozen.items.push(Item { key, limits, cost });
                }
            }
        }
        // The order of a hash table is random; payloads of a seeded simulation are not.
        frozen.items.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        frozen
    }
}

/// How long what is taken counts at most: until an empty limit is full again.
fn lasts(limits: &Limits) -> u64 {
    let windows = limits.as_slice().iter().filter_map(tollgate_core::Limit::window);
    // A sliding window counts the one before, too.
    windows.map(|window| window.as_nanos().saturating_mul(2)).max().unwrap_or(0).max(RECENT)
}
