//! Rules of which one is enough: a request that meets several of them passes while one has room.
//!
//! A store admits all charges of a group or none, so the choice is made before: those that have no room are looked for without
//! taking anything, and left out if another one has. The others are charged together with everything else. Whoever is
//! quicker may take the room in between; then the request is refused although a third one may have had some: what slips is
//! never beyond a limit. It costs a question more, and only requests that meet at least two such rules.

use super::decide::{ask, range};
use super::plan::Planned;
use super::{Engine, Running};
use crate::decision::Decisions;
use crate::ruleset::RunningRule;
use crate::store::{Store, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Leaves out the charges that have no room where another one is enough. If the store does not answer, none is: whoever
    /// asks it next finds out.
    pub(super) async fn leave_out_exhausted(&self, running: &Running, decisions: &mut Decisions) {
        let Decisions { plan, shadows, spans, .. } = decisions;
        let suffices = |planned: &Planned| {
            let rule = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize));
            let special = rule.and_then(RunningRule::special);
            planned.has_limits() && !planned.shadow && !planned.is_ban() && special.is_some_and(|it| it.suffices)
        };
        let of_several = |charges: &[Planned]| charges.iter().filter(|planned| suffices(planned)).nth(1).is_some();
        let mut several = std::mem::take(&mut plan.picked);
        several.clear();
        let requests = plan.asked.iter().zip(0..).filter(|(asked, _)| of_several(&plan.charges[range(&asked.charges)]));
        several.extend(requests.map(|(_, request)| request));
        let wanted =
            |request: usize, planned: &Planned| several.binary_search(&(request as u32)).is_ok() && suffices(planned);
        ask(&self.store, Verb::Peek, running, plan, shadows, spans, wanted).await;
        for (place, span) in spans.iter().enumerate() {
            let Some(first) = shadows.first_charge(place) else { continue };
            let has_room = |charge: u32| shadows.answer(charge).is_some_and(|answer| answer.outcome.is_allowed());
            if !(first..).take(span.charges.len()).any(has_room) {
                continue;
            }
            let (mut asked, mut left_out) = (first, false);
            let charges = range(&plan.asked[span.request as usize].charges);
            for planned in &mut plan.charges[charges] {
                if suffices(planned) {
                    left_out = !has_room(asked);
                    asked += 1;
                } else {
                    // A ban follows the charge that it belongs to.
                    left_out &= planned.is_ban();
                }
                if left_out {
                    planned.replace();
                }
            }
        }
        plan.picked = several;
        shadows.clear();
    }
}
