//! Builds charges for the conformance cases and runs them on the store.

use std::hash::{BuildHasher, RandomState};

use tollgate_core::{
    Ask, Concurrency, Cost, FixedWindow, Limit, Limits, Nanos, Outcome, Report, Retry, SlidingLog, SlidingSlices,
    Stamps, Time, Wall, Window,
};
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreError, StoreVerb};

use super::Subject;
use super::limits::{YEAR, limit_of_each_algorithm};

/// A store, its limits, and a namespace for keys.
pub(super) struct Harness<'s, S> {
    pub(super) subject: &'s mut S,
    limits_by_id: LimitList,
    /// Random number that keeps the keys of this run separate from other runs on the same store.
    run_id: u64,
}

/// Limits indexed by id.
struct LimitList(Vec<Limits>);

impl tollgate::ledger::LimitTable for LimitList {
    fn get(&self, id: u32) -> Option<&Limits> {
        self.0.get(id as usize)
    }
}

/// A charge against one key.
#[derive(Clone, Debug)]
pub(super) struct TestCharge {
    pub(super) limits_id: u32,
    pub(super) key: Vec<u8>,
    pub(super) ask: Ask,
    pub(super) stamps: Option<Stamps>,
    pub(super) earlier: Vec<u32>,
    pub(super) windows: Vec<Window>,
}

impl TestCharge {
    pub(super) fn cost(mut self, cost: u64) -> Self {
        self.ask = Ask::Exactly(Cost::new(cost));
        self
    }

    pub(super) fn ask(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// Replaces the limits of this charge and keeps the id of the old limits.
    pub(super) fn with_limits(mut self, limits_id: u32) -> Self {
        self.earlier.insert(0, self.limits_id);
        self.limits_id = limits_id;
        self
    }

    pub(super) fn windows(mut self, windows: &[Window]) -> Self {
        self.windows = windows.to_vec();
        self
    }

    /// Returns a refund of the amount that `answer` took.
    pub(super) fn with_stamps_of(mut self, answer: &ChargeAnswer) -> Self {
        self.ask = Ask::Exactly(Cost::new(answer.taken));
        self.stamps = Some(answer.stamps);
        self
    }
}

/// The answer to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChargeAnswer {
    pub(super) outcome: Outcome,
    pub(super) taken: u64,
    pub(super) stamps: Stamps,
    pub(super) reports: Vec<Report>,
    pub(super) at: Time<Wall>,
}

impl ChargeAnswer {
    pub(super) fn passed(&self) -> bool {
        self.outcome.is_admitted()
    }

    pub(super) fn remaining(&self) -> Vec<u64> {
        self.reports.iter().map(|report| report.remaining).collect()
    }

    /// Returns the retry wait of a refusal.
    pub(super) fn wait(&self) -> Nanos {
        match self.outcome {
            Outcome::Deny(Retry::After(wait)) => wait,
            Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::OnRelease | Retry::Never) => {
                panic!("expected a wait, got {:?}", self.outcome)
            }
        }
    }
}

impl<'s, S: Subject> Harness<'s, S> {
    pub(super) fn new(subject: &'s mut S) -> Self {
        Self { subject, limits_by_id: LimitList(Vec::new()), run_id: RandomState::new().hash_one("harness") }
    }

    /// Filters out limits whose algorithm the store refuses.
    pub(super) fn without_refused(&self, limits: Vec<(&'static str, Limit)>) -> Vec<(&'static str, Limit)> {
        limits.into_iter().filter(|(name, _)| !self.refuses(name)).collect()
    }

    /// Returns one limit per algorithm that the store accepts.
    pub(super) fn limit_of_each_algorithm(&self, limit: u64) -> Vec<(&'static str, Limit)> {
        self.without_refused(limit_of_each_algorithm(limit))
    }

    /// Returns a sliding log, or sliding slices if the store refuses logs.
    pub(super) fn log_or_slices(&self, limit: u64) -> Limit {
        if self.refuses("sliding log") {
            return SlidingSlices::new(limit, YEAR, Nanos::from_secs(7 * 86_400)).expect("slices").into();
        }
        SlidingLog::new(limit, YEAR).expect("a log").into()
    }

    /// Returns a concurrency limit, or a fixed window if the store refuses concurrency limits.
    pub(super) fn slots_or_window(&self, limit: u64) -> Limit {
        if self.refuses("concurrency") {
            return FixedWindow::new(limit, YEAR).expect("a window").into();
        }
        Concurrency::new(limit, YEAR).expect("leases").into()
    }

    pub(super) fn refuses(&self, name: &str) -> bool {
        self.subject.refused_algorithms().iter().any(|refused| name.starts_with(refused))
    }

    /// Registers limits and returns their id.
    pub(super) fn register_limits(&mut self, limits: impl IntoIterator<Item = Limit>) -> u32 {
        self.limits_by_id.0.push(Limits::new(limits).expect("one to eight limits"));
        self.limits_by_id.0.len() as u32 - 1
    }

    pub(super) fn register_limit(&mut self, limit: impl Into<Limit>) -> u32 {
        self.register_limits([limit.into()])
    }

    /// Returns a charge of cost 1 against a key.
    pub(super) fn new_charge(&self, limits_id: u32, key: &str) -> TestCharge {
        let key = [&self.run_id.to_le_bytes(), key.as_bytes()].concat();
        let ask = Ask::Exactly(Cost::ONE);
        TestCharge { limits_id, key, ask, stamps: None, earlier: Vec::new(), windows: Vec::new() }
    }

    /// Registers one limit and returns a charge of cost 1 under it.
    pub(super) fn new_charge_with_limit(&mut self, limit: impl Into<Limit>, key: &str) -> TestCharge {
        let limits_id = self.register_limit(limit);
        self.new_charge(limits_id, key)
    }

    pub(super) async fn check(&self, charge: &TestCharge) -> ChargeAnswer {
        self.run_one(StoreVerb::Check, charge).await
    }

    pub(super) async fn peek(&self, charge: &TestCharge) -> ChargeAnswer {
        self.run_one(StoreVerb::Peek, charge).await
    }

    /// Refunds the charge and returns the accepted amount.
    pub(super) async fn refund(&self, charge: &TestCharge) -> u64 {
        self.run_one(StoreVerb::Refund, charge).await.taken
    }

    /// Renews the leases of a charge. Returns the cost if all leases were still held, otherwise 0.
    pub(super) async fn renew(&self, charge: &TestCharge) -> u64 {
        self.run_one(StoreVerb::Renew, charge).await.taken
    }

    pub(super) async fn reset(&self, charge: &TestCharge) {
        self.run_one(StoreVerb::Reset, charge).await;
    }

    async fn run_one(&self, verb: StoreVerb, charge: &TestCharge) -> ChargeAnswer {
        self.run_group(verb, std::slice::from_ref(charge)).await.swap_remove(0)
    }

    /// Runs one group.
    pub(super) async fn run_group(&self, verb: StoreVerb, charges: &[TestCharge]) -> Vec<ChargeAnswer> {
        let answers = self.run_batch(&[(verb, charges)]).await;
        answers.into_iter().next().expect("an answer for the group").expect("the store answers")
    }

    /// Runs several groups in one call.
    pub(super) async fn run_batch(
        &self,
        groups: &[(StoreVerb, &[TestCharge])],
    ) -> Vec<Result<Vec<ChargeAnswer>, StoreError>> {
        let charges: Vec<Vec<Charge<'_>>> = groups
            .iter()
            .map(|(_, charges)| charges.iter().map(|charge| self.to_store_charge(charge)).collect())
            .collect();
        let store_groups: Vec<Group<'_>> =
            groups.iter().zip(&charges).map(|((verb, _), charges)| Group { verb: *verb, charges }).collect();
        let mut answers = Answers::default();
        self.subject.store().run(Batch { limit_table: &self.limits_by_id, groups: &store_groups }, &mut answers).await;
        assert_eq!(answers.len(), groups.len(), "every group is answered");
        (0..groups.len()).map(|index| self.collect_answers(&answers, index, groups[index].1)).collect()
    }

    fn collect_answers(
        &self,
        answers: &Answers,
        index: usize,
        charges: &[TestCharge],
    ) -> Result<Vec<ChargeAnswer>, StoreError> {
        let group = answers.group(index)?;
        assert_eq!(group.charges().len(), charges.len(), "every charge is answered");
        let charge_answers = group.charges().iter().zip(charges).map(|(answer, charge)| {
            let reports = group.reports(answer).to_vec();
            let limits = self.limits_by_id.0[charge.limits_id as usize].as_slice().len();
            assert_eq!(reports.len(), limits, "there is a report for every limit");
            ChargeAnswer {
                outcome: answer.outcome,
                taken: answer.taken.get(),
                stamps: group.stamps(answer),
                reports,
                at: group.decided_at(),
            }
        });
        Ok(charge_answers.collect())
    }

    fn to_store_charge<'q>(&'q self, charge: &'q TestCharge) -> Charge<'q> {
        Charge {
            key: &charge.key,
            limits_id: charge.limits_id,
            limits: &self.limits_by_id.0[charge.limits_id as usize],
            earlier: &charge.earlier,
            ask: charge.ask,
            stamps: charge.stamps.as_ref(),
            windows: &charge.windows,
            consistency: Consistency::Strict,
        }
    }
}
