//! Tests of `replaces`, `suffices`, and attributes with several values.
#![allow(clippy::unwrap_used)]

use crate::support;

use std::sync::{Arc, Mutex};

use support::{
    FlakyStore, Memory, START, TestBench, memory_store, outcome_text, poll_once, test_bench, unavailable_error,
};
use tollgate::clock::ManualClock;
use tollgate_engine::store::{Answers, Batch};
use tollgate_engine::{Attribute, Decisions, Engine, Exactness, Item, Request, RuleEffect, Store};

const RULES: &str = "- {id: reading, when: {area: read}, per: [user], limit: 2/h, algorithm: fixed_window}\n\
    - {id: search, when: {page: search}, per: [user], limit: 4/h, algorithm: fixed_window, replaces: [reading]}\n";

#[test]
fn matching_rule_replaces_the_listed_rules() {
    let mut bench = test_bench(RULES);
    let both = [("area", "read"), ("page", "search"), ("user", "ann")];
    for _ in 0..4 {
        assert_eq!(bench.check(&both), "allow");
    }
    assert!(bench.check(&both).starts_with("deny"));
    assert_eq!(bench.remaining(&[("area", "read"), ("user", "ann")]), [2], "nothing was charged to the replaced rule");
    assert_eq!(bench.remaining(&both), [0], "the replaced rule is not reported");
    assert_eq!(bench.decide(&both, None, |decision| decision.rule().map(str::to_owned)), Some("search".into()));
}

#[test]
fn rules_are_replaced_across_items() {
    let mut bench = test_bench(RULES);
    let (read, search) = ([Attribute::new("area", "read")], [Attribute::new("page", "search")]);
    let items = [Item::new(&read).cost(3), Item::new(&search).cost(3)];
    assert_eq!(bench.check_items(&items[..1]).unwrap(), "deny for ever", "three requests exceed the limit of two");
    assert_eq!(bench.check_items(&items).unwrap(), "allow");
}

#[test]
fn denials_and_bans_are_replaced_like_limits() {
    let mut bench = test_bench(
        "- {id: closed, when: {area: read}, deny: true, on_exceed: shadow}\n\
         - {id: strict, per: [user], limit: 1/h, ban: {after: 1, within: 1h, for: 2h}}\n\
         - {id: trusted, when: {badge: gold}, unlimited: true, replaces: [strict, closed]}\n",
    );
    let plain = [("user", "ann")];
    assert_eq!(bench.check(&plain), "allow");
    assert!(bench.check(&plain).starts_with("deny") && bench.check(&plain).starts_with("deny"));
    let trusted = [("user", "ann"), ("badge", "gold"), ("area", "read")];
    assert_eq!(
        bench.decide(&trusted, None, |decision| (decision.is_admitted(), decision.is_shadow_refused())),
        (true, false)
    );
}

#[test]
fn replaced_rule_is_explained() {
    let mut bench = test_bench(RULES);
    let attributes = [Attribute::new("area", "read"), Attribute::new("page", "search")];
    let explained = poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut bench.decisions)).unwrap();
    let effects: Vec<(&str, RuleEffect)> =
        explained.matching_rules().map(|(rule, met)| (&*rule.rule, met.effect)).collect();
    assert_eq!(effects, [("reading", RuleEffect::Replaced), ("search", RuleEffect::Limits)]);
    assert!(
        explained
            .to_string()
            .contains("reading (rules:3:3): matches, counted by user (missing), left out: `search` replaces it\n"),
        "{explained}"
    );
}

#[test]
fn one_of_several_sufficient_rules_is_enough() {
    let mut bench = test_bench(
        "- {id: own, when: {own: {present: true}}, limit: 2/h, algorithm: fixed_window, suffices: true}\n\
         - {id: team, when: {team: {present: true}}, limit: 5/h, algorithm: fixed_window, suffices: true}\n\
         - {id: all, limit: 6/h, algorithm: fixed_window}\n",
    );
    let both = [("own", "a"), ("team", "b")];
    for passed in 0..5 {
        assert_eq!(bench.check(&both), "allow", "after {passed}");
    }
    assert_eq!(bench.remaining(&both), [0, 0, 1], "both are exhausted");
    assert!(bench.check(&both).starts_with("deny"));
    assert_eq!(bench.remaining(&[]), [1], "a refusal spends nothing");
    assert!(bench.check(&both[..1]).starts_with("deny"), "a rule that matches alone must have capacity");
    assert_eq!(bench.check(&[("other", "c")]), "allow");
    bench.advance(tollgate::core::Nanos::from_secs(3600));
    assert_eq!(bench.check(&both), "allow");
    assert_eq!(bench.remaining(&both), [1, 4, 5], "the rule with capacity is charged");
}

#[test]
fn sufficient_rule_does_not_replace_other_rules() {
    let mut bench = test_bench(
        "- {id: own, limit: 9/h, suffices: true}\n- {id: team, limit: 9/h, suffices: true}\n- {id: all, limit: 1/h}\n",
    );
    assert_eq!(bench.check(&[]), "allow");
    assert!(bench.check(&[]).starts_with("deny"));
    assert_eq!(bench.remaining(&[]), [8, 8, 0]);
}

/// Three rules with `suffices` and increasing capacities, each matched by one attribute.
const THREE_RULES_MARKED_SUFFICES: &str = "- {id: a, when: {a: {present: true}}, limit: 1/h, algorithm: fixed_window, suffices: true}\n\
    - {id: b, when: {b: {present: true}}, limit: 2/h, algorithm: fixed_window, suffices: true}\n\
    - {id: c, when: {c: {present: true}}, limit: 3/h, algorithm: fixed_window, suffices: true}\n";

const ATTRIBUTES_OF_ALL_THREE: [(&str, &str); 3] = [("a", ""), ("b", ""), ("c", "")];

/// A memory store in which another client takes a token just before a call.
struct ContendedStore {
    memory: Arc<Memory>,
    others: Engine<Arc<Memory>, Memory>,
    /// The rules from which the other client takes a token. The last entry is used before the next call.
    next: Mutex<Vec<&'static str>>,
}

impl Store for ContendedStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        let next = self.next.lock().unwrap().pop();
        if let Some(name) = next {
            let (attributes, mut decisions) = ([Attribute::new(name, "")], Decisions::default());
            assert!(
                poll_once(self.others.check(&Request::new("d", &[Item::new(&attributes)]), &mut decisions))
                    .is_ok_and(|decision| decision.is_admitted())
            );
        }
        self.memory.answer_batch(batch, answers);
    }

    fn check_limits(&self, limits: &tollgate::Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }
}

#[test]
fn request_uses_the_next_rule_if_capacity_is_taken_concurrently() {
    let clock = Arc::new(ManualClock::at(START));
    let shared = Arc::new(memory_store(&clock));
    let others = Engine::with_fallback(shared.clone(), memory_store(&clock)).with_clock(clock.clone());
    others.put(&support::parse_rules(THREE_RULES_MARKED_SUFFICES)).unwrap();
    let mut bench = TestBench::on_store(
        ContendedStore { memory: shared, others, next: Mutex::default() },
        clock,
        THREE_RULES_MARKED_SUFFICES,
    );
    assert_eq!(bench.check(&[("b", "")]), "allow", "one of two");
    // The other client takes all of `a` before the first call, and the last token of `b` before the second call.
    *bench.engine.store().next.lock().unwrap() = vec!["b", "a"];
    assert_eq!(bench.check(&ATTRIBUTES_OF_ALL_THREE), "allow", "the third rule has capacity");
    assert_eq!(bench.remaining(&ATTRIBUTES_OF_ALL_THREE), [2], "only the third rule was charged");
}

#[test]
fn requests_of_a_batch_see_earlier_charges_of_the_batch() {
    let bench = test_bench(THREE_RULES_MARKED_SUFFICES);
    let attributes = ATTRIBUTES_OF_ALL_THREE.map(|(name, value)| Attribute::new(name, value));
    let items = [Item::new(&attributes)];
    let requests = [Request::new("d", &items); 5];
    let mut decisions = Decisions::default();
    poll_once(bench.engine.check_batch(&requests, &mut decisions));
    let passed: Vec<bool> = (0..5).map(|place| decisions.get(place).unwrap().is_admitted()).collect();
    assert_eq!(passed, [true, true, true, false, false]);
}

#[test]
fn refusing_rule_without_suffices_determines_the_wait() {
    let mut bench = test_bench(
        "- {id: a, limit: 1/day, algorithm: fixed_window, suffices: true}\n\
         - {id: b, limit: 9/day, algorithm: fixed_window, suffices: true}\n\
         - {id: all, limit: 60/m, burst: 1}\n",
    );
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 1s", "the wait ends before tomorrow, because `a` is not needed");
    assert_eq!(bench.remaining(&[]), [8, 0]);
}

#[test]
fn one_sufficient_rule_is_enough_without_the_store() {
    let clock = Arc::new(ManualClock::at(START));
    let rules = "- {id: a, limit: 1/s, burst: 1, suffices: true}\n\
        - {id: b, limit: 2/s, burst: 2, suffices: true}\n\
        - {id: c, when: {free: {present: true}}, limit: 1/s, suffices: true, on_fault: open}\n";
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, rules);
    bench.engine.store().fail_times(unavailable_error(), usize::MAX);
    let mut ask = |attributes: &[(&str, &str)]| {
        bench.decide(attributes, None, |decision| (outcome_text(decision.outcome()), decision.exactness()))
    };
    for said in ["allow", "allow", "deny 500ms"] {
        let (outcome, exactness) = ask(&[]);
        assert_eq!((&*outcome, exactness), (said, Exactness::Fallback));
    }
    assert_eq!(ask(&[("free", "")]), ("allow".into(), Exactness::Fallback), "the `on_fault: open` rule has capacity");
}

#[test]
fn wait_is_the_shortest_wait_of_the_sufficient_rules() {
    let rules = "- {id: rare, limit: 1/h, suffices: true}\n- {id: often, limit: 1/s, suffices: true}\n\
        - {id: all, when: {all: {present: true}}, limit: 1/m}\n";
    let mut bench = test_bench(rules);
    assert_eq!(bench.check(&[("all", "")]), "allow");
    let mut outcome = |attributes: &[(&str, &str)]| {
        bench.decide(attributes, None, |decision| {
            (outcome_text(decision.outcome()), decision.rule().unwrap().to_owned())
        })
    };
    assert_eq!(outcome(&[]), ("deny 1s".into(), "often".into()));
    assert_eq!(outcome(&[("all", "")]), ("deny 60s".into(), "all".into()), "other rules must have capacity too");
    bench.advance(tollgate::core::Nanos::from_nanos(999_999_999));
    assert_eq!(bench.check(&[]), "deny 1ns");
    bench.advance(tollgate::core::Nanos::from_nanos(1));
    assert_eq!(bench.check(&[]), "allow");
}

#[test]
fn closed_rule_refuses_although_another_rule_suffices() {
    let clock = Arc::new(ManualClock::at(START));
    let rules = "- {id: a, limit: 5/s, suffices: true, on_fault: closed}\n- {id: b, limit: 5/s, suffices: true}\n";
    let mut bench = TestBench::on_store(FlakyStore::new(&clock), clock, rules);
    assert_eq!(bench.check(&[]), "allow");
    bench.engine.store().fail_times(unavailable_error(), usize::MAX);
    bench.decide(&[], None, |decision| assert!(decision.is_refused_by_fault() && !decision.is_admitted()));
}

#[test]
fn banned_counter_has_no_capacity() {
    let mut bench = test_bench(
        "- {id: x, when: {x: {present: true}}, limit: 1/s, ban: {after: 1, within: 1m, for: 1h}, suffices: true}\n\
         - {id: y, when: {y: {present: true}}, limit: 3/h, algorithm: fixed_window, suffices: true}\n",
    );
    assert_eq!((bench.check(&[("x", "")]), bench.check(&[("x", "")])), ("allow".into(), "deny 3600s".into()));
    let both = [("x", ""), ("y", "")];
    assert_eq!(bench.check(&both), "allow");
    bench.advance(tollgate::core::Nanos::from_secs(10));
    assert_eq!(bench.check(&both), "allow", "the limit of `x` has capacity again, but `x` is still banned");
    assert_eq!((bench.check(&[("x", "")]), bench.check(&both)), ("deny 3590s".into(), "allow".into()));
    assert!(bench.check(&both).starts_with("deny"), "`y` is exhausted after three requests");
}

#[test]
fn numbered_attribute_is_a_single_value() {
    let mut bench = test_bench(
        "- {id: pair, when: {'tag#1': a, 'tag#2': {prefix: b, not: bad}}, per: ['tag#3'], limit: 1/h}\n\
         - {id: said, if: \"attributes['tag#2'] == 'z'\", limit: 2/h, initial: 0}\n",
    );
    let of =
        |tags: &[&'static str]| -> Vec<(&'static str, &'static str)> { tags.iter().map(|tag| ("tag", *tag)).collect() };
    assert_eq!(bench.check(&of(&["a", "b", "1"])), "allow");
    assert!(bench.check(&of(&["a", "b", "1"])).starts_with("deny"));
    assert_eq!(bench.check(&of(&["a", "b", "2"])), "allow", "counted by the third value");
    assert!(bench.remaining(&of(&["b", "a"])).is_empty(), "the order counts");
    assert!(bench.remaining(&of(&["a", "bad"])).is_empty());
    assert!(bench.remaining(&of(&["a"])).is_empty());
    assert!(bench.remaining(&[("tag", "a"), ("tag#2", "b")]).is_empty(), "numbered names cannot be sent");
    assert!(bench.check(&of(&["y", "z"])).starts_with("deny"), "expressions can use numbered names");
    assert_eq!(bench.check(&of(&["z", "y"])), "allow");
    let attributes = [Attribute::new("tag", "a"), Attribute::new("tag", "x")];
    let explained =
        poll_once(bench.engine.explain(b"d", &Item::new(&attributes), &mut bench.decisions)).unwrap().to_string();
    assert!(explained.contains("tag#2") && explained.contains("\"x\""), "{explained}");
}
