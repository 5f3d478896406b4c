//! From requests to charges: which rules are met, under which keys, at what cost.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use tollgate::{Ask, Cost, Limits, Nanos};

use super::Running;
use crate::key;
use crate::request::{Item, Request, RequestError, Sent, check_size};
use crate::rules::OnFault;
use crate::ruleset::{Matched, RuleSet, RunningRule};
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
    matched: Matched,
    spare_charges: Vec<Charge<'static>>,
    spare_groups: Vec<Group<'static>>,
    spare_spans: Vec<Span>,
}

/// How many rules the items of a request may meet, if they are several: each is compared with all before.
const MAX_MET: usize = 4096;

/// One request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) charges: Range<u32>,
    pub(crate) met: Range<u32>,
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
    pub(crate) cost: Cost,
    pub(crate) shadow: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) answered: Answered,
}

/// Whose limits.
#[derive(Debug)]
enum By {
    Rule(u32),
    Unlimited(u32),
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
            By::Rule(rule) | By::Unlimited(rule) => Some(*rule),
            By::Sent(_) => None,
        }
    }

    /// The limits that came along with the request.
    pub(crate) fn sent(&self) -> Option<&Sheet> {
        match &self.by {
            By::Rule(_) | By::Unlimited(_) => None,
            By::Sent(sheet) => Some(sheet),
        }
    }

    /// The limits, if there are any.
    pub(crate) fn limits<'a>(&'a self, running: &'a Running) -> Option<&'a Limits> {
        match &self.by {
            By::Rule(rule) => running.rules.rules().get(*rule as usize)?.limits(),
            By::Unlimited(_) => None,
            By::Sent(sheet) => Some(&sheet.limits),
        }
    }

    /// Whether there is anything to ask the store.
    pub(crate) fn has_limits(&self) -> bool {
        match &self.by {
            By::Rule(_) | By::Sent(_) => true,
            By::Unlimited(_) => false,
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
        let name = &self.charges[charge as usize].name;
        &self.names[name.start as usize..name.end as usize]
    }

    pub(crate) fn windows(&self, planned: &Planned) -> &[Option<Nanos>] {
        &self.windows[planned.windows.start as usize..planned.windows.end as usize]
    }

    /// Adds a request. One that is refused for its form has no charges.
    pub(crate) fn add(&mut self, request: &Request<'_>, rules: &RuleSet) -> Result<(), RequestError> {
        let (first_charge, first_met) = (self.charges.len(), self.met.len());
        let added = check_size(request).and_then(|()| self.add_items(request, rules, first_charge));
        if added.is_err() {
            self.charges.truncate(first_charge);
            self.met.truncate(first_met);
        }
        self.asked.push(Asked {
            charges: first_charge as u32..self.charges.len() as u32,
            met: first_met as u32..self.met.len() as u32,
        });
        added
    }

    fn add_items(&mut self, request: &Request<'_>, rules: &RuleSet, first: usize) -> Result<(), RequestError> {
        let first_met = self.met.len();
        for (place, item) in request.items.iter().enumerate() {
            match &item.limit {
                Some(sent) => self.add_sent(request, place, item, sent, first)?,
                None => self.add_ruled(request, place, item, rules, first)?,
            }
            let (given, max) = (self.met.len() - first_met, MAX_MET);
            if given > max && request.items.len() > 1 {
                return Err(RequestError::TooMany { what: "rules met by the items of a request", given, max });
            }
        }
        Ok(())
    }

    fn add_ruled(
        &mut self,
        request: &Request<'_>,
        place: usize,
        item: &Item<'_>,
        rules: &RuleSet,
        first: usize,
    ) -> Result<(), RequestError> {
        let Some(index) = rules.domain(request.domain) else {
            let domain = String::from_utf8_lossy(request.domain).chars().take(64).collect();
            return Err(RequestError::UnknownDomain { domain });
        };
        let mut matched = take(&mut self.matched);
        index.find(item.entries, &mut matched);
        for number in matched.rules() {
            let rule = &rules.rules()[*number as usize];
            let key_start = self.keys.len();
            self.keys.extend_from_slice(rules.key_prefix(rule));
            for attribute in rules.per(rule) {
                key::push_value(&mut self.keys, matched.value(item.entries, *attribute));
            }
            let cost = item.cost.unwrap_or(rule.cost);
            let charge = match self.same_key(first, key_start, request.items.len()) {
                Some(same) => self.join(same, cost, key_start),
                None => self.push_rule(*number, rule, rules.id_of(rule), cost, key_start),
            };
            self.met.push(Met { item: place as u32, charge });
        }
        self.matched = matched;
        Ok(())
    }

    fn add_sent(
        &mut self,
        request: &Request<'_>,
        place: usize,
        item: &Item<'_>,
        sent: &Sent<'_>,
        first: usize,
    ) -> Result<(), RequestError> {
        let key_start = self.keys.len();
        key::push_sent(&mut self.keys, request.domain, sent.key);
        let cost = item.cost.unwrap_or(Cost::ONE);
        let sheet = sent.limits.sheet();
        let charge = match self.same_key(first, key_start, request.items.len()) {
            Some(same) if self.charges[same as usize].sent().is_some_and(|other| other.id == sheet.id) => {
                self.join(same, cost, key_start)
            }
            Some(_) => {
                let why = "two items with the same key have different limits".into();
                return Err(RequestError::BadLimit { why });
            }
            None => self.push(By::Sent(sheet.clone()), "", &sheet.windows, cost, key_start),
        };
        self.met.push(Met { item: place as u32, charge });
        Ok(())
    }

    /// The charge of this request that has the key which begins at `key_start` and goes on to the end. Only different items
    /// can have the same.
    fn same_key(&self, first: usize, key_start: usize, items: usize) -> Option<u32> {
        if items == 1 {
            return None;
        }
        let key = &self.keys[key_start..];
        let same = self.charges[first..].iter().position(|planned| self.key(planned) == key)?;
        Some((first + same) as u32)
    }

    /// Two items that are counted together weigh their sum.
    fn join(&mut self, charge: u32, cost: Cost, key_start: usize) -> u32 {
        self.keys.truncate(key_start);
        let planned = &mut self.charges[charge as usize];
        planned.cost = Cost::new(planned.cost.get().saturating_add(cost.get()));
        charge
    }

    fn push_rule(&mut self, number: u32, rule: &RunningRule, id: &str, cost: Cost, key_start: usize) -> u32 {
        let charge = match &rule.numbered {
            Some(numbered) => self.push(By::Rule(number), id, numbered.windows(), cost, key_start),
            None => self.push(By::Unlimited(number), id, &[], cost, key_start),
        };
        let planned = &mut self.charges[charge as usize];
        planned.shadow = rule.is_shadow();
        planned.on_fault = rule.on_fault;
        charge
    }

    fn push(&mut self, by: By, name: &str, windows: &[Option<Nanos>], cost: Cost, key_start: usize) -> u32 {
        let name_start = self.names.len() as u32;
        self.names.push_str(name);
        let windows_start = self.windows.len() as u32;
        self.windows.extend_from_slice(windows);
        self.charges.push(Planned {
            by,
            key: key_start as u32..self.keys.len() as u32,
            name: name_start..self.names.len() as u32,
            windows: windows_start..self.windows.len() as u32,
            cost,
            shadow: false,
            on_fault: OnFault::Local,
            answered: Answered::Not,
        });
        self.charges.len() as u32 - 1
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
        let charge = |numbers, limits, earlier, rule| Charge {
            rule,
            key: self.key(planned),
            numbers,
            limits,
            earlier,
            ask: Ask::Exactly(planned.cost),
            stamps: None,
            windows: &[],
        };
        match &planned.by {
            By::Rule(number) => {
                let rule = &running.rules.rules()[*number as usize];
                let numbered = rule.numbered.as_ref()?;
                Some(charge(numbered.id, &numbered.limits, rule.earlier(), running.rules.id_of(rule)))
            }
            By::Sent(sheet) => Some(charge(sheet.id, &sheet.limits, &[][..], "")),
            By::Unlimited(_) => None,
        }
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
