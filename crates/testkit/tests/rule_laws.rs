//! Laws of rules that need no model: two runs of the engine with an irrelevant difference give the same answers.

use std::collections::BTreeSet;

use tollgate_testkit::rule_model::limit::{Algorithm, Limit, Windows};
use tollgate_testkit::rule_model::lockstep::{self, RuleSubject};
use tollgate_testkit::rule_model::memory::InMemory;
use tollgate_testkit::rule_model::random::{Act, Rng, Trace};
use tollgate_testkit::rule_model::rules::Effect;
use tollgate_testkit::rule_model::settle::Settlement;
use tollgate_testkit::rule_model::{Answer, OnExceed, Request, Rule, RuleSet, Verb, general_laws};

const TRACES: u64 = 30;

#[test]
fn unrelated_rule_changes_nothing() {
    general_laws::unrelated_rule_changes_nothing(&mut InMemory::new(), TRACES);
}

#[test]
fn order_of_rules_changes_only_the_order_of_reports() {
    general_laws::order_of_rules_changes_only_the_order_of_reports(&mut InMemory::new(), TRACES);
}

#[test]
fn peek_changes_nothing() {
    general_laws::peek_changes_nothing(&mut InMemory::new(), TRACES);
}

#[test]
fn refused_request_changes_no_other_answer() {
    general_laws::refused_request_changes_no_other_answer(&mut InMemory::new(), TRACES);
}

#[test]
fn changing_a_limit_and_back_without_charging_changes_nothing() {
    general_laws::changing_a_limit_and_back_without_charging_changes_nothing(&mut InMemory::new(), TRACES);
}

#[test]
fn refund_restores_the_state() {
    general_laws::refund_restores_the_state(&mut InMemory::new(), TRACES);
}

fn rule_set(rule: Rule) -> RuleSet {
    RuleSet { rules: vec![rule] }
}

/// Sends three requests for each of a hundred users at one instant, under a limit of two.
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
        let rule = Rule { per: vec!["user"], ..Rule::new("r", Effect::Limits(vec![two(algorithm)])) };
        let enforced = three_requests_each(rule.clone());
        let shadow = three_requests_each(Rule { on_exceed: OnExceed::Shadow, ..rule.clone() });
        let mut before = [false; 100];
        for share in [0, 1, 25, 50, 75, 99, 100] {
            let answers = three_requests_each(Rule { enforce: Some(share), ..rule.clone() });
            for (user, answer) in answers.iter().enumerate() {
                let is_enforced = *answer == enforced[user];
                assert!(is_enforced || *answer == shadow[user], "{share}%, user {user}: {answer:#?}");
                assert!(is_enforced || !before[user], "a higher share no longer enforces the rule for user {user}");
                before[user] = is_enforced;
            }
            let count = before.iter().filter(|enforced| **enforced).count();
            // For 100 users, five standard deviations are at most 25.
            assert!(count.abs_diff(share.into()) <= 25, "{count} of 100 users at {share}%");
            assert!(!matches!(share, 0 | 100) || count == usize::from(share));
        }
    }
}

/// The engine in memory, with a clock that is ahead by the window offset of one key. The windows of this key
/// therefore start at multiples of the period.
struct ShiftedEngine {
    memory: InMemory,
    now: u64,
    /// The key and the period of its windows.
    key: (Request, u64),
    offset: Option<u64>,
}

impl RuleSubject for ShiftedEngine {
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

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
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
fn spread_window_is_an_epoch_window_shifted_per_key() {
    let mut offsets = BTreeSet::new();
    for seed in 1..=40 {
        let rng = &mut Rng::new(seed);
        let (count, period) = (rng.between(1, 9), rng.pick(&[1_000_000_000, 3_600_000_000_000, 999_983_000]));
        let algorithm = Algorithm::FixedWindow(Windows::Spread);
        let limit = Limit { count, period, algorithm, burst: None, initial: None, max_debt: None };
        let rule = Rule { per: vec!["user"], ..Rule::new("r0", Effect::Limits(vec![limit])) };
        let attributes = vec![("user", format!("user {seed}"))];
        let mut trace = Trace::random(rng, 1, 60);
        trace.versions = vec![rule_set(rule)];
        for step in &mut trace.steps {
            if let Act::Ask(_, request, _) | Act::Reset(request) = &mut step.act {
                request.attributes.clone_from(&attributes);
            }
        }
        let key = (Request { attributes, cost: Some(1) }, period);
        let mut shifted = ShiftedEngine { memory: InMemory::new(), now: 0, key, offset: None };
        if let Err(difference) = lockstep::run_trace(&mut shifted, &trace) {
            panic!("{}", lockstep::describe_difference(seed, &trace, &difference));
        }
        offsets.insert(shifted.offset.map(|offset| offset * 1_000 / period));
    }
    assert!(offsets.len() > 20, "40 keys have the offsets {offsets:?}");
}
