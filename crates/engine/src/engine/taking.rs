//! How much of the cost of a request is taken, and what follows if that is not all of it.

use std::ops::Range;

use tollgate::core::{Ask, Cost};

use super::plan::{Plan, PlannedCharge, to_usize_range};
use crate::decision::Decisions;
use crate::request::{Request, RequestError};

/// How much of the cost of a request is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taking {
    /// All of it, or nothing.
    #[default]
    Exactly,
    /// As much as every rule has left, and at least one. The request has one item, whose cost is the maximum.
    UpTo,
    /// All of it, into debt as far as the limits allow: for usage that has already happened.
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

/// Lowers the costs of the shadow rules of every request to what its enforced rules granted, since no more is
/// admitted.
pub(super) fn lower_shadows(decisions: &mut Decisions, requests: Range<usize>) {
    for request in requests {
        let Some(least) = decisions.least_taken(request) else { continue };
        let charges = to_usize_range(&decisions.plan.asked[request].charges);
        for planned in decisions.plan.charges[charges].iter_mut().filter(|planned| planned.shadow) {
            planned.cost = planned.cost.min(least);
        }
    }
}
