//! A node's view of one key, and the store's merge of node charges.

use std::sync::Arc;

use tollgate_core::{
    Algorithm, Ask, BucketParams, Cost, Limit, Limits, Now, Outcome, Params, Report, Stamps, Verdict, WindowParams,
};

use super::{Charge, Key, RECENT_NANOS, ReadReason};

/// Maximum debt of a key, as a multiple of its capacity. The maximum bounds the time for which a key is refused after
/// nodes over-admitted. The factor suffices for a thousand nodes that each admit the whole capacity at the same
/// instant.
pub const MAX_DEBT_FACTOR: u64 = 1_023;

/// The state of a key in the store as last seen, plus this node's charges since then.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) key: Key,
    limits: Arc<Limits>,
    words: Vec<u64>,
    /// The limits of the last request.
    pub(super) asked: Arc<Limits>,
    /// The caller's id of these limits.
    asked_id: Option<u32>,
    /// Reserved charges, whose requests may still be refused.
    pub(super) reserved: u64,
    /// Charges of the current tick.
    pub(super) unsent: u64,
    /// Charges of earlier ticks that are not in a payload.
    sealed: u64,
    /// Charges in the payload that is being sent.
    pub(super) frozen: u64,
    pub(super) used_at: u64,
    /// Time at which the store last reported the key's state, by this node's clock.
    pub(super) renewed_at: u64,
    /// Store time of that report.
    as_of: u64,
    /// Whether the key is listed as used in the current tick.
    pub(super) is_listed: bool,
    /// Whether the key is in the list of keys to read.
    pub(super) is_to_be_read: bool,
}

impl View {
    pub(super) fn new(key: Key, limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) -> Self {
        Self {
            key,
            limits: limits.clone(),
            words: words.to_vec(),
            asked: limits.clone(),
            asked_id: None,
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

    pub(super) fn check_not_stale(&self, at: u64, stale_after: u64) -> Result<(), ReadReason> {
        if at >= self.renewed_at.saturating_add(stale_after) { Err(ReadReason::Stale) } else { Ok(()) }
    }

    /// Returns the amount of this node's charges that the store has possibly not counted.
    pub(super) fn pending(&self) -> u64 {
        [self.reserved, self.unsent, self.sealed, self.frozen].into_iter().fold(0, u64::saturating_add)
    }

    /// Ends the current tick and returns its charges.
    pub(super) fn seal(&mut self) -> u64 {
        let cost = std::mem::take(&mut self.unsent);
        self.sealed = self.sealed.saturating_add(cost);
        cost
    }

    pub(super) fn subtract_sealed(&mut self, cost: u64) {
        self.sealed = self.sealed.saturating_sub(cost);
    }

    pub(super) fn freeze(&mut self, cost: u64) {
        self.subtract_sealed(cost);
        self.frozen = self.frozen.saturating_add(cost);
    }

    /// Returns whether at least a sixteenth of the capacity is unsent.
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

    /// Decides a charge and takes its cost. If anything is taken, the state belongs to the charge's limits afterwards.
    pub(super) fn take(&mut self, charge: &Charge<'_>) -> Verdict<Stamps> {
        let &Charge { limits, limits_id, ask, now, at, .. } = charge;
        (self.used_at, self.asked_id) = (at, limits_id);
        if !Arc::ptr_eq(&self.asked, limits) {
            self.asked = limits.clone();
        }
        if !Arc::ptr_eq(&self.limits, limits) && *self.limits == **limits {
            self.limits = limits.clone();
        }
        if Arc::ptr_eq(&self.limits, limits) {
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

    /// Fast path: takes `cost` under the limits with this id, if the view has a state under these limits. `None`: the
    /// fast path does not apply and nothing has changed.
    #[inline]
    pub(super) fn try_take(&mut self, limits_id: u32, now: &Now<'_>, cost: Cost) -> Option<(Outcome, Report)> {
        if self.asked_id != Some(limits_id) || !Arc::ptr_eq(&self.limits, &self.asked) {
            return None;
        }
        let outcome = self.limits.try_decide_single(&mut &mut *self.words, now, cost)?;
        Some((outcome, self.limits.report_single(&&*self.words, now, cost)))
    }

    pub(super) fn refund(&mut self, now: &Now<'_>, taken: Cost, stamps: Stamps) {
        self.limits.refund(&mut *self.words, now, taken, Some(stamps));
    }

    /// Replaces the state with the store's state and takes the pending amount from the new state again. Answers may
    /// arrive out of order, so an answer slightly older than the last answer is ignored.
    pub(super) fn renew(&mut self, limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) {
        let as_of = now.mono().as_nanos();
        if as_of < self.as_of && self.as_of - as_of < RECENT_NANOS {
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

/// Returns the amount used beyond the capacity, rounded up.
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

/// Applies a node's charge to a state, as of `now`. A recent charge may go into debt, up to the maximum debt. An older
/// charge takes only the remaining tokens. Returns the amount taken.
///
/// A store calls this function for each payload item. `now` is the store time minus the payload's [charged
/// age](super::Payload::charged_age).
pub fn merge(limits: &Limits, words: &mut [u64], now: &Now<'_>, cost: u64, recent: bool) -> u64 {
    let cost = Cost::new(cost);
    let ask = if recent { Ask::Regardless(cost) } else { Ask::UpTo(cost) };
    let verdict = limits.decide(words, now, ask);
    if verdict.is_admitted() { verdict.taken().get() } else { 0 }
}

/// Returns the limits with a maximum debt of [`MAX_DEBT_FACTOR`] times the capacity, halved until the limits can
/// represent it. Returns `None` if an algorithm cannot be merged, or if the limits cannot represent even a debt of one
/// capacity.
pub fn with_debt(limits: &Limits) -> Option<Limits> {
    with_debt_that_fits(limits, |_| true)
}

/// Returns the limits with a maximum debt of [`MAX_DEBT_FACTOR`] times the capacity. Halves the debt until `fits`
/// accepts the limits, because some stores cannot represent a larger debt.
pub fn with_debt_that_fits(limits: &Limits, fits: impl Fn(&Limits) -> bool) -> Option<Limits> {
    let each: Option<Vec<Limit>> =
        limits.as_slice().iter().map(|limit| limit_with_largest_debt(limit, |limit| fits(&limit.into()))).collect();
    Limits::new(each?).ok()
}

fn limit_with_largest_debt(limit: &Limit, fits: impl Fn(Limit) -> bool) -> Option<Limit> {
    let params = limit.params();
    // Ten candidates: 1023, 511, …, 3 and 1 times the capacity.
    let debts = std::iter::successors(Some(MAX_DEBT_FACTOR), |debt| Some(debt / 2)).take(10);
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
