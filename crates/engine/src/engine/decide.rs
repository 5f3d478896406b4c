//! A batch of requests from beginning to end: plan, ask the store, apply the policy, sum up.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use tollgate::core::{Time, Wall};
use tollgate::{Outcome, Retry};

use super::plan::{Answered, Plan, Planned, Span, emptied_charges, emptied_groups, group};
use super::policy::FAULT_RETRY;
use super::{Enforcement, Engine, Running, Taking};
use crate::decision::{Decided, Decisions, Standing};
use crate::meters::{Event, Fault, Line, RuleEvent};
use crate::request::Request;
use crate::rules::{OnFault, Refusal};
use crate::store::{Answers, Batch, Group, Store, StoreError, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Decides requests, each by itself, in order.
    pub(super) async fn decide(&self, verb: Verb, taking: Taking, requests: &[Request<'_>], decisions: &mut Decisions) {
        let running = self.running.load();
        decisions.begin(running.rules.version(), self.time_for(&running), taking);
        decisions.observing = self.enforcement() == Enforcement::Observe;
        for request in requests {
            let planned = decisions.add(request, &running.rules);
            decisions.decided.push(planned.map(|()| Decided::passing()));
        }
        if verb == Verb::Check && taking == Taking::Exactly && self.pass_at_once(&running, decisions) {
            return;
        }
        self.ask_enforced(verb, &running, decisions, |_| true).await;
        if !decisions.faulted.lost.is_empty() {
            self.fall_back(verb, &running, decisions);
        }
        if running.rules.leaves_out() && taking == Taking::Exactly {
            self.leave_out_exhausted(verb, &running, decisions).await;
        }
        if taking == Taking::UpTo {
            self.even_out(decisions).await;
        }
        let mut met_shadow = false;
        for request in 0..decisions.decided.len() {
            met_shadow |= decisions.sum_up(request, &running);
        }
        if met_shadow {
            self.ask_shadows(verb, &running, decisions).await;
        }
        if verb == Verb::Check && running.rules.bans() {
            self.note_refusals(&running, decisions).await;
        }
        if decisions.observing {
            decisions.decided.iter_mut().flatten().for_each(Decided::observe);
        }
        if verb == Verb::Check {
            self.count(&running, decisions);
        }
    }

    /// Asks the store about all that is enforced of the requests that `among` picks, and notes which ones it did not answer.
    pub(super) async fn ask_enforced(
        &self,
        verb: Verb,
        running: &Running,
        decisions: &mut Decisions,
        among: impl Fn(usize) -> bool + Send,
    ) {
        let Decisions { plan, enforced, spans, faulted, .. } = decisions;
        let first = enforced.len();
        let wanted = move |request: usize, planned: &Planned| !planned.shadow && among(request);
        ask(&self.store, verb, running, plan, enforced, spans, wanted).await;
        self.take_answers(plan, enforced, first, spans, Asked::Enforced, faulted);
        self.remember(running, plan, enforced, first, spans);
        // The windows handed in did not fit the store's time: once more, with those of the time it told. If they do not fit
        // again, its clock is not to be relied on.
        if !faulted.stale.is_empty() {
            let (first, stale) = (enforced.len(), take(&mut faulted.stale));
            plan.move_windows(running, &stale, faulted.store_time.unwrap_or(Time::ZERO));
            let again = |request: usize, planned: &Planned| !planned.shadow && stale.contains(&(request as u32));
            ask(&self.store, verb, running, plan, enforced, spans, again).await;
            self.take_answers(plan, enforced, first, spans, Asked::Enforced, faulted);
            self.remember(running, plan, enforced, first, spans);
            let Faulted { lost, stale, .. } = faulted;
            lost.append(stale);
        }
    }

    /// Asks about shadow rules where everything enforced has passed. They change nothing, so if the store does not answer,
    /// nothing is told about them.
    async fn ask_shadows(&self, verb: Verb, running: &Running, decisions: &mut Decisions) {
        let Decisions { plan, shadows, decided, spans, .. } = decisions;
        // Whoever has waited for the store in vain does not wait for it once more.
        let passed = |request: usize| {
            let asked = |decided: &Decided| decided.outcome.is_admitted() && decided.standing == Standing::Exact;
            decided[request].as_ref().is_ok_and(asked)
        };
        let wanted = |request: usize, planned: &Planned| planned.shadow && passed(request);
        ask(&self.store, verb, running, plan, shadows, spans, wanted).await;
        self.take_answers(plan, shadows, 0, spans, Asked::Shadow, &mut Faulted::default());
        for span in &*spans {
            let refused = |planned: &Planned| match planned.answered {
                Answered::Shadow(charge) => shadows.answer(charge).is_some_and(|answer| !answer.outcome.is_admitted()),
                Answered::Not | Answered::Enforced(_) | Answered::Fallback(_) | Answered::Open | Answered::Closed => {
                    false
                }
            };
            let charges = range(&plan.asked[span.request as usize].charges);
            if let Ok(decided) = &mut decided[span.request as usize] {
                decided.shadow_refused |= plan.charges[charges].iter().any(refused);
            }
        }
    }

    /// Notes in the plan where the answers to its charges are, from the group `first` on.
    #[inline]
    fn take_answers(
        &self,
        plan: &mut Plan,
        answers: &Answers,
        first: usize,
        spans: &[Span],
        asked: Asked,
        faulted: &mut Faulted,
    ) {
        for (place, span) in spans.iter().enumerate() {
            let Some(mut charge) = answers.first_charge(first + place) else {
                self.take_error(answers, first + place, span.request, faulted);
                continue;
            };
            for planned in &mut plan.charges[range(&plan.asked[span.request as usize].charges)] {
                if planned.has_limits() && planned.shadow == (asked == Asked::Shadow) {
                    planned.answered = match asked {
                        Asked::Enforced => Answered::Enforced(charge),
                        Asked::Shadow => Answered::Shadow(charge),
                    };
                    charge += 1;
                }
            }
        }
    }

    /// Records what the store said, from the group `first` on, for rules that decide by it while the store does not answer.
    fn remember(&self, running: &Running, plan: &Plan, answers: &Answers, first: usize, spans: &[Span]) {
        if !self.store.can_fail() || spans.is_empty() {
            return;
        }
        let now = (self.mono)();
        for (place, span) in spans.iter().enumerate() {
            let Ok(group) = answers.group(first + place) else { continue };
            let charges = &plan.charges[range(&plan.asked[span.request as usize].charges)];
            let asked = charges.iter().filter(|planned| planned.has_limits() && !planned.shadow);
            for (planned, answer) in asked.zip(group.charges()) {
                if planned.on_fault != OnFault::Local || planned.is_ban() {
                    continue;
                }
                if let Some(limits) = plan.numbers.id(planned, running) {
                    self.last_seen.record(plan.key(planned), limits, now, group.at(), group.reports(answer));
                }
            }
        }
    }

    #[cold]
    fn take_error(&self, answers: &Answers, group: usize, request: u32, faulted: &mut Faulted) {
        let Err(error) = answers.group(group) else { return };
        self.note(&error);
        match error {
            StoreError::Stale { store_time } => {
                faulted.stale.push(request);
                faulted.store_time = faulted.store_time.max(Some(store_time));
            }
            StoreError::Unavailable { .. } | StoreError::Unknown { .. } | StoreError::Rejected { .. } => {
                faulted.lost.push(request);
            }
        }
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
        let (bans, line) = (running.rules.bans(), Line::of_thread());
        for (request, decided) in decisions.decided.iter().enumerate() {
            let Ok(decided) = decided else { continue };
            self.meters.count_in(
                line,
                match decided.outcome {
                    Outcome::Allow => Event::Allowed,
                    Outcome::Delay(_) => Event::Delayed,
                    Outcome::Deny(_) => Event::Refused,
                },
            );
            if decided.observed.is_some() {
                self.meters.count_in(line, Event::Observed);
            }
            if decided.shadow_refused {
                self.meters.count_in(line, Event::ShadowRefused);
            }
            if decided.standing == Standing::Fallback {
                self.meters.count_in(line, Event::Fallback);
            }
            let charges = decisions.charges_of(request);
            for (place, planned) in charges.iter().enumerate() {
                if bans && decisions.is_spoken_for(charges, place) {
                    continue;
                }
                let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) else {
                    continue;
                };
                if let Some(event) = decisions.rule_event(planned) {
                    rule.meter.count_in(line, event);
                }
                if matches!(planned.answered, Answered::Fallback(_) | Answered::Open | Answered::Closed) {
                    rule.meter.count_in(line, RuleEvent::Fallback);
                }
            }
        }
    }
}

/// Which charges a store was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Enforced,
    Shadow,
}

/// The requests that a store did not answer.
#[derive(Debug, Default)]
pub(crate) struct Faulted {
    pub(super) lost: Vec<u32>,
    /// Those whose windows did not fit, and the store's time.
    stale: Vec<u32>,
    store_time: Option<Time<Wall>>,
}

impl Faulted {
    pub(crate) fn clear(&mut self) {
        self.lost.clear();
        self.stale.clear();
        self.store_time = None;
    }
}

/// Asks a store about the charges that `wanted` picks. The spans say of which requests they are.
pub(super) async fn ask<S: Store>(
    store: &S,
    verb: Verb,
    running: &Running,
    plan: &mut Plan,
    answers: &mut Answers,
    spans: &mut Vec<Span>,
    wanted: impl Fn(usize, &Planned) -> bool + Send,
) {
    let mut charges = plan.lend_charges();
    // Most ask one question at a time, which needs no list of them.
    let mut groups = if plan.asked.len() > 1 { plan.lend_groups() } else { Vec::new() };
    plan.collect(running, &mut charges, spans, wanted);
    match &**spans {
        [] => {}
        [_] => {
            let group = Group { verb, charges: &charges };
            store.run(Batch { numbers: running, groups: std::slice::from_ref(&group) }, answers).await;
        }
        several => {
            group(verb, &charges, several, &mut groups);
            store.run(Batch { numbers: running, groups: &groups }, answers).await;
        }
    }
    let groups = (groups.capacity() > 0).then(|| emptied_groups(groups));
    let charges = emptied_charges(charges);
    plan.take_back(charges, groups);
}

impl Decisions {
    pub(crate) fn charges_of(&self, request: usize) -> &[Planned] {
        &self.plan.charges[range(&self.plan.asked[request].charges)]
    }

    /// What all enforced charges of a request come to, and which of them decides. Whether there are others, too.
    #[inline]
    pub(super) fn sum_up(&mut self, request: usize, running: &Running) -> bool {
        if self.decided[request].is_err() {
            return false;
        }
        let (mut outcome, mut deciding, mut shadow_refused, mut met_shadow) = (Outcome::Allow, None, false, false);
        let charges = range(&self.plan.asked[request].charges);
        let mut least = u64::MAX;
        for (charge, planned) in charges.clone().zip(&self.plan.charges[charges]) {
            if planned.is_replaced() {
                continue;
            }
            if planned.shadow {
                met_shadow = true;
                shadow_refused |= planned.is_denied();
                continue;
            }
            let (said, remaining) = match self.answer(planned) {
                // Of a ban there is nothing left to tell.
                Some((answer, _)) => (answer.outcome, if planned.is_ban() { u64::MAX } else { answer.least() }),
                None => (unanswered(planned), u64::MAX),
            };
            if said == Outcome::Allow && outcome == Outcome::Allow {
                if remaining < least || deciding.is_none() {
                    (deciding, least) = (Some(charge as u32), remaining);
                }
                continue;
            }
            let together = outcome.and(said);
            if together != outcome {
                deciding = Some(charge as u32);
            }
            outcome = together;
        }
        if !outcome.is_admitted()
            && running.rules.leaves_out()
            && let Some((soonest, by)) = self.soonest(request, running).filter(|(soonest, _)| !soonest.is_allowed())
        {
            (outcome, deciding) = (soonest, Some(by));
        }
        let refusal =
            if outcome.is_admitted() { None } else { deciding.and_then(|charge| self.refusal(charge, running)) };
        if let Ok(decided) = &mut self.decided[request] {
            (decided.outcome, decided.deciding, decided.shadow_refused) = (outcome, deciding, shadow_refused);
            decided.refusal = refusal;
        }
        met_shadow
    }

    /// How the rule of a charge wants its refusals to be told.
    fn refusal(&self, charge: u32, running: &Running) -> Option<Arc<Refusal>> {
        let rule = self.plan.charges[charge as usize].rule()?;
        running.rules.rules().get(rule as usize)?.special()?.refusal.clone()
    }

    pub(super) fn outcome(&self, planned: &Planned) -> Outcome {
        self.answer(planned).map_or_else(|| unanswered(planned), |(answer, _)| answer.outcome)
    }

    /// Whether a ban speaks for the rule of a charge, or the charge is a ban that says nothing: only one that refuses does.
    fn is_spoken_for(&self, charges: &[Planned], place: usize) -> bool {
        let refuses = |planned: &Planned| planned.is_ban() && !self.outcome(planned).is_allowed();
        charges[place].is_ban() != refuses(&charges[place]) || charges.get(place + 1).is_some_and(refuses)
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

/// What becomes of a charge that nobody answered.
fn unanswered(planned: &Planned) -> Outcome {
    match planned.answered {
        Answered::Not if planned.is_denied() => Outcome::Deny(Retry::Never),
        Answered::Closed => Outcome::Deny(FAULT_RETRY),
        // Of those that were, a store may still have forgotten some.
        Answered::Not | Answered::Open | Answered::Enforced(_) | Answered::Shadow(_) | Answered::Fallback(_) => {
            Outcome::Allow
        }
    }
}

pub(super) fn range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}
