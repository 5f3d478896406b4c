//! Tests of `on_fault: local`: the admissions of a node while the store does not answer.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use support::{
    FlakyStore, Memory, START, TestBench, memory_store, outcome_text, poll_once, unavailable_error, unknown_error,
};
use tollgate::clock::ManualClock;
use tollgate::core::{Cost, Nanos};
use tollgate::{Limits, Outcome, Retry};
use tollgate_engine::store::{Answers, Batch, StoreError};
use tollgate_engine::{Attribute, Decisions, Exactness, Item, Request, Store};

const UNTIL_RECOVERY: usize = usize::MAX;

fn test_bench(rules: &str, nodes: u32) -> TestBench<FlakyStore> {
    let clock = Arc::new(ManualClock::at(START));
    let bench = TestBench::on_store(FlakyStore::new(&clock), clock, rules);
    bench.engine.set_node_count(nodes);
    bench
}

fn stall_store(bench: &TestBench<FlakyStore>) {
    bench.engine.store().fail_times(unavailable_error(), UNTIL_RECOVERY);
}

/// Checks a request with this cost and asserts that the fallback decides it.
#[track_caller]
fn check_in_fallback(bench: &mut TestBench<FlakyStore>, cost: u64) -> String {
    bench.decide(&[], Some(cost), |decision| {
        assert_eq!(decision.exactness(), Exactness::Fallback);
        outcome_text(decision.outcome())
    })
}

/// Returns the number of requests of cost 1 that the fallback admits before the first refusal, and that refusal.
fn count_admitted_by_fallback(bench: &mut TestBench<FlakyStore>) -> (u64, String) {
    for count in 0..100_000 {
        let said = check_in_fallback(bench, 1);
        if said != "allow" {
            return (count, said);
        }
    }
    panic!("the fallback admits every request");
}

#[test]
fn key_with_little_usage_is_admitted_during_a_stall() {
    for (limit, left) in [("10k/month", 9_999), ("1000/day", 999), ("200/h", 199), ("60/m", 59)] {
        for algorithm in ["fixed_window", "token_bucket", "sliding_window", "sliding_slices", "interval_bucket"] {
            if limit.ends_with("month") && algorithm != "fixed_window" {
                continue;
            }
            let mut bench = test_bench(&format!("- {{id: r, limit: {limit}, algorithm: {algorithm}}}\n"), 1);
            assert_eq!(bench.check(&[]), "allow");
            stall_store(&bench);
            assert_eq!(count_admitted_by_fallback(&mut bench).0, left, "{limit} {algorithm}");
        }
    }
}

#[test]
fn two_nodes_share_the_remaining_amount() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 2);
    assert_eq!(bench.check_cost(&[], 201), "allow");
    stall_store(&bench);
    assert_eq!(
        count_admitted_by_fallback(&mut bench),
        (400, "deny 7.2s".into()),
        "half of 799, refilled at half the rate"
    );
}

#[test]
fn unknown_key_gets_its_share_of_the_full_burst() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 3);
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 334);
}

#[test]
fn share_of_one_token_is_one_and_share_of_zero_is_zero() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 5);
    assert_eq!(bench.check_cost(&[], 999), "allow");
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 1);
    bench.engine.store().recover();
    assert_eq!(bench.check(&[]), "deny 3.6s", "the last token was spent");
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench), (0, "deny 18s".into()));
}

#[test]
fn time_since_the_last_answer_refills_the_limit() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 2);
    assert_eq!(bench.check_cost(&[], 1_000), "allow");
    bench.advance(Nanos::from_secs(1_800));
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 250, "half of the 500 remaining by then");
}

#[test]
fn share_depends_on_the_node_count_at_the_stall() {
    let mut bench = test_bench("- {id: r, limit: 1000/day, algorithm: fixed_window}\n", 1);
    assert_eq!(bench.check_cost(&[], 600), "allow");
    bench.engine.set_node_count(4);
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 100);
}

#[test]
fn fallback_windows_end_with_the_store_windows() {
    // Each stall begins in the middle of a window.
    for (phase, limit, wait) in
        [("first_request", "100/m", "40s"), ("epoch", "100/m", "40s"), ("epoch", "100/h", "2780s")]
    {
        let rules = format!("- {{id: r, limit: {limit}, algorithm: fixed_window, phase: {phase}}}\n");
        let mut bench = test_bench(&rules, 2);
        // START is 1,700,000,000 s after the epoch: 20 s into a minute and 800 s into an hour.
        if phase == "first_request" {
            bench.check(&[]);
            bench.advance(Nanos::from_secs(20));
        }
        bench.check_cost(&[], if phase == "first_request" { 59 } else { 60 });
        stall_store(&bench);
        if limit.ends_with('h') {
            bench.advance(Nanos::from_secs(20));
        }
        let (count, refusal) = count_admitted_by_fallback(&mut bench);
        assert_eq!((count, refusal), (20, format!("deny {wait}")), "{phase} {limit}");
        let wait = if limit.ends_with('h') { 2_780 } else { 40 };
        bench.advance(Nanos::from_nanos(wait * 1_000_000_000 - 1));
        assert_eq!(check_in_fallback(&mut bench, 1), "deny 1ns", "{phase} {limit}");
        bench.advance(Nanos::from_nanos(1));
        assert_eq!(count_admitted_by_fallback(&mut bench).0, 50, "a share of the whole window, {phase} {limit}");
    }
}

#[test]
fn spread_window_keeps_the_boundary_that_the_store_reported() {
    let mut bench = test_bench("- {id: r, limit: 100/h, algorithm: fixed_window, phase: spread}\n", 1);
    let reset = bench.decide(&[], Some(90), |decision| decision.reports().next().map(|it| it.report.reset));
    stall_store(&bench);
    let (count, refusal) = count_admitted_by_fallback(&mut bench);
    assert_eq!((count, refusal), (10, outcome_text(Outcome::Deny(Retry::After(reset.unwrap_or_default())))));
}

#[test]
fn calendar_windows_keep_their_boundaries() {
    let mut bench = test_bench("- {id: r, limit: 100/month, algorithm: fixed_window, zone: Europe/Paris}\n", 2);
    assert_eq!(bench.check_cost(&[], 91), "allow");
    stall_store(&bench);
    // START is 2023-11-14 22:13:20 UTC; the month ends in Paris at 2023-11-30 23:00:00 UTC.
    assert_eq!(count_admitted_by_fallback(&mut bench), (5, "deny 1385200s".into()));
    bench.advance(Nanos::from_secs(1_385_200));
    assert_eq!(count_admitted_by_fallback(&mut bench), (50, "deny 2678400s".into()), "December has 31 days");
}

#[test]
fn second_stall_grants_no_new_share() {
    let mut bench = test_bench("- {id: r, per: [k], limit: 1000/day}\n- {id: other, limit: 1000000/s}\n", 2);
    let attributes = [("k", "a")];
    let check = |bench: &mut TestBench<FlakyStore>| bench.check(&attributes);
    assert_eq!(check(&mut bench), "allow");
    stall_store(&bench);
    for _ in 0..500 {
        assert_eq!(check(&mut bench), "allow");
    }
    assert_ne!(check(&mut bench), "allow");
    // The store answers for another key only.
    bench.engine.store().recover();
    assert_eq!(bench.check(&[("k", "b")]), "allow");
    stall_store(&bench);
    assert_ne!(check(&mut bench), "allow");
    // A newer answer for this key replaces the state of the fallback. Then 1 + 500 tokens are used.
    bench.engine.store().recover();
    assert_eq!(check(&mut bench), "allow");
    stall_store(&bench);
    for _ in 0..249 {
        assert_eq!(check(&mut bench), "allow");
    }
    assert_ne!(check(&mut bench), "allow");
}

#[test]
fn arrears_are_charged_before_the_next_request() {
    for limit in LIMITS_OF_100 {
        let mut bench = test_bench(&format!("- {{id: r, {limit}}}\n"), 1);
        assert!(!bench.check_cost(&[], 50).starts_with("deny"), "{limit}");
        stall_store(&bench);
        for _ in 0..30 {
            assert!(!check_in_fallback(&mut bench, 1).starts_with("deny"), "{limit}");
        }
        bench.engine.store().recover();
        let admitted = (0..100).take_while(|_| !bench.check(&[]).starts_with("deny")).count();
        assert_eq!(admitted, 20, "50 + 30 of 100 are used: {limit}");
    }
}

#[test]
fn repay_charges_keys_without_further_requests() {
    let mut bench = test_bench("- {id: r, per: [k], limit: 100/day}\n", 1);
    stall_store(&bench);
    for key in ["a", "b", "c"] {
        (0..40).for_each(|_| assert_eq!(bench.check(&[("k", key)]), "allow"));
    }
    // This repayment gets no answer, but no arrears are lost.
    poll_once(bench.engine.repay());
    bench.engine.store().recover();
    poll_once(bench.engine.repay());
    for key in ["a", "b", "c"] {
        assert_eq!(bench.remaining(&[("k", key)]), [60], "{key}");
    }
    poll_once(bench.engine.repay());
    assert_eq!(bench.remaining(&[("k", "a")]), [60], "charged once");
}

/// A store with several servers. The server of keys that contain `dead` never recovers.
struct PartlyDownStore {
    memory: Memory,
    is_down: AtomicBool,
    /// The number of groups that were answered.
    answered: AtomicU32,
}

impl Store for PartlyDownStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        for group in batch.groups {
            let is_dead = group.charges.iter().any(|charge| charge.key.windows(4).any(|part| part == b"dead"));
            if is_dead || self.is_down.load(Ordering::Relaxed) {
                answers.fail_group(unavailable_error());
            } else {
                self.answered.fetch_add(1, Ordering::Relaxed);
                self.memory.answer_batch(Batch { groups: std::slice::from_ref(group), ..batch }, answers);
            }
        }
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }
}

#[test]
fn keys_of_a_dead_server_do_not_block_other_repayments() {
    let clock = Arc::new(ManualClock::at(START));
    let (is_down, answered) = (AtomicBool::new(true), AtomicU32::new(0));
    let store = PartlyDownStore { memory: memory_store(&clock), is_down, answered };
    let mut bench = TestBench::on_store(store, clock, "- {id: r, per: [k], limit: 100/day}\n");
    let keys: Vec<String> = (0..200).map(|n| if n % 10 == 0 { format!("dead{n}") } else { n.to_string() }).collect();
    keys.iter().for_each(|key| assert_eq!(bench.check(&[("k", key)]), "allow"));
    bench.engine.store().is_down.store(false, Ordering::Relaxed);
    poll_once(bench.engine.repay());
    assert_eq!(bench.engine.store().answered.load(Ordering::Relaxed), 180, "one answer per live key");
}

#[test]
fn shortfall_of_a_reservation_is_charged_in_the_calendar_window() {
    let mut bench = test_bench("- {id: r, limit: 100/month, algorithm: fixed_window}\n", 1);
    stall_store(&bench);
    let receipt = bench.decide(&[], Some(10), |decision| decision.receipt());
    assert_eq!(poll_once(bench.engine.commit(&receipt, Cost::new(15))).map(|settled| settled.charged.get()), Ok(5));
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [85]);
    bench.advance(Nanos::from_secs(1_388_800));
    assert_eq!(bench.remaining(&[]), [100], "the month has ended");
}

#[test]
fn excess_of_a_stall_becomes_debt_in_the_store() {
    const RULES: &str = "- {id: r, limit: 90/m}\n";
    let clock = Arc::new(ManualClock::at(START));
    let store = Arc::new(FlakyStore::new(&clock));
    let (mut one, mut other) =
        (TestBench::on_store(store.clone(), clock.clone(), RULES), TestBench::on_store(store.clone(), clock, RULES));
    one.engine.set_node_count(3);
    // One node sees a full bucket, and another node uses it up.
    assert_eq!(one.check_cost(&[], 0), "allow");
    assert_eq!(other.check_cost(&[], 90), "allow");
    store.fail_times(unavailable_error(), UNTIL_RECOVERY);
    assert_eq!((0..100).take_while(|_| one.check(&[]) == "allow").count(), 30);
    store.recover();
    // The usage is 120 and the capacity is 90, so there is a debt of 30. One more token has to refill.
    assert_eq!(one.check(&[]), "deny 20.666666667s");
    one.advance(Nanos::from_secs(21));
    assert_eq!(one.check(&[]), "allow");
}

#[test]
fn amount_that_refills_during_the_stall_is_not_charged() {
    let mut bench = test_bench("- {id: r, limit: 100/m}\n", 1);
    assert_eq!(bench.check_cost(&[], 100), "allow");
    stall_store(&bench);
    for _ in 0..60 {
        bench.advance(Nanos::from_secs(6));
        (0..10).for_each(|_| assert_eq!(check_in_fallback(&mut bench, 1), "allow"));
    }
    assert_ne!(check_in_fallback(&mut bench, 1), "allow");
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [0], "after the first 100, 600 refilled and were spent in six minutes");
    bench.advance(Nanos::from_secs(6));
    assert_eq!(bench.remaining(&[]), [10]);
}

#[test]
fn key_with_several_limits_is_charged_the_smallest_arrears() {
    let mut bench = test_bench("- {id: r, limits: [10/s, 1000/day]}\n", 1);
    stall_store(&bench);
    for _ in 0..5 {
        (0..10).for_each(|_| assert_eq!(check_in_fallback(&mut bench, 1), "allow"));
        bench.advance(Nanos::SECOND);
    }
    (0..4).for_each(|_| assert_eq!(check_in_fallback(&mut bench, 1), "allow"));
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [6, 996], "the arrears of the 10/s bucket are 4 of 54");
}

#[test]
fn refund_and_reset_reduce_arrears() {
    let mut bench = test_bench("- {id: r, per: [k], limit: 100/day}\n", 1);
    stall_store(&bench);
    let receipt = bench.decide(&[("k", "a")], Some(40), |decision| decision.receipt());
    assert_eq!(bench.check_cost(&[("k", "a")], 10), "allow");
    assert_eq!(poll_once(bench.engine.refund(&receipt)).map(Cost::get), Ok(40));
    assert_eq!(bench.check_cost(&[("k", "b")], 10), "allow");
    bench.engine.store().recover();
    let attributes = [Attribute::new("k", "b")];
    let items = [Item::new(&attributes)];
    assert_eq!(poll_once(bench.engine.reset(&Request::new("d", &items), &mut Decisions::default())), Ok(1));
    assert_eq!((bench.remaining(&[("k", "a")]), bench.remaining(&[("k", "b")])), (vec![90], vec![100]));
}

#[test]
fn slots_cause_no_arrears() {
    let mut bench = test_bench("- {id: r, limit: 10, algorithm: concurrency, lease: 1m}\n", 1);
    stall_store(&bench);
    assert_eq!(check_in_fallback(&mut bench, 6), "allow");
    bench.engine.store().recover();
    assert_eq!(bench.remaining(&[]), [10]);
}

#[test]
fn arrears_are_not_sent_while_the_last_outcome_is_unknown() {
    let mut bench = test_bench("- {id: r, per: [k], limit: 100/day}\n", 1);
    let a = [("k", "a")];
    assert_eq!(bench.check(&a), "allow");
    stall_store(&bench);
    assert_eq!(bench.check_cost(&a, 2), "allow");
    // The next two requests get no answer from the store, so the fallback admits them. Arrears sent with them would
    // count as charged.
    bench.engine.store().fail_times(unknown_error(), 2);
    assert_eq!(bench.check(&[("k", "b")]), "allow");
    assert_eq!(bench.check(&a), "allow");
    assert_eq!(bench.check(&a), "allow");
    assert_eq!(bench.check(&a), "allow");
    assert_eq!(bench.remaining(&a), [95], "1 before the stall, 2 during it, and 2 after it");
}

#[test]
fn request_with_unknown_outcome_causes_no_arrears() {
    // One of two rules suffices: the fallback decides a second time, without the exhausted rule.
    let several = "- {id: r, limit: 100/day, suffices: true}\n- {id: s, limit: 1/day, suffices: true}\n";
    for rules in ["- {id: r, limit: 100/day}\n", several] {
        for is_carried_out in [true, false] {
            let mut bench = test_bench(rules, 1);
            assert_eq!(bench.check(&[]), "allow");
            bench.engine.store().executes_failed_batches.store(is_carried_out, Ordering::Relaxed);
            bench.engine.store().fail_times(unknown_error(), 3);
            (0..3).for_each(|_| assert_eq!(check_in_fallback(&mut bench, 1), "allow"));
            poll_once(bench.engine.repay());
            let charged = if is_carried_out && rules != several { 3 } else { 0 };
            assert_eq!(bench.remaining(&[])[0], 99 - charged, "{rules}, {is_carried_out}");
        }
    }
}

#[test]
fn rejected_request_causes_no_arrears() {
    let mut bench = test_bench("- {id: r, limit: 100/day}\n", 1);
    assert_eq!(bench.check(&[]), "allow");
    bench.engine.store().fail_times(StoreError::Rejected { why: "not a counter".into() }, 30);
    (0..30).for_each(|_| assert_eq!(check_in_fallback(&mut bench, 1), "allow"));
    assert_eq!(bench.remaining(&[]), [99]);
}

#[test]
fn cost_above_the_share_is_admitted_once_into_debt() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 4);
    assert_eq!(bench.check_cost(&[], 400), "allow");
    stall_store(&bench);
    // 600 tokens remain, and the share is 150.
    assert_eq!(check_in_fallback(&mut bench, 400), "allow");
    // The wait refills the debt of 250 tokens and one more token, at 250 per hour.
    assert_eq!(check_in_fallback(&mut bench, 1), "deny 3614.4s");
    assert_ne!(check_in_fallback(&mut bench, 400), "allow");
}

#[test]
fn cost_above_the_remaining_amount_is_refused() {
    for nodes in [1, 4] {
        let mut bench = test_bench("- {id: r, limit: 1000/h}\n", nodes);
        assert_eq!(bench.check_cost(&[], 400), "allow");
        stall_store(&bench);
        assert_ne!(check_in_fallback(&mut bench, 601), "allow");
        assert_eq!(check_in_fallback(&mut bench, 1_001), "deny for ever");
        assert_eq!(check_in_fallback(&mut bench, 600), "allow");
    }
}

#[test]
fn amount_spent_by_the_node_is_not_available_again() {
    let mut bench = test_bench("- {id: r, limit: 1000/h}\n", 2);
    assert_eq!(bench.check_cost(&[], 400), "allow");
    stall_store(&bench);
    for _ in 0..200 {
        assert_eq!(check_in_fallback(&mut bench, 1), "allow");
    }
    // 600 tokens remained, and this node has spent 200 tokens.
    assert_ne!(check_in_fallback(&mut bench, 401), "allow");
    assert_eq!(check_in_fallback(&mut bench, 400), "allow");
}

/// Limits of every algorithm except `concurrency`, each with a smallest capacity of 100. The tests use 50 tokens before
/// the stall.
const LIMITS_OF_100: [&str; 9] = [
    "limit: 100/m",
    "limit: 100/m, algorithm: leaky_bucket, free: 100",
    "limit: 100/m, algorithm: interval_bucket",
    "limit: 100/m, algorithm: fixed_window",
    "limit: 100/m, algorithm: fixed_window, phase: first_request",
    "limit: 100/m, algorithm: sliding_window",
    "limit: 100/m, algorithm: sliding_slices",
    "limit: 100/m, algorithm: sliding_log",
    "limits: [100/m, {limit: 1000/day, algorithm: fixed_window}]",
];

#[test]
fn request_passes_after_the_reported_wait() {
    for limit in LIMITS_OF_100 {
        for cost in [1, 7, 40] {
            let mut bench = test_bench(&format!("- {{id: r, {limit}}}\n"), 3);
            bench.check_cost(&[], 50);
            stall_store(&bench);
            for round in 0..20 {
                let mut said = Outcome::Allow;
                while said.is_admitted() {
                    said = bench.decide(&[], Some(cost), |decision| decision.outcome());
                }
                let Outcome::Deny(Retry::After(wait)) = said else { panic!("{limit}, cost {cost}: {said:?}") };
                bench.advance(wait);
                assert_eq!(
                    check_in_fallback(&mut bench, cost),
                    "allow",
                    "{limit}, cost {cost}, round {round}, after {wait}"
                );
            }
        }
    }
}

#[test]
fn every_algorithm_grants_a_share_of_the_remaining_amount() {
    for limit in LIMITS_OF_100 {
        let mut bench = test_bench(&format!("- {{id: r, {limit}}}\n"), 3);
        assert!(!bench.check_cost(&[], 50).starts_with("deny"), "{limit}");
        stall_store(&bench);
        let mut count = 0;
        while !check_in_fallback(&mut bench, 1).starts_with("deny") {
            count += 1;
        }
        assert_eq!(count, 17, "a third of 50: {limit}");
    }
}

#[test]
fn slots_held_in_the_store_are_not_free_in_the_fallback() {
    let mut bench = test_bench("- {id: r, limit: 10, algorithm: concurrency, lease: 1m}\n", 2);
    let receipt = bench.decide(&[], Some(6), |decision| decision.receipt());
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench), (2, "deny until release".into()), "half of the four free slots");
    bench.engine.store().recover();
    assert_eq!(poll_once(bench.engine.refund(&receipt)).map(Cost::get), Ok(6));
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 5, "the store reported the released slots");
    // Slots that are never released become free when their leases expire.
    bench.advance(Nanos::from_secs(60));
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 5);
}

#[test]
fn reset_key_has_a_share_of_the_full_limit() {
    let mut bench = test_bench("- {id: r, limit: 100/day}\n", 2);
    assert_eq!(bench.check_cost(&[], 100), "allow");
    let items = [Item::default()];
    assert_eq!(poll_once(bench.engine.reset(&Request::new("d", &items), &mut Decisions::default())), Ok(1));
    stall_store(&bench);
    assert_eq!(count_admitted_by_fallback(&mut bench).0, 50);
}

#[test]
fn override_in_the_fallback_includes_usage_under_other_limits() {
    let rules = "- {id: r, limit: 100/day, overrides: [{when: {plan: pro}, limit: 1000/day}]}\n";
    let pro = [("plan", "pro")];
    // The store's last answer is either for the limits that were charged, or for smaller limits with nothing remaining.
    for refused_in_the_store in [false, true] {
        let mut bench = test_bench(rules, 2);
        assert_eq!(bench.check_cost(&pro, 600), "allow");
        if refused_in_the_store {
            assert_ne!(bench.check(&[]), "allow", "600 are spent under a limit of 100");
        }
        stall_store(&bench);
        assert_ne!(bench.check(&[]), "allow", "a refused request changes nothing");
        let count = (0..1_000).take_while(|_| bench.check(&pro) == "allow").count();
        assert_eq!(count, 200, "half of the remaining 400");
        assert_ne!(bench.check(&[]), "allow");
    }
}
