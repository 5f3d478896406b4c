//! The node's side of leases. A holder spends the leased tokens of one key and decides when to request more.
//!
//! Times are nanoseconds of this node's monotonic clock, which also advances while the machine sleeps.

use super::{Exchange, Grant, LeaseReport, Need};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// Maximum time between two exchanges while the node holds tokens or has unreported spending. After this time without
/// requests, the node returns all tokens.
const MAX_EXCHANGE_INTERVAL: u64 = SECOND;

/// Minimum time between exchanges that are not triggered by a request.
const MIN_EXCHANGE_INTERVAL: u64 = 20 * MILLI;

/// If a grant is below the wanted amount and leaves the pool nearly empty, then for this time the holder refuses
/// requests that cost more than the held tokens, without asking the pool.
const NEARLY_EMPTY_REFUSAL_TIME: u64 = 20 * MILLI;

/// After a refusal by the pool, the holder refuses requests of at least the refused cost without asking the pool again,
/// for at most this time. During the wait that the pool reported, the pool can admit such requests only after a return,
/// a refund, a reset or changed parameters.
const REPEATED_REFUSAL_TIME: u64 = 100 * MILLI;

/// Maximum number of leases reported in one exchange. Further leases are reported in the next exchange.
const MAX_REPORTS: usize = 64;

/// Interval in which demand is counted.
const DEMAND_TICK: u64 = 100 * MILLI;

/// A node's leased tokens of one key.
#[derive(Clone, Debug, Default)]
pub struct Holder {
    /// The leases, earliest deadline first.
    leases: Vec<HeldLease>,
    in_flight: Option<InFlight>,
    demand: Demand,
    /// Amount leased by the last grant.
    granted: u64,
    /// Amount left in the pool at its last answer.
    left: u64,
    /// Instant at which the pool is full again if nothing more is taken, according to its last answer.
    reset_at: u64,
    /// Until this instant, a request is refused without asking the pool if it costs at least `refused_cost` and more
    /// than the held tokens.
    refused_until: u64,
    refused_cost: u64,
    /// Instant at which the pool can meet the refused need.
    retry_at: u64,
    hungry: bool,
    last_exchange_at: u64,
    used_at: u64,
}

/// One lease.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    epoch: u64,
    slice_expiry: u64,
    left: u64,
    /// Tokens that are spent but not reported to the pool.
    spent: u64,
    /// First instant at which the lease must not be spent.
    deadline: u64,
}

#[derive(Clone, Debug)]
struct InFlight {
    sent_at: u64,
    need: Need,
    settle: Vec<LeaseReport>,
    wants: u64,
    returning: bool,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// Taken from held tokens.
    Held(Reservation),
    /// Too few tokens are held: ask the pool.
    Ask,
    /// An exchange is in flight: retry after its answer.
    Wait,
    /// Refused without asking the pool, because the pool has just refused or is nearly empty. Contains the nanoseconds
    /// after which to retry.
    Refused(u64),
}

/// The tokens taken for a request, by lease, so that they can be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    first: LeaseTake,
    /// Amounts from further leases. Nearly always empty, and an empty `Vec` does not allocate.
    more: Vec<LeaseTake>,
}

/// An amount taken from one lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeaseTake {
    epoch: u64,
    slice_expiry: u64,
    amount: u64,
}

impl Reservation {
    /// Returns the slice expiry of the first lease. For a window limit, the expiry identifies the window of the whole
    /// reservation. A lease never outlasts its window, so the instant before the expiry is in that window.
    pub fn slice_expiry(&self) -> u64 {
        self.first.slice_expiry
    }
}

impl Holder {
    /// Takes `cost` from the held tokens, earliest deadline first. If too few tokens are held, takes nothing and
    /// returns the next step for the caller.
    pub fn take(&mut self, now: u64, cost: u64) -> TakeResult {
        if let Some(reservation) = self.try_take(now, cost) {
            return TakeResult::Held(reservation);
        }
        self.record_use(now, cost);
        if self.in_flight.is_some() {
            return TakeResult::Wait;
        }
        if now < self.refused_until && cost >= self.refused_cost {
            return TakeResult::Refused(self.retry_at.saturating_sub(now).max(1));
        }
        TakeResult::Ask
    }

    /// Takes `cost` from the held tokens. If too few tokens are held, takes nothing and returns `None`.
    pub fn try_take(&mut self, now: u64, cost: u64) -> Option<Reservation> {
        self.drop_expired(now);
        if cost > self.held() {
            return None;
        }
        self.record_use(now, cost);
        Some(self.reserve(cost))
    }

    fn record_use(&mut self, now: u64, cost: u64) {
        self.demand.record(now, cost);
        self.used_at = now;
    }

    /// Puts back the tokens of a request that is not admitted. Tokens whose lease has expired since the take stay
    /// spent.
    pub fn put_back(&mut self, reservation: &Reservation) {
        for LeaseTake { epoch, slice_expiry, amount } in std::iter::once(&reservation.first).chain(&reservation.more) {
            let lease =
                self.leases.iter_mut().find(|lease| (lease.epoch, lease.slice_expiry) == (*epoch, *slice_expiry));
            if let Some(lease) = lease {
                // Tokens reported since the take already count as spent in the pool.
                let taken = (*amount).min(lease.spent);
                lease.spent -= taken;
                lease.left += taken;
            }
        }
    }

    /// Returns the number of held tokens.
    pub fn held(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).sum()
    }

    /// Forgets the last refusal, so that the next request asks the pool again. Used after tokens were refunded or
    /// returned.
    pub fn forget_refusal(&mut self) {
        self.refused_until = 0;
    }

    /// Returns whether any tokens are held or unreported.
    pub fn has_leases(&self) -> bool {
        self.leases.iter().any(|lease| lease.left > 0 || lease.spent > 0)
    }

    /// Returns the remaining tokens known to this node: the held tokens plus the tokens left in the pool at its last
    /// answer.
    pub fn remaining(&self) -> u64 {
        self.held().saturating_add(self.left)
    }

    /// Returns the nanoseconds until the pool is full again, according to its last answer.
    pub fn nanos_until_full(&self, now: u64) -> u64 {
        self.reset_at.saturating_sub(now)
    }

    /// Returns whether the holder can be dropped: it has no leases, no exchange is in flight, and no request arrived in
    /// the last second.
    pub fn is_idle(&self, now: u64) -> bool {
        self.leases.is_empty() && self.in_flight.is_none() && now >= self.used_at.saturating_add(MAX_EXCHANGE_INTERVAL)
    }

    /// Returns whether to start an exchange in the background: to request tokens ahead of need, to report spent tokens,
    /// or to return unneeded tokens.
    pub fn is_exchange_due(&mut self, now: u64) -> bool {
        self.drop_expired(now);
        if self.in_flight.is_some() || now < self.last_exchange_at.saturating_add(MIN_EXCHANGE_INTERVAL) {
            return false;
        }
        let unreported = self.leases.iter().any(|lease| lease.spent > 0 || lease.left > 0);
        let regular = unreported && now >= self.last_exchange_at.saturating_add(MAX_EXCHANGE_INTERVAL);
        let is_low = self.granted > 0 && self.held() < self.granted.div_ceil(4) && self.wanted_amount(now) > 0;
        let idle = self.held() > 0 && now >= self.used_at.saturating_add(MAX_EXCHANGE_INTERVAL);
        let hungry = self.hungry && self.held() > self.amount_to_keep(now);
        regular || idle || hungry || (is_low && now >= self.refused_until)
    }

    /// Starts an exchange with this need. Call this function only if no exchange is in flight. Report the outcome
    /// through [`on_grant`](Self::on_grant), [`on_no_grant`](Self::on_no_grant), [`on_unknown`](Self::on_unknown) or
    /// [`on_unavailable`](Self::on_unavailable).
    pub fn exchange(&mut self, now: u64, need: Need) -> Exchange {
        let keep = if now >= self.used_at.saturating_add(MAX_EXCHANGE_INTERVAL) {
            0
        } else if self.hungry {
            self.amount_to_keep(now)
        } else {
            u64::MAX
        };
        self.begin_exchange(now, need, keep)
    }

    /// Starts an exchange that reports all spent tokens and returns all held tokens. Used when the node stops, and for
    /// operations that need the pool's state.
    pub fn drain(&mut self, now: u64, need: Need) -> Exchange {
        self.begin_exchange(now, need, 0)
    }

    /// Returns whether an exchange is in flight.
    pub fn has_exchange_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Processes the pool's answer. Returns whether the need was met.
    pub fn on_grant(&mut self, now: u64, grant: &Grant) -> bool {
        let Some(flight) = self.end_exchange(grant.epoch) else { return grant.refused.is_none() };
        self.left = grant.left;
        self.reset_at = now.saturating_add(grant.reset);
        self.hungry = grant.hungry;
        if grant.leased > 0 {
            // The lease duration counts from the instant before sending and is shortened by 1 %, because this node's
            // clock may be slower than the store's clock.
            let deadline = flight.sent_at.saturating_add(grant.lasts - grant.lasts.div_ceil(100));
            let index = self.leases.partition_point(|lease| lease.deadline <= deadline);
            let (epoch, slice_expiry, left) = (grant.epoch, grant.slice_expiry, grant.leased);
            self.leases.insert(index, HeldLease { epoch, slice_expiry, left, spent: 0, deadline });
        }
        if !flight.returning {
            self.granted = grant.leased;
        }
        // The grant is below the wanted amount, and the pool has less than an eighth of that amount left. Another
        // immediate request would yield only a few tokens.
        let is_short = !flight.returning && grant.leased < flight.wants && grant.left < flight.wants / 8;
        if let Some(wait) = grant.refused {
            self.refused_until = now.saturating_add(wait.min(REPEATED_REFUSAL_TIME));
            self.refused_cost = flight.need.amount();
            self.retry_at = now.saturating_add(wait);
        } else if is_short {
            self.refused_until = now.saturating_add(NEARLY_EMPTY_REFUSAL_TIME);
            self.refused_cost = 0;
            self.retry_at = self.refused_until;
        }
        self.drop_expired(now);
        grant.refused.is_none()
    }

    /// Processes an answer without a grant. The store has processed the report, but has other parameters for the key.
    pub fn on_no_grant(&mut self, now: u64, epoch: u64) {
        self.end_exchange(epoch);
        self.drop_expired(now);
    }

    /// Ends the exchange in flight and returns it. If the pool's epoch has changed, the new pool has counted the held
    /// tokens of the reported leases, so these leases get the new epoch.
    fn end_exchange(&mut self, epoch: u64) -> Option<InFlight> {
        let flight = self.in_flight.take()?;
        for lease in self.leases.iter_mut().filter(|lease| lease.epoch != epoch) {
            if flight
                .settle
                .iter()
                .any(|settle| (settle.epoch, settle.slice_expiry) == (lease.epoch, lease.slice_expiry))
            {
                lease.epoch = epoch;
            }
        }
        Some(flight)
    }

    /// Ends an exchange that got no answer. The pool may have executed the exchange, so it is not repeated. The node
    /// forgets the reported and returned tokens; if the pool did not execute the exchange, these tokens expire in the
    /// pool.
    pub fn on_unknown(&mut self) {
        self.in_flight = None;
    }

    /// Ends an exchange that was not sent, and restores its reported and returned tokens.
    pub fn on_unavailable(&mut self) {
        let Some(flight) = self.in_flight.take() else { return };
        for settle in flight.settle {
            let lease = self
                .leases
                .iter_mut()
                .find(|lease| (lease.epoch, lease.slice_expiry) == (settle.epoch, settle.slice_expiry));
            if let Some(lease) = lease {
                lease.spent += settle.spent;
                lease.left += settle.back;
            }
        }
    }

    fn begin_exchange(&mut self, now: u64, need: Need, keep: u64) -> Exchange {
        self.drop_expired(now);
        let mut back = self.held().saturating_sub(keep);
        let mut settle: Vec<LeaseReport> = Vec::with_capacity(self.leases.len().min(MAX_REPORTS));
        // The leases that expire first are the least useful, so their tokens are returned first.
        for lease in self.leases.iter_mut().take(MAX_REPORTS) {
            let returned = back.min(lease.left);
            back -= returned;
            lease.left -= returned;
            let entry = LeaseReport {
                epoch: lease.epoch,
                slice_expiry: lease.slice_expiry,
                spent: lease.spent,
                back: returned,
                held: lease.left,
            };
            lease.spent = 0;
            // Leases of the same slice are reported separately, because the pool counts each report as one lease.
            settle.push(entry);
        }
        let returning = keep == 0;
        if returning {
            // The next tokens are requested only when a request needs them.
            self.granted = 0;
        }
        let wants = if returning { 0 } else { self.wanted_amount(now).saturating_sub(self.held()) };
        self.in_flight = Some(InFlight { sent_at: now, need, settle: settle.clone(), wants, returning });
        self.last_exchange_at = now;
        self.hungry = false;
        Exchange { need, wants, settle }
    }

    /// Drops expired leases, and leases with nothing left to spend or report.
    fn drop_expired(&mut self, now: u64) {
        let in_flight = &self.in_flight;
        let is_in_report = |lease: &HeldLease| {
            in_flight.as_ref().is_some_and(|flight| {
                flight
                    .settle
                    .iter()
                    .any(|settle| (settle.epoch, settle.slice_expiry) == (lease.epoch, lease.slice_expiry))
            })
        };
        self.leases.retain(|lease| now < lease.deadline && (lease.left > 0 || lease.spent > 0 || is_in_report(lease)));
    }

    fn reserve(&mut self, cost: u64) -> Reservation {
        let (mut rest, mut from) = (cost, Reservation::default());
        for lease in &mut self.leases {
            let taken = rest.min(lease.left);
            if taken > 0 {
                lease.left -= taken;
                lease.spent += taken;
                rest -= taken;
                let taken = LeaseTake { epoch: lease.epoch, slice_expiry: lease.slice_expiry, amount: taken };
                if from.first.amount == 0 {
                    from.first = taken;
                } else {
                    from.more.push(taken);
                }
            }
        }
        from
    }

    /// Returns the amount likely to be needed in the next second.
    fn wanted_amount(&self, now: u64) -> u64 {
        self.demand.per_second(now)
    }

    /// Returns the amount to keep while other nodes need tokens: an eighth of a second's demand.
    fn amount_to_keep(&self, now: u64) -> u64 {
        self.demand.per_second(now) / 8
    }
}

/// Demand in tokens per second: an exponentially weighted moving average over ticks of 100 ms, with weight 1/4.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Number of the current tick.
    tick: u64,
    /// Amount requested in the current tick.
    count: u64,
    /// Average of earlier ticks, in sixteenths of a token per tick.
    average: u64,
}

impl Demand {
    fn record(&mut self, now: u64, cost: u64) {
        *self = self.advanced_to(now);
        self.count = self.count.saturating_add(cost.min(u64::MAX >> 16));
    }

    fn advanced_to(&self, now: u64) -> Self {
        let tick = now / DEMAND_TICK;
        let passed = tick.saturating_sub(self.tick);
        if passed == 0 {
            return *self;
        }
        let mut average = self.average - self.average / 4 + self.count.saturating_mul(4).min(u64::MAX >> 8);
        for _ in 1..passed.min(64) {
            average -= average.div_ceil(4);
        }
        Self { tick, count: 0, average: if passed > 64 { 0 } else { average } }
    }

    /// Returns the demand per second: the average, or the count of the current tick if the count is larger.
    fn per_second(&self, now: u64) -> u64 {
        let current = self.advanced_to(now);
        (current.average.saturating_mul(10) / 16).max(current.count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pool, PoolLimit};
    use super::*;

    const NOW: u64 = 1_000 * SECOND;
    const LIMITS: [PoolLimit; 1] =
        [PoolLimit::Bucket { count: 100, per: SECOND, burst: 100, max_debt: 0, initial: 100 }];

    fn exchange_with_pool(holder: &mut Holder, pool: &mut Pool, now: u64, need: Need) -> bool {
        let sent = holder.exchange(now, need);
        let grant = pool.exchange(&LIMITS, now, &sent);
        holder.on_grant(now, &grant)
    }

    #[test]
    fn held_tokens_need_no_round_trip_and_the_next_lease_is_requested_in_advance() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        for _ in 0..20 {
            assert_eq!(holder.take(NOW, 1), TakeResult::Ask);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(1)));
        assert_eq!((holder.held(), pool.outstanding()), (20, 20), "the lease equals the recent demand");
        for _ in 0..15 {
            assert!(matches!(holder.take(NOW, 1), TakeResult::Held(_)));
        }
        assert!(!holder.is_exchange_due(NOW + MIN_EXCHANGE_INTERVAL));
        assert!(matches!(holder.take(NOW, 1), TakeResult::Held(_)));
        assert!(holder.is_exchange_due(NOW + MIN_EXCHANGE_INTERVAL), "less than a quarter of the lease is left");
        assert_eq!(holder.exchange(NOW + MIN_EXCHANGE_INTERVAL, Need::default()).settle[0].spent, 16);
        assert_eq!(holder.take(NOW + MIN_EXCHANGE_INTERVAL, 5), TakeResult::Wait);
    }

    #[test]
    fn refusal_is_repeated_briefly_without_asking_the_pool() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        pool.exchange(&LIMITS, NOW, &Exchange { need: Need::Spend(100), ..Exchange::default() });
        assert_eq!(holder.take(NOW, 5), TakeResult::Ask);
        assert!(!exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(5)));
        assert_eq!(holder.take(NOW, 5), TakeResult::Refused(50 * MILLI));
        assert_eq!(holder.take(NOW, 4), TakeResult::Ask, "a smaller cost may fit");
        assert_eq!(holder.take(NOW + 49 * MILLI, 5), TakeResult::Refused(MILLI));
        assert_eq!(holder.take(NOW + 50 * MILLI, 5), TakeResult::Ask);
    }

    #[test]
    fn idle_and_draining_holders_return_everything() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        for _ in 0..10 {
            holder.take(NOW, 1);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(1)));
        let later = NOW + MAX_EXCHANGE_INTERVAL;
        assert!(holder.is_exchange_due(later));
        assert!(exchange_with_pool(&mut holder, &mut pool, later, Need::default()));
        assert_eq!((holder.held(), pool.outstanding(), holder.is_idle(later)), (0, 0, true));
        for _ in 0..10 {
            holder.take(later, 1);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, later, Need::Spend(1)) && holder.held() > 0);
        let sent = holder.drain(later, Need::default());
        let grant = pool.exchange(&LIMITS, later, &sent);
        assert!(holder.on_grant(later, &grant));
        assert!(!holder.is_exchange_due(later + MIN_EXCHANGE_INTERVAL), "a node that stops does not ask for more");
    }

    #[test]
    fn lost_answers_forget_their_report_and_unsent_exchanges_restore_it() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        for _ in 0..40 {
            holder.take(NOW, 1);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(1)));
        let TakeResult::Held(_) = holder.take(NOW, 10) else { panic!("40 are held") };
        let sent = holder.exchange(NOW + SECOND / 2, Need::default());
        assert_eq!(sent.settle[0].spent, 10);
        holder.on_unavailable();
        let sent = holder.exchange(NOW + SECOND / 2, Need::default());
        assert_eq!(sent.settle[0].spent, 10);
        holder.on_unknown();
        assert_eq!((holder.held(), holder.exchange(NOW + SECOND, Need::default()).settle[0].spent), (30, 0));
    }

    #[test]
    fn lease_is_not_spent_after_its_deadline_and_its_reservation_is_not_put_back() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        for _ in 0..10 {
            holder.take(NOW, 1);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(1)));
        let TakeResult::Held(reserved) = holder.take(NOW, 2) else { panic!("10 are held") };
        holder.put_back(&reserved);
        assert_eq!(holder.held(), 10);
        let end = NOW + 5 * SECOND - 5 * SECOND / 100;
        let TakeResult::Held(reserved) = holder.take(end - 1, 2) else { panic!("the lease lasts until {end}") };
        assert_eq!(holder.take(end, 1), TakeResult::Ask);
        holder.put_back(&reserved);
        assert_eq!(holder.held(), 0);
    }

    #[test]
    fn leases_are_counted_once_by_the_pool_of_a_store_that_lost_its_state() {
        let (mut holder, mut pool) = (Holder::default(), Pool::new(&LIMITS, 1, NOW));
        for _ in 0..40 {
            holder.take(NOW, 1);
        }
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW, Need::Spend(1)));
        holder.take(NOW, 10);
        let mut pool = Pool::new(&LIMITS, 2, NOW);
        assert!(exchange_with_pool(&mut holder, &mut pool, NOW + SECOND / 2, Need::default()));
        assert!(pool.outstanding() >= 30);
        let before = pool.outstanding();
        let sent = holder.exchange(NOW + SECOND, Need::default());
        let _ = pool.exchange(&LIMITS, NOW + SECOND, &Exchange { wants: 0, ..sent });
        assert!(pool.outstanding() <= before, "asserted twice");
    }
}
