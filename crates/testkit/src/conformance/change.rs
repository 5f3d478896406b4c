//! Changed parameters.

use tollgate_core::{FixedWindow, Limit};
use tollgate_engine::Store;

use super::Subject;
use super::groups::slow_bucket;
use super::harness::Harness;
use super::limits::{YEAR, limit_of_each_algorithm};

/// Checks that the spent amount is kept when a limit is raised or lowered.
pub async fn changed_parameters_keep_the_amount_spent(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (five, eight, two) =
        (harness.limit_of_each_algorithm(5), harness.limit_of_each_algorithm(8), harness.limit_of_each_algorithm(2));
    for (((name, five), (_, eight)), (_, two)) in five.into_iter().zip(eight).zip(two) {
        let charge = harness.new_charge_with_limit(five, name);
        assert_eq!(harness.check(&charge.clone().cost(3)).await.remaining(), [2], "{name}");
        let limits_id = harness.register_limit(eight);
        let raised = charge.with_limits(limits_id);
        assert_eq!(harness.peek(&raised).await.remaining(), [5], "{name}");
        assert_eq!(harness.check(&raised).await.remaining(), [4], "{name}");
        let limits_id = harness.register_limit(two);
        let lowered = raised.with_limits(limits_id);
        assert!(!harness.check(&lowered).await.passed(), "{name}");
        assert_eq!(harness.peek(&lowered).await.remaining(), [0], "{name}");
    }
}

/// Checks that the spent amount is kept when the algorithm changes. Changes to and from concurrency are not
/// checked here.
pub async fn another_algorithm_keeps_the_amount_spent(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (from, old) in harness.limit_of_each_algorithm(5) {
        for (to, new) in harness.limit_of_each_algorithm(6) {
            // The tests of the rule model cover changes to and from concurrency.
            if (from == "concurrency") != (to == "concurrency") {
                continue;
            }
            let charge = harness.new_charge_with_limit(old, &format!("{from} {to}"));
            assert!(harness.check(&charge.clone().cost(3)).await.passed(), "{from} to {to}");
            let limits_id = harness.register_limit(new);
            let charge = charge.with_limits(limits_id);
            assert_eq!(harness.check(&charge).await.remaining(), [2], "{from} to {to}");
        }
    }
}

/// Checks that each limit of a changed list keeps the spent amount of the old limit at the same position in the list.
pub async fn more_and_fewer_limits_keep_the_amount_spent(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let window: Limit = FixedWindow::new(20, YEAR).expect("a window").into();
    let log = harness.log_or_slices(200);
    let limits_id = harness.register_limits([slow_bucket(9)]);
    let charge = harness.new_charge(limits_id, "k");
    assert_eq!(harness.check(&charge.clone().cost(4)).await.remaining(), [5]);
    let limits_id = harness.register_limits([slow_bucket(9), window]);
    let charge = charge.with_limits(limits_id);
    assert_eq!(harness.check(&charge).await.remaining(), [4, 19]);
    let limits_id = harness.register_limits([slow_bucket(9), window, log]);
    let charge = charge.with_limits(limits_id);
    assert_eq!(harness.check(&charge).await.remaining(), [3, 18, 199]);
    let limits_id = harness.register_limits([slow_bucket(7)]);
    let charge = charge.with_limits(limits_id);
    assert_eq!(harness.check(&charge).await.remaining(), [0]);
    assert!(!harness.check(&charge).await.passed());
}

/// Checks that the store accepts a limit of 1,000 of every algorithm that it supports.
pub async fn ordinary_parameters_are_accepted(subject: &mut impl Subject) {
    for (name, limit) in limit_of_each_algorithm(1_000) {
        let accepted = subject.store().check_limits(&limit.into());
        let is_refused = subject.refused_algorithms().iter().any(|refused| name.starts_with(refused));
        assert_eq!(accepted.is_err(), is_refused, "{name}: {accepted:?}");
    }
}
