//! Warns about limits that are too small for `consistency: leased`.

use tollgate::core::{Algorithm, Params};

use super::super::mistake::MistakeCollector;
use super::super::rule::{Consistency, Rule};

/// Assumed number of nodes, because rules do not contain the real number. The warning states the assumption.
const ASSUMED_NODES: u64 = 3;
/// Requests per second and node below which leases expire unused more often than they save a call.
const WARN_BELOW_RATE_PER_NODE: u64 = 50;
/// Burst per node below which leases tie up a large part of the limit.
const WARN_BELOW_BURST_PER_NODE: u64 = 8;

/// Warns about a rule with `consistency: leased` if leases would tie up a large part of a limit, or would save few
/// calls.
pub(super) fn warn_about_leases_with_little_benefit(rule: &Rule, notes: &mut MistakeCollector) {
    if rule.consistency() != Consistency::Leased {
        return;
    }
    for limit in rule.limits().map_or(&[][..], |limits| limits.as_slice()) {
        let (count, per) = match limit.params() {
            Params::TokenBucket(bucket) => (u64::from(bucket.rate.count()), bucket.rate.per().as_nanos()),
            Params::FixedWindow { window, .. } => (window.limit, window.length.as_nanos()),
            // Rules with other algorithms cannot be leased.
            Params::Unlimited
            | Params::DenyAll
            | Params::LeakyBucket { .. }
            | Params::IntervalBucket { .. }
            | Params::SlidingWindow(_)
            | Params::SlidingSlices { .. }
            | Params::SlidingLog { .. }
            | Params::Concurrency { .. } => continue,
        };
        let per_second = u128::from(count) * 1_000_000_000 / u128::from(per.max(1));
        let capacity = limit.capacity();
        let why = if capacity < WARN_BELOW_BURST_PER_NODE * ASSUMED_NODES {
            format!(
                "leases tie up much of a capacity below {} (here {capacity})",
                WARN_BELOW_BURST_PER_NODE * ASSUMED_NODES
            )
        } else if per_second < u128::from(WARN_BELOW_RATE_PER_NODE * ASSUMED_NODES) {
            format!(
                "leases save few calls below {} requests a second (here {per_second})",
                WARN_BELOW_RATE_PER_NODE * ASSUMED_NODES
            )
        } else {
            continue;
        };
        let problem =
            format!("`{}` gains little from `consistency: leased`: with {ASSUMED_NODES} nodes, {why}", rule.id());
        let help = "write `consistency: strict`, or `eventual` if some excess is acceptable";
        notes.add_with_help(rule.position().position, problem, help);
        return;
    }
}
