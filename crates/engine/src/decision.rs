//! Decisions as data, for front ends to translate into their protocols.

use std::ops::Range;
use std::sync::Arc;

use tollgate::core::{Cost, Nanos, Time, Wall};
use tollgate::{Outcome, Report, Retry};

use crate::engine::plan::{AnswerSource, Plan, PlannedCharge, to_usize_range};
use crate::engine::scratch::Scratch;
use crate::engine::{RefusalCount, RulesInForce, TakeMode};
use crate::receipt::{Receipt, ReceiptEntry};
use crate::request::{Request, RequestError};
use crate::rules::{Metadata, Refusal};
use crate::ruleset::RuleSet;
use crate::store::{Answer, Answers};

/// The decisions about a batch of requests. Reuse this value to avoid allocation.
#[derive(Debug, Default)]
pub struct Decisions {
    pub(crate) plan: Plan,
    pub(crate) enforced: Answers,
    pub(crate) shadows: Answers,
    pub(crate) fallback: Answers,
    pub(crate) decided: Vec<Result<DecisionRecord, RequestError>>,
    /// The refusal counts that the store reported for counters with a ban.
    pub(crate) refusal_counts: Vec<RefusalCount>,
    /// Whether refusals were observed instead of enforced.
    pub(crate) observing: bool,
    /// The version of the rule set.
    pub(crate) version: u64,
    /// The rules of a check that is planned but not yet decided.
    pub(crate) planned_by: Option<Arc<RulesInForce>>,
    pub(crate) scratch: Scratch,
}

/// The decision about one request.
#[derive(Clone, Debug)]
pub(crate) struct DecisionRecord {
    pub(crate) outcome: Outcome,
    pub(crate) observed: Option<Outcome>,
    pub(crate) exactness: Exactness,
    /// The index of the deciding charge in the plan.
    pub(crate) deciding: Option<u32>,
    pub(crate) shadow_refused: bool,
    /// The rule's own response to a refusal, if it has one.
    pub(crate) refusal: Option<Arc<Refusal>>,
}

impl DecisionRecord {
    /// The decision about a request without limits.
    pub(crate) const ADMITTED: Self = Self {
        outcome: Outcome::Allow,
        observed: None,
        exactness: Exactness::Exact,
        deciding: None,
        shadow_refused: false,
        refusal: None,
    };

    /// If the request was refused or delayed, admits it and records the original outcome in `observed`.
    pub(crate) fn observe(&mut self) {
        if self.outcome != Outcome::Allow {
            self.observed = Some(std::mem::replace(&mut self.outcome, Outcome::Allow));
        }
    }
}

/// How exact a decision is: as exact as its least exact charge. The protocols call the exactness
/// `standing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exactness {
    /// The store decided from the exact state.
    Exact,
    /// This node spent tokens that the store granted it in advance. The remaining amount is an estimate.
    Leased,
    /// This node decided from the last known store state and its own later charges.
    Eventual,
    /// The store did not answer, and the rules' `on_fault` decided.
    Fallback,
}

impl Exactness {
    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Eventual => "eventual",
            Self::Fallback => "fallback",
        }
    }
}

impl Decisions {
    /// Returns the approximate size of the buffers in bytes.
    pub fn buffer_bytes(&self) -> usize {
        self.plan.buffer_bytes() + self.decided.capacity() * size_of::<Result<DecisionRecord, RequestError>>()
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.decided.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.decided.is_empty()
    }

    /// Returns the decision about the request at `index`.
    ///
    /// # Errors
    /// If the request was not decided.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn get(&self, index: usize) -> Result<Decision<'_>, RequestError> {
        match &self.decided[index] {
            Ok(decided) => Ok(Decision { batch: self, index, decided }),
            Err(error) => Err(error.clone()),
        }
    }

    /// Returns all decisions, in request order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Decision<'_>, RequestError>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Marks delayed requests as allowed. Call this function after these requests have waited.
    pub fn finish_delays(&mut self) {
        for decided in self.decided.iter_mut().flatten() {
            if let Outcome::Delay(_) = decided.outcome {
                decided.outcome = Outcome::Allow;
            }
        }
    }

    /// Clears the buffers, and sets the version of the rule set, the time and the take mode for new requests.
    pub(crate) fn begin_batch(&mut self, version: u64, now: Time<Wall>, take_mode: TakeMode) {
        self.plan.clear();
        self.enforced.clear();
        self.shadows.clear();
        self.fallback.clear();
        self.decided.clear();
        self.scratch.unanswered.clear();
        self.refusal_counts.clear();
        self.observing = false;
        self.version = version;
        self.plan.begin_batch(now, take_mode);
    }

    /// Adds a request to the plan.
    pub(crate) fn add_request(&mut self, request: &Request<'_>, rules: &RuleSet) -> Result<(), RequestError> {
        self.plan.add_request(request, rules, &mut self.scratch)
    }

    /// Returns the answer to a charge, from the store or the fallback.
    pub(crate) fn answer(&self, planned: &PlannedCharge) -> Option<(&Answer, &Answers)> {
        let (answers, charge) = match planned.answered {
            AnswerSource::Enforced(charge) => (&self.enforced, charge),
            AnswerSource::Shadow(charge) => (&self.shadows, charge),
            AnswerSource::Fallback(charge) => (&self.fallback, charge),
            AnswerSource::Unanswered | AnswerSource::Open | AnswerSource::Closed => return None,
        };
        answers.answer(charge).map(|answer| (answer, answers))
    }

    /// Returns the outcome of a charge.
    pub(crate) fn charge_outcome(&self, planned: &PlannedCharge) -> Outcome {
        self.answer(planned).map_or_else(|| planned.outcome_without_answer(), |(answer, _)| answer.outcome)
    }

    /// Returns the charges of a request.
    pub(crate) fn charges_of(&self, request: usize) -> &[PlannedCharge] {
        &self.plan.charges[to_usize_range(&self.plan.requests[request].charges)]
    }

    /// Returns the smallest amount that any enforced rule took for a request; `None` if no limit was evaluated.
    pub(crate) fn least_taken(&self, request: usize) -> Option<Cost> {
        let enforced = self.charges_of(request).iter().filter(|planned| !planned.shadow && !planned.is_ban());
        enforced.filter_map(|planned| self.answer(planned)).map(|(answer, _)| answer.taken).min()
    }

    /// Returns the receipt entry that refunds `cost`, which is all or part of the amount that the charge took.
    pub(crate) fn receipt_entry(
        &self,
        planned: &PlannedCharge,
        (answer, answers): (&Answer, &Answers),
        cost: Cost,
    ) -> ReceiptEntry {
        let (limits, refill_times) = (&self.plan.limits, self.plan.refill_times(planned));
        ReceiptEntry {
            key: self.plan.key(planned).into(),
            limits: limits
                .inline_limit_of(planned)
                .map(|entry| &entry.limits)
                .or(limits.override_limits_of(planned))
                .cloned(),
            fallback: matches!(planned.answered, AnswerSource::Fallback(_)),
            cost,
            // Only concurrency limits have no refill time, because they do not refill.
            has_slots: refill_times.iter().any(Option::is_none),
            stamps: answers.stamps(answer).with_count(refill_times.len()),
        }
    }
}

/// The decision about one request.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'d> {
    batch: &'d Decisions,
    index: usize,
    decided: &'d DecisionRecord,
}

impl<'d> Decision<'d> {
    /// Returns the outcome.
    pub fn outcome(&self) -> Outcome {
        self.decided.outcome
    }

    /// Returns whether the request is admitted, immediately or after a wait.
    pub fn is_admitted(&self) -> bool {
        self.decided.outcome.is_admitted()
    }

    /// In observe mode, returns the refusal or delay that would have been enforced, if any; otherwise `None`.
    pub fn observed(&self) -> Option<Outcome> {
        self.decided.observed
    }

    /// Returns whether a shadow rule would have refused the request.
    pub fn is_shadow_refused(&self) -> bool {
        self.decided.shadow_refused
    }

    /// Returns how exact the decision is.
    pub fn exactness(&self) -> Exactness {
        self.decided.exactness
    }

    /// Returns the id of the deciding rule. This is the rule with the longest wait or, if no rule requires a wait, the
    /// rule with the smallest remaining amount. `None` if no enforced rule matched; empty for an inline limit.
    pub fn rule(&self) -> Option<&'d str> {
        self.decided.deciding.map(|charge| self.batch.plan.rule_id(charge))
    }

    /// Returns the decisions of the whole batch, and the range of this request's charges.
    pub(crate) fn charges(&self) -> (&'d Decisions, Range<usize>) {
        (self.batch, to_usize_range(&self.batch.plan.requests[self.index].charges))
    }

    /// Returns the key of the deciding counter. `None` if no enforced rule matched.
    pub fn deciding_key(&self) -> Option<&'d [u8]> {
        let planned = &self.batch.plan.charges[self.decided.deciding? as usize];
        Some(self.batch.plan.key(planned))
    }

    /// Returns the rule's own response to the refusal. `None` if the request was admitted or the rule defines no
    /// response. Also `None` if a `closed` rule refused during a store outage, because the response is meant for
    /// requests above the limits.
    pub fn refusal(&self) -> Option<&'d Refusal> {
        if self.is_admitted() || self.is_refused_by_fault() { None } else { self.decided.refusal.as_deref() }
    }

    /// Returns whether a rule with `on_fault: closed` refused the request because the store did not answer.
    pub fn is_refused_by_fault(&self) -> bool {
        let closed = |planned: &PlannedCharge| planned.answered == AnswerSource::Closed;
        self.exactness() == Exactness::Fallback
            && !self.is_admitted()
            && self.batch.charges_of(self.index).iter().any(closed)
    }

    /// Returns whether a ban refused the request. Limits may have refused the request too.
    pub fn is_refused_by_ban(&self) -> bool {
        let refuses = |planned: &PlannedCharge| {
            self.batch.answer(planned).is_some_and(|(answered, _)| !answered.outcome.is_admitted())
        };
        let mut charges = self.batch.charges_of(self.index).iter();
        !self.is_admitted() && charges.any(|planned| planned.is_ban() && refuses(planned))
    }

    /// Returns the state of every evaluated limit, ordered by item, then by rule.
    pub fn reports(&self) -> impl Iterator<Item = LimitReport<'d>> + use<'d> {
        let batch = self.batch;
        let planned_request = &batch.plan.requests[self.index];
        let matched = batch.plan.item_matches[to_usize_range(&planned_request.item_matches)].iter();
        matched.flat_map(move |matched| {
            let planned = &batch.plan.charges[matched.charge as usize];
            let answer = batch.answer(planned);
            let reports = answer.map_or(&[][..], |(answer, answers)| answers.reports(answer));
            let refused = answer.is_some_and(|(answer, _)| !answer.outcome.is_admitted());
            let refill_times = batch.plan.refill_times(planned);
            reports.iter().enumerate().map(move |(limit, report)| LimitReport {
                item: matched.item as usize,
                rule: batch.plan.rule_id(matched.charge),
                limit,
                report: *report,
                window: refill_times.get(limit).copied().flatten(),
                shadow: planned.shadow,
                refused,
            })
        })
    }

    /// Returns the number of [`reports`](Self::reports).
    pub fn report_count(&self) -> usize {
        let Self { batch, index, .. } = *self;
        let matched = batch.plan.item_matches[to_usize_range(&batch.plan.requests[index].item_matches)].iter();
        let answers = matched.filter_map(|matched| batch.answer(&batch.plan.charges[matched.charge as usize]));
        answers.map(|(answer, answers)| answers.reports(answer).len()).sum()
    }

    /// Returns every rule that an item matches, ordered by item, then by rule, including rules without a state to
    /// report.
    pub fn rule_matches(&self) -> impl Iterator<Item = RuleMatch<'d>> + use<'d> {
        let batch = self.batch;
        let matched = batch.plan.item_matches[to_usize_range(&batch.plan.requests[self.index].item_matches)].iter();
        matched.map(move |matched| {
            let planned = &batch.plan.charges[matched.charge as usize];
            RuleMatch {
                item: matched.item as usize,
                rule: batch.plan.rule_id(matched.charge),
                effect: match planned.is_sent() {
                    true => MatchEffect::Limited,
                    false if planned.is_denied() => MatchEffect::Denied,
                    false => MatchEffect::Unlimited,
                },
                is_shadow: planned.shadow,
                is_omitted: planned.is_omitted(),
                is_exhausted: planned.exhausted,
                metadata: batch.plan.metadata(matched.charge),
            }
        })
    }

    /// Returns the amount that the caller may use: the smallest amount that any rule took, or zero if the request was
    /// refused. If no limit was evaluated for an admitted request, or if refusals are only observed, this is the
    /// requested amount. A drain asks for [`Cost::MAX`] and always gets the smallest amount taken, or zero if no limit
    /// was evaluated.
    pub fn taken(&self) -> Cost {
        let (cost, counted) = (self.batch.plan.requests[self.index].cost, self.batch.least_taken(self.index));
        let drains = self.batch.plan.take_mode() == TakeMode::UpTo && cost == Cost::MAX;
        match counted {
            _ if drains => counted.unwrap_or(Cost::ZERO),
            _ if self.batch.observing => cost,
            _ if !self.is_admitted() => Cost::ZERO,
            Some(least) => least,
            None => cost,
        }
    }

    /// Returns whether the limits of an enforced rule were evaluated. If they were not, nothing limits an admitted
    /// request: either the request matches no enforced rule with limits, or the store did not answer and the rules are
    /// `open`.
    pub fn has_evaluated_limits(&self) -> bool {
        self.batch.least_taken(self.index).is_some()
    }

    /// Returns a receipt that undoes this decision; empty if nothing was taken.
    pub fn receipt(&self) -> Receipt {
        let charges = self.batch.charges_of(self.index);
        let taken = charges.iter().filter(|planned| !planned.is_ban()).filter_map(|planned| {
            let answered = self.batch.answer(planned)?;
            (answered.0.taken > Cost::ZERO).then(|| self.batch.receipt_entry(planned, answered, answered.0.taken))
        });
        Receipt { entries: taken.collect() }
    }

    /// Returns a receipt for the slots that an item took from rules with only concurrency limits. Refunding the receipt
    /// releases the slots. The receipt is empty if the item took no slots.
    pub fn slot_receipt(&self, item: usize) -> Receipt {
        let matched =
            self.batch.plan.item_matches[to_usize_range(&self.batch.plan.requests[self.index].item_matches)].iter();
        let taken = matched.filter(|matched| matched.item as usize == item).filter_map(|matched| {
            let planned = &self.batch.plan.charges[matched.charge as usize];
            let answered = self.batch.answer(planned)?;
            let has_slots = self.batch.plan.refill_times(planned).iter().all(Option::is_none);
            (has_slots && answered.0.taken > Cost::ZERO)
                .then(|| self.batch.receipt_entry(planned, answered, answered.0.taken))
        });
        Receipt { entries: taken.collect() }
    }

    /// Returns when to retry; `None` if the request was not refused.
    pub fn retry(&self) -> Option<Retry> {
        match self.decided.outcome {
            Outcome::Allow | Outcome::Delay(_) => None,
            Outcome::Deny(retry) => Some(retry),
        }
    }
}

/// The state of one limit after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReport<'d> {
    /// The index of the item that matched the rule.
    pub item: usize,
    /// The id of the rule; empty for an inline limit.
    pub rule: &'d str,
    /// The index of the limit in its rule.
    pub limit: usize,
    /// The state of the limit after the decision. `retry` is the wait for another request with the same cost.
    pub report: Report,
    /// The time in which an exhausted limit refills completely; `None` for concurrency.
    pub window: Option<Nanos>,
    /// Whether the rule is a shadow rule.
    pub shadow: bool,
    /// Whether the rule refused or, as a shadow rule, would have refused.
    pub refused: bool,
}

/// A rule that an item matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatch<'d> {
    /// The index of the item.
    pub item: usize,
    /// The id of the rule; empty for an inline limit.
    pub rule: &'d str,
    /// The rule's effect on the item.
    pub effect: MatchEffect,
    /// Whether the rule is a shadow rule for this item.
    pub is_shadow: bool,
    /// Whether another matching rule replaces this rule, or makes it unnecessary with `suffices`.
    pub is_omitted: bool,
    /// Whether the rule had no capacity and was ignored because another rule marked `suffices` had capacity.
    pub is_exhausted: bool,
    /// The metadata of the rule.
    pub metadata: Option<&'d Metadata>,
}

/// The effect of a rule on a matching request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchEffect {
    /// Charges its limits.
    Limited,
    /// Admits without counting.
    Unlimited,
    /// Refuses without counting.
    Denied,
}
