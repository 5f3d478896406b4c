//! Requests from one node to the home of a key, and the answers.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Now, Outcome, Report, Stamps};

use crate::NodeId;
use crate::homes::{Homes, Hop, Route, Unavailable};
use crate::table::{Charge, SharedLimits, Table, Verb};
use crate::wire::limits::LimitsCode;

/// A group of charges that all have the same home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Identifies the request in its answer.
    pub id: u64,
    /// How far the request has travelled when the receiver gets it.
    pub hop: Hop,
    /// Operation to perform on the charges.
    pub verb: Verb,
    /// At most [`Ask::MAX_CHARGES`].
    pub charges: Vec<AskCharge>,
}

/// One charge in an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskCharge {
    /// Fingerprint of the key.
    pub key: Fingerprint,
    /// Limits of the key's rule.
    pub limits: LimitsCode,
    /// Amount to charge.
    pub amount: Amount,
    /// Stamps of the charge to undo, for a refund.
    pub stamps: Option<Stamps>,
}

/// The home's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The `id` of the [`Ask`].
    pub id: u64,
    /// One answer per charge, in order.
    pub result: Result<Vec<ChargeAnswer>, Refusal>,
}

/// The answer to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeAnswer {
    /// The outcome of this charge, regardless of the other charges in the group.
    pub outcome: Outcome,
    /// Amount taken, or amount accepted as a refund.
    pub taken: Cost,
    /// Stamps that undo the charge exactly.
    pub stamps: Stamps,
    /// One report per limit.
    pub reports: SmallVec<[Report; 2]>,
}

impl ChargeAnswer {
    /// Clears the charged amount. Used for peeks and refused groups, which take nothing.
    pub(crate) fn clear_taken(&mut self) {
        (self.taken, self.stamps) = (Cost::ZERO, Stamps::default());
    }
}

/// Reason why a group was not decided. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The asked node does not see a majority.
    Minority,
    /// The asked node has no link to a ready node.
    NoHome,
    /// Nodes cannot share these limits.
    BadLimits,
}

/// Result of [`receive`].
#[derive(Debug)]
pub enum AskStep {
    /// Send this answer.
    Answer {
        /// Answer for the asking node.
        answer: Answer,
        /// Whether the mesh should send a delta immediately; see
        /// [`GroupOutcome::urgent`](crate::table::GroupOutcome::urgent).
        urgent: bool,
    },
    /// Forward the request to this node under a new id, and relay its answer.
    Forward(NodeId, Ask),
}

impl Ask {
    /// Maximum number of charges in a group.
    pub const MAX_CHARGES: usize = 256;
}

/// Decides a request from another node, or forwards it.
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
        ask.charges.iter().map(|charge| table.intern_encoded_limits(&charge.limits)).collect();
    let Ok(limits) = limits else { return refused(Refusal::BadLimits) };
    let charges: Vec<Charge<'_>> = ask
        .charges
        .iter()
        .zip(&limits)
        .map(|(charge, limits)| Charge { key: charge.key, limits, ask: charge.amount, stamps: charge.stamps })
        .collect();
    let mut answers = Vec::with_capacity(charges.len());
    let decided = table.decide(now, ask.verb, &charges, |index, decided_charge| {
        answers.push(ChargeAnswer {
            outcome: decided_charge.verdict().outcome(),
            taken: decided_charge.verdict().taken(),
            stamps: decided_charge.verdict().stamp(),
            reports: decided_charge.reports(charges[index].ask.cost()),
        });
    });
    AskStep::Answer { answer: Answer { id: ask.id, result: Ok(answers) }, urgent: decided.urgent }
}
