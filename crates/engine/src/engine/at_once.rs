//! The short way of most requests: asked alone, with nothing to do but to charge a few limits in memory, all of which have enough.
//!
//! It ends where the long way would, with the same answers and the same counts, and leaves out what only others need: lists to
//! pass between plan, store and answers, and a look for everything that could have gone another way.

use super::plan::{Answered, Few};
use super::{Engine, Running};
use crate::decision::Decisions;
use crate::meters::{Event, Line, RuleEvent};
use crate::store::Store;

impl<S: Store, F: Store> Engine<S, F> {
    /// Charges the limits of a request that is asked alone and needs nothing else, if all of them have enough and the store
    /// need not be waited for. `false` says only that the long way has to be gone; nothing has happened then.
    #[inline]
    pub(super) fn pass_at_once(&self, running: &Running, decisions: &mut Decisions) -> bool {
        let Decisions { plan, enforced, decided, .. } = decisions;
        let mut charges = Few::new();
        if !plan.collect_plain(running, &mut charges) || !self.store.take_at_once(&charges, enforced) {
            return false;
        }
        drop(charges);
        let least = enforced.with_least_left();
        let line = Line::of_thread();
        for (planned, place) in plan.charges.iter_mut().zip(0..) {
            planned.answered = Answered::Enforced(place);
            if let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) {
                rule.meter.count_in(line, RuleEvent::Allowed);
            }
        }
        if let [Ok(decided)] = &mut **decided {
            decided.deciding = least;
        }
        self.meters.count_in(line, Event::Allowed);
        true
    }
}
