//! How much of the cost of a request is taken, and what follows if that is not all of it.

use std::ops::Range;

use tollgate::core::{Ask, Cost};

use super::plan::{AnswerSource, Plan, PlannedCharge, range};
use super::{Engine, undo};
use crate::decision::Decisions;
use crate::receipt::Receipt;
use crate::request::{Request, RequestError};
use crate::store::Store;

/// How much of the cost of a request is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taking {
    /// All of it, or nothing.
    #[default]
    Exactly,
    /// As much as every rule has, and at least one. The request has one item, whose cost is the most that is taken.
    UpTo,
    /// All of it, into debt as far as the limits allow: for what has happened already.
    Regardless,
}

impl Taking {
    /// Returns what a charge of `cost` asks of its limits.
    #[inline]
    const fn ask(self, cost: Cost) -> Ask {
        match self {
            Self::Exactly => Ask::Exactly(cost),
            Self::UpTo => Ask::UpTo(cost),
            Self::Regardless => Ask::Regardless(cost),
        }
    }

    /// Checks that a request can be taken in this way.
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
    /// Returns what a charge asks of its limits. A ban is not about amounts.
    #[inline]
    pub(crate) fn ask(&self, planned: &PlannedCharge) -> Ask {
        if planned.is_ban() {
            Ask::Exactly(planned.cost)
        } else if planned.postpaid && planned.cost > Cost::ZERO {
            Ask::Regardless(planned.cost)
        } else {
            self.taking().ask(planned.cost)
        }
    }
}

/// Makes all rules of a request give the same amount: a store takes from each what that one has, and the surplus is refunded
/// at once. Meanwhile other requests may see less than there is, never more. If the store does not answer, it stays spent.
pub(super) async fn even_out<S: Store, F: Store>(
    engine: &Engine<S, F>,
    decisions: &mut Decisions,
    requests: Range<usize>,
) {
    let mut surplus = Receipt::default();
    for request in requests {
        lower_to_least(decisions, request, &mut surplus);
    }
    if !surplus.is_empty()
        && let Err(error) = undo::refund(engine, &surplus).await
    {
        undo::note_failed_refund(engine, &error);
    }
}

/// Lowers what was taken for a request to the least that any rule gave, and adds the surplus.
fn lower_to_least(decisions: &mut Decisions, request: usize, surplus: &mut Receipt) {
    let charges = range(&decisions.plan.asked[request].charges);
    let Some(least) = decisions.least_taken(request) else { return };
    for place in charges {
        let planned = &decisions.plan.charges[place];
        if planned.shadow {
            // A shadow takes no more than is admitted.
            decisions.plan.charges[place].cost = planned.cost.min(least);
            continue;
        }
        let Some(said) = decisions.answer(planned).filter(|_| !planned.is_ban()) else { continue };
        let too_much = Cost::new(said.0.taken.get().saturating_sub(least.get()));
        if too_much > Cost::ZERO {
            surplus.taken.push(decisions.taken_from(planned, said, too_much));
            match planned.answered {
                AnswerSource::Enforced(charge) => decisions.enforced.lower(charge, least),
                AnswerSource::Fallback(charge) => decisions.fallback.lower(charge, least),
                AnswerSource::Not | AnswerSource::Shadow(_) | AnswerSource::Open | AnswerSource::Closed => {}
            }
        }
    }
}
