//! A decision in memory allocates nothing, once its buffers have been used.

mod support;

use allocation_counter::{AllocationInfo, measure};
use support::{bench, limits, run};
use tollgate_engine::{Decisions, Entry, Item, Matched, Request};

fn allocated(mut call: impl FnMut()) -> u64 {
    call();
    let AllocationInfo { count_total, .. } = measure(call);
    count_total
}

const RULES: &str = "- {id: client, when: {path: /v1/*/items/**, method: [GET, POST]}, per: [client], limit: 1000/s}\n\
                     - {id: other, when: {tenant: t7}, limit: 1000/s}\n\
                     - {id: login, when: {path: /login}, limit: 1000/s}\n";

#[test]
fn finding_rules_allocates_nothing() {
    let bench = bench(RULES);
    let entries =
        [("path", "/v1/7/items/9"), ("method", "GET"), ("tenant", "t7")].map(|(name, value)| Entry::new(name, value));
    let (rules, mut matched) = (bench.engine.rules(), Matched::default());
    assert_eq!(allocated(|| assert_eq!(rules.meets(b"d", &entries, &mut matched).map(<[u32]>::len), Some(2))), 0);
}

#[test]
fn a_decision_allocates_nothing() {
    let bench = bench(RULES);
    let entries =
        [("path", "/v1/7/items/9"), ("method", "GET"), ("client", "c")].map(|(name, value)| Entry::new(name, value));
    let items = [Item::new(&entries)];
    let request = Request::new("d", &items);
    let mut decisions = Decisions::default();
    let check = || {
        let decision = run(bench.engine.check(&request, &mut decisions)).unwrap();
        assert_eq!((decision.is_allowed(), decision.rule(), decision.reports().count()), (true, Some("client"), 1));
    };
    assert_eq!(allocated(check), 0);
}

#[test]
fn a_decision_by_several_rules_allocates_nothing() {
    let bench = bench(RULES);
    let attributes = [("path", "/v1/7/items/9"), ("method", "GET"), ("client", "c"), ("tenant", "t7")];
    let entries = attributes.map(|(name, value)| Entry::new(name, value));
    let items = [Item::new(&entries)];
    let request = Request::new("d", &items);
    let mut decisions = Decisions::default();
    let check = || {
        let decision = run(bench.engine.check(&request, &mut decisions)).unwrap();
        assert_eq!((decision.is_allowed(), decision.reports().count()), (true, 2));
    };
    assert_eq!(allocated(check), 0);
}

#[test]
fn a_batch_allocates_nothing() {
    let bench = bench(RULES);
    let sent = bench.engine.limits(&limits("1000/s", None)).unwrap();
    let names: Vec<String> = (0..100).map(|n| format!("key {n}")).collect();
    let items: Vec<[Item<'_>; 1]> = names.iter().map(|name| [Item::sent(name, &sent)]).collect();
    let requests: Vec<Request<'_>> = items.iter().map(|items| Request::without_rules(items)).collect();
    let mut decisions = Decisions::default();
    let check = || {
        run(bench.engine.check_batch(&requests, &mut decisions));
        assert!(decisions.iter().all(|decision| decision.is_ok_and(|decision| decision.is_allowed())));
    };
    assert_eq!(allocated(check), 0);
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
    let entries = attributes.map(|(name, value)| Entry::new(name, value));
    let items = [Item::new(&entries)];
    let request = Request::new("d", &items);
    for rule in rules {
        let bench = bench(&format!("- {rule}\n"));
        let mut decisions = Decisions::default();
        let mut check = || {
            let decision = run(bench.engine.check(&request, &mut decisions)).unwrap();
            assert!(decision.is_allowed() && decision.reports().count() == 1);
        };
        // Walking down a tree of patterns takes two buffers in turn.
        check();
        assert_eq!(allocated(check), 0, "for {rule}");
    }
}
