//! Refusals are counted, and who has had too many is banned.
//!
//! This happens after a refusal, outside of the decision that refused, and costs only those who are refused: one more question
//! to the store, and another one for the refusal that is one too many. If the store does not answer, the refusal goes uncounted.

use tollgate::{Ask, Outcome};

use super::decide::range;
use super::{Engine, Running};
use crate::decision::Decisions;
use crate::key::{self, Beside};
use crate::meters::Event;
use crate::ruleset::RunningRule;
use crate::store::{Answers, Batch, Charge, Group, Store, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Counts the refusals among `decisions` by rules that ban for them.
    pub(super) async fn note_refusals(&self, running: &Running, decisions: &Decisions) {
        for (request, decided) in decisions.decided.iter().enumerate() {
            if decided.as_ref().is_ok_and(|decided| !decided.outcome.is_allowed()) {
                for (rule, key) in self.refused_by(request, running, decisions) {
                    self.note_refusal(rule, key, running).await;
                }
            }
        }
    }

    /// The counters that refused a request, of rules that ban for it. Who is banned already is not counted.
    fn refused_by<'a>(
        &self,
        request: usize,
        running: &'a Running,
        decisions: &'a Decisions,
    ) -> Vec<(&'a RunningRule, &'a [u8])> {
        let plan = &decisions.plan;
        let charges = &plan.charges[range(&plan.asked[request].charges)];
        let mut refused = Vec::new();
        for pair in charges.windows(2) {
            let [charge, ban] = pair else { continue };
            let said = |planned| decisions.answer(planned).map(|(answer, _)| answer.outcome);
            let refuses = matches!(said(charge), Some(Outcome::Deny(_)));
            if !ban.is_ban() || !refuses || !matches!(said(ban), Some(Outcome::Allow)) {
                continue;
            }
            let rule = ban.rule().and_then(|rule| running.rules.rules().get(rule as usize));
            refused.extend(rule.map(|rule| (rule, plan.key(charge))));
        }
        refused
    }

    async fn note_refusal(&self, rule: &RunningRule, key: &[u8], running: &Running) {
        let Some(banning) = rule.special().and_then(|special| special.ban.as_ref()) else { return };
        let mut keys = key.to_vec();
        key::push_beside(&mut keys, 0..key.len(), Beside::Refusals);
        key::push_beside(&mut keys, 0..key.len(), Beside::Ban);
        let (refusals_key, ban_key) = keys[key.len()..].split_at(key.len());
        let mut answers = Answers::default();
        let refusals = banning.refusals.as_ref().map(|refusals| Charge {
            key: refusals_key,
            numbers: refusals.id,
            limits: &refusals.limits,
            earlier: &[],
            ask: Ask::Exactly(tollgate::Cost::ONE),
            stamps: None,
            windows: &[],
        });
        if let Some(refusals) = &refusals {
            let groups = [Group { verb: Verb::Check, charges: std::slice::from_ref(refusals) }];
            self.store.run(Batch { numbers: running, groups: &groups }, &mut answers).await;
            // Not yet too many, or nobody knows.
            if answers.group(0).map_or(true, |group| group.outcome().is_allowed()) {
                return;
            }
        }
        let ban = Charge {
            key: ban_key,
            numbers: banning.ban.id,
            limits: &banning.ban.limits,
            earlier: &[],
            ask: Ask::Regardless(banning.takes),
            stamps: None,
            windows: &[],
        };
        let mut groups = vec![Group { verb: Verb::Check, charges: std::slice::from_ref(&ban) }];
        // Whoever comes back after the ban begins anew.
        groups.extend(
            refusals.iter().map(|refusals| Group { verb: Verb::Reset, charges: std::slice::from_ref(refusals) }),
        );
        answers.clear();
        self.store.run(Batch { numbers: running, groups: &groups }, &mut answers).await;
        self.meters.count(Event::Banned);
    }
}
