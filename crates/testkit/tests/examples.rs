//! Worked examples, including cases in which published token bucket code is wrong.

use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, TokenBucket};

const MILLI: u64 = 1_000_000;

/// A bucket and its state.
struct Bucket {
    limit: TokenBucket,
    state: [u64; 2],
}

impl Bucket {
    fn new(rate: &str, burst: u64) -> Self {
        let limit = TokenBucket::new(rate.parse().expect("a rate"), burst).expect("a bucket");
        let mut state = [0; 2];
        limit.init(&mut state, &Now::at(0));
        Self { limit, state }
    }

    fn passes(&mut self, at_ms: u64, cost: u64) -> bool {
        self.limit.decide(&mut self.state, &Now::at(at_ms * MILLI), Ask::Exactly(Cost::new(cost))).is_admitted()
    }

    fn remaining(&self, at_ms: u64) -> u64 {
        self.limit.report(&self.state, &Now::at(at_ms * MILLI), Cost::ONE).remaining
    }

    fn full_after(&self, at_ms: u64) -> Nanos {
        self.limit.report(&self.state, &Now::at(at_ms * MILLI), Cost::ONE).reset
    }
}

#[test]
fn taking_six_then_five_of_ten_at_ten_per_second_leaves_four_then_one() {
    let mut bucket = Bucket::new("10/s", 10);
    assert!(bucket.passes(0, 6));
    assert_eq!(bucket.remaining(0), 4);
    assert!(bucket.passes(200, 5));
    assert_eq!(bucket.remaining(200), 1);
    assert_eq!(bucket.full_after(200), Nanos::from_millis(900));
    assert_eq!(bucket.remaining(1_099), 9);
    assert_eq!(bucket.remaining(1_100), 10);
}

#[test]
fn cost_of_ten_passes_a_full_bucket_of_ten() {
    let mut bucket = Bucket::new("10/s", 10);
    assert!(bucket.passes(0, 10));
    assert_eq!(bucket.remaining(0), 0);
}

#[test]
fn after_a_pause_at_most_the_capacity_passes_at_one_instant() {
    let mut bucket = Bucket::new("10/s", 10);
    for idle_until in [0, 3_600_000, 86_400_000] {
        let passed = (0..100).filter(|_| bucket.passes(idle_until, 1)).count();
        assert_eq!(passed, 10, "at {idle_until} ms");
    }
}

#[test]
fn callers_1_9_s_apart_on_a_1_s_interval_lose_no_fraction() {
    let mut bucket = Bucket::new("1/s", 1_000);
    assert!(bucket.passes(0, 1_000));
    // Each request takes one token, and 1.9 tokens are refilled between requests. Nine of ten requests
    // leave a fraction of a token, and no fraction is lost.
    for caller in 1..=1_000 {
        assert!(bucket.passes(caller * 1_900, 1), "caller {caller}");
        assert_eq!(bucket.remaining(caller * 1_900), caller * 9 / 10, "after caller {caller}");
    }
}
