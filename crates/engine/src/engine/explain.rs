//! A request is explained: decided without taking anything, and then looked at beside the rules as they were written.

mod conditions;
mod met;

use std::sync::{Arc, PoisonError};

use tollgate::core::{Time, Wall};

use super::decide::decide;
use super::plan::Planned;
use super::{Engine, Running, Taking, bans};
use crate::decision::{Decisions, Standing};
use crate::explain::{Explained, Explanation, Why};
use crate::key;
use crate::request::{Entry, Item, Request, RequestError};
use crate::rules::{Place, Rule};
use crate::store::{Store, Verb};
use conditions::{distance, has_only, nearest, not_expressed, unmet};
use met::Charged;

/// How many rules that are not met are told.
const MAX_UNMET: usize = 100;
/// How much of a value is shown, in letters.
const SHOWN: usize = 64;

/// See [`Engine::explain`].
pub(super) async fn explain<S: Store, F: Store>(
    engine: &Engine<S, F>,
    domain: &[u8],
    item: &Item<'_>,
    decisions: &mut Decisions,
) -> Result<Explanation, RequestError> {
    let request = Request { domain, items: std::slice::from_ref(item) };
    let running = loop {
        decide(engine, Verb::Peek, Taking::Exactly, std::slice::from_ref(&request), decisions).await;
        // Whoever replaces the rules twice in the meantime has to have it decided again.
        if let Some(running) = running_of(engine, decisions.version) {
            break running;
        }
    };
    // Whoever has waited for the store in vain does not wait for it once more, and what is denied has asked for no ban.
    let exact = decisions.get(0)?.standing() == Standing::Exact;
    if exact && !decisions.plan.asked[0].denied {
        bans::look_at_refusals(engine, 0, &running, decisions).await;
    }
    running.explain(&request, decisions, 0, (engine.wall)())
}

/// See [`Engine::explain_decided`].
pub(super) fn explain_decided<S: Store, F: Store>(
    engine: &Engine<S, F>,
    request: &Request<'_>,
    decisions: &Decisions,
    place: usize,
) -> Option<Explanation> {
    running_of(engine, decisions.version)?.explain(request, decisions, place, (engine.wall)()).ok()
}

/// The rules of a version: those in force, or those before them.
fn running_of<S: Store, F: Store>(engine: &Engine<S, F>, version: u64) -> Option<Arc<Running>> {
    let is_meant = |running: &Arc<Running>| running.rules.version() == version;
    Some(engine.running.load_full()).filter(is_meant).or_else(|| {
        let replaced = engine.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.clone().filter(is_meant)
    })
}

impl Running {
    /// Why the request at `place` was decided by these rules as it was.
    fn explain(
        &self,
        request: &Request<'_>,
        decisions: &Decisions,
        place: usize,
        at: Time<Wall>,
    ) -> Result<Explanation, RequestError> {
        let decision = decisions.get(place)?;
        let written = self.written_of(request.domain);
        let entries = request.items.first().map_or(&[][..], |item| item.entries);
        let mut rules = self.explain_met(request, decisions, place, at);
        let judge = decisions.charges_of(place).first().and_then(Planned::rule).and_then(|rule| {
            let rule = self.rules.rules().get(rule as usize)?;
            rule.special().is_some_and(|special| special.judges.is_some()).then(|| rule.id())
        });
        let is_unmet = |(_, rule): &(usize, &Rule)| !rules.iter().any(|explained| explained.rule == rule.id());
        let unmet = written.iter().enumerate().filter(is_unmet).map(|(at, rule)| (distance(rule.when(), entries), at));
        let unmet: Vec<_> = unmet.collect();
        let left_out = unmet.len().saturating_sub(MAX_UNMET);
        rules.extend(nearest(unmet, MAX_UNMET).map(|at| Explained {
            rule: written[at].id().into(),
            place: Some(self.place(&written[at])),
            why: why_not(&written[at], entries, judge),
        }));
        Ok(Explanation {
            version: self.rules.version(),
            domain: shown(request.domain),
            at,
            outcome: decision.outcome(),
            observed: decision.observed(),
            standing: decision.standing(),
            decides: decision.rule().map(Into::into),
            rules,
            left_out,
        })
    }

    /// The rules of a domain as they were written.
    fn written_of(&self, domain: &[u8]) -> &[Rule] {
        let domain = self.written.domains().iter().find(|known| known.name().as_bytes() == domain);
        domain.map_or(&[], |domain| domain.rules())
    }

    /// Where a rule stands.
    fn place(&self, rule: &Rule) -> String {
        let place = rule.place();
        if self.written.is_kept() { place.file.to_string() } else { place_of(&place.file, place.place) }
    }

    /// The rules that a request meets.
    fn explain_met(
        &self,
        request: &Request<'_>,
        decisions: &Decisions,
        place: usize,
        at: Time<Wall>,
    ) -> Vec<Explained> {
        let (plan, written) = (&decisions.plan, self.written_of(request.domain));
        let asked = &plan.asked[place];
        let charges = asked.charges.start as usize..asked.charges.end as usize;
        let mut explained = Vec::new();
        // A ban that is left out together with its rule is known only by its key.
        let is_counter = |charge: &usize| !key::is_beside(plan.key(&plan.charges[*charge]));
        let counters = charges.clone().filter(is_counter);
        let ids: Vec<&str> = counters.clone().map(|charge| plan.name(charge as u32)).collect();
        for (charge, id) in counters.zip(&ids).map(|(charge, id)| (charge, *id)) {
            let rule = written.iter().find(|rule| rule.id() == id);
            let met = plan.met[asked.met.start as usize..asked.met.end as usize].iter();
            let item = met.filter(|met| met.charge as usize == charge).map(|met| met.item as usize).next();
            let nobody = Item::default();
            let item = item.and_then(|item| request.items.get(item)).unwrap_or(&nobody);
            let ban = plan.charges[charge + 1..charges.end].first().filter(|next| next.is_ban());
            let met = Charged { decisions, charge, ban, item, rule, running: self, written, met: &ids, at }.met();
            let place = rule.map(|rule| self.place(rule));
            explained.push(Explained { rule: id.into(), place, why: Why::Met(Box::new(met)) });
        }
        explained
    }
}

/// Why a rule is not met.
fn why_not(rule: &Rule, entries: &[Entry<'_>], judge: Option<&str>) -> Why {
    match (unmet(rule.when(), entries), judge) {
        (Some(unmet), _) => Why::Unmet(unmet),
        (None, _) if !has_only(rule, entries) => Why::Others,
        (None, judge) => not_expressed(rule, entries).unwrap_or_else(|| match judge {
            Some(by) => Why::Judged { by: by.into() },
            None => Why::NotNow { schedule: rule.schedule.iter().map(ToString::to_string).collect() },
        }),
    }
}

fn place_of(file: &str, place: Place) -> String {
    format!("{file}:{}:{}", place.line, place.column)
}

/// As text, cut to what is read.
fn shown(text: &[u8]) -> String {
    let whole = String::from_utf8_lossy(text);
    let mut cut: String = whole.chars().take(SHOWN).collect();
    if cut.len() < whole.len() {
        cut.push('…');
    }
    cut
}
