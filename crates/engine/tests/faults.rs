//! Tests of store failures and `on_fault`.

use crate::support;

use std::sync::Arc;

use support::{
    FlakyStore, START, TestBench, outcome_text, parse_limits, poll_once, stale_error, unavailable_error, unknown_error,
};
use tollgate::clock::ManualClock;
use tollgate::core::{Nanos, Time};
use tollgate_engine::store::StoreError;
use tollgate_engine::{Decisions, Enforcement, EngineError, Exactness, Item, Receipt, Request};

const UNTIL_RECOVERY: usize = usize::MAX;

fn test_bench(rules: &str) -> TestBench<FlakyStore> {
    let clock = Arc::new(ManualClock::at(START));
    TestBench::on_store(FlakyStore::new(&clock), clock, rules)
}

fn check_with_exactness(bench: &mut TestBench<FlakyStore>) -> (String, Exactness) {
    bench.decide(&[], None, |decision| (outcome_text(decision.outcome()), decision.exactness()))
}

#[test]
fn rule_with_on_fault_open_admits_every_request() {
    let mut bench = test_bench("- {id: r, limit: 1/m, on_fault: open}\n");
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    for _ in 0..10 {
        assert_eq!(check_with_exactness(&mut bench), ("allow".into(), Exactness::Fallback));
    }
    bench.engine.store().recover();
    assert_eq!(
        check_with_exactness(&mut bench),
        ("allow".into(), Exactness::Exact),
        "nothing was spent during the outage"
    );
    let counts = bench.engine.counts();
    assert_eq!((counts.fallback, counts.unavailable, counts.allowed), (10, 10, 11));
    assert_eq!(bench.engine.rules().rules()[0].meter().counts().fallback, 10);
}

#[test]
fn rule_with_on_fault_closed_refuses_every_request() {
    let mut bench =
        test_bench("- {id: open, limit: 1/m, on_fault: open}\n- {id: r, limit: 9/m, on_fault: closed, status: 402}\n");
    bench.engine.store().fail_times(unknown_error(), UNTIL_RECOVERY);
    bench.decide(&[], None, |decision| {
        assert!(decision.is_refused_by_fault() && decision.refusal().is_none(), "no limit was exceeded");
        assert_eq!((outcome_text(decision.outcome()), decision.exactness()), ("deny 1s".into(), Exactness::Fallback));
        assert_eq!(decision.rule(), Some("r"));
        assert!(decision.receipt().is_empty());
    });
    assert_eq!(bench.engine.counts().unknown, 1);
    bench.engine.set_enforcement(Enforcement::Observe);
    bench.decide(&[], None, |decision| assert!(decision.is_admitted() && !decision.is_refused_by_fault()));
    bench.engine.set_enforcement(Enforcement::Enforce);
    bench.engine.store().recover();
    // Requests above a limit are still refused as usual.
    bench.decide(&[], Some(10), |decision| {
        assert!(!decision.is_refused_by_fault() && !decision.is_admitted());
    });
}

#[test]
fn rule_with_on_fault_local_admits_its_share() {
    let mut bench = test_bench("- {id: r, limit: 4/s, burst: 40}\n");
    bench.engine.set_node_count(2);
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    // The share is half of the burst, refilled at 2/s, which is half of the rate.
    for _ in 0..20 {
        assert_eq!(check_with_exactness(&mut bench), ("allow".into(), Exactness::Fallback));
    }
    assert_eq!(check_with_exactness(&mut bench), ("deny 500ms".into(), Exactness::Fallback));
    bench.advance(Nanos::from_secs(2));
    assert_eq!((0..10).filter(|_| check_with_exactness(&mut bench).0 == "allow").count(), 4);
    // An answer from the store replaces the fallback's state. The store is charged for the 20 used tokens of the share,
    // and for this request.
    bench.engine.store().recover();
    assert_eq!(check_with_exactness(&mut bench), ("allow".into(), Exactness::Exact));
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!((0..30).filter(|_| check_with_exactness(&mut bench).0 == "allow").count(), 10);
    // The share is computed again for the new node count, and its usage is kept.
    bench.engine.set_node_count(1);
    assert_eq!(check_with_exactness(&mut bench).1, Exactness::Fallback);
}

#[test]
fn local_rules_are_charged_together_or_not_at_all() {
    let mut bench =
        test_bench("- {id: a, limit: 1/m}\n- {id: b, limit: 100/s, per: [x]}\n- {id: c, limit: 1/m, on_fault: open}\n");
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!(bench.check_cost(&[], 1), "allow");
    for _ in 0..3 {
        assert_eq!(bench.check_cost(&[], 1), "deny 60s");
    }
    assert_eq!(bench.remaining(&[]), [0, 99]);
}

#[test]
fn receipt_of_the_fallback_is_refunded_to_the_fallback() {
    let mut bench = test_bench("- {id: r, limit: 1/m}\n");
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    let receipt = bench.decide(&[], None, |decision| decision.receipt());
    let receipt: Receipt = receipt.to_string().parse().unwrap();
    assert_eq!(bench.check(&[]), "deny 60s");
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 1);
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [1], "the refunded amount is not charged to the store");
}

#[test]
fn refunds_and_resets_report_store_failures() {
    let mut bench = test_bench("- {id: r, limit: 9/m}\n");
    let receipt = bench.decide(&[], None, |decision| decision.receipt());
    bench.engine.store().fail_times(unknown_error(), UNTIL_RECOVERY);
    assert_eq!(poll_once(bench.engine.refund(&receipt)), Err(EngineError::Store(unknown_error())));
    let items = [Item::default()];
    let reset = poll_once(bench.engine.reset(&Request::new("d", &items), &mut Decisions::default()));
    assert_eq!(reset, Err(EngineError::Store(unknown_error())));
}

#[test]
fn reset_discards_usage_of_the_fallback() {
    let mut bench = test_bench("- {id: r, limit: 1/m}\n");
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!((bench.check(&[]), bench.check(&[])), ("allow".into(), "deny 60s".into()));
    bench.engine.store().recover();
    let items = [Item::default()];
    assert_eq!(poll_once(bench.engine.reset(&Request::new("d", &items), &mut bench.decisions)), Ok(1));
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!(bench.check(&[]), "allow");
}

#[test]
fn stale_windows_are_retried_once() {
    let mut bench = test_bench("- {id: r, limit: 2/m}\n");
    bench.engine.store().fail_times(stale_error(), 1);
    assert_eq!(check_with_exactness(&mut bench), ("allow".into(), Exactness::Exact));
    assert_eq!(bench.remaining(&[]), [1]);
    bench.engine.store().fail_times(stale_error(), 2);
    assert_eq!(check_with_exactness(&mut bench).1, Exactness::Fallback);
    assert_eq!(bench.engine.counts().stale, 3);
}

#[test]
fn only_failed_groups_of_a_batch_fall_back() {
    /// A store that fails every other group.
    struct HalfFailingStore(support::Memory);
    impl tollgate_engine::Store for HalfFailingStore {
        async fn run(&self, batch: tollgate_engine::store::Batch<'_>, answers: &mut tollgate_engine::store::Answers) {
            for (place, group) in batch.groups.chunks(1).enumerate() {
                if place % 2 == 0 {
                    self.0.answer_batch(tollgate_engine::store::Batch { groups: group, ..batch }, answers);
                } else {
                    answers.fail_group(StoreError::Rejected { why: "odd".into() });
                }
            }
        }
        fn check_limits(&self, _: &tollgate::Limits) -> Result<(), String> {
            Ok(())
        }
    }
    let clock = Arc::new(ManualClock::at(START));
    let bench = TestBench::on_store(HalfFailingStore(support::memory_store(&clock)), clock, "- {id: r, limit: 4/m}\n");
    let items = [Item::default()];
    let requests = [Request::new("d", &items); 6];
    let mut decisions = Decisions::default();
    poll_once(bench.engine.check_batch(&requests, &mut decisions));
    let shown: Vec<_> = decisions
        .iter()
        .map(|decision| decision.map(|decision| (decision.is_admitted(), decision.exactness().as_str())).unwrap())
        .collect();
    assert_eq!(
        shown,
        [
            (true, "exact"),
            (true, "fallback"),
            (true, "exact"),
            (false, "fallback"),
            (true, "exact"),
            (false, "fallback")
        ]
    );
    assert_eq!(bench.engine.counts().rejected, 3);
}

#[test]
fn inline_limit_is_decided_locally() {
    let mut bench = test_bench("");
    let one = bench.engine.intern_limits(&parse_limits("1/m", None)).unwrap();
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!(bench.check_items(&[Item::inline("k", &one)]), Ok("allow".into()));
    assert_eq!(bench.check_items(&[Item::inline("k", &one)]), Ok("deny 60s".into()));
    assert!(bench.engine.intern_limits(&parse_limits("666/s", None)).is_err());
    assert_eq!(
        StoreError::Stale { store_time: Time::from_nanos(5_000_000_000) }.to_string(),
        "the calendar windows do not contain the store's time, 5 s"
    );
}

#[test]
fn shadow_rules_report_nothing_while_the_store_fails() {
    let mut bench = test_bench("- {id: s, limit: 1/m, on_exceed: shadow}\n- {id: r, limit: 60/m}\n");
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
    bench.decide(&[], None, |decision| {
        assert!(decision.is_admitted());
        assert!(decision.reports().all(|report| !report.shadow));
    });
}

#[test]
fn futures_may_be_sent_to_other_threads() {
    fn assert_send<T: Send>(_: T) {}
    let bench = test_bench("");
    let mut decisions = Decisions::default();
    assert_send(bench.engine.check(&Request::default(), &mut decisions));
    assert_send(bench.engine.refund(&Receipt::default()));
    assert_send(bench.engine.reset(&Request::default(), &mut Decisions::default()));
}
