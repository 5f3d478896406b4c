//! Definition of pacers in rational numbers. Permits accumulate while the pacer is idle. Their price is the area
//! under a curve.

use num_traits::Zero;
use tollgate_core::Rate;

use super::{Exact, ceil, per_nano, to_exact};

/// A pacer: the stored permits, and the time at which the next caller may pass.
#[derive(Clone, Debug)]
pub struct PacerModel {
    /// Nanoseconds per permit.
    interval: Exact,
    curve: PriceCurve,
    stored: Exact,
    next_free: Exact,
}

/// Capacity and price of stored permits.
#[derive(Clone, Debug)]
enum PriceCurve {
    /// Stored permits are free, up to `max` permits.
    Free { max: Exact },
    /// Up to `threshold` stored permits cost as much as new permits. Above the threshold, the price rises linearly, up
    /// to `cold` times the price of a new permit.
    Ramp { threshold: Exact, max: Exact, cold: Exact, warm_up: Exact },
}

impl PacerModel {
    /// Returns a pacer that can store the permits that accumulate in `store` nanoseconds. Initially the pacer has no
    /// stored permits.
    pub fn bursty(rate: Rate, store: u64, now: u64) -> Self {
        let interval = per_nano(rate).recip();
        let max = to_exact(store) / &interval;
        Self { interval, curve: PriceCurve::Free { max }, stored: Exact::zero(), next_free: to_exact(now) }
    }

    /// Returns a pacer as defined by Guava. The threshold is half of the permits that pass during the warm-up time.
    /// Spending the permits above the threshold takes the warm-up time.
    pub fn warm_up(rate: Rate, warm_up: u64, cold_permille: u32, now: u64) -> Self {
        let interval = per_nano(rate).recip();
        let (warm_up, cold) = (to_exact(warm_up), Exact::new(cold_permille.into(), 1_000.into()));
        let threshold = &warm_up / &interval / to_exact(2);
        let max = &threshold + to_exact(2) * &warm_up / (&interval + &interval * &cold);
        let stored = max.clone();
        Self { interval, curve: PriceCurve::Ramp { threshold, max, cold, warm_up }, stored, next_free: to_exact(now) }
    }

    /// Returns the wait of a caller that asks now, rounded up.
    pub fn next_wait(&self, now: u64) -> u64 {
        ceil(&(&self.next_free - to_exact(now)))
    }

    /// Takes permits and postpones the time at which the next caller may pass.
    pub fn reserve(&mut self, now: u64, permits: u64) {
        if permits == 0 {
            return;
        }
        self.store_idle_time(to_exact(now));
        let spent = to_exact(permits).min(self.stored.clone());
        let new = (to_exact(permits) - &spent) * &self.interval;
        self.next_free += new + self.area_under_curve(&spent);
        self.stored -= spent;
    }

    fn store_idle_time(&mut self, now: Exact) {
        if now <= self.next_free {
            return;
        }
        let (max, cooling) = match &self.curve {
            PriceCurve::Free { max } => (max, self.interval.clone()),
            // The pacer fills to its full capacity within the warm-up time.
            PriceCurve::Ramp { max, warm_up, .. } => (max, warm_up / max),
        };
        self.stored = (&self.stored + (&now - &self.next_free) / cooling).min(max.clone());
        self.next_free = now;
    }

    /// Returns the price, in nanoseconds, of the topmost `spent` stored permits.
    fn area_under_curve(&self, spent: &Exact) -> Exact {
        let PriceCurve::Ramp { threshold, max, cold, .. } = &self.curve else { return Exact::zero() };
        let price = |stored: &Exact| {
            let above = (stored - threshold).max(Exact::zero());
            &self.interval + &self.interval * (cold - to_exact(1)) * above / (max - threshold)
        };
        // A trapezoid above the threshold and a rectangle below it.
        let rest = &self.stored - spent;
        let edge = rest.clone().max(threshold.clone()).min(self.stored.clone());
        let high = (&self.stored - &edge) * (price(&self.stored) + price(&edge)) / to_exact(2);
        high + (edge - rest) * &self.interval
    }
}
