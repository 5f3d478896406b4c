//! A decision in memory allocates nothing once its buffers are large enough.

mod support;

use allocation_counter::{AllocationInfo, measure};
use support::{parse_limits, poll_once, test_bench};
use tollgate_engine::{Attribute, CandidateRules, Decisions, Item, Request};

fn count_allocations(mut call: impl FnMut()) -> u64 {
    call();
    let AllocationInfo { count_total, .. } = measure(call);
    count_total
}

const RULES: &str = "- {id: client, when: {path: /v1/*/items/**, method: [GET, POST]}, per: [client], limit: 1000/s}\n\
                     - {id: other, when: {tenant: t7}, limit: 1000/s}\n\
                     - {id: login, when: {path: /login}, limit: 1000/s}\n";

#[test]
fn finding_rules_allocates_nothing() {
    let bench = test_bench(RULES);
    let attributes = [("path", "/v1/7/items/9"), ("method", "GET"), ("tenant", "t7")]
        .map(|(name, value)| Attribute::new(name, value));
    let (rules, mut matched) = (bench.engine.rules(), CandidateRules::default());
    assert_eq!(
        count_allocations(|| assert_eq!(rules.candidates(b"d", &attributes, &mut matched).map(<[u32]>::len), Some(2))),
        0
    );
}

#[test]
fn decision_allocates_nothing() {
    let bench = test_bench(RULES);
    let attributes = [("path", "/v1/7/items/9"), ("method", "GET"), ("client", "c")]
        .map(|(name, value)| Attribute::new(name, value));
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    let mut decisions = Decisions::default();
    let check = || {
        let decision = poll_once(bench.engine.check(&request, &mut decisions)).unwrap();
        assert_eq!((decision.is_admitted(), decision.rule(), decision.reports().count()), (true, Some("client"), 1));
    };
    assert_eq!(count_allocations(check), 0);
}

#[test]
fn decision_by_several_rules_allocates_nothing() {
    let bench = test_bench(RULES);
    let attributes = [("path", "/v1/7/items/9"), ("method", "GET"), ("client", "c"), ("tenant", "t7")];
    let attributes = attributes.map(|(name, value)| Attribute::new(name, value));
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    let mut decisions = Decisions::default();
    let check = || {
        let decision = poll_once(bench.engine.check(&request, &mut decisions)).unwrap();
        assert_eq!((decision.is_admitted(), decision.reports().count()), (true, 2));
    };
    assert_eq!(count_allocations(check), 0);
}

#[test]
fn many_rules_refusals_and_new_keys_allocate_nothing() {
    let buckets = |count: usize| (0..count).map(|n| format!("- {{id: r{n}, per: [client], limit: 5/h}}\n")).collect();
    let windows = |count: usize| {
        let rule = |n| format!("- {{id: r{n}, per: [client], limit: 5/h, algorithm: fixed_window}}\n");
        (0..count).map(rule).collect::<String>()
    };
    // Sliding logs and concurrency limits have longer states, which are in other tables than the states of windows.
    let logs = "- {id: log, per: [client], limit: 50/h, algorithm: sliding_log}\n\
                - {id: slots, per: [client], limit: 50, algorithm: concurrency, lease: 1h}\n";
    let mut cases: Vec<(String, usize)> = [1, 2, 3, 4, 5, 8, 16].map(|count| (buckets(count), count)).into();
    cases.extend([(windows(3), 3), (windows(16), 16), (format!("{}{logs}", windows(6)), 8)]);
    for (rules, count) in cases {
        let bench = test_bench(&rules);
        let mut decisions = Decisions::default();
        let names: Vec<String> = (0..4).map(|n| format!("client {n}")).collect();
        let mut check = |name: &String, allowed: bool| {
            let attributes = [Attribute::new("client", name)];
            let items = [Item::new(&attributes)];
            let decision = poll_once(bench.engine.check(&Request::new("d", &items), &mut decisions)).unwrap();
            assert_eq!((decision.is_admitted(), decision.reports().count()), (allowed, count));
        };
        // The first refusal grows several buffers.
        (0..6).for_each(|n| check(&names[0], n < 5));
        for name in &names[1..] {
            let AllocationInfo { count_total, .. } = measure(|| (0..7).for_each(|n| check(name, n < 5)));
            assert_eq!(count_total, 0, "for {name} under {rules}");
        }
    }
}

#[test]
fn batch_allocates_nothing() {
    let bench = test_bench(RULES);
    let sent = bench.engine.intern_limits(&parse_limits("1000/s", None)).unwrap();
    let names: Vec<String> = (0..100).map(|n| format!("key {n}")).collect();
    let items: Vec<[Item<'_>; 1]> = names.iter().map(|name| [Item::inline(name, &sent)]).collect();
    let requests: Vec<Request<'_>> = items.iter().map(|items| Request::without_rules(items)).collect();
    let mut decisions = Decisions::default();
    let check = || {
        poll_once(bench.engine.check_batch(&requests, &mut decisions));
        assert!(decisions.iter().all(|decision| decision.is_ok_and(|decision| decision.is_admitted())));
    };
    assert_eq!(count_allocations(check), 0);
}

#[test]
fn overrides_calendars_bans_and_expressions_allocate_nothing() {
    let rules = [
        "{id: a, per: [client or ip], limit: 1000/s, overrides: [{when: {client: c}, limit: 2000/s}], enforce: 50%}",
        "{id: b, when: {path: '/v1/{shop}/**'}, per: [shop], limit: 1M/day, algorithm: fixed_window, zone: Europe/Paris}",
        "{id: c, if: 'size(path) > 3', limit: 1M/s, cost: {from: bytes, max: 10}, schedule: {from: '00:00'}}",
        "{id: d, when: {ip: {cidr: 10.0.0.0/8}}, limit: 1000/s, ban: {after: 5, within: 1m, for: 1h}}",
    ];
    let attributes = [("path", "/v1/7/items/9"), ("client", "c"), ("ip", "10.1.2.3"), ("bytes", "7")];
    let attributes = attributes.map(|(name, value)| Attribute::new(name, value));
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    for rule in rules {
        let bench = test_bench(&format!("- {rule}\n"));
        let mut decisions = Decisions::default();
        let mut check = || {
            let decision = poll_once(bench.engine.check(&request, &mut decisions)).unwrap();
            assert!(decision.is_admitted() && decision.reports().count() == 1);
        };
        // Searching a tree of patterns uses two buffers in turn.
        check();
        assert_eq!(count_allocations(check), 0, "for {rule}");
    }
}
