//! Short named traces in which a program once differed from the model. Every store runs all traces except those that
//! use a feature that the store lacks.

use super::Verb;
use super::calendar::{Calendar, Unit, Zone};
use super::limit::{Algorithm, Limit, Windows};
use super::random::{Act, Amount, Pause, Step, Topic, Trace};
use super::rules::{Ban, Effect, OnChange, OnExceed, Override, Request, Rule, RuleSet};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_800_000_000 * SECOND;
const WEEK: u64 = 604_800 * SECOND;

fn limit(count: u64, period: u64, algorithm: Algorithm) -> Limit {
    Limit { count, period, algorithm, burst: None, initial: None, max_debt: None }
}

const fn token_bucket() -> Algorithm {
    Algorithm::TokenBucket { delay: None }
}

fn rule_with_limits(id: &str, limits: Vec<Limit>) -> Rule {
    Rule { per: vec!["user"], ..Rule::new(id, Effect::Limits(limits)) }
}

fn trace_of(rules: Vec<Rule>, steps: Vec<Step>) -> Trace {
    Trace { start: START, versions: vec![RuleSet { rules }], steps }
}

/// Returns a request by user `a` after `pause` nanoseconds, with or without a plan.
fn request_step(pause: u64, verb: Verb, plan: Option<&str>, cost: u64) -> Step {
    let mut attributes = vec![("user", "a".to_owned())];
    attributes.extend(plan.map(|plan| ("plan", plan.to_owned())));
    let pause = if pause == 0 { Pause::None } else { Pause::Nanos(pause) };
    Step { pause, act: Act::Ask(verb, Request { attributes, cost: None }, Amount::Exactly(cost)) }
}

fn check_step(pause: u64, cost: u64) -> Step {
    request_step(pause, Verb::Check, None, cost)
}

/// Returns a limit of each algorithm: `count` per week, or `count` slots with week-long leases.
fn every_algorithm(count: u64) -> Vec<Limit> {
    let algorithms = [
        token_bucket(),
        Algorithm::LeakyBucket { free: 0, max_wait: None },
        Algorithm::IntervalBucket { grid: super::limit::StepAlignment::FirstRequest, max_wait: 0 },
        Algorithm::FixedWindow(Windows::FirstRequest),
        Algorithm::SlidingWindow,
        Algorithm::SlidingSlices { precision: None },
        Algorithm::SlidingLog { gap: 0, count_refused: false },
        Algorithm::Concurrency { lease: WEEK },
    ];
    algorithms.map(|algorithm| limit(count, WEEK, algorithm)).into()
}

/// Returns all traces with their names.
pub fn all_traces() -> Vec<(&'static str, Vec<Trace>)> {
    vec![
        ("a refusal under a smaller limit keeps the amount spent", refusal_under_smaller_limit()),
        ("changing a limit and changing it back keeps the amount spent", vec![change_and_change_back()]),
        ("a refused request under an override does not change the refill", vec![refill_after_refused_override()]),
        ("a new key with a minimum gap and an initial amount passes", vec![gap_with_initial()]),
        ("a ban counts refusals in a sliding window", vec![ban_counting_in_sliding_window()]),
        ("a commit above the reservation charges all rules or none", vec![commit_above_reservation()]),
        ("a log that counts refusals records the refused part of a commit", vec![refused_part_of_commit()]),
        ("a refusal at the end of a ban counts", vec![refusal_at_end_of_ban()]),
        ("a delay includes the cost of the request", vec![long_delay()]),
        ("slices that do not divide the period evenly expire on time", vec![uneven_slices()]),
        ("the default debt of every algorithm equals its limit", default_debt()),
        ("each switch between overrides adds less than a tick", vec![switching_rates()]),
        ("`take-up-to` waits for the amount that it takes", vec![take_up_to_with_wait()]),
        ("a cost of zero is refused only in debt", vec![cost_of_zero()]),
        ("a shadow rule that denies leaves other shadow rules uncharged", vec![denying_shadow_rule()]),
        ("debt of calendar windows is paid window by window", vec![calendar_debt()]),
        ("a refund under another algorithm refunds only what still counts", refund_after_a_change()),
        ("a refund applies only to the limits that its request was charged to", vec![refund_of_one_of_two_charges()]),
        ("debt of calendar windows is kept under another limit", vec![calendar_debt_under_another_limit()]),
        ("debt of calendar windows is kept when many other keys are used", vec![calendar_debt_beside_other_keys()]),
        ("a charge counts until the day ends in the time zone of its limit", other_time_zones()),
        ("stating a default parameter explicitly does not change a rule", vec![default_debt_stated()]),
        ("a renewal applies to the slots of its request even after a rule change", renewals_after_a_change()),
        ("a log does not confuse the end of a slice with the time of an entry", vec![end_of_a_slice()]),
        ("an unused key counts as new under an override with `initial`", vec![new_to_an_override()]),
        ("a refused request changes the limits of none of its keys", vec![refused_over_several_keys()]),
        ("a previous count above the smaller limit moves to the current window", vec![previous_window_above_limit()]),
        ("a rule that is removed and added again keeps the usage of its keys", vec![removed_and_added_again()]),
        ("a refund does not confuse a slot with a log entry", refunds_between_slots_and_log()),
    ]
}

/// Spends a limit of 100. Then a peek and a refused request follow under a limit of 2, and a request for 90 more under
/// the limit of 100.
fn refusal_under_smaller_limit() -> Vec<Trace> {
    let traces = every_algorithm(2).into_iter().zip(every_algorithm(100)).map(|(small, large)| {
        let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![large]), until: None };
        let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![small]) }];
        let pro = Some("pro");
        let refused = request_step(0, Verb::Check, None, 1);
        trace_of(
            rules,
            vec![
                request_step(0, Verb::Check, pro, 100),
                request_step(0, Verb::Peek, None, 1),
                refused,
                request_step(1, Verb::Check, pro, 90),
            ],
        )
    });
    traces.collect()
}

/// Changes the limit from 10 to 2 and back to 10, with a peek in between. Of the 10, 6 are spent and 4 remain.
fn change_and_change_back() -> Trace {
    let version = |count| RuleSet { rules: vec![rule_with_limits("r0", vec![limit(count, WEEK, token_bucket())])] };
    let put = |version| Step { pause: Pause::None, act: Act::Put(version) };
    let peek = || request_step(0, Verb::Peek, None, 1);
    let steps = vec![check_step(0, 6), put(1), peek(), put(0), peek(), check_step(0, 5), check_step(0, 4)];
    Trace { start: START, versions: vec![version(10), version(2)], steps }
}

/// The limit is 10/10s with an override of 5/10s. Ten units are taken, a request is refused under the override, and ten
/// units are available after 10 s.
fn refill_after_refused_override() -> Trace {
    let other = limit(5, 10 * SECOND, token_bucket());
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![other]), until: None };
    let rules =
        vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![limit(10, 10 * SECOND, token_bucket())]) }];
    trace_of(rules, vec![check_step(0, 10), request_step(0, Verb::Check, Some("pro"), 1), check_step(10 * SECOND, 10)])
}

fn gap_with_initial() -> Trace {
    let log = limit(5, 60 * SECOND, Algorithm::SlidingLog { gap: SECOND, count_refused: false });
    let log = Limit { initial: Some(2), ..log };
    trace_of(vec![rule_with_limits("r0", vec![log])], vec![check_step(0, 1), check_step(0, 1), check_step(SECOND, 1)])
}

/// Requests are refused at 7, 16.9, 17.0 and 17.1 s.
fn ban_counting_in_sliding_window() -> Trace {
    let ban = Some(Ban { after: 3, within: 10 * SECOND, length: 60 * SECOND });
    let rules = vec![Rule { ban, ..rule_with_limits("r0", vec![limit(1, 3_600 * SECOND, token_bucket())]) }];
    let tenth = SECOND / 10;
    trace_of(
        rules,
        vec![
            check_step(0, 1),
            check_step(7 * SECOND, 1),
            check_step(99 * tenth, 1),
            check_step(tenth, 1),
            check_step(tenth, 1),
        ],
    )
}

fn commit_above_reservation() -> Trace {
    let other = rule_with_limits("r1", vec![limit(1_000, WEEK, Algorithm::FixedWindow(Windows::Epoch))]);
    let rules = vec![rule_with_limits("r0", vec![limit(10, WEEK, token_bucket())]), other];
    let commit = Step { pause: Pause::None, act: Act::Commit(0, Amount::Exactly(300)) };
    trace_of(rules, vec![check_step(0, 5), commit, request_step(0, Verb::Peek, None, 1)])
}

/// The limit is 1/week with a debt of 1. A further cost of 2 is refused and recorded, so a cost of 0 is refused as
/// well.
fn refused_part_of_commit() -> Trace {
    let log = Limit { max_debt: Some(1), ..limit(1, WEEK, Algorithm::SlidingLog { gap: 0, count_refused: true }) };
    let commit = Step { pause: Pause::None, act: Act::Commit(0, Amount::Exactly(3)) };
    trace_of(
        vec![rule_with_limits("r0", vec![log])],
        vec![check_step(0, 1), commit, check_step(0, 0), request_step(0, Verb::Peek, None, 1)],
    )
}

/// A one-second ban ends, and the refusal at that instant starts the next ban.
fn refusal_at_end_of_ban() -> Trace {
    let ban = Some(Ban { after: 1, within: SECOND, length: SECOND });
    let rules = vec![Rule { ban, ..rule_with_limits("r0", vec![limit(1, 3_600 * SECOND, token_bucket())]) }];
    trace_of(rules, vec![check_step(0, 1), check_step(0, 1), check_step(SECOND, 1), check_step(0, 1)])
}

/// Under a limit of 1/s with a burst of 2, a cost of 12 waits 10 s.
fn long_delay() -> Trace {
    let delay = 20 * SECOND;
    let bucket = limit(1, SECOND, Algorithm::TokenBucket { delay: Some(delay) });
    let bucket = Limit { burst: Some(2), ..bucket };
    let rules = vec![Rule { on_exceed: OnExceed::Delay(delay), ..rule_with_limits("r0", vec![bucket]) }];
    trace_of(rules, vec![check_step(0, 12), check_step(0, 1), check_step(SECOND, 30)])
}

/// The window is 10 s and the precision 6 s. A request admitted at 0 s expires at 15 s, not at 18
/// s.
fn uneven_slices() -> Trace {
    let slices = limit(1, 10 * SECOND, Algorithm::SlidingSlices { precision: Some(6 * SECOND) });
    let rules = vec![rule_with_limits("r0", vec![slices])];
    trace_of(rules, vec![check_step(0, 1), check_step(14 * SECOND, 1), check_step(SECOND, 1)])
}

fn default_debt() -> Vec<Trace> {
    let charges = || {
        vec![
            request_step(0, Verb::Charge, None, 4),
            request_step(0, Verb::Charge, None, 2),
            request_step(0, Verb::Charge, None, 1),
        ]
    };
    let limits =
        every_algorithm(3).into_iter().map(|limit| trace_of(vec![rule_with_limits("r0", vec![limit])], charges()));
    limits.collect()
}

/// Charges alternately under rates without a common tick.
fn switching_rates() -> Trace {
    let other = Override {
        when: vec![("plan", "pro")],
        effect: Effect::Limits(vec![limit(7, 999_999_937, token_bucket())]),
        until: None,
    };
    let own = Limit { burst: Some(100), ..limit(3, 1_000_000_007, token_bucket()) };
    let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![own]) }];
    let steps = (0..20).map(|n| request_step(n * 1_234_567, Verb::Check, (n % 2 == 1).then_some("pro"), 1));
    trace_of(rules, steps.collect())
}

/// A leaky bucket has 8 units left, and the last unit would wait 7 s, but only 3 units are taken.
fn take_up_to_with_wait() -> Trace {
    let limits =
        vec![limit(8, 8 * SECOND, Algorithm::LeakyBucket { free: 0, max_wait: None }), limit(3, WEEK, token_bucket())];
    trace_of(vec![rule_with_limits("r0", limits)], vec![request_step(0, Verb::TakeUpTo, None, 8)])
}

fn cost_of_zero() -> Trace {
    let leaky = limit(6, 6 * SECOND, Algorithm::LeakyBucket { free: 0, max_wait: Some(SECOND) });
    let leaky = Limit { max_debt: Some(1), ..leaky };
    let charge = |cost| request_step(0, Verb::Charge, None, cost);
    trace_of(vec![rule_with_limits("r0", vec![leaky])], vec![charge(6), check_step(0, 0), charge(1), check_step(0, 0)])
}

fn denying_shadow_rule() -> Trace {
    let shadow =
        |id| Rule { on_exceed: OnExceed::Shadow, ..rule_with_limits(id, vec![limit(5, WEEK, token_bucket())]) };
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Deny, until: None };
    let rules = vec![shadow("r0"), Rule { overrides: vec![other], ..shadow("r1") }];
    trace_of(
        rules,
        vec![request_step(0, Verb::Check, Some("pro"), 1), request_step(0, Verb::Peek, None, 1), check_step(0, 1)],
    )
}

/// Charges 14 units in January under a limit of 3 per month with a debt of 12. The debt is 11 units in February, 8 in
/// March and 2 in May.
fn calendar_debt() -> Trace {
    let month = Calendar { unit: Unit::Month(1), zone: Zone::Utc };
    let monthly = limit(3, 0, Algorithm::FixedWindow(Windows::Calendar(month)));
    let rules = vec![rule_with_limits("r0", vec![Limit { max_debt: Some(12), ..monthly }])];
    let month = 31 * 86_400 * SECOND;
    let peek = || request_step(month, Verb::Peek, None, 1);
    trace_of(
        rules,
        vec![request_step(0, Verb::Charge, None, 14), peek(), peek(), request_step(2 * month, Verb::Check, None, 1)],
    )
}

/// Charges nine units in November under a limit of 8 per month with a debt of 1. One unit stays used until the end of
/// December, which has 31 days, although a month has 30.4 days on average. So the key does not count as new under the
/// override, where a new key would have only 1 of 3 units.
fn calendar_debt_under_another_limit() -> Trace {
    let month = Calendar { unit: Unit::Month(1), zone: Zone::Utc };
    let monthly = |count| limit(count, 0, Algorithm::FixedWindow(Windows::Calendar(month)));
    let pro = Limit { initial: Some(1), ..monthly(3) };
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![pro]), until: None };
    let own = Limit { max_debt: Some(1), ..monthly(8) };
    let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![own]) }];
    let day = 86_400 * SECOND;
    let start = 1_825_459_200 * SECOND; // 2027-11-06
    let steps =
        vec![request_step(0, Verb::Charge, None, 9), request_step(55 * day + day / 2, Verb::Check, Some("pro"), 1)];
    Trace { start, ..trace_of(rules, steps) }
}

/// Peeks at the debt of the previous trace on the last day of December, before and after requests for more keys than a
/// small store can hold.
fn calendar_debt_beside_other_keys() -> Trace {
    let month = Calendar { unit: Unit::Month(1), zone: Zone::Utc };
    let monthly = limit(8, 0, Algorithm::FixedWindow(Windows::Calendar(month)));
    let rules = vec![rule_with_limits("r0", vec![Limit { max_debt: Some(1), ..monthly }])];
    let day = 86_400 * SECOND;
    let start = 1_825_459_200 * SECOND; // 2027-11-06
    let other = |number: u32| {
        let request = Request { attributes: vec![("user", format!("b{number}"))], cost: None };
        Step { pause: Pause::None, act: Act::Ask(Verb::Check, request, Amount::Exactly(0)) }
    };
    let mut steps = vec![request_step(0, Verb::Charge, None, 9), request_step(55 * day + day / 2, Verb::Peek, None, 1)];
    steps.extend((0..600).map(other));
    steps.push(request_step(0, Verb::Peek, None, 1));
    Trace { start, ..trace_of(rules, steps) }
}

/// Uses up a daily limit in one time zone, then asks under an override with days of another zone. The first charge
/// counts until its own day ends. Later charges count in the days of the other zone.
fn other_time_zones() -> Vec<Trace> {
    let daily =
        |count, zone| limit(count, 0, Algorithm::FixedWindow(Windows::Calendar(Calendar { unit: Unit::Day, zone })));
    let hours = [0, 11, 13, 23];
    let traces = [(Zone::Utc, Zone::Paris), (Zone::Paris, Zone::Utc), (Zone::Utc, Zone::NewYork)].map(|(one, two)| {
        let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![daily(7, two)]), until: None };
        let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![daily(9, one)]) }];
        let hour = 3_600 * SECOND;
        let later = hours.map(|hours| request_step(hours * hour, Verb::Check, Some("pro"), 4));
        trace_of(rules, [check_step(0, 9)].into_iter().chain(later).chain([check_step(hour, 4)]).collect())
    });
    traces.into()
}

/// A rule with `on_change: reset` changes twice: it first states its default debt explicitly, and then another debt.
fn default_debt_stated() -> Trace {
    let version = |max_debt| {
        let limit = Limit { max_debt, ..limit(5, WEEK, token_bucket()) };
        RuleSet { rules: vec![Rule { on_change: OnChange::Reset, ..rule_with_limits("r0", vec![limit]) }] }
    };
    let put = |version| Step { pause: Pause::None, act: Act::Put(version) };
    let steps = vec![check_step(0, 2), put(1), check_step(0, 1), put(2), check_step(0, 1)];
    Trace { start: START, versions: vec![version(None), version(Some(5)), version(Some(4))], steps }
}

/// For every pair of algorithms: takes five units under the first algorithm and three more under the second, then
/// refunds the first charge.
fn refund_after_a_change() -> Vec<Trace> {
    let put = Step { pause: Pause::None, act: Act::Put(1) };
    let refund = Step { pause: Pause::None, act: Act::Refund(1) };
    let steps = vec![check_step(0, 5), put, check_step(SECOND, 3), refund, request_step(0, Verb::Peek, None, 1)];
    let version = |limit: &Limit| RuleSet { rules: vec![rule_with_limits("r0", vec![limit.clone()])] };
    let limits = every_algorithm(10);
    let pairs = limits.iter().flat_map(|one| limits.iter().map(|other| vec![version(one), version(other)]));
    pairs.map(|versions| Trace { start: START, versions, steps: steps.clone() }).collect()
}

/// Takes three units under an override with one limit and five more under the rule's two limits, then refunds the first
/// charge. Afterwards, five units remain under each of the two limits.
fn refund_of_one_of_two_charges() -> Trace {
    let ten = || limit(10, WEEK, token_bucket());
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![ten()]), until: None };
    let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![ten(), ten()]) }];
    let refund = Step { pause: Pause::None, act: Act::Refund(1) };
    trace_of(
        rules,
        vec![
            request_step(0, Verb::Check, Some("pro"), 3),
            check_step(0, 5),
            refund,
            request_step(0, Verb::Peek, None, 1),
        ],
    )
}

/// Takes and renews slots. Then the rule is removed, or becomes a bucket and a request converts the slots.
fn renewals_after_a_change() -> Vec<Trace> {
    let slots =
        RuleSet { rules: vec![rule_with_limits("r0", vec![limit(3, WEEK, Algorithm::Concurrency { lease: WEEK })])] };
    let step = |act| Step { pause: Pause::None, act };
    let renew = |index| step(Act::Renew(index));
    let begin = || vec![check_step(0, 1), renew(0), step(Act::Put(1)), renew(0)];
    let bucket_rule = |id| RuleSet { rules: vec![rule_with_limits(id, vec![limit(3, WEEK, token_bucket())])] };
    let removed = Trace { start: START, versions: vec![slots.clone(), bucket_rule("r1")], steps: begin() };
    let steps = begin().into_iter().chain([check_step(0, 1), renew(1)]).collect();
    vec![removed, Trace { start: START, versions: vec![slots, bucket_rule("r0")], steps }]
}

/// Takes one unit a tick before the end of a slice, and one more under a log at the same instant. The instant is
/// computed from the reset of an earlier charge. Then refunds the first of the two units. The receipt of that
/// unit names the slice, so the log refunds nothing.
fn end_of_a_slice() -> Trace {
    let slices = limit(5, 10 * SECOND, Algorithm::SlidingSlices { precision: Some(SECOND) });
    let log = limit(5, 10 * SECOND, Algorithm::SlidingLog { gap: 0, count_refused: false });
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![log]), until: None };
    let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![slices]) }];
    let mut steps = vec![check_step(0, 1), check_step(0, 1), request_step(0, Verb::Check, Some("pro"), 1)];
    steps[1].pause = Pause::BeforeReset(0);
    steps.extend([Step { pause: Pause::None, act: Act::Refund(1) }, request_step(0, Verb::Peek, Some("pro"), 1)]);
    trace_of(rules, steps)
}

/// Charges a key under a log and a window, then under a bucket with an initial amount of 0, then under the rule's own
/// limit. When nothing is used any more, the key counts as new under the bucket with the initial amount, although it
/// was charged under that bucket before.
fn new_to_an_override() -> Trace {
    let log = limit(12, SECOND, Algorithm::SlidingLog { gap: 0, count_refused: false });
    let window = limit(11, 5 * SECOND, Algorithm::SlidingWindow);
    let minutes = |count, initial| Limit { initial, ..limit(count, 900 * SECOND, token_bucket()) };
    let other = |plan, limits| Override { when: vec![("plan", plan)], effect: Effect::Limits(limits), until: None };
    let overrides = vec![other("pro", vec![log, window]), other("own", vec![minutes(2, Some(0))])];
    let rules = vec![Rule { overrides, ..rule_with_limits("r0", vec![minutes(10, None)]) }];
    let refund = Step { pause: Pause::None, act: Act::Refund(0) };
    // The window is still used when the key is charged under the bucket, so the key does not count as new.
    let own = |pause| request_step(pause, Verb::Check, Some("own"), 1);
    trace_of(
        rules,
        vec![request_step(0, Verb::Check, Some("pro"), 1), own(SECOND), refund, check_step(0, 1), own(1_000 * SECOND)],
    )
}

/// Two rules with separate keys: a request under an override of the second rule is refused by the first rule. If
/// nodes share the limits, the two keys of some users have different homes.
fn refused_over_several_keys() -> Trace {
    let other = limit(100, 10 * SECOND, token_bucket());
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![other]), until: None };
    let first = rule_with_limits("r0", vec![limit(2, WEEK, token_bucket())]);
    let second =
        Rule { overrides: vec![other], ..rule_with_limits("r1", vec![limit(10, 100 * SECOND, token_bucket())]) };
    let request_step = |user: u32, verb, plan: Option<&str>| {
        let mut attributes = vec![("user", format!("u{user}"))];
        attributes.extend(plan.map(|plan| ("plan", plan.to_owned())));
        let act = Act::Ask(verb, Request { attributes, cost: None }, Amount::Exactly(2));
        Step { pause: Pause::Nanos(SECOND), act }
    };
    let steps = (0..8).flat_map(|user| {
        let check_step = |plan| request_step(user, Verb::Check, plan);
        [
            check_step(None),
            check_step(Some("pro")),
            request_step(user, Verb::Peek, None),
            request_step(user, Verb::Peek, Some("pro")),
        ]
    });
    trace_of(vec![first, second], steps.collect())
}

/// Charges 28 units in one window. The next charge is made near the end of the following window, under a limit of 2
/// with windows of the same length. Such a limit cannot hold a count of 28. So the estimate of 0.9, rounded up, counts
/// in the current window.
fn previous_window_above_limit() -> Trace {
    let windows = |count| limit(count, 60 * SECOND, Algorithm::SlidingWindow);
    let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![windows(2)]), until: None };
    let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![windows(278)]) }];
    let pro = |pause| request_step(pause, Verb::Check, Some("pro"), 1);
    // Windows begin at multiples of a minute, and so does the trace.
    trace_of(rules, vec![check_step(10 * SECOND, 28), pro(108 * SECOND), pro(3 * SECOND)])
}

/// Takes three units of a bucket. The rule is removed and added again with a log, which has a longer state. Then the
/// rule is removed and added again with the bucket.
fn removed_and_added_again() -> Trace {
    let log = limit(10, WEEK, Algorithm::SlidingLog { gap: 0, count_refused: false });
    let versions = vec![
        RuleSet { rules: vec![rule_with_limits("r0", vec![limit(10, WEEK, token_bucket())])] },
        RuleSet { rules: Vec::new() },
        RuleSet { rules: vec![rule_with_limits("r0", vec![log])] },
    ];
    let put = |version| Step { pause: Pause::None, act: Act::Put(version) };
    let steps =
        vec![check_step(0, 3), put(1), put(2), check_step(0, 3), put(1), put(0), check_step(0, 5), check_step(0, 4)];
    Trace { start: START, versions, steps }
}

/// Takes three slots and then, at the same instant, three units of a log, and refunds the slots. A second trace does
/// the reverse. The change of algorithm ends the slots. A slot's receipt names no instant and a log entry's receipt
/// names no slot. So nothing is refunded, even if the slot's number equals that instant.
fn refunds_between_slots_and_log() -> Vec<Trace> {
    let slots = limit(8, WEEK, Algorithm::Concurrency { lease: WEEK });
    let log = limit(8, WEEK, Algorithm::SlidingLog { gap: 0, count_refused: false });
    let traces = [(&slots, &log), (&log, &slots)].map(|(own, other)| {
        let other = Override { when: vec![("plan", "pro")], effect: Effect::Limits(vec![other.clone()]), until: None };
        let rules = vec![Rule { overrides: vec![other], ..rule_with_limits("r0", vec![own.clone()]) }];
        let refund = Step { pause: Pause::None, act: Act::Refund(1) };
        let pro = |verb, cost| request_step(0, verb, Some("pro"), cost);
        trace_of(rules, vec![check_step(0, 3), pro(Verb::Check, 3), refund, pro(Verb::Peek, 1)])
    });
    traces.into()
}

/// Runs all traces except traces about a topic in `left_out`, and returns the differences.
pub fn run_known_traces<S: super::lockstep::RuleSubject>(subject: &mut S, left_out: &[Topic]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, traces) in all_traces() {
        for mut trace in traces.into_iter().filter_map(|trace| trace.without_topics(left_out)) {
            // Rounds the periods up to the resolution of the subject's clock.
            let tick = subject.tick();
            for limit in trace.versions.iter_mut().flat_map(|set| &mut set.rules).flat_map(limits_of) {
                limit.period = limit.period.next_multiple_of(tick);
            }
            if let Err(difference) = super::lockstep::run_trace(subject, &trace) {
                found.push(super::lockstep::describe_difference(0, &trace, &difference).replace("seed 0", name));
            }
        }
    }
    found
}

fn limits_of(rule: &mut Rule) -> Vec<&mut Limit> {
    let others = rule.overrides.iter_mut().map(|other| &mut other.effect);
    let limits = std::iter::once(&mut rule.effect).chain(others).filter_map(|effect| match effect {
        Effect::Limits(limits) => Some(limits),
        Effect::Count(_) | Effect::Unlimited | Effect::Allow | Effect::Deny => None,
    });
    limits.flatten().collect()
}
