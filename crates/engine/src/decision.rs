//! What was decided: data, for a front end to put into its protocol.

use std::ops::Range;
use std::sync::Arc;

use tollgate::core::{Cost, Nanos, Time, Wall};
use tollgate::{Outcome, Report, Retry};

use crate::engine::plan::{Answered, Plan, Planned, range};
use crate::engine::scratch::Scratch;
use crate::engine::{Noted, Taking};
use crate::receipt::{Receipt, Taken};
use crate::request::{Request, RequestError};
use crate::rules::Refusal;
use crate::ruleset::RuleSet;
use crate::store::{Answer, Answers};

/// The decisions about a batch of requests. Keep it and pass it in again: then nothing is allocated.
#[derive(Debug, Default)]
pub struct Decisions {
    pub(crate) plan: Plan,
    pub(crate) enforced: Answers,
    pub(crate) shadows: Answers,
    pub(crate) fallback: Answers,
    pub(crate) decided: Vec<Result<Decided, RequestError>>,
    /// Refusals that count towards bans, as far as they were looked at.
    pub(crate) noted: Vec<Noted>,
    /// Whether refusals were only observed.
    pub(crate) observing: bool,
    /// The version of the rules they were decided by.
    pub(crate) version: u64,
    pub(crate) scratch: Scratch,
}

/// What was decided about one request.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    pub(crate) observed: Option<Outcome>,
    pub(crate) standing: Standing,
    /// The charge that decided.
    pub(crate) deciding: Option<u32>,
    pub(crate) shadow_refused: bool,
    /// How the refusal is to be told, if the rule says so.
    pub(crate) refusal: Option<Arc<Refusal>>,
}

impl Decided {
    /// The summary of a request that nothing limits.
    pub(crate) const ADMITTED: Self = Self {
        outcome: Outcome::Allow,
        observed: None,
        standing: Standing::Exact,
        deciding: None,
        shadow_refused: false,
        refusal: None,
    };

    /// Turns a refusal or a wait into an observation.
    pub(crate) fn observe(&mut self) {
        if self.outcome != Outcome::Allow {
            self.observed = Some(std::mem::replace(&mut self.outcome, Outcome::Allow));
        }
    }
}

/// How sure a decision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// By the one state there is.
    Exact,
    /// The store did not answer: by what the rule says should happen then.
    Fallback,
}

impl Standing {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fallback => "fallback",
        }
    }
}

impl Decisions {
    /// The memory that is kept to be used again, about.
    pub fn bytes(&self) -> usize {
        self.plan.bytes() + self.decided.capacity() * size_of::<Result<Decided, RequestError>>()
    }

    /// How many requests were decided.
    pub fn len(&self) -> usize {
        self.decided.len()
    }

    /// Whether none were.
    pub fn is_empty(&self) -> bool {
        self.decided.is_empty()
    }

    /// The decision about the request at `place`.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Panics
    /// When there were not so many requests.
    pub fn get(&self, place: usize) -> Result<Decision<'_>, RequestError> {
        match &self.decided[place] {
            Ok(decided) => Ok(Decision { all: self, place, decided }),
            Err(error) => Err(error.clone()),
        }
    }

    /// All of them, in the order of the requests.
    pub fn iter(&self) -> impl Iterator<Item = Result<Decision<'_>, RequestError>> {
        (0..self.len()).map(|place| self.get(place))
    }

    /// Notes that what was to pass after a wait has waited.
    pub fn delayed(&mut self) {
        for decided in self.decided.iter_mut().flatten() {
            if let Outcome::Delay(_) = decided.outcome {
                decided.outcome = Outcome::Allow;
            }
        }
    }

    /// Forgets everything for requests at another time of the day, by rules of another version.
    pub(crate) fn begin(&mut self, version: u64, now: Time<Wall>, taking: Taking) {
        self.plan.clear();
        self.enforced.clear();
        self.shadows.clear();
        self.fallback.clear();
        self.decided.clear();
        self.scratch.unanswered.clear();
        self.noted.clear();
        self.observing = false;
        self.version = version;
        self.plan.begin(now, taking);
    }

    /// Adds a request to what is planned.
    pub(crate) fn add(&mut self, request: &Request<'_>, rules: &RuleSet) -> Result<(), RequestError> {
        self.plan.add(request, rules, &mut self.scratch)
    }

    /// What the store, or its stand-in, said of a charge.
    pub(crate) fn answer(&self, planned: &Planned) -> Option<(&Answer, &Answers)> {
        let (answers, charge) = match planned.answered {
            Answered::Enforced(charge) => (&self.enforced, charge),
            Answered::Shadow(charge) => (&self.shadows, charge),
            Answered::Fallback(charge) => (&self.fallback, charge),
            Answered::Not | Answered::Open | Answered::Closed => return None,
        };
        answers.answer(charge).map(|answer| (answer, answers))
    }

    /// Returns the outcome of a charge.
    pub(crate) fn outcome(&self, planned: &Planned) -> Outcome {
        self.answer(planned).map_or_else(|| planned.outcome_unanswered(), |(answer, _)| answer.outcome)
    }

    /// Returns the charges of a request.
    pub(crate) fn charges_of(&self, request: usize) -> &[Planned] {
        &self.plan.charges[range(&self.plan.asked[request].charges)]
    }

    /// The least that any enforced rule took for a request; none if nothing was counted.
    pub(crate) fn least_taken(&self, request: usize) -> Option<Cost> {
        let enforced = self.charges_of(request).iter().filter(|planned| !planned.shadow && !planned.is_ban());
        enforced.filter_map(|planned| self.answer(planned)).map(|(answer, _)| answer.taken).min()
    }

    /// What a charge took, or a part of it, to give it back.
    pub(crate) fn taken_from(&self, planned: &Planned, (answer, answers): (&Answer, &Answers), cost: Cost) -> Taken {
        let numbers = &self.plan.numbers;
        Taken {
            key: self.plan.key(planned).into(),
            limits: numbers.inline(planned).map(|sheet| &sheet.limits).or(numbers.overriding(planned)).cloned(),
            fallback: matches!(planned.answered, Answered::Fallback(_)),
            cost,
            stamps: answers.stamps(answer),
        }
    }
}

/// The decision about one request.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'d> {
    all: &'d Decisions,
    place: usize,
    decided: &'d Decided,
}

impl<'d> Decision<'d> {
    /// What to do with the request.
    pub fn outcome(&self) -> Outcome {
        self.decided.outcome
    }

    /// Whether it passes, at once or after a wait.
    pub fn is_allowed(&self) -> bool {
        self.decided.outcome.is_admitted()
    }

    /// What would have been done with it, if that was only observed.
    pub fn observed(&self) -> Option<Outcome> {
        self.decided.observed
    }

    /// Whether a shadow rule would have refused it.
    pub fn is_shadow_refused(&self) -> bool {
        self.decided.shadow_refused
    }

    /// How sure this is.
    pub fn standing(&self) -> Standing {
        self.decided.standing
    }

    /// The rule that decided: the one to wait longest for, or, if nobody has to wait, the one with least left. None if
    /// no rule was met; empty for an inline limit.
    pub fn rule(&self) -> Option<&'d str> {
        self.decided.deciding.map(|charge| self.all.plan.name(charge))
    }

    /// All decisions, and which charges are of this one.
    pub(crate) fn charges(&self) -> (&'d Decisions, Range<usize>) {
        (self.all, range(&self.all.plan.asked[self.place].charges))
    }

    /// The counter that decided: what its state is kept under. None if no rule was met.
    pub fn counter(&self) -> Option<&'d [u8]> {
        let planned = &self.all.plan.charges[self.decided.deciding? as usize];
        Some(self.all.plan.key(planned))
    }

    /// How the rule that refused wants it to be told; none if it says nothing about that, or nobody refused. Nor if it is
    /// closed: what a rule says is meant for those who have exceeded it.
    pub fn refusal(&self) -> Option<&'d Refusal> {
        if self.is_allowed() || self.is_closed() { None } else { self.decided.refusal.as_deref() }
    }

    /// Whether it was refused only because the store did not answer, by a rule whose `on_fault` is `closed`.
    pub fn is_closed(&self) -> bool {
        let closed = |planned: &Planned| planned.answered == Answered::Closed;
        self.standing() == Standing::Fallback
            && !self.is_allowed()
            && self.all.charges_of(self.place).iter().any(closed)
    }

    /// Whether a ban refused it, alone or beside limits that did, too.
    pub fn is_banned(&self) -> bool {
        let refuses = |planned: &Planned| self.all.answer(planned).is_some_and(|(said, _)| !said.outcome.is_admitted());
        let mut charges = self.all.charges_of(self.place).iter();
        !self.is_allowed() && charges.any(|planned| planned.is_ban() && refuses(planned))
    }

    /// What may be told about every limit of every rule that was met, by item and then in the order of the rules.
    pub fn reports(&self) -> impl Iterator<Item = LimitReport<'d>> + use<'d> {
        let all = self.all;
        let asked = &all.plan.asked[self.place];
        let met = all.plan.met[range(&asked.met)].iter();
        met.flat_map(move |met| {
            let planned = &all.plan.charges[met.charge as usize];
            let answer = all.answer(planned);
            let reports = answer.map_or(&[][..], |(answer, answers)| answers.reports(answer));
            let refused = answer.is_some_and(|(answer, _)| !answer.outcome.is_admitted());
            let windows = all.plan.windows(planned);
            reports.iter().enumerate().map(move |(limit, report)| LimitReport {
                item: met.item as usize,
                rule: all.plan.name(met.charge),
                limit,
                report: *report,
                window: windows.get(limit).copied().flatten(),
                shadow: planned.shadow,
                refused,
            })
        })
    }

    /// Returns how much may be used of what was asked for: the least that any rule took, nothing if it was refused. All of it where
    /// nothing was counted, or refusals are only observed; but a drain, which asks for [`Cost::MAX`], never takes more than
    /// was counted.
    pub fn taken(&self) -> Cost {
        let (asked, counted) = (self.all.plan.asked[self.place].weighs, self.all.least_taken(self.place));
        let drains = self.all.plan.taking() == Taking::UpTo && asked == Cost::MAX;
        match counted {
            _ if drains => counted.unwrap_or(Cost::ZERO),
            _ if self.all.observing => asked,
            _ if !self.is_allowed() => Cost::ZERO,
            Some(least) => least,
            None => asked,
        }
    }

    /// Returns whether any limit that is enforced was counted. Otherwise nothing limits the request: it matches no rule with
    /// limits, or the store did not answer and its rules let it pass then.
    pub fn is_counted(&self) -> bool {
        self.all.least_taken(self.place).is_some()
    }

    /// What undoes this decision. Empty if nothing was taken.
    pub fn receipt(&self) -> Receipt {
        let charges = self.all.charges_of(self.place);
        let taken = charges.iter().filter(|planned| !planned.is_ban()).filter_map(|planned| {
            let said = self.all.answer(planned)?;
            (said.0.taken > Cost::ZERO).then(|| self.all.taken_from(planned, said, said.0.taken))
        });
        Receipt { taken: taken.collect() }
    }

    /// How long to wait before asking again; nothing if it was not refused.
    pub fn retry(&self) -> Option<Retry> {
        match self.decided.outcome {
            Outcome::Allow | Outcome::Delay(_) => None,
            Outcome::Deny(retry) => Some(retry),
        }
    }
}

/// What may be told about one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReport<'d> {
    /// Which item of the request met it.
    pub item: usize,
    /// The rule it belongs to; empty for an inline limit.
    pub rule: &'d str,
    /// Its place among the limits of the rule.
    pub limit: usize,
    /// How it stands after the decision. `retry` is for another request like this one.
    pub report: Report,
    /// The time in which as much as the limit comes back; none for what is held at a time.
    pub window: Option<Nanos>,
    /// Whether it belongs to a shadow rule.
    pub shadow: bool,
    /// Whether the rule refused, or, as a shadow, would have.
    pub refused: bool,
}
