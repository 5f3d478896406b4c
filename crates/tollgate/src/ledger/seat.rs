//! What is told of a decision about one charge, while its state is held.

use std::fmt;

use tollgate_core::{Algorithm, Cells, Cost, Limits, Now, Report, Retry, Stamps, Verdict};

use crate::table::State;

/// What a decision about one charge saw and said.
pub struct Seat<'a> {
    pub(super) limits: Option<&'a Limits>,
    pub(super) state: Words<'a>,
    pub(super) now: Now<'a>,
    pub(super) said: Said<'a>,
}

/// What the limits said. A whole verdict is long, and most need none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said<'a> {
    /// This much was taken at once, and left no stamps.
    Granted(Cost),
    /// All there is to say.
    Verdict(&'a Verdict<Stamps>),
    /// Nothing was asked, because there was no room or there are no such limits.
    Refused(Retry),
}

/// The words that a decision was made by.
#[derive(Clone, Copy)]
pub(super) enum Words<'a> {
    /// In the table, behind the id they were written under.
    Kept(State<'a>),
    /// Of a key never seen before.
    Fresh(&'a [u64]),
}

impl Cells for Words<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        match self {
            Self::Kept(state) => state.get(index + 1),
            Self::Fresh(words) => Cells::get(*words, index),
        }
    }
}

impl<'a> Seat<'a> {
    /// What the limits say of this charge by itself; in a group, another charge may have been refused.
    pub fn verdict(&self) -> Verdict<Stamps> {
        match self.said {
            Said::Granted(cost) => Verdict::granted(cost),
            Said::Verdict(verdict) => *verdict,
            Said::Refused(retry) => Verdict::refused(retry),
        }
    }

    /// What was taken, if it was granted at once and nothing but its amount is needed to undo it: all there is to most
    /// verdicts.
    #[inline]
    pub fn granted(&self) -> Option<Cost> {
        match self.said {
            Said::Granted(cost) => Some(cost),
            Said::Verdict(_) | Said::Refused(_) => None,
        }
    }

    /// The limits, unless nobody knows the id or there was no room.
    pub fn limits(&self) -> Option<&'a Limits> {
        self.limits
    }

    /// What may be told about each limit, with `retry` for a further request of `cost`.
    #[inline(always)]
    pub fn reports(&self, cost: u64) -> impl Iterator<Item = Report> + '_ {
        // Over the limits themselves: an iterator of iterators is slow to be asked for the one report that there mostly is.
        let (limits, mut first) = (self.limits.map_or(&[][..], Limits::as_slice), 0);
        limits.iter().map(move |limit| {
            let part = Part { state: self.state, first };
            if limits.len() > 1 {
                first += limit.words();
            }
            limit.report(&part, &self.now, Cost::new(cost))
        })
    }

    pub(super) fn refused(retry: Retry) -> Self {
        Self { limits: None, state: Words::Fresh(&[]), now: Now::at(0), said: Said::Refused(retry) }
    }
}

impl fmt::Debug for Seat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("limits", &self.limits).field("said", &self.said).finish_non_exhaustive()
    }
}

/// The words of one limit among those of several.
struct Part<'a> {
    state: Words<'a>,
    first: usize,
}

impl Cells for Part<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.state.get(self.first + index)
    }
}
