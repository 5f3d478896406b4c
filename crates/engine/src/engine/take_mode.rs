//! How much of a request's cost is taken: all of it, as much as possible, or all of it even into debt.

use std::ops::Range;

use tollgate::core::{Ask, Cost};

use super::plan::{Plan, PlannedCharge, to_usize_range};
use crate::decision::Decisions;
use crate::request::{Request, RequestError};

/// How much of a request's cost is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakeMode {
    /// All or nothing.
    #[default]
    Exactly,
    /// As much of the cost as remains under every rule. If less than one token remains, the request is refused. The
    /// request must have exactly one item.
    UpTo,
    /// The full cost, for usage that has already happened. The limits may go into debt, up to their `max_debt`.
    Regardless,
}

impl TakeMode {
    /// Converts a cost to an [`Ask`] in this mode.
    #[inline]
    const fn ask(self, cost: Cost) -> Ask {
        match self {
            Self::Exactly => Ask::Exactly(cost),
            Self::UpTo => Ask::UpTo(cost),
            Self::Regardless => Ask::Regardless(cost),
        }
    }

    /// Checks that a request is valid in this mode.
    pub(crate) fn check_request(self, request: &Request<'_>) -> Result<(), RequestError> {
        match (self, request.items) {
            (Self::Exactly | Self::Regardless, _) | (Self::UpTo, []) => Ok(()),
            (Self::UpTo, [item]) if item.cost.is_some() => Ok(()),
            (Self::UpTo, [_]) => Err(RequestError::NoAmount),
            (Self::UpTo, items) => {
                let what = "items in a request that takes up to an amount";
                Err(RequestError::TooMany { what, given: items.len(), max: 1 })
            }
        }
    }
}

impl Plan {
    /// Returns the amount that a charge asks for. A ban always asks for its exact cost.
    #[inline]
    pub(crate) fn ask(&self, planned: &PlannedCharge) -> Ask {
        if planned.is_ban() {
            Ask::Exactly(planned.cost)
        } else if planned.postpaid && planned.cost > Cost::ZERO {
            Ask::Regardless(planned.cost)
        } else {
            self.take_mode().ask(planned.cost)
        }
    }
}

/// Lowers the cost of each request's shadow rules to the amount that its enforced rules granted, because only that
/// amount is admitted.
pub(super) fn lower_shadow_costs(decisions: &mut Decisions, requests: Range<usize>) {
    for request in requests {
        let Some(least) = decisions.least_taken(request) else { continue };
        let charges = to_usize_range(&decisions.plan.requests[request].charges);
        for planned in decisions.plan.charges[charges].iter_mut().filter(|planned| planned.shadow) {
            planned.cost = planned.cost.min(least);
        }
    }
}
