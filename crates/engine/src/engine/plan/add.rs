//! A request is added to a plan: its items meet rules, and each rule becomes a charge.

use tollgate::core::{Cost, Nanos};

use super::{Answered, Asked, By, Met, Plan, Planned};
use crate::engine::scratch::Scratch;
use crate::key;
use crate::request::{Inline, Item, Request, RequestError, check_size};
use crate::rules::OnFault;
use crate::ruleset::{Does, Judgement, Matched, RuleSet, RunningRule};

/// How many rules the items of a request may meet, if they are several: each is compared with all before.
const MAX_MET: usize = 4096;

/// That an item meets a rule.
struct Meeting<'a> {
    /// Which item.
    place: usize,
    item: &'a Item<'a>,
    rules: &'a RuleSet,
    /// Which rule.
    number: u32,
    /// The first charge of the request.
    first: usize,
    /// How many items the request has.
    items: usize,
}

impl Plan {
    /// Adds a request. One that is refused for its form has no charges.
    pub(crate) fn add(
        &mut self,
        request: &Request<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
    ) -> Result<(), RequestError> {
        let (first_charge, first_met) = (self.charges.len(), self.met.len());
        self.plain = true;
        let added = self.add_items(request, rules, scratch, first_charge);
        if added.is_err() {
            self.charges.truncate(first_charge);
            self.met.truncate(first_met);
        } else if rules.leaves_out() {
            self.replace(rules, first_charge, &mut scratch.picked);
        }
        self.asked.push(Asked {
            weighs: request.items.first().and_then(|item| item.cost).unwrap_or(Cost::ONE),
            charges: first_charge as u32..self.charges.len() as u32,
            met: first_met as u32..self.met.len() as u32,
            denied: !self.plain
                && self.charges[first_charge..].iter().any(|planned| planned.is_denied() && !planned.shadow),
            plain: self.plain && self.charges.len() > first_charge,
        });
        added
    }

    fn add_items(
        &mut self,
        request: &Request<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
        first: usize,
    ) -> Result<(), RequestError> {
        check_size(request)?;
        self.taking.check(request)?;
        let first_met = self.met.len();
        for (place, item) in request.items.iter().enumerate() {
            match &item.limit {
                Some(inline) => self.add_inline(request, place, item, inline, first)?,
                None => self.add_ruled(request, place, item, rules, scratch, first)?,
            }
            let (given, max) = (self.met.len() - first_met, MAX_MET);
            if given > max && request.items.len() > 1 {
                return Err(RequestError::TooMany { what: "rules met by the items of a request", given, max });
            }
        }
        Ok(())
    }

    /// Takes out the rules that others are in the place of. Whoever is replaced still replaces.
    fn replace(&mut self, rules: &RuleSet, first: usize, replaced: &mut Vec<u32>) {
        replaced.clear();
        for rule in self.charges[first..].iter().filter_map(Planned::rule) {
            let special = rules.rules().get(rule as usize).and_then(RunningRule::special);
            replaced.extend_from_slice(special.map_or(&[], |special| &special.replaces));
        }
        replaced.sort_unstable();
        for planned in &mut self.charges[first..] {
            if planned.rule().is_some_and(|rule| replaced.binary_search(&rule).is_ok()) {
                planned.replace();
            }
        }
    }

    fn add_ruled(
        &mut self,
        request: &Request<'_>,
        place: usize,
        item: &Item<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
        first: usize,
    ) -> Result<(), RequestError> {
        let Some(domain) = rules.domain(request.domain) else {
            let domain = String::from_utf8_lossy(request.domain).chars().take(64).collect();
            return Err(RequestError::UnknownDomain { domain });
        };
        domain.index.find(item.entries, &mut scratch.rules);
        let Scratch { rules: matched, overrides, .. } = scratch;
        if let Some(number) = rules.judge(domain, matched, item.entries, self.now()) {
            self.plain = false;
            self.add_special(
                &Meeting { place, item, rules, number, first, items: request.items.len() },
                matched,
                overrides,
            );
            return Ok(());
        }
        for number in matched.rules() {
            let rule = &rules.rules()[*number as usize];
            rule.meter.touch();
            self.plain &= rule.plain;
            if rule.special().is_some() {
                let meeting = Meeting { place, item, rules, number: *number, first, items: request.items.len() };
                self.add_special(&meeting, matched, overrides);
                continue;
            }
            let key_start = self.keys.len();
            self.keys.extend_from_slice(rules.key_prefix(rule));
            for attribute in rules.per(rule) {
                key::push_value(&mut self.keys, matched.value(item.entries, *attribute));
            }
            let cost = item.cost.unwrap_or(rule.cost);
            let charge = match self.same_key(first, key_start, request.items.len()) {
                Some(same) => self.join(same, cost, key_start),
                None => self.push_rule(*number, rule, cost, key_start),
            };
            self.met.push(Met { item: place as u32, charge });
        }
        Ok(())
    }

    fn add_inline(
        &mut self,
        request: &Request<'_>,
        place: usize,
        item: &Item<'_>,
        inline: &Inline<'_>,
        first: usize,
    ) -> Result<(), RequestError> {
        let key_start = self.keys.len();
        key::push_inline(&mut self.keys, request.domain, inline.key);
        let cost = item.cost.unwrap_or(Cost::ONE);
        let entry = inline.limits.entry();
        let charge = match self.same_key(first, key_start, request.items.len()) {
            Some(same) => {
                let other = self.numbers.inline(&self.charges[same as usize]);
                if other.is_none_or(|other| other.id != entry.id) {
                    let why = "two items with the same key have different limits".into();
                    return Err(RequestError::BadLimit { why });
                }
                self.join(same, cost, key_start)
            }
            None => {
                self.numbers.inline.push(entry.clone());
                let by = By::Inline(self.numbers.inline.len() as u32 - 1);
                self.push(Planned { name: 0..0, ..self.planned(by, (0, 0), cost, key_start) }, &entry.windows)
            }
        };
        self.met.push(Met { item: place as u32, charge });
        Ok(())
    }

    /// The charge of this request that has the key which begins at `key_start` and goes on to the end. Only different items
    /// can have the same.
    #[inline]
    fn same_key(&self, first: usize, key_start: usize, items: usize) -> Option<u32> {
        if items == 1 { None } else { self.find_key(first, key_start) }
    }

    fn find_key(&self, first: usize, key_start: usize) -> Option<u32> {
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

    /// A rule that has more to say. It may not apply after all.
    #[inline(never)]
    fn add_special(&mut self, meeting: &Meeting<'_>, matched: &Matched, overrides: &mut Matched) {
        let Meeting { place, item, rules, number, first, items } = *meeting;
        let rule = &rules.rules()[number as usize];
        let Some(special) = rule.special() else { return };
        if !special.applies(self.now(), matched, item.entries) {
            return;
        }
        let key_start = self.keys.len();
        self.keys.extend_from_slice(rules.key_prefix(rule));
        if !special.push_values(&mut self.keys, matched, item.entries) {
            for attribute in rules.per(rule) {
                key::push_value(&mut self.keys, matched.value(item.entries, *attribute));
            }
        }
        let cost = item.cost.or_else(|| special.cost(matched, item.entries)).unwrap_or(rule.cost);
        let charge = match self.same_key(first, key_start, items) {
            Some(same) => self.join(same, cost, key_start),
            None => self.push_special(meeting, overrides, cost, key_start),
        };
        self.met.push(Met { item: place as u32, charge });
    }

    fn push_special(&mut self, meeting: &Meeting<'_>, matched: &mut Matched, cost: Cost, key_start: usize) -> u32 {
        let Meeting { item, rules, number, .. } = *meeting;
        let rule = &rules.rules()[number as usize];
        let Some(special) = rule.special() else { return self.push_rule(number, rule, cost, key_start) };
        let now = self.now();
        let overrides = special.overrides.as_ref();
        let overridden = overrides.and_then(|overrides| {
            let place = overrides.first(item.entries, matched, now)?;
            Some(&overrides.get(place).does)
        });
        let (by, numbered) = match (special.judges, overridden, &rule.numbered) {
            (Some(Judgement::Deny), _, _) | (_, Some(Does::Deny), _) => (By::Denied(number), None),
            (Some(Judgement::Allow), _, _) | (_, Some(Does::Nothing), _) | (_, None, None) => {
                (By::Unlimited(number), None)
            }
            (None, Some(Does::Limit(numbered)), _) => {
                self.numbers.overriding.push(numbered.clone());
                (By::Overridden(number, self.numbers.overriding.len() as u32 - 1), Some(numbered))
            }
            (None, None, Some(numbered)) => (By::Rule(number), Some(numbered)),
        };
        let key_end = self.keys.len();
        let shadow = rule.is_shadow() || special.spares(&self.keys[key_start..]);
        let given = self.given.len() as u32;
        let calendars = numbered.map_or(&[][..], |numbered| &numbered.calendars);
        self.given.extend(calendars.iter().map(|calendar| calendar.window(now)));
        let windows = numbered.map_or(&[][..], |numbered| numbered.windows());
        let planned = self.planned(by, rule.id_place(), cost, key_start);
        let charge = self.push(Planned { given, shadow, on_fault: rule.on_fault, ..planned }, windows);
        if special.ban.is_some() && !shadow && numbered.is_some() {
            let ban_start = self.keys.len();
            key::push_beside(&mut self.keys, key_start..key_end, key::Beside::Ban);
            self.push(self.planned(By::Ban(number), rule.id_place(), Cost::ZERO, ban_start), &[]);
        }
        charge
    }

    #[inline(always)]
    fn push_rule(&mut self, number: u32, rule: &RunningRule, cost: Cost, key_start: usize) -> u32 {
        let (by, windows) = match &rule.numbered {
            Some(numbered) => (By::Rule(number), numbered.windows()),
            None => (By::Unlimited(number), &[][..]),
        };
        let planned = self.planned(by, rule.id_place(), cost, key_start);
        self.push(Planned { shadow: rule.is_shadow(), on_fault: rule.on_fault, ..planned }, windows)
    }

    /// A charge to the key that begins at `key_start` and goes on to the end, with the id of its rule in this part of it.
    #[inline(always)]
    fn planned(&self, by: By, id: (u16, u16), cost: Cost, key_start: usize) -> Planned {
        let start = key_start as u32;
        Planned {
            by,
            key: start..self.keys.len() as u32,
            name: start + u32::from(id.0)..start + u32::from(id.1),
            window: None,
            windows: 0..0,
            given: 0,
            cost,
            shadow: false,
            on_fault: OnFault::Local,
            answered: Answered::Not,
        }
    }

    #[inline(always)]
    fn push(&mut self, mut planned: Planned, windows: &[Option<Nanos>]) -> u32 {
        match windows {
            [] => {}
            [window] => planned.window = *window,
            several => {
                let start = self.windows.len() as u32;
                self.windows.extend_from_slice(several);
                planned.windows = start..self.windows.len() as u32;
            }
        }
        self.charges.push(planned);
        self.charges.len() as u32 - 1
    }
}
