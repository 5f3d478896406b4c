//! Adds requests to a plan: matches items with rules, and adds a charge for each match.

use std::hash::BuildHasher;

use tollgate::core::{Cost, Nanos};

use super::{AnswerSource, ItemMatch, LimitSource, Plan, PlannedCharge, PlannedRequest};
use crate::engine::scratch::Scratch;
use crate::key;
use crate::request::{InlineLimit, Item, Request, RequestError, check_size};
use crate::rules::OnFault;
use crate::ruleset::{ActiveRule, AllowOrDeny, CandidateRules, OverrideEffect, RuleSet};
use crate::striped::Stripe;

/// The context of a match between an item and a rule.
struct MatchContext<'a> {
    /// The index of the item.
    index: usize,
    item: &'a Item<'a>,
    rules: &'a RuleSet,
    /// The index of the rule.
    number: u32,
    /// The index of the request's first charge.
    first: usize,
    /// The number of items in the request.
    items: usize,
}

impl Plan {
    /// Adds a request. An invalid request has no charges.
    pub(crate) fn add_request(
        &mut self,
        request: &Request<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
    ) -> Result<(), RequestError> {
        let (first_charge, first_match) = (self.charges.len(), self.item_matches.len());
        self.plain = true;
        let added = self.add_items(request, rules, scratch, first_charge);
        if added.is_err() {
            self.charges.truncate(first_charge);
            self.item_matches.truncate(first_match);
        } else if rules.may_omit_rules() {
            self.mark_replaced_rules(rules, first_charge, &mut scratch.picked);
        }
        self.requests.push(PlannedRequest {
            cost: request.items.first().and_then(|item| item.cost).unwrap_or(Cost::ONE),
            charges: first_charge as u32..self.charges.len() as u32,
            item_matches: first_match as u32..self.item_matches.len() as u32,
            denied: !self.plain
                && self.charges[first_charge..].iter().any(|planned| planned.is_denied() && !planned.shadow),
            plain: self.plain && self.charges.len() > first_charge,
        });
        added
    }

    #[inline]
    fn add_items(
        &mut self,
        request: &Request<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
        first: usize,
    ) -> Result<(), RequestError> {
        check_size(request)?;
        self.take_mode.check_request(request)?;
        // Nearly all requests have one item, which needs no loop.
        match request.items {
            [item] if item.limit.is_none() => self.add_matching_rules(request, 0, item, rules, scratch, first),
            items => self.add_each_item(request, items, rules, scratch, first),
        }
    }

    #[inline(never)]
    fn add_each_item(
        &mut self,
        request: &Request<'_>,
        items: &[Item<'_>],
        rules: &RuleSet,
        scratch: &mut Scratch,
        first: usize,
    ) -> Result<(), RequestError> {
        let first_match = self.item_matches.len();
        for (index, item) in items.iter().enumerate() {
            match &item.limit {
                Some(inline) => self.add_inline(request, index, item, inline, first)?,
                None => self.add_matching_rules(request, index, item, rules, scratch, first)?,
            }
            let (given, max) = (self.item_matches.len() - first_match, Request::MAX_MATCHES);
            if given > max && request.items.len() > 1 {
                return Err(RequestError::TooMany { what: "rules matched by the items of a request", given, max });
            }
        }
        Ok(())
    }

    /// Marks the charges of replaced rules. A replaced rule still replaces the rules in its own `replaces`.
    fn mark_replaced_rules(&mut self, rules: &RuleSet, first: usize, replaced: &mut Vec<u32>) {
        replaced.clear();
        for rule in self.charges[first..].iter().filter_map(PlannedCharge::rule) {
            let special = rules.rules().get(rule as usize).and_then(ActiveRule::special);
            replaced.extend_from_slice(special.map_or(&[], |special| &special.replaces));
        }
        replaced.sort_unstable();
        for planned in &mut self.charges[first..] {
            if planned.rule().is_some_and(|rule| replaced.binary_search(&rule).is_ok()) {
                planned.mark_omitted();
            }
        }
    }

    fn add_matching_rules(
        &mut self,
        request: &Request<'_>,
        index: usize,
        item: &Item<'_>,
        rules: &RuleSet,
        scratch: &mut Scratch,
        first: usize,
    ) -> Result<(), RequestError> {
        let Some(domain) = rules.find_domain(request.domain) else {
            let domain = String::from_utf8_lossy(request.domain).chars().take(64).collect();
            return Err(RequestError::UnknownDomain { domain });
        };
        domain.index.find(item.attributes, &mut scratch.rules);
        let Scratch { rules: matched, overrides, .. } = scratch;
        let (given, max) = (matched.rules().len(), Item::MAX_RULES);
        if given > max {
            return Err(RequestError::TooMany { what: "rules that match the request", given, max });
        }
        if let Some(number) = rules.find_allow_or_deny(domain, matched, item.attributes, self.now()) {
            self.plain = false;
            self.add_special_rule(
                &MatchContext { index, item, rules, number, first, items: request.items.len() },
                matched,
                overrides,
            );
            return Ok(());
        }
        let stripe = Stripe::of_thread();
        for number in matched.rules() {
            let rule = &rules.rules()[*number as usize];
            rule.meter.prefetch(stripe);
            self.plain &= rule.plain;
            if rule.special().is_some() {
                let matching = MatchContext { index, item, rules, number: *number, first, items: request.items.len() };
                self.add_special_rule(&matching, matched, overrides);
                continue;
            }
            let key_start = self.keys.len();
            rule.push_key_prefix(&mut self.keys);
            rule.push_values(&mut self.keys, matched, item.attributes);
            let cost = item.cost.unwrap_or(rule.cost);
            let charge = match self.find_same_key(first, key_start, request.items.len()) {
                Some(same) => self.merge_cost(same, cost, key_start),
                None => self.push_rule(*number, rule, cost, key_start),
            };
            self.item_matches.push(ItemMatch { item: index as u32, charge });
        }
        Ok(())
    }

    fn add_inline(
        &mut self,
        request: &Request<'_>,
        index: usize,
        item: &Item<'_>,
        inline: &InlineLimit<'_>,
        first: usize,
    ) -> Result<(), RequestError> {
        let key_start = self.keys.len();
        key::push_inline(&mut self.keys, request.domain, inline.key);
        let cost = item.cost.unwrap_or(Cost::ONE);
        let entry = inline.limits.entry();
        let charge = match self.find_same_key(first, key_start, request.items.len()) {
            Some(same) => {
                let other = self.limits.inline_limit_of(&self.charges[same as usize]);
                if other.is_none_or(|other| other.id != entry.id) {
                    let why = "two items with the same key have different limits".into();
                    return Err(RequestError::BadLimit { why });
                }
                self.merge_cost(same, cost, key_start)
            }
            None => {
                self.limits.inline.push(entry.clone());
                let by = LimitSource::Inline(self.limits.inline.len() as u32 - 1);
                self.push_planned(self.new_charge(by, (0, 0), cost, key_start), &entry.refill_times)
            }
        };
        self.item_matches.push(ItemMatch { item: index as u32, charge });
        Ok(())
    }

    /// Returns the earlier charge of this request whose key equals the key that begins at `key_start`. Keys can be
    /// equal only if the request has several items.
    #[inline]
    fn find_same_key(&mut self, first: usize, key_start: usize, items: usize) -> Option<u32> {
        if items == 1 { None } else { self.find_charge_with_key(first, key_start) }
    }

    /// Finds the earlier charge in `charge_of_hash`. If there is none, the caller adds a charge with the key next, and
    /// that charge is recorded.
    #[inline(never)]
    fn find_charge_with_key(&mut self, first: usize, key_start: usize) -> Option<u32> {
        let key = &self.keys[key_start..];
        let (next, hash) = (self.charges.len(), self.key_hasher.hash_one(key));
        let recorded = self.charge_of_hash.get(&hash).copied();
        // The map may contain charges of an earlier request, or of an invalid request whose charges were removed.
        let Some(charge) = recorded.filter(|charge| (first..next).contains(&(*charge as usize))) else {
            self.charge_of_hash.insert(hash, next as u32);
            return None;
        };
        if self.key(&self.charges[charge as usize]) == key {
            return Some(charge);
        }
        // Rare: two keys have the same hash.
        let same = self.charges[first..].iter().position(|planned| self.key(planned) == key)?;
        Some((first + same) as u32)
    }

    /// Adds the cost of another item to a charge with the same key.
    fn merge_cost(&mut self, charge: u32, cost: Cost, key_start: usize) -> u32 {
        self.keys.truncate(key_start);
        let planned = &mut self.charges[charge as usize];
        planned.cost = Cost::new(planned.cost.get().saturating_add(cost.get()));
        charge
    }

    /// Adds the charge of a special rule, if the rule's remaining conditions hold.
    #[inline(never)]
    fn add_special_rule(
        &mut self,
        matching: &MatchContext<'_>,
        matched: &CandidateRules,
        overrides: &mut CandidateRules,
    ) {
        let MatchContext { index, item, rules, number, first, items } = *matching;
        let rule = &rules.rules()[number as usize];
        let Some(special) = rule.special() else { return };
        if !special.applies(self.now(), matched, item.attributes) {
            return;
        }
        let key_start = self.keys.len();
        rule.push_key_prefix(&mut self.keys);
        if !special.push_values(&mut self.keys, matched, item.attributes) {
            rule.push_values(&mut self.keys, matched, item.attributes);
        }
        let cost = item.cost.or_else(|| special.cost(matched, item.attributes, overrides)).unwrap_or(rule.cost);
        let charge = match self.find_same_key(first, key_start, items) {
            Some(same) => self.merge_cost(same, cost, key_start),
            None => self.push_special_rule(matching, overrides, cost, key_start),
        };
        self.item_matches.push(ItemMatch { item: index as u32, charge });
    }

    fn push_special_rule(
        &mut self,
        matching: &MatchContext<'_>,
        matched: &mut CandidateRules,
        cost: Cost,
        key_start: usize,
    ) -> u32 {
        let MatchContext { item, rules, number, .. } = *matching;
        let rule = &rules.rules()[number as usize];
        let Some(special) = rule.special() else { return self.push_rule(number, rule, cost, key_start) };
        let now = self.now();
        let overrides = special.overrides.as_ref();
        let overridden = overrides.and_then(|overrides| {
            let index = overrides.first_matching(item.attributes, matched, now)?;
            Some(&overrides.get(index).effect)
        });
        let (by, rule_limits) = match (special.allow_or_deny, overridden, &rule.rule_limits) {
            (Some(AllowOrDeny::Deny), _, _) | (_, Some(OverrideEffect::Deny), _) => (LimitSource::Denied(number), None),
            (Some(AllowOrDeny::Allow), _, _) | (_, Some(OverrideEffect::Unlimited), _) | (_, None, None) => {
                (LimitSource::Unlimited(number), None)
            }
            (None, Some(OverrideEffect::Limit(rule_limits)), _) => {
                self.limits.overriding.push(rule_limits.clone());
                (LimitSource::Overridden(number, self.limits.overriding.len() as u32 - 1), Some(rule_limits))
            }
            (None, None, Some(rule_limits)) => (LimitSource::Rule(number), Some(rule_limits)),
        };
        let key_end = self.keys.len();
        let shadow = rule.is_shadow() || special.is_shadow_for(&self.keys[key_start..]);
        let given = self.given.len() as u32;
        let calendars = rule_limits.map_or(&[][..], |rule_limits| &rule_limits.calendars);
        self.given.extend(calendars.iter().map(|calendar| calendar.window(now)));
        let refill_times = rule_limits.map_or(&[][..], |rule_limits| rule_limits.refill_times());
        let planned = self.new_charge(by, rule.id_range(), cost, key_start);
        let (postpaid, on_fault) = (special.postpaid, rule.on_fault);
        let charge = self.push_planned(PlannedCharge { given, shadow, postpaid, on_fault, ..planned }, refill_times);
        self.metadata.extend(special.metadata.iter().map(|metadata| (charge, metadata.clone())));
        if special.ban.is_some() && !shadow && rule_limits.is_some() {
            let ban_start = self.keys.len();
            key::push_side_key(&mut self.keys, key_start..key_end, key::SideCounter::Ban);
            self.push_planned(self.new_charge(LimitSource::Ban(number), rule.id_range(), Cost::ZERO, ban_start), &[]);
        }
        charge
    }

    #[inline(always)]
    fn push_rule(&mut self, number: u32, rule: &ActiveRule, cost: Cost, key_start: usize) -> u32 {
        let (by, refill_times) = match &rule.rule_limits {
            Some(rule_limits) => (LimitSource::Rule(number), rule_limits.refill_times()),
            None => (LimitSource::Unlimited(number), &[][..]),
        };
        let planned = self.new_charge(by, rule.id_range(), cost, key_start);
        self.push_planned(PlannedCharge { shadow: rule.is_shadow(), on_fault: rule.on_fault, ..planned }, refill_times)
    }

    /// Creates a charge for the key that begins at `key_start`; `id` is the range of the rule id in that key.
    #[inline(always)]
    fn new_charge(&self, by: LimitSource, id: (u16, u16), cost: Cost, key_start: usize) -> PlannedCharge {
        let start = key_start as u32;
        PlannedCharge {
            by,
            key: start..self.keys.len() as u32,
            id,
            refill_time: None,
            refill_times: 0..0,
            given: 0,
            cost,
            shadow: false,
            postpaid: false,
            exhausted: false,
            on_fault: OnFault::Local,
            answered: AnswerSource::Unanswered,
        }
    }

    #[inline(always)]
    fn push_planned(&mut self, mut planned: PlannedCharge, refill_times: &[Option<Nanos>]) -> u32 {
        match refill_times {
            [] => {}
            [time] => planned.refill_time = *time,
            several => {
                let start = self.refill_times.len() as u32;
                self.refill_times.extend_from_slice(several);
                planned.refill_times = start..self.refill_times.len() as u32;
            }
        }
        self.charges.push(planned);
        self.charges.len() as u32 - 1
    }
}
