//! Ring of this node's deltas that other nodes may still need.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::table::SharedLimits;

/// A delta, encoded once for all nodes.
#[derive(Debug)]
pub(super) struct RingDelta {
    /// Monotonic time of the last charge, in nanoseconds.
    pub(super) taken_at: u64,
    pub(super) body: Arc<[u8]>,
    /// Limits that the delta refers to.
    pub(super) limits: Vec<Arc<SharedLimits>>,
    /// Total bytes of all earlier deltas.
    offset: u64,
}

/// The most recent deltas in order, bounded in bytes.
#[derive(Debug)]
pub(super) struct Ring {
    deltas: VecDeque<RingDelta>,
    /// Sequence number of the last delta.
    head: u64,
    bytes: usize,
    max_bytes: usize,
    /// Total bytes of all deltas ever added.
    total: u64,
}

impl Ring {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { deltas: VecDeque::new(), head: 0, bytes: 0, max_bytes, total: 0 }
    }

    /// Adds the next delta and evicts the oldest deltas while the size limit is exceeded. The last delta always stays.
    pub(super) fn push(&mut self, taken_at: u64, body: Arc<[u8]>, limits: Vec<Arc<SharedLimits>>) {
        self.head += 1;
        let size = body.len() + size_of::<RingDelta>();
        self.deltas.push_back(RingDelta { taken_at, body, limits, offset: self.total });
        self.bytes += size;
        self.total += size as u64;
        while self.bytes > self.max_bytes && self.deltas.len() > 1 {
            self.pop();
        }
    }

    /// Removes deltas up to `seq` that are older than `before`.
    pub(super) fn remove_acknowledged(&mut self, seq: u64, before: u64) {
        while self.first_seq() <= seq && self.deltas.front().is_some_and(|delta| delta.taken_at < before) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(delta) = self.deltas.pop_front() {
            self.bytes -= delta.body.len() + size_of::<RingDelta>();
        }
    }

    /// Returns the sequence number of the last delta, or 0 if there is no delta yet.
    pub(super) fn last_seq(&self) -> u64 {
        self.head
    }

    /// Returns the sequence number of the oldest delta in the ring, or of the next delta if the ring is empty.
    fn first_seq(&self) -> u64 {
        self.head + 1 - self.deltas.len() as u64
    }

    /// Returns whether all deltas after `from` are in the ring.
    pub(super) fn holds_after(&self, from: u64) -> bool {
        from <= self.head && from + 1 >= self.first_seq()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&RingDelta> {
        let index = seq.checked_sub(self.first_seq())?;
        self.deltas.get(usize::try_from(index).ok()?)
    }

    /// Returns the bytes of the deltas in `from..to` that are still in the ring.
    pub(super) fn bytes_between(&self, from: u64, to: u64) -> u64 {
        let offset = |seq: u64| self.get(seq).map_or(self.total, |delta| delta.offset);
        offset(to).saturating_sub(offset(from.max(self.first_seq())))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_deltas_are_evicted_first_and_the_last_one_stays() {
        let mut ring = Ring::new(3 * (100 + size_of::<RingDelta>()));
        assert!(ring.holds_after(0) && !ring.holds_after(1));
        for number in 1..=5 {
            ring.push(number, vec![0; 100].into(), Vec::new());
        }
        assert_eq!(
            (ring.last_seq(), ring.get(3).map(|delta| delta.taken_at), ring.get(2).is_none()),
            (5, Some(3), true)
        );
        assert!(ring.holds_after(2) && ring.holds_after(5) && !ring.holds_after(1) && !ring.holds_after(6));
        assert_eq!(ring.bytes_between(4, 6), 2 * (100 + size_of::<RingDelta>() as u64));
        ring.push(6, vec![0; 10_000].into(), Vec::new());
        assert!(ring.holds_after(5) && !ring.holds_after(4));
        ring.remove_acknowledged(6, 7);
        assert!(ring.holds_after(6) && !ring.holds_after(5));
    }
}
