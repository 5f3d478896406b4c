//! The verbs of an engine: everything that a request or a receipt can be used for.

use tollgate::core::Cost;

use super::decide::{decide, decide_planned, plan};
use super::plan::SmallList;
use super::{Engine, EngineError, ExplanationContext, Settled, Taking, arrears, explain, settle, undo};
use crate::decision::{Decision, Decisions};
use crate::explain::Explanation;
use crate::receipt::Receipt;
use crate::request::{Item, Request, RequestError};
use crate::store::{Store, StoreVerb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Takes the cost of the request from every limit that it matches, or refuses it and takes nothing.
    ///
    /// # Errors
    /// If the request is invalid. If the store fails, `on_fault` decides; that is not an error.
    pub async fn check<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, Taking::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Plans a [`check`](Self::check) without deciding it: which rules match, under which keys.
    /// [`check_planned`](Self::check_planned) decides it, by these rules, at its own time.
    ///
    /// A caller with many requests, each at a time of its own, plans some, [fetches](Self::fetch_planned) what the store
    /// needs for all of them, and then decides one after the other.
    pub fn plan_check(&self, request: &Request<'_>, decisions: &mut Decisions) {
        let running = self.running.load_full();
        plan(self, &running, Taking::Exactly, std::slice::from_ref(request), decisions);
        decisions.planned_by = Some(running);
    }

    /// Begins to fetch what the store needs to decide planned checks, at the same time for all of them. Changes nothing.
    pub fn fetch_planned(&self, planned: &[Decisions]) {
        let mut keys = SmallList::new();
        for Decisions { plan, planned_by, .. } in planned {
            planned_by.iter().for_each(|running| plan.push_separate_keys(running, &mut keys));
        }
        self.store.fetch(&keys);
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
        decide_planned(self, StoreVerb::Check, Taking::Exactly, &running, decisions).await;
        decisions.get(0)
    }

    /// Like [`check`](Self::check) for many requests, in order and independently.
    pub async fn check_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Check, Taking::Exactly, requests, decisions).await;
    }

    /// Returns what [`check`](Self::check) would return. Changes nothing.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn peek<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Peek, Taking::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Like [`peek`](Self::peek) for many requests.
    pub async fn peek_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Peek, Taking::Exactly, requests, decisions).await;
    }

    /// Takes as much of the cost of each request as `taking` says; [`check_batch`](Self::check_batch) is
    /// [`Taking::Exactly`]. [`Decision::taken`] returns the amount.
    pub async fn take_batch(&self, taking: Taking, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, StoreVerb::Check, taking, requests, decisions).await;
    }

    /// Takes as much of the item's cost as every rule has, and at least one; or refuses it and takes nothing. With
    /// [`Cost::MAX`](tollgate::core::Cost::MAX) it takes everything available.
    ///
    /// # Errors
    /// If the request is invalid, has several items, or states no amount.
    pub async fn take_up_to<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, Taking::UpTo, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Takes the cost of the request, into debt if necessary: for work that is already done. Refused only
    /// if the debt would exceed `max_debt`.
    ///
    /// # Errors
    /// If the request is invalid.
    pub async fn charge<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, StoreVerb::Check, Taking::Regardless, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Refunds what a decision took, as far as it still counts as usage. Returns the least that any limit
    /// accepted. What was taken under a deleted rule is not refunded.
    ///
    /// # Errors
    /// If the store does not answer. Refunds are not retried: one with an unknown outcome may have been
    /// carried out.
    pub async fn refund(&self, receipt: &Receipt) -> Result<Cost, EngineError> {
        undo::refund(self, receipt).await
    }

    /// Refunds the cost of a request to every counter that it matches, without a receipt: never above full, and of windows and logs
    /// only what is used at present. Slots of concurrency limits are not released, because each belongs to its holder.
    ///
    /// # Errors
    /// When the request is not valid or the store does not answer.
    pub async fn refund_request(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<(), EngineError> {
        undo::refund_request(self, request, decisions).await
    }

    /// Renews the leases that a decision took, as if they were taken now. Returns whether it took any and all of them
    /// were still held: one that has expired, or was lost by a reset or a change of the rule, must be taken again.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn renew(&self, receipt: &Receipt) -> Result<bool, EngineError> {
        undo::renew(self, receipt).await
    }

    /// Settles what a decision took at the actual cost of the request.
    ///
    /// # Errors
    /// If the store does not answer. In that case the excess may have been refunded or the shortfall charged,
    /// or not.
    pub async fn commit(&self, receipt: &Receipt, cost: Cost) -> Result<Settled, EngineError> {
        settle::commit(self, receipt, cost).await
    }

    /// Discards the usage of every limit that the request matches, shadow rules included. Returns the number
    /// of counters.
    ///
    /// # Errors
    /// If the request is invalid or the store does not answer.
    pub async fn reset(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<usize, EngineError> {
        undo::reset(self, request, decisions).await
    }

    /// Explains how a request of this item would be decided: the rules it matches with the state of their
    /// limits, and the others with the condition that fails. Changes nothing. It evaluates every rule and
    /// reads the state of bans from the store, so it is meant for operators.
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

    /// Decides a request without taking anything, to be explained afterwards: on another thread where many rules take long
    /// to compare.
    ///
    /// # Errors
    /// When the request cannot be decided.
    pub async fn decide_to_explain(
        &self,
        domain: &[u8],
        item: &Item<'_>,
        decisions: &mut Decisions,
    ) -> Result<ExplanationContext, RequestError> {
        explain::decide_to_explain(self, domain, item, decisions).await
    }

    /// Explains how the request at index `place` of a batch was decided, with the state at that time. If the request
    /// has several items, the first is compared with rules that do not match. Does not use the store. Returns `None` if
    /// the request was not decided, or if the rules have been replaced more than once since then.
    ///
    /// # Panics
    /// If there were fewer requests.
    pub fn explain_decided(&self, request: &Request<'_>, decisions: &Decisions, place: usize) -> Option<Explanation> {
        explain::explain_decided(self, request, decisions, place)
    }

    /// Charges the store with what this node admitted while it did not answer. Call it when the store answers again; requests
    /// for a key charge it with what is owed for the key by themselves. Returns when all is charged, or the store does not answer.
    pub async fn repay(&self) {
        arrears::repay(self).await;
    }
}
