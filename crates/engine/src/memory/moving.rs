//! Carrying what was spent from a table to another, when a key's limits come to need longer or shorter states.
//!
//! Tables do not hand out their states, and the old one may be many times as long as the new. What has to arrive is how much
//! of each limit was used up, so the new state is written by limits that are the new ones in everything but what a new
//! key has: as much as is left. Fractions of a unit, and when exactly things were used, are lost in favour of the limit: what
//! was used counts as used just now. Leases lose their numbers: so many are taken anew, and nobody can give them back before
//! they end.

use tollgate::clock::Clock;
use tollgate::{Algorithm, Ask, Charge, Cost, Ledger, Limit, Limits, Numbers, Report, Terms};

use crate::ruleset::SPARE_ID;

/// The id of the limits that a state is written under on its way. No rule and no request has it.
const ON_THE_WAY: u32 = SPARE_ID;

/// Moves what the key has spent under `old` in the table `from` to the table `to`, under the limits of the charge.
pub(super) fn carry<C: Clock>(from: &Ledger<C>, to: &Ledger<C>, numbers: &dyn Numbers, old: u32, charge: &Charge<'_>) {
    let (Some(old_limits), Some(new_limits)) = (numbers.get(old), numbers.get(charge.numbers)) else { return };
    let there = Charge { numbers: old, limits: None, ask: Ask::Exactly(Cost::ZERO), ..*charge };
    let here = Charge { numbers: charge.numbers, ..there };
    let spent = spent_by(from, numbers, &there, old_limits);
    if spent.iter().all(|spent| *spent == 0) {
        return;
    }
    let already = spent_by(to, numbers, &here, new_limits);
    let spent: Vec<(&Limit, u64)> = new_limits
        .as_slice()
        .iter()
        .enumerate()
        .map(|(place, limit)| {
            let spent = [&spent, &already].map(|spent| spent.get(place).copied().unwrap_or(0));
            (limit, spent[0].saturating_add(spent[1]).min(limit.capacity()))
        })
        .collect();
    // Leases can only be taken, and taking is from all limits at once: so the others get as much more beforehand.
    let held = spent.iter().filter(|(limit, _)| is_leased(limit)).map(|(_, spent)| *spent).max().unwrap_or(0);
    let left = spent.iter().map(|(limit, spent)| {
        let left = limit.capacity().saturating_sub(*spent).saturating_add(held).min(limit.capacity());
        with_initial(limit, left)
    });
    let Ok(left) = Limits::new(left) else { return };
    let numbers = Overlay { numbers, on_the_way: &left };
    let on_the_way = Charge { numbers: ON_THE_WAY, ..here };
    // Makes an entry if there is none, and writes it in any case.
    to.decide(&numbers, &[on_the_way], |_, _| ());
    to.reset(&numbers, &on_the_way);
    // And under the id it is going to be found by.
    to.decide(&numbers, &[Charge { ask: Ask::UpTo(Cost::new(held)), ..here }], |_, _| ());
    from.reset(&numbers, &there);
}

/// How much of each limit is used up; nothing if the key is as good as new.
fn spent_by<C: Clock>(table: &Ledger<C>, numbers: &dyn Numbers, charge: &Charge<'_>, limits: &Limits) -> Vec<u64> {
    let reports: Vec<Report> = table.peek(numbers, charge, |seat| seat.reports(0).collect());
    let as_new = reports.iter().zip(limits.as_slice()).all(|(report, limit)| report.remaining == initial_of(limit));
    reports.iter().map(|report| if as_new { 0 } else { report.limit.saturating_sub(report.remaining) }).collect()
}

/// What a new key has.
fn initial_of(limit: &Limit) -> u64 {
    match limit.terms() {
        Terms::TokenBucket(bucket) | Terms::LeakyBucket { bucket, .. } => bucket.initial,
        Terms::IntervalBucket { initial, .. } => initial,
        Terms::FixedWindow { window, .. }
        | Terms::SlidingWindow(window)
        | Terms::SlidingSlices { window, .. }
        | Terms::SlidingLog { window, .. } => window.initial,
        Terms::Concurrency { .. } | Terms::Unlimited | Terms::DenyAll => limit.capacity(),
    }
}

fn is_leased(limit: &Limit) -> bool {
    matches!(limit.terms(), Terms::Concurrency { .. })
}

fn with_initial(limit: &Limit, initial: u64) -> Limit {
    let changed = match limit {
        Limit::TokenBucket(bucket) => bucket.initial(initial).map(Limit::from),
        Limit::LeakyBucket(bucket) => bucket.initial(initial).map(Limit::from),
        Limit::IntervalBucket(bucket) => bucket.initial(initial).map(Limit::from),
        Limit::FixedWindow(window) => window.initial(initial).map(Limit::from),
        Limit::SlidingWindow(window) => window.initial(initial).map(Limit::from),
        Limit::SlidingSlices(slices) => slices.initial(initial).map(Limit::from),
        Limit::SlidingLog(log) => log.initial(initial).map(Limit::from),
        other => Ok(*other),
    };
    changed.unwrap_or(*limit)
}

/// The known numbers, and those on the way.
struct Overlay<'a> {
    numbers: &'a dyn Numbers,
    on_the_way: &'a Limits,
}

impl Numbers for Overlay<'_> {
    fn get(&self, id: u32) -> Option<&Limits> {
        if id == ON_THE_WAY { Some(self.on_the_way) } else { self.numbers.get(id) }
    }
}
