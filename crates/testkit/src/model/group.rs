//! Definition of a group of limits: every limit is asked, and the charges are kept only if all limits admit
//! the request.

use tollgate_core::{Ask, Cost, Limit, LimitError, Limits, Nanos, Now, Outcome, Report, Retry};

use super::{
    ConcurrencyModel, FixedWindowModel, Law, LeakyBucketModel, LeakyParams, LeaseParams, LogParams, Model, ModelAnswer,
    SlidingLogModel, SlidingWindowModel, TokenBucketModel, TokenParams, WindowParams,
};

/// Parameters of one limit in a group.
#[derive(Clone, Copy, Debug)]
pub enum GroupLimitParams {
    /// A token bucket.
    TokenBucket(TokenParams),
    /// A leaky bucket.
    LeakyBucket(LeakyParams),
    /// A fixed window.
    FixedWindow(WindowParams),
    /// A sliding window.
    SlidingWindow(WindowParams),
    /// A sliding log.
    SlidingLog(LogParams),
    /// A concurrency limit.
    Concurrency(LeaseParams),
}

impl GroupLimitParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<Limit, LimitError> {
        Ok(match self {
            Self::TokenBucket(params) => params.limit()?.into(),
            Self::LeakyBucket(params) => params.limit()?.into(),
            Self::FixedWindow(params) => params.fixed_window()?.into(),
            Self::SlidingWindow(params) => params.sliding_window()?.into(),
            Self::SlidingLog(params) => params.limit()?.into(),
            Self::Concurrency(params) => params.limit()?.into(),
        })
    }

    /// Returns the limits of a group.
    ///
    /// # Errors
    /// Returns the errors of the limits' constructors.
    pub fn limits(members: &[Self]) -> Result<Limits, LimitError> {
        Limits::new(members.iter().map(Self::limit).collect::<Result<Vec<_>, _>>()?)
    }

    fn new_model(self, now: &Now<'_>) -> Box<dyn ClonableModel> {
        match self {
            Self::TokenBucket(params) => Box::new(TokenBucketModel::new(params, now)),
            Self::LeakyBucket(params) => Box::new(LeakyBucketModel::new(params, now)),
            Self::FixedWindow(params) => Box::new(FixedWindowModel::new(params, now)),
            Self::SlidingWindow(params) => Box::new(SlidingWindowModel::new(params, now)),
            Self::SlidingLog(params) => Box::new(SlidingLogModel::new(params, now)),
            Self::Concurrency(params) => Box::new(ConcurrencyModel::new(params)),
        }
    }
}

/// A model that can be cloned, so that a request can be tried on the clone.
trait ClonableModel: Model {
    fn boxed_clone(&self) -> Box<dyn ClonableModel>;
}

impl<M: Model + Clone + 'static> ClonableModel for M {
    fn boxed_clone(&self) -> Box<dyn ClonableModel> {
        Box::new(self.clone())
    }
}

/// The models of all limits, in order.
#[expect(missing_debug_implementations, reason = "a model need not implement Debug")]
pub struct GroupModel {
    members: Vec<Box<dyn ClonableModel>>,
    /// For each charge, the receipts of all limits.
    charge_receipts: Vec<Vec<usize>>,
}

impl GroupModel {
    /// Returns a group of new models.
    pub fn new(members: &[GroupLimitParams], now: &Now<'_>) -> Self {
        Self { members: members.iter().map(|member| member.new_model(now)).collect(), charge_receipts: Vec::new() }
    }

    /// Returns the report of each limit.
    pub fn reports(&self, now: &Now<'_>, cost: u64) -> Vec<Report> {
        self.members.iter().map(|member| member.report(now, cost)).collect()
    }

    /// Asks a clone of each model. Returns the answers and the resulting clones.
    fn ask_clones(&self, now: &Now<'_>, ask: Ask) -> Vec<(ModelAnswer, Box<dyn ClonableModel>)> {
        let twins = self.members.iter().map(|member| member.boxed_clone());
        twins.map(|mut boxed_clone| (boxed_clone.ask(now, ask), boxed_clone)).collect()
    }
}

impl Model for GroupModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let mut tried = self.ask_clones(now, ask);
        let least = tried.iter().map(|(answer, _)| answer.taken).min().unwrap_or(0);
        if matches!(ask, Ask::UpTo(_)) && least > 0 {
            // All limits take the amount that the tightest limit allows.
            tried = self.ask_clones(now, Ask::Exactly(Cost::new(least)));
        }
        let outcome =
            tried.iter().map(|(answer, _)| answer.outcome).reduce(Outcome::stricter).unwrap_or(Outcome::Allow);
        let passes = outcome.is_admitted();
        let taken = if passes { least } else { 0 };
        self.charge_receipts.push(tried.iter().map(|(answer, _)| answer.receipt).collect());
        for (member, (answer, boxed_clone)) in self.members.iter_mut().zip(tried) {
            // A limit that refused may count the refusal. The other limits keep their state.
            if passes || !answer.outcome.is_admitted() {
                *member = boxed_clone;
            }
        }
        ModelAnswer { outcome, taken, receipt: self.charge_receipts.len() - 1 }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let receipts = receipt.map(|receipt| self.charge_receipts[receipt].clone());
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

    fn is_exempt_from(&self, law: Law) -> bool {
        self.members.iter().any(|member| member.is_exempt_from(law))
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.members.iter_mut().for_each(|member| member.restart(now));
        self.charge_receipts.clear();
    }
}
