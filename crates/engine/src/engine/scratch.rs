//! Temporary buffers of the decision phases, reused to avoid allocation.

use tollgate::core::{Time, Wall};

use super::plan::Span;
use crate::ruleset::CandidateRules;
use crate::store::{Charge, Group};

/// The buffers of one batch of decisions.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// For matching rules.
    pub(crate) rules: CandidateRules,
    /// For matching overrides.
    pub(crate) overrides: CandidateRules,
    /// Indices of selected rules or requests.
    pub(crate) picked: Vec<u32>,
    /// The requests of the last groups sent to the store.
    pub(crate) spans: Vec<Span>,
    pub(crate) unanswered: UnansweredRequests,
    /// `charges` and `groups` are empty between phases, because their elements borrow from the plan.
    pub(crate) charges: Vec<Charge<'static>>,
    pub(crate) groups: Vec<Group<'static>>,
}

/// The requests that a store did not answer.
#[derive(Debug, Default)]
pub(crate) struct UnansweredRequests {
    pub(crate) lost: Vec<u32>,
    /// Requests in `lost` that cause no arrears, because the store may have carried them out or has rejected them.
    pub(crate) not_owed: Vec<u32>,
    /// Requests whose calendar windows did not contain the store's time; `store_time` is that time.
    pub(crate) stale: Vec<u32>,
    pub(crate) store_time: Option<Time<Wall>>,
}

impl UnansweredRequests {
    pub(crate) fn clear(&mut self) {
        self.not_owed.clear();
        self.clear_last_attempt();
    }

    /// Clears the results of the last groups, but keeps `not_owed`.
    pub(crate) fn clear_last_attempt(&mut self) {
        self.lost.clear();
        self.stale.clear();
        self.store_time = None;
    }
}
