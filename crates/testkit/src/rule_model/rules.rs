//! Rules as data, and as text for the program under test.

use std::fmt::Write as _;

use super::calendar::timestamp;
use super::limit::Limit;
use super::text::length;

pub use super::calendar::Schedule;

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// In order.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its identity, together with `per`.
    pub id: String,
    /// Attributes that a request must have, with these values.
    pub when: Vec<(&'static str, &'static str)>,
    /// What it counts by.
    pub per: Vec<&'static str>,
    /// What it does.
    pub does: Does,
    /// Other parameters for some requests; the first that matches counts.
    pub overrides: Vec<Override>,
    /// What a request weighs that does not say so itself.
    pub cost: Cost,
    /// What happens beyond the limits.
    pub on_exceed: Exceed,
    /// What happens to what was spent when `limits` change.
    pub on_change: OnChange,
    /// Who is refused too often.
    pub ban: Option<Ban>,
    /// When it applies.
    pub schedule: Option<Schedule>,
    /// The ids of rules that do not decide about a request that this rule matches.
    pub replaces: Vec<String>,
    /// Of the rules with this that a request matches, one with capacity is enough.
    pub suffices: bool,
    /// The percentage of keys that it is enforced for. The model knows only 0 and 100: other shares depend on a hash.
    pub enforce: Option<u8>,
}

/// What a rule, or an override, does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Does {
    /// Holds these limits, all or none.
    Limits(Vec<Limit>),
    /// Holds the rule's only limit with another count: an override that says nothing else.
    Count(u64),
    /// Nothing.
    Unlimited,
    /// Lets pass, and no other rule is asked.
    Allow,
    /// Refuses permanently.
    Deny,
}

/// Other parameters for some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// As in a rule.
    pub when: Vec<(&'static str, &'static str)>,
    /// `Limits`, `Count`, `Unlimited` or `Deny`.
    pub does: Does,
    /// The instant at which it expires, in seconds since 1970.
    pub until: Option<u64>,
}

/// What a request weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This much.
    Number(u64),
    /// What the attribute `weight` says.
    From {
        /// What more, or something else, counts as.
        max: u64,
        /// What a request without the attribute weighs.
        missing: u64,
    },
}

/// What happens beyond the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// Refused.
    Deny,
    /// Passed, and reported.
    Shadow,
    /// Passed after a wait of at most so many nanoseconds. The limits say the same (`Algorithm::TokenBucket`).
    Delay(u64),
}

/// What happens to what was spent when a rule's own limits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnChange {
    /// It stays spent.
    Keep,
    /// Other limits are another counter.
    Reset,
}

/// Who is refused `after` times `within` is refused altogether `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// How many refusals.
    pub after: usize,
    /// In what time.
    pub within: u64,
    /// For how long.
    pub length: u64,
}

/// What is asked: attributes, and perhaps a cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Names and values.
    pub attributes: Vec<(&'static str, String)>,
    /// What it weighs to every rule; `None` is what each rule says.
    pub cost: Option<u64>,
}

impl Request {
    /// The value of an attribute.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    fn matches(&self, when: &[(&str, &str)]) -> bool {
        when.iter().all(|(name, value)| self.value(name) == Some(*value))
    }
}

impl Override {
    /// Whether it applies to a request at an instant.
    fn applies(&self, request: &Request, at: u64) -> bool {
        request.matches(&self.when) && self.until.is_none_or(|until| at < until * 1_000_000_000)
    }

    fn text(&self, rule: &Rule) -> String {
        let until = self.until.map_or(String::new(), |until| format!(", until: '{}'", timestamp(until)));
        format!("{{when: {}, {}{until}}}", when_text(&self.when), self.does.text_in(rule))
    }
}

impl Rule {
    /// Returns a rule for all requests, with one counter and nothing unusual.
    pub fn new(id: &str, does: Does) -> Self {
        Self {
            id: id.into(),
            when: Vec::new(),
            per: Vec::new(),
            does,
            overrides: Vec::new(),
            cost: Cost::Number(1),
            on_exceed: Exceed::Deny,
            on_change: OnChange::Keep,
            ban: None,
            schedule: None,
            replaces: Vec::new(),
            suffices: false,
            enforce: None,
        }
    }

    /// Whether a request is its business.
    pub fn applies(&self, request: &Request, at: u64) -> bool {
        request.matches(&self.when) && self.schedule.as_ref().is_none_or(|schedule| schedule.holds(at))
    }

    /// What it does with a request, by the first override that applies.
    pub fn does_for(&self, request: &Request, at: u64) -> Does {
        let found = self.overrides.iter().find(|other| other.applies(request, at));
        found.map_or_else(|| self.does.clone(), |found| self.does_by(found))
    }

    /// What it does by one of its overrides.
    pub fn does_by(&self, found: &Override) -> Does {
        match (&found.does, &self.does) {
            // Everything else is the rule's, but what goes with the count it was written for.
            (Does::Count(count), Does::Limits(limits)) => {
                let own = &limits[0];
                let limit = Limit { count: *count, burst: None, initial: None, max_debt: None, ..own.clone() };
                Does::Limits(vec![limit])
            }
            (other, _) => other.clone(),
        }
    }

    /// What a request weighs to it.
    pub fn cost_of(&self, request: &Request) -> u64 {
        match (request.cost, &self.cost) {
            (Some(cost), _) => cost,
            (None, Cost::Number(cost)) => *cost,
            (None, Cost::From { max, missing }) => request
                .value("weight")
                .map_or(*missing, |text| text.parse().ok().filter(|cost| cost <= max).unwrap_or(*max)),
        }
    }

    /// Whether it only reports what it would refuse.
    pub fn is_shadow(&self) -> bool {
        self.on_exceed == Exceed::Shadow || self.enforce == Some(0)
    }

    fn text(&self) -> String {
        let mut text = format!("- {{id: {}, {}", self.id, self.does.text());
        let mut put = |key: &str, value: String| write!(text, ", {key}: {value}").expect("strings take everything");
        if !self.when.is_empty() {
            put("when", when_text(&self.when));
        }
        if !self.per.is_empty() {
            put("per", format!("[{}]", self.per.join(", ")));
        }
        match self.cost {
            Cost::Number(1) => {}
            Cost::Number(cost) => put("cost", cost.to_string()),
            Cost::From { max, missing } => put("cost", format!("{{from: weight, max: {max}, missing: {missing}}}")),
        }
        match self.on_exceed {
            Exceed::Deny => {}
            Exceed::Shadow => put("on_exceed", "shadow".into()),
            Exceed::Delay(wait) => put("on_exceed", format!("{{delay: {{max_wait: {}}}}}", length(wait))),
        }
        if self.on_change == OnChange::Reset {
            put("on_change", "reset".into());
        }
        if let Some(Ban { after, within, length: lasts }) = self.ban {
            put("ban", format!("{{after: {after}, within: {}, for: {}}}", length(within), length(lasts)));
        }
        if let Some(schedule) = &self.schedule {
            put("schedule", schedule.text());
        }
        if !self.replaces.is_empty() {
            put("replaces", format!("[{}]", self.replaces.join(", ")));
        }
        if self.suffices {
            put("suffices", "true".into());
        }
        if let Some(share) = self.enforce {
            put("enforce", format!("{share}%"));
        }
        if !self.overrides.is_empty() {
            let overrides: Vec<String> = self.overrides.iter().map(|other| other.text(self)).collect();
            put("overrides", format!("[{}]", overrides.join(", ")));
        }
        text + "}\n"
    }
}

impl Does {
    fn text(&self) -> String {
        match self {
            Self::Limits(limits) if limits.len() == 1 => limits[0].text(),
            Self::Limits(limits) => {
                let limits: Vec<String> = limits.iter().map(|limit| format!("{{{}}}", limit.text())).collect();
                format!("limits: [{}]", limits.join(", "))
            }
            Self::Count(count) => format!("limit: {count}"),
            Self::Unlimited => "unlimited: true".into(),
            Self::Allow => "allow: true".into(),
            Self::Deny => "deny: true".into(),
        }
    }

    /// As an override of a rule: limits stand in a list, so that nothing of the rule's own limit goes on.
    fn text_in(&self, rule: &Rule) -> String {
        match (self, &rule.does) {
            (Self::Limits(limits), _) if limits.len() == 1 => format!("limits: [{{{}}}]", limits[0].text()),
            (Self::Count(count), Does::Limits(limits)) => {
                let limit = Limit { count: *count, ..limits[0].clone() }.text();
                limit.split_once(", algorithm").map_or(limit.as_str(), |(rate, _)| rate).to_owned()
            }
            _ => self.text(),
        }
    }
}

fn when_text(when: &[(&str, &str)]) -> String {
    let conditions: Vec<String> = when.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{{{}}}", conditions.join(", "))
}

impl RuleSet {
    /// The rules of the domain `d` as a file.
    pub fn text(&self) -> String {
        let rules: String = self.rules.iter().map(Rule::text).collect();
        format!("domain: d\nrules:\n{rules}")
    }

    /// The rule with this id.
    pub fn find(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }
}
