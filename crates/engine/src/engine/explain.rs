//! Explains requests: decides them without taking anything, and compares them with the rules as written.

mod conditions;
mod matching;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use tollgate::core::{Time, Wall};

use super::decide::decide;
use super::plan::PlannedCharge;
use super::{Engine, RulesInForce, TakeMode, bans};
use crate::decision::{Decisions, Exactness};
use crate::explain::{Explanation, MatchResult, RuleExplanation};
use crate::key;
use crate::request::{Attribute, Item, Request, RequestError};
use crate::rules::{Position, Rule};
use crate::store::{Store, StoreVerb};
use conditions::{distance, failed_condition, failed_expression, nearest_first, satisfies_only};
use matching::ChargeContext;

/// Maximum number of non-matching rules in an explanation.
const MAX_UNMATCHED_RULES: usize = 100;
/// Maximum length of a displayed value, in characters.
const MAX_SHOWN_CHARACTERS: usize = 64;

/// The rules and the time of a decision that is to be explained.
#[derive(Debug)]
pub struct ExplanationContext {
    rules: Arc<RulesInForce>,
    at: Time<Wall>,
}

impl ExplanationContext {
    /// Explains how the request would be decided. Takes milliseconds if the domain has thousands of rules.
    ///
    /// # Errors
    /// If the request is invalid.
    pub fn explain(&self, domain: &[u8], item: &Item<'_>, decisions: &Decisions) -> Result<Explanation, RequestError> {
        self.rules.explain(&Request { domain, items: std::slice::from_ref(item) }, decisions, 0, self.at)
    }
}

/// See [`Engine::decide_to_explain`].
pub(super) async fn decide_to_explain<S: Store, F: Store>(
    engine: &Engine<S, F>,
    domain: &[u8],
    item: &Item<'_>,
    decisions: &mut Decisions,
) -> Result<ExplanationContext, RequestError> {
    let request = Request { domain, items: std::slice::from_ref(item) };
    let rules = loop {
        decide(engine, StoreVerb::Peek, TakeMode::Exactly, std::slice::from_ref(&request), decisions).await;
        // If the rules were replaced twice during the decision, the request is decided again.
        if let Some(rules) = rules_at_version(engine, decisions.version) {
            break rules;
        }
    };
    // If the store did not answer, the request does not wait for the store again. A request that a `deny` rule refuses
    // has no ban to look up.
    let has_answer = decisions.get(0)?.exactness() != Exactness::Fallback;
    if has_answer && !decisions.plan.requests[0].denied {
        bans::read_refusals(engine, 0, &rules, decisions).await;
    }
    Ok(ExplanationContext { rules, at: (engine.wall)() })
}

/// See [`Engine::explain_decided`].
pub(super) fn explain_decided<S: Store, F: Store>(
    engine: &Engine<S, F>,
    request: &Request<'_>,
    decisions: &Decisions,
    position: usize,
) -> Option<Explanation> {
    rules_at_version(engine, decisions.version)?.explain(request, decisions, position, (engine.wall)()).ok()
}

/// Returns the rules with this version, if they are the current or the previous rules.
fn rules_at_version<S: Store, F: Store>(engine: &Engine<S, F>, version: u64) -> Option<Arc<RulesInForce>> {
    let is_meant = |running: &Arc<RulesInForce>| running.rules.version() == version;
    Some(engine.running.load_full()).filter(is_meant).or_else(|| {
        let previous = engine.previous.lock().unwrap_or_else(PoisonError::into_inner);
        previous.clone().filter(is_meant)
    })
}

impl RulesInForce {
    /// Explains the decision about the request at index `position`.
    fn explain(
        &self,
        request: &Request<'_>,
        decisions: &Decisions,
        position: usize,
        at: Time<Wall>,
    ) -> Result<Explanation, RequestError> {
        let decision = decisions.get(position)?;
        let written = self.written_rules(request.domain);
        let attributes = request.items.first().map_or(&[][..], |item| item.attributes);
        let counters = charged_counters(decisions, position);
        // One pass over the domain's rules finds all matching rules. A pass for each matching rule would be slow in
        // large domains.
        let ids: HashSet<&str> = counters.iter().map(|(_, id)| *id).collect();
        let (mut matching, mut unmatched) = (Vec::new(), Vec::new());
        for (at, rule) in written.iter().enumerate() {
            if ids.contains(rule.id()) {
                matching.push(rule);
            } else {
                unmatched.push((distance(rule.when(), attributes), at));
            }
        }
        let mut rules = self.explain_matching(request, decisions, position, (&counters, &matching), at);
        let judge = decisions.charges_of(position).first().and_then(PlannedCharge::rule).and_then(|rule| {
            let rule = self.rules.rules().get(rule as usize)?;
            rule.special().is_some_and(|special| special.allow_or_deny.is_some()).then(|| rule.id())
        });
        let left_out = unmatched.len().saturating_sub(MAX_UNMATCHED_RULES);
        rules.extend(nearest_first(unmatched, MAX_UNMATCHED_RULES).map(|at| RuleExplanation {
            rule: written[at].id().into(),
            position: Some(self.rule_position(&written[at])),
            why: mismatch_reason(&written[at], attributes, judge),
        }));
        Ok(Explanation {
            version: self.rules.version(),
            domain: printable(request.domain),
            at,
            outcome: decision.outcome(),
            observed: decision.observed(),
            exactness: decision.exactness(),
            decides: decision.rule().map(Into::into),
            rules,
            left_out,
        })
    }

    /// Returns the rules of a domain as written.
    fn written_rules(&self, domain: &[u8]) -> &[Rule] {
        let domain = self.written.domains().iter().find(|known| known.name().as_bytes() == domain);
        domain.map_or(&[], |domain| domain.rules())
    }

    /// Returns the source position of a rule.
    fn rule_position(&self, rule: &Rule) -> String {
        let position = rule.position();
        if self.written.hides_positions() {
            position.file.to_string()
        } else {
            position_of(&position.file, position.position)
        }
    }

    /// Explains the rules that a request matches.
    fn explain_matching(
        &self,
        request: &Request<'_>,
        decisions: &Decisions,
        position: usize,
        (counters, matching): (&[(usize, &str)], &[&Rule]),
        at: Time<Wall>,
    ) -> Vec<RuleExplanation> {
        let plan = &decisions.plan;
        let planned = &plan.requests[position];
        let by_id: HashMap<&str, &Rule> = matching.iter().map(|rule| (rule.id(), *rule)).collect();
        let mut explained = Vec::with_capacity(counters.len());
        for &(charge, id) in counters {
            let rule = by_id.get(id).copied();
            let item_match =
                plan.item_matches[planned.item_matches.start as usize..planned.item_matches.end as usize].iter();
            let item = item_match
                .filter(|item_match| item_match.charge as usize == charge)
                .map(|item_match| item_match.item as usize)
                .next();
            let no_item = Item::default();
            let item = item.and_then(|item| request.items.get(item)).unwrap_or(&no_item);
            let ban = plan.charges[charge + 1..planned.charges.end as usize].first().filter(|next| next.is_ban());
            let explained_match =
                ChargeContext { decisions, charge, ban, item, rule, running: self, matching, at }.explain();
            let position = rule.map(|rule| self.rule_position(rule));
            explained.push(RuleExplanation {
                rule: id.into(),
                position,
                why: MatchResult::Matches(Box::new(explained_match)),
            });
        }
        explained
    }
}

/// Returns the charge index and rule id of each counter that a request charges.
fn charged_counters(decisions: &Decisions, position: usize) -> Vec<(usize, &str)> {
    let plan = &decisions.plan;
    let planned = &plan.requests[position];
    let charges = planned.charges.start as usize..planned.charges.end as usize;
    // If a ban is omitted together with its rule, only its key shows that it is a ban.
    let is_counter = |charge: &usize| !key::is_side_key(plan.key(&plan.charges[*charge]));
    charges.filter(is_counter).map(|charge| (charge, plan.rule_id(charge as u32))).collect()
}

/// Returns the reason why a rule does not match.
fn mismatch_reason(rule: &Rule, attributes: &[Attribute<'_>], judge: Option<&str>) -> MatchResult {
    match (failed_condition(rule.when(), attributes), judge) {
        (Some(failed), _) => MatchResult::ConditionFailed(failed),
        (None, _) if !satisfies_only(rule, attributes) => MatchResult::OtherAttributes,
        (None, judge) => failed_expression(rule, attributes).unwrap_or_else(|| match judge {
            Some(by) => MatchResult::DecidedBefore { by: by.into() },
            None => MatchResult::OutsideSchedule { schedule: rule.schedule.iter().map(ToString::to_string).collect() },
        }),
    }
}

fn position_of(file: &str, position: Position) -> String {
    format!("{file}:{}:{}", position.line, position.column)
}

/// Returns bytes as a string, truncated to a readable length.
fn printable(text: &[u8]) -> String {
    let whole = String::from_utf8_lossy(text);
    let mut cut: String = whole.chars().take(MAX_SHOWN_CHARACTERS).collect();
    if cut.len() < whole.len() {
        cut.push('…');
    }
    cut
}
