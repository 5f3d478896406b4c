//! What happens to requests that the store did not answer: the one place where that is decided.

use std::sync::atomic::Ordering;

use tollgate::{Nanos, Retry};

use super::decide::range;
use super::plan::{Answered, Numbers, Plan, Planned, Span, group};
use super::{Engine, Running};
use crate::decision::{Decisions, Standing};
use crate::rules::OnFault;
use crate::sent::SentLimits;
use crate::store::{Batch, Charge, Store, Verb};

/// What a request is told that is refused because the store does not answer. Nobody knows when it will; asking again
/// sooner only makes it harder.
pub(super) const FAULT_RETRY: Retry = Retry::After(Nanos::SECOND);

impl<S: Store, F: Store> Engine<S, F> {
    /// Decides requests that the store did not answer, by what their rules say should happen then. A rule that is closed
    /// refuses the whole request; those that decide locally do so together, all or none; those that are open let it pass.
    pub(super) async fn fall_back(&self, verb: Verb, running: &Running, decisions: &mut Decisions) {
        let mut parts: Vec<SentLimits> = Vec::new();
        let mut spans: Vec<Span> = Vec::new();
        for request in &decisions.faulted.lost {
            if let Ok(decided) = &mut decisions.decided[*request as usize] {
                decided.standing = Standing::Fallback;
            }
            let charges = range(&decisions.plan.asked[*request as usize].charges);
            let start = parts.len() as u32;
            let Plan { charges: planned, numbers, .. } = &mut decisions.plan;
            self.apply(&mut planned[charges], numbers, running, &mut parts);
            if start < parts.len() as u32 {
                spans.push(Span { request: *request, charges: start..parts.len() as u32 });
            }
        }
        if spans.is_empty() {
            return;
        }
        self.fell_back.store(true, Ordering::Relaxed);
        self.ask_fallback(verb, &parts, &spans, decisions).await;
    }

    /// Marks what becomes of each enforced charge of a request, and adds the parts of those that are decided locally.
    fn apply(&self, charges: &mut [Planned], numbers: &Numbers, running: &Running, parts: &mut Vec<SentLimits>) {
        let enforced = |planned: &&mut Planned| planned.has_limits() && !planned.shadow;
        let closed = charges
            .iter()
            .any(|planned| planned.has_limits() && !planned.shadow && planned.on_fault == OnFault::Closed);
        let nodes = self.nodes.load(Ordering::Relaxed);
        for planned in charges.iter_mut().filter(enforced) {
            planned.answered = match planned.on_fault {
                OnFault::Closed => Answered::Closed,
                OnFault::Open => Answered::Open,
                // It would not be charged anyway.
                OnFault::Local if closed => Answered::Not,
                OnFault::Local => match numbers.limits(planned, running) {
                    Some(limits) => {
                        parts.push(self.shares.of(limits, nodes));
                        Answered::Fallback(u32::MAX)
                    }
                    None => Answered::Open,
                },
            };
        }
    }

    async fn ask_fallback(&self, verb: Verb, parts: &[SentLimits], spans: &[Span], decisions: &mut Decisions) {
        let Decisions { plan, fallback, .. } = decisions;
        let mut charges: Vec<Charge<'_>> = Vec::with_capacity(parts.len());
        for span in spans {
            let local = plan.charges[range(&plan.asked[span.request as usize].charges)].iter().filter(is_local);
            charges.extend(local.zip(&parts[range(&span.charges)]).map(|(planned, part)| Charge {
                key: plan.key(planned),
                numbers: part.sheet().id,
                limits: &part.sheet().limits,
                earlier: &[],
                ask: plan.ask(planned),
                stamps: None,
                windows: &[],
            }));
        }
        let mut groups = Vec::with_capacity(spans.len());
        group(verb, &charges, spans, &mut groups);
        let (numbers, before) = (self.shares.folder(), fallback.len());
        self.fallback.run(Batch { numbers: &*numbers, groups: &groups }, fallback).await;
        drop(groups);
        drop(charges);
        for (place, span) in spans.iter().enumerate() {
            let first = fallback.first_charge(before + place);
            let charges = range(&plan.asked[span.request as usize].charges);
            let local = plan.charges[charges].iter_mut().filter(|planned| is_local(&&**planned));
            for (planned, offset) in local.zip(0..) {
                // With nobody left to ask, it passes: a limiter is never the outage.
                planned.answered = first.map_or(Answered::Open, |first| Answered::Fallback(first + offset));
            }
        }
    }
}

fn is_local(planned: &&Planned) -> bool {
    matches!(planned.answered, Answered::Fallback(_))
}
