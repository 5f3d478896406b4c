//! Token and leaky buckets: the amount spent decreases at the rate.

use super::super::{Tokens, ceil, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Tokens per nanosecond.
    rate: Tokens,
    /// Spent amount at `at`.
    spent: Tokens,
    at: u64,
}

impl Bucket {
    pub(super) const fn new(rate: Tokens, spent: Tokens, at: u64) -> Self {
        Self { rate, spent, at }
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        (self.spent - whole_tokens(at - self.at) * self.rate).max(whole_tokens(0))
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        When::At(at + ceil((self.spent(at) - room) / self.rate))
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        (self.spent, self.at) = (self.spent(at) + whole_tokens(amount), at);
        Stamp::Anywhere
    }

    pub(super) fn refund(&mut self, at: u64, amount: u64, _: Option<Stamp>) -> u64 {
        let spent = self.spent(at);
        (self.spent, self.at) = ((spent - whole_tokens(amount)).max(whole_tokens(0)), at);
        amount.min(ceil(spent))
    }
}
