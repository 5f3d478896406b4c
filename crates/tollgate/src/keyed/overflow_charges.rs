//! Records charges to the overflow entry, to bound its refunds.

use std::collections::VecDeque;

use crate::fingerprint::Fingerprint;

/// The last charges that were not refunded, oldest first.
#[derive(Debug)]
pub(super) struct OverflowCharges {
    charges: VecDeque<(Fingerprint, u64)>,
}

impl Default for OverflowCharges {
    fn default() -> Self {
        Self { charges: VecDeque::with_capacity(Self::MAX_CHARGES) }
    }
}

impl OverflowCharges {
    /// Maximum number of charges, equal to the maximum number of leases of a limit. A further charge replaces the
    /// oldest charge.
    pub(super) const MAX_CHARGES: usize = 1_024;

    pub(super) fn add(&mut self, fingerprint: Fingerprint, cost: u64) {
        if self.charges.len() >= Self::MAX_CHARGES {
            self.charges.pop_front();
        }
        self.charges.push_back((fingerprint, cost));
    }

    pub(super) fn has(&self, fingerprint: Fingerprint) -> bool {
        self.charges.iter().any(|(of, _)| *of == fingerprint)
    }

    /// Removes up to `cost` from the key's charges, and returns the removed amount.
    pub(super) fn remove(&mut self, fingerprint: Fingerprint, cost: u64) -> u64 {
        let mut wanted = cost;
        while wanted > 0
            && let Some(place) = self.charges.iter().position(|(of, _)| *of == fingerprint)
            && let Some((_, taken)) = self.charges.get_mut(place)
        {
            let part = wanted.min(*taken);
            (*taken, wanted) = (*taken - part, wanted - part);
            if *taken == 0 {
                self.charges.remove(place);
            }
        }
        cost - wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refunds_are_bounded_by_charges_and_the_oldest_charge_is_dropped() {
        let [a, b] = [1, 2].map(|low| Fingerprint { low, ..Fingerprint::default() });
        let mut overflow_charges = OverflowCharges::default();
        [(a, 2), (b, 3), (a, 4)].iter().for_each(|(fingerprint, cost)| overflow_charges.add(*fingerprint, *cost));
        assert_eq!(
            [(a, 3), (a, 9), (a, 1), (b, 2)].map(|(fingerprint, cost)| overflow_charges.remove(fingerprint, cost)),
            [3, 3, 0, 2]
        );
        assert!(overflow_charges.has(b) && !overflow_charges.has(a));
        (0..OverflowCharges::MAX_CHARGES).for_each(|_| overflow_charges.add(a, 1));
        assert_eq!((overflow_charges.has(b), overflow_charges.charges.len()), (false, OverflowCharges::MAX_CHARGES));
    }
}
