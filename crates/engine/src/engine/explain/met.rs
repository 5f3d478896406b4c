//! What a rule that is met has to say: its overrides, its ban and its limits, beside the rule as it was written.

use tollgate::{Limit, Nanos, Outcome, Phase, Retry, Terms, Time, Wall};

use super::conditions::{in_words, unmet};
use super::{place_of, shown};
use crate::calendar::{Calendar, Zone};
use crate::decision::Decisions;
use crate::engine::plan::{Answered, Planned};
use crate::explain::{
    BanStands, BanState, CostBy, Does, LimitState, Met, NotHeld, Overrides, Overriding, Refill, UnmetOverride,
};
use crate::key;
use crate::request::{Entry, Item};
use crate::rules::{CostOf, Effect, OnExceed, OnFault, Override, Rule, Rules};

/// How many overrides that do not hold are told.
const MAX_UNMET: usize = 3;

/// A charge, and everything to explain it by.
pub(super) struct Charged<'a> {
    pub(super) decisions: &'a Decisions,
    /// Which.
    pub(super) charge: usize,
    /// The ban that goes with it.
    pub(super) ban: Option<&'a Planned>,
    /// The item that met its rule.
    pub(super) item: &'a Item<'a>,
    /// The rule, unless the limits came along with the request, and all of which it is one.
    pub(super) rule: Option<&'a Rule>,
    pub(super) rules: &'a Rules,
    /// Those of the domain, and the ids of those among them that are met.
    pub(super) written: &'a [Rule],
    pub(super) met: &'a [&'a str],
    /// The present.
    pub(super) at: Time<Wall>,
}

impl Charged<'_> {
    /// What it has to say.
    pub(super) fn met(&self) -> Met {
        let Self { decisions, ban, rule, .. } = *self;
        let planned = &decisions.plan.charges[self.charge];
        let overrides = rule.filter(|rule| !rule.overrides().is_empty());
        let overriding = overrides.and_then(|rule| self.first_that_holds(rule));
        let key = decisions.plan.key(planned);
        let counted = match key::counted_by(key) {
            Some(counted) => counted.into_iter().map(|(name, value)| (shown(name), value.map(shown))).collect(),
            None => vec![("key".to_owned(), Some(shown(key::sent_name_of(key))))],
        };
        let ban = ban.zip(rule).and_then(|(planned, rule)| self.ban_state(planned, rule));
        let banned = ban.as_ref().is_some_and(|ban| matches!(ban.stands, BanStands::Banned { .. }));
        let refuses = decisions.answer(planned).is_some_and(|(answer, _)| matches!(answer.outcome, Outcome::Deny(_)));
        let fault = match planned.answered {
            Answered::Open => Some(OnFault::Open),
            Answered::Closed => Some(OnFault::Closed),
            Answered::Fallback(_) => Some(OnFault::Local),
            Answered::Not | Answered::Enforced(_) | Answered::Shadow(_) => None,
        };
        Met {
            counted,
            cost: planned.cost.get(),
            cost_by: self.cost_by(),
            effect: match (planned.is_denied(), planned.has_limits()) {
                _ if planned.is_replaced() => Does::Replaced,
                (true, _) => Does::Denies,
                (false, false) if rule.is_some_and(|rule| *rule.effect() == Effect::Allow) => Does::Allows,
                (false, false) => Does::Unlimited,
                (false, true) if overriding.is_some() => Does::Overrides,
                (false, true) => Does::Limits,
            },
            replaced_by: self.replaced_by(),
            shadow: planned.shadow,
            spared: planned.shadow && rule.is_some_and(|rule| rule.on_exceed() != OnExceed::Shadow),
            refuses: planned.is_denied() || banned || refuses || fault == Some(OnFault::Closed),
            fault,
            overrides: overrides.map(|rule| self.overrides(rule, overriding)),
            ban,
            limits: self.limits(planned, overriding.and_then(|place| rule?.overrides().get(place))),
        }
    }

    fn entries(&self) -> &[Entry<'_>] {
        self.item.entries
    }

    fn cost_by(&self) -> CostBy {
        match (self.item.cost, self.rule.map(Rule::cost)) {
            (Some(_), _) => CostBy::Request,
            (None, Some(CostOf::From { attribute, .. })) => CostBy::Attribute(attribute.to_string()),
            (None, Some(CostOf::Fixed(_)) | None) => CostBy::Rule,
        }
    }

    /// The rule that is met, too, and is in the place of this one.
    fn replaced_by(&self) -> Option<String> {
        let id = self.rule?.id();
        let replaces = |other: &&Rule| other.replaces().iter().any(|replaced| **replaced == *id);
        let is_met = |other: &&Rule| self.met.iter().any(|met| *met == other.id());
        self.written.iter().filter(replaces).find(is_met).map(|other| other.id().to_owned())
    }

    /// The place of the override that applies.
    fn first_that_holds(&self, rule: &Rule) -> Option<usize> {
        let now = self.decisions.plan.now();
        let holds = |other: &Override| !has_ended(other, now) && unmet(&other.when, self.entries()).is_none();
        rule.overrides().iter().position(holds)
    }

    fn overrides(&self, rule: &Rule, applies: Option<usize>) -> Overrides {
        let (all, now) = (rule.overrides(), self.decisions.plan.now());
        let place = |place: usize| match (self.rules.is_kept(), all[place].name()) {
            (true, Some(name)) => format!("`{}`, set through the API", shown(name.as_bytes())),
            (true, None) => format!("{} of {}", place + 1, all.len()),
            (false, _) => place_of(&rule.place().file, all[place].place),
        };
        let before = applies.unwrap_or(all.len());
        let mut failing: Vec<(usize, usize)> = (0..before)
            .map(|place| (unmet(&all[place].when, self.entries()).map_or(0, |unmet| unmet.conditions), place))
            .collect();
        failing.sort_unstable();
        let told = failing.iter().take(MAX_UNMET).filter_map(|(_, at)| {
            let why = match (unmet(&all[*at].when, self.entries()), all[*at].until) {
                (Some(unmet), _) => NotHeld::Unmet(unmet),
                (None, Some(until)) if until <= now => NotHeld::Ended(Zone::utc().shown(until)),
                (None, _) => return None,
            };
            Some(UnmetOverride { place: place(*at), why })
        });
        Overrides {
            applies: applies.map(|at| Overriding {
                place: place(at),
                when: all[at].when.iter().map(in_words).collect(),
                until: all[at].until.map(|until| Zone::utc().shown(until)),
            }),
            unmet: told.collect(),
            more_unmet: before.saturating_sub(MAX_UNMET),
            behind: applies.map_or(0, |at| all.len() - at - 1),
        }
    }

    fn ban_state(&self, planned: &Planned, rule: &Rule) -> Option<BanState> {
        let ban = rule.ban()?;
        let noted = self.decisions.noted.iter().rfind(|noted| noted.charge as usize == self.charge);
        let stands = match self.decisions.answer(planned).map(|(answer, _)| answer.outcome) {
            Some(Outcome::Deny(Retry::After(left))) => {
                // Of a second that has begun, all is told: whoever comes then is not too early.
                let second = Nanos::SECOND.as_nanos();
                let ends = self.at.saturating_add(left).as_nanos().div_ceil(second).saturating_mul(second);
                BanStands::Banned { left, until: Zone::utc().shown(Time::from_nanos(ends)) }
            }
            Some(Outcome::Deny(Retry::OnRelease | Retry::Never) | Outcome::Allow | Outcome::Delay(_)) | None => {
                BanStands::Not { refusals: noted.map(|noted| noted.refusals) }
            }
        };
        Some(BanState { after: ban.after, within: ban.within, length: ban.length, stands })
    }

    /// How each limit stands that was asked, beside the words of the rule or of its override.
    fn limits(&self, planned: &Planned, overriding: Option<&Override>) -> Vec<LimitState> {
        let decisions = self.decisions;
        let Some((answer, answers)) = decisions.answer(planned) else { return Vec::new() };
        let (effect, words) = match overriding {
            Some(other) => (Some(&other.effect), &other.words[..]),
            None => (self.rule.map(Rule::effect), self.rule.map_or(&[][..], |rule| &rule.words)),
        };
        let set = effect.and_then(Effect::limits);
        let limits = set.map(|set| set.limits.as_slice());
        let limits = limits.or(decisions.plan.numbers.sent(planned).map(|sheet| sheet.limits.as_slice()));
        let calendars = set.map_or(&[][..], |set| &set.calendars);
        let windows = decisions.plan.windows(planned);
        let state = |(place, report): (usize, &tollgate::Report)| LimitState {
            written: words.get(place).map(|words| words.to_string()),
            report: *report,
            window: windows.get(place).copied().flatten(),
            refill: limits
                .and_then(|limits| limits.get(place))
                .map_or(Refill::Steadily, |limit| refill(limit, calendars, decisions.plan.now())),
        };
        answers.reports(answer).iter().enumerate().map(state).collect()
    }
}

fn has_ended(other: &Override, now: Time<Wall>) -> bool {
    other.until.is_some_and(|until| until <= now)
}

fn refill(limit: &Limit, calendars: &[Calendar], now: Time<Wall>) -> Refill {
    match limit.terms() {
        Terms::FixedWindow { phase: Phase::Given(position), .. } => match calendars.get(position) {
            Some(calendar) => {
                let window = calendar.window(now);
                let shown = |at| calendar.zone.shown(at);
                let (began, resets) = (shown(window.start()), shown(window.end()));
                Refill::ByCalendar { zone: calendar.zone.name().to_owned(), began, resets }
            }
            None => Refill::ByWindow,
        },
        Terms::FixedWindow { .. } => Refill::ByWindow,
        Terms::SlidingWindow(_) | Terms::SlidingSlices { .. } | Terms::SlidingLog { .. } => Refill::Sliding,
        Terms::Concurrency { .. } => Refill::Slots,
        Terms::Unlimited
        | Terms::DenyAll
        | Terms::TokenBucket(_)
        | Terms::LeakyBucket { .. }
        | Terms::IntervalBucket { .. } => Refill::Steadily,
    }
}
