//! Numbers that change under way.

use tollgate_core::{FixedWindow, Limit, SlidingLog};
use tollgate_engine::Store;

use super::Subject;
use super::desk::Desk;
use super::groups::bucket;
use super::limits::{YEAR, one_of_each};

/// Up and down again.
pub async fn changed_numbers_keep_what_was_spent(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (five, eight, two) = (one_of_each(5), one_of_each(8), one_of_each(2));
    for (((name, five), (_, eight)), (_, two)) in five.into_iter().zip(eight).zip(two) {
        let question = desk.about(five, name);
        assert_eq!(desk.check(&question.clone().cost(3)).await.remaining(), [2], "{name}");
        let numbers = desk.limit(eight);
        let raised = question.under(numbers);
        assert_eq!(desk.peek(&raised).await.remaining(), [5], "{name}");
        assert_eq!(desk.check(&raised).await.remaining(), [4], "{name}");
        let numbers = desk.limit(two);
        let lowered = raised.under(numbers);
        assert!(!desk.check(&lowered).await.passed(), "{name}");
        assert_eq!(desk.peek(&lowered).await.remaining(), [0], "{name}");
    }
}

/// How much was used up means the same to all of them.
pub async fn another_algorithm_keeps_what_was_spent(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (from, old) in one_of_each(5) {
        for (to, new) in one_of_each(6) {
            // Leases mean nothing elsewhere, and nothing elsewhere is a lease.
            if (from == "concurrency") != (to == "concurrency") {
                continue;
            }
            let question = desk.about(old, &format!("{from} {to}"));
            assert!(desk.check(&question.clone().cost(3)).await.passed(), "{from} to {to}");
            let numbers = desk.limit(new);
            let question = question.under(numbers);
            assert_eq!(desk.check(&question).await.remaining(), [2], "{from} to {to}");
        }
    }
}

/// Each limit takes over from the one in its place.
pub async fn more_and_fewer_limits_keep_what_was_spent(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let window: Limit = FixedWindow::new(20, YEAR).expect("a window").into();
    let log = |limit| Limit::from(SlidingLog::new(limit, YEAR).expect("a log"));
    let numbers = desk.limits([bucket(9)]);
    let question = desk.question(numbers, "k");
    assert_eq!(desk.check(&question.clone().cost(4)).await.remaining(), [5]);
    let numbers = desk.limits([bucket(9), window]);
    let question = question.under(numbers);
    assert_eq!(desk.check(&question).await.remaining(), [4, 19]);
    let numbers = desk.limits([bucket(9), window, log(200)]);
    let question = question.under(numbers);
    assert_eq!(desk.check(&question).await.remaining(), [3, 18, 199]);
    let numbers = desk.limits([bucket(7)]);
    let question = question.under(numbers);
    assert_eq!(desk.check(&question).await.remaining(), [0]);
    assert!(!desk.check(&question).await.passed());
}

/// A store may refuse numbers that it cannot compute exactly, but not these.
pub async fn ordinary_numbers_are_accepted(subject: &mut impl Subject) {
    for (name, limit) in one_of_each(1_000) {
        let accepted = subject.store().check_numbers(&limit.into());
        assert_eq!(accepted, Ok(()), "{name}");
    }
}
