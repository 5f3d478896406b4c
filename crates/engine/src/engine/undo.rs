//! Taking back and forgetting.

use std::sync::atomic::Ordering;

use tollgate::Limits;
use tollgate::core::{Ask, Cost};

use super::plan::Planned;
use super::{Engine, EngineError, Running, Taking};
use crate::calendar::Kept;
use crate::decision::Decisions;
use crate::key;
use crate::receipt::{Receipt, Taken};
use crate::request::Request;
use crate::sent::SentLimits;
use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Gives back what a decision took, as far as its limits still hold it against the keys; returns the least that
    /// any of them accepted. What was taken under a rule that is gone stays gone.
    ///
    /// # Errors
    /// When the store does not do it. Refunds are not tried again by themselves: an unknown one may have been carried out.
    pub async fn refund(&self, receipt: &Receipt) -> Result<Cost, EngineError> {
        Ok(self.undo(Verb::Refund, receipt).await?.unwrap_or(Cost::ZERO))
    }

    /// Lets the slots that a decision took be held as long as if they were taken now. Whether all of them were still held:
    /// one that was lost has to be taken anew.
    ///
    /// # Errors
    /// When the store does not do it.
    pub async fn renew(&self, receipt: &Receipt) -> Result<bool, EngineError> {
        Ok(self.undo(Verb::Renew, receipt).await?.is_some_and(|least| least > Cost::ZERO))
    }

    /// Does something to all counters of a receipt that are still known: the least that any of them accepted, none if there
    /// are none.
    async fn undo(&self, verb: Verb, receipt: &Receipt) -> Result<Option<Cost>, EngineError> {
        let mut sent: Vec<Option<SentLimits>> = Vec::with_capacity(receipt.taken.len());
        for taken in &receipt.taken {
            sent.push(sent_limits(self, taken)?);
        }
        let running = self.running.load();
        let nodes = self.nodes.load(Ordering::Relaxed);
        let (mut by_store, mut parts) = (Vec::new(), Vec::new());
        for (taken, sent) in receipt.taken.iter().zip(&sent) {
            let Some(under) = limits_of(taken, sent.as_ref(), &running) else { continue };
            if verb == Verb::Renew && !under.limits.has_leases() {
                continue;
            }
            if taken.fallback {
                parts.push((taken, self.shares.of(under.limits, nodes)));
            } else {
                by_store.push(refund_of(taken, under.id, under.limits));
            }
        }
        let by_fallback: Vec<Charge<'_>> =
            parts.iter().map(|(taken, part)| refund_of(taken, part.sheet().id, &part.sheet().limits)).collect();
        let mut answers = Answers::default();
        let mut least = Cost::MAX;
        if !by_store.is_empty() {
            let groups = [Group { verb, charges: &by_store }];
            self.store.run(Batch { numbers: &**running, groups: &groups }, &mut answers).await;
            least = least.min(least_accepted(&answers)?);
            self.remember_undone(&by_store, &answers);
        }
        if !by_fallback.is_empty() {
            answers.clear();
            let numbers = self.shares.folder();
            let groups = [Group { verb, charges: &by_fallback }];
            self.fallback.run(Batch { numbers: &*numbers, groups: &groups }, &mut answers).await;
            least = least.min(least_accepted(&answers)?);
        }
        Ok((!by_store.is_empty() || !by_fallback.is_empty()).then_some(least))
    }

    /// Records what the store said is left after giving back.
    fn remember_undone(&self, charges: &[Charge<'_>], answers: &Answers) {
        let Ok(group) = answers.group(0) else { return };
        if self.store.can_fail() {
            let now = (self.mono)();
            for (charge, answer) in charges.iter().zip(group.charges()) {
                self.last_seen.record(charge.key, charge.numbers, now, group.at(), group.reports(answer));
            }
        }
    }

    /// Counts a refund that nobody waits for.
    pub(super) fn note_failed_refund(&self, error: &EngineError) {
        match error {
            EngineError::Store(error) => self.note(error),
            // The limits were known when they were charged.
            EngineError::Request(_) => {}
        }
    }

    /// Forgets what was spent of every limit that the request meets, shadow rules among them; returns how many counters
    /// that were.
    ///
    /// # Errors
    /// When the request cannot be understood or the store does not do it.
    pub async fn reset(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<usize, EngineError> {
        let running = self.running.load();
        decisions.begin(running.rules.version(), self.time_for(&running), Taking::Exactly);
        decisions.add(request, &running.rules)?;
        let plan = &decisions.plan;
        let (mut charges, mut spans) = (Vec::new(), Vec::new());
        plan.collect(&running, &mut charges, &mut spans, |_, _: &Planned| true);
        if charges.is_empty() {
            return Ok(0);
        }
        // The refusals that would lead to a ban, too.
        let refusals = decisions.refusals_to_forget(&running);
        charges.extend(refusals.iter().map(|(keys, numbered)| keys.refusals_under(numbered)));
        let mut answers = Answers::default();
        let groups = [Group { verb: Verb::Reset, charges: &charges }];
        self.store.run(Batch { numbers: &**running, groups: &groups }, &mut answers).await;
        answers.group(0)?;
        charges.iter().for_each(|charge| self.last_seen.forget(charge.key));
        if self.fell_back.load(Ordering::Relaxed) {
            self.reset_fallback(&charges).await;
        }
        Ok(plan.charges.iter().filter(|planned| planned.has_limits() && !planned.is_ban()).count())
    }

    /// What was spent while the store did not answer is forgotten, too.
    async fn reset_fallback(&self, charges: &[Charge<'_>]) {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let parts: Vec<SentLimits> = charges.iter().map(|charge| self.shares.of(charge.limits, nodes)).collect();
        let charges: Vec<Charge<'_>> = charges
            .iter()
            .zip(&parts)
            .map(|(charge, part)| {
                let sheet = part.sheet();
                Charge { numbers: sheet.id, limits: &sheet.limits, earlier: &[], ..*charge }
            })
            .collect();
        let numbers = self.shares.folder();
        let groups = [Group { verb: Verb::Reset, charges: &charges }];
        self.fallback.run(Batch { numbers: &*numbers, groups: &groups }, &mut Answers::default()).await;
    }
}

/// What a key is under now.
pub(super) struct Under<'a> {
    pub(super) id: u32,
    pub(super) limits: &'a Limits,
    pub(super) calendars: &'a [Kept],
    /// Whether the rule only observes.
    pub(super) shadow: bool,
}

/// The limits of a key that came along with its request. Those of a rule's override are known to the rule.
pub(super) fn sent_limits<S: Store, F: Store>(
    engine: &Engine<S, F>,
    taken: &Taken,
) -> Result<Option<SentLimits>, EngineError> {
    let limits = taken.sent.as_ref().filter(|_| key::rule_name_of(&taken.key).is_none());
    Ok(limits.map(|limits| engine.limits(limits)).transpose()?)
}

/// The limits that a key is under now; none if its rule is gone.
pub(super) fn limits_of<'a>(taken: &Taken, sent: Option<&'a SentLimits>, running: &'a Running) -> Option<Under<'a>> {
    if let Some(sent) = sent {
        return Some(Under { id: sent.sheet().id, limits: &sent.sheet().limits, calendars: &[], shadow: false });
    }
    let rule = running.rules.find(key::rule_name_of(&taken.key)?)?;
    let shadow = rule.is_shadow() || rule.special().is_some_and(|special| special.spares(&taken.key));
    let overrides = rule.special().and_then(|special| special.overrides.as_ref());
    let overridden = taken
        .sent
        .as_ref()
        .zip(overrides)
        .and_then(|(limits, overrides)| overrides.numbered().find(|numbered| numbered.limits == *limits));
    let numbered = overridden.or(rule.numbered.as_ref())?;
    Some(Under { id: numbered.id, limits: &numbered.limits, calendars: &numbered.calendars, shadow })
}

fn refund_of<'a>(taken: &'a Taken, numbers: u32, limits: &'a Limits) -> Charge<'a> {
    Charge {
        key: &taken.key,
        numbers,
        limits,
        earlier: &[],
        ask: Ask::Exactly(taken.cost),
        stamps: Some(&taken.stamps),
        windows: &[],
    }
}

fn least_accepted(answers: &Answers) -> Result<Cost, StoreError> {
    let group = answers.group(0)?;
    Ok(group.charges().iter().map(|charge| charge.taken).min().unwrap_or(Cost::ZERO))
}
