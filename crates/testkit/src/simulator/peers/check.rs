//! Checks of a run.

use std::collections::BTreeMap;

use tollgate_core::Rate;

use super::groups::GROUP_DEADLINE;
use super::{MILLI, PeersOutcome, PeersSimulation, SECOND, TICK};

/// Time after which a node has noticed a cut link: one second of silence plus some ticks.
const CUT_NOTICED_AFTER: u64 = 1_500 * MILLI;

/// Checks that a node that decides a `strict` rule during a partition is on the majority side.
pub(super) fn check_majority(run: &mut PeersSimulation, now: u64, host: usize) {
    let Some((start, end, side)) = run.partition.as_ref().filter(|_| run.is_strict) else { return };
    if now < start + CUT_NOTICED_AFTER || now >= *end {
        return;
    }
    let is_here = |other: usize| side.contains(&other) == side.contains(&host);
    let nodes = || run.hosts.iter().enumerate().filter_map(|(at, host)| Some((at, host.process.as_ref()?.id)));
    let (all, here) = (nodes().count(), nodes().filter(|(at, _)| is_here(*at)).count());
    let has_lowest = nodes().min_by_key(|(_, id)| *id).is_some_and(|(at, _)| is_here(at));
    if 2 * here < all || (2 * here == all && !has_lowest) {
        run.violation = Some(format!("host {host} decides with {here} of {all} nodes"));
    }
}

/// Checks a finished run.
pub(super) fn check(mut run: PeersSimulation, end: u64) -> Result<PeersOutcome, String> {
    for process in run.hosts.iter().filter_map(|host| host.process.as_ref()) {
        run.faults.forgiven = run.faults.forgiven.max(process.table.counts().forgiven);
    }
    run.history.sort_unstable();
    run.check_members(end)?;
    match run.rate {
        Some(rate) => {
            check_bucket(&mut run, rate)?;
            check_debt(&run, rate)?;
            check_views(&run, rate, end)?;
            run.check_all_or_none(end)?;
        }
        None => check_windows(&mut run)?,
    }
    Ok(run.outcome)
}

/// Returns the longest time until a charge is known to the other linked nodes (`δ`).
fn propagation_time(run: &PeersSimulation) -> u64 {
    run.longest_lag.max(run.net.longest_round_trip()) + TICK
}

/// Returns the longest time for which a crashed node's charge may have been unknown to all other nodes.
fn longest_unsent_time(run: &PeersSimulation) -> u64 {
    run.net.longest_cut() + run.faults.longest_pause + CUT_NOTICED_AFTER
}

/// Checks the excess of a bucket. Every deciding node knows all charges except lost charges and the other nodes'
/// charges of the last `δ`. A clock may be 1% fast.
fn check_bucket(run: &mut PeersSimulation, rate: Rate) -> Result<(), String> {
    let others = (run.deciders.len() as u64).saturating_sub(1);
    let each = run.capacity + refill_within(rate, propagation_time(run));
    // A crash loses unsent charges. Merging a snapshot loses charges that only one of the two nodes knew.
    let lost = (run.faults.crashes + run.faults.merged_snapshots)
        * (run.capacity + refill_within(rate, longest_unsent_time(run)))
        + run.faults.joined_without_snapshot * each
        + run.faults.forgiven;
    run.outcome.bound = others * each + lost + others + 2;
    if run.group_size > 1 {
        // A group counts as admitted at the time of its last home's charge. Until then, the tokens that the group took
        // earlier at other homes refill.
        run.outcome.bound += run.capacity + refill_within(rate, run.group_size * GROUP_DEADLINE);
    }
    let excess =
        observed_excess(&run.history, run.capacity, u128::from(rate.count()) * 101, rate.per().as_nanos() * 100);
    run.outcome.excess = excess;
    if excess > run.outcome.bound {
        return Err(format!(
            "{excess} more than B + r·T admitted, at most {}; B = {}, {rate}, {} deciders, δ = {} ms, {:?}",
            run.outcome.bound,
            run.capacity,
            others + 1,
            propagation_time(run) / MILLI,
            run.faults
        ));
    }
    Ok(())
}

fn check_windows(run: &mut PeersSimulation) -> Result<(), String> {
    let mut windows = BTreeMap::<u64, u64>::new();
    for (at, cost) in &run.history {
        *windows.entry(at / run.window).or_default() += cost;
    }
    let others = run.deciders.len() as u64
        + run.faults.crashes
        + run.faults.merged_snapshots
        + run.faults.joined_without_snapshot;
    // A clock step can start another window.
    let bound = run.capacity * others.max(1) * (2 + propagation_time(run) / run.window) * (1 + run.faults.clock_steps);
    match windows.values().max() {
        Some(most) if *most > bound => Err(format!("{most} in a window, at most {bound}")),
        _ => Ok(()),
    }
}

/// Checks that no debt exceeds the charges that nodes can make within about a second, before they know of each
/// other's charges.
fn check_debt(run: &PeersSimulation, rate: Rate) -> Result<(), String> {
    let others = run.deciders.len() as u64;
    let recent = SECOND + run.longest_transit + 2 * TICK;
    let bound = others * (run.capacity + refill_within(rate, recent) + 2);
    if run.worst_debt > bound {
        return Err(format!(
            "a view owes {}, at most {bound}; B = {}, {rate}, {others} deciders",
            run.worst_debt, run.capacity
        ));
    }
    Ok(())
}

/// Checks that after a quiet period all views are equal, except for charges within one `δ`.
fn check_views(run: &PeersSimulation, rate: Rate, end: u64) -> Result<(), String> {
    let views: Vec<(usize, u64)> = run
        .hosts
        .iter()
        .enumerate()
        .filter_map(|(at, host)| Some((at, host, host.process.as_ref().filter(|process| process.is_ready())?)))
        .map(|(at, host, process)| (at, process.table.used(run.key, &host.now(end))))
        .collect();
    let used = || views.iter().map(|(_, used)| *used);
    let (Some(least), Some(most)) = (used().min(), used().max()) else { return Ok(()) };
    let lost = run.faults.crashes * (most_taken(&run.history, longest_unsent_time(run)) + run.capacity)
        + (run.faults.merged_snapshots + run.faults.joined_without_snapshot) * run.capacity
        + run.faults.forgiven;
    let order = most_taken(&run.history, propagation_time(run)) + refill_within(rate, propagation_time(run));
    // Two clocks whose rates differ by 2% have refilled different amounts since the last request.
    let drift = refill_within(rate, (end - run.history.last().map_or(0, |last| last.0)) / 50) + most / 50 + 2;
    let bound = order + drift + lost;
    if most - least > bound {
        return Err(format!(
            "views {views:?} differ by more than {bound}; B = {}, {rate}, δ = {} ms, {:?}",
            run.capacity,
            propagation_time(run) / MILLI,
            run.faults
        ));
    }
    Ok(())
}

/// Returns the refill at a rate within a time, rounded up.
fn refill_within(rate: Rate, time: u64) -> u64 {
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

/// Returns the largest excess of any interval over `burst + count·T/per`, rounded up.
fn observed_excess(history: &[(u64, u64)], burst: u64, count: u128, per: u64) -> u64 {
    let (mut level, mut at, mut most) = (0u128, 0, 0);
    for (instant, cost) in history {
        level = level.saturating_sub(u128::from(instant - at) * count) + u128::from(*cost) * u128::from(per);
        at = *instant;
        most = most.max(level);
    }
    most.saturating_sub(u128::from(burst) * u128::from(per)).div_ceil(u128::from(per)) as u64
}
