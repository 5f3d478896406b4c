//! A request is explained: decided without taking anything, and then looked at beside the rules as they were written.

mod conditions;
mod met;

use tollgate::{Time, Wall};

use super::plan::Planned;
use super::{Engine, Running, Taking};
use crate::decision::Decisions;
use crate::explain::{Explained, Explanation, Why};
use crate::request::{Entry, Item, Request, RequestError};
use crate::rules::{Place, Rule, Rules};
use crate::store::{Store, Verb};
use conditions::{has_only, is_expressed, unmet};
use met::Charged;

/// How many rules that are not met are told.
const MAX_UNMET: usize = 100;
/// How much of a value is shown, in letters.
const SHOWN: usize = 64;

impl<S: Store, F: Store> Engine<S, F> {
    /// Why a request of this item is decided as it is: the rules it meets with the state of their limits, and those it does
    /// not meet with what keeps it from them. Changes nothing. Meant for people: it looks at every rule, and asks the store how
    /// near bans are.
    ///
    /// # Errors
    /// When the request cannot be understood.
    pub async fn explain(
        &self,
        domain: &[u8],
        item: &Item<'_>,
        decisions: &mut Decisions,
    ) -> Result<Explanation, RequestError> {
        let request = Request { domain, items: std::slice::from_ref(item) };
        self.decide(Verb::Peek, Taking::Exactly, std::slice::from_ref(&request), decisions).await;
        let running = self.running.load_full();
        if decisions.decided[0].is_ok() {
            self.look_at_refusals(0, &running, decisions).await;
        }
        self.explain_decided(&request, decisions, 0)
    }

    /// Why the request at `place` of those that were decided was decided as it was, with how things stood then. Of several
    /// items, rules that are not met are looked at for the first. Asks nobody anything.
    ///
    /// # Errors
    /// When the request was not decided.
    ///
    /// # Panics
    /// When there were not so many requests.
    pub fn explain_decided(
        &self,
        request: &Request<'_>,
        decisions: &Decisions,
        place: usize,
    ) -> Result<Explanation, RequestError> {
        let decision = decisions.get(place)?;
        let (running, at) = (self.running.load_full(), (self.wall)());
        let written = running.written_of(request.domain);
        let entries = request.items.first().map_or(&[][..], |item| item.entries);
        let mut rules = running.explain_met(request, decisions, place, at);
        let judge = decisions.charges_of(place).first().and_then(Planned::rule).and_then(|rule| {
            let rule = running.rules.rules().get(rule as usize)?;
            rule.special().is_some_and(|special| special.judges.is_some()).then(|| rule.id())
        });
        let is_met = |rule: &&Rule| !rules.iter().any(|explained| explained.rule == rule.id());
        let unmet = written.iter().filter(is_met).map(|rule| Explained {
            rule: rule.id().into(),
            place: Some(running.place(rule)),
            why: why_not(rule, entries, judge),
        });
        let mut unmet: Vec<Explained> = unmet.collect();
        // Those that are as near stay in the order of the rules.
        unmet.sort_by_key(|explained| match &explained.why {
            Why::Met(_) | Why::Others | Why::Expression | Why::Judged { .. } | Why::NotNow { .. } => 0,
            Why::Unmet(unmet) => unmet.conditions,
        });
        let left_out = unmet.len().saturating_sub(MAX_UNMET);
        rules.extend(unmet.into_iter().take(MAX_UNMET));
        Ok(Explanation {
            version: running.rules.version(),
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
}

impl Running {
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
        let rules: &Rules = &self.written;
        let mut explained = Vec::new();
        let counters = charges.clone().filter(|charge| !plan.charges[*charge].is_ban());
        let ids: Vec<&str> = counters.clone().map(|charge| plan.name(charge as u32)).collect();
        for (charge, id) in counters.zip(&ids).map(|(charge, id)| (charge, *id)) {
            let rule = written.iter().find(|rule| rule.id() == id);
            let met = plan.met[asked.met.start as usize..asked.met.end as usize].iter();
            let item = met.filter(|met| met.charge as usize == charge).map(|met| met.item as usize).next();
            let nobody = Item::default();
            let item = item.and_then(|item| request.items.get(item)).unwrap_or(&nobody);
            let ban = plan.charges[charge + 1..charges.end].first().filter(|next| next.is_ban());
            let met = Charged { decisions, charge, ban, item, rule, rules, written, met: &ids, at }.met();
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
        (None, _) if !is_expressed(rule, entries) => Why::Expression,
        (None, Some(by)) => Why::Judged { by: by.into() },
        (None, None) => Why::NotNow { schedule: rule.schedule.iter().map(ToString::to_string).collect() },
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
