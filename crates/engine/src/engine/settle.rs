//! Reservations: reserve an estimated cost first, and settle at the actual cost later.
//!
//! A reservation is a check whose receipt is kept. Committing it refunds the excess or charges the shortfall;
//! cancelling it refunds everything. The receipt is the whole state of a reservation, so a reservation needs no memory,
//! survives restarts, and can be settled by any node. A reservation that is never settled counts as committed: its
//! usage expires as the limit refills, and a settlement after that refunds nothing.
//!
//! The shortfall is charged either to all enforced limits of the receipt or to none of them. The shortfall may put a
//! limit into debt, up to its `max_debt`. If the enforced limits accept the shortfall, shadow rules are charged as a
//! separate group.

use std::sync::atomic::Ordering;

use tollgate::core::{Ask, Cost, Window};

use super::arrears::Admission;
use super::undo::{CurrentLimits, current_limits_of, inline_limits};
use super::{Engine, EngineError, RulesInForce, undo};
use crate::inline::InternedLimits;
use crate::receipt::{Receipt, ReceiptEntry};
use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, StoreVerb};

/// The result of committing a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitResult {
    /// The smallest refund that any counter accepted; zero if the actual cost was not below the reservation.
    pub refunded: Cost,
    /// The largest amount that was charged to any counter beyond the reservation; zero if any counter refused the
    /// shortfall.
    pub charged: Cost,
    /// The shortfall that was not charged, because a limit would exceed its `max_debt`.
    pub unpaid: Cost,
}

/// The shortfall of one counter, and the limits and windows under which it is charged.
struct Shortfall<'a> {
    taken: &'a ReceiptEntry,
    current: CurrentLimits<'a>,
    share: Option<InternedLimits>,
    windows: Vec<Window>,
    cost: Cost,
}

impl Shortfall<'_> {
    fn to_charge(&self) -> Charge<'_> {
        let (limits_id, limits, earlier) = match &self.share {
            Some(share) => (share.entry().id, &share.entry().limits, &[][..]),
            None => (self.current.id, self.current.limits, self.current.earlier),
        };
        let (key, ask) = (&*self.taken.key, Ask::Regardless(self.cost));
        let (windows, consistency) = (&*self.windows, self.current.consistency);
        Charge { key, limits_id, limits, earlier, ask, stamps: None, windows, consistency }
    }
}

/// See [`Engine::commit`].
pub(super) async fn commit<S: Store, F: Store>(
    engine: &Engine<S, F>,
    receipt: &Receipt,
    cost: Cost,
) -> Result<CommitResult, EngineError> {
    let mut settled = CommitResult::default();
    let too_much = receipt.entries.iter().filter(|taken| taken.cost > cost).map(|taken| {
        let rest = taken.cost.get() - cost.get();
        ReceiptEntry { cost: Cost::new(rest), ..taken.clone() }
    });
    let too_much = Receipt { entries: too_much.collect() };
    if !too_much.is_empty() {
        settled.refunded = undo::refund(engine, &too_much).await?;
    }
    if receipt.entries.iter().any(|taken| taken.cost < cost) {
        (settled.charged, settled.unpaid) = charge_shortfall(engine, receipt, cost).await?;
    }
    Ok(settled)
}

/// Charges the shortfall either to all enforced counters or to none of them. Returns the amounts charged and unpaid.
async fn charge_shortfall<S: Store, F: Store>(
    engine: &Engine<S, F>,
    receipt: &Receipt,
    cost: Cost,
) -> Result<(Cost, Cost), EngineError> {
    let nodes = engine.nodes.load(Ordering::Relaxed);
    let mut too_little: Vec<(&ReceiptEntry, Option<InternedLimits>)> = Vec::new();
    for taken in receipt.entries.iter().filter(|taken| taken.cost < cost) {
        too_little.push((taken, inline_limits(engine, taken)?));
    }
    let running = engine.running.load();
    let now = engine.time_if_needed(&running);
    let extra = too_little.iter().filter_map(|(taken, inline)| {
        let current = current_limits_of(taken, inline.as_ref(), &running)?;
        let share = taken.fallback.then(|| engine.shares.share_of_node(current.limits, nodes));
        let now = if taken.fallback { (engine.wall)() } else { now };
        let windows = current.calendars.iter().map(|calendar| calendar.window(now)).collect();
        Some(Shortfall { taken, current, share, windows, cost: Cost::new(cost.get() - taken.cost.get()) })
    });
    let extra: Vec<Shortfall<'_>> = extra.collect();
    let (mut charged, mut unpaid) = (Cost::ZERO, Cost::ZERO);
    // A receipt belongs to one request. Either the store or the fallback decided the request, so one of the two has no
    // charges.
    for fallback in [false, true] {
        let charges = |shadow: bool| -> Vec<Charge<'_>> {
            let here = |extra: &&Shortfall<'_>| extra.taken.fallback == fallback && extra.current.shadow == shadow;
            extra.iter().filter(here).map(Shortfall::to_charge).collect()
        };
        let (enforced, shadows) = (charges(false), charges(true));
        let most = enforced.iter().map(|charge| charge.ask.cost()).max().unwrap_or(Cost::ZERO);
        let mut answers = Answers::default();
        if !charge_group(engine, &enforced, fallback, &running, &mut answers).await? {
            unpaid = unpaid.max(most);
            continue;
        }
        charged = charged.max(most);
        if fallback {
            let here = extra.iter().filter(|extra| extra.taken.fallback && !extra.current.shadow);
            record_arrears(engine, here, &answers);
        }
        // Shadow rules do not affect the result, so a store error is only counted.
        if let Err(error) = charge_group(engine, &shadows, fallback, &running, &mut answers).await {
            engine.meters.count_store_error(&error);
        }
    }
    Ok((charged, unpaid))
}

/// Records the fallback's charges as arrears, which are charged to the store later.
fn record_arrears<'a, S: Store, F: Store>(
    engine: &Engine<S, F>,
    charged: impl Iterator<Item = &'a Shortfall<'a>>,
    answers: &Answers,
) {
    let Ok(group) = answers.group(0) else { return };
    for (extra, answer) in charged.zip(group.charges()) {
        if let Some(share) = &extra.share {
            let admitted = Admission {
                key: &extra.taken.key,
                limits_id: extra.current.id,
                limits: extra.current.limits,
                share,
                windows: &extra.windows,
                taken: answer.taken,
                into_debt: true,
                reports: group.reports(answer),
            };
            engine.arrears.add(&admitted, (engine.mono)().as_nanos());
        }
    }
}

/// Sends one group to the store or to the fallback. Returns whether the group was admitted; `true` for an empty group.
async fn charge_group<S: Store, F: Store>(
    engine: &Engine<S, F>,
    charges: &[Charge<'_>],
    fallback: bool,
    running: &RulesInForce,
    answers: &mut Answers,
) -> Result<bool, StoreError> {
    if charges.is_empty() {
        return Ok(true);
    }
    answers.clear();
    let groups = [Group { verb: StoreVerb::Check, charges }];
    if fallback {
        let limits_by_id = engine.shares.limits_by_id();
        engine.fallback.run(Batch { limit_table: &*limits_by_id, groups: &groups }, answers).await;
    } else {
        engine.store.run(Batch { limit_table: running, groups: &groups }, answers).await;
    }
    Ok(answers.group(0)?.outcome().is_admitted())
}
