//! Reservations: what is known to weigh something, and afterwards turns out to have weighed something else.
//!
//! A reservation is a check whose receipt is kept. To commit it is to give back what was too much, or to charge what was too
//! little; to cancel it is to give all of it back. The receipt is all there is to remember, so it costs no memory, survives
//! every restart, and any node can settle it. One that nobody settles counts as committed from the beginning: it expires as
//! what it took comes back with time, and what is settled after that finds nothing left to give back.

use std::sync::atomic::Ordering;

use tollgate::{Ask, Cost, Window};

use super::undo::{limits_of, sent_limits};
use super::{Engine, EngineError};
use crate::receipt::{Receipt, Taken};
use crate::sent::SentLimits;
use crate::store::{Answers, Batch, Charge, Group, Store, Verb};

/// What came of committing a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// What was given back, the least that any counter accepted; nothing if it had weighed as much or more.
    pub refunded: Cost,
    /// What was charged beyond the reservation, the most of any counter.
    pub charged: Cost,
    /// What should have been charged beyond it, and would have been a deeper debt than a limit allows.
    pub unpaid: Cost,
}

/// What is still to be charged, with the limits and windows to do it under.
struct Owed<'a> {
    taken: &'a Taken,
    sent: Option<SentLimits>,
    part: Option<SentLimits>,
    windows: Vec<Window>,
    more: Cost,
}

impl<S: Store, F: Store> Engine<S, F> {
    /// Settles what a decision took at what the request really weighed.
    ///
    /// # Errors
    /// When the store does not do it. What was too much may then have been given back, and what was too little be charged,
    /// or not.
    pub async fn commit(&self, receipt: &Receipt, cost: Cost) -> Result<Settled, EngineError> {
        let mut settled = Settled::default();
        let too_much = receipt.taken.iter().filter(|taken| taken.cost > cost).map(|taken| {
            let rest = taken.cost.get() - cost.get();
            Taken { cost: Cost::new(rest), ..taken.clone() }
        });
        let too_much = Receipt { taken: too_much.collect() };
        if !too_much.is_empty() {
            settled.refunded = self.refund(&too_much).await?;
        }
        if receipt.taken.iter().any(|taken| taken.cost < cost) {
            self.charge_more(receipt, cost, &mut settled).await?;
        }
        Ok(settled)
    }

    /// Charges what was too little, each counter by itself.
    async fn charge_more(&self, receipt: &Receipt, cost: Cost, settled: &mut Settled) -> Result<(), EngineError> {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let mut owed: Vec<Owed<'_>> = Vec::new();
        for taken in receipt.taken.iter().filter(|taken| taken.cost < cost) {
            let more = Cost::new(cost.get() - taken.cost.get());
            owed.push(Owed { taken, sent: sent_limits(self, taken)?, part: None, windows: Vec::new(), more });
        }
        let running = self.running.load();
        let now = self.time_for(&running);
        for owed in &mut owed {
            let Some(under) = limits_of(owed.taken, owed.sent.as_ref(), &running) else { continue };
            if owed.taken.fallback {
                owed.part = Some(self.shares.of(under.limits, nodes));
            }
            owed.windows = under.calendars.iter().map(|calendar| calendar.window(now)).collect();
        }
        let charges = |fallback: bool| -> Vec<Charge<'_>> {
            let here = owed.iter().filter(|owed| owed.taken.fallback == fallback);
            let charges = here.filter_map(|owed| {
                let under = limits_of(owed.taken, owed.sent.as_ref(), &running)?;
                let (numbers, limits) = match &owed.part {
                    Some(part) => (part.sheet().id, &part.sheet().limits),
                    None => (under.id, under.limits),
                };
                let (key, ask) = (&*owed.taken.key, Ask::Regardless(owed.more));
                let windows = if fallback { &[][..] } else { &owed.windows };
                Some(Charge { key, numbers, limits, earlier: &[], ask, stamps: None, windows })
            });
            charges.collect()
        };
        let (by_store, by_fallback) = (charges(false), charges(true));
        let mut answers = Answers::default();
        if !by_store.is_empty() {
            let batch = Batch { numbers: &**running, groups: &one_by_one(&by_store) };
            self.store.run(batch, &mut answers).await;
            settled.add(&by_store, &answers)?;
        }
        if !by_fallback.is_empty() {
            answers.clear();
            let numbers = self.shares.folder();
            let batch = Batch { numbers: &*numbers, groups: &one_by_one(&by_fallback) };
            self.fallback.run(batch, &mut answers).await;
            settled.add(&by_fallback, &answers)?;
        }
        Ok(())
    }
}

/// Each charge a group of its own.
fn one_by_one<'a>(charges: &'a [Charge<'a>]) -> Vec<Group<'a>> {
    charges.chunks(1).map(|charges| Group { verb: Verb::Check, charges }).collect()
}

impl Settled {
    fn add(&mut self, charges: &[Charge<'_>], answers: &Answers) -> Result<(), EngineError> {
        for (place, charge) in charges.iter().enumerate() {
            let group = answers.group(place)?;
            let taken = group.charges().first().map_or(Cost::ZERO, |answer| answer.taken);
            self.charged = self.charged.max(taken);
            if !group.outcome().is_allowed() {
                self.unpaid = self.unpaid.max(charge.ask.cost());
            }
        }
        Ok(())
    }
}
