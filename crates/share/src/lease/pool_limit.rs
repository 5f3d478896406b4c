//! Integer arithmetic for the used amount of one limit in a pool.

use tollgate_core::{Limit, Nanos, Params, Phase};

/// The parameters of one limit of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolLimit {
    /// A token bucket. Amounts are counted in ticks, with `count` ticks per nanosecond and `per` ticks per token, so
    /// all amounts are integers.
    Bucket {
        /// Tokens per period.
        count: u64,
        /// The period, in nanoseconds.
        per: u64,
        /// Maximum amount admitted at one instant.
        burst: u64,
        /// Maximum debt beyond the burst, for [`Need::Regardless`](super::Need::Regardless).
        max_debt: u64,
        /// Initial tokens of a new key.
        initial: u64,
    },
    /// A fixed window.
    Window {
        /// Maximum amount per window.
        limit: u64,
        /// The length of a window, in nanoseconds.
        length: u64,
        /// Offset in nanoseconds: windows begin at multiples of the length plus this offset.
        offset: u64,
        /// Maximum debt beyond the limit, for [`Need::Regardless`](super::Need::Regardless).
        max_debt: u64,
        /// Initial tokens of a new key, in its first window.
        initial: u64,
    },
}

/// The used amount of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A bucket's level.
    Bucket {
        /// Instant at which the bucket is full again, in ticks since the clock's zero.
        ticks: u128,
    },
    /// A window's count.
    Window {
        /// First instant after the window, in nanoseconds.
        end: u64,
        /// Amount counted in the window.
        used: u64,
    },
}

/// Maximum time by which a valid state may be ahead of the clock. A state further ahead was written before the clock
/// was set back.
const MAX_CLOCK_LEAD: u64 = Nanos::SECOND.as_nanos();

impl PoolLimit {
    /// Returns the parameters of a limit; `None` if its algorithm cannot be leased. `spread` is the key's spread number,
    /// which determines the offset of windows with phase `Spread`.
    pub fn new(limit: &Limit, spread: u64) -> Option<Self> {
        match limit.params() {
            Params::TokenBucket(bucket) => Some(Self::Bucket {
                count: bucket.rate.count().into(),
                per: bucket.rate.per().as_nanos(),
                burst: bucket.burst,
                max_debt: bucket.max_debt,
                initial: bucket.initial,
            }),
            Params::FixedWindow { window, phase } => {
                let length = window.length.as_nanos();
                let offset = match phase {
                    Phase::Epoch => 0,
                    Phase::Spread => spread % length,
                    Phase::FirstRequest | Phase::Given(_) => return None,
                };
                let (limit, max_debt, initial) = (window.limit, window.max_debt, window.initial);
                Some(Self::Window { limit, length, offset, max_debt, initial })
            }
            Params::Unlimited
            | Params::DenyAll
            | Params::LeakyBucket { .. }
            | Params::IntervalBucket { .. }
            | Params::SlidingWindow(_)
            | Params::SlidingSlices { .. }
            | Params::SlidingLog { .. }
            | Params::Concurrency { .. } => None,
        }
    }

    /// Returns the maximum amount admitted at one instant or in one window.
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::Bucket { burst, .. } => *burst,
            Self::Window { limit, .. } => *limit,
        }
    }

    /// Returns the maximum used amount, including debt.
    const fn max_used(&self) -> u64 {
        match self {
            Self::Bucket { burst, max_debt, .. } => burst.saturating_add(*max_debt),
            Self::Window { limit, max_debt, .. } => limit.saturating_add(*max_debt),
        }
    }

    /// Returns the level of a new key.
    pub fn init(&self, now: u64) -> Level {
        match *self {
            Self::Bucket { burst, initial, .. } => self.level_with(now, burst - initial.min(burst)),
            Self::Window { limit, initial, .. } => self.level_with(now, limit - initial.min(limit)),
        }
    }

    /// Returns the level with `used` tokens used at `now`.
    pub fn level_with(&self, now: u64, used: u64) -> Level {
        match *self {
            Self::Bucket { count, per, .. } => {
                Level::Bucket { ticks: to_u128(now) * to_u128(count) + to_u128(used) * to_u128(per) }
            }
            Self::Window { .. } => Level::Window { end: self.window_end(now), used },
        }
    }

    /// Returns the first instant after the window that contains `now`; `u64::MAX` for a bucket.
    pub fn window_end(&self, now: u64) -> u64 {
        match *self {
            Self::Bucket { .. } => u64::MAX,
            Self::Window { length, offset, .. } => {
                let into = (now % length + length - offset) % length;
                now.saturating_add(length - into)
            }
        }
    }

    /// Returns the level at `now`. Moves a window's level to the current window, and caps a level that is implausibly
    /// far ahead of the clock.
    pub fn level_at(&self, level: Level, now: u64) -> Level {
        match (*self, level) {
            (Self::Bucket { count, per, .. }, Level::Bucket { ticks }) => {
                let most = to_u128(now) * to_u128(count) + to_u128(self.max_used()) * to_u128(per);
                if ticks > most + to_u128(MAX_CLOCK_LEAD) * to_u128(count) {
                    Level::Bucket { ticks: most }
                } else {
                    level
                }
            }
            (Self::Window { limit, length, .. }, Level::Window { end, used }) => {
                let (present, used) = (self.window_end(now), used.min(self.max_used()));
                // A stored window after the current window means that the clock was set back. The stored window is kept
                // if the clock was set back by at most a window or a second, whichever is longer.
                let most = now.saturating_add(length).saturating_add(length.max(MAX_CLOCK_LEAD));
                if used > 0 && now < end && end <= most {
                    Level::Window { end, used }
                } else if used == 0 || end > present {
                    Level::Window { end: present, used }
                } else {
                    // Each window that has begun since `end` repays up to `limit` of the debt.
                    let begun = 1 + (now - end) / length;
                    Level::Window { end: present, used: used.saturating_sub(limit.saturating_mul(begun)) }
                }
            }
            // Unreachable: a level of another algorithm is converted before this call.
            (_, level) => level,
        }
    }

    /// Returns the level with at least `used` tokens used at the instant `at`.
    pub fn with_min_used(&self, level: Level, at: u64, used: u64) -> Level {
        match (*self, level) {
            (Self::Bucket { count, per, .. }, Level::Bucket { ticks }) => {
                Level::Bucket { ticks: ticks.max(to_u128(at) * to_u128(count) + to_u128(used) * to_u128(per)) }
            }
            (_, Level::Window { end, used: counted }) if at < end => Level::Window { end, used: counted.max(used) },
            (_, level) => level,
        }
    }

    /// Returns the number of whole tokens left at `now`; zero while in debt.
    pub fn left(&self, level: Level, now: u64) -> u64 {
        match (*self, level) {
            (Self::Bucket { count, per, burst, .. }, Level::Bucket { ticks }) => {
                let owed = ticks.saturating_sub(to_u128(now) * to_u128(count));
                to_u64_saturating((to_u128(burst) * to_u128(per)).saturating_sub(owed) / to_u128(per))
            }
            (_, Level::Window { used, .. }) => self.capacity().saturating_sub(used),
            (Self::Window { .. }, Level::Bucket { .. }) => 0,
        }
    }

    /// Returns the whole tokens that may be charged at `now`, including debt.
    pub fn chargeable(&self, level: Level, now: u64) -> u64 {
        self.max_used().saturating_sub(self.used(level, now))
    }

    /// Returns the tokens used at `now`, including debt, rounded up.
    pub fn used(&self, level: Level, now: u64) -> u64 {
        match (*self, level) {
            (Self::Bucket { count, per, .. }, Level::Bucket { ticks }) => {
                to_u64_saturating(ticks.saturating_sub(to_u128(now) * to_u128(count)).div_ceil(to_u128(per)))
            }
            (_, Level::Window { used, .. }) => used,
            (Self::Window { .. }, Level::Bucket { .. }) => 0,
        }
    }

    /// Returns the level after taking `tokens` at `now`.
    pub fn take(&self, level: Level, now: u64, tokens: u64) -> Level {
        match (*self, level) {
            (Self::Bucket { count, per, .. }, Level::Bucket { ticks }) => {
                Level::Bucket { ticks: ticks.max(to_u128(now) * to_u128(count)) + to_u128(tokens) * to_u128(per) }
            }
            // Like the core algorithm, caps the count at the limit plus the maximum debt.
            (_, Level::Window { end, used }) => {
                Level::Window { end, used: used.saturating_add(tokens).min(self.max_used()) }
            }
            (Self::Window { .. }, level) => level,
        }
    }

    /// Returns the level after `tokens` are given back.
    pub fn refund(&self, level: Level, tokens: u64) -> Level {
        match (*self, level) {
            (Self::Bucket { per, .. }, Level::Bucket { ticks }) => {
                Level::Bucket { ticks: ticks.saturating_sub(to_u128(tokens) * to_u128(per)) }
            }
            (_, Level::Window { end, used }) => Level::Window { end, used: used.saturating_sub(tokens) },
            (Self::Window { .. }, level) => level,
        }
    }

    /// Returns the nanoseconds, rounded up, until at most `used` tokens are used, if nothing more is taken.
    pub fn wait_until_used(&self, level: Level, now: u64, used: u64) -> u64 {
        match (*self, level) {
            (Self::Bucket { count, per, .. }, Level::Bucket { ticks }) => {
                let late = ticks.saturating_sub(to_u128(now) * to_u128(count) + to_u128(used) * to_u128(per));
                to_u64_saturating(late.div_ceil(to_u128(count)))
            }
            (Self::Window { limit, length, .. }, Level::Window { end, used: counted }) => {
                let over = counted.saturating_sub(used);
                if over == 0 {
                    return 0;
                }
                let windows = over.div_ceil(limit.max(1));
                (end - now.min(end)).saturating_add(length.saturating_mul(windows - 1))
            }
            (_, _) => 0,
        }
    }
}

fn to_u128(number: u64) -> u128 {
    u128::from(number)
}

fn to_u64_saturating(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Now, Rate, TokenBucket};

    const SECOND: u64 = 1_000_000_000;

    /// Checks that the pool's arithmetic and the core algorithm agree on random costs at random instants.
    #[test]
    fn pool_limits_agree_with_the_core_algorithms() {
        let bucket = TokenBucket::new(Rate::per_second(7).unwrap(), 10).unwrap().max_debt(5).unwrap();
        let window = FixedWindow::new(10, Nanos::from_secs(2)).unwrap().max_debt(25).unwrap();
        for limit in [Limit::from(bucket), Limit::from(window)] {
            let pool_limit = PoolLimit::new(&limit, 0).unwrap();
            let mut now = 1_000 * SECOND;
            let mut state = vec![0; limit.words()];
            limit.init(&mut *state, &Now::at(now));
            let mut level = pool_limit.init(now);
            let mut random = 1_u64;
            for _ in 0..5_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                now += (random >> 33) % SECOND / 1_000 * 1_000;
                let cost = 1 + (random >> 20) % 8;
                level = pool_limit.level_at(level, now);
                let regardless = random >> 60 == 0;
                let ask = if regardless { Ask::Regardless(Cost::new(cost)) } else { Ask::Exactly(Cost::new(cost)) };
                let before = limit.weigh(&*state, &Now::at(now), Ask::Exactly(Cost::new(cost))).outcome();
                let fits = if regardless {
                    pool_limit.chargeable(level, now) >= cost
                } else {
                    pool_limit.left(level, now) >= cost
                };
                let verdict = limit.decide(&mut *state, &Now::at(now), ask);
                assert_eq!(verdict.is_admitted(), fits, "{limit:?} at {now}");
                if let tollgate_core::Outcome::Deny(tollgate_core::Retry::After(wait)) = before {
                    assert_eq!(
                        pool_limit.wait_until_used(level, now, pool_limit.capacity() - cost),
                        wait.as_nanos(),
                        "{limit:?} at {now}"
                    );
                }
                if fits {
                    level = pool_limit.take(level, now, cost);
                }
                let remaining = limit.report(&*state, &Now::at(now), Cost::ONE).remaining;
                assert_eq!(pool_limit.left(level, now), remaining, "{limit:?} at {now}");
            }
        }
    }

    #[test]
    fn floor_never_lowers_usage_and_levels_far_ahead_of_the_clock_are_capped() {
        let pool_limit = PoolLimit::Bucket { count: 1, per: SECOND, burst: 10, max_debt: 0, initial: 10 };
        let now = 1_000 * SECOND;
        let level = pool_limit.with_min_used(pool_limit.init(now), now, 4);
        assert_eq!(pool_limit.left(level, now), 6);
        assert_eq!(pool_limit.left(pool_limit.with_min_used(level, now, 3), now), 6, "a floor never lowers usage");
        let ahead = pool_limit.level_with(now + 100 * SECOND, 10);
        assert_eq!(
            pool_limit.left(pool_limit.level_at(ahead, now), now + 10 * SECOND),
            10,
            "the level is at most one burst ahead of the clock"
        );
    }

    #[test]
    fn windows_begin_at_their_offset() {
        let window = |offset| PoolLimit::Window { limit: 5, length: 10, offset, max_debt: 0, initial: 5 };
        assert_eq!([0, 9, 10].map(|now| window(0).window_end(now)), [10, 10, 20]);
        assert_eq!([2, 3, 12, 13].map(|now| window(3).window_end(now)), [3, 13, 13, 23]);
    }
}
