//! Decides all requests with a rule set and counts the outcomes.

use tollgate::{Outcome, Retry};
use tollgate_engine::{CounterOutcome, Decision, RuleOutcome, RuleSet, Store};

use super::ReplayError;
use super::bounds::{MAX_REPORTED_RULES, MAX_RULES_WITH_LISTED_KEYS};
use super::keys::{DistinctKeys, KeyBudget, KeyFormatter, RefusedKeys, hash_key};
use super::merge::{Consumer, LineAttributes, LineBatch, LoggedRequest};
use super::report::{ComparisonReport, KeyCount, RuleReport, RunReport, TimelineReport};
use super::requests::LineFile;
use super::simulation::{MAX_PLANNED_REQUESTS, Simulation};
use super::timeline::Timeline;
use crate::observe::top_keys::{HeaviestKeys, sample_weight};

/// Which of a request's two times is used to decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeChoice {
    /// The spread time, if the log has whole seconds; otherwise the exact time.
    Spread,
    /// The time as logged.
    Logged,
}

/// A loaded rule set, and the domain that is replayed.
#[derive(Debug)]
pub(super) struct LoadedRuleSet {
    simulation: Simulation,
    domain: String,
}

impl LoadedRuleSet {
    pub(super) fn new(simulation: Simulation, domain: String) -> Self {
        Self { simulation, domain }
    }

    /// Returns the names of the attributes that the rules read.
    pub(super) fn attributes(&self) -> Vec<Box<str>> {
        self.simulation.engine.rules().attributes(self.domain.as_bytes()).unwrap_or_default().to_vec()
    }

    /// Plans up to [`MAX_PLANNED_REQUESTS`] requests.
    fn plan(&mut self, batch: &LineBatch, requests: &[LoggedRequest], attributes: &LineAttributes, times: TimeChoice) {
        let mut request_attributes = smallvec::SmallVec::new();
        for (index, request) in requests.iter().enumerate() {
            request_attributes.clear();
            batch.push_attributes(request, attributes, &mut request_attributes);
            self.simulation.plan(index, self.domain.as_bytes(), &request_attributes, times.decision_time(request));
        }
        self.simulation.prefetch(requests.len());
    }
}

impl TimeChoice {
    #[inline]
    fn decision_time(self, request: &LoggedRequest) -> u64 {
        match self {
            Self::Spread => request.at,
            Self::Logged => request.logged_at,
        }
    }
}

/// Decides requests with one rule set and counts the outcomes. Optionally compares the outcomes with the outcomes of
/// another rule set.
#[derive(Debug)]
pub(super) struct RuleSetPass<'a> {
    run: LoadedRuleSet,
    /// The old rules to compare with, and the differences so far.
    against: Option<(LoadedRuleSet, RuleSetComparison)>,
    attributes: &'a LineAttributes,
    times: TimeChoice,
    names: KeyFormatter,
    /// The file for the decisions.
    decisions: Option<LineFile>,
    tally: ReplayTally,
}

#[derive(Debug, Default)]
struct ReplayTally {
    requests: u64,
    delayed: u64,
    refused: u64,
    shadow_refused: u64,
    /// Number of requests that the engine rejected as invalid.
    invalid: u64,
    timeline: Timeline<3>,
    /// The counts of each rule, indexed by the rule's number in the rule set.
    rules: Vec<Option<Box<RuleTally>>>,
    /// Number of rules that have a tally.
    rule_tallies: usize,
    /// Number of matches of rules without a tally.
    untallied_matches: u64,
    budget: KeyBudget,
}

/// Indices of the kinds of requests in the timeline.
const ADMITTED_INDEX: usize = 0;
const REFUSED_INDEX: usize = 1;
const SHADOW_REFUSED_INDEX: usize = 2;

#[derive(Debug)]
struct RuleTally {
    matched: u64,
    delayed: u64,
    refused: u64,
    shadow_refused: u64,
    keys: DistinctKeys,
    refused_keys: RefusedKeys,
    timeline: Timeline<1>,
    top_charged: HeaviestKeys,
    top_refused: HeaviestKeys,
}

/// Requests that two rule sets decide differently.
#[derive(Debug, Default)]
struct RuleSetComparison {
    refused_before: u64,
    newly: DecisionDifference,
    relieved: DecisionDifference,
    budget: KeyBudget,
}

#[derive(Debug, Default)]
struct DecisionDifference {
    requests: u64,
    keys: RefusedKeys,
    top: HeaviestKeys,
}

impl<'a> RuleSetPass<'a> {
    pub(super) fn new(
        run: LoadedRuleSet,
        against: Option<LoadedRuleSet>,
        attributes: &'a LineAttributes,
        times: TimeChoice,
        names: KeyFormatter,
    ) -> Self {
        let against = against.map(|run| (run, RuleSetComparison::default()));
        Self { run, against, attributes, times, names, decisions: None, tally: ReplayTally::default() }
    }

    /// Writes each decision to a file.
    pub(super) fn with_decisions_file(mut self, decisions: Option<LineFile>) -> Self {
        self.decisions = decisions;
        self
    }

    #[inline]
    fn decide(&mut self, index: usize, at: u64) {
        let decision = self.run.simulation.decide(index, at);
        if let Some(file) = &mut self.decisions {
            file.write_decision(decision.as_ref().ok().copied());
        }
        let Ok(decision) = decision else {
            self.tally.invalid += 1;
            return;
        };
        self.tally.count_decision(&decision, at, &self.names);
        if let Some((run, comparison)) = &mut self.against
            && let Ok(before) = run.simulation.decide(index, at)
        {
            comparison.compare(&decision, &before, at, &self.names);
        }
    }

    pub(super) fn domain(&self) -> &str {
        &self.run.domain
    }

    /// Returns the report on the decisions, and the comparison with the old rules.
    ///
    /// # Errors
    /// Returns an error if the decisions file could not be written.
    pub(super) fn finish(self) -> Result<(RunReport, Option<ComparisonReport>), ReplayError> {
        self.decisions.map_or(Ok(()), LineFile::finish)?;
        let comparison = self.against.map(|(_, comparison)| comparison.report());
        let engine = &self.run.simulation.engine;
        let overflowed = engine.store().overflowed();
        Ok((self.tally.report(&self.run.domain, &engine.rules(), overflowed), comparison))
    }
}

impl Consumer for RuleSetPass<'_> {
    fn consume(&mut self, batch: &LineBatch) {
        for requests in batch.slots.chunks(MAX_PLANNED_REQUESTS) {
            self.run.plan(batch, requests, self.attributes, self.times);
            if let Some((against, _)) = &mut self.against {
                against.plan(batch, requests, self.attributes, self.times);
            }
            for (index, request) in requests.iter().enumerate() {
                self.decide(index, self.times.decision_time(request));
            }
        }
    }
}

impl ReplayTally {
    #[inline]
    fn count_decision(&mut self, decision: &Decision<'_>, at: u64, names: &KeyFormatter) {
        self.requests += 1;
        let kind = match decision.outcome() {
            Outcome::Deny(_) => {
                self.refused += 1;
                REFUSED_INDEX
            }
            Outcome::Allow | Outcome::Delay(_) if decision.is_shadow_refused() => {
                self.shadow_refused += 1;
                SHADOW_REFUSED_INDEX
            }
            Outcome::Allow | Outcome::Delay(_) => ADMITTED_INDEX,
        };
        self.delayed += u64::from(matches!(decision.outcome(), Outcome::Delay(_)));
        self.timeline.add(at, kind);
        let weight = sample_weight();
        for matched in decision.rule_outcomes() {
            match tally_of_rule(&mut self.rules, &mut self.rule_tallies, matched.number) {
                Some(rule) => rule.count_match(&matched, at, weight, names, &mut self.budget),
                None => self.untallied_matches += 1,
            }
        }
    }

    fn report(&self, domain: &str, rules: &RuleSet, overflowed: u64) -> RunReport {
        let (start, length, columns) = self.timeline.columns();
        let mut reports: Vec<RuleReport> = Vec::new();
        for (number, rule) in rules.rules().iter().enumerate().filter(|(_, rule)| rule.domain() == domain) {
            let tally = self.rules.get(number).and_then(Option::as_deref);
            // If there are more than `MAX_REPORTED_RULES` rules, only rules with matches are reported.
            if tally.is_some() || rules.rules().len() <= MAX_REPORTED_RULES {
                reports.push(RuleTally::report(tally, rule.id(), rule.is_shadow(), &self.timeline));
            }
        }
        let mut by_refusals: Vec<usize> = (0..reports.len()).collect();
        by_refusals.sort_by_key(|index| {
            let rule = &reports[*index];
            std::cmp::Reverse((rule.refused + rule.shadow_refused, rule.matched))
        });
        for index in by_refusals.into_iter().skip(MAX_RULES_WITH_LISTED_KEYS) {
            reports[index].top_charged.clear();
            reports[index].top_refused.clear();
            reports[index].timeline.clear();
        }
        RunReport {
            domain: domain.to_owned(),
            requests: self.requests,
            admitted: self.requests - self.refused,
            delayed: self.delayed,
            refused: self.refused,
            shadow_refused: self.shadow_refused,
            invalid: self.invalid,
            rules: reports,
            unlisted_matches: self.untallied_matches,
            timeline: TimelineReport {
                start_ms: start / 1_000_000,
                column_ms: length / 1_000_000,
                admitted: columns.iter().map(|column| column[ADMITTED_INDEX]).collect(),
                refused: columns.iter().map(|column| column[REFUSED_INDEX]).collect(),
                shadow_refused: columns.iter().map(|column| column[SHADOW_REFUSED_INDEX]).collect(),
            },
            overflowed,
        }
    }
}

/// Returns the tally of a rule, which is created if necessary. Returns `None` if there are too many tallies.
#[inline]
fn tally_of_rule<'t>(
    rules: &'t mut Vec<Option<Box<RuleTally>>>,
    rule_tallies: &mut usize,
    number: usize,
) -> Option<&'t mut RuleTally> {
    if number >= rules.len() {
        rules.resize_with(number + 1, || None);
    }
    let slot = &mut rules[number];
    if slot.is_none() && *rule_tallies < MAX_REPORTED_RULES {
        *rule_tallies += 1;
        *slot = Some(Box::new(RuleTally::new()));
    }
    slot.as_deref_mut()
}

impl RuleTally {
    fn new() -> Self {
        Self {
            matched: 0,
            delayed: 0,
            refused: 0,
            shadow_refused: 0,
            keys: DistinctKeys::new(),
            refused_keys: RefusedKeys::default(),
            timeline: Timeline::default(),
            top_charged: HeaviestKeys::default(),
            top_refused: HeaviestKeys::default(),
        }
    }

    #[inline]
    fn count_match(
        &mut self,
        matched: &RuleOutcome<'_>,
        at: u64,
        weight: Option<u64>,
        names: &KeyFormatter,
        budget: &mut KeyBudget,
    ) {
        self.matched += 1;
        let hash = hash_key(matched.counter.key);
        self.keys.add(hash);
        match matched.outcome {
            Some(Outcome::Deny(retry)) => {
                self.refused_keys.add(hash, at, retry_nanos(retry), budget);
                self.count_refusal(matched, hash, at, names);
            }
            Some(Outcome::Delay(_)) => self.delayed += 1,
            Some(Outcome::Allow) | None => {}
        }
        if let Some(weight) = weight
            && matched.counter.taken.get() > 0
        {
            let weight = weight.saturating_mul(matched.counter.taken.get());
            self.top_charged.add(hash, weight, || names.format_key(&matched.counter));
        }
    }

    fn count_refusal(&mut self, matched: &RuleOutcome<'_>, hash: u64, at: u64, names: &KeyFormatter) {
        if matched.is_shadow {
            self.shadow_refused += 1;
        } else {
            self.refused += 1;
        }
        self.timeline.add(at, 0);
        self.top_refused.add(hash, 1, || names.format_key(&matched.counter));
    }

    fn report(tally: Option<&Self>, id: &str, is_shadow: bool, timeline: &Timeline<3>) -> RuleReport {
        let empty = Self::new();
        let tally = tally.unwrap_or(&empty);
        RuleReport {
            rule: id.to_owned(),
            is_shadow,
            matched: tally.matched,
            delayed: tally.delayed,
            refused: tally.refused,
            shadow_refused: tally.shadow_refused,
            keys: tally.keys.count().max(tally.refused_keys.count()),
            keys_refused: tally.refused_keys.count(),
            has_more_keys_refused: tally.refused_keys.untracked > 0,
            longest_refusal_ms: tally.refused_keys.longest.div_ceil(1_000_000),
            top_refused: KeyCount::list(&tally.top_refused),
            top_charged: KeyCount::list(&tally.top_charged),
            timeline: tally.timeline.counts_in_columns_of(timeline, 0),
        }
    }
}

fn retry_nanos(retry: Retry) -> Option<u64> {
    match retry {
        Retry::After(wait) => Some(wait.as_nanos()),
        Retry::OnRelease | Retry::Never => None,
    }
}

impl RuleSetComparison {
    #[inline]
    fn compare(&mut self, now: &Decision<'_>, before: &Decision<'_>, at: u64, names: &KeyFormatter) {
        self.refused_before += u64::from(!before.is_admitted());
        match (now.is_admitted(), before.is_admitted()) {
            (false, true) => self.newly.add_refusal(now, at, names, &mut self.budget),
            (true, false) => self.relieved.add_refusal(before, at, names, &mut self.budget),
            (true, true) | (false, false) => {}
        }
    }

    fn report(&self) -> ComparisonReport {
        ComparisonReport {
            refused_before: self.refused_before,
            newly_refused: self.newly.requests,
            newly_refused_keys: self.newly.keys.count(),
            newly_refused_top: KeyCount::list(&self.newly.top),
            relieved: self.relieved.requests,
            relieved_keys: self.relieved.keys.count(),
            relieved_top: KeyCount::list(&self.relieved.top),
        }
    }
}

impl DecisionDifference {
    /// Counts a refused request under its key in the rule that refused it.
    fn add_refusal(&mut self, refusal: &Decision<'_>, at: u64, names: &KeyFormatter, budget: &mut KeyBudget) {
        self.requests += 1;
        let refuses = |matched: &RuleOutcome<'_>| !matched.is_shadow && matched.counter.refused;
        let Some(matched) = refusal.rule_outcomes().find(refuses) else { return };
        let hash = hash_key(matched.counter.key);
        self.keys.add(hash, at, None, budget);
        self.top.add(hash, 1, || name_with_rule(&matched.counter, names));
    }
}

fn name_with_rule(counter: &CounterOutcome<'_>, names: &KeyFormatter) -> String {
    match names.format_key(counter) {
        name if name.is_empty() => format!("all requests ({})", counter.rule),
        name => format!("{name} ({})", counter.rule),
    }
}
