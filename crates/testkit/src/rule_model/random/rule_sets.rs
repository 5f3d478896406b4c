//! Rule sets, and later versions of them.

use super::super::calendar::{Schedule, Zone};
use super::super::limit::{Algorithm, Limit, Windows};
use super::super::rules::{Ban, Cost, Effect, OnChange, OnExceed, Override, Rule, RuleSet};
use super::{Rng, limits};

/// Returns several versions of a rule set. The first version is in force at the start.
pub fn any_versions(rng: &mut Rng, tick: u64) -> Vec<RuleSet> {
    let first: Vec<Rule> = (0..rng.pick(&[1, 1, 2, 3])).map(|n| any_rule(rng, tick, &format!("r{n}"))).collect();
    let mut versions = vec![RuleSet { rules: first }];
    for _ in 0..rng.pick(&[0, 1, 2]) {
        let last = versions.last().expect("there is one").clone();
        versions.push(next_version(rng, tick, last));
    }
    versions
}

/// Returns whether the rule has an interval bucket with a `max_wait`. Converting the state of such a bucket to other
/// parameters is undefined.
fn has_max_wait(rule: &Rule) -> bool {
    let sells = |limit: &Limit| matches!(limit.algorithm, Algorithm::IntervalBucket { max_wait: 1.., .. });
    matches!(&rule.effect, Effect::Limits(limits) if limits.iter().any(sells))
}

fn next_version(rng: &mut Rng, tick: u64, mut set: RuleSet) -> RuleSet {
    for rule in &mut set.rules {
        if has_max_wait(rule) || rng.one_in(3) {
            continue;
        }
        if let Effect::Limits(own) = &rule.effect
            && rng.one_in(2)
        {
            let delay = delay_of(rule);
            let limits = if rng.one_in(3) {
                any_limits(rng, tick, delay, false)
            } else {
                own.iter().map(|limit| limits::with_changed_parameters(rng, tick, limit)).collect()
            };
            rule.effect = Effect::Limits(limits);
            rule.overrides.retain(|other| !matches!(other.effect, Effect::Count(_)));
        }
        if rng.one_in(4) {
            rule.cost = any_cost(rng);
        }
    }
    if set.rules.len() > 1 && rng.one_in(4) {
        set.rules.remove(0);
    }
    set
}

const fn delay_of(rule: &Rule) -> Option<u64> {
    match rule.on_exceed {
        OnExceed::Delay(wait) => Some(wait),
        OnExceed::Deny | OnExceed::Shadow => None,
    }
}

/// Returns one or a few limits.
fn any_limits(rng: &mut Rng, tick: u64, delay: Option<u64>, alone: bool) -> Vec<Limit> {
    let count = rng.pick(&[1, 1, 1, 2, 3]);
    match delay {
        Some(delay) => vec![limits::delaying_bucket(rng, tick, delay)],
        None => (0..count).map(|_| limits::any_limit(rng, tick, alone)).collect(),
    }
}

fn any_cost(rng: &mut Rng) -> Cost {
    match rng.below(6) {
        0 => Cost::Number(rng.below(4)),
        1 => Cost::From { max: rng.between(1, 9), missing: rng.below(3) },
        _ => Cost::Number(1),
    }
}

/// Returns a rule with this id.
pub fn any_rule(rng: &mut Rng, tick: u64, id: &str) -> Rule {
    let on_exceed = match rng.below(8) {
        0 | 1 => OnExceed::Shadow,
        2 => OnExceed::Delay(limits::any_delay(rng, tick)),
        _ => OnExceed::Deny,
    };
    let mut rule = Rule {
        when: rng.pick(&[vec![], vec![], vec![("path", "x")]]),
        per: rng.pick(&[vec!["user"], vec!["user"], vec![], vec!["user", "path"]]),
        cost: any_cost(rng),
        on_exceed,
        on_change: if rng.one_in(6) { OnChange::Reset } else { OnChange::Keep },
        schedule: rng.one_in(10).then(|| any_schedule(rng)),
        ..Rule::new(id, Effect::Unlimited)
    };
    if rng.one_in(20) {
        (rule.on_exceed, rule.on_change) = (OnExceed::Deny, OnChange::Keep);
        rule.when = vec![("plan", "own")];
        (rule.per, rule.cost) = (Vec::new(), Cost::Number(1));
        rule.effect = rng.pick(&[Effect::Allow, Effect::Deny, Effect::Unlimited]);
        return rule;
    }
    let delay = delay_of(&rule);
    let own = any_limits(rng, tick, delay, true);
    rule.effect = Effect::Limits(own.clone());
    if on_exceed == OnExceed::Deny && rng.one_in(4) {
        rule.ban = Some(any_ban(rng, tick));
    }
    if has_max_wait(&rule) {
        return rule;
    }
    // If `plan` is in `per`, the requests of an override have a separate counter, which never has other parameters.
    if rng.one_in(3) {
        rule.per.push("plan");
    }
    for plan in ["pro", "own"] {
        if rng.one_in(2) {
            let effect = any_override_effect(rng, tick, &rule, &own);
            rule.overrides.push(Override { when: vec![("plan", plan)], effect, until: None });
        }
    }
    rule
}

fn any_override_effect(rng: &mut Rng, tick: u64, rule: &Rule, own: &[Limit]) -> Effect {
    match rng.below(10) {
        0 => Effect::Unlimited,
        1 if !rule.is_shadow() => Effect::Deny,
        2..5 if own.len() == 1 && may_override_only_count(&own[0]) => {
            Effect::Count(limits::with_changed_parameters(rng, tick, &own[0]).count)
        }
        2..7 => Effect::Limits(own.iter().map(|limit| limits::with_changed_parameters(rng, tick, limit)).collect()),
        _ => Effect::Limits(any_limits(rng, tick, delay_of(rule), false)),
    }
}

/// Returns whether an override may change only the limit's count. Two kinds of limits are excluded: leaky buckets,
/// because their `free` part was chosen for the count, and calendar windows, because the override would get the
/// default debt.
const fn may_override_only_count(limit: &Limit) -> bool {
    !matches!(limit.algorithm, Algorithm::LeakyBucket { .. } | Algorithm::FixedWindow(Windows::Calendar(_)))
}

fn any_ban(rng: &mut Rng, tick: u64) -> Ban {
    let mut length = |most: u64| rng.between(1, most).next_multiple_of(tick);
    let (within, lasts) = (length(20_000_000_000), length(60_000_000_000));
    Ban { after: rng.between(1, 4) as usize, within, length: lasts }
}

pub(super) fn any_schedule(rng: &mut Rng) -> Schedule {
    let days = if rng.one_in(2) { Vec::new() } else { vec![rng.below(7) as u8, 6] };
    let mut days = days;
    days.dedup();
    let mut minutes = || (rng.below(96) * 15) as u16;
    Schedule { days, from: minutes(), to: minutes(), zone: rng.pick(&Zone::ALL) }
}
