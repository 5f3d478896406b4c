//! Concurrency: leases, each with a weight and an end.

use super::super::limit::{Algorithm, Limit};
use super::super::{Tokens, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Leases {
    length: u64,
    held: Vec<Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// `None` for an amount that was spent under another algorithm.
    number: Option<u64>,
    weight: u64,
    taken: u64,
    end: u64,
}

impl Leases {
    pub(super) fn new(length: u64, spent: u64, at: u64) -> Self {
        Self { length, held: vec![Lease { number: None, weight: spent, taken: at, end: at + length }] }
    }

    fn held_leases(&self, at: u64) -> impl Iterator<Item = &Lease> {
        self.held.iter().filter(move |lease| at < lease.end && lease.weight > 0)
    }

    pub(super) fn last_end(&self, at: u64) -> u64 {
        self.held_leases(at).map(|lease| lease.end).max().unwrap_or(at)
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        whole_tokens(self.held_leases(at).map(|lease| lease.weight).sum())
    }

    pub(super) fn when_spent_at_most(&self, _: u64, _: Tokens) -> When {
        When::OnRelease
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64, number: u64) -> Stamp {
        self.held.push(Lease { number: Some(number), weight: amount, taken: at, end: at + self.length });
        Stamp::Lease(number, at)
    }

    /// Adopts another lease length. Shortens existing leases so that they end no later than a new lease.
    pub(super) fn adopt(&mut self, limit: &Limit, at: u64) {
        let Algorithm::Concurrency { lease } = limit.algorithm else { return };
        self.length = lease;
        self.held.iter_mut().for_each(|held| held.end = held.end.min(at + lease));
    }

    fn find(&mut self, at: u64, stamp: Option<Stamp>) -> Option<&mut Lease> {
        let Some(Stamp::Lease(number, _)) = stamp else { return None };
        self.held.iter_mut().find(|lease| lease.number == Some(number) && at < lease.end && lease.weight > 0)
    }

    /// Returns whether the stamp's number may belong to another lease. Programs number leases by the clock, so a state
    /// that was reset or converted may reuse a number within about a microsecond. The model allows for a millisecond.
    pub(super) fn is_ambiguous(&self, at: u64, stamp: Stamp) -> bool {
        let Stamp::Lease(number, taken) = stamp else { return false };
        let is_other = |lease: &Lease| lease.number != Some(number) && lease.taken.abs_diff(taken) < 1_000_000;
        !self.held_leases(at).any(|lease| lease.number == Some(number)) && self.held_leases(at).any(is_other)
    }

    /// Releases only the lease named by the stamp.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        let Some(lease) = self.find(at, stamp) else { return 0 };
        let accepted = amount.min(lease.weight);
        lease.weight -= accepted;
        accepted
    }

    pub(super) fn renew(&mut self, at: u64, stamp: Stamp) -> bool {
        let end = at + self.length;
        let Some(lease) = self.find(at, Some(stamp)) else { return false };
        lease.end = lease.end.max(end);
        true
    }
}
