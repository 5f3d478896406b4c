//! Memory that the phases of a decision use and that says nothing about its result. It is kept to be used again.

use tollgate::core::{Time, Wall};

use super::plan::Span;
use crate::ruleset::Matched;
use crate::store::{Charge, Group};

/// The buffers of one batch of decisions.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// For finding rules.
    pub(crate) rules: Matched,
    /// For finding overrides.
    pub(crate) overrides: Matched,
    /// Numbers of rules or requests, while some are picked.
    pub(crate) picked: Vec<u32>,
    /// Whose charges a store was asked about last.
    pub(crate) spans: Vec<Span>,
    pub(crate) unanswered: Unanswered,
    /// Empty between two phases, as `groups` is: only then they borrow from nothing.
    pub(crate) charges: Vec<Charge<'static>>,
    pub(crate) groups: Vec<Group<'static>>,
}

/// The requests that a store did not answer.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    pub(crate) lost: Vec<u32>,
    /// Those whose calendar windows did not fit, and the store's time.
    pub(crate) stale: Vec<u32>,
    pub(crate) store_time: Option<Time<Wall>>,
}

impl Unanswered {
    pub(crate) fn clear(&mut self) {
        self.lost.clear();
        self.stale.clear();
        self.store_time = None;
    }
}
