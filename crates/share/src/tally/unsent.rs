//! What a node took and has not sent: one entry per key and tick, oldest first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate_core::{Cost, Limits, Nanos};

use super::view::View;
use super::{Key, RECENT, Views};

/// The most items of a payload: as many as a store merges in one call.
pub const MAX_ITEMS: usize = 128;

/// What was taken within one tick, to be applied once.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The number of the payload; the first one of a node is 1.
    pub sequence: u64,
    /// When the last of it was taken, by this node's clock, in nanoseconds. If it counted from the first take, the
    /// store would refill tokens that were not taken yet.
    pub taken_at: u64,
    /// What was taken.
    pub items: Vec<Item>,
}

impl Payload {
    /// Returns how long ago it was taken.
    pub fn age(&self, at: u64) -> Nanos {
        Nanos::from_nanos(at.saturating_sub(self.taken_at))
    }

    /// Returns how long ago the store charges it. What is older is charged as of a second ago: the store takes an instant longer
    /// before its states for a clock that was set back, and would repair them by forgetting what other nodes took.
    pub fn charged_age(&self, at: u64) -> Nanos {
        self.age(at).min(Nanos::from_nanos(RECENT))
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
    /// What is so old that it no longer counts.
    pub(super) outdated: Vec<Item>,
}

/// The present tick, which lasts a second at most, and those before it.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// The keys that were used in the present tick, each once; their views know how much was taken.
    open: Vec<Key>,
    /// What was taken elsewhere in the present tick.
    noted: BTreeMap<Key, (Arc<Limits>, u64)>,
    start: u64,
    /// When something was last taken in the present tick.
    last: u64,
    ticks: VecDeque<Tick>,
    /// The items of all ticks.
    entries: usize,
    /// The keys that were used and not taken from.
    pub(super) reads: Vec<Key>,
}

#[derive(Debug)]
struct Tick {
    last: u64,
    items: Vec<Item>,
}

impl Unsent {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries + self.noted.len()
    }

    /// Returns whether nothing of an earlier tick, and nothing that was taken elsewhere, is unsent.
    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0 && self.noted.is_empty()
    }

    /// Returns whether earlier ticks are unsent.
    pub(super) fn has_ticks(&self) -> bool {
        !self.ticks.is_empty()
    }

    /// Returns whether the present tick has lasted a second.
    pub(super) fn is_over(&self, at: u64) -> bool {
        at >= self.start.saturating_add(RECENT) && !(self.open.is_empty() && self.noted.is_empty())
    }

    /// Adds a key to those used in the present tick.
    pub(super) fn list(&mut self, view: &mut View, at: u64) {
        if !std::mem::replace(&mut view.is_listed, true) {
            self.begin(at);
            self.open.push(view.key.clone());
        }
    }

    /// Adds what was taken of a key in the present tick; returns whether it should be sent at once.
    pub(super) fn add(&mut self, view: &mut View, at: u64, taken: Cost) -> bool {
        if taken == Cost::ZERO {
            return false;
        }
        view.unsent = view.unsent.saturating_add(taken.get());
        self.list(view, at);
        self.taken_at(at);
        view.is_urgent()
    }

    fn taken_at(&mut self, at: u64) {
        self.last = self.last.max(at);
    }

    fn begin(&mut self, at: u64) {
        if self.open.is_empty() && self.noted.is_empty() {
            (self.start, self.last) = (at, at);
        }
    }

    /// Adds what was taken elsewhere; returns whether there was room for it.
    pub(super) fn note(&mut self, key: Key, limits: Arc<Limits>, at: u64, cost: u64, most: usize) -> bool {
        if self.noted.len() >= most && !self.noted.contains_key(&key) {
            return false;
        }
        self.begin(at);
        self.taken_at(at);
        let entry = self.noted.entry(key).or_insert_with(|| (limits.clone(), 0));
        *entry = (limits, entry.1.saturating_add(cost));
        true
    }

    /// Ends the present tick. Returns what has to be dropped, the oldest first, so that at most `most` entries are kept.
    pub(super) fn seal(&mut self, views: &mut Views, most: usize) -> Vec<Item> {
        let mut items = Vec::new();
        for key in self.open.drain(..) {
            let Some(view) = views.get_mut(&key) else { continue };
            view.is_listed = false;
            if view.unsent > 0 {
                let cost = view.seal();
                items.push(Item { limits: view.asked.clone(), key, cost });
            } else if !std::mem::replace(&mut view.is_to_be_read, true) {
                self.reads.push(key);
            }
        }
        let noted = std::mem::take(&mut self.noted);
        items.extend(noted.into_iter().map(|(key, (limits, cost))| Item { key, limits, cost }));
        if !items.is_empty() {
            self.entries += items.len();
            self.ticks.push_back(Tick { last: self.last, items });
        }
        let mut dropped = Vec::new();
        while self.entries > most
            && self.ticks.len() > 1
            && let Some(tick) = self.ticks.pop_front()
        {
            self.entries -= tick.items.len();
            dropped.extend(tick.items);
        }
        dropped
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.open.retain(|known| **known != *key);
        self.reads.retain(|known| **known != *key);
        self.noted.remove(key);
        for tick in &mut self.ticks {
            let before = tick.items.len();
            tick.items.retain(|item| *item.key != *key);
            self.entries -= before - tick.items.len();
        }
    }

    /// Removes up to [`MAX_ITEMS`] items of the oldest tick that still counts.
    pub(super) fn freeze(&mut self, at: u64) -> Frozen {
        let mut frozen = Frozen { taken_at: at, items: Vec::new(), outdated: Vec::new() };
        while frozen.items.is_empty()
            && let Some(tick) = self.ticks.front_mut()
        {
            frozen.taken_at = tick.last;
            let age = at.saturating_sub(tick.last);
            let first = tick.items.len().min(MAX_ITEMS);
            for item in tick.items.drain(..first) {
                let to = if age > lasts(&item.limits) { &mut frozen.outdated } else { &mut frozen.items };
                to.push(item);
            }
            self.entries -= first;
            if tick.items.is_empty() {
                self.ticks.pop_front();
            }
        }
        frozen
    }
}

/// Returns how long an amount that is taken counts at most: until an empty limit is full again.
fn lasts(limits: &Limits) -> u64 {
    let windows = limits.as_slice().iter().filter_map(tollgate_core::Limit::window);
    // A sliding window counts the one before, too.
    windows.map(|window| window.as_nanos().saturating_mul(2)).max().unwrap_or(0).max(RECENT)
}
