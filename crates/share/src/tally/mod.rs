//! The eventual tally: nodes decide from their own views, and the store merges each charge exactly once.
//!
//! **The naive method** counts locally and adds the counts to the store from time to time. A sync whose answer is lost
//! is either repeated and counted twice, or dropped and never counted. A joining node decides from an empty view. If
//! the store clamps a count at the limit, the excess is forgotten.
//!
//! **The idea.** Each node keeps a *view* of a key: the state of the store as last seen, plus this node's charges since
//! then. The node decides a request from the view, without a round trip, and records the charge as *unsent*. Every
//! `sync_every`, the node freezes the unsent charges as a [`Payload`] with its next sequence number and sends the
//! payload. The store applies a payload only if the payload's number is higher than the last number that the store
//! applied for this node. The store then answers with the states of the payload's keys. So a payload may be sent any
//! number of times, but counts only once.
//!
//! - **Debt.** The store charges even if too few tokens are left. For example, if three nodes admit twelve requests at
//!   the same time against four tokens, −8 tokens remain. All nodes then refuse until the debt is repaid. Debt is
//!   bounded by [`MAX_DEBT_FACTOR`] times the capacity, independently of the node count.
//! - **Age.** A payload contains the age of its charges, recomputed for each resend, so clock differences cancel out.
//!   All charges of a payload count at the time of its last charge, and so in the window of that charge. Charges older
//!   than a second count as if they were made a second ago, and never take a balance below zero. So a long fault is not
//!   followed by a long debt. Charges older than twice the limit's window (at least a second) no longer count and are
//!   dropped.
//! - **First touch.** A key without a view, or with a stale view, is read from the store before it is decided. So a
//!   node that joins does not start with a full limit.
//! - **Bounds.** At most [`Bounds::keys`] keys have a view. If no view is idle, further keys get no view. The tally
//!   keeps about [`Bounds::unsent`] unsent entries. It drops the oldest entries beyond that number, and counts their
//!   tokens in [`Tally::dropped_tokens`].
//!
//! **Usage.** The caller decides with [`decide`](Tally::decide). On a [`ReadReason`], the caller reads the key from the
//! store, passes the state to [`learn`](Tally::learn) and decides again. If the store does not answer,
//! [`accept_stale`](Tally::accept_stale) allows decisions from a stale view. At each sync the caller sends
//! [`payload`](Tally::payload) until the store has answered it, then calls [`acknowledge`](Tally::acknowledge) and, for
//! each item, [`learn_merged`](Tally::learn_merged). The caller also reads the keys that
//! [`keys_to_read`](Tally::keys_to_read) returns. Requests used these keys but took nothing, so the answers to payloads
//! do not contain their states. Nodes that send payloads directly to each other apply received payloads with [`merge`].
//!
//! **Guarantee.** With `N` nodes that each exchange within `δ` (sync interval plus round trip), `E ≤ (N − 1)·(B +
//! r·δ)`. Consider an interval of length `T` and a node `i`. All amounts admitted more than `δ` before the end of the
//! interval are in node `i`'s view by the end, and their sum is at most `B + r·T`. Each other node may have admitted
//! another `B + r·δ` that node `i` had not seen. The excess does not accumulate over syncs, because debt is kept and
//! repaid. Between two answers from the store, a view refills by its node's clock. A clock that runs fast by a fraction
//! `ρ` adds `ρ·r·δ` per node. A round trip that varies by `d` shifts the node's estimate of the store's clock, and adds
//! `r·d` per node. During a store outage of length `P`, `δ` is `P`.

mod unsent;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Ask, Cost, Limits, Now, Outcome, Report, Stamps, Verdict};

use crate::hash::BuildKeyHasher;
use unsent::UnsentCharges;
pub use unsent::{MAX_ITEMS, Payload, PayloadItem};
pub use view::{MAX_DEBT_FACTOR, merge, with_debt, with_debt_that_fits};
use view::{View, debt};

/// Maximum age of a charge that may go into debt, in nanoseconds. Older charges never take a balance below zero.
pub const RECENT_NANOS: u64 = 1_000_000_000;

/// The name of a key.
pub type Key = Arc<[u8]>;

type Views = HashMap<Key, View, BuildKeyHasher>;

/// Size limits of a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of keys with a view.
    pub keys: usize,
    /// Maximum number of unsent entries. Each charged key adds one entry per second while the store does not answer.
    pub unsent: usize,
    /// Time in nanoseconds after which a view that was not renewed is stale and has to be read again.
    pub stale_after: u64,
}

impl Default for Bounds {
    /// Returns bounds for a node with a single tally. Views never become stale.
    fn default() -> Self {
        Self { keys: 1 << 20, unsent: 1 << 18, stale_after: u64::MAX }
    }
}

/// A charge to decide from the view of its key, and the time of the decision. `L` is `Limits` for a peek. A take needs
/// an `Arc`, because the view keeps the limits.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a, L = Arc<Limits>> {
    /// The name of the key.
    pub key: &'a [u8],
    /// The limits of the charge. For a take, they come from [`with_debt`].
    pub limits: &'a L,
    /// The caller's id of these limits, for [`Tally::try_take`]. An id must always stand for the same limits.
    pub limits_id: Option<u32>,
    /// The requested amount.
    pub ask: Ask,
    /// This node's estimate of the store time.
    pub now: &'a Now<'a>,
    /// This node's own time, in nanoseconds.
    pub at: u64,
}

/// A node's views and unsent charges, for all keys.
#[derive(Debug, Default)]
pub struct Tally {
    bounds: Bounds,
    views: Views,
    unsent: UnsentCharges,
    /// The payload in flight, until the store has answered it.
    frozen: Option<Payload>,
    sequence: u64,
    dropped: u64,
    overshoot: u64,
    is_urgent: bool,
}

/// Reason why a key has to be read from the store before it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadReason {
    /// The key has no view.
    FirstTouch,
    /// The view is stale.
    Stale,
}

impl Tally {
    /// Creates a tally without views.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Decides a charge from the view of its key, and takes the cost if it is admitted. Calls `report` with the verdict,
    /// the limits of the resulting state, and that state.
    ///
    /// # Errors
    /// Returns [`ReadReason`] if the key has to be read from the store first. Nothing is taken then.
    pub fn decide<T>(
        &mut self,
        charge: &Charge<'_>,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, ReadReason> {
        let (view, unsent, verdict) = self.take_from_view(charge)?;
        let is_urgent = verdict.is_admitted() && unsent.add(view, charge.at, verdict.taken());
        let (own, words) = view.state();
        let reported = report(&verdict, own, words);
        self.is_urgent |= is_urgent;
        Ok(reported)
    }

    /// Fast path of [`decide`](Self::decide): takes `cost` if the last charge of the key had the same
    /// [`limits_id`](Charge::limits_id). `None`: the fast path does not apply and nothing has changed; call
    /// [`decide`](Self::decide).
    #[inline]
    pub fn try_take(
        &mut self,
        key: &[u8],
        limits_id: u32,
        cost: Cost,
        now: &Now<'_>,
        at: u64,
    ) -> Option<(Outcome, Report)> {
        if self.unsent.is_tick_over(at) {
            return None;
        }
        let view = self.views.get_mut(key)?;
        view.check_not_stale(at, self.bounds.stale_after).ok()?;
        let (outcome, report) = view.try_take(limits_id, now, cost)?;
        view.used_at = at;
        self.unsent.mark_used(view, at);
        if outcome.is_admitted() {
            self.is_urgent |= self.unsent.add(view, at, cost);
        }
        Some((outcome, report))
    }

    /// Decides like [`decide`](Self::decide), for a request that other limits may still refuse.
    /// [`confirm`](Self::confirm) adds the charge to the next payload; [`release`](Self::release) undoes the charge.
    ///
    /// # Errors
    /// Returns [`ReadReason`] if the key has to be read from the store first. Nothing is taken then.
    pub fn reserve<T>(
        &mut self,
        charge: &Charge<'_>,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, ReadReason> {
        let (view, _, verdict) = self.take_from_view(charge)?;
        if verdict.is_admitted() {
            view.reserved = view.reserved.saturating_add(verdict.taken().get());
        }
        let (own, words) = view.state();
        Ok(report(&verdict, own, words))
    }

    /// Adds a reserved amount to the next payload.
    pub fn confirm(&mut self, key: &[u8], at: u64, taken: Cost) {
        let Some(view) = self.views.get_mut(key) else { return };
        view.reserved = view.reserved.saturating_sub(taken.get());
        self.is_urgent |= self.unsent.add(view, at, taken);
    }

    /// Decides a charge and takes its cost from the view of its key. Returns the view, the unsent charges and the
    /// verdict. Seals the current tick first if it has lasted a second.
    fn take_from_view(
        &mut self,
        charge: &Charge<'_>,
    ) -> Result<(&mut View, &mut UnsentCharges, Verdict<Stamps>), ReadReason> {
        if self.unsent.is_tick_over(charge.at) {
            self.seal();
        }
        let view = self.views.get_mut(charge.key).ok_or(ReadReason::FirstTouch)?;
        view.check_not_stale(charge.at, self.bounds.stale_after)?;
        let verdict = view.take(charge);
        self.unsent.mark_used(view, charge.at);
        Ok((view, &mut self.unsent, verdict))
    }

    /// Undoes a reserved charge.
    pub fn release(&mut self, key: &[u8], now: &Now<'_>, taken: Cost, stamps: Stamps) {
        let Some(view) = self.views.get_mut(key) else { return };
        let back = taken.get().min(view.reserved);
        view.reserved -= back;
        view.refund(now, Cost::new(back), stamps);
    }

    /// Decides like [`decide`](Self::decide) and returns the verdict.
    ///
    /// # Errors
    /// Returns [`ReadReason`] if the key has to be read from the store first.
    pub fn take(&mut self, charge: &Charge<'_>) -> Result<Verdict<Stamps>, ReadReason> {
        self.decide(charge, |verdict, _, _| *verdict)
    }

    /// Returns the result that [`decide`](Self::decide) would return, but takes nothing.
    ///
    /// # Errors
    /// Returns [`ReadReason`] if the key has to be read from the store first.
    pub fn peek<T>(
        &mut self,
        charge: &Charge<'_, Limits>,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, ReadReason> {
        let view = self.views.get_mut(charge.key).ok_or(ReadReason::FirstTouch)?;
        view.check_not_stale(charge.at, self.bounds.stale_after)?;
        view.used_at = charge.at;
        self.unsent.mark_used(view, charge.at);
        let verdict = view.weigh(charge.limits, charge.now, charge.ask);
        let (own, words) = view.state();
        Ok(report(&verdict, own, words))
    }

    /// Returns the limits and the words of a view.
    pub fn view(&self, key: &[u8]) -> Option<(&Limits, &[u64])> {
        self.views.get(key).map(View::state)
    }

    /// Returns whether a key has to be read from the store before it is decided.
    pub fn must_be_read(&self, key: &[u8], at: u64) -> bool {
        self.views.get(key).is_none_or(|view| view.check_not_stale(at, self.bounds.stale_after).is_err())
    }

    /// Undoes the unsent part of a charge. Returns the amount put back. The rest of the charge is in the store or in
    /// flight.
    pub fn put_back(&mut self, key: &[u8], now: &Now<'_>, taken: Cost, stamps: Stamps) -> u64 {
        let Some(view) = self.views.get_mut(key) else { return 0 };
        let back = taken.get().min(view.unsent);
        view.unsent -= back;
        view.refund(now, Cost::new(back), stamps);
        back
    }

    /// Adds to the next payload a charge that did not go through this tally. Used for the fallback's admissions during
    /// a store outage.
    pub fn add_external(&mut self, key: Key, limits: Arc<Limits>, at: u64, taken: u64) {
        if self.unsent.is_tick_over(at) {
            self.seal();
        }
        if !self.unsent.add_external(key, limits, at, taken, self.bounds.unsent) {
            self.dropped = self.dropped.saturating_add(taken);
        }
    }

    /// Updates the view of a key with the store's state at the store time `now`. The state is `words`, recorded under
    /// `limits`. Charges that the store has possibly not counted yet are applied to the view again.
    pub fn learn(&mut self, key: &[u8], limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) {
        if let Some(view) = self.views.get_mut(key) {
            view.renew(limits, words, now, at);
            return;
        }
        if self.views.len() >= self.bounds.keys {
            self.forget_idle(at);
        }
        if self.views.len() < self.bounds.keys {
            let name: Key = Arc::from(key);
            self.views.insert(name.clone(), View::new(name, limits, words, now, at));
        }
    }

    /// Updates the view of a key with the store's state after the store merged `cost`. Call this function after
    /// [`acknowledge`](Self::acknowledge). Returns the part of the cost that exceeds the limit.
    pub fn learn_merged(
        &mut self,
        key: &[u8],
        cost: u64,
        limits: &Arc<Limits>,
        words: &[u64],
        now: &Now<'_>,
        at: u64,
    ) -> u64 {
        let excess = debt(limits, words, now).min(cost);
        self.overshoot = self.overshoot.saturating_add(excess);
        self.learn(key, limits, words, now, at);
        excess
    }

    /// Allows decisions from a stale view of a key, because the store does not answer. Returns whether the key has a
    /// view.
    pub fn accept_stale(&mut self, key: &[u8], at: u64) -> bool {
        let view = self.views.get_mut(key);
        view.map(|view| view.renewed_at = at).is_some()
    }

    /// Marks the view of a key as stale, so that it is read from the store before it is used again.
    pub fn mark_stale(&mut self, key: &[u8]) {
        if let Some(view) = self.views.get_mut(key) {
            view.renewed_at = 0;
        }
    }

    /// Forgets the view of a key and its unsent charges. Used after a reset.
    pub fn forget(&mut self, key: &[u8]) {
        self.views.remove(key);
        self.unsent.forget(key);
    }

    /// Forgets views that have no pending charges and were not used for a minute.
    pub fn forget_idle(&mut self, at: u64) {
        self.views.retain(|_, view| view.pending() > 0 || at < view.used_at.saturating_add(60 * RECENT_NANOS));
    }

    /// Returns the payload to send now: the unanswered payload, or a new payload with the oldest unsent charges. `at`
    /// is this node's time.
    pub fn payload(&mut self, at: u64) -> Option<&Payload> {
        if self.frozen.is_none() {
            self.seal_unless_behind();
            let frozen = self.unsent.freeze(at);
            self.dropped = self.dropped.saturating_add(frozen.outdated.iter().map(|item| item.cost).sum());
            for item in &frozen.outdated {
                self.views.get_mut(&item.key).iter_mut().for_each(|view| view.subtract_sealed(item.cost));
            }
            for item in &frozen.items {
                self.views.get_mut(&item.key).iter_mut().for_each(|view| view.freeze(item.cost));
            }
            if frozen.items.is_empty() {
                return None;
            }
            self.sequence += 1;
            self.frozen = Some(Payload { sequence: self.sequence, taken_at: frozen.taken_at, items: frozen.items });
        }
        self.frozen.as_ref()
    }

    /// Returns up to `most` keys that were used since they were last read and have no pending charges, with the limits
    /// of their last request.
    pub fn keys_to_read(&mut self, most: usize) -> Vec<(Key, Arc<Limits>)> {
        self.seal_unless_behind();
        let Self { unsent, views, .. } = self;
        let read = |key: Key| {
            let view = views.get_mut(&key)?;
            view.is_to_be_read = false;
            (view.pending() == 0).then(|| (key, view.asked.clone()))
        };
        let count = unsent.reads.len().min(most);
        unsent.reads.drain(..count).filter_map(read).collect()
    }

    /// Marks the payload with this number as counted by the store.
    pub fn acknowledge(&mut self, sequence: u64) {
        let Some(payload) = self.frozen.take_if(|payload| payload.sequence == sequence) else { return };
        for item in &payload.items {
            self.views.get_mut(&item.key).iter_mut().for_each(|view| view.frozen = 0);
        }
    }

    /// Drops the unanswered payload. Used when the store may have forgotten whether it counted the payload.
    pub fn drop_payload(&mut self) {
        let Some(payload) = self.frozen.take() else { return };
        for item in &payload.items {
            self.dropped = self.dropped.saturating_add(item.cost);
            self.views.get_mut(&item.key).iter_mut().for_each(|view| view.frozen = 0);
        }
    }

    /// Returns whether the unsent charges of a key reach a sixteenth of its capacity, so that they are sent
    /// immediately.
    pub fn is_urgent(&self, key: &[u8]) -> bool {
        self.views.get(key).is_some_and(View::is_urgent)
    }

    /// Returns whether a charge has made its key urgent since the last call.
    pub fn take_urgent_flag(&mut self) -> bool {
        std::mem::take(&mut self.is_urgent)
    }

    /// Returns whether a payload is in flight. A state that is read from the store in the meantime may or may not
    /// include this payload.
    pub fn has_payload_in_flight(&self) -> bool {
        self.frozen.is_some()
    }

    /// Returns whether earlier ticks are unsent, so that more than one payload has to be sent.
    pub fn is_behind(&self) -> bool {
        self.unsent.has_earlier_ticks()
    }

    /// Returns whether a payload or unsent charges have to be sent.
    pub fn has_unsent(&self) -> bool {
        self.frozen.is_some() || !self.unsent.is_empty() || self.views.values().any(|view| view.unsent > 0)
    }

    /// Returns the number of charged tokens that were dropped before the store acknowledged them.
    pub fn dropped_tokens(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of tokens that this node admitted beyond a limit, as detected by merges.
    pub fn overshoot(&self) -> u64 {
        self.overshoot
    }

    /// Returns the number of keys with a view.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Returns whether no key has a view.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Ends the current tick if no earlier tick is unsent. If every payload ended a tick, a busy node would never catch
    /// up.
    fn seal_unless_behind(&mut self) {
        if !self.is_behind() {
            self.seal();
        }
    }

    /// Ends the current tick. Queues its charges for payloads, and lists keys that were used but not charged as keys to
    /// read.
    fn seal(&mut self) {
        let Self { unsent, views, bounds, .. } = self;
        for dropped in unsent.seal(views, bounds.unsent) {
            self.dropped = self.dropped.saturating_add(dropped.cost);
            self.views.get_mut(&dropped.key).iter_mut().for_each(|view| view.subtract_sealed(dropped.cost));
        }
    }
}

#[cfg(test)]
mod tests;
