//! The phases of a decision, in execution order.
//!
//! 1. **Plan** (`plan.rs`): find the matching rules, their keys and costs.
//! 2. **Charge** (here): send all enforced charges of a request to the store as one group, which is admitted or refused
//!    as a whole.
//! 3. **Policy**: decide requests that the store did not answer (`fault_policy.rs`), and apply rules marked `suffices`
//!    (`suffice.rs`).
//! 4. **Report** (`report.rs`): combine the charges of each request into an outcome and find the deciding charge. Two
//!    steps depend on the outcome: shadow rules are charged if the request is admitted (here), and refusals count
//!    towards bans (`bans.rs`).
//! 5. **Count** (`report.rs`): update the meters.
//!
//! The requests of a batch are decided independently and in order, with the same answers as single requests. A batch
//! makes one call to the store for all enforced charges and, if shadow rules match, another call for all shadow
//! charges. If a rule with a ban or with `suffices` matches, the requests are decided one by one, because a decision
//! then depends on the results of phases 3 and 4 for earlier requests.

use std::mem::take;
use std::ops::Range;

use tollgate::Report;
use tollgate::core::Time;

use super::arrears::{repay_first, set_in_doubt};
use super::plan::{
    AnswerSource, Plan, PlannedCharge, Span, emptied_charges, emptied_groups, push_groups, to_usize_range,
};
use super::scratch::{Scratch, UnansweredRequests};
use super::{Enforcement, Engine, RulesInForce, TakeMode, bans, fast, fault_policy, report, suffice, take_mode};
use crate::decision::{DecisionRecord, Decisions, Exactness};
use crate::request::Request;
use crate::rules::OnFault;
use crate::store::{Answer, Answers, Batch, Group, Store, StoreError, StoreVerb};

/// Plans and decides requests.
pub(super) async fn decide<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    take_mode: TakeMode,
    requests: &[Request<'_>],
    decisions: &mut Decisions,
) {
    let running = engine.running.load();
    plan(engine, &running, take_mode, requests, decisions);
    decide_planned(engine, verb, take_mode, &running, decisions).await;
}

/// Runs phase 1 for all requests.
#[inline]
pub(super) fn plan<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    take_mode: TakeMode,
    requests: &[Request<'_>],
    decisions: &mut Decisions,
) {
    decisions.begin_batch(running.rules.version(), engine.time_if_needed(running), take_mode);
    decisions.observing = engine.enforcement() == Enforcement::Observe;
    for request in requests {
        match decisions.add_request(request, &running.rules) {
            Ok(()) => decisions.decided.push(Ok(DecisionRecord::ADMITTED)),
            Err(error) => decisions.decided.push(Err(error)),
        }
    }
}

/// Runs phases 2 to 5 for planned requests.
#[inline]
pub(super) async fn decide_planned<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    take_mode: TakeMode,
    running: &RulesInForce,
    decisions: &mut Decisions,
) {
    if verb == StoreVerb::Check && take_mode == TakeMode::Exactly && fast::try_decide(engine, running, decisions) {
        return;
    }
    let all = 0..decisions.decided.len();
    if all.len() > 1 && verb == StoreVerb::Check && depends_on_order(running, &decisions.plan) {
        for request in all {
            decisions.scratch.unanswered.clear();
            charge_and_report(engine, verb, take_mode, running, decisions, request..request + 1).await;
        }
    } else {
        charge_and_report(engine, verb, take_mode, running, decisions, all).await;
    }
    if decisions.observing {
        decisions.decided.iter_mut().flatten().for_each(DecisionRecord::observe);
    }
    if verb == StoreVerb::Check {
        report::count_decisions(engine, running, decisions);
    }
}

/// Returns whether a request of the batch may affect decisions about later requests, by starting a ban or by omitting
/// an exhausted rule.
fn depends_on_order(running: &RulesInForce, plan: &Plan) -> bool {
    let bans = || plan.charges.iter().any(PlannedCharge::is_ban);
    let suffices = || plan.charges.iter().any(|planned| suffice::is_marked_suffices(planned, running));
    running.rules.has_bans() && bans() || running.rules.may_omit_rules() && suffices()
}

/// Runs phases 2 to 4 for the planned requests in the range `requests`.
async fn charge_and_report<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    take_mode: TakeMode,
    running: &RulesInForce,
    decisions: &mut Decisions,
    requests: Range<usize>,
) {
    let among = requests.clone();
    charge_enforced(engine, verb, running, decisions, move |request| among.contains(&request)).await;
    if !decisions.scratch.unanswered.lost.is_empty() {
        fault_policy::fall_back(engine, verb, running, decisions);
    }
    if running.rules.may_omit_rules() && take_mode == TakeMode::Exactly {
        suffice::omit_exhausted_rules(engine, verb, running, decisions, requests.clone()).await;
    }
    if take_mode == TakeMode::UpTo {
        take_mode::lower_shadow_costs(decisions, requests.clone());
    }
    let mut matches_shadow = false;
    for request in requests.clone() {
        matches_shadow |= report::combine_charges(decisions, request, running);
    }
    if matches_shadow {
        charge_shadows(engine, verb, running, decisions, requests.clone()).await;
    }
    if verb == StoreVerb::Check && running.rules.has_bans() {
        bans::count_refusals(engine, running, decisions, requests).await;
    }
}

/// Charges the enforced rules of the requests that `among` selects, and records which requests the store did not
/// answer.
pub(super) async fn charge_enforced<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    running: &RulesInForce,
    decisions: &mut Decisions,
    among: impl Fn(usize) -> bool + Send,
) {
    let Decisions { plan, enforced, scratch, .. } = decisions;
    let wanted = move |request: usize, planned: &PlannedCharge| !planned.shadow && among(request);
    run_enforced(engine, verb, running, plan, enforced, scratch, wanted).await;
    // The calendar windows did not contain the store's time: retry with the windows for the reported time. If the retry
    // fails too, the store's clock is unreliable.
    if !scratch.unanswered.stale.is_empty() {
        let stale = take(&mut scratch.unanswered.stale);
        plan.recompute_windows(running, &stale, scratch.unanswered.store_time.unwrap_or(Time::ZERO));
        let again = |request: usize, planned: &PlannedCharge| !planned.shadow && stale.contains(&(request as u32));
        run_enforced(engine, verb, running, plan, enforced, scratch, again).await;
        let UnansweredRequests { lost, stale, .. } = &mut scratch.unanswered;
        lost.append(stale);
    }
}

/// Runs the enforced charges that `wanted` selects and links their answers to the plan.
async fn run_enforced<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    running: &RulesInForce,
    plan: &mut Plan,
    answers: &mut Answers,
    scratch: &mut Scratch,
    wanted: impl Fn(usize, &PlannedCharge) -> bool + Send,
) {
    let first = answers.len();
    if engine.arrears.is_empty() {
        run_groups(&engine.store, verb, running, plan, answers, scratch, wanted).await;
    } else {
        let requests = run_groups(&engine.store, verb, running, plan, answers, scratch, wanted);
        Box::pin(repay_first(engine, running, plan, requests)).await;
    }
    if engine.arrears.has_doubts() {
        set_in_doubt(engine, plan, scratch.spans.iter().map(|span| span.request), false);
    }
    link_answers(engine, plan, answers, first, ChargeKind::Enforced, scratch);
    record_reports_for_outages(engine, running, plan, answers, first, &scratch.spans);
}

/// Charges the shadow rules of requests that all enforced rules have admitted. Shadow rules do not affect the outcome,
/// so store errors are ignored.
async fn charge_shadows<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    running: &RulesInForce,
    decisions: &mut Decisions,
    requests: Range<usize>,
) {
    let Decisions { plan, shadows, decided, scratch, .. } = decisions;
    // A request is skipped if a shadow `deny` rule already refuses its whole group, or if the store did not answer its
    // enforced charges.
    let admitted = |request: usize| {
        let asks = |decided: &DecisionRecord| {
            decided.outcome.is_admitted() && !decided.shadow_refused && decided.exactness != Exactness::Fallback
        };
        decided[request].as_ref().is_ok_and(asks)
    };
    let wanted =
        |request: usize, planned: &PlannedCharge| planned.shadow && requests.contains(&request) && admitted(request);
    let first = shadows.len();
    run_groups(&engine.store, verb, running, plan, shadows, scratch, wanted).await;
    link_answers(engine, plan, shadows, first, ChargeKind::Shadow, scratch);
    for span in &scratch.spans {
        let refused = |planned: &PlannedCharge| match planned.answered {
            AnswerSource::Shadow(charge) => shadows.answer(charge).is_some_and(|answer| !answer.outcome.is_admitted()),
            AnswerSource::Unanswered
            | AnswerSource::Enforced(_)
            | AnswerSource::Fallback(_)
            | AnswerSource::Open
            | AnswerSource::Closed => false,
        };
        let charges = to_usize_range(&plan.requests[span.request as usize].charges);
        if let Ok(decided) = &mut decided[span.request as usize] {
            decided.shadow_refused |= plan.charges[charges].iter().any(refused);
        }
    }
}

/// The kind of charges that were sent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeKind {
    Enforced,
    Shadow,
}

/// Runs the charges that `wanted` selects, one group per request, and records those requests in `scratch.spans`.
async fn run_groups<S: Store>(
    store: &S,
    verb: StoreVerb,
    running: &RulesInForce,
    plan: &Plan,
    answers: &mut Answers,
    scratch: &mut Scratch,
    wanted: impl Fn(usize, &PlannedCharge) -> bool + Send,
) {
    let mut charges = take(&mut scratch.charges);
    plan.collect_charges(running, &mut charges, &mut scratch.spans, wanted);
    match &*scratch.spans {
        [] => {}
        // Nearly always there is only one group, which needs no list.
        [_] => {
            let group = Group { verb, charges: &charges };
            store.run(Batch { limit_table: running, groups: std::slice::from_ref(&group) }, answers).await;
        }
        several => {
            let mut groups = take(&mut scratch.groups);
            push_groups(verb, &charges, several, &mut groups);
            store.run(Batch { limit_table: running, groups: &groups }, answers).await;
            scratch.groups = emptied_groups(groups);
        }
    }
    scratch.charges = emptied_charges(charges);
}

/// Records in the plan the index of each charge's answer. The group of the first span has the index
/// `first`.
#[inline]
fn link_answers<S: Store, F: Store>(
    engine: &Engine<S, F>,
    plan: &mut Plan,
    answers: &Answers,
    first: usize,
    kind: ChargeKind,
    scratch: &mut Scratch,
) {
    let Scratch { spans, unanswered, .. } = scratch;
    for (index, span) in spans.iter().enumerate() {
        let Some(mut charge) = answers.first_charge(first + index) else {
            record_store_error(engine, plan, answers, first + index, span.request, kind, unanswered);
            continue;
        };
        for planned in &mut plan.charges[to_usize_range(&plan.requests[span.request as usize].charges)] {
            if planned.is_sent() && planned.shadow == (kind == ChargeKind::Shadow) {
                planned.answered = match kind {
                    ChargeKind::Enforced => AnswerSource::Enforced(charge),
                    ChargeKind::Shadow => AnswerSource::Shadow(charge),
                };
                charge += 1;
            }
        }
    }
}

#[cold]
fn record_store_error<S: Store, F: Store>(
    engine: &Engine<S, F>,
    plan: &Plan,
    answers: &Answers,
    group: usize,
    request: u32,
    kind: ChargeKind,
    unanswered: &mut UnansweredRequests,
) {
    let Err(error) = answers.group(group) else { return };
    engine.meters.count_store_error(&error);
    if matches!(error, StoreError::Unknown { .. }) {
        set_in_doubt(engine, plan, [request], true);
    }
    match (kind, error) {
        (ChargeKind::Shadow, _) => {}
        (ChargeKind::Enforced, StoreError::Stale { store_time }) => {
            unanswered.stale.push(request);
            unanswered.store_time = unanswered.store_time.max(Some(store_time));
        }
        (ChargeKind::Enforced, StoreError::Unavailable { .. }) => unanswered.lost.push(request),
        (ChargeKind::Enforced, StoreError::Unknown { .. } | StoreError::Rejected { .. }) => {
            unanswered.lost.push(request);
            unanswered.not_owed.push(request);
        }
    }
}

/// Records the store's reports for rules that decide by these reports during an outage. The group of the first span has
/// the index `first`.
pub(super) fn record_reports_for_outages<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    plan: &Plan,
    answers: &Answers,
    first: usize,
    spans: &[Span],
) {
    if !engine.store.can_fail() || spans.is_empty() {
        return;
    }
    let mut now = None;
    for (index, span) in spans.iter().enumerate() {
        let Ok(group) = answers.group(first + index) else { continue };
        let charges = &plan.charges[to_usize_range(&plan.requests[span.request as usize].charges)];
        let asked = charges.iter().filter(|planned| planned.is_sent() && !planned.shadow);
        for (planned, answer) in asked.zip(group.charges()) {
            let is_news = match answer.exactness {
                Exactness::Exact => true,
                Exactness::Leased => should_record_leased_answer(answer, group.reports(answer)),
                // These answers are not recorded: during an outage, the node continues with its own view of the key.
                Exactness::Eventual | Exactness::Fallback => false,
            };
            if planned.on_fault != OnFault::Local || planned.is_ban() || !is_news {
                continue;
            }
            if let Some(limits) = plan.limits.limits_id(planned, running) {
                let now = *now.get_or_insert_with(|| (engine.mono)());
                engine.last_seen.record(plan.key(planned), limits, now, group.decided_at(), group.reports(answer));
            }
        }
    }
}

/// Returns whether a decision from leases has to be recorded. Every refusal is recorded. An admission is recorded if it
/// moves the remaining amount past a multiple of 1/32 of the limit. Recording an admission takes almost as long as
/// deciding it.
fn should_record_leased_answer(answer: &Answer, reports: &[Report]) -> bool {
    let Some(report) = reports.iter().min_by_key(|report| report.remaining) else { return false };
    let step = (report.limit / 32).max(1);
    let before = report.remaining.saturating_add(answer.taken.get());
    !answer.outcome.is_admitted() || before / step != report.remaining / step
}
