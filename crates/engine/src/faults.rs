//! Computes how much a limit may admit beyond its bound during a fault, with the formulas in `docs/faults.md`.
//!
//! A bucket with burst `B` and rate `r` admits at most `B + r·T` in any interval of length `T`. A window or a log
//! admits at most `B` in each window. A concurrency limit admits at most `B` at a time. A fault adds at most `E`, which
//! depends on the limit, on the rule's `on_fault`, and on the [`Circumstances`].
//!
//! ```
//! use tollgate_engine::faults::{Circumstances, Excess, Fault, bound};
//! use tollgate_engine::rules::{Rules, Source};
//!
//! let text = b"domain: api\nrules:\n- {id: all, limit: 100/s, burst: 200}\n";
//! let rules = Rules::read(&[Source { name: "rules.yaml", text }]).unwrap();
//! let rule = &rules.domains()[0].rules()[0];
//! let limit = &rule.limits().unwrap().as_slice()[0];
//! let lost = bound(Fault::DataLost, limit, rule, &Circumstances::default());
//! assert_eq!((lost.excess, lost.formula), (Excess::AtMost(200), "I"));
//! ```

use std::fmt;

use tollgate::Limit;
use tollgate::core::{Algorithm, Cost, Nanos, Params};

use crate::explain::HumanDuration;
use crate::rules::{Consistency, DefaultCost, OnFault, Rule};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store does not answer.
    StoreDown,
    /// The store forgets a key: it was restarted empty or flushed, or it evicted the key.
    DataLost,
    /// A replica becomes the primary before it has received the last writes.
    Failover,
    /// A replaced primary continues to serve some nodes.
    OldPrimary,
    /// Hash slots of a Redis Cluster move to another server.
    Resharding,
    /// The store's clock is set forward.
    ClockStep,
    /// A node is killed.
    NodeKilled,
    /// A node is stopped and resumes later.
    NodeStopped,
    /// A node joins or leaves.
    NodesChange,
}

impl Fault {
    /// All faults, in the order of `docs/faults.md`.
    pub const ALL: [Self; 9] = [
        Self::StoreDown,
        Self::DataLost,
        Self::Failover,
        Self::OldPrimary,
        Self::Resharding,
        Self::ClockStep,
        Self::NodeKilled,
        Self::NodeStopped,
        Self::NodesChange,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StoreDown => "store does not answer for P",
            Self::DataLost => "store forgets the key",
            Self::Failover => "failover with replication lag",
            Self::OldPrimary => "replaced primary keeps serving for P",
            Self::Resharding => "slots of a cluster move",
            Self::ClockStep => "clock of the store steps forward by P",
            Self::NodeKilled => "node killed",
            Self::NodeStopped => "node stopped, then resumed",
            Self::NodesChange => "node joins or leaves",
        })
    }
}

/// The parameters of a bound that do not depend on the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// `N`, the number of nodes that share the limit.
    pub nodes: u32,
    /// `P`, the duration of the fault, or the size of the clock step.
    pub length: Nanos,
    /// `d`, the maximum time that a decision waits for the store.
    pub deadline: Nanos,
}

impl Default for Circumstances {
    /// Three nodes, a fault of ten seconds, and the default deadline.
    fn default() -> Self {
        Self { nodes: 3, length: Nanos::from_secs(10), deadline: Nanos::from_millis(10) }
    }
}

/// The maximum amount admitted beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// At most this amount.
    AtMost(u64),
    /// Everything that is requested.
    Unbounded,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(amount) => f.pad(&amount.to_string()),
            Self::Unbounded => f.pad("unbounded"),
        }
    }
}

/// A bound and its formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultBound {
    /// The bound.
    pub excess: Excess,
    /// The formula, with the symbols of `docs/faults.md`.
    pub formula: &'static str,
}

/// Returns the maximum amount that a limit may admit beyond its bound because of a fault.
pub fn bound(fault: Fault, limit: &Limit, rule: &Rule, given: &Circumstances) -> FaultBound {
    let at_most = |amount: u128, formula| FaultBound {
        excess: Excess::AtMost(u64::try_from(amount).unwrap_or(u64::MAX)),
        formula,
    };
    let (burst, nodes) = (u128::from(limit.capacity()), u128::from(given.nodes.max(1)));
    let refilled = |length: Nanos| max_refill(limit, length).map(|amount| amount.min(burst));
    let kept = |length: Nanos| burst + max_refill(limit, length).unwrap_or(0);
    match (rule.consistency(), fault) {
        (Consistency::Eventual(_), Fault::StoreDown) => {
            return at_most((nodes - 1) * kept(given.length), "(N − 1)·(B + r·P)");
        }
        (Consistency::Leased | Consistency::Eventual(_), Fault::Resharding) => return at_most(0, "0"),
        (Consistency::Eventual(every), Fault::NodeKilled) => return at_most(kept(every.length()), "B + r·sync_every"),
        (Consistency::Strict | Consistency::Leased | Consistency::Eventual(_), _) => {}
    }
    match fault {
        Fault::StoreDown => match rule.on_fault() {
            OnFault::Open => FaultBound { excess: Excess::Unbounded, formula: "on_fault: open" },
            OnFault::Closed => at_most(0, "on_fault: closed"),
            OnFault::Local => {
                let costs = nodes * u128::from(largest_cost(rule).get().max(1));
                // Slots taken during an outage are never charged to the store. For a key with several limits, only the
                // smallest of their arrears is charged, so the bound does not rely on arrears.
                let is_owed = !matches!(limit.params(), Params::Concurrency { .. })
                    && rule.limits().is_none_or(|limits| limits.as_slice().len() == 1);
                match (is_owed, refilled(given.length)) {
                    (true, Some(refilled)) => {
                        at_most(burst - burst / nodes + costs + refilled, "B·(N − 1)/N + N·c + min(B, r·P)")
                    }
                    (true, None) => at_most(burst - burst / nodes + costs, "B·(N − 1)/N + N·c"),
                    (false, Some(refilled)) => at_most(burst + costs + refilled, "B + N·c + min(B, r·P)"),
                    (false, None) => at_most(burst + costs, "B + N·c"),
                }
            }
        },
        Fault::DataLost => at_most(initial_capacity(limit).into(), "I"),
        Fault::Failover => at_most(burst, "min(B, amount taken during the lag)"),
        Fault::OldPrimary => match max_refill(limit, given.length) {
            Some(refilled) => at_most(burst + refilled, "B + r·P"),
            None => at_most(burst, "B"),
        },
        Fault::Resharding => match refilled(Nanos::from_nanos(given.deadline.as_nanos().saturating_mul(2))) {
            Some(refilled) => at_most(refilled, "min(B, 2·r·d)"),
            None => at_most(0, "0"),
        },
        Fault::ClockStep => match refilled(given.length) {
            Some(refilled) => at_most(refilled, "min(B, r·P)"),
            None => at_most(burst, "B"),
        },
        Fault::NodeKilled | Fault::NodeStopped | Fault::NodesChange => at_most(0, "0"),
    }
}

/// Returns the maximum amount that a limit may admit beyond its bound without any fault. The amount is positive if
/// nodes decide without knowing each other's latest charges.
pub fn bound_without_fault(limit: &Limit, rule: &Rule, given: &Circumstances) -> FaultBound {
    let Consistency::Eventual(every) = rule.consistency() else {
        return FaultBound { excess: Excess::AtMost(0), formula: "0" };
    };
    let late = every.length().as_nanos().saturating_add(given.deadline.as_nanos());
    let refilled = max_refill(limit, Nanos::from_nanos(late)).unwrap_or(0);
    let excess = u128::from(given.nodes.max(1) - 1) * (u128::from(limit.capacity()) + refilled);
    let excess = Excess::AtMost(u64::try_from(excess).unwrap_or(u64::MAX));
    FaultBound { excess, formula: "(N − 1)·(B + r·(sync_every + d))" }
}

/// Formats the parameters of a limit with the symbols of the formulas.
pub fn formula_parameters(limit: &Limit) -> String {
    let burst = limit.capacity();
    let window = |length: Nanos| format!("B = {burst} in each window of {}", HumanDuration::new(length));
    match limit.params() {
        Params::Unlimited | Params::DenyAll => "no state".to_owned(),
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => format!("B = {burst}, r = {}", bucket.rate),
        Params::IntervalBucket { refill, period, .. } => {
            format!("B = {burst}, r = {refill} every {}", HumanDuration::new(period))
        }
        Params::FixedWindow { window: params, .. }
        | Params::SlidingWindow(params)
        | Params::SlidingSlices { window: params, .. }
        | Params::SlidingLog { window: params, .. } => window(params.length),
        Params::Concurrency { .. } => format!("B = {burst} at a time"),
    }
}

/// Returns the maximum refill of a bucket within `length`, rounded up; `None` for limits without a refill rate.
fn max_refill(limit: &Limit, length: Nanos) -> Option<u128> {
    let length = u128::from(length.as_nanos());
    match limit.params() {
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
            let per = u128::from(bucket.rate.per().as_nanos()).max(1);
            Some((u128::from(bucket.rate.count()) * length).div_ceil(per))
        }
        // One more refill may occur at the start of the interval.
        Params::IntervalBucket { refill, period, .. } => {
            Some(u128::from(refill) * (length / u128::from(period.as_nanos()).max(1) + 1))
        }
        Params::Unlimited
        | Params::DenyAll
        | Params::FixedWindow { .. }
        | Params::SlidingWindow(_)
        | Params::SlidingSlices { .. }
        | Params::SlidingLog { .. }
        | Params::Concurrency { .. } => None,
    }
}

/// Returns the amount that a new key may take immediately.
fn initial_capacity(limit: &Limit) -> u64 {
    match limit.params() {
        Params::Unlimited | Params::DenyAll | Params::Concurrency { .. } => limit.capacity(),
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => bucket.initial,
        Params::IntervalBucket { initial, .. } => initial,
        Params::FixedWindow { window, .. }
        | Params::SlidingWindow(window)
        | Params::SlidingSlices { window, .. }
        | Params::SlidingLog { window, .. } => window.initial,
    }
}

/// Returns `c`, the largest cost that the rule itself assigns.
fn largest_cost(rule: &Rule) -> Cost {
    match rule.cost() {
        DefaultCost::Fixed(cost) => *cost,
        DefaultCost::From { max, missing, .. } => *max.max(missing),
        DefaultCost::Cases(cases) => cases.iter().map(|case| case.cost).fold(Cost::ONE, Cost::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Rules, Source};

    /// Returns the bounds of a rule's only limit, with 4 nodes, a fault of 10 s, and a deadline of 10 ms.
    fn fault_bounds(rule: &str) -> Vec<(String, &'static str)> {
        let bound = |bound: FaultBound| (bound.excess.to_string(), bound.formula);
        with_rule(rule, |limit, rule, given| {
            Fault::ALL.map(|fault| bound(super::bound(fault, limit, rule, given))).into()
        })
    }

    fn excess_without_fault(rule: &str) -> String {
        with_rule(rule, |limit, rule, given| bound_without_fault(limit, rule, given).excess.to_string())
    }

    fn with_rule<T>(rule: &str, read: impl FnOnce(&Limit, &Rule, &Circumstances) -> T) -> T {
        let text = format!("domain: d\nrules:\n- {{id: a, {rule}}}\n");
        let rules = Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap();
        let rule = &rules.domains()[0].rules()[0];
        let limit = rule.limits().unwrap().as_slice()[0];
        read(&limit, rule, &Circumstances { nodes: 4, ..Circumstances::default() })
    }

    fn excess_per_fault(rule: &str) -> Vec<String> {
        fault_bounds(rule).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn bucket_is_bounded_by_burst_and_refill() {
        // r·P is 50. A tenth of a token refills in two deadlines (20 ms), rounded up to 1.
        assert_eq!(excess_per_fault("limit: 5/s, burst: 200"), ["204", "200", "200", "250", "1", "50", "0", "0", "0"]);
        // r·P exceeds B.
        assert_eq!(
            excess_per_fault("limit: 100/s, burst: 200"),
            ["354", "200", "200", "1200", "2", "200", "0", "0", "0"]
        );
        let formulas: Vec<_> = fault_bounds("limit: 5/s").into_iter().map(|(_, formula)| formula).collect();
        assert_eq!(formulas[0], "B·(N − 1)/N + N·c + min(B, r·P)");
        assert_eq!(formulas[3], "B + r·P");
    }

    #[test]
    fn eventual_nodes_admit_one_burst_each() {
        let eventual = excess_per_fault("limit: 100/s, burst: 200, consistency: eventual");
        let strict = excess_per_fault("limit: 100/s, burst: 200");
        assert_eq!(
            (&*eventual[0], &*eventual[4], &eventual[6..]),
            ("3600", "0", &["210", "0", "0"].map(String::from)[..])
        );
        assert_eq!(eventual[1..4], strict[1..4]);
        // 11 tokens are refilled in 100 + 10 ms.
        assert_eq!(excess_without_fault("limit: 100/s, burst: 200, consistency: eventual"), "633");
        assert_eq!(excess_without_fault("limit: 100/m, algorithm: fixed_window, consistency: eventual"), "300");
        assert_eq!(excess_without_fault("limit: 100/s, consistency: leased"), "0");
    }

    #[test]
    fn leased_rules_have_the_bounds_of_strict_rules() {
        let leased = excess_per_fault("limit: 100/s, burst: 200, consistency: leased");
        let strict = excess_per_fault("limit: 100/s, burst: 200");
        assert_eq!((&leased[..4], &*leased[4], &leased[5..]), (&strict[..4], "0", &strict[5..]));
    }

    #[test]
    fn window_excess_is_at_most_one_limit() {
        for algorithm in ["fixed_window", "sliding_window", "sliding_log", "sliding_slices"] {
            let rule = format!("limit: 100/m, algorithm: {algorithm}");
            assert_eq!(excess_per_fault(&rule), ["79", "100", "100", "100", "0", "100", "0", "0", "0"], "{algorithm}");
        }
    }

    #[test]
    fn initial_amount_and_cost_affect_the_bounds() {
        assert_eq!(excess_per_fault("limit: 5/s, burst: 200, initial: 20")[1], "20");
        assert_eq!(excess_per_fault("limit: 5/s, burst: 200, cost: 3")[0], "212");
    }

    #[test]
    fn limits_without_full_repayment_may_admit_a_burst_again() {
        assert_eq!(fault_bounds("limit: 100, algorithm: concurrency, lease: 1m")[0], ("104".to_owned(), "B + N·c"));
        let (number, formula) = fault_bounds("limits: [{limit: 5/s, burst: 200}, 1000/day]").remove(0);
        assert_eq!((&*number, formula), ("254", "B + N·c + min(B, r·P)"));
    }

    #[test]
    fn on_fault_determines_the_bound_of_an_outage() {
        assert_eq!(fault_bounds("limit: 5/s, on_fault: open")[0], ("unbounded".to_owned(), "on_fault: open"));
        assert_eq!(fault_bounds("limit: 5/s, on_fault: closed")[0], ("0".to_owned(), "on_fault: closed"));
    }
}
