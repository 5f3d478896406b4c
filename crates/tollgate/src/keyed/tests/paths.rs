//! Checks that single checks and batches return the same results as the slow path.

use super::*;
use tollgate_core::{Cost, IntervalBucket, SlidingSlices};

/// Sends the same random requests to three limiters: as single checks, in batches, and on the slow path.
fn compare_paths<A: Algorithm + Clone + fmt::Debug>(limit: &A, seed: u64, capacity: usize) {
    let ((single, clock), (batched, batched_clock), (slow, slow_clock)) =
        (keyed(limit.clone(), capacity), keyed(limit.clone(), capacity), keyed(limit.clone(), capacity));
    let mut random = Rng::new(seed);
    for step in 0..400 {
        // Usually moves the clock forward, and sometimes back by less or by more than the tolerance for clock steps.
        let nanos = match random.below(20) {
            0 => clock.mono().as_nanos() - random.below(3_000_000_000),
            1..10 => clock.mono().as_nanos() + random.below(2_000_000_000),
            _ => clock.mono().as_nanos() + random.below(100_000_000),
        };
        [&clock, &batched_clock, &slow_clock].iter().for_each(|clock| clock.set(nanos));
        let mut requests: Vec<(String, u64)> = Vec::new();
        for _ in 0..1 + random.below(20) {
            let key = format!("key {}", random.below(12));
            // Adds runs of one key, which a batch decides under one lock.
            requests.extend((0..=random.below(3)).map(|_| (key.clone(), random.below(4) * random.below(4))));
        }
        let parts = |verdict: Verdict<A::Stamp>| (verdict.outcome(), verdict.taken());
        let expected: Vec<_> = requests
            .iter()
            .map(|(key, cost)| {
                let (fingerprint, ask) = (key.fingerprint(&slow.secret), Ask::Exactly(Cost::new(*cost)));
                parts(slow.decide_slow(fingerprint, slow.now(), ask, |_, verdict| verdict))
            })
            .collect();
        let singly: Vec<_> = requests.iter().map(|(key, cost)| parts(single.check(key, *cost))).collect();
        let mut together = Vec::new();
        batched.check_many(requests.iter().map(|(key, cost)| (key, *cost)), |verdict| together.push(parts(verdict)));
        let context = format!("{limit:?}, seed {seed}, capacity {capacity}, step {step}: {requests:?}");
        assert_eq!(singly, expected, "single checks: {context}");
        assert_eq!(together, expected, "batches: {context}");
    }
}

#[test]
fn all_paths_decide_as_the_slow_path() {
    let slices = SlidingSlices::new(10, SECOND, Nanos::from_millis(100)).unwrap();
    let interval = IntervalBucket::new(10, SECOND).unwrap();
    for seed in 1..=10 {
        // In a small table, keys are displaced and evicted, and some share the overflow entry.
        for capacity in [4, 1_000] {
            compare_paths(&bucket(10), seed, capacity);
            compare_paths(&two_word_bucket(10), seed, capacity);
            compare_paths(&slices, seed, capacity);
            compare_paths(&interval, seed, capacity);
            limits_of_ten(SECOND).into_iter().for_each(|limit| compare_paths(&limit, seed, capacity));
            let both = Limits::new([bucket(10).into(), slices.into()]).unwrap();
            compare_paths(&both, seed, capacity);
        }
    }
}
