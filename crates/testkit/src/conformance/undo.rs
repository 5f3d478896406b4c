//! Cases for peeks, refunds, renewals and resets.

use tollgate_core::{Cost, FixedWindow, Nanos, Phase};
use tollgate_engine::store::StoreVerb;

use super::Subject;
use super::groups::slow_bucket;
use super::harness::Harness;

/// Checks that a peek changes neither the state nor the next decision.
pub async fn peek_changes_nothing(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(3) {
        let charge = harness.new_charge_with_limit(limit, name);
        for _ in 0..2 {
            let answer = harness.peek(&charge).await;
            assert_eq!((answer.passed(), answer.taken, answer.remaining()), (true, 0, vec![3]), "{name}");
        }
        assert_eq!(harness.check(&charge.clone().cost(3)).await.remaining(), [0], "{name}");
        for _ in 0..2 {
            let answer = harness.peek(&charge).await;
            assert_eq!((answer.passed(), answer.taken, answer.remaining()), (false, 0, vec![0]), "{name}");
        }
    }
}

/// Checks that a refund restores the charged amount, but never more than the capacity.
pub async fn refund_returns_the_charge(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(5) {
        let charge = harness.new_charge_with_limit(limit, name);
        let first = harness.check(&charge.clone().cost(2)).await;
        assert!(harness.check(&charge.clone().cost(2)).await.passed(), "{name}");
        assert_eq!(harness.refund(&charge.clone().with_stamps_of(&first)).await, 2, "{name}");
        assert_eq!(harness.peek(&charge).await.remaining(), [3], "{name}");
        harness.refund(&charge.clone().with_stamps_of(&first)).await;
        harness.refund(&charge.clone().with_stamps_of(&first)).await;
        assert!(harness.peek(&charge).await.remaining()[0] <= 5, "{name}: never above the capacity");
    }
}

/// Checks that a stamp releases its lease only once.
pub async fn lease_is_released_once(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    if harness.refuses("concurrency") {
        return;
    }
    let charge = harness
        .new_charge_with_limit(tollgate_core::Concurrency::new(3, Nanos::from_secs(3_600)).expect("leases"), "k");
    let first = harness.check(&charge.clone().cost(2)).await;
    let second = harness.check(&charge).await;
    assert!(!harness.check(&charge).await.passed());
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&first)).await, 2);
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&first)).await, 0);
    assert_eq!(harness.peek(&charge).await.remaining(), [2]);
    assert!(harness.check(&charge.clone().cost(2)).await.passed(), "the slots have other holders");
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&first)).await, 0);
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&second)).await, 1);
}

/// Checks that a renewed lease is still held after its original end, and that an expired lease
/// cannot be renewed.
pub async fn lease_is_renewed_while_held(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut harness = Harness::new(subject);
    if harness.refuses("concurrency") {
        return;
    }
    let leases = tollgate_core::Concurrency::new(2, Nanos::from_nanos(4 * unit.as_nanos())).expect("leases");
    let charge = harness.new_charge_with_limit(leases, "k");
    let (kept, lost) = (harness.check(&charge).await, harness.check(&charge).await);
    for _ in 0..2 {
        harness.subject.wait(Nanos::from_nanos(3 * unit.as_nanos())).await;
        assert_eq!(harness.renew(&charge.clone().with_stamps_of(&kept)).await, 1);
    }
    assert_eq!(harness.renew(&charge.clone().with_stamps_of(&lost)).await, 0);
    assert_eq!(harness.peek(&charge).await.remaining(), [1]);
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&kept)).await, 1);
    assert_eq!(harness.renew(&charge.clone().with_stamps_of(&kept)).await, 0);
    let (bucket, fresh) =
        (harness.new_charge_with_limit(slow_bucket(5), "bucket"), harness.new_charge_with_limit(leases, "fresh"));
    let taken = harness.check(&bucket).await;
    assert_eq!(harness.renew(&bucket.clone().with_stamps_of(&taken)).await, 0, "there is no lease");
    assert_eq!(harness.renew(&fresh.with_stamps_of(&kept)).await, 0, "no slot is held");
}

/// Checks that a refund applies only to the window of its charge.
pub async fn refund_applies_only_to_its_window(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut harness = Harness::new(subject);
    let window = FixedWindow::new(5, Nanos::from_nanos(2 * unit.as_nanos())).expect("a window");
    let charge = harness.new_charge_with_limit(window.phase(Phase::FirstRequest), "k");
    let old = harness.check(&charge.clone().cost(2)).await;
    harness.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert_eq!(harness.check(&charge).await.remaining(), [4]);
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&old)).await, 0);
    assert_eq!(harness.peek(&charge).await.remaining(), [4]);
}

/// Checks that the refunds of a group are independent.
pub async fn refunds_of_a_group_are_independent(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (used, new) =
        (harness.new_charge_with_limit(slow_bucket(5), "used"), harness.new_charge_with_limit(slow_bucket(5), "new"));
    let taken = harness.check(&used.clone().cost(3)).await;
    let answers = harness
        .run_group(StoreVerb::Refund, &[new.clone().with_stamps_of(&taken), used.clone().with_stamps_of(&taken)])
        .await;
    assert_eq!(answers.iter().map(|answer| answer.taken).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(harness.peek(&used).await.remaining(), [5]);
    assert_eq!(harness.check(&new.cost(5)).await.taken, Cost::new(5).get());
}

/// Checks that a reset key is unused and other keys are unaffected.
pub async fn reset_affects_one_key(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(3) {
        let limits_id = harness.register_limit(limit);
        let (charge, other) =
            (harness.new_charge(limits_id, name), harness.new_charge(limits_id, &format!("other {name}")));
        harness.run_group(StoreVerb::Check, &[charge.clone().cost(3), other.clone().cost(2)]).await;
        harness.reset(&charge).await;
        assert_eq!(harness.peek(&charge).await.remaining(), [3], "{name}");
        assert_eq!(harness.peek(&other).await.remaining(), [1], "{name}");
        assert!(harness.check(&charge.cost(3)).await.passed(), "{name}");
    }
}
