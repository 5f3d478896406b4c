//! Explains a matching rule: its overrides, ban and limits, compared with the rule as written.

use tollgate::core::{Cost, Nanos, Params, Phase, Time, Wall};
use tollgate::{Limit, Outcome, Retry};

use super::conditions::{attribute_values, describe_satisfied, distance, failed_condition, nearest_first};
use super::{position_of, printable};
use crate::calendar::{Calendar, Zone};
use crate::decision::Decisions;
use crate::engine::RulesInForce;
use crate::engine::plan::{AnswerSource, PlannedCharge};
use crate::explain::{
    AppliedOverride, BanState, BanStatus, CostSource, CostValue, LimitState, MatchExplanation, OverrideExplanation,
    OverrideMismatch, OverridePosition, Refill, RuleEffect, SkippedOverride,
};
use crate::key;
use crate::request::{Attribute, Item};
use crate::rules::{DefaultCost, Effect, OnExceed, OnFault, Override, Rule};
use crate::ruleset::CandidateRules;

/// Maximum number of non-matching overrides in an explanation.
const MAX_SHOWN_OVERRIDES: usize = 3;
/// Maximum number of overrides that are compared to find the nearest matches. The maximum bounds the time that other
/// requests wait while a refusal is explained for the log.
const MAX_COMPARED_OVERRIDES: usize = 10_000;

/// A charge and everything needed to explain it.
pub(super) struct ChargeContext<'a> {
    pub(super) decisions: &'a Decisions,
    /// The index of the charge.
    pub(super) charge: usize,
    /// The ban of the charge's counter.
    pub(super) ban: Option<&'a PlannedCharge>,
    /// The item that matched the rule.
    pub(super) item: &'a Item<'a>,
    /// The rule; `None` for inline limits.
    pub(super) rule: Option<&'a Rule>,
    pub(super) running: &'a RulesInForce,
    /// The matching rules of the domain, as written and in order.
    pub(super) matching: &'a [&'a Rule],
    /// The current time.
    pub(super) at: Time<Wall>,
}

impl ChargeContext<'_> {
    /// Returns the explanation.
    pub(super) fn explain(&self) -> MatchExplanation {
        let Self { decisions, ban, rule, .. } = *self;
        let planned = &decisions.plan.charges[self.charge];
        let overrides = rule.filter(|rule| !rule.overrides().is_empty());
        let overriding = self.applied_override(planned);
        let key = decisions.plan.key(planned);
        let counted = match key::decode_counted_values(key) {
            Some(counted) => counted.into_iter().map(|(name, value)| (printable(name), value.map(printable))).collect(),
            None => vec![("key".to_owned(), Some(printable(key::inline_name_of(key))))],
        };
        let ban = ban.zip(rule).and_then(|(planned, rule)| self.ban_state(planned, rule));
        let banned = ban.as_ref().is_some_and(|ban| matches!(ban.status, BanStatus::Banned { .. }));
        let refuses = decisions.answer(planned).is_some_and(|(answer, _)| matches!(answer.outcome, Outcome::Deny(_)));
        let fault = match planned.answered {
            AnswerSource::Open => Some(OnFault::Open),
            AnswerSource::Closed => Some(OnFault::Closed),
            AnswerSource::Fallback(_) => Some(OnFault::Local),
            AnswerSource::Unanswered | AnswerSource::Enforced(_) | AnswerSource::Shadow(_) => None,
        };
        MatchExplanation {
            counted,
            cost: planned.cost.get(),
            cost_by: self.cost_source(planned.cost),
            effect: match (planned.is_denied(), planned.is_sent()) {
                _ if planned.is_omitted() => RuleEffect::Replaced,
                (true, _) => RuleEffect::Denies,
                (false, false) if rule.is_some_and(|rule| *rule.effect() == Effect::Allow) => RuleEffect::Allows,
                (false, false) => RuleEffect::Unlimited,
                (false, true) if decisions.plan.limits.override_limits_of(planned).is_some() => RuleEffect::Overrides,
                (false, true) => RuleEffect::Limits,
            },
            replaced_by: self.replaced_by(),
            suffice: self.other_rules_marked_suffices(),
            delays: match rule.map(Rule::on_exceed) {
                Some(OnExceed::Delay { max_wait }) => Some(max_wait),
                Some(OnExceed::Deny | OnExceed::Shadow | OnExceed::Drop) | None => None,
            },
            shadow: planned.shadow,
            excluded_by_enforce: planned.shadow && rule.is_some_and(|rule| rule.on_exceed() != OnExceed::Shadow),
            refuses: planned.is_denied() || banned || refuses || fault == Some(OnFault::Closed),
            consistency: rule.map(Rule::consistency).unwrap_or_default(),
            fault,
            overrides: overrides.map(|rule| self.explain_overrides(rule, overriding)),
            ban,
            limits: self.limit_states(planned, overriding.and_then(|position| rule?.overrides().get(position))),
        }
    }

    fn attributes(&self) -> &[Attribute<'_>] {
        self.item.attributes
    }

    fn cost_source(&self, cost: Cost) -> CostSource {
        match (self.item.cost, self.rule.map(Rule::cost)) {
            (Some(_), _) => CostSource::Request,
            (None, Some(DefaultCost::From { attribute, max, missing })) => {
                let value = attribute_values(self.attributes(), attribute).next();
                let is_number = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let number = value.and_then(|value| str::from_utf8(value).ok()?.parse().ok()).map(Cost::new);
                let value = match value {
                    // The source is named only if it explains the whole cost. Several items may share a charge, which
                    // then costs the sum of their costs.
                    None if cost == *missing => CostValue::Missing,
                    Some(value) if cost == *max && !is_number(value) => CostValue::NotANumber(printable(value)),
                    Some(value) if cost == *max && number.is_none_or(|number| number > *max) => {
                        CostValue::AboveMaximum(printable(value))
                    }
                    Some(_) | None => CostValue::Number,
                };
                CostSource::Attribute { name: attribute.to_string(), value }
            }
            (None, Some(DefaultCost::Cases(cases))) => {
                match cases.iter().find(|case| failed_condition(&case.when, self.attributes()).is_none()) {
                    Some(case) => CostSource::Case(
                        case.when.iter().map(|when| describe_satisfied(when, self.attributes())).collect(),
                    ),
                    None => CostSource::Rule,
                }
            }
            (None, Some(DefaultCost::Fixed(_)) | None) => CostSource::Rule,
        }
    }

    /// Returns the other matching rules marked `suffices`, if this rule is marked too.
    fn other_rules_marked_suffices(&self) -> Vec<String> {
        let Some(rule) = self.rule.filter(|rule| rule.suffices) else { return Vec::new() };
        let others = self.matching.iter().filter(|other| other.suffices && other.id() != rule.id());
        others.map(|other| other.id().to_owned()).collect()
    }

    /// Returns the matching rule that replaces this rule.
    fn replaced_by(&self) -> Option<String> {
        let id = self.rule?.id();
        let mut matching = self.matching.iter();
        let replaces = |other: &&&Rule| other.replaces().iter().any(|replaced| **replaced == *id);
        matching.find(replaces).map(|other| other.id().to_owned())
    }

    /// Returns the index of the override that applies, found by the lookup that the decision used.
    fn applied_override(&self, planned: &PlannedCharge) -> Option<usize> {
        let rule = self.running.rules.rules().get(planned.rule()? as usize)?;
        let overrides = rule.special()?.overrides.as_ref()?;
        let position =
            overrides.first_matching(self.attributes(), &mut CandidateRules::default(), self.decisions.plan.now());
        position.map(|position| position as usize)
    }

    fn explain_overrides(&self, rule: &Rule, applies: Option<usize>) -> OverrideExplanation {
        let (all, hides_positions) = (rule.overrides(), self.running.written.hides_positions());
        let name = |at: usize| if hides_positions { all[at].api_value() } else { None };
        let position = |at: usize| match name(at) {
            Some(name) => OverridePosition::Named(printable(name.as_bytes())),
            None if hides_positions => OverridePosition::InRule((0..=at).filter(|at| name(*at).is_none()).count()),
            None => OverridePosition::At(position_of(&rule.position().file, all[at].position)),
        };
        let (mut near, mut for_others, mut more_skipped) = (Vec::new(), Vec::<(String, usize)>::new(), 0);
        for (at, other) in all.iter().enumerate().take(applies.unwrap_or(all.len())) {
            // There may be one override per customer, and the overrides of other customers are irrelevant. An override
            // that has not expired and does not apply is for another value.
            let expired = || other.until.is_some() && !distance(&other.when, self.attributes()).0;
            match (name(at), &other.when[..]) {
                (Some(_), [condition, ..]) if !expired() => {
                    match for_others.iter_mut().find(|(attribute, _)| **attribute == *condition.attribute) {
                        Some((_, count)) => *count += 1,
                        None => for_others.push((condition.attribute.to_string(), 1)),
                    }
                }
                (_, when) if near.len() < MAX_COMPARED_OVERRIDES => near.push((distance(when, self.attributes()), at)),
                _ => more_skipped += 1,
            }
        }
        more_skipped += near.len().saturating_sub(MAX_SHOWN_OVERRIDES);
        let shown_skipped = nearest_first(near, MAX_SHOWN_OVERRIDES).map(|at| SkippedOverride {
            position: position(at),
            why: match failed_condition(&all[at].when, self.attributes()) {
                Some(failed) => OverrideMismatch::ConditionFailed(failed),
                // An override that does not apply although its conditions hold has expired.
                None => OverrideMismatch::Expired(Zone::utc().format_time(all[at].until.unwrap_or(Time::ZERO))),
            },
        });
        OverrideExplanation {
            applies: applies.map(|at| AppliedOverride {
                position: position(at),
                when: all[at].when.iter().map(|condition| describe_satisfied(condition, self.attributes())).collect(),
                until: all[at].until.map(|until| Zone::utc().format_time(until)),
            }),
            skipped: shown_skipped.collect(),
            more_skipped,
            for_others,
            after: applies.map_or(0, |at| all.len() - at - 1),
        }
    }

    fn ban_state(&self, planned: &PlannedCharge, rule: &Rule) -> Option<BanState> {
        let ban = rule.ban()?;
        let counted = self.decisions.refusal_counts.iter().rfind(|counted| counted.charge as usize == self.charge);
        // Bans exist only in the store; the fallback has no bans.
        let outcome = match planned.answered {
            AnswerSource::Enforced(_) => self.decisions.answer(planned).map(|(answer, _)| answer.outcome),
            AnswerSource::Unanswered
            | AnswerSource::Shadow(_)
            | AnswerSource::Fallback(_)
            | AnswerSource::Open
            | AnswerSource::Closed => None,
        };
        let status = match outcome {
            Some(Outcome::Deny(Retry::After(left))) => {
                // Rounded up to a whole second, so that a request at that time is not too early.
                let second = Nanos::SECOND.as_nanos();
                let ends = self.at.saturating_add(left).as_nanos().div_ceil(second).saturating_mul(second);
                BanStatus::Banned { left, until: Zone::utc().format_time(Time::from_nanos(ends)) }
            }
            Some(Outcome::Deny(Retry::OnRelease | Retry::Never) | Outcome::Allow | Outcome::Delay(_)) => {
                BanStatus::Not { refusals: counted.map(|counted| counted.refusals) }
            }
            None => BanStatus::NotEvaluated,
        };
        Some(BanState { after: ban.after, within: ban.within, length: ban.length, status })
    }

    /// Returns the state of each evaluated limit, with its text from the rule or the override.
    fn limit_states(&self, planned: &PlannedCharge, overriding: Option<&Override>) -> Vec<LimitState> {
        let decisions = self.decisions;
        let Some((answer, answers)) = decisions.answer(planned) else { return Vec::new() };
        let (effect, words) = match overriding {
            Some(other) => (Some(&other.effect), &other.written_limits[..]),
            None => (self.rule.map(Rule::effect), self.rule.map_or(&[][..], |rule| &rule.written_limits)),
        };
        let set = effect.and_then(Effect::limits);
        let limits = set.map(|set| set.limits.as_slice());
        let limits = limits.or(decisions.plan.limits.inline_limit_of(planned).map(|entry| entry.limits.as_slice()));
        let calendars = set.map_or(&[][..], |set| &set.calendars);
        let refill_times = decisions.plan.refill_times(planned);
        let state = |(position, report): (usize, &tollgate::Report)| LimitState {
            written: words.get(position).map(|words| words.to_string()),
            report: *report,
            window: refill_times.get(position).copied().flatten(),
            refill: limits
                .and_then(|limits| limits.get(position))
                .map_or(Refill::Steadily, |limit| describe_refill(limit, calendars, decisions.plan.now())),
        };
        answers.reports(answer).iter().enumerate().map(state).collect()
    }
}

fn describe_refill(limit: &Limit, calendars: &[Calendar], now: Time<Wall>) -> Refill {
    match limit.params() {
        Params::FixedWindow { phase: Phase::Given(position), .. } => match calendars.get(position) {
            Some(calendar) => {
                let window = calendar.window(now);
                let shown = |at| calendar.zone.format_time(at);
                let (began, resets) = (shown(window.start()), shown(window.end()));
                Refill::ByCalendar { zone: calendar.zone.name().to_owned(), began, resets }
            }
            None => Refill::ByWindow,
        },
        Params::FixedWindow { .. } => Refill::ByWindow,
        Params::SlidingWindow(_) | Params::SlidingSlices { .. } | Params::SlidingLog { .. } => Refill::Sliding,
        Params::Concurrency { .. } => Refill::Slots,
        Params::Unlimited
        | Params::DenyAll
        | Params::TokenBucket(_)
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. } => Refill::Steadily,
    }
}
