//! The eventual tally: nodes decide by their own view and merge what they took, exactly once.
//!
//! **The naive method** counts locally and adds the counts to the store now and then. A sync whose
//! answer is lost is either repeated, and counted twice, or dropped, and never counted. A node that
//! joins decides by an empty view. A count that the store clamps at its limit forgets what was taken
//! beyond it.
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
//! - **Age.** A payload carries how long ago it was taken, computed again for each resend, so clocks
//!   cancel. It counts as of the last take in it, and so in the window it was taken in. What is older than a second never
//!   takes a balance below zero, so that a fault is not followed by a debt of its length; what is
//!   older than the time in which the whole limit comes back is dropped, since it no longer counts.
//! - **First touch.** A key without a view is read from the store before it is decided, so a node that
//!   joins does not start with a full limit.
//! - **Bounds.** At most [`Tally::MAX_KEYS`] keys have a view, and at most [`MAX_UNSENT`] entries are
//!   unsent; beyond it the oldest are dropped and counted in [`Tally::dropped`].
//!
//! **Guarantee.** With `N` nodes, each of which exchanges within `δ` (sync interval and round trip),
//! `E ≤ (N − 1)·(B + r·δ)`: in any interval, what node `i` admitted more than `δ` before its end is in
//! every view by then, and all of it together fits `B + r·T`; each other node may have admitted
//! another `B + r·δ` that this one had not seen. It does not add up over cycles, because debt is kept and
//! repaid. Between two answers a view refills by the clock of its node, so a clock that is a part `ρ` too
//! fast adds `ρ·r·δ` per node, and a round trip whose length varies by `d` moves the node's estimate of
//! the store's clock, which adds `r·d` per node. Without the store for a time `P`, `δ` is `P`.

mod unsent;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, Cost, Limits, Now, Stamps, Verdict};

use unsent::Unsent;
pub use unsent::{Item, MAX_UNSENT, Payload};
use view::View;
pub use view::{DEBT, merge, with_debt};

/// What is older than this never takes a balance below zero, in nanoseconds.
pub const RECENT: u64 = 1_000_000_000;

/// The name of a key.
pub type Key = Arc<[u8]>;

/// What one node knows and took of all its keys.
#[derive(Debug, Default)]
pub struct Tally {
    views: HashMap<Key, View>,
    unsent: Unsent,
    /// The payload that is being sent, until the store has answered it.
    frozen: Option<Payload>,
    sequence: u64,
    dropped: u64,
    overshoot: u64,
}

/// A view that has to be read from the store first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTouch;

impl Tally {
    /// The most keys that have a view.
    pub const MAX_KEYS: usize = 1 << 20;

    /// Decides by the view of a key and takes. `now` is the store's time as this node estimates it, `at` this node's own time
    /// in nanoseconds. `limits` are those of [`with_debt`].
    ///
    /// # Errors
    /// If the key has no view: read it from the store, call [`learn`](Self::learn), and decide again.
    pub fn take(
        &mut self,
        key: &[u8],
        limits: &Arc<Limits>,
        now: &Now<'_>,
        at: u64,
        ask: Ask,
    ) -> Result<Verdict<Stamps>, FirstTouch> {
        let Some((name, view)) =
            self.views.get_key_value(key).map(|(name, _)| name.clone()).zip(self.views.get_mut(key))
        else {
            return Err(FirstTouch);
        };
        let verdict = view.take(limits, now, at, ask);
        if verdict.is_admitted() && verdict.taken() > Cost::ZERO {
            let taken = verdict.taken().get();
            view.unsent = view.unsent.saturating_add(taken);
            self.note(name, limits.clone(), at, taken);
        }
        Ok(verdict)
    }

    /// Returns what [`take`](Self::take) would return, and changes nothing.
    ///
    /// # Errors
    /// If the key has no view.
    pub fn peek(&self, key: &[u8], limits: &Limits, now: &Now<'_>, ask: Ask) -> Result<Verdict<Stamps>, FirstTouch> {
        self.views.get(key).map(|view| view.weigh(limits, now, ask)).ok_or(FirstTouch)
    }

    /// Returns the limits and the words of a view.
    pub fn view(&self, key: &[u8]) -> Option<(&Limits, &[u64])> {
        self.views.get(key).map(View::state)
    }

    /// Undoes a take of a request that is not admitted.
    pub fn put_back(&mut self, key: &[u8], now: &Now<'_>, taken: Cost, stamps: Stamps) {
        let Some(view) = self.views.get_mut(key) else { return };
        // What was frozen meanwhile is in the store, and stays there.
        let taken = self.unsent.withdraw(key, taken.get().min(view.unsent));
        view.unsent -= taken;
        view.give(now, Cost::new(taken), stamps);
    }

    /// Adds what was taken of a key elsewhere on this node, to be merged with the next payload: what the fallback admitted while
    /// the store did not answer.
    pub fn note(&mut self, key: Key, limits: Arc<Limits>, at: u64, taken: u64) {
        for dropped in self.unsent.add(key, limits, at, taken) {
            self.dropped = self.dropped.saturating_add(dropped.cost);
            if let Some(view) = self.views.get_mut(&dropped.key) {
                view.unsent = view.unsent.saturating_sub(dropped.cost);
            }
        }
    }

    /// Stores what the store said of a key: the state `words` under `limits`, without what is unsent.
    pub fn learn(&mut self, key: &[u8], limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) {
        if let Some(view) = self.views.get_mut(key) {
            self.overshoot = self.overshoot.saturating_add(view.renew(limits, words, now));
            return;
        }
        if self.views.len() >= Self::MAX_KEYS {
            self.forget_idle(at);
        }
        if self.views.len() < Self::MAX_KEYS {
            self.views.insert(Arc::from(key), View::new(limits, words, now, at));
        }
    }

    /// Forgets the view of a key, which is then read from the store again: after a reset.
    pub fn forget(&mut self, key: &[u8]) {
        self.views.remove(key);
    }

    /// Forgets the views that were not used for a while and have nothing unsent.
    pub fn forget_idle(&mut self, at: u64) {
        self.views.retain(|_, view| view.unsent > 0 || at < view.used_at.saturating_add(60 * RECENT));
    }

    /// Returns the payload to send now: the one that has no answer yet, or what is unsent, frozen. `at` is this node's time.
    pub fn payload(&mut self, at: u64) -> Option<&Payload> {
        if self.frozen.is_none() {
            let items = self.unsent.freeze(at);
            for item in &items.items {
                if let Some(view) = self.views.get_mut(&item.key) {
                    view.unsent = view.unsent.saturating_sub(item.cost);
                }
            }
            self.dropped = self.dropped.saturating_add(items.outdated);
            if items.items.is_empty() {
                return None;
            }
            self.sequence += 1;
            self.frozen = Some(Payload { sequence: self.sequence, taken_at: items.taken_at, items: items.items });
        }
        self.frozen.as_ref()
    }

    /// The store answered the payload with this number: it counts from now on.
    pub fn acknowledge(&mut self, sequence: u64) {
        if self.frozen.as_ref().is_some_and(|payload| payload.sequence == sequence) {
            self.frozen = None;
        }
    }

    /// Returns whether a key has enough unsent to be sent at once: a sixteenth of its capacity.
    pub fn is_urgent(&self, key: &[u8]) -> bool {
        self.views.get(key).is_some_and(|view| view.unsent >= view.state().0.capacity().div_ceil(16))
    }

    /// Returns whether a payload is being sent: what the store says of its keys may or may not include it.
    pub fn has_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Returns whether anything has to be sent.
    pub fn has_unsent(&self) -> bool {
        self.frozen.is_some() || !self.unsent.is_empty()
    }

    /// Returns the tokens that were dropped unsent.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the tokens that this node has seen admitted beyond a limit.
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
}

#[cfg(test)]
mod tests;
