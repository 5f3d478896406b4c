//! Checks of a run.

use std::collections::BTreeMap;

use tollgate_core::Rate;

use super::groups::DEADLINE;
use super::{MILLI, PeersOutcome, PeersSimulation, SECOND, TICK};

/// Silence after which a node has noticed a cut link: a second plus some ticks.
const NOTICED: u64 = 1_500 * MILLI;

impl PeersSimulation {
    /// Checks that a node that decides a `strict` rule during a partition is on the majority side.
    pub(super) fn check_majority(&mut self, now: u64, host: usize) {
        let Some((start, end, side)) = self.partition.as_ref().filter(|_| self.is_strict) else { return };
        if now < start + NOTICED || now >= *end {
            return;
        }
        let is_here = |other: usize| side.contains(&other) == side.contains(&host);
        let nodes = || self.hosts.iter().enumerate().filter_map(|(at, host)| Some((at, host.process.as_ref()?.id)));
        let (all, here) = (nodes().count(), nodes().filter(|(at, _)| is_here(*at)).count());
        let has_lowest = nodes().min_by_key(|(_, id)| *id).is_some_and(|(at, _)| is_here(at));
        if 2 * here < all || (2 * here == all && !has_lowest) {
            self.violation = Some(format!("host {host} decides with {here} of {all} nodes"));
        }
    }

    /// Checks a finished run.
    pub(super) fn check(mut self, end: u64) -> Result<PeersOutcome, String> {
        for process in self.hosts.iter().filter_map(|host| host.process.as_ref()) {
            self.faults.forgiven = self.faults.forgiven.max(process.table.counts().forgiven);
        }
        self.history.sort_unstable();
        self.check_members(end)?;
        match self.rate {
            Some(rate) => {
                self.check_bucket(rate)?;
                self.check_debt(rate)?;
                self.check_views(rate, end)?;
                self.check_all_or_none(end)?;
            }
            None => self.check_windows()?,
        }
        Ok(self.outcome)
    }

    /// Returns how long a charge may be unknown to another linked node.
    fn delta(&self) -> u64 {
        self.longest_lag.max(self.net.round_trip()) + TICK
    }

    /// Returns how long a crashed node's charge may have been unknown to all others.
    fn unsent(&self) -> u64 {
        self.net.longest_cut() + self.faults.longest_pause + NOTICED
    }

    /// Checks the excess of a bucket. Every deciding node sees all charges except the others' last `δ` and lost ones. A
    /// clock may be 1% fast.
    fn check_bucket(&mut self, rate: Rate) -> Result<(), String> {
        let others = (self.deciders.len() as u64).saturating_sub(1);
        let each = self.capacity + refill(rate, self.delta());
        // A crash loses unsent charges, and a snapshot those that only one of two sides knew.
        let lost = (self.faults.crashes + self.faults.heals) * (self.capacity + refill(rate, self.unsent()))
            + self.faults.joined_without * each
            + self.faults.forgiven;
        self.outcome.bound = others * each + lost + others + 2;
        if self.group_size > 1 {
            // A group counts when its last home has charged it, and the tokens that it holds until then refill.
            self.outcome.bound += self.capacity + refill(rate, self.group_size * DEADLINE);
        }
        let excess = excess(&self.history, self.capacity, u128::from(rate.count()) * 101, rate.per().as_nanos() * 100);
        self.outcome.excess = excess;
        if excess > self.outcome.bound {
            return Err(format!(
                "{excess} more than B + r·T admitted, at most {}; B = {}, {rate}, {} deciders, δ = {} ms, {:?}",
                self.outcome.bound,
                self.capacity,
                others + 1,
                self.delta() / MILLI,
                self.faults
            ));
        }
        Ok(())
    }

    fn check_windows(&mut self) -> Result<(), String> {
        let mut windows = BTreeMap::<u64, u64>::new();
        for (at, cost) in &self.history {
            *windows.entry(at / self.window).or_default() += cost;
        }
        let others = self.deciders.len() as u64 + self.faults.crashes + self.faults.heals + self.faults.joined_without;
        // A clock step leads into another window.
        let bound = self.capacity * others.max(1) * (2 + self.delta() / self.window) * (1 + self.faults.steps);
        match windows.values().max() {
            Some(most) if *most > bound => Err(format!("{most} in a window, at most {bound}")),
            _ => Ok(()),
        }
    }

    /// Checks that no debt exceeds the charges that nodes can make within about a second, before they see each other's.
    fn check_debt(&self, rate: Rate) -> Result<(), String> {
        let others = self.deciders.len() as u64;
        let recent = SECOND + self.longest_transit + 2 * TICK;
        let bound = others * (self.capacity + refill(rate, recent) + 2);
        if self.worst_debt > bound {
            return Err(format!(
                "a view owes {}, at most {bound}; B = {}, {rate}, {others} deciders",
                self.worst_debt, self.capacity
            ));
        }
        Ok(())
    }

    /// Checks that after a quiet period all views are equal, except for charges within one `δ`.
    fn check_views(&self, rate: Rate, end: u64) -> Result<(), String> {
        let views: Vec<(usize, u64)> = self
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(at, host)| Some((at, host, host.process.as_ref().filter(|process| process.is_ready())?)))
            .map(|(at, host, process)| (at, process.table.used(self.key, &host.now(end))))
            .collect();
        let used = || views.iter().map(|(_, used)| *used);
        let (Some(least), Some(most)) = (used().min(), used().max()) else { return Ok(()) };
        let lost = self.faults.crashes * (most_taken(&self.history, self.unsent()) + self.capacity)
            + (self.faults.heals + self.faults.joined_without) * self.capacity
            + self.faults.forgiven;
        let order = most_taken(&self.history, self.delta()) + refill(rate, self.delta());
        // Clocks that differ by 2% have refilled differently since the last request.
        let drift = refill(rate, (end - self.history.last().map_or(0, |last| last.0)) / 50) + most / 50 + 2;
        let bound = order + drift + lost;
        if most - least > bound {
            return Err(format!(
                "views {views:?} differ by more than {bound}; B = {}, {rate}, δ = {} ms, {:?}",
                self.capacity,
                self.delta() / MILLI,
                self.faults
            ));
        }
        Ok(())
    }
}

/// Returns the refill at a rate within a time, rounded up.
fn refill(rate: Rate, time: u64) -> u64 {
    (u128::from(time) * u128::from(rate.count())).div_ceil(u128::from(rate.per().as_nanos())) as u64
}

/// Returns the largest amount admitted within `time`.
fn most_taken(history: &[(u64, u64)], time: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, cost) in history {
        sum += cost;
        while history[first].0 + time < *at {
            sum -= history[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Returns by how much the fullest interval exceeds `burst + count·T/per`, rounded up.
fn excess(history: &[(u64, u64)], burst: u64, count: u128, per: u64) -> u64 {
    let (mut level, mut at, mut most) = (0u128, 0, 0);
    for (instant, cost) in history {
        level = level.saturating_sub(u128::from(instant - at) * count) + u128::from(*cost) * u128::from(per);
        at = *instant;
        most = most.max(level);
    }
    most.saturating_sub(u128::from(burst) * u128::from(per)).div_ceil(u128::from(per)) as u64
}
