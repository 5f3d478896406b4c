//! The history checker finds the same violations as a comparison of all pairs of events.

use proptest::prelude::*;
use tollgate_testkit::history::{Bound, Checker, Excess, ObservedRequest, excess_observed, first_excess_by_pairs};
use tollgate_testkit::model::script::{any_number_up_to, any_rate, config_with_cases};
use tollgate_testkit::model::to_exact;

const SECOND: u64 = 1_000_000_000;

/// Returns a bound with a burst of 10 and a rate of 10 per second.
fn bound_of_ten() -> Bound {
    Bound::from_rate("10/s".parse().expect("a rate"), 10)
}

/// Returns a history with a burst of 10 and then one event every 100 ms for 1000 s. Every interval from the start to an
/// event is exactly at the bound.
fn fullest_history() -> Vec<(u64, u64)> {
    let steady = (1..=10_000).map(|nth| (nth * SECOND / 10, 1));
    [(0, 10)].into_iter().chain(steady).collect()
}

#[test]
fn history_at_the_bound_is_accepted() {
    assert_eq!(Checker::new(&bound_of_ten()).admit_all(&fullest_history()), Ok(()));
}

#[test]
fn planted_excess_is_found() {
    let mut history = fullest_history();
    history.insert(5000, (history[5000].0 - 1, 1));
    let found = Checker::new(&bound_of_ten()).admit_all(&history);
    let excess = found.expect_err("one too many");
    assert_eq!((excess.from, excess.to), (0, 500 * SECOND - 1));
    // The planted event happens a nanosecond before its token is refilled, and the next regular event follows.
    assert_eq!(excess.by, to_exact(1) / to_exact(100_000_000));
    assert_eq!(first_excess_by_pairs(&bound_of_ten(), &history), Some(excess));
}

#[test]
fn one_nanosecond_too_early_is_an_excess() {
    let early = [(0, 10), (SECOND - 1, 10)];
    let excess = Checker::new(&bound_of_ten()).admit_all(&early);
    assert_eq!(excess, Err(Excess { from: 0, to: SECOND - 1, by: to_exact(1) / to_exact(100_000_000) }));
    assert_eq!(Checker::new(&bound_of_ten()).admit_all(&[(0, 10), (SECOND, 10)]), Ok(()));
}

#[test]
fn more_than_the_burst_at_one_instant_is_an_excess() {
    let split = [(5, 6), (5, 4), (5, 1)];
    let excess = Checker::new(&bound_of_ten()).admit_all(&split);
    assert_eq!(excess, Err(Excess { from: 5, to: 5, by: to_exact(1) }));
}

#[test]
fn observed_excess_is_reported_only_if_certain() {
    let seen = |asked, answered| ObservedRequest { asked, answered, cost: 10 };
    let late = [seen(0, SECOND / 2), seen(SECOND / 4, SECOND)];
    assert_eq!(excess_observed(&bound_of_ten(), &late), None, "the decisions may have been at 0 s and at 1 s");
    let close = [seen(1, SECOND / 2), seen(SECOND / 4, SECOND)];
    let excess = Excess { from: 1, to: SECOND, by: to_exact(1) / to_exact(100_000_000) };
    assert_eq!(excess_observed(&bound_of_ten(), &close), Some(excess));
}

proptest! {
    #![proptest_config(config_with_cases(500))]

    #[test]
    fn envelope_and_all_pairs_agree(
        rate in any_rate(),
        burst in 0_u64..30,
        steps in prop::collection::vec((any_number_up_to(1 << 40), 0_u64..12), 1..40),
    ) {
        let (bound, mut at) = (Bound::from_rate(rate, burst), 0);
        let history: Vec<_> = steps.iter().map(|&(pause, cost)| { at += pause; (at, cost) }).collect();
        let found = Checker::new(&bound).admit_all(&history).err();
        let slow = first_excess_by_pairs(&bound, &history);
        let seen: Vec<_> = history.iter().map(|&(at, cost)| ObservedRequest { asked: at, answered: at, cost }).collect();
        prop_assert_eq!(excess_observed(&bound, &seen).is_some(), slow.is_some(), "observed at the instant of the decision");
        prop_assert_eq!(found.map(|excess| (excess.to, excess.by)), slow.map(|excess| (excess.to, excess.by)));
    }
}
