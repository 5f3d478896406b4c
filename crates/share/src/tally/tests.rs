use super::*;
use tollgate_core::{
    Algorithm, FixedWindow, Limit, Nanos, Rate, SlidingLog, SlidingSlices, SlidingWindow, TokenBucket,
};

const SECOND: u64 = 1_000_000_000;

fn four_per_second() -> Arc<Limits> {
    let bucket = TokenBucket::new(Rate::per_second(4).unwrap(), 4).unwrap();
    Arc::new(with_debt(&Limit::from(bucket).into()).unwrap())
}

/// A store with one key that applies each payload once.
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
                let as_of = Now::at(at - payload.charged_age(at).as_nanos());
                merge(&item.limits, &mut self.words, &as_of, item.cost, payload.is_recent(at));
            }
        }
    }
}

/// Takes an exact cost from a key. The store time equals the node's time.
fn take(node: &mut Tally, key: &[u8], limits: &Arc<Limits>, at: u64, cost: u64) -> Result<Verdict<Stamps>, ReadReason> {
    node.take(&Charge { key, limits, limits_id: None, ask: Ask::Exactly(Cost::new(cost)), now: &Now::at(at), at })
}

#[test]
fn twelve_requests_on_three_nodes_against_four_tokens_leave_a_balance_of_minus_eight() {
    let limits = four_per_second();
    let mut store = Store::new(&limits, 3);
    let mut nodes: Vec<Tally> = (0..3).map(|_| Tally::default()).collect();
    for node in &mut nodes {
        assert_eq!(take(node, b"k", &limits, 0, 1).unwrap_err(), ReadReason::FirstTouch);
        node.learn(b"k", &limits, &store.words, &Now::at(0), 0);
        for _ in 0..4 {
            assert!(take(node, b"k", &limits, 0, 1).unwrap().is_admitted());
        }
        assert!(!take(node, b"k", &limits, 0, 1).unwrap().is_admitted());
    }
    let mut overshoot = 0;
    for (index, node) in nodes.iter_mut().enumerate() {
        let payload = node.payload(0).unwrap().clone();
        store.apply(index, &payload, 0);
        // A resend changes nothing.
        store.apply(index, &payload, 0);
        node.acknowledge(payload.sequence);
        overshoot += node.learn_merged(b"k", payload.items[0].cost, &limits, &store.words, &Now::at(0), 0);
    }
    assert_eq!(overshoot, 8, "the overshoot of all nodes together");
    assert_eq!(limits.as_slice()[0].used(&*store.words, &Now::at(0)).floor(), 12);
    for node in &mut nodes {
        node.learn(b"k", &limits, &store.words, &Now::at(0), 0);
        assert!(!take(node, b"k", &limits, 2 * SECOND, 1).unwrap().is_admitted());
        let later = 2 * SECOND + SECOND / 4;
        assert!(take(node, b"k", &limits, later, 1).unwrap().is_admitted());
    }
}

#[test]
fn payload_stays_frozen_until_it_is_answered() {
    let limits = four_per_second();
    let mut node = Tally::default();
    node.learn(b"k", &limits, &Store::new(&limits, 1).words, &Now::at(0), 0);
    let is_taken = |node: &mut Tally, at| take(node, b"k", &limits, at, 1).unwrap().is_admitted();
    assert!(is_taken(&mut node, 0));
    assert_eq!(node.payload(0).unwrap().items[0].cost, 1);
    assert!(is_taken(&mut node, 5));
    let again = node.payload(10).unwrap();
    assert_eq!((again.sequence, again.items[0].cost, again.age(10).as_nanos()), (1, 1, 10));
    node.acknowledge(1);
    assert_eq!(node.payload(10).unwrap().sequence, 2);
    node.acknowledge(7);
    assert!(node.has_unsent(), "no payload with this number was sent");
    node.acknowledge(2);
    assert!(node.payload(10).is_none());
}

#[test]
fn view_is_the_store_state_plus_unsent_takes() {
    let limits = four_per_second();
    let mut node = Tally::default();
    let fresh = Store::new(&limits, 1).words;
    node.learn(b"k", &limits, &fresh, &Now::at(0), 0);
    for _ in 0..3 {
        assert!(take(&mut node, b"k", &limits, 0, 1).unwrap().is_admitted());
    }
    node.learn(b"k", &limits, &fresh, &Now::at(0), 0);
    let (own, words) = node.view(b"k").unwrap();
    assert_eq!(own.as_slice()[0].used(words, &Now::at(0)).floor(), 3);
    node.put_back(b"k", &Now::at(0), Cost::new(1), Stamps::default());
    assert_eq!(node.payload(0).unwrap().items[0].cost, 2);
}

#[test]
fn old_payloads_do_not_take_below_zero_and_outdated_ones_are_dropped() {
    let limits = four_per_second();
    let mut store = Store::new(&limits, 1);
    assert_eq!(merge(&limits, &mut store.words, &Now::at(0), 9, false), 4);
    assert_eq!(merge(&limits, &mut store.words, &Now::at(0), 9, true), 9);
    let mut node = Tally::default();
    node.add_external(Arc::from(&b"k"[..]), limits, 0, 5);
    assert!(node.payload(10 * SECOND).is_none());
    assert_eq!(node.dropped_tokens(), 5);
}

#[test]
fn payload_counts_in_the_window_of_its_takes() {
    let window = FixedWindow::new(10, Nanos::from_secs(60)).unwrap();
    let limits = with_debt(&Limit::from(window).into()).unwrap();
    let mut words = vec![0; limits.words()];
    limits.init(&mut *words, &Now::at(59 * SECOND));
    merge(&limits, &mut words, &Now::at(59 * SECOND), 10, true);
    let used = |words: &[u64], at| limits.as_slice()[0].used(words, &Now::at(at)).floor();
    assert_eq!(used(&words, 60 * SECOND), 0, "the next window has begun");
}

/// The store must not apply an old payload at its original time. The earlier time would look like a clock that was set
/// back, and the store would discard other nodes' charges.
#[test]
fn old_payloads_do_not_erase_charges_of_other_nodes() {
    let minute = Nanos::from_secs(60);
    let all: [Limit; 4] = [
        TokenBucket::new("1000/s".parse().unwrap(), 10).unwrap().into(),
        FixedWindow::new(10, minute).unwrap().into(),
        SlidingWindow::new(10, minute).unwrap().into(),
        SlidingSlices::new(10, minute, Nanos::from_secs(6)).unwrap().into(),
    ];
    for limit in all {
        for seconds in [0, 1, 2, 30, 59, 61, 100, 119, 3_600] {
            let limits = Arc::new(with_debt(&limit.into()).unwrap());
            let now = 1_000_000 * SECOND + 5 * SECOND;
            let mut store = Store::new(&limits, 1);
            merge(&limits, &mut store.words, &Now::at(now), 7, true);
            let item = PayloadItem { key: Arc::from(&b"k"[..]), limits: limits.clone(), cost: 1 };
            let payload = Payload { sequence: 1, taken_at: now - seconds * SECOND, items: vec![item] };
            store.apply(0, &payload, now);
            let used = |at| limits.as_slice()[0].used(&store.words[..], &Now::at(at)).ceil();
            assert!((7..=8).contains(&used(now)), "{limit:?}, {seconds} s old: {} used", used(now));
            assert!(used(now + 1_000_000) >= 6, "{limit:?}, {seconds} s old");
        }
    }
}

#[test]
fn unsent_entries_are_bounded() {
    let limits = four_per_second();
    let bounds = Bounds { unsent: 100, ..Bounds::default() };
    let mut node = Tally::new(bounds);
    for key in 0..500_u64 {
        node.add_external(Arc::from(&key.to_le_bytes()[..]), limits.clone(), key * SECOND / 40, 1);
    }
    assert!(node.unsent.len() <= bounds.unsent + 40);
    assert_eq!(node.unsent.len() as u64 + node.dropped_tokens(), 500);
}

#[test]
fn only_algorithms_that_can_be_merged_get_a_debt() {
    let log = SlidingLog::new(10, Nanos::SECOND).unwrap();
    assert!(with_debt(&Limit::from(log).into()).is_none());
    // This slow limit cannot represent the full debt, so the debt is halved until the limit can represent it.
    let slow = TokenBucket::new("1/day".parse().unwrap(), 10_000).unwrap();
    let limits = with_debt(&Limit::from(slow).into()).unwrap();
    assert!(
        matches!(limits.as_slice()[0].params(), tollgate_core::Params::TokenBucket(bucket) if bucket.max_debt >= 10_000)
    );
}

#[test]
fn answers_older_than_the_last_one_are_ignored_and_takes_in_flight_are_kept() {
    let limits = four_per_second();
    let mut node = Tally::default();
    let empty = Store::new(&limits, 1).words;
    node.learn(b"k", &limits, &empty, &Now::at(SECOND), 0);
    let (now, ask) = (Now::at(SECOND), Ask::Exactly(Cost::ONE));
    assert!(
        node.take(&Charge { key: b"k", limits: &limits, limits_id: None, ask, now: &now, at: 0 })
            .unwrap()
            .is_admitted()
    );
    let used = |node: &Tally, at| {
        let (own, words) = node.view(b"k").unwrap();
        own.as_slice()[0].used(words, &Now::at(at)).floor()
    };
    assert_eq!(node.payload(0).unwrap().items[0].cost, 1);
    node.learn(b"k", &limits, &empty, &Now::at(SECOND + 1), 1);
    assert_eq!(used(&node, SECOND + 1), 1, "the state may lack the payload");
    let mut merged = empty.clone();
    merge(&limits, &mut merged, &Now::at(SECOND + 2), 1, true);
    node.acknowledge(1);
    assert_eq!(node.learn_merged(b"k", 1, &limits, &merged, &Now::at(SECOND + 2), 2), 0);
    node.learn(b"k", &limits, &empty, &Now::at(SECOND + 1), 3);
    assert_eq!(used(&node, SECOND + 2), 1, "an answer from before the merge");
}

#[test]
fn used_keys_are_read_and_stale_views_are_read_before_they_decide() {
    let limits = four_per_second();
    let mut node = Tally::new(Bounds { stale_after: SECOND, ..Bounds::default() });
    let empty = Store::new(&limits, 1).words;
    for key in [b"a", b"b"] {
        node.learn(key, &limits, &empty, &Now::at(0), 0);
    }
    assert!(node.keys_to_read(9).is_empty(), "neither was used");
    let charge =
        Charge { key: b"a", limits: &*limits, limits_id: None, ask: Ask::Exactly(Cost::ONE), now: &Now::at(0), at: 0 };
    assert!(node.peek(&charge, |verdict, _, _| verdict.is_admitted()).unwrap());
    assert!(take(&mut node, b"b", &limits, 0, 1).unwrap().is_admitted());
    let read = |node: &mut Tally| node.keys_to_read(9).into_iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>();
    assert_eq!(read(&mut node), [b"a"]);
    assert!(read(&mut node).is_empty());
    assert_eq!(node.payload(0).unwrap().items.len(), 1);
    assert_eq!(take(&mut node, b"b", &limits, SECOND, 1).unwrap_err(), ReadReason::Stale);
    assert!(node.accept_stale(b"b", SECOND) && !node.accept_stale(b"c", SECOND));
    assert!(take(&mut node, b"b", &limits, SECOND, 1).unwrap().is_admitted());
    node.forget(b"b");
    node.drop_payload();
    assert_eq!((node.dropped_tokens(), node.has_unsent()), (1, false));
}

#[test]
fn reserved_takes_are_sent_after_they_are_confirmed() {
    let limits = four_per_second();
    let mut node = Tally::default();
    let empty = Store::new(&limits, 1).words;
    node.learn(b"k", &limits, &empty, &Now::at(0), 0);
    let charge = Charge {
        key: b"k",
        limits: &limits,
        limits_id: None,
        ask: Ask::Exactly(Cost::new(3)),
        now: &Now::at(0),
        at: 0,
    };
    let stamps = node.reserve(&charge, |verdict, _, _| verdict.stamp());
    assert!(node.payload(0).is_none());
    node.learn(b"k", &limits, &empty, &Now::at(0), 0);
    assert!(!take(&mut node, b"k", &limits, 0, 2).unwrap().is_admitted());
    node.release(b"k", &Now::at(0), Cost::new(2), stamps.unwrap());
    node.confirm(b"k", 0, Cost::ONE);
    assert_eq!(node.payload(0).unwrap().items[0].cost, 1);
    assert!(take(&mut node, b"k", &limits, 0, 3).unwrap().is_admitted());
}

#[test]
fn decide_equals_reserve_and_confirm() {
    let limits = four_per_second();
    let empty = Store::new(&limits, 1).words;
    let [mut at_once, mut in_steps] = [Tally::default(), Tally::default()];
    for node in [&mut at_once, &mut in_steps] {
        node.learn(b"k", &limits, &empty, &Now::at(0), 0);
    }
    for step in 0..200_u64 {
        let (at, ask) = (step * 90_000_000, Ask::Exactly(Cost::new(step * 7 % 4)));
        let (now, all) = (Now::at(at), |verdict: &Verdict<Stamps>, own: &Limits, words: &[u64]| {
            (*verdict, own.clone(), words.to_vec())
        });
        let charge = Charge { key: b"k", limits: &limits, limits_id: None, ask, now: &now, at };
        let decided = at_once.decide(&charge, all).unwrap();
        let reserved = in_steps.reserve(&charge, all).unwrap();
        in_steps.confirm(b"k", at, reserved.0.taken());
        assert_eq!(decided, reserved, "step {step}");
        assert_eq!(at_once.take_urgent_flag(), in_steps.take_urgent_flag());
        if step % 17 == 0 {
            let sent = [&mut at_once, &mut in_steps].map(|node| {
                let sent = node.payload(at).map(|payload| (payload.sequence, payload.taken_at, payload.items[0].cost));
                sent.inspect(|(sequence, ..)| node.acknowledge(*sequence))
            });
            assert_eq!(sent[0], sent[1], "step {step}");
        }
    }
}

#[test]
fn try_take_equals_decide() {
    let plain: [Limit; 3] = [
        TokenBucket::new(Rate::per_second(4).unwrap(), 4).unwrap().into(),
        TokenBucket::new(Rate::per_second(9).unwrap(), 20).unwrap().into(),
        FixedWindow::new(5, Nanos::SECOND).unwrap().into(),
    ];
    let limits = plain.map(|limit| Arc::new(with_debt(&limit.into()).unwrap()));
    let mut store = Store::new(&limits[0], 1).words;
    let [mut fast, mut slow] = [(); 2].map(|()| Tally::new(Bounds { stale_after: 3 * SECOND, ..Bounds::default() }));
    let (mut at, mut on_fast_path, mut admitted) = (0, 0, 0);
    for step in 0..3_000_u64 {
        let random = (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        at += [0, 10_000_000, 90_000_000, 250_000_000][random as usize % 4] + if step % 97 == 0 { SECOND } else { 0 };
        let (now, cost) = (Now::at(at), Cost::new(random / 4 % 4));
        // The limits change every 40 steps.
        let id = [0, 1, 0, 2][step as usize / 40 % 4];
        let charge =
            |limits_id| Charge { key: b"k", limits: &limits[id], limits_id, ask: Ask::Exactly(cost), now: &now, at };
        let show = |verdict: &Verdict<Stamps>, own: &Limits, words: &[u64]| {
            (verdict.outcome(), (*own == *limits[id]).then(|| own.report(words, &now, cost)))
        };
        let taken = fast.try_take(b"k", id as u32, cost, &now, at).map(|(outcome, report)| (outcome, Some(report)));
        on_fast_path += u32::from(taken.is_some());
        let taken = taken.map_or_else(|| fast.decide(&charge(Some(id as u32)), show), Ok);
        let decided = slow.decide(&charge(None), show);
        assert_eq!(taken, decided, "step {step}");
        admitted += u32::from(decided.is_ok_and(|(outcome, _)| outcome.is_admitted()));
        assert_eq!(fast.view(b"k"), slow.view(b"k"), "step {step}");
        assert_eq!(fast.take_urgent_flag(), slow.take_urgent_flag(), "step {step}");
        if step % 7 == 0 {
            let sent = [&mut fast, &mut slow].map(|node| {
                let sent = node.payload(at).map(|payload| (payload.sequence, payload.taken_at, payload.items[0].cost));
                (sent, sent.inspect(|(sequence, ..)| node.acknowledge(*sequence)), node.keys_to_read(9).len())
            });
            assert_eq!(sent[0], sent[1], "step {step}");
        }
        if decided.is_err() || step % 31 == 0 {
            merge(&limits[0], &mut store, &now, step % 2, true);
            for node in [&mut fast, &mut slow] {
                node.learn(b"k", &limits[0], &store, &now, at);
            }
        }
    }
    assert!(on_fast_path > 1_000 && admitted > 500, "{on_fast_path} on the fast path, {admitted} admitted");
}
