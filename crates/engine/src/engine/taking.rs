//! How much of what a request weighs is taken, and what follows if that is not all of it.

use tollgate::core::{Ask, Cost};

use super::Engine;
use super::decide::range;
use super::plan::{Answered, Plan, Planned};
use crate::decision::{Decision, Decisions};
use crate::receipt::{Receipt, Taken};
use crate::request::{Request, RequestError};
use crate::store::{Answer, Answers, Store, Verb};

/// How much of what a request weighs is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taking {
    /// All of it, or nothing.
    #[default]
    Exactly,
    /// As much as there is, the same from every rule, and at least one. The request has one item, which says how much is
    /// wanted.
    UpTo,
    /// All of it, into debt where it does not fit, as far as the limits allow debt: for what has happened already.
    Regardless,
}

impl Taking {
    /// What a charge of `cost` asks of its limits.
    #[inline]
    const fn ask(self, cost: Cost) -> Ask {
        match self {
            Self::Exactly => Ask::Exactly(cost),
            Self::UpTo => Ask::UpTo(cost),
            Self::Regardless => Ask::Regardless(cost),
        }
    }

    /// Whether a request can be asked in this way.
    pub(crate) fn check(self, request: &Request<'_>) -> Result<(), RequestError> {
        match (self, request.items) {
            (Self::Exactly | Self::Regardless, _) | (Self::UpTo, []) => Ok(()),
            (Self::UpTo, [item]) if item.cost.is_some() => Ok(()),
            (Self::UpTo, [_]) => Err(RequestError::NoAmount),
            (Self::UpTo, items) => {
                Err(RequestError::TooMany { what: "items to take from at once", given: items.len(), max: 1 })
            }
        }
    }
}

impl Plan {
    /// What a charge asks of its limits. A ban is not about amounts.
    #[inline]
    pub(crate) fn ask(&self, planned: &Planned) -> Ask {
        if planned.is_ban() { Ask::Exactly(planned.cost) } else { self.taking().ask(planned.cost) }
    }
}

impl<S: Store, F: Store> Engine<S, F> {
    /// Takes as much of what each request weighs as `taking` says; [`check_batch`](Self::check_batch) is
    /// [`Taking::Exactly`]. How much that was is told by [`Decision::taken`].
    pub async fn take_batch(&self, taking: Taking, requests: &[Request<'_>], decisions: &mut Decisions) {
        self.decide(Verb::Check, taking, requests, decisions).await;
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
        self.decide(Verb::Check, Taking::UpTo, std::slice::from_ref(request), decisions).await;
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
        self.decide(Verb::Check, Taking::Regardless, std::slice::from_ref(request), decisions).await;
        decisions.get(0)
    }

    /// Makes rules that had more to give than others give the same: a store takes from each what that one has. What is too
    /// much goes back at once. Meanwhile others may see less than there is; nobody ever sees more. If the store does not
    /// answer, it stays spent.
    pub(super) async fn even_out(&self, decisions: &mut Decisions) {
        let mut surplus = Receipt::default();
        for request in 0..decisions.decided.len() {
            decisions.even_out(request, &mut surplus);
        }
        if !surplus.is_empty()
            && let Err(error) = self.refund(&surplus).await
        {
            self.note_failed_refund(&error);
        }
    }
}

impl Decisions {
    /// Lowers what was taken for a request to the least that any rule gave, and adds what is to go back.
    fn even_out(&mut self, request: usize, surplus: &mut Receipt) {
        let charges = range(&self.plan.asked[request].charges);
        let Some(least) = self.least_taken(request) else { return };
        for place in charges {
            let planned = &self.plan.charges[place];
            if planned.shadow {
                // It takes no more than passes.
                self.plan.charges[place].cost = planned.cost.min(least);
                continue;
            }
            let Some(said) = self.answer(planned).filter(|_| !planned.is_ban()) else { continue };
            let too_much = Cost::new(said.0.taken.get().saturating_sub(least.get()));
            if too_much > Cost::ZERO {
                surplus.taken.push(self.taken_from(planned, said, too_much));
                match planned.answered {
                    Answered::Enforced(charge) => self.enforced.lower(charge, least),
                    Answered::Fallback(charge) => self.fallback.lower(charge, least),
                    Answered::Not | Answered::Shadow(_) | Answered::Open | Answered::Closed => {}
                }
            }
        }
    }

    /// The least that any enforced rule took for a request; none if nothing was counted.
    pub(crate) fn least_taken(&self, request: usize) -> Option<Cost> {
        let enforced = self.charges_of(request).iter().filter(|planned| !planned.shadow && !planned.is_ban());
        enforced.filter_map(|planned| self.answer(planned)).map(|(answer, _)| answer.taken).min()
    }

    /// What a charge took, or a part of it, to give it back.
    pub(crate) fn taken_from(&self, planned: &Planned, (answer, answers): (&Answer, &Answers), cost: Cost) -> Taken {
        let numbers = &self.plan.numbers;
        Taken {
            key: self.plan.key(planned).into(),
            sent: numbers.sent(planned).map(|sheet| &sheet.limits).or(numbers.overriding(planned)).cloned(),
            fallback: matches!(planned.answered, Answered::Fallback(_)),
            cost,
            stamps: answers.stamps(answer),
        }
    }
}
