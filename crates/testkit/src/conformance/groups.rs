//! Groups: the charges of a group are admitted together or not at all, and groups are independent
//! of each other.

use std::pin::Pin;
use std::task::Poll;

use tollgate_core::{Ask, Cost, Limit, Nanos, Outcome, Retry, TokenBucket};
use tollgate_engine::store::StoreVerb;

use super::Subject;
use super::harness::Harness;

/// Returns a bucket that refills too slowly to matter during a case.
pub(super) fn slow_bucket(burst: u64) -> Limit {
    TokenBucket::new("1/day".parse().expect("a rate"), burst).expect("a bucket").into()
}

/// Checks that no charge of a group is applied if one charge is refused.
pub async fn group_is_charged_all_or_none(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (a, b) =
        (harness.new_charge_with_limit(slow_bucket(5), "a"), harness.new_charge_with_limit(slow_bucket(2), "b"));
    let both = [a.clone(), b.clone()];
    for left in [4, 3] {
        let answers = harness.run_group(StoreVerb::Check, &both).await;
        assert!(answers.iter().all(|answer| answer.passed() && answer.taken == 1));
        assert_eq!(answers[0].remaining(), [left]);
    }
    let answers = harness.run_group(StoreVerb::Check, &both).await;
    assert!(!answers.iter().all(|answer| answer.passed()));
    assert!(answers.iter().all(|answer| answer.taken == 0), "a refused group takes nothing");
    assert_eq!(harness.peek(&a).await.remaining(), [3]);
    // The same group with the refused charge first.
    harness.run_group(StoreVerb::Check, &[b, a.clone()]).await;
    assert_eq!(harness.peek(&a).await.remaining(), [3]);
}

/// Checks that each charge of a refused group has its own answer.
pub async fn refused_group_answers_each_charge(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (rich, poor) =
        (harness.new_charge_with_limit(slow_bucket(5), "rich"), harness.new_charge_with_limit(slow_bucket(1), "poor"));
    let answers = harness.run_group(StoreVerb::Check, &[rich.clone(), poor.clone().cost(2)]).await;
    assert_eq!(answers[1].outcome, Outcome::Deny(Retry::Never));
    assert!(answers[0].passed(), "the first charge would be admitted alone");
    assert_eq!((answers[0].remaining(), answers[1].remaining()), (vec![5], vec![1]));
    assert_eq!(harness.check(&poor).await.outcome, Outcome::Allow);
    let answers = harness.run_group(StoreVerb::Check, &[poor, rich]).await;
    assert!(!answers[0].passed() && answers[0].wait() > Nanos::ZERO);
}

/// Checks that a refused group does not affect the next group.
pub async fn groups_of_a_batch_are_independent(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (a, b) =
        (harness.new_charge_with_limit(slow_bucket(1), "a"), harness.new_charge_with_limit(slow_bucket(1), "b"));
    let (two, one, both) = ([a.clone().cost(2)], [b.clone()], [a, b]);
    let answers = harness
        .run_batch(&[
            (StoreVerb::Check, &two),
            (StoreVerb::Check, &one),
            (StoreVerb::Check, &both),
            (StoreVerb::Peek, &both),
        ])
        .await;
    let passed: Vec<Vec<bool>> =
        answers.iter().map(|group| group.as_ref().unwrap().iter().map(|answer| answer.passed()).collect()).collect();
    assert_eq!(passed[..2], [vec![false], vec![true]]);
    assert!(!passed[2].iter().all(|passed| *passed));
    assert_eq!(passed[3], [true, false], "the third group was refused and did not charge the key a");
}

/// Checks that the groups of a batch are decided in order.
pub async fn later_group_sees_earlier_group(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let charge = [harness.new_charge_with_limit(slow_bucket(5), "k")];
    let answers = harness.run_batch(&[(StoreVerb::Check, &charge[..]); 7]).await;
    let passed = answers.iter().map(|answer| answer.as_ref().unwrap()[0].passed());
    assert_eq!(passed.collect::<Vec<_>>(), [true, true, true, true, true, false, false]);
    let left = answers.iter().map(|answer| answer.as_ref().unwrap()[0].remaining()[0]);
    assert_eq!(left.collect::<Vec<_>>(), [4, 3, 2, 1, 0, 0, 0]);
}

/// Checks that all `UpTo` charges of a group take the smallest amount that any of them can take, even if their states
/// have different sizes. The reports must show the reduced amount.
pub async fn charges_up_to_an_amount_all_take_the_least(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (log, slots) = (harness.log_or_slices(300), harness.slots_or_window(3));
    let charges = [
        harness.new_charge_with_limit(slow_bucket(5), "a"),
        harness.new_charge_with_limit(log, "b"),
        harness.new_charge_with_limit(slots, "c"),
        harness.new_charge_with_limit(slow_bucket(9), "d"),
    ];
    let up_to = |cost: u64| charges.clone().map(|charge| charge.ask(Ask::UpTo(Cost::new(cost))));
    for (cost, taken, left) in [(2, 2, [3, 298, 1, 7]), (u64::MAX, 1, [2, 297, 0, 6])] {
        let answers = harness.run_group(StoreVerb::Check, &up_to(cost)).await;
        assert!(answers.iter().all(|answer| answer.passed() && answer.taken == taken), "{answers:?}");
        assert_eq!(answers.iter().flat_map(|answer| answer.remaining()).collect::<Vec<_>>(), left);
    }
    let answers = harness.run_group(StoreVerb::Check, &up_to(1)).await;
    assert!(!answers[2].passed() && answers.iter().all(|answer| answer.taken == 0));
    assert_eq!(answers.iter().flat_map(|answer| answer.remaining()).collect::<Vec<_>>(), [2, 297, 0, 6]);
}

/// Checks groups of twenty charges, and keys of arbitrary bytes and lengths.
pub async fn large_groups_and_unusual_keys_are_decided(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let limits_id = harness.register_limit(slow_bucket(2));
    let mut charges: Vec<_> = (0..20).map(|n| harness.new_charge(limits_id, &format!("k{n}"))).collect();
    charges[3].key.extend([0, 255, b'\r', b'\n', b'{', b'}', b':', 0]);
    charges[4].key.extend([0, 255, b'\r', b'\n', b'{', b'}', b':']);
    charges[5].key.extend(vec![b'x'; 8_000]);
    for passes in [true, true, false] {
        let answers = harness.run_group(StoreVerb::Check, &charges).await;
        assert_eq!(answers.iter().all(|answer| answer.passed()), passes);
    }
    let other = harness.new_charge(limits_id, "k20");
    assert!(harness.check(&other).await.passed(), "another key has its own counter");
}

/// Checks that concurrent callers together take at most the burst.
pub async fn concurrent_callers_get_no_more_than_the_limit(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let (shared, other) = (
        harness.new_charge_with_limit(slow_bucket(30), "shared"),
        harness.new_charge_with_limit(slow_bucket(100), "other"),
    );
    let harness = &harness;
    let groups = [[shared.clone()].to_vec(), [shared.clone(), other.clone()].to_vec()];
    let callers = (0..50).map(|n| harness.run_group(StoreVerb::Check, &groups[n % 2]));
    let answers = join_all(callers.collect()).await;
    let passed = |answer: &&Vec<super::harness::ChargeAnswer>| answer.iter().all(|answer| answer.passed());
    assert_eq!(answers.iter().filter(passed).count(), 30);
    let with_other = answers.iter().filter(|answer| answer.len() == 2).filter(passed).count() as u64;
    assert_eq!(harness.peek(&shared).await.remaining(), [0]);
    assert_eq!(
        harness.peek(&other).await.remaining(),
        [100 - with_other],
        "refused groups did not charge the other key"
    );
}

/// Waits for all futures in one task.
async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
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
