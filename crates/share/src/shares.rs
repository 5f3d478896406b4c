//! The local fallback: the share of a limit that a node admits while it cannot reach the store.
//!
//! **A share** is the limit with rate and burst divided by the node count `N`. The burst is rounded up, so all shares
//! together are at least the whole limit. A key for which the store has answered starts with `⌈left/N⌉` tokens, where
//! `left` is the remaining amount that the store last reported. An unknown key starts as a new key. The share is not a
//! conversion of the store's state: if a log with 60 of 100 used were converted to a share of 25, the share would have
//! nothing left.
//!
//! **Debt.** With `h` tokens in the share, a request of cost `c` is admitted if `c ≤ h`. If `h ≥ 1`, the request is
//! also admitted if `c` is at most `left` minus this node's admissions since that report: `c ≤ left − (⌈left/N⌉ − h)`.
//! The share is then in debt, and admits nothing until the debt is repaid. So a node admits at most its share plus one
//! cost minus one token.
//!
//! **Arrears.** When the store answers again, the node first charges to the store all its admissions for the key that
//! still count. Then the node sends its next request for the key. The usage that the store had counted before the fault
//! refills first, at `r`. After that, the refill belongs to the shares, at `r/N` each. So the arrears of a key are the
//! amount that this node admitted, but at most the used amount of its share. The arrears are zero when the share is
//! full.
//!
//! **Bound.** Let `u` be the amount used in the store when the fault begins, `uᵢ ≤ u` the amount that node `i` last
//! saw, and `lᵢ = B − uᵢ`. In a fault of length `P`, node `i` admits `aᵢ ≤ ⌈lᵢ/N⌉ + r·P/N + c − 1`, and its arrears are
//! `pᵢ ≥ aᵢ − (r·P − uᵢ)⁺/N`. An interval that begins a time `s` before the fault contains at most `u + r·s` admissions
//! before the fault. So during the fault the excess is at most `u + Σaᵢ − B − r·P ≤ Σ⌈lᵢ/N⌉ − (B − u) + N·(c − 1)`.
//! After the fault the store has `(u − r·P)⁺` used, plus the arrears of the nodes that have charged them. So the excess
//! is at most
//!
//! ```text
//! (1/N)·Σ(r·P − uᵢ)⁺ − (r·P − u)⁺ + Σ pᵢ over nodes that have not ≤ min(B, r·P) + B·(N − 1)/N + N·c
//! ```
//!
//! After all nodes have charged their arrears, the excess is a debt in the store, so the sum of `pᵢ` is zero and only
//! `min(B, r·P)` remains. Nothing refills within a window, so `min(B, r·P)` is zero for windows.

use tollgate_core::{Algorithm, Limit, LimitError, Limits, Nanos, Params, Phase, Rate, Report, WindowParams};

/// Usage of one limit of a key at an instant. Times are nanoseconds of this node's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUsage {
    /// Amount used. With any parameters, the remaining amount is the capacity minus this amount.
    pub used: u64,
    /// Time of the report.
    pub at: u64,
    /// Time at which the limit is full again, if nothing more is taken.
    pub full_at: u64,
}

impl LimitUsage {
    /// Creates a record from a report at `now`.
    pub fn new(report: &Report, now: u64) -> Self {
        let used = report.limit.saturating_sub(report.remaining);
        Self { used, at: now, full_at: now.saturating_add(report.reset.as_nanos()) }
    }

    /// Returns the used amount of `limit` at an instant, if nothing more is taken. For a sliding window, a log or
    /// concurrency slots, a report does not contain the expiry of each part, so the whole amount counts as used until
    /// the last part expires.
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
                let passed = self.refill_steps_until_full(self.at, period) - self.refill_steps_until_full(now, period);
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

    /// Returns the remaining amount of `limit` at an instant, if nothing more is taken.
    pub fn left_at(&self, limit: &Limit, now: u64) -> u64 {
        limit.capacity().saturating_sub(self.used_at(limit, now))
    }

    /// Returns the first instant at which at least `cost` tokens of `limit` remain. `cost` must not exceed the
    /// capacity.
    pub fn available_at(&self, limit: &Limit, cost: u64) -> u64 {
        let missing = u128::from(self.used.saturating_sub(limit.capacity().saturating_sub(cost)));
        let wait = match limit.params() {
            Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
                (missing * u128::from(bucket.rate.per().as_nanos())).div_ceil(u128::from(bucket.rate.count().max(1)))
            }
            Params::IntervalBucket { refill, period, .. } => {
                let steps = u64::try_from(missing.div_ceil(u128::from(refill.max(1)))).unwrap_or(u64::MAX);
                let further = self.refill_steps_until_full(self.at, period).saturating_sub(steps);
                return self.full_at.saturating_sub(further.saturating_mul(period.as_nanos()));
            }
            _ if missing == 0 => 0,
            _ => u128::MAX,
        };
        self.at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)).min(self.full_at)
    }

    /// Returns the number of refill steps that an interval bucket needs from the instant `at` until it is full.
    fn refill_steps_until_full(&self, at: u64, period: Nanos) -> u64 {
        self.full_at.saturating_sub(at).div_ceil(period.as_nanos().max(1))
    }
}

/// Returns the share of `limits` that one of `nodes` nodes admits.
pub fn share_of_node(limits: &Limits, nodes: u32) -> Limits {
    // If the rate of a share is too slow to be represented, such as one per century divided by the node count, the node
    // uses the undivided limit.
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
            // Only the store knows the offsets of spread windows. So the share's first window ends at the time that the
            // store reported, and each later window begins with a request.
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

/// Divides the limit and the initial amount of a window by `nodes`. Returns the undivided maximum debt.
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

/// The initial share state of a key for which the store has answered.
#[derive(Clone, Debug)]
pub struct ShareStart {
    /// The share, with initial amounts that put a new key into this key's state.
    pub limits: Limits,
    /// Used amount of each limit. Only concurrency limits use this amount: they have no initial amount, so the fallback
    /// takes slots instead.
    pub used: [u64; Limits::MAX],
}

impl ShareStart {
    /// Returns the initial state of `share`, one node's share of `limits`. The share starts with its part of the
    /// remaining amounts that follow from the usage in `seen`.
    pub fn new(
        share: &Limits,
        limits: &Limits,
        nodes: u32,
        now: u64,
        seen: impl Fn(usize) -> Option<LimitUsage>,
    ) -> Option<Self> {
        let mut used = [0; Limits::MAX];
        let mut starts = Vec::with_capacity(limits.as_slice().len());
        for (position, (share, limit)) in share.as_slice().iter().zip(limits.as_slice()).enumerate() {
            let start = seen(position).map(|seen| {
                let part = initial_tokens_of_node(seen.left_at(limit, now), nodes).min(share.capacity());
                if let Some(used) = used.get_mut(position) {
                    *used = share.capacity() - part;
                }
                with_initial(share.params(), part, Nanos::from_nanos(seen.full_at.saturating_sub(now)))
            });
            starts.push(start.and_then(|params| Limit::from_params(params).ok()).unwrap_or(*share));
        }
        Some(Self { limits: Limits::new(starts).ok()?, used })
    }
}

/// Returns the part of the remaining amount `left` with which each of `nodes` nodes starts.
pub fn initial_tokens_of_node(left: u64, nodes: u32) -> u64 {
    left.div_ceil(nodes.max(1).into())
}

/// Returns whether a cost above the share may be admitted. The share must have a token left, and the cost must be at
/// most the store's last reported remaining amount minus this node's admissions since that report.
pub fn fits_store_remaining(cost: u64, share_remaining: u64, store_remaining: u64, nodes: u32) -> bool {
    let spent_here = initial_tokens_of_node(store_remaining, nodes).saturating_sub(share_remaining);
    share_remaining > 0 && cost <= store_remaining.saturating_sub(spent_here)
}

/// Returns the parameters with `left` as the initial amount, and `until_full` as the length of the first window or
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

/// Arrears of one limit of a key: admissions of this node that still count and have to be charged to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrears {
    admitted: u64,
    /// The share as reported after the last admission.
    share: LimitUsage,
}

impl Arrears {
    /// Adds a cost that the share admitted. `report` is the share's report after the admission. `into_debt` says
    /// whether the cost went into debt.
    pub fn add(&mut self, share: &Limit, cost: u64, into_debt: bool, report: &Report, now: u64) {
        let used_before = self.share.used_at(share, now);
        self.admitted = self.due(share, now).saturating_add(cost);
        self.share = LimitUsage::new(report, now);
        if into_debt && report.remaining == 0 {
            // The report does not contain the amount of the debt. Before this cost, the used amount was at most the
            // limit, or the limit plus an earlier debt.
            self.share.used = self.share.used.max(used_before).saturating_add(cost);
        }
    }

    /// Returns the amount still owed, given the refill of the share.
    pub fn due(&self, share: &Limit, now: u64) -> u64 {
        self.admitted.min(self.share.used_at(share, now))
    }

    /// Subtracts a refunded cost.
    pub fn subtract_refund(&mut self, cost: u64) {
        self.admitted = self.admitted.saturating_sub(cost);
    }

    /// Adds earlier arrears of the same limit that could not be charged.
    pub fn restore(&mut self, earlier: &Self) {
        self.admitted = self.admitted.saturating_add(earlier.admitted);
        if self.share.at < earlier.share.at {
            self.share = earlier.share;
        }
    }
}

/// Returns the limits for charging arrears to a store. Their maximum debt is at least twice the capacity, so that no
/// admission is forgotten. Returns `None` if a limit cannot represent that much debt. The caller then charges only the
/// remaining amount.
pub fn with_debt_for_arrears(limits: &Limits) -> Option<Limits> {
    let owing = |limit: &Limit| {
        let mut params = limit.params();
        if let Params::SlidingLog { .. } = params {
            // In a log, each unit of debt would take a word of state.
            return None;
        }
        let max_debt = max_debt_of(&mut params)?;
        *max_debt = (*max_debt).max(limit.capacity().checked_mul(2)?);
        Limit::from_params(params).ok()
    };
    Limits::new(limits.as_slice().iter().map(owing).collect::<Option<Vec<Limit>>>()?).ok()
}

/// Returns whether admissions under these limits are charged to the store afterwards. Concurrency slots are not
/// charged, because their holders release them.
pub fn can_have_arrears(limits: &Limits) -> bool {
    !limits.as_slice().iter().any(|limit| matches!(limit.params(), Params::Concurrency { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Concurrency, FixedWindow, IntervalBucket, Retry, SlidingLog, SlidingSlices, TokenBucket};

    const SECOND: u64 = 1_000_000_000;
    const MINUTE: Nanos = Nanos::from_secs(60);

    fn parse_rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn bucket(text: &str, burst: u64) -> Limit {
        TokenBucket::new(parse_rate(text), burst).unwrap().into()
    }

    fn assert_share(limit: impl Into<Limit>, nodes: u32, expected: impl Into<Limit>) {
        let (limit, expected) = (limit.into(), expected.into());
        assert_eq!(share_of_node(&limit.into(), nodes).as_slice(), [expected], "{limit:?} for {nodes}");
    }

    #[test]
    fn limit_is_divided_into_shares_that_are_rounded_up() {
        let share = |text, burst, debt| TokenBucket::new(parse_rate(text), burst).unwrap().max_debt(debt).unwrap();
        assert_share(bucket("100/s", 1_000), 4, share("25/s", 250, 750));
        assert_share(bucket("10/s", 5), 3, share("10/3s", 2, 3));
        assert_share(bucket("1/h", 7), 2, share("1/2h", 4, 4));
        assert_share(
            FixedWindow::new(60, MINUTE).unwrap(),
            4,
            FixedWindow::new(15, MINUTE).unwrap().max_debt(45).unwrap(),
        );
        let log = |limit| SlidingLog::new(limit, Nanos::SECOND).unwrap();
        assert_share(log(5), 2, log(3).max_debt(3).unwrap());
        let interval = |refill, burst| IntervalBucket::new(refill, MINUTE).unwrap().burst(burst).unwrap();
        assert_share(interval(60, 90), 4, interval(15, 23).max_debt(67).unwrap());
        let slices = |limit| SlidingSlices::new(limit, MINUTE, Nanos::from_secs(6)).unwrap();
        assert_share(slices(60), 4, slices(15).max_debt(45).unwrap());
        let slots = |limit| Concurrency::new(limit, MINUTE).unwrap();
        assert_share(slots(3), 2, slots(2).max_debt(2).unwrap());
    }

    #[test]
    fn single_node_has_the_whole_limit() {
        assert_share(bucket("10/s", 50), 1, bucket("10/s", 50));
    }

    #[test]
    fn limit_that_cannot_be_divided_stays_whole() {
        assert_share(bucket("1/5000week", 1), 100, bucket("1/5000week", 1));
    }

    fn report(limit: u64, remaining: u64, reset: u64) -> Report {
        Report { limit, remaining, retry: Retry::NOW, reset: Nanos::from_secs(reset) }
    }

    #[test]
    fn arrears_are_the_admitted_amount_until_the_share_refills() {
        // A share of 10 per second with a burst of 100, of which 40 were used before.
        let share = bucket("10/s", 100);
        let mut arrears = Arrears::default();
        arrears.add(&share, 20, false, &report(100, 40, 6), 0);
        let due = |arrears: &Arrears, seconds: u64| arrears.due(&share, seconds * SECOND);
        assert_eq!([0, 3, 4, 5, 6].map(|at| due(&arrears, at)), [20, 20, 20, 10, 0], "the earlier 40 refill first");
        arrears.add(&share, 30, false, &report(100, 60, 4), 5 * SECOND);
        assert_eq!(due(&arrears, 5), 40);
        arrears.subtract_refund(15);
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
    fn arrears_include_repeated_debt() {
        let share: Limit = FixedWindow::new(10, MINUTE).unwrap().max_debt(50).unwrap().into();
        let mut arrears = Arrears::default();
        arrears.add(&share, 5, true, &report(10, 5, 60), 0);
        (1..=4).for_each(|at| arrears.add(&share, 7, true, &report(10, 0, 60), at * SECOND));
        assert_eq!(arrears.due(&share, 5 * SECOND), 33);
    }

    #[test]
    fn arrears_that_could_not_be_charged_are_added_to_new_ones() {
        let share = bucket("1/s", 100);
        let (mut earlier, mut later) = (Arrears::default(), Arrears::default());
        earlier.add(&share, 5, false, &report(100, 95, 5), 0);
        later.add(&share, 7, false, &report(100, 89, 11), SECOND);
        later.restore(&earlier);
        assert_eq!(later.due(&share, SECOND), 11, "one of the 12 tokens has refilled");
    }

    #[test]
    fn arrears_are_charged_with_raised_debt_except_for_logs_and_slots() {
        let owing = |limit: Limit| with_debt_for_arrears(&limit.into()).map(|limits| limits.as_slice()[0]);
        let with_debt = TokenBucket::new(parse_rate("10/s"), 50).unwrap().max_debt(100).unwrap();
        assert_eq!(owing(bucket("10/s", 50)), Some(with_debt.into()));
        assert_eq!(owing(SlidingLog::new(5, Nanos::SECOND).unwrap().into()), None);
        assert!(!can_have_arrears(&Limit::from(Concurrency::new(3, MINUTE).unwrap()).into()));
    }
}
