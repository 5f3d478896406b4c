//! Decisions: which rules apply, what each rule is charged, and the outcome.

use std::collections::HashMap;

use tollgate_core::{Nanos, Outcome, Report, Retry};

use super::ban::BanState;
use super::limit::{Algorithm, Ask, Limit};
use super::rules::{Effect, OnChange, Request, Rule, RuleSet};
use super::settle::{CounterCharge, Receipt};
use super::states::State;
use super::{Answer, LimitAnswer, Verb};

/// Identity of a counter: the rule's id, its `per` names with the request's values, and the rule's own limits if it has
/// `on_change: reset`.
pub type Key = (String, Vec<(&'static str, Option<String>)>, Option<String>);

/// All counters, and the rules in force.
#[derive(Clone, Debug)]
pub struct RuleModel {
    /// Clock resolution in nanoseconds.
    pub(super) tick: u64,
    pub(super) at: u64,
    pub(super) rules: RuleSet,
    /// The states of all keys that have been written.
    pub(super) counters: HashMap<Key, Vec<State>>,
    pub(super) bans: HashMap<Key, BanState>,
    pub(super) leases: u64,
}

/// A request's charge to one rule.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    pub(super) rule: Rule,
    pub(super) key: Key,
    pub(super) limits: Vec<Limit>,
    pub(super) cost: u64,
}

/// The outcome of a group of charges.
struct GroupDecision {
    outcome: Outcome,
    /// Amount that each charge takes.
    taken: Vec<u64>,
    /// For each charge, whether its own limits refuse it.
    refused: Vec<bool>,
    banned: bool,
}

impl RuleModel {
    /// Returns a model without rules or counters, on a clock with a resolution of `tick` nanoseconds.
    pub fn new(tick: u64, at: u64) -> Self {
        Self { tick, at, rules: RuleSet::default(), counters: HashMap::new(), bans: HashMap::new(), leases: 0 }
    }

    /// Puts rules in force. Spent amounts are kept.
    pub fn put(&mut self, rules: &RuleSet) {
        self.rules = rules.clone();
    }

    /// Advances the clock.
    pub fn advance_to(&mut self, at: u64) {
        assert!(at >= self.at && at.is_multiple_of(self.tick), "time must go forward in whole ticks");
        self.at = at;
    }

    /// Returns the current time.
    pub const fn now(&self) -> u64 {
        self.at
    }

    /// Decides a request. Returns the answer and its receipt.
    pub fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, Receipt) {
        let matched = match self.deciding_rules(request) {
            Ok(matched) => matched,
            Err(effect) => {
                let denied = Answer::denied();
                let taken = Some(request.cost.unwrap_or(1));
                let allowed = Answer { outcome: Outcome::Allow, taken, ..denied.clone() };
                return (if effect == Effect::Allow { allowed } else { denied }, Receipt::default());
            }
        };
        let (shadows, enforced): (Vec<Rule>, Vec<Rule>) = matched.into_iter().partition(Rule::is_shadow);
        let enforced = self.charges_of(&enforced, request);
        let enforced = self.drop_exhausted(verb, enforced);
        let shadow_denies = shadows.iter().any(|rule| rule.effect_for(request, self.at) == Effect::Deny);
        let mut shadows = self.charges_of(&shadows, request);
        let mut receipt = Receipt::default();
        let decided = self.decide_group(verb, &enforced, &mut receipt);
        let mut limits = self.reports_of(&enforced, request, false);
        let passes = decided.outcome.is_admitted();
        let least = decided.taken.iter().copied().min();
        let mut shadow_refused = false;
        if passes {
            // Shadow rules are evaluated for admitted requests only.
            let mut passed = request.clone();
            if let (Verb::TakeUpTo, Some(least)) = (verb, least) {
                shadows.iter_mut().for_each(|charge| charge.cost = least);
                passed.cost = Some(least);
            }
            // If an override of a shadow rule denies, the whole shadow group is refused, as with enforced rules.
            shadow_refused = shadow_denies || !self.decide_group(verb, &shadows, &mut receipt).outcome.is_admitted();
            if !shadow_denies {
                limits.extend(self.reports_of(&shadows, &passed, true));
            }
        }
        let order = |limit: &LimitAnswer| self.rules.rules.iter().position(|rule| rule.id == limit.rule);
        limits.sort_by_key(order);
        let taken = if passes { least.unwrap_or(request.cost.unwrap_or(1)) } else { 0 };
        let answer =
            Answer { outcome: decided.outcome, taken: Some(taken), banned: decided.banned, shadow_refused, limits };
        (answer, receipt)
    }

    /// Returns the rules that decide the request together. If a single rule allows or denies the request alone,
    /// returns that effect as the error.
    pub(super) fn deciding_rules(&self, request: &Request) -> Result<Vec<Rule>, Effect> {
        let mut matched: Vec<Rule> =
            self.rules.rules.iter().filter(|rule| rule.applies(request, self.at)).cloned().collect();
        let decides = |rule: &&Rule| !rule.is_shadow() && matches!(rule.effect, Effect::Allow | Effect::Deny);
        if let Some(rule) = matched.iter().find(decides) {
            return Err(rule.effect.clone());
        }
        // A replaced rule still replaces other rules.
        let replaced: Vec<String> = matched.iter().flat_map(|rule| rule.replaces.clone()).collect();
        matched.retain(|rule| !replaced.contains(&rule.id));
        // A rule whose override denies also decides alone.
        if matched.iter().any(|rule| !rule.is_shadow() && rule.effect_for(request, self.at) == Effect::Deny) {
            return Err(Effect::Deny);
        }
        Ok(matched)
    }

    /// Drops charges to rules marked `suffices` that have no capacity, if another rule marked `suffices` has capacity.
    fn drop_exhausted(&self, verb: Verb, mut charges: Vec<Charge>) -> Vec<Charge> {
        let passes = |charge: &Charge| {
            let alone = std::slice::from_ref(charge);
            charge.rule.suffices && self.weigh(verb, alone).outcome.is_admitted()
        };
        if matches!(verb, Verb::Check | Verb::Peek) && charges.iter().any(passes) {
            charges.retain(|charge| !charge.rule.suffices || passes(charge));
        }
        charges
    }

    /// Returns the request's charges to these rules.
    fn charges_of(&self, rules: &[Rule], request: &Request) -> Vec<Charge> {
        let charge = |rule: &Rule| {
            let limits = match rule.effect_for(request, self.at) {
                Effect::Limits(limits) => limits,
                Effect::Unlimited | Effect::Allow | Effect::Deny | Effect::Count(_) => return None,
            };
            let cost = rule.cost_of(request);
            Some(Charge { rule: rule.clone(), key: key_of(rule, request), limits, cost })
        };
        rules.iter().filter_map(charge).collect()
    }

    /// Returns the states of a key. Returns `None` if the key counts as new under these limits: its state was never
    /// written, or the key has other limits and is unused.
    fn known_states(&self, key: &Key, limits: &[Limit]) -> Option<&Vec<State>> {
        let states = self.counters.get(key)?;
        let seen = |(position, state): (usize, &State)| {
            limits.get(position).map_or(state.clone(), |limit| state.as_seen_under(limit))
        };
        let is_used = |state: State| state.unused_from(self.at) > self.at;
        let is_known =
            states.iter().map(|state| &state.limit).eq(limits) || states.iter().enumerate().map(seen).any(is_used);
        is_known.then_some(states)
    }

    /// Returns the state of a key's limit at `position`, as a request under these limits sees it.
    pub(super) fn state_of_limit(&self, key: &Key, position: usize, limits: &[Limit]) -> State {
        let limit = &limits[position];
        match self.known_states(key, limits) {
            Some(states) => states
                .get(position)
                .map_or_else(|| State::unused_state(limit, self.at), |state| state.as_seen_under(limit)),
            None => State::new(limit, self.at),
        }
    }

    /// Decides several charges together, so that all or none are made, and applies the result.
    fn decide_group(&mut self, verb: Verb, charges: &[Charge], receipt: &mut Receipt) -> GroupDecision {
        let decided = self.weigh(verb, charges);
        if verb == Verb::Peek {
            return decided;
        }
        self.start_new_keys(charges);
        if decided.outcome.is_admitted() {
            for (charge, taken) in charges.iter().zip(&decided.taken) {
                self.apply_charge(charge, *taken, receipt);
            }
            return decided;
        }
        self.record_refusals_in_logs(charges, verb);
        self.count_refusals_for_bans(charges, decided)
    }

    /// Decides several charges together without changing anything.
    fn weigh(&self, verb: Verb, charges: &[Charge]) -> GroupDecision {
        let mut taken: Vec<u64> = charges.iter().map(|charge| charge.cost).collect();
        if verb == Verb::TakeUpTo && charges.iter().any(|charge| charge.cost > 0) {
            // All charges take the remaining amount of the tightest limit, but at least 1.
            let least = charges.iter().map(|charge| self.remaining(charge).min(charge.cost).max(1)).min();
            taken.fill(least.unwrap_or(0));
        }
        let mut refused = Vec::new();
        let mut outcome = Outcome::Allow;
        let mut soonest = None;
        let mut banned = false;
        for (charge, amount) in charges.iter().zip(&taken) {
            let mut refuses = false;
            let mut together = Outcome::Allow;
            for said in self.outcomes_of_limits(verb, charge, *amount) {
                refuses |= !said.is_admitted();
                together = stricter_of(together, said);
            }
            refused.push(refuses);
            let left = self.bans.get(&charge.key).map_or(0, |ban| ban.time_left(self.at));
            if left > 0 && charge.rule.ban.is_some() {
                banned = true;
                together = stricter_of(together, Outcome::Deny(Retry::After(Nanos::from_nanos(left))));
            }
            match together {
                // No rule marked `suffices` has capacity, because otherwise this charge would have been dropped. The
                // wait is the time until the first of these rules has capacity again.
                Outcome::Deny(retry) if charge.rule.suffices && matches!(verb, Verb::Check | Verb::Peek) => {
                    soonest = Some(soonest.map_or(retry, |other: Retry| other.min(retry)));
                }
                _ => outcome = stricter_of(outcome, together),
            }
        }
        if let Some(retry) = soonest {
            outcome = stricter_of(outcome, Outcome::Deny(retry));
        }
        GroupDecision { outcome: self.to_ticks(outcome), taken, refused, banned }
    }

    /// Returns the outcome of every limit of a charge separately.
    fn outcomes_of_limits(&self, verb: Verb, charge: &Charge, amount: u64) -> Vec<Outcome> {
        let ask = match verb {
            Verb::Charge => Ask::Regardless(amount),
            // `TakeUpTo` with an amount of 0 takes nothing and is never refused.
            Verb::TakeUpTo if amount == 0 => return Vec::new(),
            Verb::Check | Verb::Peek | Verb::TakeUpTo => Ask::Exactly(amount),
        };
        let decide = |(position, limit): (usize, &Limit)| {
            let mut state = self.state_of_limit(&charge.key, position, &charge.limits);
            // A log that counts refusals advertises the wait as if this refusal were already recorded.
            let attempt = self.refused_amount_to_record(verb, charge, position, limit);
            if attempt > 0 {
                state.record_refusal(self.at, attempt);
                let ask = if verb == Verb::TakeUpTo { Ask::Exactly(1) } else { ask };
                return Outcome::Deny(limit.retry(&state, self.at, ask));
            }
            match limit.decide(&state, self.at, ask) {
                // `take-up-to` is refused only if not even one unit is available.
                Outcome::Deny(_) if verb == Verb::TakeUpTo => limit.decide(&state, self.at, Ask::Exactly(1)),
                outcome => outcome,
            }
        };
        charge.limits.iter().enumerate().map(decide).collect()
    }

    /// Returns the smallest remaining amount of all limits of a charge.
    fn remaining(&self, charge: &Charge) -> u64 {
        let left = |(position, limit): (usize, &Limit)| {
            limit.remaining(&self.state_of_limit(&charge.key, position, &charge.limits), self.at)
        };
        charge.limits.iter().enumerate().map(left).min().unwrap_or(u64::MAX)
    }

    /// Stores the states of new keys whose `initial` is below the capacity, because such a key refills from its
    /// first request on.
    pub(super) fn start_new_keys(&mut self, charges: &[Charge]) {
        for charge in charges {
            let limits = &charge.limits;
            if self.known_states(&charge.key, limits).is_none() && limits.iter().any(|limit| limit.spent_at_first() > 0)
            {
                let new = limits.iter().map(|limit| State::new(limit, self.at)).collect();
                self.counters.insert(charge.key.clone(), new);
            }
        }
    }

    pub(super) fn apply_charge(&mut self, charge: &Charge, amount: u64, receipt: &mut Receipt) {
        let limits = &charge.limits;
        if amount == 0 {
            return;
        }
        let mut states: Vec<State> = Vec::new();
        let mut stamps = Vec::new();
        self.leases += 1;
        for (position, limit) in limits.iter().enumerate() {
            let mut state = self.state_of_limit(&charge.key, position, &charge.limits);
            stamps.push(state.charge(limit, self.at, amount, self.tick, self.leases));
            states.push(state);
        }
        self.counters.insert(charge.key.clone(), states);
        let own = charge.rule.effect == Effect::Limits(limits.clone());
        let rule = charge.rule.id.clone();
        let limits = (!own).then(|| limits.clone());
        let shadow = charge.rule.is_shadow();
        receipt.taken.push(CounterCharge { rule, key: charge.key.clone(), cost: amount, stamps, shadow, limits });
    }

    /// Returns the amount that a log that counts refusals records for this request. Returns 0 if the log does not
    /// refuse the request, or would always refuse it.
    fn refused_amount_to_record(&self, verb: Verb, charge: &Charge, position: usize, limit: &Limit) -> u64 {
        let Algorithm::SlidingLog { count_refused: true, .. } = limit.algorithm else { return 0 };
        let state = self.state_of_limit(&charge.key, position, &charge.limits);
        let ask = match verb {
            Verb::Charge => Ask::Regardless(charge.cost),
            Verb::Check | Verb::Peek => Ask::Exactly(charge.cost),
            // A cost of 0 records nothing.
            Verb::TakeUpTo if charge.cost == 0 => return 0,
            Verb::TakeUpTo => Ask::Exactly(limit.remaining(&state, self.at).min(charge.cost).max(1)),
        };
        let refused = matches!(limit.decide(&state, self.at, ask), Outcome::Deny(Retry::After(_)));
        if refused { ask.cost() } else { 0 }
    }

    /// Records the refusal in each refusing log that counts refusals.
    pub(super) fn record_refusals_in_logs(&mut self, charges: &[Charge], verb: Verb) {
        for charge in charges {
            for (position, limit) in charge.limits.iter().enumerate() {
                let attempt = self.refused_amount_to_record(verb, charge, position, limit);
                if let Some(states) = self.counters.get_mut(&charge.key).filter(|_| attempt > 0)
                    && let Some(state) = states.get_mut(position)
                {
                    state.record_refusal(self.at, attempt);
                }
            }
        }
    }

    /// Counts refusals by a rule's own limits towards its ban.
    fn count_refusals_for_bans(&mut self, charges: &[Charge], mut decided: GroupDecision) -> GroupDecision {
        for (charge, refused) in charges.iter().zip(&decided.refused) {
            let Some(ban) = charge.rule.ban.filter(|_| *refused) else { continue };
            let state = self.bans.entry(charge.key.clone()).or_default();
            if state.time_left(self.at) > 0 {
                continue;
            }
            if let Some(length) = state.count_refusal(&ban, self.at) {
                decided.banned = true;
                decided.outcome = stricter_of(decided.outcome, Outcome::Deny(Retry::After(Nanos::from_nanos(length))));
            }
        }
        decided
    }

    fn reports_of(&self, charges: &[Charge], request: &Request, shadow: bool) -> Vec<LimitAnswer> {
        let mut answers = Vec::new();
        for charge in charges {
            for (position, limit) in charge.limits.iter().enumerate() {
                let state = self.state_of_limit(&charge.key, position, &charge.limits);
                let cost = request.cost.unwrap_or(charge.cost);
                let Report { limit, remaining, retry, reset } = limit.report(&state, self.at, cost);
                let report =
                    Report { limit, remaining, retry: self.retry_to_ticks(retry), reset: self.wait_to_ticks(reset) };
                answers.push(LimitAnswer { rule: charge.rule.id.clone(), shadow, report });
            }
        }
        answers
    }

    fn to_ticks(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Allow => Outcome::Allow,
            Outcome::Delay(wait) => Outcome::Delay(self.wait_to_ticks(wait)),
            Outcome::Deny(retry) => Outcome::Deny(self.retry_to_ticks(retry)),
        }
    }

    fn retry_to_ticks(&self, retry: Retry) -> Retry {
        match retry {
            Retry::After(wait) => Retry::After(self.wait_to_ticks(wait)),
            Retry::OnRelease | Retry::Never => retry,
        }
    }

    const fn wait_to_ticks(&self, wait: Nanos) -> Nanos {
        Nanos::from_nanos(wait.as_nanos().next_multiple_of(self.tick))
    }
}

/// Combines the outcomes of two limits: a refusal takes precedence, then the longer wait.
fn stricter_of(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Deny(one), Outcome::Deny(other)) => Outcome::Deny(one.max(other)),
        (Outcome::Deny(retry), _) | (_, Outcome::Deny(retry)) => Outcome::Deny(retry),
        (Outcome::Delay(one), Outcome::Delay(other)) => Outcome::Delay(one.max(other)),
        (Outcome::Delay(wait), Outcome::Allow) | (Outcome::Allow, Outcome::Delay(wait)) => Outcome::Delay(wait),
        (Outcome::Allow, Outcome::Allow) => Outcome::Allow,
    }
}

/// Returns the counter key of a request for a rule.
pub(super) fn key_of(rule: &Rule, request: &Request) -> Key {
    let values = rule.per.iter().map(|name| (*name, request.value(name).map(str::to_owned))).collect();
    let limits = match (&rule.effect, rule.on_change) {
        (Effect::Limits(limits), OnChange::Reset) => {
            Some(format!("{:?}", limits.iter().map(Limit::parameters).collect::<Vec<_>>()))
        }
        _ => None,
    };
    (rule.id.clone(), values, limits)
}
