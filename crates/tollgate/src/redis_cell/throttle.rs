//! Translates the four arguments of `CL.THROTTLE` to a token bucket, and the verdict to the five numbers of the reply.
//!
//! redis-cell stores the *theoretical arrival time* of a key in nanoseconds. The interval between requests is a whole
//! number of nanoseconds: the period divided by the count, rounded down. This limit is equivalent to a [`TokenBucket`]
//! with one token per interval. The bucket's state is one word with exactly this time, so keys of redis-cell can be
//! imported unchanged. `max_burst` counts the requests that pass in addition to the first, so the burst of the bucket
//! is `max_burst + 1`.
//!
//! New parameters apply to the stored time without conversion: redis-cell stores a debt as time, not as requests. At a
//! faster rate the same time is a larger debt, so the bucket has the largest possible maximum debt.
//!
//! The reply is rounded as in redis-cell. Times are truncated to milliseconds and then rounded up to seconds, so a wait
//! below a millisecond is reported as 0. The remaining amount is computed in whole microseconds. Above a million
//! requests per second this computation would divide by zero, so the amount is computed exactly instead. Arguments that
//! would overflow redis-cell's 64-bit arithmetic are an error.
//!
//! ```
//! use tollgate::core::Now;
//! use tollgate::redis_cell::Throttle;
//!
//! let call = Throttle::new(15, 30, 60, 1)?;
//! let mut state = [0];
//! assert_eq!(call.decide(&mut state, &Now::at(0)), [0, 16, 15, -1, 2]);
//! # Ok::<(), tollgate::redis_cell::ThrottleError>(())
//! ```

use std::fmt;

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, LimitError, Nanos, Now, Outcome, Rate, Retry, TokenBucket};

/// A validated call of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// `max_burst + 1`.
    limit: i64,
    quantity: i64,
    /// `None` if the limit is below one or the rate is negative. Then no quantity above zero passes.
    bucket: Option<TokenBucket>,
}

/// Reason why a call is invalid. No state was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The count or the period is zero, or the rate is above one per nanosecond.
    ZeroRate,
    /// The arguments do not form a valid limit.
    Limit(LimitError),
}

impl Throttle {
    /// Creates a call from the arguments in the order of the command. The command's default `quantity` is 1.
    ///
    /// # Errors
    /// Returns an error if the rate is zero or above one per nanosecond, if the interval between requests is above
    /// [`Rate::MAX_PERIOD`], or if an empty bucket would take longer than [`Rate::MAX_FILL_TIME`] to refill.
    pub fn new(max_burst: i64, count: i64, period_s: i64, quantity: i64) -> Result<Self, ThrottleError> {
        let interval = u128::from(period_s.unsigned_abs()) * u128::from(Nanos::SECOND.as_nanos())
            / u128::from(count.unsigned_abs().max(1));
        if count == 0 || interval == 0 {
            return Err(ThrottleError::ZeroRate);
        }
        let limit = max_burst.saturating_add(1);
        let closed = limit < 1 || (count < 0) != (period_s < 0);
        let bucket = if closed { None } else { Some(build_bucket(interval, limit.unsigned_abs())?) };
        Ok(Self { limit, quantity, bucket })
    }

    /// Returns the token bucket, or `None` if no quantity above zero ever passes.
    pub const fn bucket(&self) -> Option<&TokenBucket> {
        self.bucket.as_ref()
    }

    /// Decides on the state of a key: one word, zero for a new key. Returns the reply: limited, limit, remaining,
    /// seconds until retry and seconds until reset.
    pub fn decide<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) -> [i64; 5] {
        let Some(bucket) = &self.bucket else { return self.decide_without_bucket(state, now) };
        if let Ok(quantity) = u64::try_from(self.quantity)
            && let Some(verdict) = bucket.decide_fast(state, now, Cost::new(quantity))
        {
            // The rate has one tick per nanosecond, so the word is the time itself.
            return self
                .reply(verdict.outcome(), Nanos::from_nanos(state.get(0).saturating_sub(now.mono().as_nanos())));
        }
        let outcome = match u64::try_from(self.quantity) {
            Ok(quantity) => bucket.decide(state, now, Ask::Exactly(Cost::new(quantity))).outcome(),
            Err(_) => give_back(bucket, state, now, Cost::new(self.quantity.unsigned_abs())),
        };
        self.reply(outcome, bucket.report(state, now, Cost::ZERO).reset)
    }

    /// Returns the reply for an outcome of [`bucket`](Self::bucket). `reset` is the time until the bucket is full
    /// again.
    pub fn reply(&self, outcome: Outcome, reset: Nanos) -> [i64; 5] {
        let (limited, retry) = match outcome {
            Outcome::Allow | Outcome::Delay(_) => (0, -1),
            Outcome::Deny(Retry::After(wait)) => (1, round_to_seconds(wait)),
            Outcome::Deny(Retry::OnRelease | Retry::Never) => (1, -1),
        };
        [limited, self.limit, self.remaining(reset), retry, round_to_seconds(reset)]
    }

    /// Decides without a bucket. A limit of zero or less admits a quantity only if the quantity is at most the limit
    /// and there is no debt. A negative rate with a limit above zero admits nothing.
    fn decide_without_bucket<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> [i64; 5] {
        let owed = Nanos::from_nanos(state.get(0).saturating_sub(now.mono().as_nanos()));
        let passes = self.limit < 1 && self.quantity <= self.limit && owed == Nanos::ZERO;
        self.reply(if passes { Outcome::Allow } else { Outcome::Deny(Retry::Never) }, owed)
    }

    fn remaining(&self, reset: Nanos) -> i64 {
        let Some(bucket) = &self.bucket else { return 0 };
        let interval = bucket.rate().per().as_nanos();
        // No overflow: the product is at most `Rate::MAX_FILL_TIME`, as checked by the bucket.
        let room = (interval * bucket.burst()).saturating_sub(reset.as_nanos());
        let remaining = match interval / 1_000 {
            0 => room / interval,
            micros => room / 1_000 / micros,
        };
        i64::try_from(remaining).unwrap_or(i64::MAX)
    }
}

fn build_bucket(interval: u128, limit: u64) -> Result<TokenBucket, LimitError> {
    let rate = Rate::new(1, Nanos::from_nanos(u64::try_from(interval).unwrap_or(u64::MAX)))?;
    let max_total = Rate::MAX_FILL_TIME.as_nanos() / rate.per().as_nanos();
    TokenBucket::new(rate, limit)?.max_debt(max_total - limit)
}

/// Refunds `cost`, unless the key would still owe more than the limit afterwards.
fn give_back<S: CellsMut + ?Sized>(bucket: &TokenBucket, state: &mut S, now: &Now<'_>, cost: Cost) -> Outcome {
    let mut after = [state.get(0)];
    bucket.refund(&mut after, now, cost, None);
    let outcome = bucket.weigh(&after, now, Ask::Exactly(Cost::ZERO)).outcome();
    if outcome.is_admitted() {
        state.set(0, after[0]);
    }
    outcome
}

/// Truncates to milliseconds, then rounds up to seconds.
fn round_to_seconds(time: Nanos) -> i64 {
    let millis = time.as_nanos() / 1_000_000;
    millis.div_ceil(1_000).try_into().unwrap_or(i64::MAX)
}

impl From<LimitError> for ThrottleError {
    fn from(error: LimitError) -> Self {
        Self::Limit(error)
    }
}

impl fmt::Display for ThrottleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The error message of redis-cell, because clients may compare it.
            Self::ZeroRate => f.write_str("Zero rates are not supported"),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ThrottleError {}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NANOS: u64 = 1_700_000_000_000_000_000;

    /// Makes calls of `(milliseconds after the start, quantity)` on one key and checks the replies.
    fn assert_replies(limit: [i64; 3], calls: &[(u64, i64)], expected: &[[i64; 5]]) {
        let mut state = [0];
        let [max_burst, count, period] = limit;
        let replies: Vec<_> = calls
            .iter()
            .map(|&(at, quantity)| {
                let call = Throttle::new(max_burst, count, period, quantity).expect("a valid call");
                call.decide(&mut state, &Now::at(START_NANOS + at * 1_000_000))
            })
            .collect();
        assert_eq!(replies, expected, "for {limit:?}");
    }

    #[test]
    fn max_burst_of_four_admits_five() {
        assert_replies(
            [4, 5, 10],
            &[(0, 1), (0, 4), (0, 1), (0, 6), (2_000, 1)],
            &[[0, 5, 4, -1, 2], [0, 5, 0, -1, 10], [1, 5, 0, 2, 10], [1, 5, 0, -1, 10], [0, 5, 0, -1, 10]],
        );
    }

    #[test]
    fn quantity_of_zero_changes_nothing_and_a_negative_quantity_refunds() {
        assert_replies(
            [4, 5, 10],
            &[(0, 3), (0, 0), (0, -1), (0, -5), (0, 5)],
            &[[0, 5, 2, -1, 6], [0, 5, 2, -1, 6], [0, 5, 3, -1, 4], [0, 5, 5, -1, 0], [0, 5, 0, -1, 10]],
        );
    }

    #[test]
    fn less_than_a_millisecond_is_reported_as_zero_seconds() {
        assert_replies([0, 2_000, 1], &[(0, 1), (0, 1)], &[[0, 1, 0, -1, 0], [1, 1, 0, 0, 0]]);
    }

    #[test]
    fn above_a_million_per_second_remaining_is_exact() {
        assert_replies([10, 5_000_000, 1], &[(0, 1)], &[[0, 11, 10, -1, 0]]);
    }

    #[test]
    fn limit_of_zero_admits_only_zero_and_a_negative_rate_admits_nothing() {
        assert_replies([-1, 5, 10], &[(0, 1), (0, 0)], &[[1, 0, 0, -1, 0], [0, 0, 0, -1, 0]]);
        assert_replies([4, -5, 10], &[(0, 1), (0, 0)], &[[1, 5, 0, -1, 0], [1, 5, 0, -1, 0]]);
        assert_replies([4, -5, -10], &[(0, 1)], &[[0, 5, 4, -1, 2]]);
    }

    #[test]
    fn changed_parameters_keep_the_debt_as_time() {
        let mut state = [0];
        let now = Now::at(START_NANOS);
        let slow = Throttle::new(9, 1, 60, 10).expect("valid");
        assert_eq!(slow.decide(&mut state, &now), [0, 10, 0, -1, 600]);
        let fast = Throttle::new(0, 10, 1, 1).expect("valid");
        assert_eq!(fast.decide(&mut state, &now), [1, 1, 0, 600, 600]);
    }

    #[test]
    fn zero_rates_and_limits_that_refill_too_slowly_are_errors() {
        for (count, period) in [(0, 10), (5, 0), (0, 0), (1_000_000_001, 1)] {
            assert_eq!(Throttle::new(4, count, period, 1), Err(ThrottleError::ZeroRate), "{count} per {period} s");
        }
        for (max_burst, period) in [(i64::MAX, 1), (10_000_000_000, 1), (0, i64::MAX), (0, 9_223_372_036)] {
            let error = Throttle::new(max_burst, 1, period, 1);
            assert!(matches!(error, Err(ThrottleError::Limit(_))), "burst {max_burst}, 1 per {period} s: {error:?}");
        }
    }
}
