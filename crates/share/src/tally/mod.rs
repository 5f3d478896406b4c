//! The eventual tally: nodes decide by their own view and merge what they took, exactly once.
//!
//! **The naive method** counts locally and adds the counts to the store from time to time. A sync whose answer is lost
//! is either repeated, and counted twice, or dropped, and never counted. A node that joins decides by an empty view. A
//! count that the store clamps at its limit forgets what was taken beyond it.
//!
//! **The idea.** Each node keeps a *view* of a key: the state of the store as last seen, plus what this
//! node took since. A request is decided by the view, without a round trip. What was taken is *unsent*;
//! every `sync_every` it is frozen as a [`Payload`] with the next sequence number and sent. The store
//! applies a payload if its number is the next of that node, and answers with the states of its keys
//! in any case. So a payload may be sent any number of times and counts once.
//!
//! - **Debt.** The store takes regardless of what is left: with four tokens, twelve requests that three
//!   nodes admitted at once leave −8, and all nodes refuse until that is repaid. Debt is bounded by
//!   [`DEBT`] capacities, which does not depend on the number of nodes.
//! - **Age.** A payload carries how long ago it was taken, computed again for each resend, so differences between clocks
//!   cancel out. It counts as of the last take in it, and so in the window it was taken in. What is older than a second is
//!   charged as of a second ago and never takes a balance below zero, so that a fault is not followed by a debt of its length; what is
//!   older than the time in which the whole limit comes back is dropped, since it no longer counts.
//! - **First touch.** A key without a view, or with one that the store has not renewed for a while, is
//!   read from the store before it is decided, so a node that joins does not start with a full limit.
//! - **Bounds.** At most [`Bounds::keys`] keys have a view; if none is idle, a further key gets none. About
//!   [`Bounds::unsent`] unsent entries are kept; beyond that the oldest are dropped and counted in
//!   [`Tally::dropped`].
//!
//! **How it is driven.** The caller decides with [`decide`](Tally::decide). On [`Unread`] it reads the
//! key from the store, passes the state to [`learn`](Tally::learn) and decides again; if the store does not
//! answer, [`accept_stale`](Tally::accept_stale) lets an old view decide. At each sync it sends
//! [`payload`](Tally::payload) until the store has answered it, then calls
//! [`acknowledge`](Tally::acknowledge) and [`learn_merged`](Tally::learn_merged) for each item; and it
//! reads the keys of [`reads`](Tally::reads), which were used but not taken from, so that what other
//! nodes took becomes known. Nodes that exchange payloads among themselves apply those of others with
//! [`merge`] instead.
//!
//! **Guarantee.** With `N` nodes, each of which exchanges within `δ` (sync interval and round trip),
//! `E ≤ (N − 1)·(B + r·δ)`: in any interval, what node `i` admitted more than `δ` before its end is in
//! every view by then, and all of it together fits `B + r·T`; each other node may have admitted
//! another `B + r·δ` that this one had not seen. It does not add up over cycles, because debt is kept and
//! repaid. Between two answers a view refills by the clock of its node. A clock that runs fast by a
//! fraction `ρ` adds `ρ·r·δ` per node. A round trip that varies by `d` shifts the node's estimate of the
//! store's clock, and adds `r·d` per node. Without the store for a time `P`, `δ` is `P`.

mod unsent;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Ask, Cost, Limits, Now, Stamps, Verdict};

use crate::hash::KeyHash;
use unsent::Unsent;
pub use unsent::{Item, MAX_ITEMS, Payload};
pub use view::{DEBT, merge, with_debt, with_debt_of};
use view::{View, debt};

/// What is older than this never takes a balance below zero, in nanoseconds.
pub const RECENT: u64 = 1_000_000_000;

/// The name of a key.
pub type Key = Arc<[u8]>;

type Views = HashMap<Key, View, KeyHash>;

/// How much a tally keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most keys that have a view.
    pub keys: usize,
    /// The most unsent entries: keys times seconds without an answer of the store.
    pub unsent: usize,
    /// How long after its last renewal a view has to be read again, in nanoseconds.
    pub stale_after: u64,
}

impl Default for Bounds {
    /// Returns bounds for a node that has one tally. Views are never stale.
    fn default() -> Self {
        Self { keys: 1 << 20, unsent: 1 << 18, stale_after: u64::MAX }
    }
}

/// The views of one node, and what it took, for all its keys.
#[derive(Debug, Default)]
pub struct Tally {
    bounds: Bounds,
    views: Views,
    unsent: Unsent,
    /// The payload that is being sent, until the store has answered it.
    frozen: Option<Payload>,
    sequence: u64,
    dropped: u64,
    overshoot: u64,
    is_urgent: bool,
}

/// Why a key cannot be decided before it is read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has no view.
    FirstTouch,
    /// The store has not renewed its view for a while.
    Stale,
}

impl Tally {
    /// Creates a tally without views.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Decides by the view of a key and takes. `now` is the store's time as this node estimates it, `at` this node's own time
    /// in nanoseconds. `limits` are those of [`with_debt`]. `report` gets the verdict and the state after it, with the limits that the
    /// state belongs to.
    ///
    /// # Errors
    /// If the key has to be read from the store first; nothing is taken.
    pub fn decide<T>(
        &mut self,
        key: &[u8],
        limits: &Arc<Limits>,
        now: &Now<'_>,
        at: u64,
        ask: Ask,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, Unread> {
        let (view, unsent) = self.view_at(key, at)?;
        let verdict = view.take(limits, now, at, ask);
        unsent.list(view, at);
        let is_urgent = verdict.is_admitted() && unsent.add(view, at, verdict.taken());
        let (own, words) = view.state();
        let reported = report(&verdict, own, words);
        self.is_urgent |= is_urgent;
        Ok(reported)
    }

    /// Decides like [`decide`](Self::decide), for a request that others may still refuse: what is taken is not sent until
    /// [`confirm`](Self::confirm), and [`release`](Self::release) gives it back.
    ///
    /// # Errors
    /// If the key has to be read from the store first; nothing is taken.
    pub fn reserve<T>(
        &mut self,
        key: &[u8],
        limits: &Arc<Limits>,
        now: &Now<'_>,
        at: u64,
        ask: Ask,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, Unread> {
        let (view, unsent) = self.view_at(key, at)?;
        let verdict = view.take(limits, now, at, ask);
        unsent.list(view, at);
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

    /// Returns the view of a key to decide by, and the present tick, which is another one if the last has ended.
    fn view_at(&mut self, key: &[u8], at: u64) -> Result<(&mut View, &mut Unsent), Unread> {
        if self.unsent.is_over(at) {
            self.seal();
        }
        let view = self.views.get_mut(key).ok_or(Unread::FirstTouch)?;
        view.check_age(at, self.bounds.stale_after)?;
        Ok((view, &mut self.unsent))
    }

    /// Gives back a reserved amount.
    pub fn release(&mut self, key: &[u8], now: &Now<'_>, taken: Cost, stamps: Stamps) {
        let Some(view) = self.views.get_mut(key) else { return };
        let back = taken.get().min(view.reserved);
        view.reserved -= back;
        view.give(now, Cost::new(back), stamps);
    }

    /// Decides like [`decide`](Self::decide) and returns the verdict.
    ///
    /// # Errors
    /// If the key has to be read from the store first.
    pub fn take(
        &mut self,
        key: &[u8],
        limits: &Arc<Limits>,
        now: &Now<'_>,
        at: u64,
        ask: Ask,
    ) -> Result<Verdict<Stamps>, Unread> {
        self.decide(key, limits, now, at, ask, |verdict, _, _| *verdict)
    }

    /// Returns what [`decide`](Self::decide) would return by these limits, and takes nothing.
    ///
    /// # Errors
    /// If the key has to be read from the store first.
    pub fn peek<T>(
        &mut self,
        key: &[u8],
        limits: &Limits,
        now: &Now<'_>,
        at: u64,
        ask: Ask,
        report: impl FnOnce(&Verdict<Stamps>, &Limits, &[u64]) -> T,
    ) -> Result<T, Unread> {
        let view = self.views.get_mut(key).ok_or(Unread::FirstTouch)?;
        view.check_age(at, self.bounds.stale_after)?;
        view.used_at = at;
        self.unsent.list(view, at);
        let verdict = view.weigh(limits, now, ask);
        let (own, words) = view.state();
        Ok(report(&verdict, own, words))
    }

    /// Returns the limits and the words of a view.
    pub fn view(&self, key: &[u8]) -> Option<(&Limits, &[u64])> {
        self.views.get(key).map(View::state)
    }

    /// Returns whether a key has to be read from the store before it is decided.
    pub fn is_unread(&self, key: &[u8], at: u64) -> bool {
        self.views.get(key).is_none_or(|view| view.check_age(at, self.bounds.stale_after).is_err())
    }

    /// Undoes a take, as far as it was not sent. Returns how much was put back; the rest is in the store, or will be.
    pub fn put_back(&mut self, key: &[u8], now: &Now<'_>, taken: Cost, stamps: Stamps) -> u64 {
        let Some(view) = self.views.get_mut(key) else { return 0 };
        let back = taken.get().min(view.unsent);
        view.unsent -= back;
        view.give(now, Cost::new(back), stamps);
        back
    }

    /// Adds what was taken of a key elsewhere on this node, to be merged with the next payload: what the fallback admitted while
    /// the store did not answer.
    pub fn note(&mut self, key: Key, limits: Arc<Limits>, at: u64, taken: u64) {
        if self.unsent.is_over(at) {
            self.seal();
        }
        if !self.unsent.note(key, limits, at, taken, self.bounds.unsent) {
            self.dropped = self.dropped.saturating_add(taken);
        }
    }

    /// Stores what the store said of a key at its time `now`: the state `words` under `limits`. What the store may not have counted
    /// yet is taken from it.
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

    /// Stores what the store said of a key when it merged `cost`: call it after [`acknowledge`](Self::acknowledge). Returns how much
    /// of the cost is beyond the limit.
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

    /// Lets the view of a key decide although the store has not renewed it: the store does not answer. Returns whether there is one.
    pub fn accept_stale(&mut self, key: &[u8], at: u64) -> bool {
        let view = self.views.get_mut(key);
        view.map(|view| view.renewed_at = at).is_some()
    }

    /// Requires that the view of a key is read from the store before it is used again.
    pub fn expire(&mut self, key: &[u8]) {
        if let Some(view) = self.views.get_mut(key) {
            view.renewed_at = 0;
        }
    }

    /// Forgets the view of a key and what is unsent of it: after a reset.
    pub fn forget(&mut self, key: &[u8]) {
        self.views.remove(key);
        self.unsent.forget(key);
    }

    /// Forgets the views that were not used for a while and have nothing unsent.
    pub fn forget_idle(&mut self, at: u64) {
        self.views.retain(|_, view| view.pending() > 0 || at < view.used_at.saturating_add(60 * RECENT));
    }

    /// Returns the payload to send now: the one that has no answer yet, or the oldest that is unsent, frozen. `at` is this node's
    /// time.
    pub fn payload(&mut self, at: u64) -> Option<&Payload> {
        if self.frozen.is_none() {
            self.seal_unless_behind();
            let frozen = self.unsent.freeze(at);
            self.dropped = self.dropped.saturating_add(frozen.outdated.iter().map(|item| item.cost).sum());
            for item in &frozen.outdated {
                self.views.get_mut(&item.key).iter_mut().for_each(|view| view.drop_sealed(item.cost));
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

    /// Returns up to `most` keys that were used since they were last read, and of which nothing is being sent; with the limits that
    /// they were used under.
    pub fn reads(&mut self, most: usize) -> Vec<(Key, Arc<Limits>)> {
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

    /// The store answered the payload with this number: it counts from now on.
    pub fn acknowledge(&mut self, sequence: u64) {
        let Some(payload) = self.frozen.take_if(|payload| payload.sequence == sequence) else { return };
        for item in &payload.items {
            self.views.get_mut(&item.key).iter_mut().for_each(|view| view.frozen = 0);
        }
    }

    /// Gives up the payload that has no answer, because the store may no longer know whether it counted. Its tokens are dropped.
    pub fn give_up(&mut self) {
        let Some(payload) = self.frozen.take() else { return };
        for item in &payload.items {
            self.dropped = self.dropped.saturating_add(item.cost);
            self.views.get_mut(&item.key).iter_mut().for_each(|view| view.frozen = 0);
        }
    }

    /// Returns whether a key has enough unsent to be sent at once: a sixteenth of its capacity.
    pub fn is_urgent(&self, key: &[u8]) -> bool {
        self.views.get(key).is_some_and(View::is_urgent)
    }

    /// Returns whether a take since the last call made its key urgent.
    pub fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.is_urgent)
    }

    /// Returns whether a payload is being sent: what the store says of its keys may or may not include it.
    pub fn has_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Returns whether ticks are unsent that ended before: more than one payload has to be sent.
    pub fn is_behind(&self) -> bool {
        self.unsent.has_ticks()
    }

    /// Returns whether anything has to be sent.
    pub fn has_unsent(&self) -> bool {
        self.frozen.is_some() || !self.unsent.is_empty() || self.views.values().any(|view| view.unsent > 0)
    }

    /// Returns the tokens that were dropped unsent.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the tokens that this node admitted beyond a limit, as far as merging showed it.
    pub fn overshoot(&self) -> u64 {
        self.overshoot
    }

    /// Returns how many keys have a view.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Returns whether no key has a view.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Ends the present tick if no earlier one is unsent. If every payload ended one, there would be as many ticks to send after it
    /// as before, for as long as takes go on.
    fn seal_unless_behind(&mut self) {
        if !self.is_behind() {
            self.seal();
        }
    }

    /// Ends the present tick: what was taken in it goes into payloads, and what was only looked at is to be read.
    fn seal(&mut self) {
        let Self { unsent, views, bounds, .. } = self;
        for dropped in unsent.seal(views, bounds.unsent) {
            self.dropped = self.dropped.saturating_add(dropped.cost);
            self.views.get_mut(&dropped.key).iter_mut().for_each(|view| view.drop_sealed(dropped.cost));
        }
    }
}

#[cfg(test)]
mod tests;
