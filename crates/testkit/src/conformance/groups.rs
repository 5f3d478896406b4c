//! Charges that pass together or not at all, and groups that have nothing to do with each other.

use std::pin::Pin;
use std::task::Poll;

use tollgate_core::{Limit, Outcome, Retry, TokenBucket};
use tollgate_engine::store::Verb;

use super::Subject;
use super::desk::Desk;

/// So slow that nothing comes back while a case runs.
pub(super) fn bucket(burst: u64) -> Limit {
    TokenBucket::new("1/day".parse().expect("a rate"), burst).expect("a bucket").into()
}

/// What one refuses, none is charged for.
pub async fn all_pass_or_none_is_charged(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (a, b) = (desk.about(bucket(5), "a"), desk.about(bucket(2), "b"));
    let both = [a.clone(), b.clone()];
    for left in [4, 3] {
        let told = desk.group(Verb::Check, &both).await;
        assert!(told.iter().all(|told| told.passed() && told.taken == 1));
        assert_eq!(told[0].remaining(), [left]);
    }
    let told = desk.group(Verb::Check, &both).await;
    assert!(!told.iter().all(|told| told.passed()));
    assert!(told.iter().all(|told| told.taken == 0), "a refused group takes nothing");
    assert_eq!(desk.peek(&a).await.remaining(), [3]);
    // In the other order, too.
    desk.group(Verb::Check, &[b, a.clone()]).await;
    assert_eq!(desk.peek(&a).await.remaining(), [3]);
}

/// Each charge has its own answer.
pub async fn a_refused_group_says_who_refused(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (rich, poor) = (desk.about(bucket(5), "rich"), desk.about(bucket(1), "poor"));
    let told = desk.group(Verb::Check, &[rich.clone(), poor.clone().cost(2)]).await;
    assert_eq!(told[1].outcome, Outcome::Deny(Retry::Never));
    assert!(told[0].passed(), "by itself it would have passed");
    assert_eq!((told[0].remaining(), told[1].remaining()), (vec![5], vec![1]));
    assert_eq!(desk.check(&poor).await.outcome, Outcome::Allow);
    let told = desk.group(Verb::Check, &[poor, rich]).await;
    assert!(!told[0].passed() && told[0].wait() > tollgate_core::Nanos::ZERO);
}

/// One may be refused and the next one pass.
pub async fn groups_of_a_batch_are_independent(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (a, b) = (desk.about(bucket(1), "a"), desk.about(bucket(1), "b"));
    let (two, one, both) = ([a.clone().cost(2)], [b.clone()], [a, b]);
    let told = desk.batch(&[(Verb::Check, &two), (Verb::Check, &one), (Verb::Check, &both), (Verb::Peek, &both)]).await;
    let passed: Vec<Vec<bool>> =
        told.iter().map(|told| told.as_ref().unwrap().iter().map(|told| told.passed()).collect()).collect();
    assert_eq!(passed[..2], [vec![false], vec![true]]);
    assert!(!passed[2].iter().all(|passed| *passed));
    assert_eq!(passed[3], [true, false], "the third group was refused and left a as it was");
}

/// They are decided in order.
pub async fn a_later_group_sees_what_an_earlier_one_took(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let question = [desk.about(bucket(5), "k")];
    let told = desk.batch(&[(Verb::Check, &question[..]); 7]).await;
    let passed = told.iter().map(|told| told.as_ref().unwrap()[0].passed());
    assert_eq!(passed.collect::<Vec<_>>(), [true, true, true, true, true, false, false]);
    let left = told.iter().map(|told| told.as_ref().unwrap()[0].remaining()[0]);
    assert_eq!(left.collect::<Vec<_>>(), [4, 3, 2, 1, 0, 0, 0]);
}

/// Twenty charges, keys of any bytes and any length.
pub async fn large_groups_and_odd_keys_are_no_exception(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let numbers = desk.limit(bucket(2));
    let mut questions: Vec<_> = (0..20).map(|n| desk.question(numbers, &format!("k{n}"))).collect();
    questions[3].key.extend([0, 255, b'\r', b'\n', b'{', b'}', b':', 0]);
    questions[4].key.extend([0, 255, b'\r', b'\n', b'{', b'}', b':']);
    questions[5].key.extend(vec![b'x'; 8_000]);
    for passes in [true, true, false] {
        let told = desk.group(Verb::Check, &questions).await;
        assert_eq!(told.iter().all(|told| told.passed()), passes);
    }
    let other = desk.question(numbers, "k20");
    assert!(desk.check(&other).await.passed(), "no key is taken for another");
}

/// However they interleave, a burst is a burst.
pub async fn callers_at_the_same_time_get_no_more_than_there_is(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let (shared, other) = (desk.about(bucket(30), "shared"), desk.about(bucket(100), "other"));
    let desk = &desk;
    let groups = [[shared.clone()].to_vec(), [shared.clone(), other.clone()].to_vec()];
    let callers = (0..50).map(|n| desk.group(Verb::Check, &groups[n % 2]));
    let told = all(callers.collect()).await;
    let passed = |told: &&Vec<super::desk::Told>| told.iter().all(|told| told.passed());
    assert_eq!(told.iter().filter(passed).count(), 30);
    let with_other = told.iter().filter(|told| told.len() == 2).filter(passed).count() as u64;
    assert_eq!(desk.peek(&shared).await.remaining(), [0]);
    assert_eq!(desk.peek(&other).await.remaining(), [100 - with_other], "refused groups took nothing from the other");
}

/// Waits for all futures at once, in one task.
async fn all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (future, output) in waiting.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().any(Option::is_none) {
            return Poll::Pending;
        }
        Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect())
    })
    .await
}
