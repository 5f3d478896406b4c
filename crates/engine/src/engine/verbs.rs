//! The operations of an engine on requests and receipts.

use tollgate::core::Cost;

use super::decide::{decide, decide_planned, plan};
use super::plan::SmallList;
use super::{CommitResult, Engine, EngineError, ExplanationContext, TakeMode, arrears, explain, settle, undo};
use crate::decision::{Decision, Decisions};
use crate::explain::Explanation;
use crate::receipt::Receipt;
use crate::request::{Item, Request, RequestError};
use crate::store::{Store, StoreVerb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Takes the cost of the request from every matching limit, or refuses the request and takes nothing.
    ///
    /// # Errors
    /// If the request is invalid. A store failure is not an error: `on_fault` decides.
    pub async fn check<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, TakeMode::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Plans a [`check`](Self::check) without deciding it: finds the matching rules and keys.
    /// [`check_planned`](Self::check_planned) decides it later, under the same rules.
    ///
    /// A caller can plan several requests, [prefetch](Self::prefetch_planned) their states together, and then decide
    /// the requests one by one.
    pub fn plan_check(&self, request: &Request<'_>, decisions: &mut Decisions) {
        let running = self.running.load_full();
        plan(self, &running, TakeMode::Exactly, std::slice::from_ref(request), decisions);
        decisions.planned_by = Some(running);
    }

    /// Prefetches the states for all planned checks together. Changes nothing.
    pub fn prefetch_planned(&self, planned: &[Decisions]) {
        let mut keys = SmallList::new();
        for Decisions { plan, planned_by, .. } in planned {
            planned_by.iter().for_each(|running| plan.push_separate_keys(running, &mut keys));
        }
        self.store.prefetch(&keys);
    }

    /// Decides a check that was [planned](Self::plan_check).
    ///
    /// # Errors
    /// If the request is invalid.
    ///
    /// # Panics
    /// If nothing was planned.
    pub async fn check_planned<'d>(&self, decisions: &'d mut Decisions) -> Result<Decision<'d>, RequestError> {
        let running = decisions.planned_by.take().expect("a check was planned");
        decide_planned(self, StoreVerb::Check, TakeMode::Exactly, &running, decisions).await;
        decisions.get(0)
    }

    /// Decides many requests like [`check`](Self::check), in order and independently.
    pub async fn check_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Check, TakeMode::Exactly, requests, decisions).await;
    }

    /// Returns the decision that [`check`](Self::check) would return. Changes nothing.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn peek<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Peek, TakeMode::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Peeks at many requests like [`peek`](Self::peek).
    pub async fn peek_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Peek, TakeMode::Exactly, requests, decisions).await;
    }

    /// Takes the cost of each request in the mode `take_mode`; [`check_batch`](Self::check_batch) uses
    /// [`TakeMode::Exactly`]. [`Decision::taken`] returns the amount.
    pub async fn take_batch(&self, take_mode: TakeMode, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Check, take_mode, requests, decisions).await;
    }

    /// Takes as much of the item's cost as remains under every rule. If a rule has nothing remaining, refuses the
    /// request and takes nothing. [`Cost::MAX`](tollgate::core::Cost::MAX) takes everything available.
    ///
    /// # Errors
    /// If the request is invalid, has several items, or states no amount.
    pub async fn take_up_to<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, TakeMode::UpTo, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Takes the cost of the request for work that is already done. The limits may go into debt. Refuses only if the
    /// debt would exceed `max_debt`.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn charge<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, TakeMode::Regardless, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Refunds the charges of a decision, up to the current usage. Returns the smallest amount that any limit accepted.
    /// Charges under a deleted rule are not refunded.
    ///
    /// # Errors
    /// If the store does not answer. Do not retry a refund with an unknown outcome: it may have been carried out.
    pub async fn refund(&self, receipt: &Receipt) -> Result<Cost, EngineError> {
        undo::refund(self, receipt).await
    }

    /// Refunds the cost of a request to every matching counter, without a receipt. A bucket is refilled at most to its
    /// capacity, and the usage of a window or log never drops below zero. Concurrency slots are not released, because
    /// each slot belongs to its holder.
    ///
    /// # Errors
    /// If the request is invalid or the store does not answer.
    pub async fn refund_request(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<(), EngineError> {
        undo::refund_request(self, request, decisions).await
    }

    /// Renews the leases that a decision took, as if they were taken now. Returns whether there were leases and all of
    /// them were still held. A lease that has expired, or that a reset or a rule change has ended, must be taken again.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn renew(&self, receipt: &Receipt) -> Result<bool, EngineError> {
        undo::renew(self, receipt).await
    }

    /// Settles a decision at the actual cost of the request: refunds the excess or charges the shortfall.
    ///
    /// # Errors
    /// If the store does not answer. The excess may or may not have been refunded, and the shortfall may or may not
    /// have been charged.
    pub async fn commit(&self, receipt: &Receipt, cost: Cost) -> Result<CommitResult, EngineError> {
        settle::commit(self, receipt, cost).await
    }

    /// Resets the usage of every matching limit, including shadow rules, and lifts bans. Returns the number of counters
    /// that were reset, not counting bans.
    ///
    /// # Errors
    /// If the request is invalid or the store does not answer.
    pub async fn reset(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<usize, EngineError> {
        undo::reset(self, request, decisions).await
    }

    /// Explains how a request with this item would be decided. Lists the matching rules with the state of their limits,
    /// and other rules with the condition that fails. Changes nothing. This function evaluates every rule and reads the
    /// state of bans from the store, so it is meant for operators.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn explain(
        &self,
        domain: &[u8],
        item: &Item<'_>,
        decisions: &mut Decisions,
    ) -> Result<Explanation, RequestError> {
        self.decide_to_explain(domain, item, decisions).await?.explain(domain, item, decisions)
    }

    /// Decides a request without taking anything. The result can be explained later on another thread, because
    /// comparing many rules is slow.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn decide_to_explain(
        &self,
        domain: &[u8],
        item: &Item<'_>,
        decisions: &mut Decisions,
    ) -> Result<ExplanationContext, RequestError> {
        explain::decide_to_explain(self, domain, item, decisions).await
    }

    /// Explains how the request at `index` of a batch was decided, with the state at that time. Rules that do not match
    /// are compared with the first item only. Does not use the store. Returns `None` if the request was not decided, or
    /// if the rules have been replaced more than once since then.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn explain_decided(&self, request: &Request<'_>, decisions: &Decisions, index: usize) -> Option<Explanation> {
        explain::explain_decided(self, request, decisions, index)
    }

    /// Charges all arrears to the store, with one attempt per key. Call this when the store recovers. The next request
    /// for a key also charges the arrears of that key. If a place does not answer, this call skips the other keys of
    /// that place.
    pub async fn repay(&self) {
        arrears::repay(self).await;
    }
}
