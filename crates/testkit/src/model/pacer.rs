//! The pacers by their definition: permits that are stored while idle and cost the area under a curve, in rational numbers.

use num_traits::Zero;
use tollgate_core::Rate;

use super::{Exact, ceil, exact, per_nano};

/// What is stored, and when the next caller may pass.
#[derive(Clone, Debug)]
pub struct PacerModel {
    /// Nanoseconds per permit.
    interval: Exact,
    curve: Curve,
    stored: Exact,
    next_free: Exact,
}

/// How much is stored, and what a stored permit costs.
#[derive(Clone, Debug)]
enum Curve {
    /// Nothing, up to so many.
    Free { max: Exact },
    /// As much as a new one up to the threshold, and from there on more and more, up to `cold` times as much at most.
    Ramp { threshold: Exact, max: Exact, cold: Exact, warm_up: Exact },
}

impl PacerModel {
    /// With permits of `store` nanoseconds stored at most, none of them at first.
    pub fn bursty(rate: Rate, store: u64, now: u64) -> Self {
        let interval = per_nano(rate).recip();
        let max = exact(store) / &interval;
        Self { interval, curve: Curve::Free { max }, stored: Exact::zero(), next_free: exact(now) }
    }

    /// As Guava defines it: half of the warm-up's permits below the threshold, and above it as many as take the warm-up.
    pub fn warm_up(rate: Rate, warm_up: u64, cold_permille: u32, now: u64) -> Self {
        let interval = per_nano(rate).recip();
        let (warm_up, cold) = (exact(warm_up), Exact::new(cold_permille.into(), 1_000.into()));
        let threshold = &warm_up / &interval / exact(2);
        let max = &threshold + exact(2) * &warm_up / (&interval + &interval * &cold);
        let stored = max.clone();
        Self { interval, curve: Curve::Ramp { threshold, max, cold, warm_up }, stored, next_free: exact(now) }
    }

    /// How long somebody waits who comes now, rounded up.
    pub fn earliest(&self, now: u64) -> u64 {
        ceil(&(&self.next_free - exact(now)))
    }

    /// Takes permits, and moves on when the next may pass.
    pub fn reserve(&mut self, now: u64, permits: u64) {
        if permits == 0 {
            return;
        }
        self.idle(exact(now));
        let spent = exact(permits).min(self.stored.clone());
        let new = (exact(permits) - &spent) * &self.interval;
        self.next_free += new + self.area(&spent);
        self.stored -= spent;
    }

    fn idle(&mut self, now: Exact) {
        if now <= self.next_free {
            return;
        }
        let (max, cooling) = match &self.curve {
            Curve::Free { max } => (max, self.interval.clone()),
            // All of them in the time it takes to warm up.
            Curve::Ramp { max, warm_up, .. } => (max, warm_up / max),
        };
        self.stored = (&self.stored + (&now - &self.next_free) / cooling).min(max.clone());
        self.next_free = now;
    }

    /// What the last `spent` of what is stored cost.
    fn area(&self, spent: &Exact) -> Exact {
        let Curve::Ramp { threshold, max, cold, .. } = &self.curve else { return Exact::zero() };
        let price = |stored: &Exact| {
            let above = (stored - threshold).max(Exact::zero());
            &self.interval + &self.interval * (cold - exact(1)) * above / (max - threshold)
        };
        // A trapezoid above the threshold and a rectangle below it.
        let rest = &self.stored - spent;
        let edge = rest.clone().max(threshold.clone()).min(self.stored.clone());
        let high = (&self.stored - &edge) * (price(&self.stored) + price(&edge)) / exact(2);
        high + (edge - rest) * &self.interval
    }
}
