//! Pacers: every request passes, now or after a returned wait, and the next request pays for it.
//!
//! **The naive method** to slow a caller down is to sleep between calls, which adds the time of the call to the pause, or to
//! make it wait for its own cost, which delays a single large job without competition. Rounding the pause to whole
//! microseconds makes 80,000 per second 83,333, and above a million per second limits nothing.
//!
//! **The idea**, known from Guava's `RateLimiter`, is to keep only when the next caller may pass. A caller waits for
//! that instant and moves it on by its own cost: it pays later, by making the next one wait. So a pacer never refuses,
//! and any amount passes immediately after an idle time. Permits not used while idle are stored, and are taken before
//! the instant is moved. The two pacers differ in how much is stored and in what it costs.
//!
//! **Bursty**: stored permits are free, and as many are stored as come in a chosen time (a second in Guava). At 5 per
//! second and after 2 s without requests, requests of 1, 1, 3 and 1 pass at once: five stored permits and one on
//! credit. The next waits 200 ms.
//!
//! **Warm-up**: a service that was idle is slow at first (cold caches), so stored permits cost *more* than new ones, the more so
//! the more there are.
//! With `x` the permits stored above a threshold, the next one takes `interval × (1 + (cold − 1) × x / ramp)`:
//!
//! ```text
//!   cold × interval ┤                      ╱
//!                   │                   ╱  │
//!                   │                ╱     │        the ramp takes `warm_up` to come down,
//!          interval ┼─────────────╱        │        the flat part half of it
//!                   │             │        │
//!                   └─────────────┼────────┼──▶ stored
//!                   0         threshold   max
//! ```
//!
//! At 2 per second, warming up in 4 s, three times slower when cold: threshold 4, max 8, and after idling the gaps are
//! 1.375, 1.125, 0.875, 0.625 and then 0.5 s. While idle it gets cold in the time it takes to warm up.
//!
//! **Arithmetic**: stored permits are kept as the time in which they accrue at the steady rate. In that unit the
//! threshold is `warm_up / 2`, the ramp `2 × warm_up / (1 + cold)`, and the area under the curve from `a` to `b` above
//! the threshold is `(b − a) + (cold² − 1) × (b² − a²) / (4 × warm_up)`: a fraction of whole numbers, no root, no
//! float. Time is counted in the ticks of the rate (see the token bucket), and stored time in a part of a tick in which
//! cooling is whole as well.
//!
//! **Guarantee**: with `S` the time stored at most, what passes over any interval of length `T` costs at most `T + S` for a
//! bursty pacer, not counting the last request, which is paid later; for one that warms up at most `T`, where a stored permit
//! costs as drawn.
//! A bursty pacer is exact. A warm-up rounds each reservation up to a tick: its rate is never above the one asked for, and
//! below it by at most one tick (a nanosecond divided by the count of the rate in lowest terms) per call. Waits round up.
//!
//! **State**: two numbers of 128 bits. **Cost**: a few multiplications; a warm-up divides twice while it is not warm.
//!
//! **Poor choice** against callers that ignore the wait, or that may ask for any amount at once: use a token bucket.

use core::time::Duration;

use crate::error::LimitError;
use crate::quantity::{Cost, Mono, Nanos, Time};
use crate::rate::Rate;
use crate::ticks::Ticks;

/// The parameters of a pacer. The state is a [`Pace`].
///
/// ```
/// use tollgate_core::{Cost, Nanos, Pacing, Time};
///
/// let pacing = Pacing::bursty("5/s".parse()?, Nanos::SECOND)?;
/// let mut pace = pacing.start(Time::ZERO);
/// assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::new(3)), Nanos::ZERO);
/// assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::ONE), Nanos::from_millis(600));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pacing {
    rate: Rate,
    kind: Kind,
    /// Maximum stored, in parts of a tick.
    max: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Bursty {
        store: Nanos,
    },
    /// A warm-up with the cold factor in thousandths.
    WarmUp {
        warm_up: Nanos,
        cold: u32,
    },
}

/// When the next caller may pass, and what is stored. Only the [`Pacing`] that wrote it can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    /// When the next caller may pass, in ticks of the rate.
    next_free: Ticks,
    /// The stored permits, in parts of a tick.
    stored: u128,
}

/// A cold factor of one: no slower when cold.
const ONE: u32 = 1_000;

impl Pacing {
    /// The longest time of which permits are stored, and the longest warm-up: 365 days. No product overflows up to this
    /// length.
    pub const MAX_STORE: Nanos = Nanos::from_secs(365 * 86_400);
    /// The largest cold factor, in thousandths.
    pub const MAX_COLD: u32 = 100 * ONE;

    /// Makes a pacer that grants `rate` and stores unused permits of up to `store`; zero stores nothing. Starts with
    /// nothing stored.
    ///
    /// # Errors
    /// When `store` is above [`Pacing::MAX_STORE`].
    pub fn bursty(rate: Rate, store: impl Into<Duration>) -> Result<Self, LimitError> {
        let store = Nanos::from(store.into());
        if store > Self::MAX_STORE {
            return Err(LimitError::PeriodTooLong { given: store, max: Self::MAX_STORE });
        }
        Ok(Self { rate, kind: Kind::Bursty { store }, max: 0 }.with_max())
    }

    /// Makes a pacer that grants `rate` when warm. When cold, its interval is `cold_permille` thousandths as long, and
    /// falls to the normal one within `warm_up`; it becomes cold again while idle. Starts cold. Guava's factor is 3,
    /// which is 3000 thousandths.
    ///
    /// # Errors
    /// When `warm_up` is zero or above [`Pacing::MAX_STORE`], or the cold factor is below one or above
    /// [`Pacing::MAX_COLD`].
    pub fn warm_up(rate: Rate, warm_up: impl Into<Duration>, cold_permille: u32) -> Result<Self, LimitError> {
        let warm_up = Nanos::from(warm_up.into());
        if warm_up == Nanos::ZERO {
            return Err(LimitError::Zero { what: "the warm-up" });
        }
        if warm_up > Self::MAX_STORE {
            return Err(LimitError::PeriodTooLong { given: warm_up, max: Self::MAX_STORE });
        }
        let (min, max) = (ONE.into(), Self::MAX_COLD.into());
        LimitError::check_range("the cold factor in thousandths", cold_permille.into(), min, max)?;
        Ok(Self { rate, kind: Kind::WarmUp { warm_up, cold: cold_permille }, max: 0 }.with_max())
    }

    fn with_max(self) -> Self {
        let max = match self.kind {
            Kind::Bursty { store } => self.ticks_of(store),
            // Cooling down takes as long as warming up, so this is what is stored in that time.
            Kind::WarmUp { warm_up, .. } => self.ticks_of(warm_up) * self.gain(),
        };
        Self { max, ..self }
    }

    /// Returns the same pacer at another rate. [`convert`](Self::convert) converts its state.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { rate, ..self }.with_max()
    }

    /// Returns the rate, in lowest terms.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the state of a new pacer: the first caller passes at once.
    pub fn start(&self, now: Time<Mono>) -> Pace {
        let stored = match self.kind {
            Kind::Bursty { .. } => 0,
            Kind::WarmUp { .. } => self.max,
        };
        Pace { next_free: self.instant_in_ticks(now), stored }
    }

    /// Returns the state in which the next caller passes at `next_free` and the stored permits are those that accrue in
    /// `stored` at the steady rate, up to the maximum.
    pub fn resume(&self, next_free: Time<Mono>, stored: Nanos) -> Pace {
        let stored = self.ticks_of(stored).saturating_mul(self.parts());
        Pace { next_free: self.instant_in_ticks(next_free), stored: stored.min(self.max) }
    }

    /// Returns how long a request now would wait, whatever its cost.
    pub fn earliest(&self, pace: &Pace, now: Time<Mono>) -> Nanos {
        let ahead = pace.next_free.saturating_sub(self.instant_in_ticks(now));
        Nanos::from_nanos(u64::try_from(ahead.div_ceil(self.rate.count().into())).unwrap_or(u64::MAX))
    }

    /// Returns the permits stored now, as the time in which they accrue at the steady rate, rounded down.
    pub fn stored(&self, pace: &Pace, now: Time<Mono>) -> Nanos {
        let ticks = self.pace_at(*pace, now).stored / self.parts();
        Nanos::from_nanos(u64::try_from(ticks / u128::from(self.rate.count())).unwrap_or(u64::MAX))
    }

    /// Takes `permits` and returns how long to wait before using them; the next caller waits for them as well. Zero permits never
    /// wait, and take nothing.
    pub fn reserve(&self, pace: &mut Pace, now: Time<Mono>, permits: Cost) -> Nanos {
        if permits == Cost::ZERO {
            return Nanos::ZERO;
        }
        let wait = self.earliest(pace, now);
        let synced = self.pace_at(*pace, now);
        let asked = u128::from(permits.get()) * u128::from(self.rate.per().as_nanos());
        let spent = asked.saturating_mul(self.parts()).min(synced.stored);
        let moved = match self.kind {
            Kind::Bursty { .. } => asked - spent,
            Kind::WarmUp { warm_up, cold } => {
                asked.saturating_add(self.extra_ticks(warm_up, cold, synced.stored, spent))
            }
        };
        *pace = Pace { next_free: synced.next_free.saturating_add(moved), stored: synced.stored - spent };
        wait
    }

    /// Reserves as [`reserve`](Self::reserve) does, unless the wait is longer than `timeout`: then returns `None` and takes nothing.
    pub fn try_reserve(&self, pace: &mut Pace, now: Time<Mono>, permits: Cost, timeout: Nanos) -> Option<Nanos> {
        (permits == Cost::ZERO || self.earliest(pace, now) <= timeout).then(|| self.reserve(pace, now, permits))
    }

    /// Converts a state written under `old`: the next caller still waits for what was taken at the old rate, and the same fraction of
    /// what can be stored is stored.
    pub fn convert(&self, old: &Self, pace: &mut Pace, now: Time<Mono>) {
        let before = old.pace_at(*pace, now);
        let next_free = multiply_divide(before.next_free, self.rate.count().into(), old.rate.count().into(), Round::Up);
        let stored = match self.kind {
            _ if old.max == 0 => self.start(now).stored,
            // Stored permits make a bursty pacer faster and a cold one slower.
            Kind::Bursty { .. } => multiply_divide(before.stored, self.max, old.max, Round::Down),
            Kind::WarmUp { .. } => multiply_divide(before.stored, self.max, old.max, Round::Up),
        };
        *pace = Pace { next_free, stored: stored.min(self.max) };
    }

    /// Returns the state at `now`: permits accrued since the last was due are stored.
    fn pace_at(&self, pace: Pace, now: Time<Mono>) -> Pace {
        let now = self.instant_in_ticks(now);
        match now.checked_sub(pace.next_free) {
            None | Some(0) => pace,
            Some(idle) => {
                let stored = pace.stored.saturating_add(idle.saturating_mul(self.gain()));
                Pace { next_free: now, stored: stored.min(self.max) }
            }
        }
    }

    /// Returns how much longer `spent` out of `stored` takes than when warm, in ticks, rounded up.
    fn extra_ticks(&self, warm_up: Nanos, cold: u32, stored: u128, spent: u128) -> Ticks {
        let warm_up = self.ticks_of(warm_up);
        // The number of parts to a tick is even, so half of the warm-up is a whole number of them.
        let threshold = warm_up * (self.parts() / 2);
        let above = |stored: u128| stored.saturating_sub(threshold);
        let (from, to) = (above(stored), above(stored - spent));
        // A part is `1 / (2 (cold + 1))` of a tick, so `(cold² − 1) / (4 warm_up)` for ticks is `(cold − 1) / (8 warm_up)` for parts; and
        // the factor is in thousandths both there and here.
        let steepness = (from + to) * u128::from(cold - ONE);
        multiply_divide(from - to, steepness, 8 * u128::from(ONE).pow(2) * warm_up, Round::Up).div_ceil(self.parts())
    }

    /// Returns how many parts there are to a tick.
    const fn parts(&self) -> u128 {
        match self.kind {
            Kind::Bursty { .. } => 1,
            Kind::WarmUp { cold, .. } => 2 * (cold + ONE) as u128,
        }
    }

    /// Returns how many parts are stored for each idle tick: one tick's, or `(cold + 5) / (2 (cold + 1))` of them when warming up.
    const fn gain(&self) -> u128 {
        match self.kind {
            Kind::Bursty { .. } => 1,
            Kind::WarmUp { cold, .. } => (cold + 5 * ONE) as u128,
        }
    }

    const fn ticks_of(&self, time: Nanos) -> Ticks {
        time.as_nanos() as u128 * self.rate.count() as u128
    }

    const fn instant_in_ticks(&self, time: Time<Mono>) -> Ticks {
        self.ticks_of(Nanos::from_nanos(time.as_nanos()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Up,
    Down,
}

/// Returns `amount × by / of`, rounded only once, or the largest number if it does not fit. `of` is not zero and below
/// 2¹²⁶.
fn multiply_divide(amount: u128, by: u128, of: u128, round: Round) -> u128 {
    if let Some(product) = amount.checked_mul(by) {
        return if round == Round::Up { product.div_ceil(of) } else { product / of };
    }
    // Computes bit by bit, with quotient and remainder apart; reached only by extremely large numbers.
    let (step, step_rest) = (by / of, by % of);
    let (mut whole, mut rest) = (0u128, 0u128);
    for bit in (0..128 - amount.leading_zeros()).rev() {
        let one = (amount >> bit) & 1;
        rest = 2 * rest + one * step_rest;
        let carried = rest / of;
        rest %= of;
        whole = whole.saturating_mul(2).saturating_add(one * step).saturating_add(carried);
    }
    if round == Round::Up && rest > 0 { whole.saturating_add(1) } else { whole }
}

#[cfg(test)]
mod tests;
