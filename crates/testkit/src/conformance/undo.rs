//! Looking without touching, giving back, forgetting.

use tollgate_core::{Cost, FixedWindow, Nanos, Phase};
use tollgate_engine::store::Verb;

use super::Subject;
use super::desk::Desk;
use super::groups::bucket;
use super::limits::one_of_each;

/// Not the state, and not the answer to the next one.
pub async fn peeking_changes_nothing(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(3) {
        let question = desk.about(limit, name);
        for _ in 0..2 {
            let told = desk.peek(&question).await;
            assert_eq!((told.passed(), told.taken, told.remaining()), (true, 0, vec![3]), "{name}");
        }
        assert_eq!(desk.check(&question.clone().cost(3)).await.remaining(), [0], "{name}");
        for _ in 0..2 {
            let told = desk.peek(&question).await;
            assert_eq!((told.passed(), told.taken, told.remaining()), (false, 0, vec![0]), "{name}");
        }
    }
}

/// And not more.
pub async fn a_refund_gives_back_what_was_taken(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(5) {
        let question = desk.about(limit, name);
        let first = desk.check(&question.clone().cost(2)).await;
        assert!(desk.check(&question.clone().cost(2)).await.passed(), "{name}");
        assert_eq!(desk.refund(&question.clone().back(&first)).await, 2, "{name}");
        assert_eq!(desk.peek(&question).await.remaining(), [3], "{name}");
        desk.refund(&question.clone().back(&first)).await;
        desk.refund(&question.clone().back(&first)).await;
        assert!(desk.peek(&question).await.remaining()[0] <= 5, "{name}: never above full");
    }
}

/// A number names one lease and no other.
pub async fn a_lease_is_given_back_once(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let question = desk.about(tollgate_core::Concurrency::new(3, Nanos::from_secs(3_600)).expect("leases"), "k");
    let first = desk.check(&question.clone().cost(2)).await;
    let second = desk.check(&question).await;
    assert!(!desk.check(&question).await.passed());
    assert_eq!(desk.refund(&question.clone().back(&first)).await, 2);
    assert_eq!(desk.refund(&question.clone().back(&first)).await, 0);
    assert_eq!(desk.peek(&question).await.remaining(), [2]);
    assert!(desk.check(&question.clone().cost(2)).await.passed(), "the slots are somebody else's now");
    assert_eq!(desk.refund(&question.clone().back(&first)).await, 0);
    assert_eq!(desk.refund(&question.clone().back(&second)).await, 1);
}

/// Who holds on to a slot keeps it; who lost it is told.
pub async fn a_lease_is_renewed_as_long_as_it_is_held(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut desk = Desk::new(subject);
    let leases = tollgate_core::Concurrency::new(2, Nanos::from_nanos(4 * unit.as_nanos())).expect("leases");
    let question = desk.about(leases, "k");
    let (kept, lost) = (desk.check(&question).await, desk.check(&question).await);
    for _ in 0..2 {
        desk.subject.wait(Nanos::from_nanos(3 * unit.as_nanos())).await;
        assert_eq!(desk.renew(&question.clone().back(&kept)).await, 1);
    }
    assert_eq!(desk.renew(&question.clone().back(&lost)).await, 0);
    assert_eq!(desk.peek(&question).await.remaining(), [1]);
    assert_eq!(desk.refund(&question.clone().back(&kept)).await, 1);
    assert_eq!(desk.renew(&question.clone().back(&kept)).await, 0);
    let (bucket, fresh) = (desk.about(bucket(5), "bucket"), desk.about(leases, "fresh"));
    let taken = desk.check(&bucket).await;
    assert_eq!(desk.renew(&bucket.clone().back(&taken)).await, 0, "there is no lease");
    assert_eq!(desk.renew(&fresh.back(&kept)).await, 0, "nobody holds anything");
}

/// What was taken from yesterday's quota is not given to today's.
pub async fn a_refund_reaches_only_the_window_it_was_taken_in(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut desk = Desk::new(subject);
    let window = FixedWindow::new(5, Nanos::from_nanos(2 * unit.as_nanos())).expect("a window");
    let question = desk.about(window.phase(Phase::FirstRequest), "k");
    let old = desk.check(&question.clone().cost(2)).await;
    desk.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert_eq!(desk.check(&question).await.remaining(), [4]);
    assert_eq!(desk.refund(&question.clone().back(&old)).await, 0);
    assert_eq!(desk.peek(&question).await.remaining(), [4]);
}

/// Refunds of a group are not all or none.
pub async fn what_one_does_not_accept_another_may(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (used, new) = (desk.about(bucket(5), "used"), desk.about(bucket(5), "new"));
    let taken = desk.check(&used.clone().cost(3)).await;
    let told = desk.group(Verb::Refund, &[new.clone().back(&taken), used.clone().back(&taken)]).await;
    assert_eq!(told.iter().map(|told| told.taken).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(desk.peek(&used).await.remaining(), [5]);
    assert_eq!(desk.check(&new.cost(5)).await.taken, Cost::new(5).get());
}

/// As good as new.
pub async fn reset_forgets_one_key_and_no_other(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(3) {
        let numbers = desk.limit(limit);
        let (question, other) = (desk.question(numbers, name), desk.question(numbers, &format!("other {name}")));
        desk.group(Verb::Check, &[question.clone().cost(3), other.clone().cost(2)]).await;
        desk.reset(&question).await;
        assert_eq!(desk.peek(&question).await.remaining(), [3], "{name}");
        assert_eq!(desk.peek(&other).await.remaining(), [1], "{name}");
        assert!(desk.check(&question.cost(3)).await.passed(), "{name}");
    }
}
