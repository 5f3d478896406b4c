//! Decides requests that the store did not answer. No other module does this.
//!
//! A rule with `on_fault: local` uses this node's share of its limits. The share starts with a part of the amount that
//! the store last reported as remaining (`last_seen.rs`). The arithmetic and the bound are in
//! [`tollgate_share::shares`]. Admissions are recorded in `arrears.rs` and charged to the store when it recovers.

use std::pin::pin;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use tollgate::core::{Algorithm, Ask, Cost, Nanos};
use tollgate::ledger::LimitTable as _;
use tollgate::{Limits, Retry};
use tollgate_share::shares::{ShareStart, fits_store_remaining};

use super::arrears::Admission;
use super::last_seen::Usage;
use super::plan::{AnswerSource, Plan, PlanLimits, PlannedCharge, Span, push_groups, to_usize_range};
use super::{Engine, RulesInForce};
use crate::decision::{Decisions, Exactness};
use crate::inline::InternedLimits;
use crate::rules::{Consistency, OnFault};
use crate::store::{Answers, Batch, Charge, Group, Store, StoreVerb};

/// The retry time that is reported if a request is refused because the store does not answer. The recovery time is
/// unknown, and retrying sooner only adds load.
pub(super) const FAULT_RETRY: Retry = Retry::After(Nanos::SECOND);

/// A charge to this node's share, decided locally.
struct LocalCharge<'a> {
    charge: Charge<'a>,
    /// The limits of the whole fleet. The charge uses this node's share of them.
    whole: &'a Limits,
    whole_id: u32,
    used: Usage,
}

/// Decides requests that the store did not answer, by the `on_fault` of their rules. A `closed` rule refuses the whole
/// request. Otherwise, the `local` rules decide the request as one group. `open` rules admit the request.
pub(super) fn fall_back<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    running: &RulesInForce,
    decisions: &mut Decisions,
) {
    let fallback = Fallback { engine, running, nodes: engine.nodes.load(Ordering::Relaxed) };
    let mut shares: Vec<InternedLimits> = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    if running.rules.uses_time() {
        // The planned calendar windows may be based on the store's clock, or may have ended since planning.
        decisions.plan.recompute_windows(running, &decisions.scratch.unanswered.lost, (engine.wall)());
    }
    for request in &decisions.scratch.unanswered.lost {
        if let Ok(decided) = &mut decisions.decided[*request as usize] {
            decided.exactness = Exactness::Fallback;
        }
        let charges = to_usize_range(&decisions.plan.requests[*request as usize].charges);
        let start = shares.len() as u32;
        let Plan { charges: planned, limits, .. } = &mut decisions.plan;
        fallback.set_answer_sources(&mut planned[charges], limits, &mut shares);
        if start < shares.len() as u32 {
            spans.push(Span { request: *request, charges: start..shares.len() as u32 });
        }
    }
    if !spans.is_empty() {
        decisions.scratch.unanswered.not_owed.sort_unstable();
        engine.fell_back.store(true, Ordering::Relaxed);
        fallback.decide_locally(verb, &shares, &spans, decisions);
    }
}

/// Context for decisions while the store does not answer.
struct Fallback<'e, S, F> {
    engine: &'e Engine<S, F>,
    running: &'e RulesInForce,
    /// The number of nodes that share the limits.
    nodes: u32,
}

impl<'e, S: Store, F: Store> Fallback<'e, S, F> {
    /// Sets the answer source of each enforced charge of a request. Adds this node's shares for local charges to
    /// `shares`.
    fn set_answer_sources(&self, charges: &mut [PlannedCharge], limits: &PlanLimits, shares: &mut Vec<InternedLimits>) {
        let enforced = |planned: &&mut PlannedCharge| planned.is_sent() && !planned.shadow;
        let closed =
            charges.iter().any(|planned| planned.is_sent() && !planned.shadow && planned.on_fault == OnFault::Closed);
        for planned in charges.iter_mut().filter(enforced) {
            planned.answered = match planned.on_fault {
                OnFault::Closed => AnswerSource::Closed,
                OnFault::Open => AnswerSource::Open,
                // A closed rule refuses the request, so this charge is not needed.
                OnFault::Local if closed => AnswerSource::Unanswered,
                OnFault::Local => match limits.limits(planned, self.running) {
                    Some(limits) => {
                        shares.push(self.engine.shares.share_of_node(limits, self.nodes));
                        AnswerSource::Fallback(u32::MAX)
                    }
                    None => AnswerSource::Open,
                },
            };
        }
    }

    fn decide_locally(&self, verb: StoreVerb, shares: &[InternedLimits], spans: &[Span], decisions: &mut Decisions) {
        let Decisions { plan, fallback, scratch, .. } = decisions;
        let mut locals: Vec<LocalCharge<'_>> = Vec::with_capacity(shares.len());
        for span in spans {
            let local =
                plan.charges[to_usize_range(&plan.requests[span.request as usize].charges)].iter().filter(is_local);
            for (planned, share) in local.zip(&shares[to_usize_range(&span.charges)]) {
                locals.push(self.local_charge(planned, share, plan));
            }
        }
        let before = fallback.len();
        // The lock makes the debt check and the charge of a share atomic.
        let may_need_debt = self.nodes > 1 && locals.iter().any(LocalCharge::may_need_debt);
        let owing = may_need_debt.then(|| self.engine.debt_lock.lock().unwrap_or_else(PoisonError::into_inner));
        let mut waits: Vec<Option<Nanos>> = Vec::new();
        if may_need_debt {
            waits.extend(locals.iter_mut().map(|local| self.allow_debt(local)));
        }
        let charges: Vec<Charge<'_>> = locals.iter().map(|local| local.charge).collect();
        let mut groups = Vec::with_capacity(spans.len());
        push_groups(verb, &charges, spans, &mut groups);
        self.run_fallback(&groups, fallback);
        drop(owing);
        drop(groups);
        drop(charges);
        if verb == StoreVerb::Check {
            let is_owed = |request: u32| scratch.unanswered.not_owed.binary_search(&request).is_err();
            self.record_admitted(&locals, shares, spans, fallback, before, is_owed);
        }
        drop(locals);
        for (index, span) in spans.iter().enumerate() {
            let first = fallback.first_charge(before + index);
            let charges = to_usize_range(&plan.requests[span.request as usize].charges);
            let local = plan.charges[charges].iter_mut().filter(|planned| is_local(&&**planned));
            for (planned, (offset, charge)) in local.zip((0..).zip(to_usize_range(&span.charges))) {
                // If the fallback does not answer either, the request passes: a limiter must not cause an outage.
                planned.answered = first.map_or(AnswerSource::Open, |first| AnswerSource::Fallback(first + offset));
                if let (Some(first), Some(Some(wait))) = (first, waits.get(charge)) {
                    fallback.set_wait(first + offset, *wait);
                }
            }
        }
    }

    /// Records arrears for the groups that the fallback admitted, except for requests for which `is_owed` returns
    /// false. The group of the first span has the index `first`.
    fn record_admitted(
        &self,
        locals: &[LocalCharge<'_>],
        shares: &[InternedLimits],
        spans: &[Span],
        answers: &Answers,
        first: usize,
        is_owed: impl Fn(u32) -> bool,
    ) {
        let now = (self.engine.mono)().as_nanos();
        for (index, span) in spans.iter().enumerate().filter(|(_, span)| is_owed(span.request)) {
            let Ok(group) = answers.group(first + index) else { continue };
            let charges = to_usize_range(&span.charges);
            let charged = locals[charges.clone()].iter().zip(&shares[charges]);
            for ((local, share), answer) in charged.zip(group.charges()) {
                let admitted = Admission {
                    key: local.charge.key,
                    limits_id: local.whole_id,
                    limits: local.whole,
                    share,
                    windows: local.charge.windows,
                    taken: answer.taken,
                    into_debt: matches!(local.charge.ask, Ask::Regardless(_)),
                    reports: group.reports(answer),
                };
                self.engine.arrears.add(&admitted, now);
            }
        }
    }

    /// Creates a charge to this node's share. If the store has answered since the share was last initialised,
    /// initialises it again from the reported remaining amount.
    fn local_charge<'a>(&self, planned: &'a PlannedCharge, share: &'a InternedLimits, plan: &'a Plan) -> LocalCharge<'a>
    where
        'e: 'a,
    {
        let (running, nodes) = (self.running, self.nodes);
        let (limits_id, limits) = (share.entry().id, &share.entry().limits);
        let whole = plan.limits.limits(planned, self.running).unwrap_or(limits);
        let windows = plan.calendar_windows(planned, running);
        let (key, ask) = (plan.key(planned), plan.ask(planned));
        let consistency = Consistency::Strict;
        let charge = Charge { key, limits_id, limits, earlier: &[], ask, stamps: None, windows, consistency };
        let used = self.engine.last_seen.usage_of(key, (self.engine.mono)(), |used| {
            // The reported usage belongs to the limits in the store's answer. Those limits may differ from the current
            // limits.
            let other = used.limits_id().and_then(|id| running.get(id)).filter(|answered| *answered != whole);
            match other {
                Some(other) => self.start_share(&charge, &self.engine.shares.share_of_node(other, nodes), other, used),
                None => self.start_share(&charge, share, whole, used),
            }
        });
        let whole_id = plan.limits.limits_id(planned, self.running).unwrap_or(limits_id);
        LocalCharge { charge, whole, whole_id, used }
    }

    /// Initialises a share of the limits `whole` with its part of the remaining amount.
    fn start_share(&self, charge: &Charge<'_>, share: &InternedLimits, whole: &Limits, used: &Usage) {
        let (limits_id, limits) = (share.entry().id, &share.entry().limits);
        if let Some(start) =
            ShareStart::new(limits, whole, self.nodes, used.now(), |position| used.limit_usage(position))
        {
            let charge = Charge { limits_id, limits, ..*charge };
            self.engine.fallback.init_state(&*self.engine.shares.limits_by_id(), &charge, &start.limits, &start.used);
        }
    }

    /// Allows a charge to put the share into debt if the cost fits the remaining amount of the whole limit and the
    /// share has at least one token. Otherwise, if the cost exceeds the share's capacity, returns the wait, because
    /// the share itself would report that the cost never fits.
    fn allow_debt(&self, local: &mut LocalCharge<'_>) -> Option<Nanos> {
        let Ask::Exactly(cost) = local.charge.ask else { return None };
        let mut answers = Answers::default();
        let groups = [Group { verb: StoreVerb::Peek, charges: std::slice::from_ref(&local.charge) }];
        self.run_fallback(&groups, &mut answers);
        let answer = answers.answer(0).filter(|answer| !answer.outcome.is_admitted())?;
        let (mut fits, mut too_much, mut wait) = (true, false, Nanos::ZERO);
        let limits = local.whole.as_slice().iter().enumerate();
        for (report, (position, limit)) in answers.reports(answer).iter().zip(limits) {
            if cost.get() > limit.capacity() {
                return None;
            }
            let share_remaining = report.remaining;
            // If the remaining amount is unknown, the key is treated as new, with the full limit remaining.
            let left = local.used.amount_left(position, limit).unwrap_or(limit.capacity());
            fits &= fits_store_remaining(cost.get(), share_remaining, left, self.nodes);
            too_much |= cost.get() > share_remaining;
            wait = wait.max(report.reset).max(local.used.wait_until_left(position, limit, cost.get()));
        }
        if fits && too_much {
            local.charge.ask = Ask::Regardless(cost);
            return None;
        }
        (cost.get() > local.charge.limits.capacity()).then_some(wait)
    }

    /// Runs groups in the fallback. If the fallback does not answer immediately, the groups stay unanswered.
    fn run_fallback(&self, groups: &[Group<'_>], answers: &mut Answers) {
        let limits_by_id = self.engine.shares.limits_by_id();
        let run = pin!(self.engine.fallback.run(Batch { limit_table: &*limits_by_id, groups }, answers));
        let _ = run.poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl LocalCharge<'_> {
    /// Returns whether the charge may fit the whole limit without fitting the share. A cost of 1 always fits a share
    /// that has a token.
    fn may_need_debt(&self) -> bool {
        matches!(self.charge.ask, Ask::Exactly(cost) if cost > Cost::ONE)
    }
}

fn is_local(planned: &&PlannedCharge) -> bool {
    matches!(planned.answered, AnswerSource::Fallback(_))
}
