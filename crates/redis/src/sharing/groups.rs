//! Groups with locally decided charges. This node decides the local charges first; then the store decides the remaining
//! charges as one group. If any charge is refused, or the store does not answer, local charges are put back.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{Ask, Cost, Outcome, Stamps, Time};
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreError, StoreVerb};
use tollgate_share::lease::Reservation;

use super::eventual::{DebtLimits, LocalDecision, ShardedTally, ViewError};
use super::leased::{Leases, NoLease};
use super::states::{StateQuery, read_states};
use super::sync::{charge_of, now_of};
use crate::request::{GroupKind, QueuedCharge, QueuedGroup, Route};
use crate::store::RedisStore;

/// A charge that this node decides from a view. Dropping the `ViewCharge` gives back the reserved amount.
struct ViewCharge<'a> {
    /// Position in the group.
    position: usize,
    charge: Charge<'a>,
    tally: &'a ShardedTally,
    taken: Option<LocalDecision>,
    /// The reserved amount.
    reserved: Cost,
}

impl ViewCharge<'_> {
    /// Confirms up to `most` of the reserved amount. The remaining amount is given back on drop.
    fn confirm(&mut self, most: Cost) {
        let kept = self.reserved.min(most);
        self.tally.confirm(&self.charge, kept);
        self.reserved = Cost::new(self.reserved.get() - kept.get());
    }
}

impl Drop for ViewCharge<'_> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.filter(|_| self.reserved > Cost::ZERO) {
            self.tally.release(&self.charge, self.reserved, taken.stamps);
        }
    }
}

/// A charge that this node decides from leases. Dropping the `LeasedCharge` puts back the reservation.
struct LeasedCharge<'a> {
    /// Position in the group.
    position: usize,
    charge: Charge<'a>,
    leases: &'a Leases,
    reservation: Option<Reservation>,
}

impl Drop for LeasedCharge<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = &self.reservation {
            self.leases.put_back(&self.charge, reservation);
        }
    }
}

impl RedisStore {
    /// Answers a batch with locally decided charges.
    pub(crate) async fn answer_shared(&self, batch: Batch<'_>, answers: &mut Answers) {
        let mut groups = batch.groups;
        while let [group, rest @ ..] = groups {
            let strict = groups.iter().take_while(|group| !super::is_shared(group)).count();
            if strict > 0 {
                self.ask_store(Batch { groups: &groups[..strict], ..batch }, answers).await;
                groups = &groups[strict..];
                continue;
            }
            match (group.verb, group.charges) {
                (StoreVerb::Check | StoreVerb::Peek, [charge]) => {
                    self.decide_single(batch, charge, groups, answers).await;
                }
                (StoreVerb::Check | StoreVerb::Peek, _) => self.decide_multiple(batch, group, answers).await,
                (StoreVerb::Refund, _) => self.refund_shared(batch, group, answers).await,
                (StoreVerb::Reset, _) => self.reset_shared(batch, group, answers).await,
                (StoreVerb::Renew, charges) => self.decide_strictly(batch, group.verb, charges, answers).await,
            }
            groups = rest;
        }
    }

    /// Returns the tally of a charge with `consistency: eventual`.
    fn tally_of(&self, charge: &Charge<'_>) -> Option<&ShardedTally> {
        match charge.consistency {
            Consistency::Strict | Consistency::Leased => None,
            Consistency::Eventual(every) => Some(self.sharing.tally(every)),
        }
    }

    /// Fast path: decides a single charge from held leases or from its view. Returns `None` if the store must be asked.
    ///
    /// The fast path builds neither a list of groups nor a future. On the slow path, an eventual decision reached
    /// 0.28 times the speed of the in-memory store, and a leased decision 0.32 times. On the fast path, these
    /// decisions reach 0.80 and 0.64 times that speed. An eventual decision takes 1,953 instructions, compared with 1,671 in memory.
    pub(crate) fn try_decide_here(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        let (outcome, at) = match charge.consistency {
            Consistency::Strict => return None,
            Consistency::Leased => {
                let taken = self.sharing.try_take_held(charge, answers)?;
                (taken.outcome, taken.at)
            }
            Consistency::Eventual(every) => {
                let tally = self.sharing.tally(every);
                tally.try_take(charge, answers).or_else(|| {
                    let taken = tally.take(charge, answers).ok()?;
                    Some((taken.outcome, taken.at))
                })?
            }
        };
        answers.end_group(at);
        Some(outcome.is_admitted())
    }

    /// Decides the first group of `groups`, which has one charge. If its key must be read, the keys of the other groups
    /// are read in the same round trip.
    async fn decide_single(&self, batch: Batch<'_>, charge: &Charge<'_>, groups: &[Group<'_>], answers: &mut Answers) {
        let verb = groups.first().map_or(StoreVerb::Check, |group| group.verb);
        if charge.consistency == Consistency::Leased {
            return self.decide_leased(batch, verb, charge, answers).await;
        }
        let Some(tally) = self.tally_of(charge) else {
            return self.decide_strictly(batch, verb, std::slice::from_ref(charge), answers).await;
        };
        let decide = |answers: &mut Answers| match verb {
            StoreVerb::Peek => tally.peek(charge, answers),
            StoreVerb::Check | StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Reset => tally.take(charge, answers),
        };
        let first = match decide(answers) {
            Err(ViewError::Unread) => {
                let charges = groups.iter().flat_map(|group| group.charges);
                let error = self.read_views(charges).await;
                match (decide(answers), error) {
                    (Err(ViewError::Unread), Some(error)) => Err(ViewError::Failed(error)),
                    (decided, _) => decided,
                }
            }
            decided => decided,
        };
        match first {
            Ok(taken) => answers.end_group(taken.at),
            Err(ViewError::Failed(error)) => answers.fail_group(error),
            // The table of views is full.
            Err(ViewError::Unread) => {
                self.decide_strictly(batch, verb, std::slice::from_ref(charge), answers).await;
            }
        }
    }

    /// Decides a group of one charge from leases.
    async fn decide_leased(&self, batch: Batch<'_>, verb: StoreVerb, charge: &Charge<'_>, answers: &mut Answers) {
        let decided = match verb {
            StoreVerb::Peek => self.sharing.peek_leased(charge, answers),
            StoreVerb::Check | StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Reset => {
                self.sharing.take_leased(charge, false, None, answers).await
            }
        };
        match decided {
            Ok(leased) => answers.end_group(leased.decision.at),
            Err(NoLease::Failed(error)) => answers.fail_group(error),
            Err(NoLease::Strict) => {
                // Before a peek, the leases of the key are returned to the store, because the store's tokens may
                // be enough only together with the leased tokens.
                if verb == StoreVerb::Peek {
                    self.sharing.settle_lease(charge).await;
                }
                self.decide_strictly(batch, verb, std::slice::from_ref(charge), answers).await;
            }
        }
    }

    /// Asks the store to decide a group, regardless of the consistency of its charges.
    async fn decide_strictly(&self, batch: Batch<'_>, verb: StoreVerb, charges: &[Charge<'_>], answers: &mut Answers) {
        let strict: Vec<Charge<'_>> = charges.iter().map(as_strict).collect();
        let groups = [Group { verb, charges: &strict }];
        self.ask_store(Batch { groups: &groups, ..batch }, answers).await;
    }

    /// Decides a group of several charges.
    async fn decide_multiple(&self, batch: Batch<'_>, group: &Group<'_>, answers: &mut Answers) {
        let deadline = Instant::now() + self.config.deadline;
        let mut locals: Vec<ViewCharge<'_>> = Vec::with_capacity(group.charges.len());
        for (position, charge) in group.charges.iter().enumerate() {
            if let Some(tally) = self.tally_of(charge) {
                locals.push(ViewCharge { position, charge: *charge, tally, taken: None, reserved: Cost::ZERO });
            }
        }
        if let Some(error) = self.read_views(locals.iter().map(|local| &local.charge)).await {
            return answers.fail_group(error);
        }
        let (mut leased, mut from_leases, mut refused) = (Vec::<LeasedCharge<'_>>::new(), Answers::default(), false);
        for (position, charge) in group.charges.iter().enumerate() {
            if charge.consistency != Consistency::Leased {
                continue;
            }
            let decided = if group.verb == StoreVerb::Peek || refused {
                self.sharing.peek_leased(charge, &mut from_leases)
            } else {
                self.sharing.take_leased(charge, true, Some(deadline), &mut from_leases).await
            };
            match decided {
                Ok(taken) => {
                    from_leases.end_group(taken.decision.at);
                    refused |= !taken.decision.outcome.is_admitted();
                    let (leases, reservation) = (&self.sharing.leases, taken.reservation);
                    leased.push(LeasedCharge { position, charge: *charge, leases, reservation });
                }
                Err(NoLease::Strict) if group.verb == StoreVerb::Peek => self.sharing.settle_lease(charge).await,
                Err(NoLease::Strict) => {}
                Err(NoLease::Failed(error)) => return answers.fail_group(error),
            }
        }
        // The store decides charges without a usable view.
        let is_unread =
            |local: &ViewCharge<'_>| local.tally.limits_to_read(&local.charge).map_or(true, |unread| unread.is_some());
        locals.retain(|local| !is_unread(local));
        let is_leased = |position: usize| leased.iter().any(|leased| leased.position == position);
        let is_local = |position: usize| is_leased(position) || locals.iter().any(|local| local.position == position);
        let strict: Vec<usize> = (0..group.charges.len()).filter(|position| !is_local(*position)).collect();

        let mut reported = Answers::default();
        let mut least = least_takeable(&locals, &mut reported);
        for local in &mut locals {
            local.charge.ask = limit_up_to(local.charge.ask, least);
            let decided = if group.verb == StoreVerb::Peek || refused {
                local.tally.peek(&local.charge, &mut reported)
            } else {
                local.tally.reserve(&local.charge, &mut reported)
            };
            // Fails only if the view was evicted after it was read.
            let Ok(taken) = decided else {
                return answers.fail_group(StoreError::Unavailable { why: "a view was evicted".to_owned() });
            };
            reported.end_group(taken.at);
            if group.verb == StoreVerb::Check && !refused {
                local.reserved = taken.taken;
            }
            refused |= !taken.outcome.is_admitted();
            local.taken = Some(taken);
        }
        let mut by_store = Answers::default();
        if !strict.is_empty() && (!refused || group.verb == StoreVerb::Peek) {
            let charges: Vec<Charge<'_>> = strict
                .iter()
                .map(|position| as_strict(&group.charges[*position]))
                .map(|charge| Charge { ask: limit_up_to(charge.ask, least), ..charge })
                .collect();
            let groups = [Group { verb: group.verb, charges: &charges }];
            self.ask_store_by(Batch { groups: &groups, ..batch }, deadline, &mut by_store).await;
            match by_store.group(0) {
                Ok(answer) => {
                    refused |= !answer.outcome().is_admitted();
                    let up_to = charges.iter().zip(answer.charges()).filter(|(charge, _)| is_up_to(charge.ask));
                    least = up_to.map(|(_, answer)| answer.taken).chain(least).min();
                }
                Err(error) => return answers.fail_group(error),
            }
        }
        if group.verb == StoreVerb::Check && !refused {
            for local in &mut locals {
                local.confirm(if is_up_to(local.charge.ask) { least.unwrap_or(Cost::MAX) } else { Cost::MAX });
            }
            leased.iter_mut().for_each(|leased| leased.reservation = None);
        }
        let mut at = locals.iter().filter_map(|local| local.taken.map(|taken| taken.at)).max().unwrap_or(Time::ZERO);
        for position in 0..group.charges.len() {
            let local = locals.iter().position(|local| local.position == position);
            let from_lease = leased.iter().position(|leased| leased.position == position);
            let (from, number, index) = match (local, from_lease) {
                (Some(index), _) => (&reported, index, 0),
                (None, Some(index)) => (&from_leases, index, 0),
                (None, None) => (&by_store, 0, strict.iter().position(|strict| *strict == position).unwrap_or(0)),
            };
            let Some(answer) = from.group(number).ok().and_then(|group| Some((group, group.charges().get(index)?)))
            else {
                // The store was not asked, because this node already refused the group.
                answers.push_answer(Outcome::Allow, Cost::ZERO, Stamps::default(), []);
                continue;
            };
            let (of_group, answer) = answer;
            at = at.max(of_group.decided_at());
            let taken = if is_up_to(group.charges[position].ask) {
                answer.taken.min(least.unwrap_or(Cost::MAX))
            } else {
                answer.taken
            };
            let reports = of_group.reports(answer).iter().copied();
            answers.push_answer_of_exactness(answer.exactness, answer.outcome, taken, of_group.stamps(answer), reports);
        }
        answers.end_group(at);
    }

    /// Refunds unsent amounts locally, and the remaining amounts in the store.
    async fn refund_shared(&self, batch: Batch<'_>, group: &Group<'_>, answers: &mut Answers) {
        let mut back = vec![0; group.charges.len()];
        let mut rest: Vec<Charge<'_>> = Vec::with_capacity(group.charges.len());
        for (charge, back) in group.charges.iter().zip(&mut back) {
            let cost = charge.ask.cost();
            if charge.consistency == Consistency::Leased {
                self.sharing.settle_lease(charge).await;
            }
            if let Some(tally) = self.tally_of(charge) {
                *back = tally.put_back(charge, cost, charge.stamps.copied().unwrap_or_default());
                tally.lock(tally.shard_of(charge)).tally.mark_stale(charge.key);
            }
            let cost = Cost::new(cost.get() - *back);
            rest.push(Charge { ask: Ask::Exactly(cost), ..as_strict(charge) });
        }
        let mut by_store = Answers::default();
        let groups = [Group { verb: StoreVerb::Refund, charges: &rest }];
        self.ask_store(Batch { groups: &groups, ..batch }, &mut by_store).await;
        group.charges.iter().for_each(|charge| self.sharing.leases.forget_refusal(charge));
        let refunded = match by_store.group(0) {
            Ok(refunded) => refunded,
            Err(error) => return answers.fail_group(error),
        };
        for (answer, back) in refunded.charges().iter().zip(back) {
            let taken = Cost::new(answer.taken.get().saturating_add(back));
            let reports = refunded.reports(answer).iter().copied();
            answers.push_answer(answer.outcome, taken, Stamps::default(), reports);
        }
        answers.end_group(refunded.decided_at());
    }

    /// Resets keys in the store, and forgets their views and refusals.
    async fn reset_shared(&self, batch: Batch<'_>, group: &Group<'_>, answers: &mut Answers) {
        for charge in group.charges.iter().filter(|charge| charge.consistency == Consistency::Leased) {
            self.sharing.settle_lease(charge).await;
        }
        let forget = || {
            for charge in group.charges {
                if let Some(tally) = self.tally_of(charge) {
                    tally.lock(tally.shard_of(charge)).tally.forget(charge.key);
                }
                self.sharing.leases.forget_refusal(charge);
            }
        };
        forget();
        self.decide_strictly(batch, StoreVerb::Reset, group.charges, answers).await;
        // An answer from before the reset may have arrived in the meantime.
        forget();
    }

    /// Reads keys without a fresh view from the store. If the read fails, accepts stale views. Returns an error if a
    /// key that could not be read has no view.
    async fn read_views<'a>(&self, charges: impl Iterator<Item = &'a Charge<'a>>) -> Option<StoreError> {
        let mut error = None;
        let mut reads: Vec<(&Charge<'_>, &ShardedTally, u8, Arc<DebtLimits>)> = Vec::new();
        for charge in charges {
            let Some(tally) = self.tally_of(charge) else { continue };
            match tally.limits_to_read(charge) {
                Ok(Some(indebted)) if !reads.iter().any(|(known, ..)| known.key == charge.key) => {
                    let shard = tally.shard_of(charge);
                    reads.push((charge, tally, shard, indebted));
                }
                Ok(_) => {}
                Err(why) => error = Some(why),
            }
        }
        if reads.is_empty() {
            return error;
        }
        let group = |(charge, _, shard, indebted): &(&Charge<'_>, &ShardedTally, u8, Arc<DebtLimits>)| {
            let lane = self.servers.lane_of_shard(*shard);
            let name = self.key_name(charge.key, lane);
            let charge = charge_of(charge.key, &indebted.with_debt, Ask::Exactly(Cost::ZERO));
            let charges = vec![QueuedCharge::new(StoreVerb::Peek, &charge, 0, name, indebted.encoded.clone())];
            let route = Route { lane, ..Route::default() };
            QueuedGroup { charges, route, kind: GroupKind::Charges, unsent: None }
        };
        let groups = reads.iter().map(group).collect();
        let replies = self.servers.send(&self.config, groups, Instant::now() + self.config.deadline).await;
        for ((charge, tally, shard, indebted), reply) in reads.iter().zip(replies) {
            let mut shard = tally.lock(*shard);
            let at = tally.now();
            let part = match reply {
                Ok(part) => part,
                Err(why) => {
                    if !shard.tally.accept_stale(charge.key, at) {
                        error = Some(why);
                    }
                    continue;
                }
            };
            let asked = StateQuery { limits: &indebted.with_debt, encoded: &indebted.encoded, contains_taken: false };
            let own = read_states(part.bytes(), &[asked], part.now).ok().and_then(|mut states| states.pop()?);
            let time = shard.record_store_time(&part, at);
            match own {
                Some(own) => {
                    let (limits, now) = (Arc::new(own.limits), now_of(charge.key, time));
                    shard.tally.learn(charge.key, &limits, &own.words, &now, at);
                }
                None => {
                    let why = format!("the key of a limit holds a value of another program (rule: {})", charge.rule());
                    error = Some(StoreError::Rejected { why });
                }
            }
        }
        error
    }
}

fn as_strict<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { consistency: Consistency::Strict, ..*charge }
}

fn is_up_to(ask: Ask) -> bool {
    matches!(ask, Ask::UpTo(_))
}

/// Limits an `Ask::UpTo` to `least`. Other asks are unchanged.
fn limit_up_to(ask: Ask, least: Option<Cost>) -> Ask {
    match (ask, least) {
        (Ask::UpTo(most), Some(least)) => Ask::UpTo(most.min(least)),
        (ask, _) => ask,
    }
}

/// Returns the smallest amount that any local `Ask::UpTo` charge can take, or `None` if there is no such charge.
fn least_takeable(locals: &[ViewCharge<'_>], answers: &mut Answers) -> Option<Cost> {
    let up_to = locals.iter().filter(|local| is_up_to(local.charge.ask));
    let least = up_to.filter_map(|local| local.tally.peek(&local.charge, answers).ok()).map(|taken| taken.taken).min();
    answers.clear();
    // At least one token, because an `UpTo` of zero is always admitted. If no token is left, the view refuses the `UpTo`
    // of one, as it refused the larger amount.
    least.map(|least| least.max(Cost::ONE))
}
