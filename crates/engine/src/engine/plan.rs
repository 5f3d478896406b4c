//! From requests to charges: which rules are met, under which keys, at what cost.

mod add;

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use tollgate::{Cost, Limits, Nanos, Time, Wall, Window};

use super::{Running, Taking};
use crate::rules::OnFault;
use crate::ruleset::{Matched, Numbered};
use crate::sent::Sheet;
use crate::store::{Charge, Group, Verb};

/// The charges of a batch of requests. It borrows nothing, so that it can be kept and used again.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) asked: Vec<Asked>,
    pub(crate) charges: Vec<Planned>,
    /// Which item met which charge.
    pub(crate) met: Vec<Met>,
    keys: Vec<u8>,
    names: String,
    windows: Vec<Option<Nanos>>,
    /// Windows of the calendar, for the charges that need them.
    given: Vec<Window>,
    /// The time of the day, if any rule depends on it.
    now: Option<Time<Wall>>,
    /// How much of what the requests weigh is taken.
    taking: Taking,
    matched: Matched,
    /// For finding overrides.
    overriding: Matched,
    /// For the numbers of rules or requests, while some are picked.
    pub(crate) picked: Vec<u32>,
    spare_charges: Vec<Charge<'static>>,
    spare_groups: Vec<Group<'static>>,
    spare_spans: Vec<Span>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) charges: Range<u32>,
    pub(crate) met: Range<u32>,
    /// Whether a rule denies it, so that nobody has to be asked.
    pub(crate) denied: bool,
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
    name: Range<u32>,
    windows: Range<u32>,
    /// Where its windows of the calendar begin.
    given: u32,
    pub(crate) cost: Cost,
    pub(crate) shadow: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) answered: Answered,
}

/// Whose limits.
#[derive(Debug)]
enum By {
    Rule(u32),
    /// A rule, and the numbers of one of its overrides.
    Overridden(u32, Arc<Numbered>),
    Unlimited(u32),
    Denied(u32),
    /// Whether the counter of a rule is banned. It follows the charge to that counter.
    Ban(u32),
    /// A rule, or its ban, in whose place another one is.
    Replaced(u32),
    Sent(Arc<Sheet>),
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
            By::Sent(_) => None,
        }
    }

    /// The limits that came along with the request.
    pub(crate) fn sent(&self) -> Option<&Sheet> {
        match &self.by {
            By::Sent(sheet) => Some(sheet),
            By::Rule(_) | By::Overridden(..) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) => None,
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

    /// The limits of the override that it is under.
    pub(crate) fn overriding(&self) -> Option<&Limits> {
        match &self.by {
            By::Overridden(_, numbered) => Some(&numbered.limits),
            By::Rule(_) | By::Unlimited(_) | By::Denied(_) | By::Ban(_) | By::Replaced(_) | By::Sent(_) => None,
        }
    }

    /// The limits that are counted, if there are any.
    pub(crate) fn limits<'a>(&'a self, running: &'a Running) -> Option<&'a Limits> {
        match &self.by {
            By::Sent(sheet) => Some(&sheet.limits),
            By::Ban(_) | By::Replaced(_) => None,
            By::Rule(_) | By::Overridden(..) | By::Unlimited(_) | By::Denied(_) => {
                self.numbered(running).map(|numbered| &numbered.limits)
            }
        }
    }

    /// The numbers of the rule that it is under.
    fn numbered<'a>(&'a self, running: &'a Running) -> Option<&'a Numbered> {
        let rule = |number: u32| running.rules.rules().get(number as usize);
        match &self.by {
            By::Rule(number) => rule(*number)?.numbered.as_deref(),
            By::Overridden(_, numbered) => Some(numbered),
            By::Ban(number) => rule(*number)?.special()?.ban.as_ref().map(|banning| &*banning.ban),
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) | By::Sent(_) => None,
        }
    }

    /// Whether there is anything to ask the store.
    pub(crate) fn has_limits(&self) -> bool {
        match &self.by {
            By::Rule(_) | By::Overridden(..) | By::Ban(_) | By::Sent(_) => true,
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) => false,
        }
    }
}

impl Plan {
    pub(crate) fn clear(&mut self) {
        self.asked.clear();
        self.charges.clear();
        self.met.clear();
        self.keys.clear();
        self.names.clear();
        self.windows.clear();
        self.given.clear();
    }

    /// The time of the day for the requests that are added from now on, and how much of what they weigh is taken.
    pub(crate) fn begin(&mut self, now: Time<Wall>, taking: Taking) {
        (self.now, self.taking) = (Some(now), taking);
    }

    pub(crate) fn taking(&self) -> Taking {
        self.taking
    }

    fn now(&self) -> Time<Wall> {
        self.now.unwrap_or(Time::ZERO)
    }

    /// Goes by another time, that of the store, in the windows of the calendar that were handed to it for `requests`.
    pub(crate) fn move_windows(&mut self, running: &Running, requests: &[u32], now: Time<Wall>) {
        for request in requests {
            let charges = &self.asked[*request as usize].charges;
            for planned in &self.charges[charges.start as usize..charges.end as usize] {
                let calendars = planned.numbered(running).map_or(&[][..], |numbered| &numbered.calendars);
                for (calendar, place) in calendars.iter().zip(planned.given as usize..) {
                    self.given[place] = calendar.window(now);
                }
            }
        }
    }

    /// The memory of its largest buffers.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.capacity() + self.names.capacity() + self.charges.capacity() * size_of::<Planned>()
    }

    pub(crate) fn key(&self, planned: &Planned) -> &[u8] {
        &self.keys[planned.key.start as usize..planned.key.end as usize]
    }

    /// The id of the rule.
    pub(crate) fn name(&self, charge: u32) -> &str {
        self.text(&self.charges[charge as usize])
    }

    fn text(&self, planned: &Planned) -> &str {
        &self.names[planned.name.start as usize..planned.name.end as usize]
    }

    pub(crate) fn windows(&self, planned: &Planned) -> &[Option<Nanos>] {
        &self.windows[planned.windows.start as usize..planned.windows.end as usize]
    }

    /// Empty buffers for charges and groups, and for what they are of. They go back with [`Plan::take_back`] and
    /// [`Plan::take_spans`].
    pub(crate) fn lend<'b>(&mut self) -> (Vec<Charge<'b>>, Vec<Group<'b>>, Vec<Span>) {
        (take(&mut self.spare_charges), take(&mut self.spare_groups), take(&mut self.spare_spans))
    }

    /// Takes buffers back to be lent again. The charges may borrow from this plan only for as long as they are lent, which
    /// is why they go through [`emptied_charges`] and [`emptied_groups`] first.
    pub(crate) fn take_back(&mut self, charges: Vec<Charge<'static>>, groups: Vec<Group<'static>>) {
        (self.spare_charges, self.spare_groups) = (charges, groups);
    }

    /// Takes a buffer of spans back.
    pub(crate) fn take_spans(&mut self, spans: Vec<Span>) {
        self.spare_spans = spans;
    }

    /// The charges that `wanted` picks, as a store wants them, one span for each request that has any.
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
            let planned = self.charges[asked.charges.start as usize..asked.charges.end as usize].iter();
            charges.extend(
                planned
                    .filter(|planned| planned.has_limits() && wanted(request, planned))
                    .filter_map(|planned| self.charge(planned, running)),
            );
            if start < charges.len() as u32 {
                spans.push(Span { request: request as u32, charges: start..charges.len() as u32 });
            }
        }
    }

    /// A charge as a store wants it.
    fn charge<'a>(&'a self, planned: &'a Planned, running: &'a Running) -> Option<Charge<'a>> {
        let charge = |numbers, limits, earlier, rule, windows| Charge {
            rule,
            key: self.key(planned),
            numbers,
            limits,
            earlier,
            ask: self.ask(planned),
            stamps: None,
            windows,
        };
        match &planned.by {
            By::Rule(number) => {
                let rule = &running.rules.rules()[*number as usize];
                let numbered = rule.numbered.as_ref()?;
                let windows = self.given(planned, numbered);
                Some(charge(numbered.id, &numbered.limits, rule.earlier(), self.text(planned), windows))
            }
            By::Sent(sheet) => Some(charge(sheet.id, &sheet.limits, &[][..], "", &[])),
            By::Overridden(number, _) | By::Ban(number) => {
                let rule = &running.rules.rules()[*number as usize];
                let numbered = planned.numbered(running)?;
                let earlier = if planned.is_ban() { &[][..] } else { rule.earlier() };
                let windows = self.given(planned, numbered);
                Some(charge(numbered.id, &numbered.limits, earlier, self.text(planned), windows))
            }
            By::Unlimited(_) | By::Denied(_) | By::Replaced(_) => None,
        }
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
