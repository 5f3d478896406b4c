//! Plans the charges of requests: matching rules, keys and costs.

mod add;

use std::collections::HashMap;
use std::hash::RandomState;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::core::{Ask, Cost, Nanos, Time, Wall, Window};
use tollgate::ledger::PlainCharge;
use tollgate::{Limits, Outcome, Retry};

use super::fault_policy::FAULT_RETRY;
use super::{RulesInForce, TakeMode};
use crate::inline::InternedEntry;
use crate::rules::{Consistency, Metadata, OnFault};
use crate::ruleset::RuleLimits;
use crate::store::{Charge, Group, StoreVerb};

/// A list with inline space for the charges of nearly all requests; longer lists allocate.
pub(crate) type SmallList<T> = SmallVec<[T; 16]>;

/// The charges of a batch of requests. A plan borrows nothing, so that it can be reused.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) requests: Vec<PlannedRequest>,
    pub(crate) charges: Vec<PlannedCharge>,
    /// The pairs of items and the charges that they caused.
    pub(crate) item_matches: Vec<ItemMatch>,
    keys: Vec<u8>,
    /// The charge of each key, by the hash of the key, for requests with several items.
    charge_of_hash: HashMap<u64, u32>,
    /// Random, so that callers cannot choose keys with equal hashes.
    key_hasher: RandomState,
    /// The full refill times of charges with several limits.
    refill_times: Vec<Option<Nanos>>,
    /// The calendar windows of charges whose limits have calendars.
    given: Vec<Window>,
    pub(crate) limits: PlanLimits,
    /// The metadata of matching rules, each with the index of its charge.
    metadata: Vec<(u32, Arc<Metadata>)>,
    /// The time at which rules are evaluated; zero if no rule depends on the time.
    now: Option<Time<Wall>>,
    /// How much of each request's cost is taken.
    take_mode: TakeMode,
    /// Whether the request being added has matched only plain rules so far.
    plain: bool,
}

/// Limits that charges refer to by index, so that a charge needs no `Drop`.
#[derive(Debug, Default)]
pub(crate) struct PlanLimits {
    overriding: Vec<Arc<RuleLimits>>,
    inline: Vec<Arc<InternedEntry>>,
}

/// A planned request.
#[derive(Debug)]
pub(crate) struct PlannedRequest {
    pub(crate) charges: Range<u32>,
    pub(crate) item_matches: Range<u32>,
    /// Whether a rule denies the request without a call to the store.
    pub(crate) denied: bool,
    /// Whether the request has charges, all of them to [plain](crate::ruleset::ActiveRule::plain) rules or to inline
    /// limits.
    pub(crate) plain: bool,
    /// The cost of the first item; 1 if the rules determine it.
    pub(crate) cost: Cost,
}

/// A pair of an item and a charge that it caused.
#[derive(Debug)]
pub(crate) struct ItemMatch {
    pub(crate) item: u32,
    pub(crate) charge: u32,
}

/// A planned charge to one counter.
#[derive(Debug)]
pub(crate) struct PlannedCharge {
    by: LimitSource,
    key: Range<u32>,
    /// The range of the rule id in the key; empty for inline limits.
    id: (u16, u16),
    /// The full refill time, if the charge has only one limit. Otherwise, `refill_times` is a range in the plan's
    /// `refill_times`.
    refill_time: Option<Nanos>,
    refill_times: Range<u32>,
    /// The index of the first calendar window.
    given: u32,
    pub(crate) cost: Cost,
    pub(crate) shadow: bool,
    /// Whether a positive cost may put the limits into debt.
    pub(crate) postpaid: bool,
    /// Whether the rule had no capacity and was omitted because another rule marked `suffices` has capacity.
    pub(crate) exhausted: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) answered: AnswerSource,
}

/// The source of a charge's limits.
#[derive(Clone, Copy, Debug)]
enum LimitSource {
    Rule(u32),
    /// A rule, and the index of its override's limits.
    Overridden(u32, u32),
    Unlimited(u32),
    Denied(u32),
    /// The ban of a rule's counter. In the plan, the ban follows the charge to that counter.
    Ban(u32),
    /// A rule, or its ban, that another rule replaces or makes unnecessary with `suffices`.
    Omitted(u32),
    /// The index of inline limits.
    Inline(u32),
}

/// The source and index of a charge's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerSource {
    /// No answer: the rule has no limits, or the charge was not sent to the store.
    Unanswered,
    Enforced(u32),
    Shadow(u32),
    Fallback(u32),
    /// The store did not answer, and `on_fault` is `open`.
    Open,
    /// The store did not answer, and `on_fault` is `closed`.
    Closed,
}

impl PlannedCharge {
    /// Returns the rule's index; `None` for an inline limit.
    pub(crate) fn rule(&self) -> Option<u32> {
        match &self.by {
            LimitSource::Rule(rule)
            | LimitSource::Overridden(rule, _)
            | LimitSource::Unlimited(rule)
            | LimitSource::Denied(rule)
            | LimitSource::Ban(rule)
            | LimitSource::Omitted(rule) => Some(*rule),
            LimitSource::Inline(_) => None,
        }
    }

    /// Returns whether the charge belongs to the ban of a rule's counter.
    pub(crate) fn is_ban(&self) -> bool {
        matches!(self.by, LimitSource::Ban(_))
    }

    /// Returns whether the rule refuses without counting.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.by, LimitSource::Denied(_))
    }

    /// Marks the charge as omitted, so that it is not sent to the store.
    pub(crate) fn mark_omitted(&mut self) {
        if let Some(rule) = self.rule() {
            self.by = LimitSource::Omitted(rule);
        }
    }

    /// Returns whether another rule replaces the rule of this charge, or makes it unnecessary with `suffices`.
    pub(crate) fn is_omitted(&self) -> bool {
        matches!(self.by, LimitSource::Omitted(_))
    }

    /// Returns the outcome of a charge without an answer.
    pub(crate) fn outcome_without_answer(&self) -> Outcome {
        match self.answered {
            AnswerSource::Unanswered if self.is_denied() => Outcome::Deny(Retry::Never),
            AnswerSource::Closed => Outcome::Deny(FAULT_RETRY),
            // A store may return fewer answers than there are charges.
            AnswerSource::Unanswered
            | AnswerSource::Open
            | AnswerSource::Enforced(_)
            | AnswerSource::Shadow(_)
            | AnswerSource::Fallback(_) => Outcome::Allow,
        }
    }

    /// Returns whether the charge is sent to the store.
    pub(crate) fn is_sent(&self) -> bool {
        match &self.by {
            LimitSource::Rule(_) | LimitSource::Overridden(..) | LimitSource::Ban(_) | LimitSource::Inline(_) => true,
            LimitSource::Unlimited(_) | LimitSource::Denied(_) | LimitSource::Omitted(_) => false,
        }
    }
}

impl PlanLimits {
    /// Returns the inline limits of a charge.
    pub(crate) fn inline_limit_of(&self, planned: &PlannedCharge) -> Option<&InternedEntry> {
        match planned.by {
            LimitSource::Inline(index) => self.inline.get(index as usize).map(|entry| &**entry),
            LimitSource::Rule(_)
            | LimitSource::Overridden(..)
            | LimitSource::Unlimited(_)
            | LimitSource::Denied(_)
            | LimitSource::Ban(_)
            | LimitSource::Omitted(_) => None,
        }
    }

    /// Returns the limits of the override that applies to a charge.
    pub(crate) fn override_limits_of(&self, planned: &PlannedCharge) -> Option<&Limits> {
        match planned.by {
            LimitSource::Overridden(_, index) => {
                self.overriding.get(index as usize).map(|rule_limits| &rule_limits.limits)
            }
            LimitSource::Rule(_)
            | LimitSource::Unlimited(_)
            | LimitSource::Denied(_)
            | LimitSource::Ban(_)
            | LimitSource::Omitted(_)
            | LimitSource::Inline(_) => None,
        }
    }

    /// Returns the limits of a charge; `None` for bans and rules without limits.
    pub(crate) fn limits<'a>(&'a self, planned: &PlannedCharge, running: &'a RulesInForce) -> Option<&'a Limits> {
        match planned.by {
            LimitSource::Inline(_) => self.inline_limit_of(planned).map(|entry| &entry.limits),
            LimitSource::Ban(_) | LimitSource::Omitted(_) => None,
            LimitSource::Rule(_) | LimitSource::Overridden(..) | LimitSource::Unlimited(_) | LimitSource::Denied(_) => {
                self.rule_limits_of(planned, running).map(|rule_limits| &rule_limits.limits)
            }
        }
    }

    /// Returns the id of a charge's limits, including the limits of bans; `None` for rules without limits.
    pub(crate) fn limits_id(&self, planned: &PlannedCharge, running: &RulesInForce) -> Option<u32> {
        match planned.by {
            LimitSource::Inline(_) => self.inline_limit_of(planned).map(|entry| entry.id),
            LimitSource::Rule(_)
            | LimitSource::Overridden(..)
            | LimitSource::Unlimited(_)
            | LimitSource::Denied(_)
            | LimitSource::Ban(_)
            | LimitSource::Omitted(_) => self.rule_limits_of(planned, running).map(|rule_limits| rule_limits.id),
        }
    }

    /// Returns the limits of a charge from its rule, override or ban.
    fn rule_limits_of<'a>(&'a self, planned: &PlannedCharge, running: &'a RulesInForce) -> Option<&'a RuleLimits> {
        let rule = |number: u32| running.rules.rules().get(number as usize);
        match planned.by {
            LimitSource::Rule(number) => rule(number)?.rule_limits.as_deref(),
            LimitSource::Overridden(_, index) => self.overriding.get(index as usize).map(|rule_limits| &**rule_limits),
            LimitSource::Ban(number) => rule(number)?.special()?.ban.as_ref().map(|banning| &*banning.ban),
            LimitSource::Unlimited(_) | LimitSource::Denied(_) | LimitSource::Omitted(_) | LimitSource::Inline(_) => {
                None
            }
        }
    }
}

impl Plan {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.charges.clear();
        self.item_matches.clear();
        self.keys.clear();
        if !self.charge_of_hash.is_empty() {
            self.charge_of_hash.clear();
        }
        self.refill_times.clear();
        self.given.clear();
        self.limits.overriding.clear();
        self.limits.inline.clear();
        self.metadata.clear();
    }

    /// Sets the evaluation time and the take mode for the requests that are added next.
    pub(crate) fn begin_batch(&mut self, now: Time<Wall>, take_mode: TakeMode) {
        (self.now, self.take_mode) = (Some(now), take_mode);
    }

    pub(crate) fn take_mode(&self) -> TakeMode {
        self.take_mode
    }

    /// Returns the time at which rules are evaluated.
    pub(crate) fn now(&self) -> Time<Wall> {
        self.now.unwrap_or(Time::ZERO)
    }

    /// Recomputes the calendar windows of `requests` for the time `now`.
    pub(crate) fn recompute_windows(&mut self, running: &RulesInForce, requests: &[u32], now: Time<Wall>) {
        for request in requests {
            let charges = &self.requests[*request as usize].charges;
            for planned in &self.charges[charges.start as usize..charges.end as usize] {
                let calendars =
                    self.limits.rule_limits_of(planned, running).map_or(&[][..], |rule_limits| &rule_limits.calendars);
                for (calendar, index) in calendars.iter().zip(planned.given as usize..) {
                    self.given[index] = calendar.window(now);
                }
            }
        }
    }

    /// Returns the size of the largest buffers in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.keys.capacity() + self.charges.capacity() * size_of::<PlannedCharge>()
    }

    pub(crate) fn key(&self, planned: &PlannedCharge) -> &[u8] {
        &self.keys[planned.key.start as usize..planned.key.end as usize]
    }

    /// Returns the rule id of a charge; empty for inline limits.
    pub(crate) fn rule_id(&self, charge: u32) -> &str {
        let planned = &self.charges[charge as usize];
        let (start, end) = planned.id;
        // Ids are ASCII.
        str::from_utf8(&self.key(planned)[start.into()..end.into()]).unwrap_or_default()
    }

    /// Returns the rule metadata of a charge, if any.
    pub(crate) fn metadata(&self, charge: u32) -> Option<&Metadata> {
        self.metadata.iter().find(|(of, _)| *of == charge).map(|(_, metadata)| &**metadata)
    }

    pub(crate) fn refill_times<'a>(&'a self, planned: &'a PlannedCharge) -> &'a [Option<Nanos>] {
        match &planned.refill_times {
            none if none.is_empty() => std::slice::from_ref(&planned.refill_time),
            range => &self.refill_times[to_usize_range(range)],
        }
    }

    /// Collects the charges that `wanted` selects, and one span for each request with such charges.
    #[inline]
    pub(crate) fn collect_charges<'a>(
        &'a self,
        running: &'a RulesInForce,
        charges: &mut Vec<Charge<'a>>,
        spans: &mut Vec<Span>,
        wanted: impl Fn(usize, &PlannedCharge) -> bool,
    ) {
        spans.clear();
        for (request, planned_request) in self.requests.iter().enumerate() {
            if planned_request.denied {
                continue;
            }
            let start = charges.len() as u32;
            for planned in &self.charges[planned_request.charges.start as usize..planned_request.charges.end as usize] {
                if planned.is_sent() && wanted(request, planned) {
                    self.push_charge(planned, running, charges);
                }
            }
            if start < charges.len() as u32 {
                spans.push(Span { request: request as u32, charges: start..charges.len() as u32 });
            }
        }
    }

    /// Adds the keys and limits of charges whose rules have a `per`. A rule without `per` has only one key, whose state
    /// is probably cached, because every matching request uses it.
    pub(crate) fn push_separate_keys<'a>(
        &'a self,
        running: &'a RulesInForce,
        keys: &mut SmallList<(&'a Limits, &'a [u8])>,
    ) {
        for planned in &self.charges {
            let rule = planned.rule().and_then(|number| running.rules.rules().get(number as usize));
            if let Some(rule) = rule.filter(|rule| rule.counts_separately())
                && let Some(limits) = &rule.rule_limits
            {
                keys.push((&limits.limits, self.key(planned)));
            }
        }
    }

    /// Returns whether the plan has a single request and it is plain.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&*self.requests, [PlannedRequest { plain: true, .. }])
    }

    /// Converts a charge of a plain request; `None` for other charges.
    #[inline]
    pub(crate) fn plain_charge<'a>(
        &'a self,
        planned: &PlannedCharge,
        running: &'a RulesInForce,
    ) -> Option<PlainCharge<'a>> {
        let (limits_id, limits) = match planned.by {
            LimitSource::Rule(number) => {
                let rule_limits = running.rules.rules()[number as usize].rule_limits.as_ref()?;
                (rule_limits.id, &rule_limits.limits)
            }
            LimitSource::Inline(index) => {
                let entry = &self.limits.inline[index as usize];
                (entry.id, &entry.limits)
            }
            LimitSource::Overridden(..)
            | LimitSource::Unlimited(_)
            | LimitSource::Denied(_)
            | LimitSource::Ban(_)
            | LimitSource::Omitted(_) => return None,
        };
        Some(PlainCharge { limits_id, limits, key: self.key(planned), cost: planned.cost })
    }

    /// Returns the only charge of the plan, if its rule is not `strict`. The request must be plain.
    #[inline]
    pub(crate) fn only_charge_unless_strict<'a>(&'a self, running: &'a RulesInForce) -> Option<Charge<'a>> {
        let [planned @ PlannedCharge { by: LimitSource::Rule(number), .. }] = &*self.charges else { return None };
        let rule = &running.rules.rules()[*number as usize];
        let rule_limits = rule.rule_limits.as_deref().filter(|_| rule.consistency != Consistency::Strict)?;
        Some(Charge {
            key: self.key(planned),
            limits_id: rule_limits.id,
            limits: &rule_limits.limits,
            earlier: &[],
            ask: Ask::Exactly(planned.cost),
            stamps: None,
            windows: &[],
            consistency: rule.consistency,
        })
    }

    #[inline(always)]
    fn push_charge<'a>(&'a self, planned: &'a PlannedCharge, running: &'a RulesInForce, charges: &mut Vec<Charge<'a>>) {
        let mut consistency = Consistency::Strict;
        let (limits_id, limits, earlier, windows) = match planned.by {
            LimitSource::Rule(number) => {
                let rule = &running.rules.rules()[number as usize];
                let Some(rule_limits) = &rule.rule_limits else { return };
                consistency = rule.consistency;
                (rule_limits.id, &rule_limits.limits, rule.earlier_limit_ids(), self.used_windows(planned, rule_limits))
            }
            LimitSource::Inline(index) => {
                let entry = &self.limits.inline[index as usize];
                (entry.id, &entry.limits, &[][..], &[][..])
            }
            LimitSource::Overridden(number, _) | LimitSource::Ban(number) => {
                let Some(rule_limits) = self.limits.rule_limits_of(planned, running) else { return };
                let rule = &running.rules.rules()[number as usize];
                let earlier = if planned.is_ban() { &[][..] } else { rule.earlier_limit_ids() };
                if !planned.is_ban() {
                    consistency = rule.consistency;
                }
                (rule_limits.id, &rule_limits.limits, earlier, self.used_windows(planned, rule_limits))
            }
            LimitSource::Unlimited(_) | LimitSource::Denied(_) | LimitSource::Omitted(_) => return,
        };
        let (key, ask) = (self.key(planned), self.ask(planned));
        charges.push(Charge { key, limits_id, limits, earlier, ask, stamps: None, windows, consistency });
    }

    /// Returns the calendar windows of a charge.
    pub(crate) fn calendar_windows(&self, planned: &PlannedCharge, running: &RulesInForce) -> &[Window] {
        self.limits.rule_limits_of(planned, running).map_or(&[], |rule_limits| self.used_windows(planned, rule_limits))
    }

    /// Returns the calendar windows that a charge's limits refer to.
    #[inline]
    fn used_windows(&self, planned: &PlannedCharge, rule_limits: &RuleLimits) -> &[Window] {
        let first = planned.given as usize;
        if rule_limits.calendars.is_empty() { &[] } else { &self.given[first..first + rule_limits.calendars.len()] }
    }
}

/// The range of one request's charges in a list of charges.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) request: u32,
    pub(crate) charges: Range<u32>,
}

/// Converts a `u32` range to a `usize` range.
pub(crate) fn to_usize_range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Adds one group for each span of charges.
pub(crate) fn push_groups<'a>(verb: StoreVerb, charges: &'a [Charge<'a>], spans: &[Span], groups: &mut Vec<Group<'a>>) {
    let of = |span: &Span| &charges[span.charges.start as usize..span.charges.end as usize];
    groups.extend(spans.iter().map(|span| Group { verb, charges: of(span) }));
}

/// Empties a buffer and changes its lifetime parameter. The standard library's in-place `collect` keeps the allocation.
pub(crate) fn emptied_charges<'b>(mut charges: Vec<Charge<'_>>) -> Vec<Charge<'b>> {
    charges.clear();
    charges.into_iter().map(|_| unreachable!("the buffer was emptied")).collect()
}

/// Like [`emptied_charges`], for groups.
pub(crate) fn emptied_groups<'b>(mut groups: Vec<Group<'_>>) -> Vec<Group<'b>> {
    groups.clear();
    groups.into_iter().map(|_| unreachable!("the buffer was emptied")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_buffer_keeps_its_memory() {
        let mut groups = Vec::with_capacity(100);
        groups.push(Group { verb: StoreVerb::Check, charges: &[] });
        assert!(emptied_groups(groups).capacity() >= 100);
        assert!(emptied_charges(Vec::with_capacity(50)).capacity() >= 50);
    }
}
