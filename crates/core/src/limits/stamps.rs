//! The stamps of a charge to a group of limits: what is needed of each limit to refund or renew it exactly.

use super::Limits;
use crate::verdict::Stamp;

/// The stamps of a request, one for each limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamps {
    pub(super) each: [Stamp; Limits::MAX],
    /// A bit for each limit that refused.
    pub(super) refused: u8,
    /// How many limits the group has, at least 1.
    pub(super) count: u8,
}

impl Default for Stamps {
    /// Returns the stamps of a single limit whose algorithm needs none.
    fn default() -> Self {
        Self { each: [Stamp::NONE; Limits::MAX], refused: 0, count: 1 }
    }
}

impl Stamps {
    /// Returns the stamp of the limit at `place`.
    pub fn get(&self, place: usize) -> Stamp {
        self.each.get(place).copied().unwrap_or_default()
    }

    /// Restores the stamps of limits, in order, from a receipt; stamps beyond [`Limits::MAX`] are dropped.
    pub fn from_stamps(stamps: impl IntoIterator<Item = Stamp>) -> Self {
        let (mut each, mut count) = ([Stamp::NONE; Limits::MAX], 0);
        for (place, stamp) in each.iter_mut().zip(stamps) {
            *place = stamp;
            count += 1;
        }
        Self { each, refused: 0, count: 1 }.of_first(count)
    }

    /// Returns the same stamps, for a request that was charged to the first `count` limits of a group.
    #[must_use]
    pub fn of_first(self, count: usize) -> Self {
        Self { count: count.clamp(1, Limits::MAX) as u8, ..self }
    }

    /// Returns how many limits the taking is from. A refund to a key that has more limits by now reaches only these.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns whether no limit gave a stamp or refused.
    pub fn is_plain(&self) -> bool {
        self.each == [Stamp::NONE; Limits::MAX] && self.refused == 0
    }

    /// Returns the stamps of a refusal by the limit at `place`.
    pub fn refused_by(place: usize) -> Self {
        Self { refused: if place < Limits::MAX { 1 << place } else { 0 }, ..Self::default() }
    }

    /// Returns whether the limit at `place` is one of those that refused.
    pub const fn has_refused(&self, place: usize) -> bool {
        place < Limits::MAX && self.refused >> place & 1 == 1
    }
}
