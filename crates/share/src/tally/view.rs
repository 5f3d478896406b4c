//! A node's view of one key, and how a store merges what nodes took.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, BucketParams, Cost, Limit, Limits, Now, Params, Stamps, Verdict, WindowParams};

use super::{Key, RECENT, Unread};

/// How many capacities a key may owe. It bounds how long a key is refused after nodes have admitted too much, and is larger than
/// the excess of a thousand nodes.
pub const DEBT: u64 = 1_023;

/// The state of a key in the store as last seen, plus what this node took since.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) key: Key,
    limits: Arc<Limits>,
    words: Vec<u64>,
    /// The limits that were last asked for.
    pub(super) asked: Arc<Limits>,
    /// What was taken for requests that may still be refused.
    pub(super) reserved: u64,
    /// What was taken in the present tick.
    pub(super) unsent: u64,
    /// What was taken in ticks before it and is not in a payload.
    sealed: u64,
    /// What is in the payload that is being sent.
    pub(super) frozen: u64,
    pub(super) used_at: u64,
    /// When the store last said what it knows.
    pub(super) renewed_at: u64,
    /// The store's time of what it said.
    as_of: u64,
    /// Whether it is listed as used in the present tick.
    pub(super) is_listed: bool,
    /// Whether it is listed to be read.
    pub(super) is_to_be_read: bool,
}

impl View {
    pub(super) fn new(key: Key, limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) -> Self {
        Self {
            key,
            limits: limits.clone(),
            words: words.to_vec(),
            asked: limits.clone(),
            reserved: 0,
            unsent: 0,
            sealed: 0,
            frozen: 0,
            used_at: at,
            renewed_at: at,
            as_of: now.mono().as_nanos(),
            is_listed: false,
            is_to_be_read: false,
        }
    }

    pub(super) fn state(&self) -> (&Limits, &[u64]) {
        (&self.limits, &self.words)
    }

    pub(super) fn check_age(&self, at: u64, stale_after: u64) -> Result<(), Unread> {
        if at >= self.renewed_at.saturating_add(stale_after) { Err(Unread::Stale) } else { Ok(()) }
    }

    /// Returns what this node took and the store may not have counted.
    pub(super) fn pending(&self) -> u64 {
        [self.reserved, self.unsent, self.sealed, self.frozen].into_iter().fold(0, u64::saturating_add)
    }

    /// Ends the present tick; returns what was taken in it.
    pub(super) fn seal(&mut self) -> u64 {
        let cost = std::mem::take(&mut self.unsent);
        self.sealed = self.sealed.saturating_add(cost);
        cost
    }

    pub(super) fn drop_sealed(&mut self, cost: u64) {
        self.sealed = self.sealed.saturating_sub(cost);
    }

    pub(super) fn freeze(&mut self, cost: u64) {
        self.drop_sealed(cost);
        self.frozen = self.frozen.saturating_add(cost);
    }

    /// Returns whether a sixteenth of the capacity is unsent.
    pub(super) fn is_urgent(&self) -> bool {
        self.unsent >= self.limits.capacity().div_ceil(16)
    }

    pub(super) fn weigh(&self, limits: &Limits, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        if *self.limits == *limits {
            limits.weigh(&*self.words, now, ask)
        } else {
            limits.weigh_from(&self.limits, &*self.words, now, ask)
        }
    }

    /// Decides and takes, under these limits from then on.
    pub(super) fn take(&mut self, limits: &Arc<Limits>, now: &Now<'_>, at: u64, ask: Ask) -> Verdict<Stamps> {
        self.used_at = at;
        if !Arc::ptr_eq(&self.asked, limits) {
            self.asked = limits.clone();
        }
        if Arc::ptr_eq(&self.limits, limits) || *self.limits == **limits {
            return limits.decide(&mut *self.words, now, ask);
        }
        self.words.resize(limits.words().max(self.limits.words()), 0);
        let (verdict, adopted) = limits.decide_from(&self.limits, &mut *self.words, now, ask);
        if adopted {
            self.limits = limits.clone();
        }
        self.words.truncate(self.limits.words());
        verdict
    }

    pub(super) fn give(&mut self, now: &Now<'_>, taken: Cost, stamps: Stamps) {
        self.limits.refund(&mut *self.words, now, taken, Some(stamps));
    }

    /// Replaces the state by that of the store, and takes what is pending from it again. Answers may arrive in another order than the
    /// store gave them, so one that is a little older than the last one is ignored.
    pub(super) fn renew(&mut self, limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) {
        let as_of = now.mono().as_nanos();
        if as_of < self.as_of && self.as_of - as_of < RECENT {
            return;
        }
        (self.as_of, self.renewed_at) = (as_of, at);
        self.limits = if *self.asked == **limits { self.asked.clone() } else { limits.clone() };
        self.words.clear();
        self.words.extend_from_slice(words);
        let pending = self.pending();
        if pending > 0 {
            merge(&self.limits, &mut self.words, now, pending, true);
        }
    }
}

/// Returns what is used beyond the capacity, rounded up.
pub(super) fn debt(limits: &Limits, words: &[u64], now: &Now<'_>) -> u64 {
    let (mut first, mut most) = (0, 0);
    for limit in limits.as_slice() {
        let end = (first + limit.words()).min(words.len());
        let used = limit.used(&words[first..end], now).ceil();
        most = most.max(used.saturating_sub(limit.capacity()));
        first = end;
    }
    most
}

/// Charges what a node took earlier, as of `now`: a recent take may go into debt, an older one takes only what is left. Returns what was taken;
/// what is beyond the debt that the limits allow is not.
///
/// This is what a store does with an item of a payload. `now` is the store's time less the [age](super::Payload::charged_age) that
/// the payload is charged with.
pub fn merge(limits: &Limits, words: &mut [u64], now: &Now<'_>, cost: u64, recent: bool) -> u64 {
    let cost = Cost::new(cost);
    let ask = if recent { Ask::Regardless(cost) } else { Ask::UpTo(cost) };
    let verdict = limits.decide(words, now, ask);
    if verdict.is_admitted() { verdict.taken().get() } else { 0 }
}

/// Returns the limits with a debt of [`DEBT`] capacities, or as much less as they can represent; `None` if an algorithm cannot be
/// merged.
pub fn with_debt(limits: &Limits) -> Option<Limits> {
    with_debt_of(limits, |_| true)
}

/// Returns the limits with a debt of [`DEBT`] capacities, or as much less as `fits`: a store may be able to represent less.
pub fn with_debt_of(limits: &Limits, fits: impl Fn(&Limits) -> bool) -> Option<Limits> {
    let each: Option<Vec<Limit>> =
        limits.as_slice().iter().map(|limit| limit_with_debt(limit, |limit| fits(&limit.into()))).collect();
    Limits::new(each?).ok()
}

fn limit_with_debt(limit: &Limit, fits: impl Fn(Limit) -> bool) -> Option<Limit> {
    let params = limit.params();
    // A bounded search: at most ten halvings.
    let debts = std::iter::successors(Some(DEBT), |debt| Some(debt / 2)).take(10);
    let mut limits = debts.filter_map(|debt| with_max_debt(params, limit.capacity().checked_mul(debt)?));
    limits.find(|limit| fits(*limit))
}

fn with_max_debt(params: Params, debt: u64) -> Option<Limit> {
    let window = |window: WindowParams| WindowParams { max_debt: debt.max(window.max_debt), ..window };
    let params = match params {
        Params::TokenBucket(bucket) => {
            Params::TokenBucket(BucketParams { max_debt: debt.max(bucket.max_debt), ..bucket })
        }
        Params::FixedWindow { window: one, phase } => Params::FixedWindow { window: window(one), phase },
        Params::SlidingWindow(one) => Params::SlidingWindow(window(one)),
        Params::SlidingSlices { window: one, precision } => Params::SlidingSlices { window: window(one), precision },
        Params::Unlimited
        | Params::DenyAll
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. }
        | Params::SlidingLog { .. }
        | Params::Concurrency { .. } => return None,
    };
    Limit::from_params(params).ok()
}
