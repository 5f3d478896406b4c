//! The view of one charge while its state is locked.

use std::fmt;

use tollgate_core::{Algorithm, Cells, Cost, Limit, Limits, Now, OffsetCells, Report, Retry, Stamps, Verdict};

use super::LockedAccount;
use crate::table::State;

/// One charge of a decision: its verdict and its locked state.
pub struct ChargeView<'a> {
    pub(super) limits: Option<&'a Limits>,
    /// The limits of the state's last charge; `None` if they are the limits of this charge.
    pub(super) own: Option<&'a Limits>,
    pub(super) state: StateWords<'a>,
    pub(super) now: Now<'a>,
    pub(super) verdict: Verdict<Stamps>,
}

/// The words of the state.
#[derive(Clone, Copy)]
pub(super) enum StateWords<'a> {
    /// The words of a table entry after the limits id.
    Entry(OffsetCells<State<'a>>),
    /// The state of a new key.
    New(&'a [u64]),
}

impl Cells for StateWords<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        match self {
            Self::Entry(state) => state.get(index),
            Self::New(words) => Cells::get(*words, index),
        }
    }
}

impl<'a> ChargeView<'a> {
    /// Returns the verdict on this charge alone. Another charge of its group may have been refused.
    pub fn verdict(&self) -> &Verdict<Stamps> {
        &self.verdict
    }

    /// Returns the limits of the charge. `None` if the charge was refused because their id is unknown, their state is
    /// too long, or no entry is available.
    pub fn limits(&self) -> Option<&'a Limits> {
        self.limits
    }

    /// Returns a report for each limit, with `retry` for another request of `cost`.
    pub fn reports(&self, cost: u64) -> impl Iterator<Item = Report> + '_ {
        // Iterates over the limits directly, because nested iterators are slow for the usual case of one limit.
        let (limits, mut first) = (self.limits.map_or(&[][..], Limits::as_slice), 0);
        let mut owns = self.own.map(|own| own.as_slice().iter());
        limits.iter().map(move |limit| {
            let (part, cost) = (OffsetCells { cells: self.state, first }, Cost::new(cost));
            match owns.as_mut().map(Iterator::next) {
                None => {
                    if limits.len() > 1 {
                        first += limit.words();
                    }
                    limit.report(&part, &self.now, cost)
                }
                Some(Some(own)) => {
                    first += own.words();
                    limit.report_from(own, &part, &self.now, cost)
                }
                // The state has no part for this limit, so the limit is unused.
                Some(None) => limit.report_from(&Limit::Unlimited, &part, &self.now, cost),
            }
        })
    }

    pub(super) fn from_account(account: &LockedAccount<'a>, verdict: Verdict<Stamps>) -> Self {
        let state = StateWords::Entry(account.state);
        Self { limits: Some(account.limit), own: account.own, state, now: account.now, verdict }
    }

    pub(super) fn refused(retry: Retry) -> Self {
        Self {
            limits: None,
            own: None,
            state: StateWords::New(&[]),
            now: Now::at(0),
            verdict: Verdict::new_refused(retry),
        }
    }
}

impl fmt::Debug for ChargeView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeView")
            .field("limits", &self.limits)
            .field("verdict", &self.verdict)
            .finish_non_exhaustive()
    }
}
