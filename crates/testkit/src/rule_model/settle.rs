//! Operations after a decision: refunds, reservations, leases and resets. These operations use the state's own
//! parameters, even if the rule has changed since, and ignore charges to rules that no longer have limits. Only a
//! commit above the reserved amount is a new charge.

use super::Verb;
use super::decide::{Charge, Key, RuleModel, key_of};
use super::limit::{Ask, Limit};
use super::rules::{Effect, Request};
use super::states::Stamp;

/// Charges of a decision, for a refund.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Charges by counter.
    pub taken: Vec<CounterCharge>,
}

/// A charge to one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterCharge {
    /// Id of the rule.
    pub rule: String,
    /// Key of the counter.
    pub key: Key,
    /// Amount charged.
    pub cost: u64,
    /// Stamps by limit.
    pub stamps: Vec<Stamp>,
    /// Whether the rule was a shadow rule.
    pub shadow: bool,
    /// The limits of the override that applied. `None`: the rule's own limits.
    pub limits: Option<Vec<Limit>>,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Refunded amount: the reserved amount beyond the actual cost.
    pub refunded: u64,
    /// Charged amount: the actual cost beyond the reserved amount.
    pub charged: u64,
    /// Actual cost beyond the reserved amount that could not be charged.
    pub unpaid: u64,
}

impl RuleModel {
    /// Returns whether the receipt's own slot has ended, so that the receipt may identify the slot of another
    /// request.
    pub fn is_ambiguous(&self, receipt: &Receipt) -> bool {
        receipt.taken.iter().any(|taken| {
            let states = self.counters.get(&taken.key).into_iter().flatten();
            states.zip(&taken.stamps).any(|(state, stamp)| state.is_ambiguous(self.at, *stamp))
        })
    }

    /// Refunds a decision's charges. Returns the smallest amount that any counter accepted.
    pub fn refund(&mut self, receipt: &Receipt) -> u64 {
        let known: Vec<&CounterCharge> = receipt.taken.iter().filter(|taken| self.limits_of(taken).is_some()).collect();
        let mut least = None;
        for taken in known {
            let at = self.at;
            let states = self.counters.get_mut(&taken.key).map_or(&mut [][..], |states| states);
            let refunds =
                states.iter_mut().zip(&taken.stamps).map(|(state, stamp)| state.refund(at, taken.cost, Some(*stamp)));
            let accepted = refunds.min().unwrap_or(0);
            least = Some(least.map_or(accepted, |least: u64| least.min(accepted)));
        }
        least.unwrap_or(0)
    }

    /// Settles a reservation at its actual cost.
    pub fn commit(&mut self, receipt: &Receipt, cost: u64) -> Settlement {
        let too_much = receipt.taken.iter().filter(|taken| taken.cost > cost);
        let too_much = too_much.map(|taken| CounterCharge { cost: taken.cost - cost, ..taken.clone() }).collect();
        let refunded = self.refund(&Receipt { taken: too_much });
        // The missing amount is charged to all enforced counters or to none. Then the amount is charged to the shadow
        // rules as a separate group, which changes only their later reports.
        let (shadows, enforced): (Vec<CounterCharge>, Vec<CounterCharge>) =
            receipt.taken.iter().filter(|taken| taken.cost < cost).cloned().partition(|taken| taken.shadow);
        let most = enforced.iter().filter(|taken| self.limits_of(taken).is_some()).map(|taken| cost - taken.cost).max();
        let (charged, unpaid) = match (most, self.charge_missing_amount(&enforced, cost)) {
            (None, _) => (0, 0),
            (Some(most), true) => (most, 0),
            (Some(most), false) => return Settlement { refunded, charged: 0, unpaid: most },
        };
        self.charge_missing_amount(&shadows, cost);
        Settlement { refunded, charged, unpaid }
    }

    /// Charges the missing amount to all of these counters, into debt, as [`Verb::Charge`] does. If one counter
    /// refuses, charges nothing and returns `false`.
    fn charge_missing_amount(&mut self, taken: &[CounterCharge], cost: u64) -> bool {
        let owed = taken.iter().filter_map(|taken| {
            let limits = self.limits_of(taken)?;
            let rule = self.rules.find(&taken.rule)?.clone();
            Some(Charge { rule, key: taken.key.clone(), limits, cost: cost - taken.cost })
        });
        let owed: Vec<Charge> = owed.collect();
        self.start_new_keys(&owed);
        let passes = |charge: &Charge| {
            let mut limits = charge.limits.iter().enumerate();
            limits.all(|(position, limit)| {
                limit.passes(
                    &self.state_of_limit(&charge.key, position, &charge.limits),
                    self.at,
                    Ask::Regardless(charge.cost),
                )
            })
        };
        let all = owed.iter().all(passes);
        if all {
            owed.iter().for_each(|charge| self.apply_charge(charge, charge.cost, &mut Receipt::default()));
        } else {
            self.record_refusals_in_logs(&owed, Verb::Charge);
        }
        all
    }

    /// Extends the leases of a decision to their full length from now. Returns whether the decision has leases and all
    /// leases were still held.
    pub fn renew(&mut self, receipt: &Receipt) -> bool {
        let mut all = None;
        for taken in &receipt.taken {
            if self.limits_of(taken).is_none() || !taken.stamps.iter().any(|stamp| matches!(stamp, Stamp::Lease(..))) {
                continue;
            }
            let at = self.at;
            let states = self.counters.get_mut(&taken.key).into_iter().flatten();
            let renewed: Vec<bool> =
                states.zip(&taken.stamps).filter_map(|(state, stamp)| state.renew(at, *stamp)).collect();
            // A lease that was converted to another algorithm, or reset, is lost.
            all = Some(all.unwrap_or(true) && !renewed.is_empty() && !renewed.contains(&false));
        }
        all.unwrap_or(false)
    }

    /// Resets the counters of a request and returns their number.
    pub fn reset(&mut self, request: &Request) -> usize {
        // A rule that decides alone has no counters, and no other rule is evaluated.
        let Ok(matched) = self.deciding_rules(request) else { return 0 };
        let mut count = 0;
        for rule in &matched {
            let Effect::Limits(_) = rule.effect_for(request, self.at) else { continue };
            let key = key_of(rule, request);
            self.bans.remove(&key);
            count += 1;
            self.counters.remove(&key);
        }
        count
    }

    /// Returns the current limits of a counter: the limits of the override if the rule still has an equal override,
    /// otherwise the rule's own limits.
    fn limits_of(&self, taken: &CounterCharge) -> Option<Vec<Limit>> {
        let rule = self.rules.find(&taken.rule)?;
        let overrides = rule.overrides.iter().filter_map(|other| match rule.effect_of_override(other) {
            Effect::Limits(limits) => Some(limits),
            _ => None,
        });
        let overrides: Vec<Vec<Limit>> = overrides.collect();
        let same = taken.limits.as_ref().filter(|limits| overrides.contains(limits));
        let Effect::Limits(own) = &rule.effect else { return same.cloned() };
        Some(same.unwrap_or(own).clone())
    }
}
