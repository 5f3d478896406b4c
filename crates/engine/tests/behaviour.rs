//! Tests costs, and the treatment of requests above the limits.

use crate::support;

use std::sync::Arc;

use support::{START, TestBench, memory_store, test_bench};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;

#[test]
fn cost_comes_from_an_attribute() {
    let mut bench = test_bench("- {id: r, limit: 1000/m, cost: {from: bytes, max: 500, missing: 7}}\n");
    let weighs = |bench: &mut TestBench, value: Option<&str>| {
        let before = bench.remaining(&[])[0];
        let attributes: Vec<(&str, &str)> = value.map(|value| ("bytes", value)).into_iter().collect();
        bench.decide(&attributes, None, |decision| assert!(decision.is_admitted()));
        before - bench.remaining(&[])[0]
    };
    assert_eq!(weighs(&mut bench, Some("12")), 12);
    assert_eq!(weighs(&mut bench, None), 7);
    assert_eq!(weighs(&mut bench, Some("0")), 0);
    for garbled in ["501", "-1", "1e3", "", "99999999999999999999999"] {
        let mut bench = test_bench("- {id: r, limit: 1000/m, cost: {from: bytes, max: 500, missing: 7}}\n");
        assert_eq!(weighs(&mut bench, Some(garbled)), 500, "for {garbled:?}");
    }
    // A request may state its own cost.
    assert_eq!(bench.check_cost(&[("bytes", "12")], 900), "allow");
}

#[test]
fn delaying_bucket_admits_the_burst_and_delays_further_requests() {
    let mut bench = test_bench("- {id: r, limit: 10/s, burst: 3, on_exceed: {delay: {max_wait: 300ms}}}\n");
    let said: Vec<String> = (0..7).map(|_| bench.check(&[])).collect();
    assert_eq!(said, ["allow", "allow", "allow", "delay 100ms", "delay 200ms", "delay 300ms", "deny 100ms"]);
    bench.advance(Nanos::from_millis(100));
    assert_eq!(bench.check(&[]), "delay 300ms");
}

#[test]
fn delay_refuses_only_requests_that_would_wait_longer_than_max_wait() {
    // 1.5 tokens refill during the maximum wait.
    let mut bench = test_bench("- {id: r, limit: 3/s, burst: 1, on_exceed: {delay: {max_wait: 500ms}}}\n");
    assert_eq!([bench.check(&[]), bench.check(&[])], ["allow", "delay 333.333334ms"]);
    assert_eq!(bench.check(&[]), "deny 166.666667ms", "the request would wait 667 ms");
    bench.advance(Nanos::from_nanos(166_666_667));
    assert_eq!(bench.check(&[]), "delay 500ms");
}

#[test]
fn dropped_request_is_refused_without_an_answer() {
    let mut bench = test_bench("- {id: r, limit: 1/m, on_exceed: drop}\n");
    bench.decide(&[], None, |decision| assert!(decision.is_admitted() && decision.refusal().is_none()));
    bench.decide(&[], None, |decision| {
        assert!(!decision.is_admitted());
        assert!(decision.refusal().is_some_and(|refusal| refusal.silent && refusal.status.is_none()));
    });
}

#[test]
fn refusal_has_the_message_of_its_rule() {
    let mut bench = test_bench("- {id: r, limit: 1/m, status: 503, message: come back later}\n- {id: s, limit: 2/m}\n");
    bench.check(&[]);
    bench.decide(&[], None, |decision| {
        let refusal = decision.refusal().unwrap();
        assert_eq!(
            (refusal.status, refusal.message.as_deref(), refusal.silent),
            (Some(503), Some("come back later"), false)
        );
    });
}

#[test]
fn enforced_share_of_counters_is_stable() {
    let refused = |share: &str| {
        let mut bench = test_bench(&format!("- {{id: r, per: [user], limit: 1/m, enforce: {share}}}\n"));
        let mut refused = Vec::new();
        for n in 0..2_000 {
            let name = n.to_string();
            assert_eq!(bench.check(&[("user", &name)]), "allow");
            let (allowed, shadow) = bench
                .decide(&[("user", &name)], None, |decision| (decision.is_admitted(), decision.is_shadow_refused()));
            assert_ne!(!allowed, shadow, "a request that passes is marked as a shadow refusal");
            refused.extend((!allowed).then_some(n));
        }
        refused
    };
    let (quarter, half) = (refused("25%"), refused("50%"));
    assert!((430..570).contains(&quarter.len()), "{} of 2000", quarter.len());
    assert!(quarter.iter().all(|n| half.contains(n)), "a higher share only adds keys");
    assert_eq!((refused("0%").len(), refused("100%").len()), (0, 2_000));
}

#[test]
fn rule_applies_only_in_its_schedule() {
    // It is Tuesday, 22:13:20 UTC, and 23:13:20 in Paris.
    let mut bench = test_bench(
        "- {id: evening, limit: 1/h, schedule: {from: '22:00', to: '22:30'}}\n\
         - {id: paris, limit: 2/h, schedule: [{days: [wed], zone: Europe/Paris}, {days: [mon], from: '23:00', to: '23:30', zone: Europe/Paris}]}\n",
    );
    assert_eq!(bench.remaining(&[]), [1]);
    bench.advance(Nanos::from_secs(17 * 60));
    assert!(bench.remaining(&[]).is_empty());
    bench.advance(Nanos::from_secs(30 * 60));
    assert_eq!(bench.remaining(&[]), [2]);
    bench.advance(Nanos::from_secs(24 * 3_600));
    assert!(bench.remaining(&[]).is_empty());
    bench.advance(Nanos::from_secs(23 * 3_600 + 13 * 60));
    assert_eq!(bench.remaining(&[]), [1]);
}

#[test]
fn allow_and_deny_need_no_limits() {
    let mut bench = test_bench(
        "- {id: friends, when: {ip: {cidr: [10.0.0.0/8, '2001:db8::/32']}}, allow: true}\n\
         - {id: foes, when: {ip: {cidr: 10.1.0.0/16}}, deny: true, status: 403}\n\
         - {id: others, when: {ip: [11.0.0.1, 11.0.0.2]}, deny: true}\n\
         - {id: all, limit: 1/h}\n",
    );
    for _ in 0..3 {
        assert_eq!(bench.check(&[("ip", "10.1.2.3")]), "allow", "the first allow or deny rule decides");
        assert_eq!(bench.check(&[("ip", "2001:DB8::7")]), "allow");
        assert_eq!(bench.check(&[("ip", "11.0.0.2")]), "deny for ever");
    }
    bench.decide(&[("ip", "11.0.0.1")], None, |decision| {
        assert_eq!((decision.rule(), decision.reports().count()), (Some("others"), 0));
        assert!(decision.receipt().is_empty());
    });
    assert_eq!((bench.check(&[]), bench.check(&[])), ("allow".into(), "deny 3600s".into()), "nothing was counted");
    bench.put("- {id: foes, when: {ip: '1'}, deny: true, on_exceed: shadow}\n- {id: all, limit: 1/h}\n");
    bench.advance(Nanos::from_secs(3_600));
    bench.decide(&[("ip", "1")], None, |decision| assert!(decision.is_admitted() && decision.is_shadow_refused()));
}

#[test]
fn on_change_reset_discards_usage() {
    let mut bench = test_bench("- {id: r, limit: 10/h, on_change: reset}\n");
    assert_eq!(bench.check_cost(&[], 4), "allow");
    bench.put("- {id: r, limit: 10/h, on_change: reset, status: 430}\n");
    assert_eq!(bench.remaining(&[]), [6], "the limits are the same");
    bench.put("- {id: r, limit: 20/h, on_change: reset}\n");
    assert_eq!(bench.remaining(&[]), [20]);
}

#[test]
fn spread_windows_end_at_different_times() {
    let clock = Arc::new(ManualClock::at(START));
    let mut bench = TestBench::on_store(
        memory_store(&clock),
        clock,
        "- {id: r, per: [user], limit: 1/h, algorithm: fixed_window, phase: spread}\n",
    );
    let mut waits: Vec<String> = Vec::new();
    for user in ["a", "b", "c", "d"] {
        assert_eq!(bench.check(&[("user", user)]), "allow");
        waits.push(bench.check(&[("user", user)]));
    }
    waits.dedup();
    assert!(waits.len() > 1, "{waits:?}");
}

/// The store has a separate code path for groups of more than 16 charges.
#[test]
fn many_rules_are_charged_all_or_none_and_shadow_rules_only_report() {
    // Rule n admits n + 3 requests. Every third rule is a shadow rule, starting with rule 0.
    let is_shadow = |n: u64| n.is_multiple_of(3);
    let rule = |n: u64| {
        let shadow = if is_shadow(n) { ", on_exceed: shadow" } else { "" };
        format!("- {{id: r{n}, per: [user], limit: {}/day{shadow}}}\n", n + 3)
    };
    for count in [6, 100] {
        let mut bench = test_bench(&(0..count).map(rule).collect::<String>());
        for request in 1..=8 {
            let outcome = bench.check(&[("user", "alice")]);
            assert_eq!(outcome == "allow", request <= 4, "request {request} of {count} rules: {outcome}");
            // The shadow rules form a separate group, which rule 0 refuses from the fourth request on. From then on,
            // enforced rules refuse the peek, so it reports no shadow rules.
            let left = |n: u64| n + 3 - request.min(if is_shadow(n) { 3 } else { 4 });
            let expected: Vec<u64> = (0..count).filter(|n| request < 4 || !is_shadow(*n)).map(left).collect();
            assert_eq!(bench.remaining(&[("user", "alice")]), expected, "request {request} of {count} rules");
        }
        assert_eq!(bench.remaining(&[("user", "bob")]), (3..count + 3).collect::<Vec<u64>>());
    }
}
