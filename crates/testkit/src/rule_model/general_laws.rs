//! The laws of `laws.rs` for any store. A law runs recorded traces with and without an irrelevant difference, and
//! compares the answers. `refund_restores_the_state` compares answers of one run.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::laws::{LawOperation, OperationResult, RecordedOperation, assert_same_results, record, replay};
use super::limit::{Algorithm, Limit};
use super::lockstep::RuleSubject;
use super::random::{Rng, Topic, Trace};
use super::rules::Effect;
use super::{Answer, Request, Rule, RuleSet, Verb};

/// Number of rule orders compared per trace.
const SHUFFLES_PER_TRACE: u64 = 3;

/// Asserts every law on `traces` traces.
///
/// # Panics
/// Panics if a law does not hold.
pub fn assert_all_laws<S: RuleSubject>(subject: &mut S, traces: u64) {
    unrelated_rule_changes_nothing(subject, traces);
    order_of_rules_changes_only_the_order_of_reports(subject, traces);
    peek_changes_nothing(subject, traces);
    refused_request_changes_no_other_answer(subject, traces);
    changing_a_limit_and_back_without_charging_changes_nothing(subject, traces);
    refund_restores_the_state(subject, traces);
}

/// Runs `law` on recorded traces without the topics in `left_out`.
fn for_traces<S: RuleSubject>(
    subject: &mut S,
    traces: u64,
    left_out: &[Topic],
    mut law: impl FnMut(&mut S, &Trace, &[RecordedOperation]),
) {
    let (mut seeds, tick) = (1.., subject.tick());
    for _ in 0..traces {
        let trace = seeds.find_map(|seed| Trace::random(&mut Rng::new(seed), tick, 40).without_topics(left_out));
        let trace = trace.expect("the seeds do not run out");
        let operations = record(&trace, tick);
        law(subject, &trace, &operations);
    }
}

/// Returns the operations with changed rules.
fn with_rules(operations: &[RecordedOperation], change: impl Fn(&mut RuleSet)) -> Vec<RecordedOperation> {
    let mut operations = operations.to_vec();
    for deed in &mut operations {
        if let LawOperation::Put(rules) = &mut deed.what {
            change(rules);
        }
    }
    operations
}

fn plain_rule(id: &str, when: Vec<(&'static str, &'static str)>) -> Rule {
    let algorithm = Algorithm::TokenBucket { delay: None };
    let limit = Limit { count: 1, period: 1_000_000_000, algorithm, burst: None, initial: None, max_debt: None };
    Rule { when, ..Rule::new(id, Effect::Limits(vec![limit])) }
}

/// Asserts that rules that match no request change no answer.
///
/// # Panics
/// Panics if the law does not hold.
pub fn unrelated_rule_changes_nothing<S: RuleSubject>(subject: &mut S, traces: u64) {
    for_traces(subject, traces, &[], |subject, trace, operations| {
        let more = with_rules(operations, |rules| {
            rules.rules.insert(0, plain_rule("first", vec![("path", "elsewhere")]));
            rules.rules.push(plain_rule("last", vec![("user", "nobody")]));
        });
        assert_same_results(
            operations,
            &replay(subject, trace.start, operations),
            &replay(subject, trace.start, &more),
            "an unrelated rule changes nothing",
        );
    });
}

/// Asserts that the order of rules changes only the order of the limits in an answer.
///
/// # Panics
/// Panics if the law does not hold.
pub fn order_of_rules_changes_only_the_order_of_reports<S: RuleSubject>(subject: &mut S, traces: u64) {
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
    for_traces(subject, traces, &[], |subject, trace, operations| {
        // Among rules with `allow` or `deny`, the first decides.
        if trace
            .versions
            .iter()
            .flat_map(|set| &set.rules)
            .any(|rule| matches!(rule.effect, Effect::Allow | Effect::Deny))
        {
            return;
        }
        let as_given = sorted(replay(subject, trace.start, operations));
        for seed in 1..=SHUFFLES_PER_TRACE {
            // Every rule set is shuffled differently.
            let random = RefCell::new(Rng::new(seed));
            let shuffled = with_rules(operations, |rules| shuffle(&mut rules.rules, &mut random.borrow_mut()));
            let other = sorted(replay(subject, trace.start, &shuffled));
            assert_same_results(operations, &as_given, &other, "the order of rules changes only the order of limits");
        }
    });
}

/// Asserts that peeks change no other answer.
///
/// # Panics
/// Panics if the law does not hold.
pub fn peek_changes_nothing<S: RuleSubject>(subject: &mut S, traces: u64) {
    for_traces(subject, traces, &[], |subject, trace, operations| {
        let is_peek = |deed: &RecordedOperation| matches!(deed.what, LawOperation::Ask(Verb::Peek, _));
        let fewer: Vec<RecordedOperation> = operations.iter().filter(|deed| !is_peek(deed)).cloned().collect();
        assert_same_results(
            operations,
            &replay(subject, trace.start, operations),
            &replay(subject, trace.start, &fewer),
            "a peek changes nothing",
        );
    });
}

/// Asserts that refused requests change no other answer. Leaves out bans, initial amounts and logs that count refusals,
/// because refusals affect them.
///
/// # Panics
/// Panics if the law does not hold.
pub fn refused_request_changes_no_other_answer<S: RuleSubject>(subject: &mut S, traces: u64) {
    for_traces(subject, traces, &[Topic::Ban, Topic::Initial, Topic::CountRefused], |subject, trace, operations| {
        let all = replay(subject, trace.start, operations);
        let is_refused = |deed: &RecordedOperation| matches!(all.get(&deed.number), Some(OperationResult::Decided(answer)) if !answer.outcome.is_admitted());
        let fewer: Vec<RecordedOperation> = operations.iter().filter(|deed| !is_refused(deed)).cloned().collect();
        assert_same_results(
            operations,
            &all,
            &replay(subject, trace.start, &fewer),
            "a refused request changes no other answer",
        );
    });
}

/// Asserts that changing limits and changing them back, without a charge in between, changes no
/// answer.
///
/// # Panics
/// Panics if the law does not hold.
pub fn changing_a_limit_and_back_without_charging_changes_nothing<S: RuleSubject>(subject: &mut S, traces: u64) {
    for_traces(subject, traces, &[], |subject, trace, operations| {
        let (mut longer, mut next) = (Vec::new(), operations.len());
        let mut in_force = None;
        for deed in operations {
            longer.push(deed.clone());
            if let LawOperation::Put(rules) = &deed.what {
                in_force = Some(rules.clone());
            }
            let (LawOperation::Ask(_, request), Some(rules)) = (&deed.what, &in_force) else { continue };
            // Switches to each version, peeks, sends a request that is always refused, and switches back.
            for version in &trace.versions {
                let never = Request { cost: Some(1 << 40), ..request.clone() };
                let peek = LawOperation::Ask(Verb::Peek, request.clone());
                let detour = [
                    LawOperation::Put(version.clone()),
                    peek,
                    LawOperation::Ask(Verb::Check, never),
                    LawOperation::Put(rules.clone()),
                ];
                for what in detour {
                    longer.push(RecordedOperation { number: next, at: deed.at, what });
                    next += 1;
                }
            }
        }
        // A refused request may start a ban or a key, so traces with bans or initial amounts are not compared.
        let touched = [Topic::Ban, Topic::Initial].iter().any(|topic| topic.occurs_in(trace));
        let unlimited = trace.versions.iter().flat_map(|set| &set.rules).any(|rule| {
            let passes = |effect: &Effect| matches!(effect, Effect::Unlimited | Effect::Allow);
            passes(&rule.effect) || rule.is_shadow() || rule.overrides.iter().any(|other| passes(&other.effect))
        });
        if !touched && !unlimited {
            assert_same_results(
                operations,
                &replay(subject, trace.start, operations),
                &replay(subject, trace.start, &longer),
                "changing limits and changing them back changes nothing",
            );
        }
    });
}

/// Asserts that a refund restores the state before the request.
///
/// # Panics
/// Panics if the law does not hold.
pub fn refund_restores_the_state<S: RuleSubject>(subject: &mut S, traces: u64) {
    for_traces(
        subject,
        traces,
        &[Topic::ChangedParameters, Topic::Initial, Topic::Ban],
        |subject, trace, operations| {
            let (mut longer, mut next) = (Vec::new(), operations.len());
            let mut checks = Vec::new();
            for deed in operations {
                longer.push(deed.clone());
                let LawOperation::Ask(Verb::Check | Verb::Charge, request) = &deed.what else { continue };
                // Adds a peek, a copy of the request, a refund of that copy, and another peek.
                let number = next + 1;
                for what in [
                    LawOperation::Ask(Verb::Peek, request.clone()),
                    LawOperation::Ask(Verb::Check, request.clone()),
                    LawOperation::Refund(number),
                    LawOperation::Ask(Verb::Peek, request.clone()),
                ] {
                    longer.push(RecordedOperation { number: next, at: deed.at, what });
                    next += 1;
                }
                checks.push(number);
            }
            let came = replay(subject, trace.start, &longer);
            for check in checks {
                let (Some(OperationResult::Decided(before)), Some(OperationResult::Decided(after))) =
                    (came.get(&(check - 1)), came.get(&(check + 2)))
                else {
                    continue;
                };
                let refused = |answer: &Answer| !answer.outcome.is_admitted() || answer.shadow_refused;
                if matches!(came.get(&check), Some(OperationResult::Decided(answer)) if !refused(answer)) {
                    assert_eq!(after, before, "a refund restores the state: {longer:#?}");
                }
            }
        },
    );
}

/// Shuffles the elements.
fn shuffle<T>(elements: &mut [T], random: &mut Rng) {
    for place in (1..elements.len()).rev() {
        elements.swap(place, random.below(place as u64 + 1) as usize);
    }
}
