//! Pacers: every request passes, either now or after a returned wait, and its cost delays the next request.
//!
//! **The naive method** sleeps between calls, which adds the duration of the call to the pause. Another naive method
//! makes each caller wait for its own cost, which delays a single large job for no reason. Rounding the pause to whole
//! microseconds turns 80,000 per second into 83,333, and limits nothing above a million per second.
//!
//! **The idea**, known from Guava's `RateLimiter`, is to store only the instant at which the next caller may pass. A
//! caller waits until that instant and advances it by its own cost. So the next caller waits for this cost. A pacer
//! never refuses, and after an idle time any amount passes immediately. Permits that accrue while idle are stored, and
//! are spent before the instant is advanced. The two pacers differ in how much they store and in the price of stored
//! permits.
//!
//! **Bursty**: stored permits are free. The pacer stores the permits of a chosen time span (one second in Guava). At 5
//! per second, after 2 s without requests, requests of 1, 1, 3 and 1 pass immediately: five stored permits and one on
//! credit. The next request waits 200 ms.
//!
//! **Warm-up**: a service that was idle is slow at first (cold caches), so stored permits cost *more* than new permits.
//! The price rises with the number of stored permits. If `x` permits are stored above a threshold, the next permit
//! takes `interval × (1 + (cold − 1) × x / ramp)`, where `ramp` is the maximum minus the threshold:
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
//! Example: 2 per second, a warm-up of 4 s, and a cold factor of 3. The threshold is 4 stored permits, and the maximum
//! is 8. After idling, the gaps are 1.375, 1.125, 0.875, 0.625 and then 0.5 s. Cooling down while idle takes as long as
//! warming up.
//!
//! **Arithmetic**: stored permits are kept as the time in which they accrue at the steady rate. In that unit the
//! threshold is `warm_up / 2`, and the ramp is `2 × warm_up / (1 + cold)`. The area under the curve from `a` to `b`
//! above the threshold is `(b − a) + (cold² − 1) × (b² − a²) / (4 × warm_up)`. The area is a fraction of whole numbers,
//! without roots or floats. Instants are counted in ticks of the rate (see the token bucket). Stored time is counted in
//! parts of a tick, chosen so that the cooling rate is a whole number as well.
//!
//! **Guarantee**: in any interval of length `T`, the requests that a bursty pacer admits take at most `T + S` at the
//! steady rate, where `S` is the maximum stored time. The last request in the interval does not count, because its cost
//! delays only later requests. The requests that a warm-up pacer admits take at most `T`, if stored permits are priced
//! by the curve above.
//!
//! A bursty pacer is exact. A warm-up pacer rounds each reservation up to a tick. So its rate is never above the
//! configured rate, and each call loses at most one tick (a nanosecond divided by the count of the rate in lowest
//! terms). Waits round up.
//!
//! **State**: two 128-bit numbers. **Cost**: a few multiplications and one division; a warm-up pacer divides twice
//! more.
//!
//! **Poor choice** for callers that ignore the wait or may request any amount: use a token bucket.

use core::time::Duration;

use crate::error::LimitError;
use crate::quantity::{Cost, Mono, Nanos, Time};
use crate::rate::Rate;
use crate::ticks::Ticks;

/// The parameters of a pacer. The state is a [`PacerState`].
///
/// ```
/// use tollgate_core::{Cost, Nanos, PacerParams, Time};
///
/// let pacing = PacerParams::bursty("5/s".parse()?, Nanos::SECOND)?;
/// let mut pace = pacing.initial_state(Time::ZERO);
/// assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::new(3)), Nanos::ZERO);
/// assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::ONE), Nanos::from_millis(600));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacerParams {
    rate: Rate,
    kind: PacerKind,
    /// Maximum stored amount, in parts of a tick.
    max_stored: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PacerKind {
    Bursty {
        store: Nanos,
    },
    /// A warm-up with the cold factor in thousandths.
    WarmUp {
        warm_up: Nanos,
        cold: u32,
    },
}

/// The state of a pacer. Only the [`PacerParams`] that wrote a state can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacerState {
    /// Instant at which the next caller may pass, in ticks of the rate.
    next_free: Ticks,
    /// The stored permits, in parts of a tick.
    stored: u128,
}

/// A cold factor of 1, in thousandths. With this factor, a cold pacer has the same rate as a warm pacer.
const COLD_FACTOR_ONE: u32 = 1_000;

impl PacerParams {
    /// The longest stored time and the longest warm-up: 365 days. Up to this length no product overflows.
    pub const MAX_STORED_TIME: Nanos = Nanos::from_secs(365 * 86_400);
    /// The largest cold factor, in thousandths.
    pub const MAX_COLD_PERMILLE: u32 = 100 * COLD_FACTOR_ONE;

    /// Creates a pacer that grants `rate` and stores the permits of an idle time of up to `max_stored`. If `max_stored`
    /// is zero, the pacer stores nothing. A new pacer has no stored permits.
    ///
    /// # Errors
    /// Returns an error if `max_stored` is above [`PacerParams::MAX_STORED_TIME`].
    pub fn bursty(rate: Rate, max_stored: impl Into<Duration>) -> Result<Self, LimitError> {
        let store = Nanos::from(max_stored.into());
        if store > Self::MAX_STORED_TIME {
            return Err(LimitError::PeriodTooLong { given: store, max: Self::MAX_STORED_TIME });
        }
        Ok(Self { rate, kind: PacerKind::Bursty { store }, max_stored: 0 }.with_max_stored())
    }

    /// Creates a pacer that grants `rate` when warm. A fully cold pacer has an interval of `cold_permille` thousandths
    /// of the normal interval. The interval decreases to normal within `warm_up`, and increases again while idle.
    /// Starts cold. Guava's cold factor is 3, which is 3000 thousandths.
    ///
    /// # Errors
    /// Returns an error if `warm_up` is zero or above [`PacerParams::MAX_STORED_TIME`], or if `cold_permille` is below
    /// 1000 or above [`PacerParams::MAX_COLD_PERMILLE`].
    pub fn warm_up(rate: Rate, warm_up: impl Into<Duration>, cold_permille: u32) -> Result<Self, LimitError> {
        let warm_up = Nanos::from(warm_up.into());
        if warm_up == Nanos::ZERO {
            return Err(LimitError::Zero { what: "the warm-up" });
        }
        if warm_up > Self::MAX_STORED_TIME {
            return Err(LimitError::PeriodTooLong { given: warm_up, max: Self::MAX_STORED_TIME });
        }
        let (min, max) = (COLD_FACTOR_ONE.into(), Self::MAX_COLD_PERMILLE.into());
        LimitError::check_range("the cold factor in thousandths", cold_permille.into(), min, max)?;
        Ok(Self { rate, kind: PacerKind::WarmUp { warm_up, cold: cold_permille }, max_stored: 0 }.with_max_stored())
    }

    fn with_max_stored(self) -> Self {
        let max_stored = match self.kind {
            PacerKind::Bursty { store } => self.ticks_of(store),
            // The maximum is the amount stored within `warm_up`, because cooling down takes as long as warming up.
            PacerKind::WarmUp { warm_up, .. } => self.ticks_of(warm_up) * self.parts_stored_per_idle_tick(),
        };
        Self { max_stored, ..self }
    }

    /// Returns the pacer at another rate. [`convert`](Self::convert) converts its state.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { rate, ..self }.with_max_stored()
    }

    /// Returns the rate, in lowest terms.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the state of a new pacer. The first caller passes immediately.
    pub fn initial_state(&self, now: Time<Mono>) -> PacerState {
        let stored = match self.kind {
            PacerKind::Bursty { .. } => 0,
            PacerKind::WarmUp { .. } => self.max_stored,
        };
        PacerState { next_free: self.instant_in_ticks(now), stored }
    }

    /// Returns the state in which the next caller passes at `next_free`. The state stores the permits that accrue in
    /// the time `stored` at the steady rate, up to the maximum.
    pub fn state_with(&self, next_free: Time<Mono>, stored: Nanos) -> PacerState {
        let stored = self.ticks_of(stored).saturating_mul(self.parts_per_tick());
        PacerState { next_free: self.instant_in_ticks(next_free), stored: stored.min(self.max_stored) }
    }

    /// Returns the wait of a request that arrives at `now`. The wait does not depend on the request's cost.
    pub fn next_wait(&self, pace: &PacerState, now: Time<Mono>) -> Nanos {
        let ahead = pace.next_free.saturating_sub(self.instant_in_ticks(now));
        Nanos::from_nanos(u64::try_from(ahead.div_ceil(self.rate.count().into())).unwrap_or(u64::MAX))
    }

    /// Returns the permits stored at `now`, as the time in which they accrue at the steady rate, rounded down.
    pub fn stored(&self, pace: &PacerState, now: Time<Mono>) -> Nanos {
        let ticks = self.state_at(*pace, now).stored / self.parts_per_tick();
        Nanos::from_nanos(u64::try_from(ticks / u128::from(self.rate.count())).unwrap_or(u64::MAX))
    }

    /// Takes `permits` and returns the wait before they may be used. The next caller also waits for these permits. Zero
    /// permits take nothing and never wait.
    pub fn reserve(&self, pace: &mut PacerState, now: Time<Mono>, permits: Cost) -> Nanos {
        if permits == Cost::ZERO {
            return Nanos::ZERO;
        }
        let wait = self.next_wait(pace, now);
        let synced = self.state_at(*pace, now);
        let asked = u128::from(permits.get()) * u128::from(self.rate.per().as_nanos());
        let spent = asked.saturating_mul(self.parts_per_tick()).min(synced.stored);
        let moved = match self.kind {
            PacerKind::Bursty { .. } => asked - spent,
            PacerKind::WarmUp { warm_up, cold } => {
                asked.saturating_add(self.extra_ticks(warm_up, cold, synced.stored, spent))
            }
        };
        *pace = PacerState { next_free: synced.next_free.saturating_add(moved), stored: synced.stored - spent };
        wait
    }

    /// Calls [`reserve`](Self::reserve) if the wait is at most `timeout`; otherwise takes nothing and returns `None`.
    pub fn try_reserve(&self, pace: &mut PacerState, now: Time<Mono>, permits: Cost, timeout: Nanos) -> Option<Nanos> {
        (permits == Cost::ZERO || self.next_wait(pace, now) <= timeout).then(|| self.reserve(pace, now, permits))
    }

    /// Converts a state written under `old`. The wait of the next caller stays the same, and so does the stored
    /// fraction of the maximum.
    pub fn convert(&self, old: &Self, pace: &mut PacerState, now: Time<Mono>) {
        let before = old.state_at(*pace, now);
        let next_free =
            multiply_divide(before.next_free, self.rate.count().into(), old.rate.count().into(), Rounding::Up);
        let stored = match self.kind {
            _ if old.max_stored == 0 => self.initial_state(now).stored,
            // Rounds against the caller: stored permits make a bursty pacer faster and a warm-up pacer slower.
            PacerKind::Bursty { .. } => multiply_divide(before.stored, self.max_stored, old.max_stored, Rounding::Down),
            PacerKind::WarmUp { .. } => multiply_divide(before.stored, self.max_stored, old.max_stored, Rounding::Up),
        };
        *pace = PacerState { next_free, stored: stored.min(self.max_stored) };
    }

    /// Returns the state at `now`, including the permits that accrued since `next_free`.
    fn state_at(&self, pace: PacerState, now: Time<Mono>) -> PacerState {
        let now = self.instant_in_ticks(now);
        match now.checked_sub(pace.next_free) {
            None | Some(0) => pace,
            Some(idle) => {
                let stored = pace.stored.saturating_add(idle.saturating_mul(self.parts_stored_per_idle_tick()));
                PacerState { next_free: now, stored: stored.min(self.max_stored) }
            }
        }
    }

    /// Returns the extra ticks, compared with a warm pacer, for spending `spent` of the `stored` permits. Rounds up.
    fn extra_ticks(&self, warm_up: Nanos, cold: u32, stored: u128, spent: u128) -> Ticks {
        let warm_up = self.ticks_of(warm_up);
        // A tick has an even number of parts, so half of the warm-up is a whole number of parts.
        let threshold = warm_up * (self.parts_per_tick() / 2);
        let above = |stored: u128| stored.saturating_sub(threshold);
        let (from, to) = (above(stored), above(stored - spent));
        // A part is `1 / (2 (cold + 1))` of a tick, so `(cold² − 1) / (4 warm_up)` in ticks is `(cold − 1) / (8
        // warm_up)` in parts. The cold factor is in thousandths, both in `parts_per_tick` and in this function.
        let steepness = (from + to) * u128::from(cold - COLD_FACTOR_ONE);
        multiply_divide(from - to, steepness, 8 * u128::from(COLD_FACTOR_ONE).pow(2) * warm_up, Rounding::Up)
            .div_ceil(self.parts_per_tick())
    }

    /// Returns the number of parts per tick.
    const fn parts_per_tick(&self) -> u128 {
        match self.kind {
            PacerKind::Bursty { .. } => 1,
            PacerKind::WarmUp { cold, .. } => 2 * (cold + COLD_FACTOR_ONE) as u128,
        }
    }

    /// Returns the parts stored per idle tick: one tick's worth if bursty, `(cold + 5) / (2 (cold + 1))` ticks' worth
    /// for a warm-up.
    const fn parts_stored_per_idle_tick(&self) -> u128 {
        match self.kind {
            PacerKind::Bursty { .. } => 1,
            PacerKind::WarmUp { cold, .. } => (cold + 5 * COLD_FACTOR_ONE) as u128,
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
enum Rounding {
    Up,
    Down,
}

/// Returns `amount × by / of`, rounded once, or `u128::MAX` if the result exceeds 128 bits. `of` is above zero and
/// below 2¹²⁶.
fn multiply_divide(amount: u128, by: u128, of: u128, round: Rounding) -> u128 {
    if let Some(product) = amount.checked_mul(by) {
        return if round == Rounding::Up { product.div_ceil(of) } else { product / of };
    }
    // Long multiplication with separate quotient and remainder; needed only for extremely large numbers.
    let (step, step_rest) = (by / of, by % of);
    let (mut whole, mut rest) = (0u128, 0u128);
    for bit in (0..128 - amount.leading_zeros()).rev() {
        let one = (amount >> bit) & 1;
        rest = 2 * rest + one * step_rest;
        let carried = rest / of;
        rest %= of;
        whole = whole.saturating_mul(2).saturating_add(one * step).saturating_add(carried);
    }
    if round == Rounding::Up && rest > 0 { whole.saturating_add(1) } else { whole }
}

#[cfg(test)]
mod tests;
