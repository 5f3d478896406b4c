//! Waiters and their queues.
//!
//! A waiter has a slot until it collects its answer or leaves. The slots of one key's waiters form a doubly linked list
//! in order of arrival. So finding the first waiter and removing any waiter take constant time. The links are stored
//! separately from the waiters, because removing a waiter changes the links of both neighbours, and eight pairs of
//! links fit in a cache line. Slots are reused, so memory is bounded by the maximum number of concurrent waiters.

use std::task::Waker;

use super::AcquireError;

/// The index of a waiter's slot.
pub(super) type WaiterId = u32;
const NO_WAITER: WaiterId = WaiterId::MAX;

/// The answer to a waiter.
#[derive(Debug)]
pub(super) enum WaiterAnswer<S> {
    /// There is no answer yet. The waker is woken when there is an answer.
    Waiting(Waker),
    /// The cost was taken, with this stamp.
    Granted(S),
    /// Nothing was taken.
    Refused(AcquireError),
}

/// A waiter of a queue. Aligned to a cache line. Among 100,000 waiters, a leaving waiter is usually not in the cache,
/// and leaving takes a fifth longer if the waiter spans two lines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Waiter<K, S> {
    pub(super) key: K,
    pub(super) cost: u64,
    /// The last instant at which the waiter accepts a grant; `u64::MAX` without a deadline.
    pub(super) deadline: u64,
    pub(super) answer: WaiterAnswer<S>,
    /// Serial number that distinguishes the waiter from earlier waiters in the same slot.
    pub(super) serial: u64,
}

impl<K, S> Waiter<K, S> {
    pub(super) fn new(key: K, cost: u64, deadline: u64, waker: Waker) -> Self {
        Self { key, cost, deadline, answer: WaiterAnswer::Waiting(waker), serial: 0 }
    }
}

/// The neighbours of a waiter in its queue.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: WaiterId,
    after: WaiterId,
}

/// The slots of a shard, by [`WaiterId`].
#[derive(Debug)]
pub(super) struct WaiterSlots<K, S> {
    slots: Vec<Option<Waiter<K, S>>>,
    /// Parallel to `slots`.
    links: Vec<Links>,
    free_slots: Vec<WaiterId>,
}

impl<K, S> WaiterSlots<K, S> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), links: Vec::new(), free_slots: Vec::new() }
    }

    pub(super) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter<K, S>> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, waiter: Waiter<K, S>) -> WaiterId {
        match self.free_slots.pop() {
            Some(id) => {
                self.slots[id as usize] = Some(waiter);
                id
            }
            None => {
                self.slots.push(Some(waiter));
                self.links.push(Links { before: NO_WAITER, after: NO_WAITER });
                (self.slots.len() - 1) as WaiterId
            }
        }
    }

    fn links(&mut self, id: WaiterId) -> Option<&mut Links> {
        self.links.get_mut(id as usize)
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter<K, S>> {
        let waiter = self.slots.get_mut(id as usize)?.take()?;
        self.free_slots.push(id);
        Some(waiter)
    }
}

/// The waiters of one key, in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    first: WaiterId,
    last: WaiterId,
    len: usize,
    /// Total cost of the waiters.
    cost: u64,
    /// When to retry the first waiter.
    pub(super) due: Option<u64>,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { first: NO_WAITER, last: NO_WAITER, len: 0, cost: 0, due: None }
    }

    pub(super) fn first(&self) -> Option<WaiterId> {
        (self.first != NO_WAITER).then_some(self.first)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn cost(&self) -> u64 {
        self.cost
    }

    /// Appends a waiter.
    pub(super) fn join<K, S>(&mut self, slots: &mut WaiterSlots<K, S>, id: WaiterId) {
        let last = self.last;
        let Some(waiter) = slots.get_mut(id) else { return };
        self.cost = self.cost.saturating_add(waiter.cost);
        self.len += 1;
        self.last = id;
        if let Some(links) = slots.links(id) {
            *links = Links { before: last, after: NO_WAITER };
        }
        match slots.links(last) {
            Some(before) => before.after = id,
            None => self.first = id,
        }
    }

    /// Removes a waiter from any position.
    pub(super) fn leave<K, S>(&mut self, slots: &mut WaiterSlots<K, S>, id: WaiterId) {
        let Some(waiter) = slots.get_mut(id) else { return };
        self.cost = self.cost.saturating_sub(waiter.cost);
        self.len -= 1;
        let Some(Links { before, after }) = slots.links(id).copied() else { return };
        match slots.links(before) {
            Some(links) => links.after = after,
            None => self.first = after,
        }
        match slots.links(after) {
            Some(links) => links.before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter_order(queue: &Queue, slots: &mut WaiterSlots<(), ()>) -> Vec<u64> {
        let (mut costs, mut id) = (Vec::new(), queue.first);
        while let Some(waiter) = slots.get_mut(id) {
            costs.push(waiter.cost);
            id = slots.links[id as usize].after;
        }
        costs
    }

    #[test]
    fn remaining_waiters_keep_their_order() {
        for gone in 0..4 {
            let (mut slots, mut queue) = (WaiterSlots::new(), Queue::new());
            let taken: Vec<WaiterId> = (1..=4)
                .map(|cost| {
                    let id = slots.insert(Waiter::new((), cost, u64::MAX, Waker::noop().clone()));
                    queue.join(&mut slots, id);
                    id
                })
                .collect();
            queue.leave(&mut slots, taken[gone]);
            assert_eq!(slots.remove(taken[gone]).unwrap().cost, gone as u64 + 1);
            let left: Vec<u64> = (1..=4).filter(|cost| *cost != gone as u64 + 1).collect();
            assert_eq!(waiter_order(&queue, &mut slots), left);
            assert_eq!((queue.len(), queue.cost()), (3, left.iter().sum()));
            // The next waiter reuses the slot, at the end of the queue.
            let id = slots.insert(Waiter::new((), 9, u64::MAX, Waker::noop().clone()));
            queue.join(&mut slots, id);
            assert_eq!((id, waiter_order(&queue, &mut slots).last()), (taken[gone], Some(&9)));
        }
    }
}
