//! Limits that have no room for a single request.

use tollgate::Limit;
use tollgate::core::Algorithm;

use super::super::mistake::Notes;
use super::super::rule::{CostOf, Effect, Rule};

/// Limits that have no room for even one request, so that nobody ever passes, or nobody who garbles what it weighs. It is valid,
/// since a request may say itself what it weighs.
pub(super) fn costs_without_room(rule: &Rule, notes: &mut Notes) {
    let weights = match rule.cost() {
        CostOf::Fixed(cost) => vec![(cost.get(), "a request".to_owned(), "`cost`")],
        CostOf::From { attribute, max, missing } => vec![
            (missing.get(), format!("a request without `{attribute}`"), "`missing`"),
            (max.get(), format!("a request whose `{attribute}` is no whole number, or too large,"), "`max`"),
        ],
    };
    let mut tell = |place, what: &str, effect: &Effect| {
        let limits = effect.limits().map_or(&[][..], |set| set.limits.as_slice());
        let without_room = weights.iter().find_map(|(cost, who, word)| {
            limits.iter().find(|limit| limit.capacity() < *cost).map(|limit| (cost, who, word, limit))
        });
        let Some((cost, who, word, limit)) = without_room else { return };
        let room = limit.capacity();
        // All others have room for their count.
        let has_burst = matches!(limit, Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::IntervalBucket(_));
        let help = if has_burst {
            format!("write a `burst` of at least {cost} beside the limit, or a smaller {word}")
        } else {
            format!("write a limit of at least {cost}, or a smaller {word}")
        };
        let problem = format!("{who} never fits {what}: it weighs {cost}, and there is room for {room} at once");
        notes.add_with_help(place, problem, help);
    };
    tell(rule.place().place, &format!("`{}`", rule.id()), rule.effect());
    for other in rule.overrides() {
        tell(other.place, "this override", &other.effect);
    }
}
