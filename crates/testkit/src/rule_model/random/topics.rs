//! Topics of a trace. Tests select traces by topic.

use super::super::limit::{Algorithm, Limit, Windows};
use super::super::rules::{Effect, OnChange, OnExceed, Rule, RuleSet};
use super::{Act, Trace};

/// A feature that a trace may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// A counter is used under several parameters.
    ChangedParameters,
    /// A rule bans.
    Ban,
    /// A rule delays.
    Delay,
    /// A reservation is committed.
    Commit,
    /// A new key starts below its capacity.
    Initial,
    /// A log or a concurrency limit has the default debt.
    DefaultDebt,
    /// The slices of a limit do not divide its period evenly.
    UnevenSlices,
    /// A log counts refusals.
    CountRefused,
    /// A limit that peers cannot share: a log, a concurrency limit, a leaky or interval bucket, or a calendar window.
    NotShared,
}

impl Trace {
    /// Returns the trace without the steps of topics in `left_out`. Returns `None` if a rule has such a topic.
    pub fn without_topics(mut self, left_out: &[Topic]) -> Option<Self> {
        self.steps.retain(|step| match step.act {
            Act::Commit(..) => !left_out.contains(&Topic::Commit),
            _ => true,
        });
        if left_out.iter().any(|topic| topic.occurs_in(&self)) { None } else { Some(self) }
    }
}

impl Topic {
    /// Returns whether the trace contains the topic.
    pub fn occurs_in(self, trace: &Trace) -> bool {
        let rules = || trace.versions.iter().flat_map(|version| &version.rules);
        let limits = |is_meant: &dyn Fn(&Limit) -> bool| rules().flat_map(limits_of).any(|limit| is_meant(&limit));
        let acts = |is_meant: &dyn Fn(&Act) -> bool| trace.steps.iter().any(|step| is_meant(&step.act));
        match self {
            Self::ChangedParameters => rules().any(is_overridden) || has_other_limits(&trace.versions),
            Self::Ban => rules().any(|rule| rule.ban.is_some()),
            Self::Delay => rules().any(|rule| matches!(rule.on_exceed, OnExceed::Delay(_))),
            Self::Commit => acts(&|act| matches!(act, Act::Commit(..))),
            Self::Initial => limits(&|limit| limit.spent_at_first() > 0),
            Self::DefaultDebt => limits(&|limit| {
                let kind = matches!(limit.algorithm, Algorithm::SlidingLog { .. } | Algorithm::Concurrency { .. });
                kind && limit.max_debt.is_none()
            }),
            Self::UnevenSlices => limits(&|limit| {
                let slices = matches!(limit.algorithm, Algorithm::SlidingSlices { .. });
                slices && !limit.period.is_multiple_of(limit.slices().0)
            }),
            Self::CountRefused => {
                limits(&|limit| matches!(limit.algorithm, Algorithm::SlidingLog { count_refused: true, .. }))
            }
            Self::NotShared => limits(&|limit| {
                matches!(
                    limit.algorithm,
                    Algorithm::LeakyBucket { .. }
                        | Algorithm::IntervalBucket { .. }
                        | Algorithm::FixedWindow(Windows::Calendar(_))
                        | Algorithm::SlidingLog { .. }
                        | Algorithm::Concurrency { .. }
                )
            }),
        }
    }
}

/// Returns all limits of a rule and its overrides.
fn limits_of(rule: &Rule) -> Vec<Limit> {
    let limits = |effect: &Effect| match effect {
        Effect::Limits(limits) => limits.clone(),
        Effect::Count(_) | Effect::Unlimited | Effect::Allow | Effect::Deny => Vec::new(),
    };
    let overridden = rule.overrides.iter().flat_map(|other| match (&other.effect, &rule.effect) {
        (Effect::Count(_), Effect::Limits(own)) => vec![Limit { max_debt: None, ..own[0].clone() }],
        (other, _) => limits(other),
    });
    limits(&rule.effect).into_iter().chain(overridden).collect()
}

/// Returns whether a counter of the rule may be used both with and without an override.
fn is_overridden(rule: &Rule) -> bool {
    let changes = rule.overrides.iter().any(|other| matches!(other.effect, Effect::Limits(_) | Effect::Count(_)));
    changes && !rule.per.contains(&"plan")
}

/// Returns whether a rule has different limits in another version and keeps the spent amount.
fn has_other_limits(versions: &[RuleSet]) -> bool {
    let mut rules = versions.iter().flat_map(|version| &version.rules);
    rules.any(|rule| {
        let others = versions.iter().filter_map(|version| version.find(&rule.id));
        let mut others = others.filter(|other| other.on_change == OnChange::Keep);
        others.any(|other| other.effect != rule.effect || other.overrides != rule.overrides)
    })
}
