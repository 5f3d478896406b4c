//! A fractional amount of tokens.

use core::num::NonZeroU64;

/// Exactly `whole + part / per` tokens. The used amount of a bucket or a sliding window is often fractional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    whole: u64,
    /// Below `per`.
    part: u64,
    per: NonZeroU64,
}

impl Tokens {
    /// No tokens.
    pub const ZERO: Self = Self::whole(0);

    /// Creates a whole number of tokens.
    pub const fn whole(tokens: u64) -> Self {
        Self { whole: tokens, part: 0, per: NonZeroU64::MIN }
    }

    /// Creates `amount / per` tokens, saturating at `u64::MAX`. A `per` of zero counts as one.
    pub fn of(amount: u128, per: u64) -> Self {
        let per = NonZeroU64::new(per).unwrap_or(NonZeroU64::MIN);
        let (whole, part) = (amount / u128::from(per.get()), (amount % u128::from(per.get())) as u64);
        u64::try_from(whole).map_or(Self::whole(u64::MAX), |whole| Self { whole, part, per })
    }

    /// Returns the number of tokens, rounded down.
    pub const fn floor(self) -> u64 {
        self.whole
    }

    /// Returns the number of tokens, rounded up.
    pub const fn ceil(self) -> u64 {
        self.whole.saturating_add((self.part > 0) as u64)
    }

    /// Converts to smaller units, with `unit` units per token. Rounds down.
    pub fn units_floor(self, unit: u64) -> u128 {
        let part = u128::from(self.part) * u128::from(unit) / u128::from(self.per.get());
        u128::from(self.whole) * u128::from(unit) + part
    }

    /// Converts to smaller units, with `unit` units per token. Rounds up.
    pub fn units_ceil(self, unit: u64) -> u128 {
        let part = (u128::from(self.part) * u128::from(unit)).div_ceil(self.per.get().into());
        u128::from(self.whole) * u128::from(unit) + part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_floor_and_ceil_methods_round() {
        let third = Tokens::of(10, 3);
        assert_eq!((third.floor(), third.ceil()), (3, 4));
        assert_eq!((third.units_floor(2), third.units_ceil(2), third.units_floor(6)), (6, 7, 20));
        let whole = Tokens::of(12, 3);
        assert_eq!((whole.floor(), whole.ceil(), whole.units_floor(5), whole.units_ceil(5)), (4, 4, 20, 20));
        assert_eq!(Tokens::of(u128::MAX, 3), Tokens::whole(u64::MAX));
        assert_eq!(Tokens::whole(u64::MAX).units_ceil(u64::MAX), u128::from(u64::MAX) * u128::from(u64::MAX));
        assert_eq!(Tokens::of(5, 0), Tokens::whole(5));
    }
}
