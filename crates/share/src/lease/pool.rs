//! The store's side of leases: a deterministic function of the pool, the exchange and the store time.
//!
//! Times are nanoseconds of the store's clock. The Lua scripts of `tollgate-redis` implement the same function in whole
//! microseconds.

use super::{HUNGRY_TIME, Level, PoolLimit, TTL};

const SECOND: u64 = 1_000_000_000;

/// The pool of a key, shared by all limits of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Identifies this pool. A later pool of the same key has a different epoch, so nodes can detect that the store
    /// lost its state.
    pub epoch: u64,
    /// Parameters of the last take. `levels` are measured under these parameters.
    pub limits: Vec<PoolLimit>,
    /// Used amount of each limit, including outstanding tokens.
    pub levels: Vec<Level>,
    /// Outstanding tokens, in ascending order of expiry.
    pub slices: Vec<Slice>,
    /// End of the hungry period, which starts when the pool cannot meet a need.
    pub hungry_until: u64,
}

/// Outstanding tokens that expire at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Expiry: a whole second, or the end of a window.
    pub expiry: u64,
    /// Number of tokens.
    pub sum: u64,
    /// Number of leases that hold the tokens.
    pub count: u64,
}

/// A message from a node to the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// The immediate need.
    pub need: Need,
    /// Amount that the node wants to hold beyond its need.
    pub wants: u64,
    /// Changes to the node's leases since its last report.
    pub settle: Vec<LeaseReport>,
}

/// A node's immediate need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The whole amount, spent immediately. Zero if no request needs tokens.
    Spend(u64),
    /// The whole amount, added to the lease instead of spent, because other charges of the group may still be refused.
    Hold(u64),
    /// Up to this amount, limited by the remaining tokens and spent immediately.
    UpTo(u64),
    /// The whole amount, even if the key goes into debt.
    Regardless(u64),
    /// A refund of an amount that was spent immediately.
    Refund(u64),
    /// A reset of the spent amount; leases stay outstanding.
    Reset,
}

impl Need {
    /// Returns the amount that the need takes.
    pub const fn amount(self) -> u64 {
        match self {
            Self::Spend(amount) | Self::Hold(amount) | Self::UpTo(amount) | Self::Regardless(amount) => amount,
            Self::Refund(_) | Self::Reset => 0,
        }
    }
}

impl Default for Need {
    fn default() -> Self {
        Self::Spend(0)
    }
}

/// A report on one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReport {
    /// Epoch of the pool that granted the lease.
    pub epoch: u64,
    /// Expiry of the lease's slice.
    pub slice_expiry: u64,
    /// Tokens spent since the last report.
    pub spent: u64,
    /// Tokens returned.
    pub back: u64,
    /// Tokens that the node still holds.
    pub held: u64,
}

/// The reply of a pool to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Amount taken for the need, or accepted as a refund.
    pub taken: u64,
    /// `None` if the need is met; otherwise the nanoseconds until it can be met, or `u64::MAX` if it can never be met.
    pub refused: Option<u64>,
    /// Leased amount, including a [`Need::Hold`].
    pub leased: u64,
    /// Expiry of the lease's slice.
    pub slice_expiry: u64,
    /// Nanoseconds until `slice_expiry`.
    pub lasts: u64,
    /// The epoch of the pool.
    pub epoch: u64,
    /// Tokens left in the pool.
    pub left: u64,
    /// Nanoseconds until the pool is full again, if nothing more is taken.
    pub reset: u64,
    /// Whether the pool recently failed to meet a need. The node should then return unneeded tokens immediately.
    pub hungry: bool,
}

impl Pool {
    /// A pool with this number of slices grants tokens in advance only if the new lease belongs to an existing slice.
    /// Slices expire at whole seconds within a lease's duration and at window ends, so few pools reach this number.
    pub const MAX_SLICES: usize = 16;

    /// Creates the pool of a new key.
    pub fn new(limits: &[PoolLimit], epoch: u64, now: u64) -> Self {
        let levels = limits.iter().map(|limit| limit.init(now)).collect();
        Self { epoch, limits: limits.to_vec(), levels, slices: Vec::new(), hungry_until: 0 }
    }

    /// Returns the number of outstanding tokens.
    pub fn outstanding(&self) -> u64 {
        self.slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.sum))
    }

    /// Advances the pool to `now`. Expired slices count as spent, and the pool refills to the burst minus the
    /// outstanding tokens.
    pub fn advance_to(&mut self, now: u64) {
        while let Some(slice) = self.slices.first().copied().filter(|slice| slice.expiry <= now) {
            self.raise_floor(slice.expiry);
            self.slices.remove(0);
        }
        for (limit, level) in self.limits.iter().zip(&mut self.levels) {
            *level = limit.level_at(*level, now);
        }
        self.raise_floor(now);
        // If the clock was set back, shortens old leases so that they do not outlast a lease granted now.
        let latest = round_up_to_second(now.saturating_add(TTL.as_nanos()));
        while let Some(slice) = self.slices.last().copied().filter(|slice| slice.expiry > latest.saturating_add(SECOND))
        {
            self.slices.pop();
            self.add_to_slice(latest, slice.sum, slice.count);
        }
    }

    /// Applies the reports, meets the need if enough tokens are left, and leases further tokens to the node.
    pub fn exchange(&mut self, limits: &[PoolLimit], now: u64, exchange: &Exchange) -> Grant {
        self.advance_to(now);
        for settle in &exchange.settle {
            self.apply_report(now, settle);
        }
        // The state belongs to the parameters of its last take. Only another take converts the state to new parameters.
        // Refunds and resets use the old parameters.
        let own = self.limits.clone();
        let limits = if matches!(exchange.need, Need::Refund(_) | Need::Reset) { &own } else { limits };
        let converted = (self.limits != limits).then(|| self.convert_levels(limits, now));
        let levels = converted.as_deref().unwrap_or(&self.levels);
        let refused = self.amount_for_need(limits, levels, now, exchange.need);
        let mut grant = Grant {
            taken: 0,
            refused: None,
            leased: 0,
            slice_expiry: 0,
            lasts: 0,
            epoch: self.epoch,
            left: 0,
            reset: 0,
            hungry: now < self.hungry_until,
        };
        let mut levels = levels.to_vec();
        match refused {
            Err(wait) => {
                grant.refused = Some(wait);
                self.hungry_until = now.saturating_add(HUNGRY_TIME.as_nanos());
            }
            Ok(need) => {
                grant.taken = need;
                let (spend, hold) = match exchange.need {
                    Need::Hold(_) => (0, need),
                    Need::Spend(_) | Need::UpTo(_) | Need::Regardless(_) => (need, 0),
                    Need::Refund(_) | Need::Reset => (0, 0),
                };
                self.refund_or_reset(limits, &mut levels, now, exchange.need, &mut grant);
                grant.leased = hold + self.amount_to_lease(limits, &levels, now, need, exchange.wants);
                let all = spend + grant.leased;
                if all > 0 {
                    for (limit, level) in limits.iter().zip(&mut levels) {
                        *level = limit.take(*level, now, all);
                    }
                }
                if all > 0 || converted.is_none() {
                    self.limits = limits.to_vec();
                    self.levels.clone_from(&levels);
                }
                if grant.leased > 0 {
                    grant.slice_expiry = self.new_lease_expiry(now);
                    grant.lasts = grant.slice_expiry - now;
                    self.add_to_slice(grant.slice_expiry, grant.leased, 1);
                }
            }
        }
        let each = || limits.iter().zip(&levels);
        grant.left = each().map(|(limit, level)| limit.left(*level, now)).min().unwrap_or(0);
        grant.reset = each().map(|(limit, level)| limit.wait_until_used(*level, now, 0)).max().unwrap_or(0);
        grant
    }

    /// Raises each level so that at least the outstanding tokens count as used at the instant `at`.
    fn raise_floor(&mut self, at: u64) {
        let outstanding = self.outstanding();
        for (limit, level) in self.limits.iter().zip(&mut self.levels) {
            *level = limit.with_min_used(*level, at, outstanding);
        }
    }

    fn apply_report(&mut self, now: u64, settle: &LeaseReport) {
        if settle.epoch != self.epoch {
            // The pool that granted the lease was lost, so the spent and held tokens are taken from this pool.
            let live = settle.slice_expiry > now;
            let asserted = settle.spent.saturating_add(settle.held);
            for (limit, level) in self.limits.iter().zip(&mut self.levels) {
                *level = limit.level_at(limit.take(*level, now, asserted), now);
            }
            if live && settle.held > 0 {
                self.add_to_slice(settle.slice_expiry, settle.held, 1);
            }
            return;
        }
        // A missing slice has expired, and its tokens already count as spent.
        let Some(at) = self.slices.iter().position(|slice| slice.expiry == settle.slice_expiry) else { return };
        let slice = &mut self.slices[at];
        slice.sum = slice.sum.saturating_sub(settle.spent);
        let back = settle.back.min(slice.sum);
        slice.sum -= back;
        if settle.held == 0 {
            slice.count = slice.count.saturating_sub(1);
        }
        if slice.sum == 0 {
            self.slices.remove(at);
        }
        for (limit, level) in self.limits.iter().zip(&mut self.levels) {
            *level = limit.level_at(limit.refund(*level, back), now);
        }
        self.raise_floor(now);
    }

    /// Returns the levels converted to other parameters. The used amounts stay the same, rounded up, but at least the
    /// outstanding tokens count as used.
    fn convert_levels(&self, limits: &[PoolLimit], now: u64) -> Vec<Level> {
        let old: Vec<u64> =
            self.limits.iter().zip(&self.levels).map(|(limit, level)| limit.used(*level, now)).collect();
        let outstanding = self.outstanding();
        let used = |index: usize| old.get(index).copied().unwrap_or(0).max(outstanding);
        limits.iter().enumerate().map(|(index, limit)| limit.level_with(now, used(index))).collect()
    }

    /// Returns the amount that the pool can take for the need. The error is the wait in nanoseconds.
    fn amount_for_need(&self, limits: &[PoolLimit], levels: &[Level], now: u64, need: Need) -> Result<u64, u64> {
        let each = || limits.iter().zip(levels);
        let left = each().map(|(limit, level)| limit.left(*level, now)).min().unwrap_or(0);
        match need {
            Need::Refund(_) | Need::Reset | Need::UpTo(0) => Ok(0),
            Need::Spend(need) | Need::Hold(need) if need <= left => Ok(need),
            Need::Spend(need) | Need::Hold(need) => Err(self.wait_for_tokens(limits, levels, now, need)),
            Need::UpTo(most) if left > 0 => Ok(most.min(left)),
            Need::UpTo(_) => Err(self.wait_for_tokens(limits, levels, now, 1)),
            Need::Regardless(cost) => {
                let fits = each().all(|(limit, level)| cost <= limit.chargeable(*level, now));
                if fits { Ok(cost) } else { Err(self.wait_for_tokens(limits, levels, now, cost)) }
            }
        }
    }

    /// Returns the nanoseconds until refills and the expiry of slices have made `need` tokens available.
    fn wait_for_tokens(&self, limits: &[PoolLimit], levels: &[Level], now: u64, need: u64) -> u64 {
        let mut wait = 0;
        for (limit, level) in limits.iter().zip(levels) {
            let Some(most) = limit.capacity().checked_sub(need) else { return u64::MAX };
            wait = wait.max(limit.wait_until_used(*level, now, most));
            let mut outstanding = self.outstanding();
            for slice in &self.slices {
                if outstanding <= most {
                    break;
                }
                outstanding -= slice.sum.min(outstanding);
                wait = wait.max(slice.expiry - now);
            }
        }
        wait
    }

    /// Applies a refund or a reset. The used amount stays at or above the outstanding tokens.
    fn refund_or_reset(&self, limits: &[PoolLimit], levels: &mut [Level], now: u64, need: Need, grant: &mut Grant) {
        let amount = match need {
            Need::Refund(cost) => cost,
            Need::Reset => u64::MAX,
            Need::Spend(_) | Need::Hold(_) | Need::UpTo(_) | Need::Regardless(_) => return,
        };
        let outstanding = self.outstanding();
        let each = || limits.iter().zip(&*levels);
        let spent = each().map(|(limit, level)| limit.used(*level, now).saturating_sub(outstanding)).max();
        grant.taken = amount.min(spent.unwrap_or(0));
        for (limit, level) in limits.iter().zip(levels) {
            *level = match need {
                Need::Reset => limit.level_with(now, outstanding),
                _ => limit.with_min_used(limit.refund(*level, grant.taken), now, outstanding),
            };
        }
    }

    /// Returns the amount that can be leased beyond the need.
    fn amount_to_lease(&self, limits: &[PoolLimit], levels: &[Level], now: u64, need: u64, wants: u64) -> u64 {
        let (outstanding, mut spare) = (self.outstanding(), wants);
        let leases = self.slices.iter().map(|slice| slice.count).sum::<u64>().max(1);
        for (limit, level) in limits.iter().zip(levels) {
            let left = limit.left(*level, now);
            spare = spare
                .min(left.saturating_sub(need))
                .min(left.div_ceil(2 * leases))
                .min((limit.capacity() / 2).saturating_sub(outstanding));
        }
        let expiry = self.new_lease_expiry(now);
        let is_full = self.slices.len() >= Self::MAX_SLICES && !self.slices.iter().any(|slice| slice.expiry == expiry);
        if is_full { 0 } else { spare }
    }

    /// Returns the expiry of a lease granted at `now`.
    fn new_lease_expiry(&self, now: u64) -> u64 {
        let whole = round_up_to_second(now.saturating_add(TTL.as_nanos()));
        self.limits.iter().fold(whole, |expiry, limit| expiry.min(limit.window_end(now)))
    }

    fn add_to_slice(&mut self, expiry: u64, sum: u64, count: u64) {
        let at = self.slices.partition_point(|slice| slice.expiry < expiry);
        match self.slices.get_mut(at).filter(|slice| slice.expiry == expiry) {
            Some(slice) => {
                slice.sum = slice.sum.saturating_add(sum);
                slice.count += count;
            }
            None => self.slices.insert(at, Slice { expiry, sum, count }),
        }
    }
}

/// Rounds up to a whole second.
fn round_up_to_second(nanos: u64) -> u64 {
    nanos.div_ceil(SECOND).saturating_mul(SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * SECOND;

    /// Returns a bucket that refills one token per second.
    fn bucket(burst: u64) -> [PoolLimit; 1] {
        [PoolLimit::Bucket { count: 1, per: SECOND, burst, max_debt: 4, initial: burst }]
    }

    fn exchange_to_spend(need: u64, wants: u64) -> Exchange {
        Exchange { need: Need::Spend(need), wants, settle: Vec::new() }
    }

    fn report_lease(grant: &Grant, spent: u64, back: u64) -> Exchange {
        let held = grant.leased - spent - back;
        let settle = LeaseReport { epoch: grant.epoch, slice_expiry: grant.slice_expiry, spent, back, held };
        Exchange { settle: vec![settle], ..Exchange::default() }
    }

    #[test]
    fn grant_is_half_of_the_remaining_tokens_and_at_most_half_of_the_burst_is_leased() {
        let (limits, mut pool) = (bucket(100), Pool::new(&bucket(100), 7, NOW));
        let first = pool.exchange(&limits, NOW, &exchange_to_spend(10, 1_000));
        assert_eq!((first.taken, first.leased, first.left), (10, 50, 40));
        assert_eq!((first.slice_expiry, first.lasts), (NOW + 5 * SECOND, 5 * SECOND));
        let second = pool.exchange(&limits, NOW, &exchange_to_spend(1, 1_000));
        assert_eq!((second.leased, second.left), (0, 39), "half of the burst is outstanding");
        let refused = pool.exchange(&limits, NOW, &exchange_to_spend(40, 0));
        assert_eq!((refused.refused, refused.hungry), (Some(SECOND), false));
        assert!(pool.exchange(&limits, NOW, &exchange_to_spend(0, 0)).hungry);
    }

    #[test]
    fn pool_refills_to_the_burst_minus_the_outstanding_tokens() {
        let (limits, mut pool) = (bucket(100), Pool::new(&bucket(100), 7, NOW));
        let grant = pool.exchange(&limits, NOW, &exchange_to_spend(0, 40));
        assert_eq!(grant.leased, 40);
        assert_eq!(pool.exchange(&limits, NOW + 4 * SECOND, &exchange_to_spend(0, 0)).left, 60);
        assert_eq!(pool.exchange(&limits, NOW + 4 * SECOND, &report_lease(&grant, 30, 0)).left, 60);
        assert_eq!(pool.outstanding(), 10);
    }

    #[test]
    fn return_is_credited_once_and_expiry_counts_as_spent() {
        let (limits, mut pool) = (bucket(100), Pool::new(&bucket(100), 7, NOW));
        let grant = pool.exchange(&limits, NOW, &exchange_to_spend(0, 40));
        assert_eq!(pool.exchange(&limits, NOW, &report_lease(&grant, 0, 25)).left, 85);
        assert_eq!(pool.outstanding(), 15);
        let late = pool.exchange(&limits, NOW + 5 * SECOND, &report_lease(&grant, 0, 15));
        assert_eq!((late.left, pool.outstanding()), (85, 0), "the slice has expired");
        assert_eq!(pool.exchange(&limits, NOW + 6 * SECOND, &exchange_to_spend(0, 0)).left, 86);
    }

    #[test]
    fn leases_are_counted_again_after_a_lost_state() {
        let (limits, mut pool) = (bucket(100), Pool::new(&bucket(100), 7, NOW));
        let grant = pool.exchange(&limits, NOW, &exchange_to_spend(0, 40));
        let mut empty = Pool::new(&limits, 8, NOW + SECOND);
        let reply = empty.exchange(&limits, NOW + SECOND, &report_lease(&grant, 10, 0));
        assert_eq!((reply.left, reply.epoch, empty.outstanding()), (60, 8, 30));
    }

    #[test]
    fn charge_goes_into_debt_and_a_reset_keeps_outstanding_tokens() {
        let (limits, mut pool) = (bucket(10), Pool::new(&bucket(10), 7, NOW));
        pool.exchange(&limits, NOW, &exchange_to_spend(0, 4));
        let need = |need| Exchange { need, ..Exchange::default() };
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::Regardless(10))).taken, 10);
        assert!(pool.exchange(&limits, NOW, &need(Need::Regardless(1))).refused.is_some());
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::Refund(3))).taken, 3);
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::UpTo(9))).refused, Some(2 * SECOND));
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::Reset)).left, 6);
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::UpTo(9))).taken, 6);
        assert_eq!(pool.exchange(&limits, NOW, &need(Need::Spend(11))).refused, Some(u64::MAX));
    }

    #[test]
    fn wait_covers_the_expiry_of_slices_that_must_expire() {
        let (limits, mut pool) = (bucket(10), Pool::new(&bucket(10), 7, NOW));
        assert_eq!(pool.exchange(&limits, NOW, &exchange_to_spend(0, 5)).leased, 5);
        assert_eq!(pool.exchange(&limits, NOW, &exchange_to_spend(6, 0)).refused, Some(5 * SECOND));
    }

    #[test]
    fn only_a_take_converts_the_state_to_changed_parameters() {
        let mut pool = Pool::new(&bucket(10), 7, NOW);
        pool.exchange(&bucket(10), NOW, &exchange_to_spend(8, 0));
        assert!(pool.exchange(&bucket(9), NOW, &exchange_to_spend(2, 0)).refused.is_some());
        assert_eq!(pool.limits, bucket(10));
        assert_eq!(pool.exchange(&bucket(9), NOW, &exchange_to_spend(0, 0)).left, 1);
        assert_eq!(pool.limits, bucket(10));
        assert_eq!(pool.exchange(&bucket(9), NOW, &exchange_to_spend(1, 0)).left, 0);
        assert_eq!(pool.limits, bucket(9));
    }

    #[test]
    fn lease_of_a_window_ends_with_the_window() {
        let limits =
            [PoolLimit::Window { limit: 10, length: 3 * SECOND, offset: SECOND / 2, max_debt: 0, initial: 10 }];
        let mut pool = Pool::new(&limits, 7, NOW);
        let grant = pool.exchange(&limits, NOW, &exchange_to_spend(1, 4));
        assert_eq!((grant.leased, grant.slice_expiry), (4, limits[0].window_end(NOW)));
        assert_eq!(pool.exchange(&limits, NOW, &report_lease(&grant, 1, 2)).left, 7);
        let next = pool.exchange(&limits, grant.slice_expiry, &report_lease(&grant, 0, 1));
        assert_eq!((next.left, pool.outstanding()), (10, 0));
    }

    #[test]
    fn leases_from_before_a_clock_step_back_do_not_outlast_new_ones() {
        let (limits, mut pool) = (bucket(100), Pool::new(&bucket(100), 7, NOW));
        pool.exchange(&limits, NOW + 100 * SECOND, &exchange_to_spend(0, 40));
        pool.exchange(&limits, NOW, &exchange_to_spend(0, 0));
        assert_eq!((pool.slices[0].expiry, pool.outstanding()), (NOW + 5 * SECOND, 40));
    }
}
