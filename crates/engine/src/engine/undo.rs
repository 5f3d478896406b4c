//! Refunds, renewals and resets.

use std::sync::atomic::Ordering;

use tollgate::Limits;
use tollgate::core::{Ask, Cost};

use super::arrears::Repayment;
use super::bans::refusals_to_forget;
use super::plan::PlannedCharge;
use super::{Engine, EngineError, RulesInForce, TakeMode};
use crate::calendar::CachedCalendar;
use crate::decision::Decisions;
use crate::inline::InternedLimits;
use crate::key;
use crate::receipt::{Receipt, ReceiptEntry};
use crate::request::Request;
use crate::rules::Consistency;
use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, StoreVerb};

/// See [`Engine::refund`].
pub(super) async fn refund<S: Store, F: Store>(engine: &Engine<S, F>, receipt: &Receipt) -> Result<Cost, EngineError> {
    Ok(apply_to_receipt(engine, StoreVerb::Refund, receipt).await?.unwrap_or(Cost::ZERO))
}

/// See [`Engine::renew`].
pub(super) async fn renew<S: Store, F: Store>(engine: &Engine<S, F>, receipt: &Receipt) -> Result<bool, EngineError> {
    Ok(apply_to_receipt(engine, StoreVerb::Renew, receipt).await?.is_some_and(|least| least > Cost::ZERO))
}

/// Applies a verb to the receipt's counters whose rules still exist. Returns the smallest amount that any counter
/// accepted; `None` if there are no such counters.
async fn apply_to_receipt<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    receipt: &Receipt,
) -> Result<Option<Cost>, EngineError> {
    let mut inline: Vec<Option<InternedLimits>> = Vec::with_capacity(receipt.entries.len());
    for taken in &receipt.entries {
        inline.push(inline_limits(engine, taken)?);
    }
    let running = engine.running.load();
    let nodes = engine.nodes.load(Ordering::Relaxed);
    let (mut by_store, mut local) = (Vec::new(), Vec::new());
    for (taken, inline) in receipt.entries.iter().zip(&inline) {
        let Some(current) = current_limits_of(taken, inline.as_ref(), &running) else { continue };
        if verb == StoreVerb::Renew && !taken.has_slots {
            continue;
        }
        if taken.fallback {
            let share = engine.shares.share_of_node(current.limits, nodes);
            local.push(FallbackEntry { taken, current, share, repaid: None, accepted_by_store: Cost::ZERO });
        } else {
            by_store.push(Charge { consistency: current.consistency, ..new_refund(taken, current.id, current.limits) });
        }
    }
    let mut answers = Answers::default();
    let mut least = Cost::MAX;
    if !by_store.is_empty() {
        let groups = [Group { verb, charges: &by_store }];
        engine.store.run(Batch { limit_table: &**running, groups: &groups }, &mut answers).await;
        least = least.min(least_accepted(&answers)?);
        record_refund_reports(engine, &by_store, &answers);
    }
    if verb == StoreVerb::Refund {
        refund_repayments(engine, &running, &mut local).await?;
    }
    if !local.is_empty() {
        answers.clear();
        let limits_by_id = engine.shares.limits_by_id();
        let by_fallback: Vec<Charge<'_>> = local
            .iter()
            .map(|entry| new_refund(entry.taken, entry.share.entry().id, &entry.share.entry().limits))
            .collect();
        let groups = [Group { verb, charges: &by_fallback }];
        engine.fallback.run(Batch { limit_table: &*limits_by_id, groups: &groups }, &mut answers).await;
        for (entry, answer) in local.iter().zip(answers.group(0)?.charges()) {
            least = least.min(answer.taken.max(entry.accepted_by_store));
            if verb == StoreVerb::Refund {
                let repaid = entry.repaid.map_or(0, |repaid| repaid.cost.get());
                engine.arrears.subtract_refund(&entry.taken.key, Cost::new(answer.taken.get().saturating_sub(repaid)));
            }
        }
    }
    Ok((!by_store.is_empty() || !local.is_empty()).then_some(least))
}

/// A receipt entry that the fallback decided.
struct FallbackEntry<'a> {
    taken: &'a ReceiptEntry,
    current: CurrentLimits<'a>,
    share: InternedLimits,
    /// The part of the charge that was already repaid to the store, and has to be refunded there too.
    repaid: Option<Repayment>,
    accepted_by_store: Cost,
}

/// Refunds repaid arrears in the store. The fallback admitted these requests, and the store was charged for them later.
async fn refund_repayments<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    local: &mut [FallbackEntry<'_>],
) -> Result<(), EngineError> {
    let now = (engine.mono)().as_nanos();
    for entry in &mut *local {
        entry.repaid = engine.arrears.take_repayment(&entry.taken.key, entry.taken.cost, now);
    }
    let charges: Vec<Charge<'_>> = local
        .iter()
        .filter_map(|entry| {
            let repaid = entry.repaid.as_ref()?;
            let (ask, stamps) = (Ask::Exactly(repaid.cost), Some(&repaid.stamps));
            let consistency = entry.current.consistency;
            Some(Charge { ask, stamps, consistency, ..new_refund(entry.taken, entry.current.id, entry.current.limits) })
        })
        .collect();
    if charges.is_empty() {
        return Ok(());
    }
    let mut answers = Answers::default();
    let groups = [Group { verb: StoreVerb::Refund, charges: &charges }];
    engine.store.run(Batch { limit_table: running, groups: &groups }, &mut answers).await;
    let repaid = |entry: &&mut FallbackEntry<'_>| entry.repaid.is_some();
    match answers.group(0) {
        Ok(group) => {
            record_refund_reports(engine, &charges, &answers);
            for (entry, answer) in local.iter_mut().filter(repaid).zip(group.charges()) {
                entry.accepted_by_store = answer.taken;
            }
            Ok(())
        }
        Err(error) => {
            // After any other error, the store may have refunded the repayment.
            if matches!(error, StoreError::Unavailable { .. }) {
                for (entry, repaid) in local.iter().filter_map(|entry| Some((entry, entry.repaid?))) {
                    engine.arrears.restore_repayment(&entry.taken.key, repaid);
                }
            }
            Err(error.into())
        }
    }
}

/// Records the remaining amounts that the store reported after a refund.
fn record_refund_reports<S: Store, F: Store>(engine: &Engine<S, F>, charges: &[Charge<'_>], answers: &Answers) {
    let Ok(group) = answers.group(0) else { return };
    if engine.store.can_fail() {
        let now = (engine.mono)();
        for (charge, answer) in charges.iter().zip(group.charges()) {
            engine.last_seen.record(charge.key, charge.limits_id, now, group.decided_at(), group.reports(answer));
        }
    }
}

/// See [`Engine::refund_request`].
pub(super) async fn refund_request<S: Store, F: Store>(
    engine: &Engine<S, F>,
    request: &Request<'_>,
    decisions: &mut Decisions,
) -> Result<(), EngineError> {
    let running = engine.running.load();
    decisions.begin_batch(running.rules.version(), engine.time_if_needed(&running), TakeMode::Exactly);
    decisions.add_request(request, &running.rules)?;
    let (mut charges, mut spans) = (Vec::new(), Vec::new());
    decisions.plan.collect_charges(&running, &mut charges, &mut spans, |_, planned: &PlannedCharge| !planned.is_ban());
    if charges.is_empty() {
        return Ok(());
    }
    let mut answers = Answers::default();
    let groups = [Group { verb: StoreVerb::Refund, charges: &charges }];
    engine.store.run(Batch { limit_table: &**running, groups: &groups }, &mut answers).await;
    answers.group(0)?;
    record_refund_reports(engine, &charges, &answers);
    Ok(())
}

/// See [`Engine::reset`].
pub(super) async fn reset<S: Store, F: Store>(
    engine: &Engine<S, F>,
    request: &Request<'_>,
    decisions: &mut Decisions,
) -> Result<usize, EngineError> {
    let running = engine.running.load();
    decisions.begin_batch(running.rules.version(), engine.time_if_needed(&running), TakeMode::Exactly);
    decisions.add_request(request, &running.rules)?;
    let plan = &decisions.plan;
    let (mut charges, mut spans) = (Vec::new(), Vec::new());
    plan.collect_charges(&running, &mut charges, &mut spans, |_, _: &PlannedCharge| true);
    if charges.is_empty() {
        return Ok(0);
    }
    // Refusals that count towards bans are reset as well.
    let refusals = refusals_to_forget(decisions, &running);
    charges.extend(refusals.iter().map(|(keys, rule_limits)| keys.refusal_charge(rule_limits)));
    let mut answers = Answers::default();
    let groups = [Group { verb: StoreVerb::Reset, charges: &charges }];
    engine.store.run(Batch { limit_table: &**running, groups: &groups }, &mut answers).await;
    answers.group(0)?;
    for charge in &charges {
        engine.last_seen.forget(charge.key);
        engine.arrears.forget(charge.key);
    }
    if engine.fell_back.load(Ordering::Relaxed) {
        reset_fallback(engine, &charges).await;
    }
    Ok(plan.charges.iter().filter(|planned| planned.is_sent() && !planned.is_ban()).count())
}

/// Resets the usage that the fallback recorded while the store did not answer.
async fn reset_fallback<S: Store, F: Store>(engine: &Engine<S, F>, charges: &[Charge<'_>]) {
    let nodes = engine.nodes.load(Ordering::Relaxed);
    let shares_of_node: Vec<InternedLimits> =
        charges.iter().map(|charge| engine.shares.share_of_node(charge.limits, nodes)).collect();
    let charges: Vec<Charge<'_>> = charges
        .iter()
        .zip(&shares_of_node)
        .map(|(charge, share)| {
            let entry = share.entry();
            Charge { limits_id: entry.id, limits: &entry.limits, earlier: &[], ..*charge }
        })
        .collect();
    let limits_by_id = engine.shares.limits_by_id();
    let groups = [Group { verb: StoreVerb::Reset, charges: &charges }];
    engine.fallback.run(Batch { limit_table: &*limits_by_id, groups: &groups }, &mut Answers::default()).await;
}

/// The current limits of a key.
pub(super) struct CurrentLimits<'a> {
    pub(super) id: u32,
    pub(super) limits: &'a Limits,
    pub(super) calendars: &'a [CachedCalendar],
    /// Earlier limit ids of the key, as in [`Charge::earlier`].
    pub(super) earlier: &'a [u32],
    /// Whether the rule is a shadow rule for the key.
    pub(super) shadow: bool,
    pub(super) consistency: Consistency,
}

/// Returns the inline limits of a receipt entry. The limits of an override are looked up through its rule instead.
pub(super) fn inline_limits<S: Store, F: Store>(
    engine: &Engine<S, F>,
    taken: &ReceiptEntry,
) -> Result<Option<InternedLimits>, EngineError> {
    let limits = taken.limits.as_ref().filter(|_| key::rule_name_of(&taken.key).is_none());
    Ok(limits.map(|limits| engine.intern_limits(limits)).transpose()?)
}

/// Returns the current limits of a receipt entry; `None` if its rule was removed.
pub(super) fn current_limits_of<'a>(
    taken: &ReceiptEntry,
    inline: Option<&'a InternedLimits>,
    running: &'a RulesInForce,
) -> Option<CurrentLimits<'a>> {
    if let Some(inline) = inline {
        let entry = inline.entry();
        return Some(CurrentLimits {
            id: entry.id,
            limits: &entry.limits,
            calendars: &[],
            earlier: &[],
            shadow: false,
            consistency: Consistency::Strict,
        });
    }
    let rule = running.rules.find_rule(key::rule_name_of(&taken.key)?)?;
    let shadow = rule.is_shadow() || rule.special().is_some_and(|special| special.is_shadow_for(&taken.key));
    let overrides = rule.special().and_then(|special| special.overrides.as_ref());
    let overridden = taken
        .limits
        .as_ref()
        .zip(overrides)
        .and_then(|(limits, overrides)| overrides.rule_limits().find(|rule_limits| rule_limits.limits == *limits));
    let rule_limits = overridden.or(rule.rule_limits.as_ref())?;
    let (limits, calendars) = (&rule_limits.limits, &*rule_limits.calendars);
    let consistency = rule.consistency;
    Some(CurrentLimits {
        id: rule_limits.id,
        limits,
        calendars,
        earlier: rule.earlier_limit_ids(),
        shadow,
        consistency,
    })
}

fn new_refund<'a>(taken: &'a ReceiptEntry, limits_id: u32, limits: &'a Limits) -> Charge<'a> {
    Charge {
        key: &taken.key,
        limits_id,
        limits,
        earlier: &[],
        ask: Ask::Exactly(taken.cost),
        stamps: Some(&taken.stamps),
        windows: &[],
        consistency: Consistency::Strict,
    }
}

fn least_accepted(answers: &Answers) -> Result<Cost, StoreError> {
    let group = answers.group(0)?;
    Ok(group.charges().iter().map(|charge| charge.taken).min().unwrap_or(Cost::ZERO))
}
