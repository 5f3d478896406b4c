//! The verbs of an engine: everything that a request or a receipt can be used for.

use tollgate::core::Cost;

use super::decide::decide;
use super::{Engine, EngineError, Settled, Taking, explain, settle, undo};
use crate::decision::{Decision, Decisions};
use crate::explain::Explanation;
use crate::receipt::Receipt;
use crate::request::{Item, Request, RequestError};
use crate::store::{Store, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Takes what the request costs from every limit it meets, or refuses it and takes nothing.
    ///
    /// # Errors
    /// When the request cannot be understood. Whatever happens to the store, there is a decision.
    pub async fn check<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, Verb::Check, Taking::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// [`check`](Self::check) for many requests, each by itself, in order.
    pub async fn check_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, Verb::Check, Taking::Exactly, requests, decisions).await;
    }

    /// What [`check`](Self::check) would say. Changes nothing.
    ///
    /// # Errors
    /// When the request cannot be understood.
    pub async fn peek<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, Verb::Peek, Taking::Exactly, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// [`peek`](Self::peek) for many requests.
    pub async fn peek_batch(&self, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, Verb::Peek, Taking::Exactly, requests, decisions).await;
    }

    /// Takes as much of what each request weighs as `taking` says; [`check_batch`](Self::check_batch) is
    /// [`Taking::Exactly`]. How much that was is told by [`Decision::taken`].
    pub async fn take_batch(&self, taking: Taking, requests: &[Request<'_>], decisions: &mut Decisions) {
        decide(self, Verb::Check, taking, requests, decisions).await;
    }

    /// Takes as much of the item's cost as every rule has, and at least one; or refuses it and takes nothing. With
    /// [`Cost::MAX`](tollgate::core::Cost::MAX) it takes all there is.
    ///
    /// # Errors
    /// When the request cannot be understood, has several items, or does not say how much is wanted.
    pub async fn take_up_to<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, Verb::Check, Taking::UpTo, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Takes what the request costs, into debt where there is not so much: for what has happened already. Refused is
    /// only what would be a deeper debt than the limits allow.
    ///
    /// # Errors
    /// When the request cannot be understood.
    pub async fn charge<'d>(
        &self,
        request: &Request<'_>,
        decisions: &'d mut Decisions,
    ) -> Result<Decision<'d>, RequestError> {
        decide(self, Verb::Check, Taking::Regardless, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Refunds what a decision took, as far as its limits still hold it against the keys. Returns the least that any of them
    /// accepted. What was taken under a rule that is gone stays gone.
    ///
    /// # Errors
    /// When the store does not answer. Refunds are not retried by themselves: an unknown one may have been carried out.
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

    /// Extends the leases that a decision took as if they were taken now. Returns whether all of them were still held: one that
    /// was lost has to be taken again.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn renew(&self, receipt: &Receipt) -> Result<bool, EngineError> {
        undo::renew(self, receipt).await
    }

    /// Settles what a decision took at the cost that the request really had.
    ///
    /// # Errors
    /// When the store does not answer. What was reserved too much may then have been refunded, and what was reserved too little
    /// may have been charged, or not.
    pub async fn commit(&self, receipt: &Receipt, cost: Cost) -> Result<Settled, EngineError> {
        settle::commit(self, receipt, cost).await
    }

    /// Forgets what was spent of every limit that the request matches, shadow rules included. Returns how many counters
    /// these are.
    ///
    /// # Errors
    /// When the request is not valid or the store does not answer.
    pub async fn reset(&self, request: &Request<'_>, decisions: &mut Decisions) -> Result<usize, EngineError> {
        undo::reset(self, request, decisions).await
    }

    /// Explains why a request of this item is decided as it is: the rules it matches with the state of their limits, and the
    /// others with what keeps it from them. Changes nothing. It looks at every rule, and asks the store how near bans are, so
    /// it is meant for people.
    ///
    /// # Errors
    /// When the request is not valid.
    pub async fn explain(
        &self,
        domain: &[u8],
        item: &Item<'_>,
        decisions: &mut Decisions,
    ) -> Result<Explanation, RequestError> {
        explain::explain(self, domain, item, decisions).await
    }

    /// Explains why the request at `place` of those that were decided was decided as it was, with the state at that time. Of several
    /// items, the first is compared with rules that do not match. Asks the store nothing. Returns nothing if the request
    /// was not decided, or if the rules have been replaced more than once since then.
    ///
    /// # Panics
    /// When there were fewer requests.
    pub fn explain_decided(&self, request: &Request<'_>, decisions: &Decisions, place: usize) -> Option<Explanation> {
        explain::explain_decided(self, request, decisions, place)
    }
}
