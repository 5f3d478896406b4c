//! A node's unsent charges: one entry per key and tick, oldest first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate_core::{Cost, Limits, Nanos};

use super::view::View;
use super::{Key, RECENT_NANOS, Views};

/// Maximum number of items in a payload. A store merges a whole payload in one call.
pub const MAX_ITEMS: usize = 128;

/// Up to [`MAX_ITEMS`] charges of one tick, to be applied once.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Sequence number of the payload; the first payload of a node is 1.
    pub sequence: u64,
    /// Time of the last charge, by this node's clock, in nanoseconds. If this were the time of the first charge, the
    /// store would refill the tokens of later charges before they were taken.
    pub taken_at: u64,
    /// The charges, by key.
    pub items: Vec<PayloadItem>,
}

impl Payload {
    /// Returns the time since the last charge.
    pub fn age(&self, at: u64) -> Nanos {
        Nanos::from_nanos(at.saturating_sub(self.taken_at))
    }

    /// Returns the age at which the store counts the charges: the payload's age, but at most a second. With a larger
    /// age, the earlier time would look like a clock that was set back, and the store would discard other nodes'
    /// charges.
    pub fn charged_age(&self, at: u64) -> Nanos {
        self.age(at).min(Nanos::from_nanos(RECENT_NANOS))
    }

    /// Returns whether the payload is recent enough to take balances below zero.
    pub fn is_recent(&self, at: u64) -> bool {
        self.age(at).as_nanos() <= RECENT_NANOS
    }
}

/// The charges of one key.
#[derive(Clone, Debug)]
pub struct PayloadItem {
    /// The key.
    pub key: Key,
    /// The limits of the key, with debt.
    pub limits: Arc<Limits>,
    /// Amount taken.
    pub cost: u64,
}

/// The result of [`UnsentCharges::freeze`].
pub(super) struct FreezeResult {
    pub(super) taken_at: u64,
    pub(super) items: Vec<PayloadItem>,
    /// Charges that are too old to count.
    pub(super) outdated: Vec<PayloadItem>,
}

/// The current tick, which lasts at most a second, and earlier ticks.
#[derive(Debug, Default)]
pub(super) struct UnsentCharges {
    /// Keys used in the current tick, without duplicates. Their views contain the amounts taken.
    open: Vec<Key>,
    /// Charges of the current tick that did not go through a view.
    external: BTreeMap<Key, (Arc<Limits>, u64)>,
    start: u64,
    /// Time of the last charge in the current tick.
    last: u64,
    ticks: VecDeque<Tick>,
    /// Number of items in all earlier ticks.
    entries: usize,
    /// Keys that were used but not charged.
    pub(super) reads: Vec<Key>,
}

#[derive(Debug)]
struct Tick {
    last: u64,
    items: Vec<PayloadItem>,
}

impl UnsentCharges {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries + self.external.len()
    }

    /// Returns whether there are no unsent charges in earlier ticks and no external charges.
    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0 && self.external.is_empty()
    }

    /// Returns whether earlier ticks are unsent.
    pub(super) fn has_earlier_ticks(&self) -> bool {
        !self.ticks.is_empty()
    }

    /// Returns whether the current tick has lasted a second.
    pub(super) fn is_tick_over(&self, at: u64) -> bool {
        at >= self.start.saturating_add(RECENT_NANOS) && !(self.open.is_empty() && self.external.is_empty())
    }

    /// Lists a key as used in the current tick.
    pub(super) fn mark_used(&mut self, view: &mut View, at: u64) {
        if !std::mem::replace(&mut view.is_listed, true) {
            self.begin_tick_if_empty(at);
            self.open.push(view.key.clone());
        }
    }

    /// Adds a charge in the current tick. Returns whether the charge should be sent immediately.
    pub(super) fn add(&mut self, view: &mut View, at: u64, taken: Cost) -> bool {
        if taken == Cost::ZERO {
            return false;
        }
        view.unsent = view.unsent.saturating_add(taken.get());
        self.mark_used(view, at);
        self.record_charge_time(at);
        view.is_urgent()
    }

    fn record_charge_time(&mut self, at: u64) {
        self.last = self.last.max(at);
    }

    fn begin_tick_if_empty(&mut self, at: u64) {
        if self.open.is_empty() && self.external.is_empty() {
            (self.start, self.last) = (at, at);
        }
    }

    /// Adds a charge that did not go through a view. Returns `false` if `most` other keys already have such charges.
    pub(super) fn add_external(&mut self, key: Key, limits: Arc<Limits>, at: u64, cost: u64, most: usize) -> bool {
        if self.external.len() >= most && !self.external.contains_key(&key) {
            return false;
        }
        self.begin_tick_if_empty(at);
        self.record_charge_time(at);
        let entry = self.external.entry(key).or_insert_with(|| (limits.clone(), 0));
        *entry = (limits, entry.1.saturating_add(cost));
        true
    }

    /// Ends the current tick. Drops the oldest ticks while more than `most` entries are kept, but never the newest
    /// tick. Returns the dropped items, oldest first.
    pub(super) fn seal(&mut self, views: &mut Views, most: usize) -> Vec<PayloadItem> {
        let mut items = Vec::new();
        for key in self.open.drain(..) {
            let Some(view) = views.get_mut(&key) else { continue };
            view.is_listed = false;
            if view.unsent > 0 {
                let cost = view.seal();
                items.push(PayloadItem { limits: view.asked.clone(), key, cost });
            } else if !std::mem::replace(&mut view.is_to_be_read, true) {
                self.reads.push(key);
            }
        }
        let external = std::mem::take(&mut self.external);
        items.extend(external.into_iter().map(|(key, (limits, cost))| PayloadItem { key, limits, cost }));
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

    /// Forgets all charges of a key.
    pub(super) fn forget(&mut self, key: &[u8]) {
        self.open.retain(|known| **known != *key);
        self.reads.retain(|known| **known != *key);
        self.external.remove(key);
        for tick in &mut self.ticks {
            let before = tick.items.len();
            tick.items.retain(|item| *item.key != *key);
            self.entries -= before - tick.items.len();
        }
    }

    /// Removes and returns up to [`MAX_ITEMS`] items of the oldest tick whose charges still count.
    pub(super) fn freeze(&mut self, at: u64) -> FreezeResult {
        let mut frozen = FreezeResult { taken_at: at, items: Vec::new(), outdated: Vec::new() };
        while frozen.items.is_empty()
            && let Some(tick) = self.ticks.front_mut()
        {
            frozen.taken_at = tick.last;
            let age = at.saturating_sub(tick.last);
            let first = tick.items.len().min(MAX_ITEMS);
            for item in tick.items.drain(..first) {
                let to = if age > max_counted_nanos(&item.limits) { &mut frozen.outdated } else { &mut frozen.items };
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

/// Returns the time for which a charge can count, in nanoseconds: twice the longest window, but at least
/// [`RECENT_NANOS`].
fn max_counted_nanos(limits: &Limits) -> u64 {
    let windows = limits.as_slice().iter().filter_map(tollgate_core::Limit::full_refill_time);
    // The factor is two because a sliding window also counts the previous window.
    windows.map(|window| window.as_nanos().saturating_mul(2)).max().unwrap_or(0).max(RECENT_NANOS)
}
