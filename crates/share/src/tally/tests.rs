use super::*;
use tollgate_core::{FixedWindow, Limit, Nanos, Rate, SlidingLog, TokenBucket};

const SECOND: u64 = 1_000_000_000;

fn four_a_second() -> Arc<Limits> {
    let bucket = TokenBucket::new(Rate::per_second(4).unwrap(), 4).unwrap();
    Arc::new(with_debt(&Limit::from(bucket).into()).unwrap())
}

/// A store of one key that applies payloads once.
struct Store {
    words: Vec<u64>,
    seen: Vec<u64>,
}

impl Store {
    fn new(limits: &Limits, nodes: usize) -> Self {
        let mut words = vec![0; limits.words()];
        limits.init(&mut *words, &Now::at(0));
        Self { words, seen: vec![0; nodes] }
    }

    fn apply(&mut self, node: usize, payload: &Payload, at: u64) {
        if payload.sequence > self.seen[node] {
            self.seen[node] = payload.sequence;
            for item in &payload.items {
                let as_of = Now::at(at - payload.age(at).as_nanos());
                merge(&item.limits, &mut self.words, &as_of, item.cost, payload.is_recent(at));
            }
        }
    }
}

fn one() -> Ask {
    Ask::Exactly(Cost::ONE)
}

#[test]
fn twelve_requests_on_three_nodes_against_four_tokens_leave_a_balance_of_minus_eight() {
    let limits = four_a_second();
    let mut store = Store::new(&limits, 3);
    let mut nodes: Vec<Tally> = (0..3).map(|_| Tally::default()).collect();
    for node in &mut nodes {
        assert_eq!(node.take(b"k", &limits, &Now::at(0), 0, one()).unwrap_err(), FirstTouch);
        node.learn(b"k", &limits, &store.words, &Now::at(0), 0);
        for _ in 0..4 {
            assert!(node.take(b"k", &limits, &Now::at(0), 0, one()).unwrap().is_admitted());
        }
        assert!(!node.take(b"k", &limits, &Now::at(0), 0, one()).unwrap().is_admitted());
    }
    for (index, node) in nodes.iter_mut().enumerate() {
        let payload = node.payload(0).unwrap().clone();
        store.apply(index, &payload, 0);
        // A resend changes nothing.
        store.apply(index, &payload, 0);
        node.acknowledge(payload.sequence);
    }
    assert_eq!(limits.as_slice()[0].used(&*store.words, &Now::at(0)).floor(), 12);
    for node in &mut nodes {
        node.learn(b"k", &limits, &store.words, &Now::at(0), 0);
        assert_eq!(node.overshoot(), 8);
        assert!(!node.take(b"k", &limits, &Now::at(2 * SECOND), 2 * SECOND, one()).unwrap().is_admitted());
        let later = 2 * SECOND + SECOND / 4;
        assert!(node.take(b"k", &limits, &Now::at(later), later, one()).unwrap().is_admitted());
    }
}

#[test]
fn payload_stays_frozen_until_it_is_answered() {
    let limits = four_a_second();
    let mut node = Tally::default();
    node.learn(b"k", &limits, &Store::new(&limits, 1).words, &Now::at(0), 0);
    let take = |node: &mut Tally, at| node.take(b"k", &limits, &Now::at(at), at, one()).unwrap().is_admitted();
    assert!(take(&mut node, 0));
    assert_eq!(node.payload(0).unwrap().items[0].cost, 1);
    assert!(take(&mut node, 5));
    let again = node.payload(10).unwrap();
    assert_eq!((again.sequence, again.items[0].cost, again.age(10).as_nanos()), (1, 1, 10));
    node.acknowledge(1);
    assert_eq!(node.payload(10).unwrap().sequence, 2);
    node.acknowledge(7);
    assert!(node.has_unsent(), "that number was not sent");
    node.acknowledge(2);
    assert!(node.payload(10).is_none());
}

#[test]
fn view_is_what_the_store_says_and_what_is_unsent() {
    let limits = four_a_second();
    let mut node = Tally::default();
    let fresh = Store::new(&limits, 1).words;
    node.learn(b"k", &limits, &fresh, &Now::at(0), 0);
    for _ in 0..3 {
        assert!(node.take(b"k", &limits, &Now::at(0), 0, one()).unwrap().is_admitted());
    }
    node.learn(b"k", &limits, &fresh, &Now::at(0), 0);
    let (own, words) = node.view(b"k").unwrap();
    assert_eq!(own.as_slice()[0].used(words, &Now::at(0)).floor(), 3);
    node.put_back(b"k", &Now::at(0), Cost::new(1), Stamps::default());
    assert_eq!(node.payload(0).unwrap().items[0].cost, 2);
}

#[test]
fn old_payloads_do_not_take_below_zero_and_outdated_ones_are_dropped() {
    let limits = four_a_second();
    let mut store = Store::new(&limits, 1);
    assert_eq!(merge(&limits, &mut store.words, &Now::at(0), 9, false), 4);
    assert_eq!(merge(&limits, &mut store.words, &Now::at(0), 9, true), 9);
    let mut node = Tally::default();
    node.note(Arc::from(&b"k"[..]), limits, 0, 5);
    assert!(node.payload(10 * SECOND).is_none());
    assert_eq!(node.dropped(), 5);
}

#[test]
fn window_counts_a_payload_in_the_window_it_was_taken_in() {
    let window = FixedWindow::new(10, Nanos::from_secs(60)).unwrap();
    let limits = with_debt(&Limit::from(window).into()).unwrap();
    let mut words = vec![0; limits.words()];
    limits.init(&mut *words, &Now::at(59 * SECOND));
    merge(&limits, &mut words, &Now::at(59 * SECOND), 10, true);
    let used = |words: &[u64], at| limits.as_slice()[0].used(words, &Now::at(at)).floor();
    assert_eq!(used(&words, 60 * SECOND), 0, "the next window has begun");
}

#[test]
fn unsent_entries_are_bounded() {
    let limits = four_a_second();
    let mut node = Tally::default();
    for key in 0..MAX_UNSENT as u64 + 10 {
        let at = key / 1_000 * SECOND / 100;
        node.note(Arc::from(&key.to_le_bytes()[..]), limits.clone(), at, 1);
    }
    assert!(node.unsent.len() <= MAX_UNSENT);
    assert!(node.dropped() > 0);
}

#[test]
fn only_algorithms_that_can_be_merged_get_a_debt() {
    let log = SlidingLog::new(10, Nanos::SECOND).unwrap();
    assert!(with_debt(&Limit::from(log).into()).is_none());
    // As much debt as fits.
    let slow = TokenBucket::new("1/day".parse().unwrap(), 10_000).unwrap();
    let limits = with_debt(&Limit::from(slow).into()).unwrap();
    assert!(
        matches!(limits.as_slice()[0].params(), tollgate_core::Params::TokenBucket(bucket) if bucket.max_debt >= 10_000)
    );
}
