//! Parameters and state of a limit as plain numbers, for other implementations of the algorithms such as a store
//! script.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{FixedWindow, Phase};
use crate::algorithm::interval_bucket::{IntervalBucket, Steps};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_slices::SlidingSlices;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Cells, CellsMut};
use crate::error::LimitError;
use crate::limit::Limit;
use crate::quantity::Nanos;
use crate::rate::Rate;

/// All parameters of a limit. Exhaustive, so that another implementation cannot miss a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// Everything passes.
    Unlimited,
    /// Nothing passes.
    DenyAll,
    /// See [`TokenBucket`](crate::TokenBucket).
    TokenBucket(BucketParams),
    /// See [`LeakyBucket`](crate::LeakyBucket).
    LeakyBucket {
        /// The parameters shared with the token bucket.
        bucket: BucketParams,
        /// Amount that the bucket may hold before requests are delayed.
        free: u64,
        /// The longest wait.
        max_wait: Nanos,
    },
    /// See [`IntervalBucket`](crate::IntervalBucket).
    IntervalBucket {
        /// Tokens added by each step.
        refill: u64,
        /// Time between steps.
        period: Nanos,
        /// Maximum amount that passes at one instant.
        burst: u64,
        /// Alignment of the steps.
        steps: Steps,
        /// The longest wait.
        max_wait: Nanos,
        /// Maximum debt beyond the burst, for charges.
        max_debt: u64,
        /// Initial tokens of a new key.
        initial: u64,
    },
    /// See [`FixedWindow`](crate::FixedWindow).
    FixedWindow {
        /// The parameters of the window.
        window: WindowParams,
        /// Alignment of the windows.
        phase: Phase,
    },
    /// See [`SlidingWindow`](crate::SlidingWindow).
    SlidingWindow(WindowParams),
    /// See [`SlidingSlices`](crate::SlidingSlices).
    SlidingSlices {
        /// The parameters of the window.
        window: WindowParams,
        /// Length of a slice.
        precision: Nanos,
    },
    /// See [`SlidingLog`](crate::SlidingLog).
    SlidingLog {
        /// The parameters of the window.
        window: WindowParams,
        /// Minimum time between two requests; zero for none.
        minimum_gap: Nanos,
        /// Whether refused attempts count.
        count_refused: bool,
    },
    /// See [`Concurrency`](crate::Concurrency).
    Concurrency {
        /// Maximum number of slots held at one time.
        limit: u64,
        /// Duration of a lease.
        lease: Nanos,
        /// Maximum number of slots beyond the limit, for charges.
        max_debt: u64,
    },
}

/// The parameters of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketParams {
    /// Refill or drain rate.
    pub rate: Rate,
    /// Maximum amount that passes at one instant.
    pub burst: u64,
    /// Maximum debt beyond the burst.
    pub max_debt: u64,
    /// Initial tokens of a new key.
    pub initial: u64,
}

/// The parameters of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowParams {
    /// Maximum amount per window.
    pub limit: u64,
    /// Length of the window.
    pub length: Nanos,
    /// Maximum debt beyond the limit.
    pub max_debt: u64,
    /// Initial tokens of a new key.
    pub initial: u64,
}

/// The decoded state of a limit, for algorithms whose state is a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedState {
    /// A bucket's state. A nanosecond has `count` ticks and a token has
    /// `per` ticks, for a rate of `count` per `per` nanoseconds.
    Bucket {
        /// Instant at which the bucket owes nothing, in ticks since the clock's zero.
        ticks: u128,
    },
    /// An interval bucket's state.
    Interval {
        /// The debt, plus the refill of all steps until the last write.
        mark: u64,
        /// Instant at which step counting starts, in nanoseconds; zero if steps are aligned.
        origin: u64,
    },
    /// A fixed window's state.
    Window {
        /// First instant after the window, in nanoseconds.
        end: u64,
        /// Amount counted in the window.
        used: u64,
    },
    /// A sliding window's state.
    Windows {
        /// First instant after the current window, in nanoseconds.
        end: u64,
        /// Amount counted in the previous window.
        previous: u64,
        /// Amount counted in the current window.
        used: u64,
    },
}

impl Limit {
    /// Returns all parameters.
    pub fn params(&self) -> Params {
        match self {
            Self::Unlimited => Params::Unlimited,
            Self::DenyAll => Params::DenyAll,
            Self::TokenBucket(limit) => limit.params(),
            Self::LeakyBucket(limit) => limit.params(),
            Self::IntervalBucket(limit) => limit.params(),
            Self::FixedWindow(limit) => limit.params(),
            Self::SlidingWindow(limit) => limit.params(),
            Self::SlidingSlices(limit) => limit.params(),
            Self::SlidingLog(limit) => limit.params(),
            Self::Concurrency(limit) => limit.params(),
        }
    }

    /// Creates the limit with these parameters; the inverse of [`params`](Self::params).
    ///
    /// # Errors
    /// Returns an error if the parameters are not valid; see the constructors of the algorithms.
    pub fn from_params(params: Params) -> Result<Self, LimitError> {
        Ok(match params {
            Params::Unlimited => Self::Unlimited,
            Params::DenyAll => Self::DenyAll,
            Params::TokenBucket(BucketParams { rate, burst, max_debt, initial }) => {
                TokenBucket::new(rate, burst)?.max_debt(max_debt)?.initial(initial)?.into()
            }
            Params::LeakyBucket { bucket: BucketParams { rate, burst, max_debt, initial }, free, max_wait } => {
                let limit = LeakyBucket::new(rate, burst)?.max_debt(max_debt)?.initial(initial)?;
                limit.free(free)?.max_wait(max_wait).into()
            }
            Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
                let limit = IntervalBucket::new(refill, period)?.burst(burst)?.steps(steps).max_wait(max_wait)?;
                limit.max_debt(max_debt)?.initial(initial)?.into()
            }
            Params::FixedWindow { window: WindowParams { limit, length, max_debt, initial }, phase } => {
                FixedWindow::new(limit, length)?.phase(phase).max_debt(max_debt)?.initial(initial)?.into()
            }
            Params::SlidingWindow(WindowParams { limit, length, max_debt, initial }) => {
                SlidingWindow::new(limit, length)?.max_debt(max_debt)?.initial(initial)?.into()
            }
            Params::SlidingSlices { window: WindowParams { limit, length, max_debt, initial }, precision } => {
                SlidingSlices::new(limit, length, precision)?.max_debt(max_debt)?.initial(initial)?.into()
            }
            Params::SlidingLog { window, minimum_gap, count_refused } => {
                let WindowParams { limit, length, max_debt, initial } = window;
                let log = SlidingLog::new(limit, length)?.max_debt(max_debt)?.initial(initial)?;
                let log = log.minimum_gap(minimum_gap)?;
                if count_refused { log.count_refused() } else { log }.into()
            }
            Params::Concurrency { limit, lease, max_debt } => {
                Concurrency::new(limit, lease)?.max_debt(max_debt)?.into()
            }
        })
    }

    /// Returns the time in which the whole limit is restored, rounded up: the window length, or the time to refill an
    /// empty bucket. `None` for concurrency, unlimited and deny-all.
    pub fn full_refill_time(&self) -> Option<Nanos> {
        match self.params() {
            Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
                let nanos = u128::from(bucket.burst) * u128::from(bucket.rate.per().as_nanos());
                let nanos = nanos.div_ceil(u128::from(bucket.rate.count()));
                Some(Nanos::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
            }
            Params::IntervalBucket { refill, period, burst, .. } => {
                Some(Nanos::from_nanos(period.as_nanos().saturating_mul(burst.div_ceil(refill))))
            }
            Params::FixedWindow { window, .. }
            | Params::SlidingWindow(window)
            | Params::SlidingSlices { window, .. }
            | Params::SlidingLog { window, .. } => Some(window.length),
            Params::Concurrency { .. } | Params::Unlimited | Params::DenyAll => None,
        }
    }

    /// Decodes a state. `None` for slices, logs and leases, whose states are longer, and for limits without state.
    pub fn decode<S: Cells + ?Sized>(&self, state: &S) -> Option<DecodedState> {
        match self {
            Self::TokenBucket(limit) => Some(limit.decode(state)),
            Self::LeakyBucket(limit) => Some(limit.decode(state)),
            Self::IntervalBucket(limit) => Some(limit.decode(state)),
            Self::FixedWindow(limit) => Some(limit.decode(state)),
            Self::SlidingWindow(limit) => Some(limit.decode(state)),
            Self::Unlimited | Self::DenyAll | Self::SlidingSlices(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {
                None
            }
        }
    }

    /// Writes a decoded state. No-op if the state belongs to another algorithm.
    pub fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, decoded: DecodedState) {
        match (self, decoded) {
            (Self::TokenBucket(limit), DecodedState::Bucket { ticks }) => limit.encode(state, ticks),
            (Self::LeakyBucket(limit), DecodedState::Bucket { ticks }) => limit.encode(state, ticks),
            (Self::IntervalBucket(limit), DecodedState::Interval { mark, origin }) => limit.encode(state, mark, origin),
            (Self::FixedWindow(limit), DecodedState::Window { end, used }) => limit.encode(state, end, used),
            (Self::SlidingWindow(limit), DecodedState::Windows { end, previous, used }) => {
                limit.encode(state, end, previous, used);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Ask, Cost, Now};

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn params_have_all_parameters_and_make_the_same_limit() {
        let bucket = BucketParams { rate: rate("7777/s"), burst: 9, max_debt: 4, initial: 2 };
        let token: Limit = TokenBucket::new(bucket.rate, 9).unwrap().max_debt(4).unwrap().initial(2).unwrap().into();
        assert_eq!(token.params(), Params::TokenBucket(bucket));
        let leaky = LeakyBucket::new(bucket.rate, 9).unwrap().max_debt(4).unwrap().initial(2).unwrap();
        let leaky: Limit = leaky.free(3).unwrap().max_wait(Nanos::SECOND).into();
        assert_eq!(leaky.params(), Params::LeakyBucket { bucket, free: 3, max_wait: Nanos::SECOND });
        let window = WindowParams { limit: 9, length: Nanos::SECOND, max_debt: 4, initial: 2 };
        let fixed = FixedWindow::new(9, Nanos::SECOND).unwrap().max_debt(4).unwrap().initial(2).unwrap();
        let fixed: Limit = fixed.phase(Phase::Given(1)).into();
        assert_eq!(fixed.params(), Params::FixedWindow { window, phase: Phase::Given(1) });
        let interval = IntervalBucket::new(5, Nanos::SECOND).unwrap().burst(9).unwrap().max_debt(4).unwrap();
        let steps = Steps::Aligned(Nanos::from_nanos(7));
        let interval = interval.initial(2).unwrap().steps(steps).max_wait(Nanos::SECOND).unwrap();
        let (period, max_wait) = (Nanos::SECOND, Nanos::SECOND);
        assert_eq!(
            Limit::from(interval).params(),
            Params::IntervalBucket { refill: 5, period, burst: 9, steps, max_wait, max_debt: 4, initial: 2 }
        );
        let precision = Nanos::from_millis(100);
        let slices = SlidingSlices::new(9, Nanos::SECOND, precision).unwrap().max_debt(4).unwrap().initial(2).unwrap();
        assert_eq!(Limit::from(slices).params(), Params::SlidingSlices { window, precision });
        let log = SlidingLog::new(9, Nanos::SECOND).unwrap().max_debt(4).unwrap().initial(2).unwrap();
        let log: Limit = log.minimum_gap(Nanos::from_nanos(7)).unwrap().count_refused().into();
        let minimum_gap = Nanos::from_nanos(7);
        assert_eq!(log.params(), Params::SlidingLog { window, minimum_gap, count_refused: true });
        let sliding = SlidingWindow::new(9, Nanos::SECOND).unwrap().max_debt(4).unwrap().initial(2).unwrap().into();
        let leases = Concurrency::new(9, Nanos::SECOND).unwrap().max_debt(4).unwrap().into();
        let first = IntervalBucket::new(5, Nanos::SECOND).unwrap().steps(Steps::FirstRequest).into();
        let steps: [Limit; 3] = [interval.into(), first, slices.into()];
        for limit in
            [Limit::Unlimited, Limit::DenyAll, token, leaky, fixed, log, sliding, leases].into_iter().chain(steps)
        {
            assert_eq!(Limit::from_params(limit.params()).unwrap(), limit);
        }
    }

    #[test]
    fn limits_return_the_parameters_that_they_were_made_with() {
        let secs = Nanos::from_secs;
        let token = TokenBucket::new(rate("20/4s"), 9).unwrap();
        assert_eq!((token.rate(), token.burst(), token.fits_a_word()), (rate("5/s"), 9, true));
        let leaky = LeakyBucket::new(rate("7777/s"), 8).unwrap();
        assert_eq!((leaky.rate(), leaky.burst(), leaky.fits_a_word()), (rate("7777/s"), 8, false));
        assert!(LeakyBucket::new(rate("1/s"), 8).unwrap().fits_a_word());
        assert_eq!((leaky.words(), LeakyBucket::new(rate("1/s"), 8).unwrap().words()), (2, 1));
        let interval = IntervalBucket::new(7, secs(6)).unwrap();
        assert_eq!((interval.refill(), interval.period()), (7, secs(6)));
        let fixed = FixedWindow::new(5, secs(4)).unwrap();
        assert_eq!((fixed.limit(), fixed.length()), (5, secs(4)));
        let sliding = SlidingWindow::new(6, secs(3)).unwrap();
        assert_eq!((sliding.limit(), sliding.length()), (6, secs(3)));
        let slices = SlidingSlices::new(4, secs(20), secs(5)).unwrap();
        assert_eq!((slices.limit(), slices.length(), slices.precision()), (4, secs(20), secs(5)));
        let log = SlidingLog::new(3, secs(8)).unwrap();
        assert_eq!((log.limit(), log.length()), (3, secs(8)));
        let leases = Concurrency::new(2, secs(9)).unwrap();
        assert_eq!((leases.limit(), leases.lease()), (2, secs(9)));
    }

    #[test]
    fn invalid_parameters_are_errors() {
        let bucket = BucketParams { rate: rate("10/s"), burst: 9, max_debt: 4, initial: 10 };
        assert!(Limit::from_params(Params::TokenBucket(bucket)).is_err());
        let leases = Params::Concurrency { limit: 0, lease: Nanos::SECOND, max_debt: 0 };
        assert!(Limit::from_params(leases).is_err());
    }

    #[test]
    fn full_refill_time_restores_the_whole_limit() {
        let bucket = |text: &str, burst| Limit::from(TokenBucket::new(rate(text), burst).unwrap());
        let fixed = Limit::from(FixedWindow::new(9, Nanos::from_secs(60)).unwrap());
        let leases = Limit::from(Concurrency::new(3, Nanos::SECOND).unwrap());
        assert_eq!(bucket("10/s", 20).full_refill_time(), Some(Nanos::from_secs(2)));
        assert_eq!(bucket("3/s", 1).full_refill_time(), Some(Nanos::from_nanos(333_333_334)));
        assert_eq!(fixed.full_refill_time(), Some(Nanos::from_secs(60)));
        assert_eq!(
            [leases.full_refill_time(), Limit::Unlimited.full_refill_time(), Limit::DenyAll.full_refill_time()],
            [None; 3]
        );
    }

    #[test]
    fn encoding_a_decoded_state_gives_the_same_words() {
        let limits: [Limit; 7] = [
            TokenBucket::new(rate("10/s"), 10).unwrap().into(),
            TokenBucket::new(rate("7777/s"), 10).unwrap().into(),
            LeakyBucket::new(rate("3/s"), 10).unwrap().into(),
            IntervalBucket::new(10, Nanos::SECOND).unwrap().into(),
            IntervalBucket::new(10, Nanos::SECOND).unwrap().steps(Steps::FirstRequest).into(),
            FixedWindow::new(10, Nanos::SECOND).unwrap().into(),
            SlidingWindow::new(10, Nanos::SECOND).unwrap().into(),
        ];
        for limit in limits {
            let (mut state, mut copy) = (vec![0; limit.words()], vec![0; limit.words()]);
            limit.init(&mut *state, &Now::at(5));
            let _ = limit.decide(&mut *state, &Now::at(5), Ask::Exactly(Cost::new(7)));
            limit.encode(&mut *copy, limit.decode(&*state).unwrap());
            assert_eq!(state, copy, "{limit:?}");
        }
    }
}
