//! Definition of a token bucket: tokens are added at the rate, up to the burst.

use num_traits::Zero;
use tollgate_core::{Ask, LimitError, Nanos, Now, Outcome, Rate, Report, Retry, TokenBucket};

use super::{Exact, Model, ModelAnswer, ceil, ceil_nanos, floor, per_nano, to_exact};

/// Parameters of a token bucket: it holds at most `burst` tokens and refills at `rate`.
#[derive(Clone, Copy, Debug)]
pub struct TokenParams {
    /// Refill rate.
    pub rate: Rate,
    /// Maximum number of tokens.
    pub burst: u64,
    /// Maximum debt.
    pub max_debt: u64,
    /// Initial tokens of a new key.
    pub initial: u64,
}

impl TokenParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<TokenBucket, LimitError> {
        TokenBucket::new(self.rate, self.burst)?.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// The number of tokens. The number may be a fraction, and is negative in debt.
#[derive(Clone, Debug)]
pub struct TokenBucketModel {
    params: TokenParams,
    tokens: Exact,
    /// Instant to which `tokens` applies.
    at: u64,
}

impl TokenBucketModel {
    /// Returns a bucket that holds `initial` at `now`.
    pub fn new(params: TokenParams, now: &Now<'_>) -> Self {
        Self { params, tokens: to_exact(params.initial), at: now.mono().as_nanos() }
    }

    /// Returns the tokens at `now`: the previous tokens plus the refill since then, up to the burst.
    pub fn tokens_at(&self, now: &Now<'_>) -> Exact {
        let elapsed = to_exact(now.mono().as_nanos()) - to_exact(self.at);
        (&self.tokens + elapsed * per_nano(self.params.rate)).min(to_exact(self.params.burst))
    }

    /// Changes the parameters. The spent amount is kept up to burst plus debt. The kept amount is rounded up to the
    /// resolution of the new bucket. For a rate of n per p nanoseconds in lowest terms, the resolution is 1/p of a
    /// token.
    pub fn change_params(&mut self, params: TokenParams, now: &Now<'_>) {
        let part = to_exact(params.rate.per().as_nanos());
        let spent = ((to_exact(self.params.burst) - self.tokens_at(now)) * &part).ceil() / part;
        let deepest = to_exact(params.burst) + to_exact(params.max_debt);
        self.set_tokens(now, to_exact(params.burst) - spent.min(deepest));
        self.params = params;
    }

    fn set_tokens(&mut self, now: &Now<'_>, tokens: Exact) {
        (self.tokens, self.at) = (tokens, now.mono().as_nanos());
    }

    /// Returns the time until `wanted` tokens are available.
    fn time_until_tokens(&self, now: &Now<'_>, wanted: Exact) -> Nanos {
        ceil_nanos(&((wanted - self.tokens_at(now)) / per_nano(self.params.rate)))
    }

    /// Takes `cost` if at least `floor` tokens remain afterwards. If fewer would remain, returns the wait until enough
    /// tokens are available.
    fn take(&mut self, now: &Now<'_>, cost: u64, floor: &Exact) -> ModelAnswer {
        let left = self.tokens_at(now) - to_exact(cost);
        let outcome = if left >= *floor {
            self.set_tokens(now, left);
            Outcome::Allow
        } else if to_exact(self.params.burst) - to_exact(cost) < *floor {
            Outcome::Deny(Retry::Never)
        } else {
            Outcome::Deny(Retry::After(self.time_until_tokens(now, to_exact(cost) + floor)))
        };
        ModelAnswer { outcome, taken: if outcome.is_admitted() { cost } else { 0 }, receipt: 0 }
    }
}

impl Model for TokenBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let empty = Exact::zero();
        match ask {
            Ask::Exactly(cost) => self.take(now, cost.get(), &empty),
            Ask::Regardless(cost) => self.take(now, cost.get(), &-to_exact(self.params.max_debt)),
            // An `UpTo` ask of cost 0 is never refused, even in debt.
            Ask::UpTo(cost) if cost.get() == 0 => ModelAnswer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(cost) => {
                let most = floor(&self.tokens_at(now)).min(cost.get());
                self.take(now, most.max(1), &empty)
            }
        }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        let (tokens, full) = (self.tokens_at(now), to_exact(self.params.burst));
        let accepted = cost.min(ceil(&(&full - &tokens)));
        self.set_tokens(now, (tokens + to_exact(cost)).min(full));
        accepted
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let retry = if cost > self.params.burst {
            Retry::Never
        } else {
            Retry::After(self.time_until_tokens(now, to_exact(cost)))
        };
        Report {
            limit: self.params.burst,
            remaining: floor(&self.tokens_at(now)),
            retry,
            reset: self.time_until_tokens(now, to_exact(self.params.burst)),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.set_tokens(now, to_exact(self.params.initial));
    }
}
