//! Several limits together by their definition: ask each of them, and keep their answers only if all of them agree.

use tollgate_core::{Ask, Cost, Limit, LimitError, Limits, Nanos, Now, Outcome, Report, Retry};

use super::{
    Answer, ConcurrencyModel, FixedWindowModel, Law, LeakyBucketModel, LeakyNumbers, LeaseNumbers, LogNumbers, Model,
    SlidingLogModel, SlidingWindowModel, TokenBucketModel, TokenNumbers, WindowNumbers,
};

/// The numbers of one limit of a group.
#[derive(Clone, Copy, Debug)]
pub enum Member {
    /// A token bucket.
    TokenBucket(TokenNumbers),
    /// A leaky bucket.
    LeakyBucket(LeakyNumbers),
    /// A fixed window.
    FixedWindow(WindowNumbers),
    /// A sliding window.
    SlidingWindow(WindowNumbers),
    /// A sliding log.
    SlidingLog(LogNumbers),
    /// So many at a time.
    Concurrency(LeaseNumbers),
}

impl Member {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<Limit, LimitError> {
        Ok(match self {
            Self::TokenBucket(numbers) => numbers.limit()?.into(),
            Self::LeakyBucket(numbers) => numbers.limit()?.into(),
            Self::FixedWindow(numbers) => numbers.fixed()?.into(),
            Self::SlidingWindow(numbers) => numbers.sliding()?.into(),
            Self::SlidingLog(numbers) => numbers.limit()?.into(),
            Self::Concurrency(numbers) => numbers.limit()?.into(),
        })
    }

    /// The implementation of a group.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limits(members: &[Self]) -> Result<Limits, LimitError> {
        Limits::new(members.iter().map(Self::limit).collect::<Result<Vec<_>, _>>()?)
    }

    fn model(self, now: &Now<'_>) -> Box<dyn Twin> {
        match self {
            Self::TokenBucket(numbers) => Box::new(TokenBucketModel::new(numbers, now)),
            Self::LeakyBucket(numbers) => Box::new(LeakyBucketModel::new(numbers, now)),
            Self::FixedWindow(numbers) => Box::new(FixedWindowModel::new(numbers, now)),
            Self::SlidingWindow(numbers) => Box::new(SlidingWindowModel::new(numbers, now)),
            Self::SlidingLog(numbers) => Box::new(SlidingLogModel::new(numbers, now)),
            Self::Concurrency(numbers) => Box::new(ConcurrencyModel::new(numbers)),
        }
    }
}

/// A model that can be tried out on a copy.
trait Twin: Model {
    fn twin(&self) -> Box<dyn Twin>;
}

impl<M: Model + Clone + 'static> Twin for M {
    fn twin(&self) -> Box<dyn Twin> {
        Box::new(self.clone())
    }
}

/// The models of all limits, in order.
#[expect(missing_debug_implementations, reason = "models of any kind")]
pub struct GroupModel {
    members: Vec<Box<dyn Twin>>,
    /// The receipts of each taking, by limit.
    takings: Vec<Vec<usize>>,
}

impl GroupModel {
    /// All new.
    pub fn new(members: &[Member], now: &Now<'_>) -> Self {
        Self { members: members.iter().map(|member| member.model(now)).collect(), takings: Vec::new() }
    }

    /// What is told about each limit.
    pub fn reports(&self, now: &Now<'_>, cost: u64) -> Vec<Report> {
        self.members.iter().map(|member| member.report(now, cost)).collect()
    }

    /// What all say, and how each would be if all agreed, or if it alone was told that it refused.
    fn try_out(&self, now: &Now<'_>, ask: Ask) -> Vec<(Answer, Box<dyn Twin>)> {
        let twins = self.members.iter().map(|member| member.twin());
        twins.map(|mut twin| (twin.ask(now, ask), twin)).collect()
    }
}

impl Model for GroupModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let mut tried = self.try_out(now, ask);
        let least = tried.iter().map(|(answer, _)| answer.taken).min().unwrap_or(0);
        if matches!(ask, Ask::UpTo(_)) && least > 0 {
            // As much as the tightest has, from all of them.
            tried = self.try_out(now, Ask::Exactly(Cost::new(least)));
        }
        let outcome = tried.iter().map(|(answer, _)| answer.outcome).reduce(Outcome::and).unwrap_or(Outcome::Allow);
        let passes = outcome.is_admitted();
        let taken = if passes { least } else { 0 };
        self.takings.push(tried.iter().map(|(answer, _)| answer.receipt).collect());
        for (member, (answer, twin)) in self.members.iter_mut().zip(tried) {
            // Who refused may count it; nobody else hears of it.
            if passes || !answer.outcome.is_admitted() {
                *member = twin;
            }
        }
        Answer { outcome, taken, receipt: self.takings.len() - 1 }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let receipts = receipt.map(|receipt| self.takings[receipt].clone());
        let refunds = self.members.iter_mut().enumerate().map(|(place, member)| {
            let receipt = receipts.as_ref().map(|receipts| receipts[place]);
            member.refund(now, cost, receipt)
        });
        refunds.fold(cost, u64::min)
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let reports = self.reports(now, cost);
        let tightest = reports.iter().min_by_key(|report| report.remaining).expect("a group has members");
        Report {
            limit: tightest.limit,
            remaining: tightest.remaining,
            retry: reports.iter().map(|report| report.retry).max().unwrap_or(Retry::NOW),
            reset: reports.iter().map(|report| report.reset).max().unwrap_or(Nanos::ZERO),
        }
    }

    fn lifts(&self, law: Law) -> bool {
        self.members.iter().any(|member| member.lifts(law))
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.members.iter_mut().for_each(|member| member.restart(now));
        self.takings.clear();
    }
}
