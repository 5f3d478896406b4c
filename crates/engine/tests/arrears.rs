//! Tests of arrears after the store recovers: refunds, debts, callers that give up, and a server that keeps failing.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use support::{FlakyStore, Memory, START, TestBench, memory_store, poll_once, unavailable_error, unknown_error};
use tollgate::Limits;
use tollgate::clock::ManualClock;
use tollgate::core::{Cost, Nanos};
use tollgate_engine::store::{Answers, Batch, StoreError, UnsentFlag};
use tollgate_engine::{Item, Request, Store};

const DAY: Nanos = Nanos::from_secs(86_400);

fn test_bench(rules: &str) -> TestBench<FlakyStore> {
    let clock = Arc::new(ManualClock::at(START));
    TestBench::on_store(FlakyStore::new(&clock), clock, rules)
}

fn stall_store(store: &FlakyStore) {
    store.fail_times(unavailable_error(), usize::MAX);
}

#[test]
fn refund_after_the_repayment_is_applied_in_the_store() {
    let limits = [
        "limit: 100/day",
        "limit: 100/day, algorithm: leaky_bucket, free: 100",
        "limit: 100/day, algorithm: interval_bucket",
        "limit: 100/day, algorithm: fixed_window",
        "limit: 100/day, algorithm: fixed_window, phase: first_request",
        "limit: 100/day, algorithm: sliding_window",
        "limit: 100/day, algorithm: sliding_slices",
        "limit: 100/day, algorithm: sliding_log",
        "limits: [100/day, {limit: 1000/week, algorithm: fixed_window}]",
    ];
    for limit in limits {
        let mut bench = test_bench(&format!("- {{id: r, {limit}}}\n"));
        let take =
            |bench: &mut TestBench<FlakyStore>, cost| bench.decide(&[], Some(cost), |decision| decision.receipt());
        let left = |bench: &mut TestBench<FlakyStore>| bench.remaining(&[])[0];
        stall_store(bench.engine.store());
        let receipt = take(&mut bench, 40);
        take(&mut bench, 10);
        bench.engine.store().recover();
        poll_once(bench.engine.repay());
        assert_eq!(left(&mut bench), 50, "{limit}");
        // A refund that was not sent can be repeated.
        stall_store(bench.engine.store());
        assert!(poll_once(bench.engine.refund(&receipt)).is_err(), "{limit}");
        bench.engine.store().recover();
        assert_eq!(poll_once(bench.engine.refund(&receipt)).map(Cost::get), Ok(40), "{limit}");
        assert_eq!(left(&mut bench), 90, "{limit}");
        // The store refunds at most the repaid amount.
        take(&mut bench, 20);
        (0..3).for_each(|_| drop(poll_once(bench.engine.refund(&receipt))));
        assert_eq!(left(&mut bench), 80, "{limit}");
    }
}

#[test]
fn smaller_commit_after_the_repayment_refunds_the_rest_in_the_store() {
    let mut bench = test_bench("- {id: r, limit: 100/day}\n");
    stall_store(bench.engine.store());
    let receipt = bench.decide(&[], Some(40), |decision| decision.receipt());
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [60]);
    assert_eq!(poll_once(bench.engine.commit(&receipt, Cost::new(15))).map(|settled| settled.refunded.get()), Ok(25));
    assert_eq!(bench.remaining(&[]), [85]);
}

#[test]
fn repeated_commits_into_debt_are_charged() {
    let mut bench = test_bench("- {id: r, limit: 10/day, max_debt: 40}\n");
    stall_store(bench.engine.store());
    let receipts: Vec<_> = (0..4).map(|_| bench.decide(&[], Some(1), |decision| decision.receipt())).collect();
    for receipt in &receipts {
        assert_eq!(poll_once(bench.engine.commit(receipt, Cost::new(11))).map(|settled| settled.charged.get()), Ok(10));
    }
    bench.engine.store().recover();
    // 44 tokens are used, although the capacity is 10.
    assert_eq!(bench.remaining(&[]), [0]);
    (0..3).for_each(|_| bench.advance(DAY));
    assert_eq!(bench.remaining(&[]), [0]);
    bench.advance(DAY);
    assert_eq!(bench.remaining(&[]), [6]);
}

#[test]
fn arrears_above_the_debt_limit_are_charged_later() {
    let clock = Arc::new(ManualClock::at(START));
    let store = Arc::new(FlakyStore::new(&clock));
    let mut nodes: Vec<_> =
        (0..5).map(|_| TestBench::on_store(store.clone(), clock.clone(), "- {id: r, limit: 10/day}\n")).collect();
    for node in &mut nodes {
        node.engine.set_node_count(5);
        assert_eq!(node.check_cost(&[], 0), "allow");
    }
    stall_store(&store);
    // Each node last saw 10 remaining tokens, so it admits the request.
    nodes.iter_mut().for_each(|node| assert_eq!(node.check_cost(&[], 10), "allow"));
    store.recover();
    // For arrears, the debt limit is raised, so the store accepts a usage of up to 30. The arrears of two nodes cannot
    // be charged yet.
    nodes.iter().for_each(|node| poll_once(node.engine.repay()));
    clock.advance(DAY);
    nodes.iter().for_each(|node| poll_once(node.engine.repay()));
    (0..2).for_each(|_| clock.advance(DAY));
    assert_eq!(nodes[0].remaining(&[]), [0], "more than 30 tokens were charged");
}

/// A memory store that can be unavailable, or can hang without answering.
struct HangingStore {
    memory: Memory,
    is_down: AtomicBool,
    hangs: AtomicBool,
    /// Whether batches count as sent while the store hangs.
    is_sent: bool,
}

/// When the store's future is dropped, reports that the batch was not sent.
struct UnsentBatch(Option<UnsentFlag>);

impl Drop for UnsentBatch {
    fn drop(&mut self) {
        self.0.iter().for_each(UnsentFlag::set);
    }
}

impl Store for HangingStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        if self.is_down.load(Ordering::Relaxed) {
            return batch.groups.iter().for_each(|_| answers.fail_group(unavailable_error()));
        }
        if self.hangs.load(Ordering::Relaxed) {
            let _unsent = UnsentBatch(answers.unsent_flag().filter(|_| !self.is_sent).cloned());
            std::future::pending::<()>().await;
        }
        self.memory.answer_batch(batch, answers);
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }
}

#[test]
fn arrears_of_a_caller_that_gives_up_are_kept_unless_they_were_sent() {
    for (is_sent, left) in [(false, 59), (true, 99)] {
        let clock = Arc::new(ManualClock::at(START));
        let (is_down, hangs) = (AtomicBool::new(true), AtomicBool::new(true));
        let store = HangingStore { memory: memory_store(&clock), is_down, hangs, is_sent };
        let mut bench = TestBench::on_store(store, clock, "- {id: r, limit: 100/day}\n");
        assert_eq!(bench.check_cost(&[], 40), "allow");
        bench.engine.store().is_down.store(false, Ordering::Relaxed);
        let items = [Item::default()];
        let request = Request::new("d", &items);
        let mut check = Box::pin(bench.engine.check(&request, &mut bench.decisions));
        assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(check);
        bench.engine.store().hangs.store(false, Ordering::Relaxed);
        assert_eq!(bench.check(&[]), "allow");
        assert_eq!(bench.remaining(&[]), [left], "sent: {is_sent}");
    }
}

/// A store with two servers. Keys that contain `dead` are on the server that always fails.
struct StoreWithFailingServer {
    memory: Memory,
    is_down: AtomicBool,
    error: StoreError,
}

fn is_on_failing_server(text: &[u8]) -> bool {
    text.windows(4).any(|part| part == b"dead")
}

impl Store for StoreWithFailingServer {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        for group in batch.groups {
            if self.is_down.load(Ordering::Relaxed) {
                answers.fail_group(unavailable_error());
            } else if group.charges.iter().any(|charge| is_on_failing_server(charge.key)) {
                answers.fail_group(self.error.clone());
            } else {
                self.memory.answer_batch(Batch { groups: std::slice::from_ref(group), ..batch }, answers);
            }
        }
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }

    fn place_of(&self, partition_key: &[u8]) -> usize {
        is_on_failing_server(partition_key).into()
    }
}

#[test]
fn failing_server_does_not_delay_repayments_to_the_other_server() {
    for error in [unavailable_error(), unknown_error()] {
        let clock = Arc::new(ManualClock::at(START));
        let store = StoreWithFailingServer { memory: memory_store(&clock), is_down: AtomicBool::new(true), error };
        let mut bench = TestBench::on_store(store, clock, "- {id: r, per: [k], limit: 100/day}\n");
        let keys: Vec<String> = (0..400).map(|n| if n < 300 { format!("dead{n}") } else { n.to_string() }).collect();
        keys.iter().for_each(|key| assert_eq!(bench.check_cost(&[("k", key)], 40), "allow"));
        bench.engine.store().is_down.store(false, Ordering::Relaxed);
        // With `unknown_error`, the failing server may have executed this request.
        assert_eq!(bench.check(&[("k", "dead")]), "allow");
        assert_eq!(bench.remaining(&[("k", "399")]), [60], "the next request charges the arrears");
        poll_once(bench.engine.repay());
        let memory = bench.engine.store();
        memory.is_down.store(true, Ordering::Relaxed);
        poll_once(bench.engine.repay());
        memory.is_down.store(false, Ordering::Relaxed);
        for key in &keys[300..] {
            assert_eq!(bench.remaining(&[("k", key)]), [60], "repay charges the arrears once");
        }
    }
}
