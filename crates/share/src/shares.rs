//! The local fallback: what a node admits of a shared limit while it cannot reach the store.
//!
//! **A share** is the limit with rate and burst divided by the number of nodes `N`, the burst rounded up, so that all shares
//! together are at least the whole. A key that the store has answered about begins with `⌈left/N⌉` tokens, `left` being what
//! the store last reported; an unknown key begins as a new one. It is not a conversion of the store's state: a log with 60 of
//! 100 used, converted to a share of 25, would have nothing left.
//!
//! **Debt.** With `h` tokens in the share, a request of cost `c` is admitted if `c ≤ h`; or, if `h ≥ 1`, if `c` fits what was
//! left less what this node has admitted since, `c ≤ left − (⌈left/N⌉ − h)`. The share is then in debt, and admits
//! nothing until that is repaid. So a node admits at most its share plus one cost less one token.
//!
//! **Arrears.** When the store answers again, the node charges it with what it admitted and still counts, before its next request
//! for the key. What the store had counted before the fault refills first, at `r`; the rest of the refill belongs to the shares, at
//! `r/N` each. So the arrears of a key are what was admitted here, but at most what is used of the share: none once it is full.
//!
//! **Bound.** Let `u` be used in the store when it is lost, `uᵢ ≤ u` as node `i` last saw it, `lᵢ = B − uᵢ`, `aᵢ ≤ ⌈lᵢ/N⌉ + r·P/N + c − 1`
//! what node `i` admits in a fault of length `P`, and `pᵢ ≥ aᵢ − (r·P − uᵢ)⁺/N` its arrears. An interval that begins `s` before
//! the fault has at most `u + r·s` before it. During the fault the excess is therefore at most `u + Σaᵢ − B − r·P ≤ Σ⌈lᵢ/N⌉ − left +
//! N·(c − 1)`. After it the store has `(u − r·P)⁺` used, and the arrears of the nodes that have charged them, so the excess is at most
//!
//! ```text
//! (1/N)·Σ(r·P − uᵢ)⁺ − (r·P − u)⁺ + Σ pᵢ over nodes that have not ≤ min(B, r·P) + B·(N − 1)/N + N·c
//! ```
//!
//! and nothing is left of the second term when all nodes have: the excess is owed and repaid. In a window nothing refills, so the
//! first term is zero.

use tollgate_core::{Algorithm, Limit, LimitError, Limits, Nanos, Params, Phase, Rate, Report, WindowParams};

/// How much of one limit of a key was used at an instant, and when all of it is restored without further requests. Times are
/// nanoseconds of a monotonic clock of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The amount used, from which what is left follows under any parameters.
    pub used: u64,
    /// When it was reported.
    pub at: u64,
    /// When the limit is full again.
    pub full_at: u64,
}

impl Seen {
    /// Creates it from a report at `now`.
    pub fn new(report: &Report, now: u64) -> Self {
        let used = report.limit.saturating_sub(report.remaining);
        Self { used, at: now, full_at: now.saturating_add(report.reset.as_nanos()) }
    }

    /// Returns how much of `limit` is used at an instant without further requests. If a report does not say, the latest
    /// possible time is assumed: sliding windows, logs and leases are assumed to refill all at once.
    pub fn used_at(&self, limit: &Limit, now: u64) -> u64 {
        if now >= self.full_at {
            return 0;
        }
        let elapsed = u128::from(now.saturating_sub(self.at));
        let refilled = match limit.params() {
            Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
                elapsed * u128::from(bucket.rate.count()) / u128::from(bucket.rate.per().as_nanos().max(1))
            }
            Params::IntervalBucket { refill, period, .. } => {
                let passed = self.steps_from(self.at, period) - self.steps_from(now, period);
                u128::from(passed) * u128::from(refill)
            }
            Params::FixedWindow { .. }
            | Params::SlidingWindow(_)
            | Params::SlidingSlices { .. }
            | Params::SlidingLog { .. }
            | Params::Concurrency { .. }
            | Params::Unlimited
            | Params::DenyAll => 0,
        };
        self.used.saturating_sub(u64::try_from(refilled).unwrap_or(u64::MAX))
    }

    /// Returns how much of `limit` is left at an instant without further requests.
    pub fn left_at(&self, limit: &Limit, now: u64) -> u64 {
        limit.capacity().saturating_sub(self.used_at(limit, now))
    }

    /// Returns the first instant at which `cost` is left of `limit`; `cost` is at most its capacity.
    pub fn instant_left(&self, limit: &Limit, cost: u64) -> u64 {
        let missing = u128::from(self.used.saturating_sub(limit.capacity().saturating_sub(cost)));
        let wait = match limit.params() {
            Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
                (missing * u128::from(bucket.rate.per().as_nanos())).div_ceil(u128::from(bucket.rate.count().max(1)))
            }
            Params::IntervalBucket { refill, period, .. } => {
                let steps = u64::try_from(missing.div_ceil(u128::from(refill.max(1)))).unwrap_or(u64::MAX);
                let further = self.steps_from(self.at, period).saturating_sub(steps);
                return self.full_at.saturating_sub(further.saturating_mul(period.as_nanos()));
            }
            _ if missing == 0 => 0,
            _ => u128::MAX,
        };
        self.at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)).min(self.full_at)
    }

    /// Returns the number of steps of an interval bucket between an instant and the one that fills it.
    fn steps_from(&self, at: u64, period: Nanos) -> u64 {
        self.full_at.saturating_sub(at).div_ceil(period.as_nanos().max(1))
    }
}

/// Returns the share that one of `nodes` has of `limits`.
pub fn share_of_node(limits: &Limits, nodes: u32) -> Limits {
    // A share whose rate is too slow to be represented, such as one per century divided, is
    // replaced by the whole.
    let shares = limits.as_slice().iter().map(|limit| share_of(limit, nodes.max(1).into()).unwrap_or(*limit));
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
    if let Some(max_debt) = max_debt_of(&mut params) {
        *max_debt = debt;
    }
    params
}

fn max_debt_of(params: &mut Params) -> Option<&mut u64> {
    match params {
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => Some(&mut bucket.max_debt),
        Params::FixedWindow { window, .. }
        | Params::SlidingWindow(window)
        | Params::SlidingSlices { window, .. }
        | Params::SlidingLog { window, .. } => Some(&mut window.max_debt),
        Params::IntervalBucket { max_debt, .. } | Params::Concurrency { max_debt, .. } => Some(max_debt),
        Params::Unlimited | Params::DenyAll => None,
    }
}

/// The initial state of the share of a key that the store has answered for.
#[derive(Clone, Debug)]
pub struct ShareStart {
    /// The share with an initial amount, such that a new key under it has the state of this key.
    pub limits: Limits,
    /// The number of leases taken of each concurrency limit.
    pub held: [u64; Limits::MAX],
}

impl ShareStart {
    /// Begins `share`, which one of `nodes` has of `limits`, with its part of what is left of each of them.
    pub fn new(
        share: &Limits,
        limits: &Limits,
        nodes: u32,
        now: u64,
        seen: impl Fn(usize) -> Option<Seen>,
    ) -> Option<Self> {
        let mut held = [0; Limits::MAX];
        let mut starts = Vec::with_capacity(limits.as_slice().len());
        for (position, (share, limit)) in share.as_slice().iter().zip(limits.as_slice()).enumerate() {
            let start = seen(position).map(|seen| {
                let part = part_of_node(seen.left_at(limit, now), nodes).min(share.capacity());
                if let Some(held) = held.get_mut(position) {
                    *held = share.capacity() - part;
                }
                with_initial(share.params(), part, Nanos::from_nanos(seen.full_at.saturating_sub(now)))
            });
            starts.push(start.and_then(|params| Limit::from_params(params).ok()).unwrap_or(*share));
        }
        Some(Self { limits: Limits::new(starts).ok()?, held })
    }
}

/// Returns the part of what is left that one of `nodes` begins with.
pub fn part_of_node(left: u64, nodes: u32) -> u64 {
    left.div_ceil(nodes.max(1).into())
}

/// Returns whether a cost fits what was left, less what this node has admitted since. `at_hand` is what its share has.
pub fn fits_what_was_left(cost: u64, at_hand: u64, left: u64, nodes: u32) -> bool {
    let spent_here = part_of_node(left, nodes).saturating_sub(at_hand);
    at_hand > 0 && cost <= left.saturating_sub(spent_here)
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

/// What a node admitted of one limit of a key and still counts, to be charged to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrears {
    admitted: u64,
    /// The share after the last request.
    share: Seen,
}

impl Arrears {
    /// Adds a cost that the share admitted, and reported so afterwards. `owes`: it was taken into debt.
    pub fn add(&mut self, share: &Limit, cost: u64, owes: bool, report: &Report, now: u64) {
        self.admitted = self.due(share, now).saturating_add(cost);
        self.share = Seen::new(report, now);
        if owes {
            // The report does not say how deep the debt is: at most one cost.
            self.share.used = self.share.used.saturating_add(cost);
        }
    }

    /// Returns what is owed under the share.
    pub fn due(&self, share: &Limit, now: u64) -> u64 {
        self.admitted.min(self.share.used_at(share, now))
    }

    /// Subtracts what was given back.
    pub fn give_back(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_sub(cost);
    }

    /// Adds the arrears of the same limit that could not be charged.
    pub fn restore(&mut self, earlier: &Self) {
        self.admitted = self.admitted.saturating_add(earlier.admitted);
        if self.share.at < earlier.share.at {
            self.share = earlier.share;
        }
    }
}

/// Returns the limits under which a store is charged with arrears: they may owe twice their capacity, so that nothing that was
/// admitted is forgotten. `None` if a limit cannot owe that: then the store is charged with what is left of it.
pub fn with_arrears(limits: &Limits) -> Option<Limits> {
    let owing = |limit: &Limit| {
        let mut params = limit.params();
        if let Params::SlidingLog { .. } = params {
            // Each unit of debt would be a word of state.
            return None;
        }
        let max_debt = max_debt_of(&mut params)?;
        *max_debt = (*max_debt).max(limit.capacity().checked_mul(2)?);
        Limit::from_params(params).ok()
    };
    Limits::new(limits.as_slice().iter().map(owing).collect::<Option<Vec<Limit>>>()?).ok()
}

/// Returns whether what is admitted under these limits is charged to the store afterwards: slots are not, because each is
/// released by its holder.
pub fn has_arrears(limits: &Limits) -> bool {
    !limits.as_slice().iter().any(|limit| matches!(limit.params(), Params::Concurrency { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Concurrency, FixedWindow, IntervalBucket, Retry, SlidingLog, SlidingSlices, TokenBucket};

    const SECOND: u64 = 1_000_000_000;
    const MINUTE: Nanos = Nanos::from_secs(60);

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn bucket(text: &str, burst: u64) -> Limit {
        TokenBucket::new(rate(text), burst).unwrap().into()
    }

    fn check(limit: impl Into<Limit>, nodes: u32, expected: impl Into<Limit>) {
        let (limit, expected) = (limit.into(), expected.into());
        assert_eq!(share_of_node(&limit.into(), nodes).as_slice(), [expected], "{limit:?} for {nodes}");
    }

    #[test]
    fn share_is_divided_and_rounded_up() {
        let share = |text, burst, debt| TokenBucket::new(rate(text), burst).unwrap().max_debt(debt).unwrap();
        check(bucket("100/s", 1_000), 4, share("25/s", 250, 750));
        check(bucket("10/s", 5), 3, share("10/3s", 2, 3));
        check(bucket("1/h", 7), 2, share("1/2h", 4, 4));
        check(FixedWindow::new(60, MINUTE).unwrap(), 4, FixedWindow::new(15, MINUTE).unwrap().max_debt(45).unwrap());
        let log = |limit| SlidingLog::new(limit, Nanos::SECOND).unwrap();
        check(log(5), 2, log(3).max_debt(3).unwrap());
        let interval = |refill, burst| IntervalBucket::new(refill, MINUTE).unwrap().burst(burst).unwrap();
        check(interval(60, 90), 4, interval(15, 23).max_debt(67).unwrap());
        let slices = |limit| SlidingSlices::new(limit, MINUTE, Nanos::from_secs(6)).unwrap();
        check(slices(60), 4, slices(15).max_debt(45).unwrap());
        let slots = |limit| Concurrency::new(limit, MINUTE).unwrap();
        check(slots(3), 2, slots(2).max_debt(2).unwrap());
    }

    #[test]
    fn single_node_has_the_whole_limit() {
        check(bucket("10/s", 50), 1, bucket("10/s", 50));
    }

    #[test]
    fn limit_that_cannot_be_divided_stays_whole() {
        check(bucket("1/5000week", 1), 100, bucket("1/5000week", 1));
    }

    fn report(limit: u64, remaining: u64, reset: u64) -> Report {
        Report { limit, remaining, retry: Retry::NOW, reset: Nanos::from_secs(reset) }
    }

    #[test]
    fn arrears_are_what_was_admitted_until_the_share_refills() {
        // A share of 10 a second and 100 at once, of which 40 were used before.
        let share = bucket("10/s", 100);
        let mut arrears = Arrears::default();
        arrears.add(&share, 20, false, &report(100, 40, 6), 0);
        let due = |arrears: &Arrears, seconds: u64| arrears.due(&share, seconds * SECOND);
        assert_eq!([0, 3, 4, 5, 6].map(|at| due(&arrears, at)), [20, 20, 20, 10, 0], "the first 40 refill first");
        arrears.add(&share, 30, false, &report(100, 60, 4), 5 * SECOND);
        assert_eq!(due(&arrears, 5), 40);
        arrears.give_back(15);
        assert_eq!(due(&arrears, 5), 25);
        assert_eq!(due(&arrears, 100), 0);
    }

    #[test]
    fn arrears_include_debt_and_end_with_the_window() {
        let share: Limit = FixedWindow::new(10, MINUTE).unwrap().max_debt(50).unwrap().into();
        let mut arrears = Arrears::default();
        arrears.add(&share, 30, true, &report(10, 0, 60), 0);
        assert_eq!((arrears.due(&share, 59 * SECOND), arrears.due(&share, 60 * SECOND)), (30, 0));
    }

    #[test]
    fn arrears_that_could_not_be_charged_are_added_to_new_ones() {
        let share = bucket("1/s", 100);
        let (mut earlier, mut later) = (Arrears::default(), Arrears::default());
        earlier.add(&share, 5, false, &report(100, 95, 5), 0);
        later.add(&share, 7, false, &report(100, 89, 11), SECOND);
        later.restore(&earlier);
        assert_eq!(later.due(&share, SECOND), 11, "a token of both has refilled");
    }

    #[test]
    fn limits_owe_their_arrears_except_logs_and_slots() {
        let owing = |limit: Limit| with_arrears(&limit.into()).map(|limits| limits.as_slice()[0]);
        let with_debt = TokenBucket::new(rate("10/s"), 50).unwrap().max_debt(100).unwrap();
        assert_eq!(owing(bucket("10/s", 50)), Some(with_debt.into()));
        assert_eq!(owing(SlidingLog::new(5, Nanos::SECOND).unwrap().into()), None);
        assert!(!has_arrears(&Limit::from(Concurrency::new(3, MINUTE).unwrap()).into()));
    }
}
