//! Laws of rules that need no model: two runs of the engine that differ in something that must not matter.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_testkit::rule_model::laws::{
    OperationResult, RecordedOperation, What, assert_same_results, record, replay,
};
use tollgate_testkit::rule_model::limit::{Algorithm, Limit, Windows};
use tollgate_testkit::rule_model::lockstep::{self, Subject};
use tollgate_testkit::rule_model::memory::InMemory;
use tollgate_testkit::rule_model::random::{Act, Rng, Topic, Trace};
use tollgate_testkit::rule_model::rules::Does;
use tollgate_testkit::rule_model::settle::Settled;
use tollgate_testkit::rule_model::{Answer, Exceed, Request, Rule, RuleSet, Verb};

const TRACES: u64 = 30;

/// Runs `law` on recorded traces that have no topic of `left_out`.
fn for_traces(left_out: &[Topic], mut law: impl FnMut(&Trace, &[RecordedOperation])) {
    let mut seeds = 1..;
    for _ in 0..TRACES {
        let trace = seeds.find_map(|seed| Trace::random(&mut Rng::new(seed), 1, 40).without_topics(left_out));
        let trace = trace.expect("there are seeds without end");
        let operations = record(&trace, 1);
        law(&trace, &operations);
    }
}

fn run(trace: &Trace, operations: &[RecordedOperation]) -> BTreeMap<usize, OperationResult> {
    replay(&mut InMemory::new(), trace.start, operations)
}

/// Returns the operations with other rules.
fn with_rules(operations: &[RecordedOperation], change: impl Fn(&mut RuleSet)) -> Vec<RecordedOperation> {
    let mut operations = operations.to_vec();
    for deed in &mut operations {
        if let What::Put(rules) = &mut deed.what {
            change(rules);
        }
    }
    operations
}

fn plain_rule(id: &str, when: Vec<(&'static str, &'static str)>) -> Rule {
    let algorithm = Algorithm::TokenBucket { delay: None };
    let limit = Limit { count: 1, period: 1_000_000_000, algorithm, burst: None, initial: None, max_debt: None };
    Rule { when, ..Rule::new(id, Does::Limits(vec![limit])) }
}

#[test]
fn unrelated_rule_changes_nothing() {
    for_traces(&[], |trace, operations| {
        let more = with_rules(operations, |rules| {
            rules.rules.insert(0, plain_rule("first", vec![("path", "elsewhere")]));
            rules.rules.push(plain_rule("last", vec![("user", "nobody")]));
        });
        assert_same_results(
            operations,
            &run(trace, operations),
            &run(trace, &more),
            "an unrelated rule changes nothing",
        );
    });
}

#[test]
fn order_of_rules_changes_only_which_is_named() {
    let sorted = |came: BTreeMap<usize, OperationResult>| -> BTreeMap<usize, OperationResult> {
        let sort = |came| match came {
            OperationResult::Decided(mut answer) => {
                answer.limits.sort_by(|one, other| one.rule.cmp(&other.rule));
                OperationResult::Decided(answer)
            }
            other => other,
        };
        came.into_iter().map(|(number, came)| (number, sort(came))).collect()
    };
    for_traces(&[], |trace, operations| {
        // Of rules with `allow` or `deny`, the first decides.
        if trace.versions.iter().flat_map(|set| &set.rules).any(|rule| matches!(rule.does, Does::Allow | Does::Deny)) {
            return;
        }
        let reversed = with_rules(operations, |rules| rules.rules.reverse());
        let (one, other) = (sorted(run(trace, operations)), sorted(run(trace, &reversed)));
        assert_same_results(operations, &one, &other, "the order of rules changes only which is named");
    });
}

#[test]
fn peek_changes_nothing() {
    for_traces(&[], |trace, operations| {
        let is_peek = |deed: &RecordedOperation| matches!(deed.what, What::Ask(Verb::Peek, _));
        let fewer: Vec<RecordedOperation> = operations.iter().filter(|deed| !is_peek(deed)).cloned().collect();
        assert_same_results(operations, &run(trace, operations), &run(trace, &fewer), "a peek changes nothing");
    });
}

#[test]
fn refused_request_changes_no_other_answer() {
    for_traces(&[Topic::Ban, Topic::Initial, Topic::CountRefused], |trace, operations| {
        let all = run(trace, operations);
        let is_refused = |deed: &RecordedOperation| matches!(all.get(&deed.number), Some(OperationResult::Decided(answer)) if !answer.outcome.is_admitted());
        let fewer: Vec<RecordedOperation> = operations.iter().filter(|deed| !is_refused(deed)).cloned().collect();
        assert_same_results(operations, &all, &run(trace, &fewer), "a refused request changes no other answer");
    });
}

#[test]
fn changing_a_limit_and_back_without_charging_changes_nothing() {
    for_traces(&[], |trace, operations| {
        let (mut longer, mut next) = (Vec::new(), operations.len());
        let mut in_force = None;
        for deed in operations {
            longer.push(deed.clone());
            if let What::Put(rules) = &deed.what {
                in_force = Some(rules.clone());
            }
            let (What::Ask(_, request), Some(rules)) = (&deed.what, &in_force) else { continue };
            // Changes to every other version, peeks, sends a request that never fits, and changes
            // back.
            for version in &trace.versions {
                let never = Request { cost: Some(1 << 40), ..request.clone() };
                let peek = What::Ask(Verb::Peek, request.clone());
                let detour =
                    [What::Put(version.clone()), peek, What::Ask(Verb::Check, never), What::Put(rules.clone())];
                for what in detour {
                    longer.push(RecordedOperation { number: next, at: deed.at, what });
                    next += 1;
                }
            }
        }
        // A refused request may start a ban or begin a key, so only traces without these are
        // compared.
        let touched = [Topic::Ban, Topic::Initial].iter().any(|topic| topic.is_in(trace));
        let unlimited = trace.versions.iter().flat_map(|set| &set.rules).any(|rule| {
            let passes = |does: &Does| matches!(does, Does::Unlimited | Does::Allow);
            passes(&rule.does) || rule.is_shadow() || rule.overrides.iter().any(|other| passes(&other.does))
        });
        if !touched && !unlimited {
            assert_same_results(
                operations,
                &run(trace, operations),
                &run(trace, &longer),
                "there and back again changes nothing",
            );
        }
    });
}

#[test]
fn refund_restores() {
    for_traces(&[Topic::ChangedParameters, Topic::Initial, Topic::Ban], |trace, operations| {
        let (mut longer, mut next) = (Vec::new(), operations.len());
        let mut checks = Vec::new();
        for deed in operations {
            longer.push(deed.clone());
            let What::Ask(Verb::Check | Verb::Charge, request) = &deed.what else { continue };
            // A peek, the request again, its refund, and the peek again.
            let number = next + 1;
            for what in [
                What::Ask(Verb::Peek, request.clone()),
                What::Ask(Verb::Check, request.clone()),
                What::Refund(number),
                What::Ask(Verb::Peek, request.clone()),
            ] {
                longer.push(RecordedOperation { number: next, at: deed.at, what });
                next += 1;
            }
            checks.push(number);
        }
        let came = run(trace, &longer);
        for check in checks {
            let (Some(OperationResult::Decided(before)), Some(OperationResult::Decided(after))) =
                (came.get(&(check - 1)), came.get(&(check + 2)))
            else {
                continue;
            };
            let refused = |answer: &Answer| !answer.outcome.is_admitted() || answer.shadow_refused;
            if matches!(came.get(&check), Some(OperationResult::Decided(answer)) if !refused(answer)) {
                assert_eq!(after, before, "a refund restores: {longer:#?}");
            }
        }
    });
}

fn rule_set(rule: Rule) -> RuleSet {
    RuleSet { rules: vec![rule] }
}

/// Three requests of each of a hundred users at one instant, under a limit of two.
fn three_requests_each(rule: Rule) -> Vec<Vec<Answer>> {
    let mut memory = InMemory::new();
    memory.begin(START);
    memory.put(&rule_set(rule));
    let mut ask = |user: &Request| (0..3).map(|_| memory.ask(Verb::Check, user).0).collect();
    (0..100)
        .map(|number| Request { attributes: vec![("user", number.to_string())], cost: None })
        .map(|user| ask(&user))
        .collect()
}

const START: u64 = 1_800_000_000_000_000_000;

#[test]
fn partly_enforced_rule_is_enforced_or_a_shadow_for_each_key() {
    let two = |algorithm| Limit {
        count: 2,
        period: 3_600_000_000_000,
        algorithm,
        burst: None,
        initial: None,
        max_debt: None,
    };
    for algorithm in [Algorithm::TokenBucket { delay: None }, Algorithm::SlidingWindow] {
        let rule = Rule { per: vec!["user"], ..Rule::new("r", Does::Limits(vec![two(algorithm)])) };
        let enforced = three_requests_each(rule.clone());
        let shadow = three_requests_each(Rule { on_exceed: Exceed::Shadow, ..rule.clone() });
        let mut before = [false; 100];
        for share in [0, 1, 25, 50, 75, 99, 100] {
            let answers = three_requests_each(Rule { enforce: Some(share), ..rule.clone() });
            for (user, answer) in answers.iter().enumerate() {
                let is_enforced = *answer == enforced[user];
                assert!(is_enforced || *answer == shadow[user], "{share}%, user {user}: {answer:#?}");
                assert!(is_enforced || !before[user], "a higher share takes user {user} out");
                before[user] = is_enforced;
            }
            let count = before.iter().filter(|enforced| **enforced).count();
            // Five standard deviations of a hundred tosses are at most 25.
            assert!(count.abs_diff(share.into()) <= 25, "{count} of 100 users at {share}%");
            assert!(!matches!(share, 0 | 100) || count == usize::from(share));
        }
    }
}

/// Memory with a clock that is ahead by the window offset of one key, so that its windows start at
/// multiples of the period.
struct Shifted {
    memory: InMemory,
    now: u64,
    /// The key, and the period of its windows.
    key: (Request, u64),
    offset: Option<u64>,
}

impl Subject for Shifted {
    fn tick(&self) -> u64 {
        1
    }

    fn begin(&mut self, at: u64) {
        self.memory.begin(at);
        (self.now, self.offset) = (at, None);
    }

    fn advance_to(&mut self, at: u64) {
        self.memory.advance_to(at + self.offset.unwrap_or(0));
        self.now = at;
    }

    fn put(&mut self, rules: &RuleSet) {
        self.memory.put(rules);
        if self.offset.is_none() {
            let (request, period) = &self.key;
            let (answer, _) = self.memory.ask(Verb::Check, request);
            self.memory.reset(request);
            self.offset = Some((self.now + answer.limits[0].report.reset.as_nanos()) % period);
            self.advance_to(self.now);
        }
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        self.memory.ask(verb, request)
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        self.memory.refund(receipt)
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settled {
        self.memory.commit(receipt, cost)
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.memory.renew(receipt)
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.memory.reset(request)
    }
}

#[test]
fn spread_window_is_an_epoch_window_moved_by_an_offset_of_the_key() {
    let mut offsets = BTreeSet::new();
    for seed in 1..=40 {
        let rng = &mut Rng::new(seed);
        let (count, period) = (rng.between(1, 9), rng.pick(&[1_000_000_000, 3_600_000_000_000, 999_983_000]));
        let algorithm = Algorithm::FixedWindow(Windows::Spread);
        let limit = Limit { count, period, algorithm, burst: None, initial: None, max_debt: None };
        let rule = Rule { per: vec!["user"], ..Rule::new("r0", Does::Limits(vec![limit])) };
        let attributes = vec![("user", format!("user {seed}"))];
        let mut trace = Trace::random(rng, 1, 60);
        trace.versions = vec![rule_set(rule)];
        for step in &mut trace.steps {
            if let Act::Ask(_, request, _) | Act::Reset(request) = &mut step.act {
                request.attributes.clone_from(&attributes);
            }
        }
        let key = (Request { attributes, cost: Some(1) }, period);
        let mut shifted = Shifted { memory: InMemory::new(), now: 0, key, offset: None };
        if let Err(difference) = lockstep::run(&mut shifted, &trace) {
            panic!("{}", lockstep::describe(seed, &trace, &difference));
        }
        offsets.insert(shifted.offset.map(|offset| offset * 1_000 / period));
    }
    assert!(offsets.len() > 20, "40 keys have the offsets {offsets:?}");
}
