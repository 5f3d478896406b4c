//! This node's share of the limits that several nodes use together, for the time in which they
//! cannot reach the store.
//!
//! A share is the rate divided by the number of nodes, and the burst divided and rounded up: all shares together are
//! at least the whole, and at most one unit per node more. If the store has answered for a key before, the key
//! starts with this node's share of what was left by that answer; otherwise it starts as a new key. Windows keep the
//! boundaries that they have in the store: calendar and aligned windows always do, and for others the first window
//! of a share ends when the store reported.
//!
//! A share may be in debt up to the whole limit, for requests that fit what was left but not the
//! share (`policy.rs`).

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::core::{Algorithm, Nanos, Params, Phase, WindowParams};
use tollgate::{Limit, LimitError, Limits, Rate};

use super::last_seen::Usage;
use crate::inline::{InlineLimits, Interner, LimitIds};

/// The shares needed so far, with their own ids.
#[derive(Debug)]
pub(super) struct Shares {
    interner: Interner,
    limit_ids: ArcSwap<LimitIds>,
    /// Held while a share is added, so that it is added to the table in use.
    adding: Mutex<()>,
}

impl Shares {
    pub(super) fn new() -> Self {
        Self {
            interner: Interner::default(),
            limit_ids: ArcSwap::from_pointee(LimitIds::new()),
            adding: Mutex::new(()),
        }
    }

    /// Returns the share that one of `nodes` has of `limits`.
    pub(super) fn share_of_node(&self, limits: &Limits, nodes: u32) -> InlineLimits {
        let share = divide_limits(limits, nodes.into());
        if let Some(known) = self.interner.find(&share) {
            return known;
        }
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, limit_ids) = self.interner.add(&share, &self.limit_ids.load());
        if let Some(limit_ids) = limit_ids {
            self.limit_ids.store(Arc::new(limit_ids));
        }
        known
    }

    /// Returns the limits of all shares by id.
    pub(super) fn limit_ids(&self) -> Arc<LimitIds> {
        self.limit_ids.load_full()
    }
}

fn divide_limits(limits: &Limits, nodes: u64) -> Limits {
    // A share whose rate is too slow to be represented, such as one per century divided, is
    // replaced by the whole.
    let shares = limits.as_slice().iter().map(|limit| share_of(limit, nodes).unwrap_or(*limit));
    Limits::new(shares).unwrap_or_else(|_| limits.clone())
}

fn share_of(limit: &Limit, nodes: u64) -> Result<Limit, LimitError> {
    let divide = |amount: &mut u64| *amount = amount.div_ceil(nodes);
    let mut params = limit.params();
    let debt = match &mut params {
        Params::Unlimited | Params::DenyAll => return Ok(*limit),
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
            let per = bucket.rate.per().as_nanos().saturating_mul(nodes);
            bucket.rate = Rate::new(bucket.rate.count().into(), Nanos::from_nanos(per))?;
            divide(&mut bucket.burst);
            divide(&mut bucket.initial);
            bucket.max_debt
        }
        Params::IntervalBucket { refill, burst, initial, max_debt, .. } => {
            [refill, burst, initial].into_iter().for_each(divide);
            *max_debt
        }
        Params::FixedWindow { window, phase } => {
            // Only the store knows the offsets of spread windows. The first window ends when the store
            // said it would; each later one begins with a request.
            if *phase == Phase::Spread {
                *phase = Phase::FirstRequest;
            }
            divide_window(window, nodes)
        }
        Params::SlidingWindow(window) | Params::SlidingSlices { window, .. } | Params::SlidingLog { window, .. } => {
            divide_window(window, nodes)
        }
        Params::Concurrency { limit, max_debt, .. } => {
            divide(limit);
            *max_debt
        }
    };
    if let Params::LeakyBucket { free, .. } = &mut params {
        divide(free);
    }
    let debt = debt.div_ceil(nodes);
    let whole = limit.capacity().saturating_sub(limit.capacity().div_ceil(nodes));
    let with_debt = |debt| Limit::from_params(with_debt(params, debt));
    with_debt(debt.max(whole)).or_else(|_| with_debt(debt)).or_else(|_| with_debt(0))
}

/// Divides the parameters of a window, and returns its maximum debt.
fn divide_window(window: &mut WindowParams, nodes: u64) -> u64 {
    window.limit = window.limit.div_ceil(nodes);
    window.initial = window.initial.div_ceil(nodes);
    window.max_debt
}

fn with_debt(mut params: Params, debt: u64) -> Params {
    match &mut params {
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => bucket.max_debt = debt,
        Params::FixedWindow { window, .. }
        | Params::SlidingWindow(window)
        | Params::SlidingSlices { window, .. }
        | Params::SlidingLog { window, .. } => window.max_debt = debt,
        Params::IntervalBucket { max_debt, .. } | Params::Concurrency { max_debt, .. } => *max_debt = debt,
        Params::Unlimited | Params::DenyAll => {}
    }
    params
}

/// The initial state of the share of a key that the store has answered for.
pub(super) struct ShareStart {
    /// The share with an initial amount, such that a new key under it has the state of this key.
    pub(super) limits: Limits,
    /// The number of leases taken of each concurrency limit.
    pub(super) held: [u64; Limits::MAX],
}

impl ShareStart {
    /// Begins `share`, which one of `nodes` has of `limits`, with its part of what is left.
    pub(super) fn new(share: &Limits, limits: &Limits, nodes: u32, used: &Usage) -> Option<Self> {
        let mut held = [0; Limits::MAX];
        let mut starts = Vec::with_capacity(limits.as_slice().len());
        for (position, (share, limit)) in share.as_slice().iter().zip(limits.as_slice()).enumerate() {
            let left = used.amount_left(position, limit);
            let part = left.map(|left| left.div_ceil(nodes.into()).min(share.capacity()));
            if let (Some(part), Some(held)) = (part, held.get_mut(position)) {
                *held = share.capacity() - part;
            }
            let start = part.map(|part| with_initial(share.params(), part, used.until_full(position)));
            starts.push(start.and_then(|params| Limit::from_params(params).ok()).unwrap_or(*share));
        }
        Some(Self { limits: Limits::new(starts).ok()?, held })
    }
}

/// Returns the limit with `left` as the initial amount, and with `until_full` as the length of its first window or
/// lease.
fn with_initial(mut params: Params, left: u64, until_full: Nanos) -> Params {
    let shorten = |length: &mut Nanos| *length = until_full.clamp(Nanos::from_nanos(1), *length);
    match &mut params {
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => bucket.initial = left,
        Params::IntervalBucket { initial, .. } => *initial = left,
        Params::FixedWindow { window, phase } => {
            window.initial = left;
            if *phase == Phase::FirstRequest {
                shorten(&mut window.length);
            }
        }
        Params::SlidingWindow(window) | Params::SlidingSlices { window, .. } | Params::SlidingLog { window, .. } => {
            window.initial = left;
        }
        Params::Concurrency { lease, .. } => shorten(lease),
        Params::Unlimited | Params::DenyAll => {}
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::LimitText;
    use tollgate::{Concurrency, FixedWindow, IntervalBucket, SlidingLog, SlidingSlices, TokenBucket};

    fn check(limit: &str, algorithm: &str, burst: Option<u64>, nodes: u64, expected: Limit) {
        let limits = LimitText { limit, burst, algorithm: Some(algorithm) }.read().unwrap();
        assert_eq!(divide_limits(&limits, nodes).as_slice(), [expected], "{limit} {algorithm} for {nodes}");
    }

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn share_is_divided_and_rounded_up() {
        let bucket = |text, burst, debt| TokenBucket::new(rate(text), burst).unwrap().max_debt(debt).unwrap().into();
        check("100/s", "token_bucket", Some(1_000), 4, bucket("25/s", 250, 750));
        check("10/s", "token_bucket", Some(5), 3, bucket("10/3s", 2, 3));
        check("1/h", "token_bucket", Some(7), 2, bucket("1/2h", 4, 4));
        let minute = Nanos::from_secs(60);
        let fixed = FixedWindow::new(15, minute).unwrap().max_debt(45).unwrap();
        check("60/m", "fixed_window", None, 4, fixed.into());
        check("5/s", "sliding_log", None, 2, SlidingLog::new(3, Nanos::SECOND).unwrap().max_debt(3).unwrap().into());
        let interval = IntervalBucket::new(15, minute).unwrap().burst(23).unwrap().max_debt(67).unwrap();
        check("60/m", "interval_bucket", Some(90), 4, interval.into());
        let slices = SlidingSlices::new(15, minute, Nanos::from_secs(6)).unwrap().max_debt(45).unwrap();
        check("60/m", "sliding_slices", None, 4, slices.into());
        check("3", "concurrency", None, 2, Concurrency::new(2, minute).unwrap().max_debt(2).unwrap().into());
    }

    #[test]
    fn single_node_has_the_whole_limit() {
        let whole = TokenBucket::new(rate("10/s"), 50).unwrap().into();
        check("10/s", "token_bucket", Some(50), 1, whole);
    }

    #[test]
    fn limit_that_cannot_be_divided_stays_whole() {
        check("1/5000week", "token_bucket", None, 100, TokenBucket::new(rate("1/5000week"), 1).unwrap().into());
    }

    #[test]
    fn equal_shares_have_one_id() {
        let shares = Shares::new();
        let limits = LimitText { limit: "10/s", burst: None, algorithm: None }.read().unwrap();
        let (first, again) = (shares.share_of_node(&limits, 2), shares.share_of_node(&limits, 2));
        assert_eq!(first.entry().id, again.entry().id);
        assert_ne!(first.entry().id, shares.share_of_node(&limits, 3).entry().id);
    }
}
