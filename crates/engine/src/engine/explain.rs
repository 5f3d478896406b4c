//! A request is explained: decided without taking anything, and then looked at beside the rules as they were written.

use tollgate::Outcome;

use super::plan::Planned;
use super::{Engine, Running, Taking};
use crate::decision::Decisions;
use crate::explain::{Does, Explained, Explanation, Met, Unmet, Why};
use crate::key;
use crate::request::{Entry, Item, Request, RequestError};
use crate::rules::{Condition, Pattern, Rule, Test, address, nth_of};
use crate::store::{Store, Verb};

/// How many rules that are not met are told.
const MAX_UNMET: usize = 100;
/// How much of a value is shown, in letters, and how many of several.
const SHOWN: usize = 64;
const SHOWN_VALUES: usize = 8;

impl<S: Store, F: Store> Engine<S, F> {
    /// Why a request of this item is decided as it is: the rules it meets with the state of their limits, and those it does
    /// not meet with what keeps it from them. Changes nothing. Meant for people: it looks at every rule.
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
        let running = self.running.load_full();
        let written: &[Rule] = running.written_of(request.domain);
        let entries = request.items.first().map_or(&[][..], |item| item.entries);
        let mut rules: Vec<Explained> = Vec::new();
        let (_, charges) = decision.charges();
        for charge in charges.clone() {
            let planned = &decisions.plan.charges[charge];
            if planned.is_ban() {
                continue;
            }
            let id = decisions.plan.name(charge as u32);
            let ban = decisions.plan.charges[charge + 1..charges.end].first().filter(|next| next.is_ban());
            let why = Why::Met(decisions.met(planned, ban));
            let rule = written.iter().find(|rule| rule.id() == id);
            rules.push(Explained { rule: id.into(), place: rule.map(place_of), why });
        }
        let judge = decisions.charges_of(place).first().and_then(Planned::rule).and_then(|rule| {
            let rule = running.rules.rules().get(rule as usize)?;
            rule.special().is_some_and(|special| special.judges.is_some()).then(|| rule.id())
        });
        let is_met = |rule: &&Rule| !rules.iter().any(|explained| explained.rule == rule.id());
        let unmet = written.iter().filter(is_met).map(|rule| why_not(rule, entries, judge));
        let mut unmet: Vec<Explained> = unmet.collect();
        unmet.sort_by_key(|explained| match &explained.why {
            Why::Met(_) | Why::Others | Why::Expression | Why::Judged { .. } | Why::NotNow => 0,
            Why::Unmet(unmet) => unmet.conditions,
        });
        let left_out = unmet.len().saturating_sub(MAX_UNMET);
        rules.extend(unmet.into_iter().take(MAX_UNMET));
        Ok(Explanation {
            version: running.rules.version(),
            domain: shown(request.domain),
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
}

impl Decisions {
    /// What the rule of a charge has to say, and the ban that goes with it.
    fn met(&self, planned: &Planned, ban: Option<&Planned>) -> Met {
        let answer = self.answer(planned);
        let refuses = |planned: &Planned| {
            let (answer, _) = self.answer(planned)?;
            Some(matches!(answer.outcome, Outcome::Deny(_)))
        };
        let banned = ban.and_then(refuses).unwrap_or(false);
        let reports = answer.map_or(&[][..], |(answer, answers)| answers.reports(answer));
        let windows = self.plan.windows(planned).iter().copied().chain(std::iter::repeat(None));
        let counted = key::counted_by(self.plan.key(planned)).unwrap_or_default();
        Met {
            counted: counted.into_iter().map(|(name, value)| (shown(name), value.map(shown))).collect(),
            cost: planned.cost.get(),
            effect: match (planned.is_denied(), planned.has_limits(), self.plan.numbers.overriding(planned)) {
                _ if planned.is_replaced() => Does::Replaced,
                (true, _, _) => Does::Denies,
                (false, false, _) => Does::Allows,
                (false, true, Some(_)) => Does::Overrides,
                (false, true, None) => Does::Limits,
            },
            shadow: planned.shadow,
            refuses: planned.is_denied() || banned || refuses(planned).unwrap_or(false),
            banned,
            limits: reports.iter().copied().zip(windows).collect(),
        }
    }
}

/// Why a rule is not met.
fn why_not(rule: &Rule, entries: &[Entry<'_>], judge: Option<&str>) -> Explained {
    let mut failing = rule.when().iter().filter(|condition| !holds(condition, entries));
    let why = match (failing.next(), judge) {
        (Some(first), _) => Why::Unmet(Unmet {
            attribute: first.attribute.to_string(),
            expected: expected(&first.test),
            found: values(entries, &first.attribute).take(SHOWN_VALUES).map(shown).collect(),
            conditions: 1 + failing.count(),
        }),
        (None, _) if !has_only(rule, entries) => Why::Others,
        (None, _) if !is_expressed(rule, entries) => Why::Expression,
        (None, Some(by)) => Why::Judged { by: by.into() },
        (None, None) => Why::NotNow,
    };
    Explained { rule: rule.id().into(), place: Some(place_of(rule)), why }
}

/// Whether the attributes are those that a rule wants to be the only ones, if it does.
fn has_only(rule: &Rule, entries: &[Entry<'_>]) -> bool {
    let names = rule.only().iter().map(|name| name.as_bytes());
    rule.only().is_empty() || names.eq(entries.iter().map(|entry| entry.name))
}

/// Whether the expression of a rule holds, if it has one.
fn is_expressed(rule: &Rule, entries: &[Entry<'_>]) -> bool {
    rule.expression().is_none_or(|expression| {
        let names = expression.attributes();
        expression.holds(&|place: usize| values(entries, names.get(place)?).next())
    })
}

fn holds(condition: &Condition, entries: &[Entry<'_>]) -> bool {
    let mut values = values(entries, &condition.attribute);
    let among = |patterns: &[Pattern], value: &[u8]| patterns.iter().any(|pattern| matches(pattern, value));
    match &condition.test {
        Test::AnyOf(patterns) => values.any(|value| among(patterns, value)),
        Test::NoneOf(patterns) => !values.any(|value| among(patterns, value)),
        Test::Present => values.next().is_some(),
        Test::Absent => values.next().is_none(),
    }
}

fn matches(pattern: &Pattern, value: &[u8]) -> bool {
    match pattern {
        Pattern::Equals(text) => text.as_bytes() == value,
        Pattern::Glob(glob) => glob.matches(value),
        Pattern::Prefix(text) => value.starts_with(text.as_bytes()),
        Pattern::Cidr(network) => address(value).is_some_and(|address| network.contains(address)),
    }
}

fn values<'e>(entries: &'e [Entry<'e>], name: &str) -> impl Iterator<Item = &'e [u8]> {
    let (name, first, most) = match nth_of(name) {
        Some((name, before)) => (name, before as usize, 1),
        None => (name, 0, usize::MAX),
    };
    let name = name.as_bytes().to_vec();
    entries.iter().filter(move |entry| *entry.name == name).map(|entry| entry.value).skip(first).take(most)
}

/// What a condition asks of a value, in words.
fn expected(test: &Test) -> String {
    match test {
        Test::AnyOf(patterns) => list(patterns),
        Test::NoneOf(patterns) => format!("other than {}", list(patterns)),
        Test::Present => "present".into(),
        Test::Absent => "absent".into(),
    }
}

fn list(patterns: &[Pattern]) -> String {
    let told: Vec<String> = patterns.iter().take(SHOWN_VALUES).map(told).collect();
    match patterns.len().saturating_sub(SHOWN_VALUES) {
        0 => told.join(" or "),
        more => format!("{} or {more} others", told.join(" or ")),
    }
}

fn told(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Equals(text) => format!("{:?}", shown(text.as_bytes())),
        Pattern::Glob(glob) => format!("like {:?}", shown(glob.as_str().as_bytes())),
        Pattern::Prefix(text) => format!("something that begins with {:?}", shown(text.as_bytes())),
        Pattern::Cidr(network) => format!("in {network}"),
    }
}

fn place_of(rule: &Rule) -> String {
    let place = rule.place();
    format!("{}:{}:{}", place.file, place.place.line, place.place.column)
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
