//! Tests of rule changes at run time.

use crate::support;

use std::sync::Arc;
use support::{FlakyStore, TestBench, parse_rules, poll_once, test_bench};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate_engine::rules::{Rules, Source};

#[test]
fn changed_limits_keep_usage() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 10/m}\n");
    let user = [("user", "a")];
    assert_eq!(bench.check_cost(&user, 4), "allow");
    bench.put("- {id: r, per: [user], limit: 20/m}\n");
    assert_eq!(bench.remaining(&user), [16]);
    bench.put("- {id: r, per: [user], limit: 5/m}\n");
    assert_eq!(bench.remaining(&user), [1]);
    bench.put("- {id: r, per: [user], limit: 5/m, algorithm: fixed_window}\n");
    assert_eq!(bench.remaining(&user), [1]);
}

#[test]
fn usage_is_kept_when_states_change_length() {
    let mut bench = test_bench("- {id: r, limit: 10/m}\n");
    assert_eq!(bench.check_cost(&[], 4), "allow");
    let changes = [
        ("limits: [10/m, {limit: 100/day, algorithm: fixed_window}]", vec![6, 100]),
        ("limits: [{limit: 10/m, algorithm: sliding_log}, {limit: 100/day, algorithm: fixed_window}]", vec![6, 100]),
        ("limits: [{limit: 500/m, algorithm: sliding_log}]", vec![496]),
        ("limits: [{limit: 8/m, algorithm: sliding_window}]", vec![4]),
        ("limits: [{limit: 1000/m, algorithm: sliding_log}, 20/m]", vec![996, 20]),
        ("limits: [5/m, 30/m]", vec![1, 30]),
    ];
    for (change, expected) in changes {
        bench.put(&format!("- {{id: r, {change}}}\n"));
        assert_eq!(bench.remaining(&[]), expected, "after {change}");
    }
    // Counting continues from the kept usage.
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 12s");
    assert_eq!(bench.remaining(&[]), [0, 29]);
}

#[test]
fn removed_rule_that_is_added_again_keeps_its_usage() {
    let mut bench = test_bench("- {id: r, limit: 10/m}\n");
    assert_eq!(bench.check_cost(&[], 4), "allow");
    bench.put("- {id: other, limit: 10/m}\n");
    bench.put("- {id: r, limit: 12/m}\n");
    assert_eq!(bench.remaining(&[]), [8]);
}

#[test]
fn rule_with_another_id_or_per_has_another_counter() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 10/m}\n");
    assert_eq!(bench.check_cost(&[("user", "a")], 4), "allow");
    bench.put("- {id: s, per: [user], limit: 10/m}\n- {id: r, per: [group], limit: 10/m}\n");
    assert_eq!(bench.remaining(&[("user", "a"), ("group", "a")]), [10, 10]);
}

#[test]
fn changed_conditions_and_cost_keep_usage() {
    let mut bench = test_bench("- {id: r, per: [user], limit: 10/m}\n");
    assert_eq!(bench.check_cost(&[("user", "a")], 4), "allow");
    bench.put("- {id: r, when: {path: /x}, per: [user], limit: 10/m, cost: 2, on_fault: open}\n");
    assert!(bench.remaining(&[("user", "a")]).is_empty());
    assert_eq!(bench.remaining(&[("user", "a"), ("path", "/x")]), [6]);
}

#[test]
fn receipt_is_valid_after_a_rule_change() {
    let mut bench = test_bench("- {id: r, limit: 10/m}\n");
    let receipt = bench.decide(&[], Some(4), |decision| decision.receipt());
    bench.put("- {id: r, limit: 20/m}\n");
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 4);
    assert_eq!(bench.remaining(&[]), [20]);
    bench.put("- {id: s, limit: 20/m}\n");
    assert_eq!(poll_once(bench.engine.refund(&receipt)).unwrap().get(), 0, "the rule was removed");
}

#[test]
fn invalid_rules_do_not_replace_the_running_rules() {
    let clock = Arc::new(ManualClock::at(support::START));
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, "- {id: r, limit: 1/m}\n");
    let version = bench.engine.rules().version();
    assert!(Rules::read(&[Source { name: "f", text: b"domain: d\nrules: [{id: r, limit: 5}]" }]).is_err());
    let mistakes = bench.engine.put(&parse_rules("- {id: r, limit: 5/m}\n- {id: evil, limit: 666/s}\n")).unwrap_err();
    assert_eq!(
        mistakes.to_string(),
        "rules:4:3: the store does not support the limits of `evil`: a limit of 666 is not supported"
    );
    assert_eq!(bench.engine.rules().version(), version);
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 60s");
}

#[test]
fn rules_are_replaced_during_decisions() {
    let bench = test_bench("- {id: r, limit: 1000000/day, burst: 1000000}\n");
    let (engine, clock) = (&bench.engine, &bench.clock);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..3 {
            threads.push(scope.spawn(move || {
                let mut decisions = tollgate_engine::Decisions::default();
                let items = [tollgate_engine::Item::default()];
                for _ in 0..3_000 {
                    let request = tollgate_engine::Request::new("d", &items);
                    assert!(poll_once(engine.check(&request, &mut decisions)).unwrap().is_admitted());
                }
            }));
        }
        for n in 0..60 {
            engine
                .put(&parse_rules(&format!("- {{id: r, limit: 1000000/day, burst: {}}}\n", 1_000_000 + n % 7)))
                .unwrap();
            clock.advance(Nanos::from_nanos(1));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let mut bench = bench;
    bench.put("- {id: r, limit: 1000000/day, burst: 1000000}\n");
    assert_eq!(bench.remaining(&[]), [1_000_000 - 9_000], "every decision was counted once");
}
