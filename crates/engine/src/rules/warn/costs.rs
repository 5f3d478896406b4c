//! Warns about limits that are smaller than the cost of a single request.

use tollgate::Limit;
use tollgate::core::Algorithm;

use super::super::mistake::MistakeCollector;
use super::super::rule::{CostCase, DefaultCost, Effect, Rule};

/// Warns about limits whose capacity is below the cost of a request. Such limits are valid, because a request may state
/// its own cost.
pub(super) fn warn_about_costs_above_capacity(rule: &Rule, notes: &mut MistakeCollector) {
    let weights = match rule.cost() {
        DefaultCost::Fixed(cost) => vec![(cost.get(), "a request".to_owned(), "`cost`")],
        DefaultCost::From { attribute, max, missing } => vec![
            (missing.get(), format!("a request without `{attribute}`"), "`missing`"),
            (max.get(), format!("a request whose `{attribute}` is invalid or too large"), "`max`"),
        ],
        DefaultCost::Cases(cases) => {
            let name = |case: &CostCase| {
                case.when
                    .first()
                    .map_or("a request".to_owned(), |when| format!("a request with this `{}`", when.attribute))
            };
            cases.iter().map(|case| (case.cost.get(), name(case), "`cost`")).collect()
        }
    };
    let mut report = |position, what: &str, effect: &Effect| {
        let limits = effect.limits().map_or(&[][..], |set| set.limits.as_slice());
        let too_small = weights.iter().find_map(|(cost, who, word)| {
            limits.iter().find(|limit| limit.capacity() < *cost).map(|limit| (cost, who, word, limit))
        });
        let Some((cost, who, word, limit)) = too_small else { return };
        let capacity = limit.capacity();
        // For all other algorithms the capacity is the count of the limit.
        let has_burst = matches!(limit, Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::IntervalBucket(_));
        let help = if has_burst {
            format!("write a `burst` of at least {cost}, or a smaller {word}")
        } else {
            format!("write a limit of at least {cost}, or a smaller {word}")
        };
        let problem = format!("{who} never passes {what}: its cost is {cost}, the capacity {capacity}");
        notes.add_with_help(position, problem, help);
    };
    report(rule.position().position, &format!("`{}`", rule.id()), rule.effect());
    for other in rule.overrides() {
        report(other.position, "this override", &other.effect);
    }
}
