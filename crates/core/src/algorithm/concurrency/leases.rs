//! Stores the leases in the words of the state, in order of expiry.
//!
//! Held slots form a doubly linked list in order of expiry. Released slots form a free list. Slots that were never used
//! are in neither list, so a new state needs no writes. Whatever the words contain, links stay within the slots, and
//! every loop ends after at most one step per slot.

use super::Concurrency;
use crate::algorithm::{Cells, CellsMut};
use crate::quantity::{Mono, Nanos, Time};
use crate::verdict::Stamp;

/// A slot number, counted from 1; 0 means no slot.
pub(super) type Link = u16;
const NO_SLOT: Link = 0;

const LIST_HEAD_INDEX: usize = 0;
const LAST_STAMP_INDEX: usize = 1;
/// The highest bit, which is set in every lease number, but in no time before the year 2262.
pub(super) const LEASE_NUMBER_BIT: u64 = 1 << 63;
const FIRST_SLOT_INDEX: usize = 2;
const WORDS_PER_SLOT: usize = 3;

/// Width of the packed fields in bits. Weights and links are at most 1024.
const BITS_PER_FIELD: u32 = 12;

/// Returns the number of words in a list with `slots` slots.
pub(super) const fn words(slots: u64) -> usize {
    FIRST_SLOT_INDEX + WORDS_PER_SLOT * slots as usize
}

/// Stores the number of the last lease taken.
pub(super) fn set_last_stamp<S: CellsMut + ?Sized>(state: &mut S, stamp: Stamp) {
    state.set(LAST_STAMP_INDEX, stamp.to_bits());
}

fn bit_field(word: u64, nth: u32) -> u64 {
    word >> (nth * BITS_PER_FIELD) & ((1 << BITS_PER_FIELD) - 1)
}

fn pack_fields<const N: usize>(fields: [u64; N]) -> u64 {
    fields.iter().rev().fold(0, |word, field| word << BITS_PER_FIELD | field)
}

/// The content of a held slot. In a free slot the weight is zero and `next` is the next free slot.
#[derive(Clone, Copy)]
pub(super) struct Lease {
    /// The unique number of this lease.
    pub(super) stamp: Stamp,
    /// First instant at which the lease no longer counts.
    pub(super) ends: Time<Mono>,
    pub(super) weight: u16,
    /// The lease that expires just before this lease.
    prev: Link,
    /// The lease that expires just after this lease.
    next: Link,
}

impl Lease {
    const EMPTY: Self = Self::new(Stamp::NONE, Time::ZERO, 0);

    pub(super) const fn new(stamp: Stamp, ends: Time<Mono>, weight: u16) -> Self {
        Self { stamp, ends, weight, prev: NO_SLOT, next: NO_SLOT }
    }

    /// Returns the time until the lease expires. An expiry at the end of the clock's range is never reached.
    pub(super) fn time_left(&self, now: Time<Mono>) -> Nanos {
        if self.ends.as_nanos() == u64::MAX { Nanos::MAX } else { self.ends.since(now) }
    }
}

/// The first word of the state, unpacked: the weight in use and the list heads.
#[derive(Clone, Copy)]
pub(super) struct LeaseList {
    slots: u64,
    /// Total weight of the leases in the list, expired or not.
    pub(super) in_use: u64,
    /// Head of the free list.
    first_free: Link,
    /// Number of slots ever used; the words of later slots are never read.
    ever_used: Link,
    /// The lease that expires first.
    first: Link,
    /// The lease that expires last.
    last: Link,
}

impl LeaseList {
    pub(super) const fn with_no_leases(slots: u64) -> Self {
        Self { slots, in_use: 0, first_free: NO_SLOT, ever_used: 0, first: NO_SLOT, last: NO_SLOT }
    }

    pub(super) fn load<S: Cells + ?Sized>(state: &S, slots: u64) -> Self {
        let word = state.get(LIST_HEAD_INDEX);
        let mut leases = Self::with_no_leases(slots);
        leases.in_use = bit_field(word, 0).min(Concurrency::MAX_SLOTS);
        leases.ever_used = bit_field(word, 1).min(slots) as Link;
        [leases.first_free, leases.first, leases.last] = [2, 3, 4].map(|nth| leases.link_field(word, nth));
        leases
    }

    pub(super) fn store<S: CellsMut + ?Sized>(self, state: &mut S) {
        let links = [self.ever_used, self.first_free, self.first, self.last].map(u64::from);
        state.set(LIST_HEAD_INDEX, pack_fields([self.in_use, links[0], links[1], links[2], links[3]]));
    }

    /// Returns the link in a field; 0 if corrupt words contain a link outside the slots.
    fn link_field(&self, word: u64, nth: u32) -> Link {
        let link = bit_field(word, nth);
        if link <= self.slots { link as Link } else { NO_SLOT }
    }

    pub(super) fn read_lease<S: Cells + ?Sized>(&self, state: &S, link: Link) -> Lease {
        let at = first_word_of_slot(link);
        let word = state.get(at + 2);
        Lease {
            stamp: Stamp::from_bits(state.get(at)),
            ends: Time::from_nanos(state.get(at + 1)),
            weight: bit_field(word, 0) as u16,
            prev: self.link_field(word, 1),
            next: self.link_field(word, 2),
        }
    }

    pub(super) fn write<S: CellsMut + ?Sized>(&self, state: &mut S, link: Link, lease: Lease) {
        let at = first_word_of_slot(link);
        state.set(at, lease.stamp.to_bits());
        state.set(at + 1, lease.ends.as_nanos());
        state.set(at + 2, pack_fields([lease.weight.into(), lease.prev.into(), lease.next.into()]));
    }

    pub(super) fn last_lease<S: Cells + ?Sized>(&self, state: &S) -> Option<Lease> {
        (self.last != NO_SLOT).then(|| self.read_lease(state, self.last))
    }

    /// Returns the time until the next lease expires, ignoring expired leases.
    pub(super) fn until_next_expiry<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>) -> Option<Nanos> {
        let mut link = self.first;
        // Bounded, because corrupt words may form a cycle.
        for _ in 0..self.slots {
            if link == NO_SLOT {
                break;
            }
            let lease = self.read_lease(state, link);
            if lease.time_left(now) > Nanos::ZERO {
                return Some(lease.time_left(now));
            }
            link = lease.next;
        }
        None
    }

    /// Returns the weight of expired leases, counted until it reaches `enough`.
    pub(super) fn expired_weight<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>, enough: u64) -> u64 {
        let (mut ended, mut link) = (0, self.first);
        // Bounded, because corrupt words may form a cycle.
        for _ in 0..self.slots {
            if link == NO_SLOT || ended >= enough {
                break;
            }
            let lease = self.read_lease(state, link);
            if lease.time_left(now) > Nanos::ZERO {
                break;
            }
            ended += u64::from(lease.weight);
            link = lease.next;
        }
        ended
    }

    /// Returns the weight of unexpired leases.
    pub(super) fn weight_held<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>) -> u64 {
        self.in_use.saturating_sub(self.expired_weight(state, now, u64::MAX))
    }

    /// Returns the slot for the next lease: the head of the free list, else an unused slot, else the slot of the first
    /// lease if that lease has expired.
    pub(super) fn vacant_slot<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>) -> Option<Link> {
        if self.first_free != NO_SLOT {
            Some(self.first_free)
        } else if u64::from(self.ever_used) < self.slots {
            Some(self.ever_used + 1)
        } else {
            (self.first != NO_SLOT && self.read_lease(state, self.first).time_left(now) == Nanos::ZERO)
                .then_some(self.first)
        }
    }

    /// Removes the vacant slot `link` from its list, so that it can hold a lease.
    pub(super) fn occupy_slot<S: CellsMut + ?Sized>(&mut self, state: &mut S, link: Link) {
        let lease = self.read_lease(state, link);
        if link == self.first_free {
            self.first_free = lease.next;
        } else if link == self.first {
            self.in_use = self.in_use.saturating_sub(lease.weight.into());
            self.unlink(state, lease);
        } else {
            self.ever_used = link;
        }
    }

    pub(super) fn add_to_free_list<S: CellsMut + ?Sized>(&mut self, state: &mut S, link: Link) {
        self.write(state, link, Lease { next: self.first_free, ..Lease::EMPTY });
        self.first_free = link;
    }

    pub(super) fn free_expired_leases<S: CellsMut + ?Sized>(&mut self, state: &mut S, now: Time<Mono>) {
        for _ in 0..self.slots {
            let (link, lease) = (self.first, self.read_lease(state, self.first));
            if link == NO_SLOT || lease.time_left(now) > Nanos::ZERO {
                break;
            }
            self.in_use = self.in_use.saturating_sub(lease.weight.into());
            self.unlink(state, lease);
            self.add_to_free_list(state, link);
        }
    }

    /// Removes the lease from the list.
    pub(super) fn unlink<S: CellsMut + ?Sized>(&mut self, state: &mut S, lease: Lease) {
        self.set_next(state, lease.prev, lease.next);
        self.set_prev(state, lease.next, lease.prev);
    }

    /// Inserts the lease in order of expiry. The lease becomes the last one, unless another lease was taken with a
    /// later clock reading or a longer duration.
    pub(super) fn insert<S: CellsMut + ?Sized>(&mut self, state: &mut S, link: Link, lease: Lease) {
        let (mut prev, mut next) = (self.last, NO_SLOT);
        for _ in 0..self.slots {
            if prev == NO_SLOT || self.read_lease(state, prev).ends <= lease.ends {
                break;
            }
            (prev, next) = (self.read_lease(state, prev).prev, prev);
        }
        self.write(state, link, Lease { prev, next, ..lease });
        self.set_next(state, prev, link);
        self.set_prev(state, next, link);
    }

    /// Makes `next` the successor of `link`, or the first lease if `link` is 0.
    fn set_next<S: CellsMut + ?Sized>(&mut self, state: &mut S, link: Link, next: Link) {
        match link {
            NO_SLOT => self.first = next,
            link => self.write(state, link, Lease { next, ..self.read_lease(state, link) }),
        }
    }

    /// Makes `prev` the predecessor of `link`, or the last lease if `link` is 0.
    fn set_prev<S: CellsMut + ?Sized>(&mut self, state: &mut S, link: Link, prev: Link) {
        match link {
            NO_SLOT => self.last = prev,
            link => self.write(state, link, Lease { prev, ..self.read_lease(state, link) }),
        }
    }

    /// Shortens leases that would expire after `latest`. The order of expiry is unchanged.
    pub(super) fn shorten_leases<S: CellsMut + ?Sized>(&self, state: &mut S, latest: Time<Mono>) {
        let mut link = self.last;
        for _ in 0..self.slots {
            let lease = self.read_lease(state, link);
            if link == NO_SLOT || lease.ends <= latest {
                break;
            }
            self.write(state, link, Lease { ends: latest, ..lease });
            link = lease.prev;
        }
    }

    /// Translates the expiry of every lease to another clock. An expiry that is never reached stays unchanged.
    pub(super) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        for link in 1..=self.ever_used {
            let lease = self.read_lease(state, link);
            if lease.ends.as_nanos() < u64::MAX {
                self.write(state, link, Lease { ends: lease.ends.rebased(from, to), ..lease });
            }
        }
    }

    /// Moves the unexpired leases to fewer slots. If they do not fit, keeps the leases that expire last.
    pub(super) fn move_to_fewer_slots<S: CellsMut + ?Sized>(&self, state: &mut S, now: Time<Mono>, slots: u64) {
        // Old and new slots overlap, so the leases are first copied to the stack (24 KiB). A move happens only when a
        // limit shrinks.
        let mut aside = [Lease::EMPTY; Concurrency::MAX_SLOTS as usize];
        let (mut kept, mut link) = (0, self.last);
        for entry in aside.iter_mut().take(slots as usize) {
            *entry = self.read_lease(state, link);
            if link == NO_SLOT || entry.time_left(now) == Nanos::ZERO {
                break;
            }
            (kept, link) = (kept + 1, entry.prev);
        }
        let mut leases = Self::with_no_leases(slots);
        for lease in aside.iter().take(kept).rev() {
            leases.ever_used += 1;
            leases.in_use = Concurrency::MAX_SLOTS.min(leases.in_use + u64::from(lease.weight));
            leases.insert(state, leases.ever_used, *lease);
        }
        leases.store(state);
    }

    /// Returns the mask of a stamp's lowest bits, which contain the slot.
    fn slot_mask(&self) -> u64 {
        self.slots.next_power_of_two() - 1
    }

    /// Returns the number for a lease taken now in slot `link`. The lease gets the lowest number that contains the slot
    /// in its low bits, is above the last number and is not before `now`. The highest bit of a lease number is set, so
    /// that the number cannot equal a stamp of another algorithm after the limit changes its algorithm.
    pub(super) fn next_stamp<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>, link: Link) -> Stamp {
        let least = state.get(LAST_STAMP_INDEX).saturating_add(1).max(now.as_nanos() | LEASE_NUMBER_BIT);
        let stamp = least & !self.slot_mask() | u64::from(link - 1);
        Stamp::from_bits(if stamp < least { stamp.wrapping_add(self.slot_mask() + 1) } else { stamp })
    }

    /// Returns the slot of the lease with the number `stamp`; `None` if the lease does not exist or has expired.
    pub(super) fn find<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>, stamp: Stamp) -> Option<Link> {
        if stamp == Stamp::NONE {
            return None;
        }
        let is_it = |link: &Link| state.get(first_word_of_slot(*link)) == stamp.to_bits();
        let likely = (stamp.to_bits() & self.slot_mask()) as Link + 1;
        // A change of the limit may have moved the lease to another slot.
        let link =
            if likely <= self.ever_used && is_it(&likely) { likely } else { (1..=self.ever_used).find(is_it)? };
        (self.read_lease(state, link).time_left(now) > Nanos::ZERO).then_some(link)
    }
}

/// Returns the index of a slot's first word.
const fn first_word_of_slot(link: Link) -> usize {
    FIRST_SLOT_INDEX + WORDS_PER_SLOT * (link as usize).saturating_sub(1)
}

#[cfg(test)]
impl LeaseList {
    /// Checks the order of expiry, the links in both directions, the sum, and that every slot is in exactly one list.
    pub(super) fn assert_sound(&self, state: &[u64], what: &str) {
        let (mut link, mut before, mut weight, mut seen) = (self.first, Lease::EMPTY, 0, vec![NO_SLOT]);
        while link != NO_SLOT {
            let lease = self.read_lease(state, link);
            assert!(lease.ends >= before.ends && lease.weight > 0, "not in order of expiry, or without weight, {what}");
            assert_eq!(Some(&lease.prev), seen.last(), "wrong link to the previous lease, {what}");
            assert!(!seen.contains(&link), "slot {link} is held twice, {what}");
            seen.push(link);
            weight += u64::from(lease.weight);
            (link, before) = (lease.next, lease);
        }
        assert_eq!((Some(&self.last), self.in_use), (seen.last(), weight), "wrong last lease or wrong sum, {what}");
        link = self.first_free;
        while link != NO_SLOT {
            assert!(!seen.contains(&link), "slot {link} is both held and free, or free twice, {what}");
            seen.push(link);
            link = self.read_lease(state, link).next;
        }
        assert_eq!(seen.len(), usize::from(self.ever_used) + 1, "a used slot is in neither list, {what}");
    }
}
