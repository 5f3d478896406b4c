//! From requests to charges: which rules are met, under which keys, at what cost.

mod add;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::core::{Cost, Nanos, Time, Wall, Window};
use tollgate::ledger::PlainCharge;
use tollgate::{Limits, Outcome, Retry};

use super::policy::FAULT_RETRY;
use super::{Running, Taking};
use crate::inline::InlineLimit;
use crate::rules::OnFault;
use crate::ruleset::Numbered;
use crate::store::{Charge, Group, Verb};

/// As many charges as nearly all requests have; more of them allocate.
pub(crate) type Few<T> = SmallVec<[T; 16]>;

/// The charges of a batch of requests. It borrows nothing, so that it can be kept and used again.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) asked: Vec<Asked>,
    pub(crate) charges: Vec<Planned>,
    /// Which item met which charge.
    pub(crate) met: Vec<Met>,
    keys: Vec<u8>,
    /// For charges with several limits, the window of each.
    windows: Vec<Option<Nanos>>,
    /// Windows of the calendar, for the charges that need them.
    given: Vec<Window>,
    pub(crate) numbers: Numbers,
    /// The time of the day, if any rule depends on it.
    now: Option<Time<Wall>>,
    /// How much of what the requests weigh is taken.
    taking: Taking,
    /// Whether the request that is being added has met none but plain rules so far.
    plain: bool,
}

/// Numbers that charges refer to by place: so a charge itself is nothing that would have to be taken apart.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    overriding: Vec<Arc<Numbered>>,
    inline: Vec<Arc<InlineLimit>>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) charges: Range<u32>,
    pub(crate) met: Range<u32>,
    /// Whether a rule denies it, so that nobody has to be asked.
    pub(crate) denied: bool,
    /// Whether all of its charges are to [plain](crate::ruleset::RunningRule::plain) rules, or to inline limits.
    pub(crate) plain: bool,
    /// What its first item weighs, one if that is up to the rules.
    pub(crate) weighs: Cost,
}

/// That an item met a rule.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) item: u32,
    pub(crate) charge: u32,
}

/// One counter and what it is to be charged.
#[derive(Debug)]
pub(crate) struct Planned {
    by: By,
    key: Range<u32>,
    /// Where the id of the rule is, among the keys: each begins with it.
    name: Range<u32>,
    /// Of its first limit, and of all if there are several.
    window: Option<Nanos>,
    windows: Range<u32>,
    /// Where its windows of the calendar begin.
    given: u32,
    pub(crate) cost: Cost,
    pub(crate) shadow: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) answered: Answered,
}

/// Whose limits.
#[derive(Clone, Copy, Debug)]
enum By {
    Rule(u32),
    /// A rule, and which numbers of its overrides.
    Overridden(u32, u32),
    Unlimited(u32),
    Denied(u32),
    /// Whether the counter of a rule is banned. It follows the charge to that counter.
    Ban(u32),
    /// A rule, or its ban, in whose place another one is.
    Replaced(u32),
    /// Inline limits: which ones.
    Inline(u32),
}

/// Where the answer to a charge is: which one of which answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Nobody was asked: there is no limit, or the enforced rules refused.
    Not,
    Enforced(u32),
    Shadow(u32),
    Fallback(u32),
    /// The store did not answer, and the rule lets everybody pass then.
    Open,
    /// The store did not answer, and the rule lets nobody pass then.
    Closed,
}

impl Planned {
    /// The number of the rule, if it is one.
    pub(crate) fn rule(&self) -> Option<u32> {
        match &self.by {
            By::Rule(rule)
            | By::Overridden(rule, _)
            | By::Unlimited(rule)
            | By::Denied(rule)
            | By::Ban(rule)
            | By::Replaced(rule) => Some(*rule),
            By::Inline(_) => None,
        }
    }

    /// Whether it is about a ban, not about limits.
    pub(crate) fn is_ban(&self) -> bool {
        matches!(self.by, By::Ban(_))
    }

    /// Whether the rule refuses without counting.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.by, By::Denied(_))
    }

    /// Leaves it out, because another rule is in its place.
    pub(crate) fn replace(&mut self) {
        if let Some(rule) = self.rule() {
            self.by = By::Replaced(rule);
        }
    }

    /// Whether another rule is in its place.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(self.by, By::Replaced(_))
    }

    /// Returns the outcome of a charge that no store answered.
    pub(crate) fn outcome_unanswered(&self) -> Outcome {
        match self.answered {
            Answered::Not if self.is_denied() => Outcome::Deny(Retry::Never),
            Answered::Closed => Outcome::Deny(FAULT_RETRY),
            // A store may have given fewer answers than it was asked.
            Answered::Not | Answered::Open | Answered::Enforced(_) | Answered::Shadow(_) | Answered::Fallback(_) => {
                Outcome::Allow
            }
        }
    }

    /// Whether there is anything to ask the store.
    pub(crate) fn has_limits(&self) -> bool {
        match &self.by {
            By::Rule(_) | By::Overridden(..) | By::Ban(_) | By::Inline(_) => true,
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) => false,
        }
    }
}

impl Numbers {
    /// The inline limits.
    pub(crate) fn inline(&self, planned: &Planned) -> Option<&InlineLimit> {
        match planned.by {
            By::Inline(place) => self.inline.get(place as usize).map(|entry| &**entry),
            By::Rule(_) | By::Overridden(..) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) => None,
        }
    }

    /// The limits of the override that a charge is under.
    pub(crate) fn overriding(&self, planned: &Planned) -> Option<&Limits> {
        match planned.by {
            By::Overridden(_, place) => self.overriding.get(place as usize).map(|numbered| &numbered.limits),
            By::Rule(_) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) | By::Inline(_) => None,
        }
    }

    /// The limits that are counted, if there are any.
    pub(crate) fn limits<'a>(&'a self, planned: &Planned, running: &'a Running) -> Option<&'a Limits> {
        match planned.by {
            By::Inline(_) => self.inline(planned).map(|entry| &entry.limits),
            By::Ban(_) | By::Replaced(_) => None,
            By::Rule(_) | By::Overridden(..) | By::Unlimited(_) | By::Denied(_) => {
                self.of_rule(planned, running).map(|numbered| &numbered.limits)
            }
        }
    }

    /// Returns the id of the limits that are counted, if there are any.
    pub(crate) fn id(&self, planned: &Planned, running: &Running) -> Option<u32> {
        match planned.by {
            By::Inline(_) => self.inline(planned).map(|entry| entry.id),
            By::Rule(_) | By::Overridden(..) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) => {
                self.of_rule(planned, running).map(|numbered| numbered.id)
            }
        }
    }

    /// The numbers of the rule that a charge is under.
    fn of_rule<'a>(&'a self, planned: &Planned, running: &'a Running) -> Option<&'a Numbered> {
        let rule = |number: u32| running.rules.rules().get(number as usize);
        match planned.by {
            By::Rule(number) => rule(number)?.numbered.as_deref(),
            By::Overridden(_, place) => self.overriding.get(place as usize).map(|numbered| &**numbered),
            By::Ban(number) => rule(number)?.special()?.ban.as_ref().map(|banning| &*banning.ban),
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) | By::Inline(_) => None,
        }
    }
}

impl Plan {
    pub(crate) fn clear(&mut self) {
        self.asked.clear();
        self.charges.clear();
        self.met.clear();
        self.keys.clear();
        self.windows.clear();
        self.given.clear();
        self.numbers.overriding.clear();
        self.numbers.inline.clear();
    }

    /// The time of the day for the requests that are added from now on, and how much of what they weigh is taken.
    pub(crate) fn begin(&mut self, now: Time<Wall>, taking: Taking) {
        (self.now, self.taking) = (Some(now), taking);
    }

    pub(crate) fn taking(&self) -> Taking {
        self.taking
    }

    /// The time of the day that its rules went by.
    pub(crate) fn now(&self) -> Time<Wall> {
        self.now.unwrap_or(Time::ZERO)
    }

    /// Goes by another time, that of the store, in the windows of the calendar that were handed to it for `requests`.
    pub(crate) fn move_windows(&mut self, running: &Running, requests: &[u32], now: Time<Wall>) {
        for request in requests {
            let charges = &self.asked[*request as usize].charges;
            for planned in &self.charges[charges.start as usize..charges.end as usize] {
                let calendars = self.numbers.of_rule(planned, running).map_or(&[][..], |numbered| &numbered.calendars);
                for (calendar, place) in calendars.iter().zip(planned.given as usize..) {
                    self.given[place] = calendar.window(now);
                }
            }
        }
    }

    /// The memory of its largest buffers.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.capacity() + self.charges.capacity() * size_of::<Planned>()
    }

    pub(crate) fn key(&self, planned: &Planned) -> &[u8] {
        &self.keys[planned.key.start as usize..planned.key.end as usize]
    }

    /// The id of the rule; empty for inline limits.
    pub(crate) fn name(&self, charge: u32) -> &str {
        let Range { start, end } = self.charges[charge as usize].name;
        // It is ASCII.
        str::from_utf8(&self.keys[start as usize..end as usize]).unwrap_or_default()
    }

    pub(crate) fn windows<'a>(&'a self, planned: &'a Planned) -> &'a [Option<Nanos>] {
        match &planned.windows {
            none if none.is_empty() => std::slice::from_ref(&planned.window),
            windows => &self.windows[windows.start as usize..windows.end as usize],
        }
    }

    /// The charges that `wanted` picks, as a store wants them, one span for each request that has any.
    #[inline]
    pub(crate) fn collect<'a>(
        &'a self,
        running: &'a Running,
        charges: &mut Vec<Charge<'a>>,
        spans: &mut Vec<Span>,
        wanted: impl Fn(usize, &Planned) -> bool,
    ) {
        spans.clear();
        for (request, asked) in self.asked.iter().enumerate() {
            if asked.denied {
                continue;
            }
            let start = charges.len() as u32;
            for planned in &self.charges[asked.charges.start as usize..asked.charges.end as usize] {
                if planned.has_limits() && wanted(request, planned) {
                    self.push_charge(planned, running, charges);
                }
            }
            if start < charges.len() as u32 {
                spans.push(Span { request: request as u32, charges: start..charges.len() as u32 });
            }
        }
    }

    /// Adds the charges of the only request there is, as a store wants them, if none of them is special; whether so.
    #[inline]
    pub(crate) fn collect_plain<'a>(&'a self, running: &'a Running, charges: &mut Few<PlainCharge<'a>>) -> bool {
        let [Asked { plain: true, .. }] = &*self.asked else { return false };
        for planned in &self.charges {
            let (numbers, limits) = match planned.by {
                By::Rule(number) => match &running.rules.rules()[number as usize].numbered {
                    Some(numbered) => (numbered.id, &numbered.limits),
                    None => return false,
                },
                By::Inline(place) => {
                    let entry = &self.numbers.inline[place as usize];
                    (entry.id, &entry.limits)
                }
                By::Overridden(..) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) => return false,
            };
            charges.push(PlainCharge { limits_id: numbers, limits, key: self.key(planned), cost: planned.cost });
        }
        true
    }

    /// Adds a charge as a store wants it.
    #[inline(always)]
    fn push_charge<'a>(&'a self, planned: &'a Planned, running: &'a Running, charges: &mut Vec<Charge<'a>>) {
        let (numbers, limits, earlier, windows) = match planned.by {
            By::Rule(number) => {
                let rule = &running.rules.rules()[number as usize];
                let Some(numbered) = &rule.numbered else { return };
                (numbered.id, &numbered.limits, rule.earlier(), self.given(planned, numbered))
            }
            By::Inline(place) => {
                let entry = &self.numbers.inline[place as usize];
                (entry.id, &entry.limits, &[][..], &[][..])
            }
            By::Overridden(number, _) | By::Ban(number) => {
                let Some(numbered) = self.numbers.of_rule(planned, running) else { return };
                let rule = &running.rules.rules()[number as usize];
                let earlier = if planned.is_ban() { &[][..] } else { rule.earlier() };
                (numbered.id, &numbered.limits, earlier, self.given(planned, numbered))
            }
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) => return,
        };
        let (key, ask) = (self.key(planned), self.ask(planned));
        charges.push(Charge { key, numbers, limits, earlier, ask, stamps: None, windows });
    }

    /// Returns the windows of the calendar that the limits of a charge refer to.
    pub(crate) fn calendar_windows(&self, planned: &Planned, running: &Running) -> &[Window] {
        self.numbers.of_rule(planned, running).map_or(&[], |numbered| self.given(planned, numbered))
    }

    /// The windows of the calendar that its limits refer to.
    #[inline]
    fn given(&self, planned: &Planned, numbered: &Numbered) -> &[Window] {
        let first = planned.given as usize;
        if numbered.calendars.is_empty() { &[] } else { &self.given[first..first + numbered.calendars.len()] }
    }
}

/// The charges of one request in a list of charges.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) request: u32,
    pub(crate) charges: Range<u32>,
}

/// A range of positions, as they are kept in four bytes.
pub(crate) fn range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// Groups over a list of charges.
pub(crate) fn group<'a>(verb: Verb, charges: &'a [Charge<'a>], spans: &[Span], groups: &mut Vec<Group<'a>>) {
    let of = |span: &Span| &charges[span.charges.start as usize..span.charges.end as usize];
    groups.extend(spans.iter().map(|span| Group { verb, charges: of(span) }));
}

/// The buffer without what was in it, for charges that borrow from something else. There is nothing to convert, and
/// the standard library keeps the memory.
pub(crate) fn emptied_charges<'b>(mut charges: Vec<Charge<'_>>) -> Vec<Charge<'b>> {
    charges.clear();
    charges.into_iter().map(|_| unreachable!("the buffer was emptied")).collect()
}

/// [`emptied_charges`] for groups.
pub(crate) fn emptied_groups<'b>(mut groups: Vec<Group<'_>>) -> Vec<Group<'b>> {
    groups.clear();
    groups.into_iter().map(|_| unreachable!("the buffer was emptied")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_buffer_keeps_its_memory() {
        let mut groups = Vec::with_capacity(100);
        groups.push(Group { verb: Verb::Check, charges: &[] });
        assert!(emptied_groups(groups).capacity() >= 100);
        assert!(emptied_charges(Vec::with_capacity(50)).capacity() >= 50);
    }
}
