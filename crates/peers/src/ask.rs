//! A request of one node to the home of a key, and the answer.

use std::sync::Arc;

use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Now, Outcome, Report, Stamps};

use crate::NodeId;
use crate::homes::{Homes, Hop, Route, Unavailable};
use crate::table::{Charge, SharedLimits, Table, Verb};
use crate::wire::limits::LimitsCode;

/// A group of charges, all of which have the same home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The number by which the answer refers to it.
    pub id: u64,
    /// Whether the request was passed on, as its receiver sees it.
    pub hop: Hop,
    /// What to do with the charges.
    pub verb: Verb,
    /// The charges, at most [`Ask::MAX_CHARGES`].
    pub charges: Vec<AskCharge>,
}

/// A charge of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskCharge {
    /// The key.
    pub key: Fingerprint,
    /// Its limits.
    pub limits: LimitsCode,
    /// The amount.
    pub amount: Amount,
    /// Where it was taken, for a refund.
    pub stamps: Option<Stamps>,
}

/// The answer of the home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the request.
    pub id: u64,
    /// An answer for each charge, in order.
    pub result: Result<Vec<ChargeAnswer>, Refusal>,
}

/// The answer to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeAnswer {
    /// The outcome of this charge alone.
    pub outcome: Outcome,
    /// What was taken, or accepted as a refund.
    pub taken: Cost,
    /// The stamps that undo the charge exactly.
    pub stamps: Stamps,
    /// A report for each limit.
    pub reports: Vec<Report>,
}

/// Why a group was not decided. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The asked node does not see a majority.
    Minority,
    /// The asked node knows no home for the key.
    NoHome,
    /// The limits are none that nodes can share.
    BadLimits,
}

/// The reaction to a request of another node.
#[derive(Debug)]
pub enum AskStep {
    /// Send this answer. If much is unsent, the mesh should send a delta at once.
    Answer {
        /// The answer.
        answer: Answer,
        /// As [`Decided::urgent`](crate::table::Decided::urgent).
        urgent: bool,
    },
    /// Pass the request on to this node under a new number, and return its answer.
    Forward(NodeId, Ask),
}

impl Ask {
    /// Maximum number of charges of a group.
    pub const MAX_CHARGES: usize = 256;
}

/// Decides what another node asks, or passes it on.
pub fn receive(homes: &Homes, table: &Table, now: &Now<'_>, ask: Ask) -> AskStep {
    let refused = |refusal| AskStep::Answer { answer: Answer { id: ask.id, result: Err(refusal) }, urgent: false };
    let Some(first) = ask.charges.first() else {
        return AskStep::Answer { answer: Answer { id: ask.id, result: Ok(Vec::new()) }, urgent: false };
    };
    match homes.route(first.key, ask.hop) {
        Route::Here => {}
        Route::To(node) => return AskStep::Forward(node, Ask { hop: Hop::Last, ..ask }),
        Route::Unavailable(Unavailable::Minority) => return refused(Refusal::Minority),
        Route::Unavailable(Unavailable::NoHome) => return refused(Refusal::NoHome),
    }
    let limits: Result<Vec<Arc<SharedLimits>>, String> =
        ask.charges.iter().map(|charge| table.limits_of(&charge.limits)).collect();
    let Ok(limits) = limits else { return refused(Refusal::BadLimits) };
    let charges: Vec<Charge<'_>> = ask
        .charges
        .iter()
        .zip(&limits)
        .map(|(charge, limits)| Charge { key: charge.key, limits, ask: charge.amount, stamps: charge.stamps })
        .collect();
    let mut answers = Vec::with_capacity(charges.len());
    let decided = table.decide(now, ask.verb, &charges, |index, standing| {
        answers.push(ChargeAnswer {
            outcome: standing.verdict().outcome(),
            taken: standing.verdict().taken(),
            stamps: standing.verdict().stamp(),
            reports: standing.reports(charges[index].ask.cost()).to_vec(),
        });
    });
    AskStep::Answer { answer: Answer { id: ask.id, result: Ok(answers) }, urgent: decided.urgent }
}
