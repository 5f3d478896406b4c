//! A batch of requests from beginning to end: plan, ask the store, apply the policy, sum up.

use std::ops::Range;
use std::sync::Arc;

use tollgate::{Outcome, Report, Retry, Time, Wall};

use super::plan::{Answered, Plan, Planned, Span, emptied_charges, emptied_groups, group};
use super::policy::FAULT_RETRY;
use super::{Enforcement, Engine, Running, Taking};
use crate::decision::{Decided, Decisions, Standing};
use crate::meters::{Event, Fault, RuleEvent};
use crate::request::Request;
use crate::rules::Refusal;
use crate::store::{Answers, Batch, Store, StoreError, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Decides requests, each by itself, in order.
    pub(super) async fn decide(&self, verb: Verb, taking: Taking, requests: &[Request<'_>], decisions: &mut Decisions) {
        let running = self.running.load();
        decisions.clear();
        decisions.plan.begin(self.time_for(&running), taking);
        for request in requests {
            let planned = decisions.plan.add(request, &running.rules);
            decisions.decided.push(planned.map(|()| Decided::passing()));
        }
        if running.rules.leaves_out() && taking == Taking::Exactly {
            self.leave_out_exhausted(&running, decisions).await;
        }
        let faulted = self.ask_enforced(verb, &running, decisions).await;
        if !faulted.is_empty() {
            self.fall_back(verb, &faulted, &running, decisions).await;
        }
        if taking == Taking::UpTo {
            self.even_out(decisions).await;
        }
        let mut met_shadow = false;
        for request in 0..decisions.decided.len() {
            decisions.sum_up(request, &running);
            met_shadow |= decisions.charges_of(request).iter().any(|planned| planned.shadow);
        }
        if met_shadow {
            self.ask_shadows(verb, &running, decisions).await;
        }
        if verb == Verb::Check && running.rules.bans() {
            self.note_refusals(&running, decisions).await;
        }
        if self.enforcement() == Enforcement::Observe {
            decisions.observing = true;
            decisions.decided.iter_mut().flatten().for_each(Decided::observe);
        }
        if verb == Verb::Check {
            self.count(&running, decisions);
        }
    }

    /// Asks the store about all that is enforced, and returns the requests that it did not answer.
    async fn ask_enforced(&self, verb: Verb, running: &Running, decisions: &mut Decisions) -> Vec<u32> {
        let Decisions { plan, enforced, .. } = decisions;
        let mut spans = ask(&self.store, verb, running, plan, enforced, |_, planned| !planned.shadow).await;
        let mut faulted = self.take_answers(plan, enforced, 0, &spans, Answered::Enforced);
        // The windows handed in did not fit the store's time: once more, with those of the time it told. If they do not fit
        // again, its clock is not to be relied on.
        if let Some((stale, store_time)) = faulted.stale.take() {
            let first = enforced.len();
            plan.move_windows(running, &stale, store_time);
            let again = |request: usize, planned: &Planned| !planned.shadow && stale.contains(&(request as u32));
            plan.take_spans(spans);
            spans = ask(&self.store, verb, running, plan, enforced, again).await;
            let retried = self.take_answers(plan, enforced, first, &spans, Answered::Enforced);
            faulted.lost.extend(retried.lost.into_iter().chain(retried.stale.into_iter().flat_map(|(stale, _)| stale)));
        }
        plan.take_spans(spans);
        faulted.lost
    }

    /// Asks about shadow rules where everything enforced has passed. They change nothing, so if the store does not answer,
    /// nothing is told about them.
    async fn ask_shadows(&self, verb: Verb, running: &Running, decisions: &mut Decisions) {
        let Decisions { plan, shadows, decided, .. } = decisions;
        // Whoever has waited for the store in vain does not wait for it once more.
        let passed = |request: usize| {
            let asked = |decided: &Decided| decided.outcome.is_allowed() && decided.standing == Standing::Exact;
            decided[request].as_ref().is_ok_and(asked)
        };
        let wanted = |request: usize, planned: &Planned| planned.shadow && passed(request);
        let spans = ask(&self.store, verb, running, plan, shadows, wanted).await;
        self.take_answers(plan, shadows, 0, &spans, Answered::Shadow);
        for span in &spans {
            let refused = |planned: &Planned| match planned.answered {
                Answered::Shadow(charge) => shadows.answer(charge).is_some_and(|answer| !answer.outcome.is_allowed()),
                Answered::Not | Answered::Enforced(_) | Answered::Fallback(_) | Answered::Open | Answered::Closed => {
                    false
                }
            };
            let charges = range(&plan.asked[span.request as usize].charges);
            if let Ok(decided) = &mut decided[span.request as usize] {
                decided.shadow_refused |= plan.charges[charges].iter().any(refused);
            }
        }
        plan.take_spans(spans);
    }

    /// Notes in the plan where the answers to its charges are, from the group `first` on.
    pub(super) fn take_answers(
        &self,
        plan: &mut Plan,
        answers: &Answers,
        first: usize,
        spans: &[Span],
        answered: fn(u32) -> Answered,
    ) -> Faulted {
        let mut faulted = Faulted::default();
        for (place, span) in spans.iter().enumerate() {
            let group = match answers.group(first + place) {
                Ok(group) => group,
                Err(error) => {
                    self.note(&error);
                    match error {
                        StoreError::Stale { store_time } => {
                            let (stale, time) = faulted.stale.get_or_insert((Vec::new(), Time::ZERO));
                            stale.push(span.request);
                            *time = store_time.max(*time);
                        }
                        StoreError::Unavailable { .. } | StoreError::Unknown { .. } | StoreError::Rejected { .. } => {
                            faulted.lost.push(span.request);
                        }
                    }
                    continue;
                }
            };
            let mut charge = group.first_charge();
            let shadow = matches!(answered(0), Answered::Shadow(_));
            for planned in &mut plan.charges[range(&plan.asked[span.request as usize].charges)] {
                if planned.has_limits() && planned.shadow == shadow {
                    planned.answered = answered(charge);
                    charge += 1;
                }
            }
        }
        faulted
    }

    pub(super) fn note(&self, error: &StoreError) {
        let fault = match error {
            StoreError::Unavailable { .. } => Fault::Unavailable,
            StoreError::Unknown { .. } => Fault::Unknown,
            StoreError::Stale { .. } => Fault::Stale,
            StoreError::Rejected { .. } => Fault::Rejected,
        };
        self.meters.fault(fault);
    }

    fn count(&self, running: &Running, decisions: &Decisions) {
        for (request, decided) in decisions.decided.iter().enumerate() {
            let Ok(decided) = decided else { continue };
            self.meters.count(match decided.outcome {
                Outcome::Allow => Event::Allowed,
                Outcome::Delay(_) => Event::Delayed,
                Outcome::Deny(_) => Event::Refused,
            });
            if decided.observed.is_some() {
                self.meters.count(Event::Observed);
            }
            if decided.shadow_refused {
                self.meters.count(Event::ShadowRefused);
            }
            if decided.standing == Standing::Fallback {
                self.meters.count(Event::Fallback);
            }
            let charges = decisions.charges_of(request);
            for (place, planned) in charges.iter().enumerate() {
                // A ban speaks for its rule if it refuses, and says nothing otherwise.
                let banned = |planned: &Planned| planned.is_ban() && !decisions.outcome(planned).is_allowed();
                if planned.is_ban() != banned(planned) || charges.get(place + 1).is_some_and(banned) {
                    continue;
                }
                let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) else {
                    continue;
                };
                if let Some(event) = decisions.rule_event(planned) {
                    rule.meter.count(event);
                }
                if matches!(planned.answered, Answered::Fallback(_) | Answered::Open | Answered::Closed) {
                    rule.meter.count(RuleEvent::Fallback);
                }
            }
        }
    }
}

/// The requests that a store did not answer.
#[derive(Debug, Default)]
pub(super) struct Faulted {
    lost: Vec<u32>,
    /// Those whose windows did not fit, and the store's time.
    stale: Option<(Vec<u32>, Time<Wall>)>,
}

/// Asks a store about the charges that `wanted` picks. The spans say of which requests they are.
pub(super) async fn ask<S: Store>(
    store: &S,
    verb: Verb,
    running: &Running,
    plan: &mut Plan,
    answers: &mut Answers,
    wanted: impl Fn(usize, &Planned) -> bool + Send,
) -> Vec<Span> {
    let (mut charges, spare_groups, mut spans) = plan.lend();
    plan.collect(running, &mut charges, &mut spans, wanted);
    let mut groups = spare_groups;
    group(verb, &charges, &spans, &mut groups);
    if !groups.is_empty() {
        store.run(Batch { numbers: running, groups: &groups }, answers).await;
    }
    let groups = emptied_groups(groups);
    let charges = emptied_charges(charges);
    plan.take_back(charges, groups);
    spans
}

impl Decisions {
    pub(crate) fn charges_of(&self, request: usize) -> &[Planned] {
        &self.plan.charges[range(&self.plan.asked[request].charges)]
    }

    /// What all enforced charges of a request come to, and which of them decides.
    fn sum_up(&mut self, request: usize, running: &Running) {
        if self.decided[request].is_err() {
            return;
        }
        let (mut outcome, mut deciding, mut shadow_refused) = (Outcome::Allow, None, false);
        let charges = range(&self.plan.asked[request].charges);
        let mut least = u64::MAX;
        for (charge, planned) in charges.clone().zip(&self.plan.charges[charges]) {
            if planned.is_replaced() {
                continue;
            }
            if planned.shadow {
                shadow_refused |= planned.is_denied();
                continue;
            }
            let together = outcome.and(self.outcome(planned));
            let remaining = self.remaining(planned);
            let decides =
                together != outcome || (together == Outcome::Allow && (remaining < least || deciding.is_none()));
            if decides {
                deciding = Some(charge as u32);
                least = remaining;
            }
            outcome = together;
        }
        let refusal =
            if outcome.is_allowed() { None } else { deciding.and_then(|charge| self.refusal(charge, running)) };
        if let Ok(decided) = &mut self.decided[request] {
            (decided.outcome, decided.deciding, decided.shadow_refused) = (outcome, deciding, shadow_refused);
            decided.refusal = refusal;
        }
    }

    /// How the rule of a charge wants its refusals to be told.
    fn refusal(&self, charge: u32, running: &Running) -> Option<Arc<Refusal>> {
        let rule = self.plan.charges[charge as usize].rule()?;
        running.rules.rules().get(rule as usize)?.special()?.refusal.clone()
    }

    fn outcome(&self, planned: &Planned) -> Outcome {
        match planned.answered {
            Answered::Not if planned.is_denied() => Outcome::Deny(Retry::Never),
            Answered::Closed => Outcome::Deny(FAULT_RETRY),
            Answered::Not | Answered::Open => Outcome::Allow,
            Answered::Enforced(_) | Answered::Shadow(_) | Answered::Fallback(_) => {
                self.answer(planned).map_or(Outcome::Allow, |(answer, _)| answer.outcome)
            }
        }
    }

    /// The least that is left of any limit of a charge.
    fn remaining(&self, planned: &Planned) -> u64 {
        let reports: &[Report] = self.answer(planned).map_or(&[], |(answer, answers)| answers.reports(answer));
        reports.iter().map(|report| report.remaining).min().unwrap_or(u64::MAX)
    }

    fn rule_event(&self, planned: &Planned) -> Option<RuleEvent> {
        let unasked = planned.shadow && planned.has_limits() && planned.answered == Answered::Not;
        if unasked || planned.is_replaced() {
            return None;
        }
        Some(match (self.outcome(planned), planned.shadow) {
            (Outcome::Allow | Outcome::Delay(_), _) => RuleEvent::Allowed,
            (Outcome::Deny(_), false) => RuleEvent::Refused,
            (Outcome::Deny(_), true) => RuleEvent::ShadowRefused,
        })
    }
}

impl Decided {
    /// Before anything was asked.
    fn passing() -> Self {
        Self {
            outcome: Outcome::Allow,
            observed: None,
            standing: Standing::Exact,
            deciding: None,
            shadow_refused: false,
            refusal: None,
        }
    }

    /// Turns a refusal or a wait into an observation.
    fn observe(&mut self) {
        if self.outcome != Outcome::Allow {
            self.observed = Some(std::mem::replace(&mut self.outcome, Outcome::Allow));
        }
    }
}

pub(super) fn range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}
