//! Concurrency by its definition: a list of leases, each with its weight and its end.

use tollgate_core::{Ask, Concurrency, LimitError, Nanos, Now, Outcome, Report, Retry};

use super::{Answer, Law, Model};

/// At most `limit` at a time, each for `lease`.
#[derive(Clone, Copy, Debug)]
pub struct LeaseNumbers {
    /// The most held at a time.
    pub limit: u64,
    /// How long a lease lasts.
    pub lease: Nanos,
    /// How much more may be held by charges.
    pub max_debt: u64,
}

impl LeaseNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<Concurrency, LimitError> {
        Concurrency::new(self.limit, self.lease)?.max_debt(self.max_debt)
    }

    fn length(&self) -> u64 {
        self.lease.as_nanos()
    }
}

/// All leases ever given, by receipt.
#[derive(Clone, Debug)]
pub struct ConcurrencyModel {
    numbers: LeaseNumbers,
    leases: Vec<Lease>,
    touches: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// Zero when all of it was given back.
    weight: u64,
    ends: u64,
    /// In which order they were taken or renewed.
    touched: u64,
}

impl ConcurrencyModel {
    /// Nobody holds anything.
    pub const fn new(numbers: LeaseNumbers) -> Self {
        Self { numbers, leases: Vec::new(), touches: 0 }
    }

    /// Other numbers from now on: no lease lasts longer than a new one, and if there are more leases than the new limit
    /// has units, those that end last are kept, of those with the same end the ones touched last.
    pub fn change(&mut self, numbers: LeaseNumbers, now: &Now<'_>) {
        let now = now.mono().as_nanos();
        let mut held: Vec<&mut Lease> =
            self.leases.iter_mut().filter(|lease| lease.weight > 0 && lease.ends > now).collect();
        held.sort_unstable_by_key(|lease| (lease.ends, lease.touched));
        let dropped = held.len().saturating_sub((numbers.limit + numbers.max_debt) as usize);
        held.iter_mut().take(dropped).for_each(|dropped| dropped.weight = 0);
        held.iter_mut().for_each(|held| held.ends = held.ends.min(now + numbers.length()));
        self.numbers = numbers;
    }

    /// Lets the lease last from now, unless it is over.
    pub fn renew(&mut self, now: &Now<'_>, receipt: usize) -> bool {
        self.touches += 1;
        let (now, length, touched) = (now.mono().as_nanos(), self.numbers.length(), self.touches);
        let Some(lease) = self.find(now, receipt) else { return false };
        (lease.ends, lease.touched) = (lease.ends.max(now + length), touched);
        true
    }

    fn find(&mut self, now: u64, receipt: usize) -> Option<&mut Lease> {
        self.leases.get_mut(receipt).filter(|lease| lease.weight > 0 && lease.ends > now)
    }

    fn held_leases(&self, now: u64) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(move |lease| lease.weight > 0 && lease.ends > now)
    }

    /// The weight of all leases that are not over.
    pub fn held(&self, now: u64) -> u64 {
        self.held_leases(now).map(|lease| lease.weight).sum()
    }
}

impl Model for ConcurrencyModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let now = now.mono().as_nanos();
        let held = self.held(now);
        let (cost, ceiling) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.numbers.limit),
            Ask::Regardless(cost) => (cost.get(), self.numbers.limit + self.numbers.max_debt),
            // Nothing asked for is nothing refused, even in debt.
            Ask::UpTo(cost) if cost.get() == 0 => (0, u64::MAX),
            Ask::UpTo(cost) => (cost.get().min(self.numbers.limit.saturating_sub(held).max(1)), self.numbers.limit),
        };
        let outcome = if cost > ceiling {
            Outcome::Deny(Retry::Never)
        } else if held > ceiling - cost {
            Outcome::Deny(Retry::OnRelease)
        } else {
            self.touches += 1;
            self.leases.push(Lease { weight: cost, ends: now + self.numbers.length(), touched: self.touches });
            Outcome::Allow
        };
        let taken = if outcome.is_admitted() { cost } else { 0 };
        Answer { outcome, taken, receipt: self.leases.len().saturating_sub(1) }
    }

    /// Only who holds a lease can give it back.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let Some(lease) = receipt.and_then(|receipt| self.find(now.mono().as_nanos(), receipt)) else { return 0 };
        let given = cost.min(lease.weight);
        lease.weight -= given;
        given
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let now = now.mono().as_nanos();
        let held = self.held(now);
        let retry = if cost > self.numbers.limit {
            Retry::Never
        } else if held > self.numbers.limit - cost {
            Retry::OnRelease
        } else {
            Retry::NOW
        };
        let last = self.held_leases(now).map(|lease| lease.ends - now).max().unwrap_or(0);
        Report {
            limit: self.numbers.limit,
            remaining: self.numbers.limit.saturating_sub(held),
            retry,
            reset: Nanos::from_nanos(last),
        }
    }

    fn lifts(&self, law: Law) -> bool {
        law == Law::SameWords
    }

    fn restart(&mut self, _: &Now<'_>) {
        self.leases.clear();
    }
}
