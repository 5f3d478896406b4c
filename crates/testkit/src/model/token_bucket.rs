//! The token bucket by its definition: tokens drip in at the rate, what does not fit the bucket is lost.

use num_traits::Zero;
use tollgate_core::{Ask, LimitError, Nanos, Now, Outcome, Rate, Report, Retry, TokenBucket};

use super::{Answer, Exact, Model, ceil, ceil_nanos, exact, floor, per_nano};

/// At most `burst` at one instant, refilled at `rate`.
#[derive(Clone, Copy, Debug)]
pub struct TokenNumbers {
    /// What drips in.
    pub rate: Rate,
    /// The most in the bucket.
    pub burst: u64,
    /// How far charges go below empty.
    pub max_debt: u64,
    /// What a new key has.
    pub initial: u64,
}

impl TokenNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<TokenBucket, LimitError> {
        TokenBucket::new(self.rate, self.burst)?.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// A number of tokens, which may be a fraction or, in debt, negative.
#[derive(Clone, Debug)]
pub struct TokenBucketModel {
    numbers: TokenNumbers,
    tokens: Exact,
    /// When `tokens` was true.
    at: u64,
}

impl TokenBucketModel {
    /// A bucket nobody has taken from yet, holding `initial` at `now`.
    pub fn new(numbers: TokenNumbers, now: &Now<'_>) -> Self {
        Self { numbers, tokens: exact(numbers.initial), at: now.mono().as_nanos() }
    }

    /// The tokens at `now`: those that were there and those that dripped in since, as far as they fit.
    pub fn tokens(&self, now: &Now<'_>) -> Exact {
        let elapsed = exact(now.mono().as_nanos()) - exact(self.at);
        (&self.tokens + elapsed * per_nano(self.numbers.rate)).min(exact(self.numbers.burst))
    }

    /// Other numbers from now on: what was spent stays spent, rounded up to what the new bucket can tell apart (a
    /// rate of n per p nanoseconds in lowest terms counts in p-ths of a token), as far as burst and debt go.
    pub fn change(&mut self, numbers: TokenNumbers, now: &Now<'_>) {
        let part = exact(numbers.rate.per().as_nanos());
        let spent = ((exact(self.numbers.burst) - self.tokens(now)) * &part).ceil() / part;
        let deepest = exact(numbers.burst) + exact(numbers.max_debt);
        self.set(now, exact(numbers.burst) - spent.min(deepest));
        self.numbers = numbers;
    }

    fn set(&mut self, now: &Now<'_>, tokens: Exact) {
        (self.tokens, self.at) = (tokens, now.mono().as_nanos());
    }

    /// How long until `wanted` tokens are there.
    fn until(&self, now: &Now<'_>, wanted: Exact) -> Nanos {
        ceil_nanos(&((wanted - self.tokens(now)) / per_nano(self.numbers.rate)))
    }

    /// Takes `cost` if at least `floor` tokens would be left, and says otherwise when that would be so.
    fn take(&mut self, now: &Now<'_>, cost: u64, floor: &Exact) -> Answer {
        let left = self.tokens(now) - exact(cost);
        let outcome = if left >= *floor {
            self.set(now, left);
            Outcome::Allow
        } else if exact(self.numbers.burst) - exact(cost) < *floor {
            Outcome::Deny(Retry::Never)
        } else {
            Outcome::Deny(Retry::After(self.until(now, exact(cost) + floor)))
        };
        Answer { outcome, taken: if outcome.is_admitted() { cost } else { 0 }, receipt: 0 }
    }
}

impl Model for TokenBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let empty = Exact::zero();
        match ask {
            Ask::Exactly(cost) => self.take(now, cost.get(), &empty),
            Ask::Regardless(cost) => self.take(now, cost.get(), &-exact(self.numbers.max_debt)),
            // Nothing asked for is nothing refused, even in debt.
            Ask::UpTo(cost) if cost.get() == 0 => Answer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(cost) => {
                let most = floor(&self.tokens(now)).min(cost.get());
                self.take(now, most.max(1), &empty)
            }
        }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        let (tokens, full) = (self.tokens(now), exact(self.numbers.burst));
        let accepted = cost.min(ceil(&(&full - &tokens)));
        self.set(now, (tokens + exact(cost)).min(full));
        accepted
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let retry = if cost > self.numbers.burst { Retry::Never } else { Retry::After(self.until(now, exact(cost))) };
        Report {
            limit: self.numbers.burst,
            remaining: floor(&self.tokens(now)),
            retry,
            reset: self.until(now, exact(self.numbers.burst)),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.set(now, exact(self.numbers.initial));
    }
}
