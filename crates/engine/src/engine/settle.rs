//! Reservations: a cost that is known only afterwards is reserved first and settled then.
//!
//! A reservation is a check whose receipt is kept. Committing it refunds what was reserved too much, or charges what was reserved
//! too little; cancelling it refunds all of it. The receipt is the whole state of a reservation, so it costs no memory,
//! survives every restart, and any node can settle it. A reservation that is never settled counts as committed when it was
//! made: it expires as what it took refills, and settling it later finds nothing to refund.
//!
//! The extra is charged like any request: to all enforced limits of the receipt, into debt as far as they allow, or to none of
//! them; and to the shadows, as a group of their own, if the enforced limits took it.

use std::sync::atomic::Ordering;

use tollgate::core::{Ask, Cost, Window};

use super::undo::{Under, limits_of, sent_limits};
use super::{Engine, EngineError, Running};
use crate::receipt::{Receipt, Taken};
use crate::sent::SentLimits;
use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, Verb};

/// What came of committing a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// What was given back, the least that any counter accepted; nothing if the actual cost was as much or more.
    pub refunded: Cost,
    /// What was charged beyond the reservation, the most of any counter; nothing if it did not fit all of them.
    pub charged: Cost,
    /// What should have been charged beyond the reservation and was not, because a limit would owe more than its `max_debt`.
    pub unpaid: Cost,
}

/// The extra of one counter, with the limits and windows to charge it under.
struct Extra<'a> {
    taken: &'a Taken,
    under: Under<'a>,
    share: Option<SentLimits>,
    windows: Vec<Window>,
    cost: Cost,
}

impl Extra<'_> {
    fn charge(&self) -> Charge<'_> {
        let (numbers, limits) = match &self.share {
            Some(share) => (share.sheet().id, &share.sheet().limits),
            None => (self.under.id, self.under.limits),
        };
        let (key, ask) = (&*self.taken.key, Ask::Regardless(self.cost));
        Charge { key, numbers, limits, earlier: &[], ask, stamps: None, windows: &self.windows }
    }
}

impl<S: Store, F: Store> Engine<S, F> {
    /// Settles what a decision took at the cost that the request really had.
    ///
    /// # Errors
    /// When the store does not answer. What was reserved too much may then have been refunded, and what was reserved too little
    /// may have been charged, or not.
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
            (settled.charged, settled.unpaid) = self.charge_extra(receipt, cost).await?;
        }
        Ok(settled)
    }

    /// Charges what was reserved too little, to all enforced counters or to none. Returns what was charged and what was not.
    async fn charge_extra(&self, receipt: &Receipt, cost: Cost) -> Result<(Cost, Cost), EngineError> {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let mut too_little: Vec<(&Taken, Option<SentLimits>)> = Vec::new();
        for taken in receipt.taken.iter().filter(|taken| taken.cost < cost) {
            too_little.push((taken, sent_limits(self, taken)?));
        }
        let running = self.running.load();
        let now = self.time_for(&running);
        let extra = too_little.iter().filter_map(|(taken, sent)| {
            let under = limits_of(taken, sent.as_ref(), &running)?;
            let share = taken.fallback.then(|| self.shares.of(under.limits, nodes));
            let calendars = if taken.fallback { &[][..] } else { under.calendars };
            let windows = calendars.iter().map(|calendar| calendar.window(now)).collect();
            Some(Extra { taken, under, share, windows, cost: Cost::new(cost.get() - taken.cost.get()) })
        });
        let extra: Vec<Extra<'_>> = extra.collect();
        let (mut charged, mut unpaid) = (Cost::ZERO, Cost::ZERO);
        // A receipt is of one request, which was decided by the store or without it, so one of the two has nothing to do.
        for fallback in [false, true] {
            let charges = |shadow: bool| -> Vec<Charge<'_>> {
                let here = |extra: &&Extra<'_>| extra.taken.fallback == fallback && extra.under.shadow == shadow;
                extra.iter().filter(here).map(Extra::charge).collect()
            };
            let (enforced, shadows) = (charges(false), charges(true));
            let most = enforced.iter().map(|charge| charge.ask.cost()).max().unwrap_or(Cost::ZERO);
            if !self.charge_group(&enforced, fallback, &running).await? {
                unpaid = unpaid.max(most);
                continue;
            }
            charged = charged.max(most);
            // Shadows change nothing, so neither does a store that does not answer for them.
            if let Err(error) = self.charge_group(&shadows, fallback, &running).await {
                self.note(&error);
            }
        }
        Ok((charged, unpaid))
    }

    /// Charges one group, in the store or in the fallback. Returns whether it was admitted; an empty one is.
    async fn charge_group(
        &self,
        charges: &[Charge<'_>],
        fallback: bool,
        running: &Running,
    ) -> Result<bool, StoreError> {
        if charges.is_empty() {
            return Ok(true);
        }
        let (mut answers, groups) = (Answers::default(), [Group { verb: Verb::Check, charges }]);
        if fallback {
            let numbers = self.shares.folder();
            self.fallback.run(Batch { numbers: &*numbers, groups: &groups }, &mut answers).await;
        } else {
            self.store.run(Batch { numbers: running, groups: &groups }, &mut answers).await;
        }
        Ok(answers.group(0)?.outcome().is_admitted())
    }
}
