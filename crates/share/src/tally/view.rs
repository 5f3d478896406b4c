//! What a node believes of one key, and how a store merges what nodes took.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, BucketParams, Cost, Limit, Limits, Now, Params, Stamps, Verdict, WindowParams};

/// How many capacities a key may owe. It bounds how long a key is refused after nodes have admitted too much, and is larger than
/// the excess of a thousand nodes.
pub const DEBT: u64 = 1_023;

/// The state of a key in the store as last seen, plus what this node took since.
#[derive(Clone, Debug)]
pub(super) struct View {
    limits: Arc<Limits>,
    words: Vec<u64>,
    /// What was taken here and is not in a payload.
    pub(super) unsent: u64,
    pub(super) used_at: u64,
    /// What the store owed beyond the capacity when it last answered.
    debt: u64,
}

impl View {
    pub(super) fn new(limits: &Arc<Limits>, words: &[u64], now: &Now<'_>, at: u64) -> Self {
        let debt = debt(limits, words, now);
        Self { limits: limits.clone(), words: words.to_vec(), unsent: 0, used_at: at, debt }
    }

    pub(super) fn state(&self) -> (&Limits, &[u64]) {
        (&self.limits, &self.words)
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
        if *self.limits == **limits {
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

    /// Replaces the state by that of the store, and takes what is unsent from it again. Returns by how much more than before the
    /// store is in debt.
    pub(super) fn renew(&mut self, limits: &Arc<Limits>, words: &[u64], now: &Now<'_>) -> u64 {
        let debt = debt(limits, words, now);
        let risen = debt.saturating_sub(self.debt);
        (self.limits, self.words, self.debt) = (limits.clone(), words.to_vec(), debt);
        merge(&self.limits, &mut self.words, now, self.unsent, true);
        risen
    }
}

/// Returns what is used beyond the capacity.
fn debt(limits: &Limits, words: &[u64], now: &Now<'_>) -> u64 {
    let (mut first, mut most) = (0, 0);
    for limit in limits.as_slice() {
        let end = (first + limit.words()).min(words.len());
        let used = limit.used(&words[first..end], now).floor();
        most = most.max(used.saturating_sub(limit.capacity()));
        first = end;
    }
    most
}

/// Charges what a node took earlier, as of `now`: a recent take may go into debt, an older one takes only what is left. Returns what was taken;
/// what is beyond the debt that the limits allow is not.
///
/// This is what a store does with an item of a payload. `now` is the store's time less the age of the payload.
pub fn merge(limits: &Limits, words: &mut [u64], now: &Now<'_>, cost: u64, recent: bool) -> u64 {
    let cost = Cost::new(cost);
    let ask = if recent { Ask::Regardless(cost) } else { Ask::UpTo(cost) };
    let verdict = limits.decide(words, now, ask);
    if verdict.is_admitted() { verdict.taken().get() } else { 0 }
}

/// Returns the limits with a debt of [`DEBT`] capacities, or as much less as they can represent; `None` if an algorithm cannot be
/// merged.
pub fn with_debt(limits: &Limits) -> Option<Limits> {
    let each: Option<Vec<Limit>> = limits.as_slice().iter().map(limit_with_debt).collect();
    Limits::new(each?).ok()
}

fn limit_with_debt(limit: &Limit) -> Option<Limit> {
    let params = limit.params();
    // Without a loop of unknown length: at most ten halvings.
    let debts = std::iter::successors(Some(DEBT), |debt| Some(debt / 2)).take(10);
    debts.filter_map(|debt| with_max_debt(params, limit.capacity().checked_mul(debt)?)).next()
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
