//! The stamps of a group's charge: one per limit, for an exact refund or renewal.

use super::Limits;
use crate::verdict::Stamp;

/// The stamps of a charge, one for each limit of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamps {
    pub(super) by_limit: [Stamp; Limits::MAX],
    /// Bit mask of the limits that refused.
    pub(super) refused: u8,
    /// Number of limits in the group, at least 1.
    pub(super) count: u8,
}

impl Default for Stamps {
    /// Returns the stamps of a single limit that needs no stamp.
    fn default() -> Self {
        Self { by_limit: [Stamp::NONE; Limits::MAX], refused: 0, count: 1 }
    }
}

impl Stamps {
    /// Returns the stamp of the limit at `index`.
    pub fn get(&self, index: usize) -> Stamp {
        self.by_limit.get(index).copied().unwrap_or_default()
    }

    /// Restores the stamps of a group from a receipt, in the order of the limits. Stamps beyond [`Limits::MAX`] are
    /// dropped.
    pub fn from_stamps(stamps: impl IntoIterator<Item = Stamp>) -> Self {
        let (mut by_limit, mut count) = ([Stamp::NONE; Limits::MAX], 0);
        for (target, stamp) in by_limit.iter_mut().zip(stamps) {
            *target = stamp;
            count += 1;
        }
        Self { by_limit, refused: 0, count: 1 }.with_count(count)
    }

    /// Returns the stamps for the first `count` limits of a group, between 1 and [`Limits::MAX`]. Limits without a
    /// stamp get [`Stamp::NONE`].
    #[must_use]
    pub fn with_count(self, count: usize) -> Self {
        Self { count: count.clamp(1, Limits::MAX) as u8, ..self }
    }

    /// Returns the number of limits that were charged. If the key has more limits by now, a refund applies only to the
    /// charged limits.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns whether no limit issued a stamp and no limit refused.
    pub fn is_empty(&self) -> bool {
        self.by_limit == [Stamp::NONE; Limits::MAX] && self.refused == 0
    }

    /// Returns the stamps of a refusal by the limit at `index`.
    pub fn of_refusal_by(index: usize) -> Self {
        Self { refused: if index < Limits::MAX { 1 << index } else { 0 }, ..Self::default() }
    }

    /// Returns whether the limit at `index` refused.
    pub const fn has_refused(&self, index: usize) -> bool {
        index < Limits::MAX && self.refused >> index & 1 == 1
    }
}
