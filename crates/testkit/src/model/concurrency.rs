//! Definition of a concurrency limit: a list of leases, each with a weight and an end.

use tollgate_core::{Ask, Concurrency, LimitError, Nanos, Now, Outcome, Report, Retry};

use super::{Law, Model, ModelAnswer};

/// Parameters of a concurrency limit: at most `limit` units are held at the same time, or `limit + max_debt` with
/// `Regardless` asks. A unit is held until `lease` after it was taken or last renewed.
#[derive(Clone, Copy, Debug)]
pub struct LeaseParams {
    /// Maximum weight held at the same time.
    pub limit: u64,
    /// Length of a lease.
    pub lease: Nanos,
    /// Maximum debt, in addition to `limit`.
    pub max_debt: u64,
}

impl LeaseParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<Concurrency, LimitError> {
        Concurrency::new(self.limit, self.lease)?.max_debt(self.max_debt)
    }

    fn lease_nanos(&self) -> u64 {
        self.lease.as_nanos()
    }
}

/// All leases ever granted, indexed by receipt.
#[derive(Clone, Debug)]
pub struct ConcurrencyModel {
    params: LeaseParams,
    leases: Vec<ModelLease>,
    renewals: u64,
}

#[derive(Clone, Copy, Debug)]
struct ModelLease {
    /// Zero after a full refund, or if a change of parameters dropped the lease.
    weight: u64,
    ends: u64,
    /// Position in the order in which leases were taken or renewed.
    renewal_order: u64,
}

impl ConcurrencyModel {
    /// Returns a model without leases.
    pub const fn new(params: LeaseParams) -> Self {
        Self { params, leases: Vec::new(), renewals: 0 }
    }

    /// Changes the parameters. Existing leases are shortened so that they end no later than a new lease. If there are
    /// more leases than the new limit plus debt, the leases that end last are kept. Among leases that end at the same
    /// time, the most recently taken or renewed leases are kept.
    pub fn change_params(&mut self, params: LeaseParams, now: &Now<'_>) {
        let now = now.mono().as_nanos();
        let mut held: Vec<&mut ModelLease> =
            self.leases.iter_mut().filter(|lease| lease.weight > 0 && lease.ends > now).collect();
        held.sort_unstable_by_key(|lease| (lease.ends, lease.renewal_order));
        let dropped = held.len().saturating_sub((params.limit + params.max_debt) as usize);
        held.iter_mut().take(dropped).for_each(|dropped| dropped.weight = 0);
        held.iter_mut().for_each(|held| held.ends = held.ends.min(now + params.lease_nanos()));
        self.params = params;
    }

    /// Extends the lease to a full duration from now, unless it has ended. Returns whether the lease was extended.
    pub fn renew(&mut self, now: &Now<'_>, receipt: usize) -> bool {
        self.renewals += 1;
        let (now, length, renewal_order) = (now.mono().as_nanos(), self.params.lease_nanos(), self.renewals);
        let Some(lease) = self.find(now, receipt) else { return false };
        (lease.ends, lease.renewal_order) = (lease.ends.max(now + length), renewal_order);
        true
    }

    fn find(&mut self, now: u64, receipt: usize) -> Option<&mut ModelLease> {
        self.leases.get_mut(receipt).filter(|lease| lease.weight > 0 && lease.ends > now)
    }

    fn held_leases(&self, now: u64) -> impl Iterator<Item = &ModelLease> {
        self.leases.iter().filter(move |lease| lease.weight > 0 && lease.ends > now)
    }

    /// Returns the total weight of all leases that have not ended.
    pub fn weight_held(&self, now: u64) -> u64 {
        self.held_leases(now).map(|lease| lease.weight).sum()
    }
}

impl Model for ConcurrencyModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let now = now.mono().as_nanos();
        let held = self.weight_held(now);
        let (cost, ceiling) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.params.limit),
            Ask::Regardless(cost) => (cost.get(), self.params.limit + self.params.max_debt),
            // An `UpTo` ask of cost 0 is never refused, even in debt.
            Ask::UpTo(cost) if cost.get() == 0 => (0, u64::MAX),
            Ask::UpTo(cost) => (cost.get().min(self.params.limit.saturating_sub(held).max(1)), self.params.limit),
        };
        let outcome = if cost > ceiling {
            Outcome::Deny(Retry::Never)
        } else if held > ceiling - cost {
            Outcome::Deny(Retry::OnRelease)
        } else {
            self.renewals += 1;
            self.leases.push(ModelLease {
                weight: cost,
                ends: now + self.params.lease_nanos(),
                renewal_order: self.renewals,
            });
            Outcome::Allow
        };
        let taken = if outcome.is_admitted() { cost } else { 0 };
        ModelAnswer { outcome, taken, receipt: self.leases.len().saturating_sub(1) }
    }

    /// Refunds the lease with this receipt. Without a receipt, refunds nothing, because only the holder can release a
    /// lease.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let Some(lease) = receipt.and_then(|receipt| self.find(now.mono().as_nanos(), receipt)) else { return 0 };
        let given = cost.min(lease.weight);
        lease.weight -= given;
        given
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let now = now.mono().as_nanos();
        let held = self.weight_held(now);
        let retry = if cost > self.params.limit {
            Retry::Never
        } else if held > self.params.limit - cost {
            Retry::OnRelease
        } else {
            Retry::NOW
        };
        let last = self.held_leases(now).map(|lease| lease.ends - now).max().unwrap_or(0);
        Report {
            limit: self.params.limit,
            remaining: self.params.limit.saturating_sub(held),
            retry,
            reset: Nanos::from_nanos(last),
        }
    }

    fn is_exempt_from(&self, law: Law) -> bool {
        law == Law::SameWords
    }

    fn restart(&mut self, _: &Now<'_>) {
        self.leases.clear();
    }
}
