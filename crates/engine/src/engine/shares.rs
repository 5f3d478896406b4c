//! This node's part of limits that many nodes share, for the time in which they cannot ask.
//!
//! A part is the rate divided by the number of nodes and the burst divided and rounded up, so that all parts together are
//! at least the whole, and at most one unit per node more. How much of it the key has used so far, only the store knows. So a
//! key starts with what its part gives in a second, at least one, and has earned the rest by the time it could have had it.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::{
    BucketTerms, Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, LimitError, Limits, Nanos, Rate,
    SlidingLog, SlidingSlices, SlidingWindow, Terms, TokenBucket, WindowTerms,
};

use crate::sent::{Folder, Register, SentLimits};

/// The parts that have been needed, with ids of their own.
#[derive(Debug)]
pub(super) struct Shares {
    register: Register,
    folder: ArcSwap<Folder>,
    /// Held while a new part is added, so that it goes into the folder that is in use.
    adding: Mutex<()>,
}

impl Shares {
    pub(super) fn new() -> Self {
        Self { register: Register::default(), folder: ArcSwap::from_pointee(Folder::new()), adding: Mutex::new(()) }
    }

    /// The part of one of `nodes` of `limits`.
    pub(super) fn of(&self, limits: &Limits, nodes: u32) -> SentLimits {
        let share = share(limits, nodes.into());
        if let Some(known) = self.register.find(&share) {
            return known;
        }
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, folder) = self.register.add(&share, &self.folder.load());
        if let Some(folder) = folder {
            self.folder.store(Arc::new(folder));
        }
        known
    }

    /// The numbers of all parts.
    pub(super) fn folder(&self) -> Arc<Folder> {
        self.folder.load_full()
    }
}

fn share(limits: &Limits, nodes: u64) -> Limits {
    // A part too small to be kept, such as one in a century divided, is replaced by the whole.
    let parts = limits.as_slice().iter().map(|limit| share_of(limit, nodes).unwrap_or(*limit));
    Limits::new(parts).unwrap_or_else(|_| limits.clone())
}

fn share_of(limit: &Limit, nodes: u64) -> Result<Limit, LimitError> {
    Ok(match limit.terms() {
        Terms::Unlimited | Terms::DenyAll => *limit,
        Terms::TokenBucket(terms) => {
            let part = bucket(&terms, nodes)?;
            let bucket = TokenBucket::new(part.rate, part.burst)?.max_debt(part.max_debt)?;
            bucket.initial(part.initial)?.into()
        }
        Terms::LeakyBucket { bucket: terms, free, max_wait } => {
            let part = bucket(&terms, nodes)?;
            let leaky = LeakyBucket::new(part.rate, part.burst)?.max_debt(part.max_debt)?;
            leaky.free(free.div_ceil(nodes))?.max_wait(max_wait).initial(part.initial)?.into()
        }
        Terms::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
            let (refill, burst) = (refill.div_ceil(nodes), burst.div_ceil(nodes));
            let initial = in_a_second(refill, period).min(burst).min(initial.div_ceil(nodes));
            let bucket = IntervalBucket::new(refill, period)?.burst(burst)?.steps(steps).max_wait(max_wait)?;
            bucket.max_debt(max_debt.div_ceil(nodes))?.initial(initial)?.into()
        }
        Terms::FixedWindow { window: terms, phase } => {
            let part = window(&terms, nodes);
            let window = FixedWindow::new(part.limit, part.length)?.phase(phase).max_debt(part.max_debt)?;
            window.initial(part.initial)?.into()
        }
        Terms::SlidingWindow(terms) => {
            let part = window(&terms, nodes);
            SlidingWindow::new(part.limit, part.length)?.max_debt(part.max_debt)?.initial(part.initial)?.into()
        }
        Terms::SlidingSlices { window: terms, precision } => {
            let part = window(&terms, nodes);
            let slices = SlidingSlices::new(part.limit, part.length, precision)?.max_debt(part.max_debt)?;
            slices.initial(part.initial)?.into()
        }
        Terms::SlidingLog { window: terms, minimum_gap, count_refused } => {
            let part = window(&terms, nodes);
            let log = SlidingLog::new(part.limit, part.length)?.max_debt(part.max_debt)?.initial(part.initial)?;
            let log = log.minimum_gap(minimum_gap)?;
            if count_refused { log.count_refused().into() } else { log.into() }
        }
        Terms::Concurrency { limit, lease, max_debt } => {
            Concurrency::new(limit.div_ceil(nodes), lease)?.max_debt(max_debt.div_ceil(nodes))?.into()
        }
    })
}

fn bucket(terms: &BucketTerms, nodes: u64) -> Result<BucketTerms, LimitError> {
    let per = terms.rate.per().as_nanos().saturating_mul(nodes);
    let rate = Rate::new(terms.rate.count().into(), Nanos::from_nanos(per))?;
    let burst = terms.burst.div_ceil(nodes);
    let initial = in_a_second(rate.count().into(), rate.per()).min(burst).min(terms.initial.div_ceil(nodes));
    Ok(BucketTerms { rate, burst, max_debt: terms.max_debt.div_ceil(nodes), initial })
}

fn window(terms: &WindowTerms, nodes: u64) -> WindowTerms {
    let limit = terms.limit.div_ceil(nodes);
    let initial = in_a_second(limit, terms.length).min(limit).min(terms.initial.div_ceil(nodes));
    WindowTerms { limit, length: terms.length, max_debt: terms.max_debt.div_ceil(nodes), initial }
}

/// At least one.
fn in_a_second(count: u64, per: Nanos) -> u64 {
    let units = u128::from(count) * u128::from(Nanos::SECOND.as_nanos()) / u128::from(per.as_nanos().max(1));
    u64::try_from(units).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::LimitText;

    fn check(limit: &str, algorithm: &str, burst: Option<u64>, nodes: u64, expected: Limit) {
        let limits = LimitText { limit, burst, algorithm: Some(algorithm) }.read().unwrap();
        assert_eq!(share(&limits, nodes).as_slice(), [expected], "{limit} {algorithm} for {nodes}");
    }

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn a_part_is_divided_and_rounded_up() {
        let bucket = |text, burst, debt, initial| {
            TokenBucket::new(rate(text), burst).unwrap().max_debt(debt).unwrap().initial(initial).unwrap().into()
        };
        check("100/s", "token_bucket", Some(1_000), 4, bucket("25/s", 250, 250, 25));
        check("10/s", "token_bucket", Some(5), 3, bucket("10/3s", 2, 2, 2));
        check("1/h", "token_bucket", Some(7), 2, bucket("1/2h", 4, 4, 1));
        check("60/m", "fixed_window", None, 4, {
            let window = FixedWindow::new(15, Nanos::from_secs(60)).unwrap();
            window.max_debt(15).unwrap().initial(1).unwrap().into()
        });
        check("5/s", "sliding_log", None, 2, SlidingLog::new(3, Nanos::SECOND).unwrap().into());
        check("60/m", "interval_bucket", Some(90), 4, {
            let bucket = IntervalBucket::new(15, Nanos::from_secs(60)).unwrap().burst(23).unwrap();
            bucket.max_debt(23).unwrap().initial(1).unwrap().into()
        });
        check("60/m", "sliding_slices", None, 4, {
            let slices = SlidingSlices::new(15, Nanos::from_secs(60), Nanos::from_secs(6)).unwrap();
            slices.max_debt(15).unwrap().initial(1).unwrap().into()
        });
        check("3", "concurrency", None, 2, Concurrency::new(2, Nanos::from_secs(60)).unwrap().into());
    }

    #[test]
    fn a_node_alone_has_the_whole_and_still_starts_carefully() {
        let whole = TokenBucket::new(rate("10/s"), 50).unwrap().initial(10).unwrap().into();
        check("10/s", "token_bucket", Some(50), 1, whole);
    }

    #[test]
    fn what_cannot_be_divided_stays_whole() {
        check("1/5000week", "token_bucket", None, 100, TokenBucket::new(rate("1/5000week"), 1).unwrap().into());
    }

    #[test]
    fn equal_parts_are_one() {
        let shares = Shares::new();
        let limits = LimitText { limit: "10/s", burst: None, algorithm: None }.read().unwrap();
        let (first, again) = (shares.of(&limits, 2), shares.of(&limits, 2));
        assert_eq!(first.sheet().id, again.sheet().id);
        assert_ne!(first.sheet().id, shares.of(&limits, 3).sheet().id);
    }
}
