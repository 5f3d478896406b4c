//! Sliding slices: the amount taken in each slice. A slice counts until a whole window has passed since its end.

use super::super::limit::Limit;
use super::super::{Tokens, floor, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Slices {
    length: u64,
    precision: u64,
    /// End of each slice and its count.
    counts: Vec<(u64, u64)>,
}

impl Slices {
    pub(super) fn new(limit: &Limit, spent: u64, at: u64) -> Self {
        let (precision, slices) = limit.slices();
        let mut new = Self { length: precision * slices, precision, counts: Vec::new() };
        new.charge(at, spent);
        new
    }

    /// Returns whether `limit` has slices of the same length and a window that is at least as long.
    pub(super) fn fits_slices_of(&self, limit: &Limit) -> bool {
        let (precision, slices) = limit.slices();
        precision == self.precision && precision * slices >= self.length
    }

    fn slices_inside(&self, at: u64) -> impl Iterator<Item = &(u64, u64)> {
        self.counts.iter().filter(move |(end, _)| at < end + self.length)
    }

    fn current_slice_end(&self, at: u64) -> u64 {
        at - at % self.precision + self.precision
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        whole_tokens(self.slices_inside(at).map(|(_, count)| count).sum())
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        let mut left = floor(self.spent(at));
        for (end, count) in self.slices_inside(at) {
            left -= count;
            if left <= floor(room) {
                return When::At(end + self.length);
            }
        }
        unreachable!("nothing is used once all slices have expired")
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        let end = self.current_slice_end(at);
        match self.counts.last_mut() {
            Some((last, count)) if *last == end => *count += amount,
            _ => self.counts.push((end, amount)),
        }
        Stamp::Time(end)
    }

    /// Adopts a limit with slices of the same length. Expired counts stay expired.
    pub(super) fn adopt(&mut self, limit: &Limit, at: u64) {
        let (precision, slices) = limit.slices();
        *self = Self { length: precision * slices, precision, counts: self.slices_inside(at).copied().collect() };
    }

    /// Refunds in the slice of the charge if that slice still counts. Without a stamp, refunds in the
    /// current slice.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        let present = self.current_slice_end(at);
        let length = self.length;
        let is_meant = |end: u64| stamp.map_or(end == present, |stamp| stamp == Stamp::Time(end));
        let Some((_, count)) = self.counts.iter_mut().find(|(end, _)| is_meant(*end) && at < end + length) else {
            return 0;
        };
        let accepted = amount.min(*count);
        *count -= accepted;
        accepted
    }
}
