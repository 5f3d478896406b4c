//! Rules as data, and as text for the program under test.

use std::fmt::Write as _;

use super::calendar::format_timestamp;
use super::limit::Limit;
use super::text::format_duration;

pub use super::calendar::Schedule;

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Id of the rule. The id and `per` together identify the rule's counters.
    pub id: String,
    /// Attributes that a request must have, with their values.
    pub when: Vec<(&'static str, &'static str)>,
    /// Attributes that the rule counts by.
    pub per: Vec<&'static str>,
    /// Limits or another effect.
    pub effect: Effect,
    /// Overrides for some requests. The first match applies.
    pub overrides: Vec<Override>,
    /// Cost of a request that does not state a cost.
    pub cost: Cost,
    /// Effect when a limit is exceeded.
    pub on_exceed: OnExceed,
    /// Whether the spent amount is kept when `limits` change.
    pub on_change: OnChange,
    /// Ban for repeated refusals.
    pub ban: Option<Ban>,
    /// Times at which the rule applies.
    pub schedule: Option<Schedule>,
    /// Ids of rules that this rule replaces for the requests that it matches.
    pub replaces: Vec<String>,
    /// A request that matches several rules with this flag is admitted if one of them has capacity.
    pub suffices: bool,
    /// Percentage of keys for which the rule is enforced. The model supports only 0 and 100, because other percentages
    /// depend on a hash.
    pub enforce: Option<u8>,
}

/// The effect of a rule or of an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Applies these limits. A request is charged to all of them or to none.
    Limits(Vec<Limit>),
    /// Applies the rule's only limit with another count. Used by an override that has only a count.
    Count(u64),
    /// No limit.
    Unlimited,
    /// Admits the request without evaluating other rules.
    Allow,
    /// Refuses the request permanently.
    Deny,
}

/// Other parameters for some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Attributes that a request must have, as in a rule.
    pub when: Vec<(&'static str, &'static str)>,
    /// `Limits`, `Count`, `Unlimited` or `Deny`.
    pub effect: Effect,
    /// Expiry in seconds since 1970.
    pub until: Option<u64>,
}

/// The cost of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Fixed cost.
    Number(u64),
    /// The value of the attribute `weight`.
    From {
        /// Largest cost. Also the cost of a request with an invalid value.
        max: u64,
        /// Cost of a request without the attribute.
        missing: u64,
    },
}

/// Effect when a limit is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExceed {
    /// Refuses the request.
    Deny,
    /// Admits and reports the request.
    Shadow,
    /// Admits the request after a wait of at most this many nanoseconds. The limits contain the same wait
    /// (`Algorithm::TokenBucket`).
    Delay(u64),
}

/// Whether the spent amount is kept when a rule's own limits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnChange {
    /// The spent amount is kept.
    Keep,
    /// Changed limits start a new counter.
    Reset,
}

/// A key that is refused `after` times within `within` is banned: all its requests are refused for `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The number of refusals.
    pub after: usize,
    /// Interval in which the refusals are counted, in nanoseconds.
    pub within: u64,
    /// Length of the ban in nanoseconds.
    pub length: u64,
}

/// A request: attributes, and perhaps a cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Names and values.
    pub attributes: Vec<(&'static str, String)>,
    /// Cost for every rule. `None` means that each rule uses its own cost.
    pub cost: Option<u64>,
}

impl Request {
    /// Returns the value of an attribute.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    fn matches(&self, when: &[(&str, &str)]) -> bool {
        when.iter().all(|(name, value)| self.value(name) == Some(*value))
    }
}

impl Override {
    /// Returns whether the override applies to a request at an instant.
    fn applies(&self, request: &Request, at: u64) -> bool {
        request.matches(&self.when) && self.until.is_none_or(|until| at < until * 1_000_000_000)
    }

    fn text(&self, rule: &Rule) -> String {
        let until = self.until.map_or(String::new(), |until| format!(", until: '{}'", format_timestamp(until)));
        format!("{{when: {}, {}{until}}}", when_text(&self.when), self.effect.text_in(rule))
    }
}

impl Rule {
    /// Returns a rule for all requests, with one counter and no options.
    pub fn new(id: &str, effect: Effect) -> Self {
        Self {
            id: id.into(),
            when: Vec::new(),
            per: Vec::new(),
            effect,
            overrides: Vec::new(),
            cost: Cost::Number(1),
            on_exceed: OnExceed::Deny,
            on_change: OnChange::Keep,
            ban: None,
            schedule: None,
            replaces: Vec::new(),
            suffices: false,
            enforce: None,
        }
    }

    /// Returns whether the rule matches a request.
    pub fn applies(&self, request: &Request, at: u64) -> bool {
        request.matches(&self.when) && self.schedule.as_ref().is_none_or(|schedule| schedule.applies_at(at))
    }

    /// Returns the rule's effect on a request, considering the first override that applies.
    pub fn effect_for(&self, request: &Request, at: u64) -> Effect {
        let found = self.overrides.iter().find(|other| other.applies(request, at));
        found.map_or_else(|| self.effect.clone(), |found| self.effect_of_override(found))
    }

    /// Returns the effect of one of the rule's overrides.
    pub fn effect_of_override(&self, found: &Override) -> Effect {
        match (&found.effect, &self.effect) {
            // An override inherits everything else from the rule, except parameters that depend on the rule's count.
            (Effect::Count(count), Effect::Limits(limits)) => {
                let own = &limits[0];
                let limit = Limit { count: *count, burst: None, initial: None, max_debt: None, ..own.clone() };
                Effect::Limits(vec![limit])
            }
            (other, _) => other.clone(),
        }
    }

    /// Returns the cost of a request for this rule.
    pub fn cost_of(&self, request: &Request) -> u64 {
        match (request.cost, &self.cost) {
            (Some(cost), _) => cost,
            (None, Cost::Number(cost)) => *cost,
            (None, Cost::From { max, missing }) => request
                .value("weight")
                .map_or(*missing, |text| text.parse().ok().filter(|cost| cost <= max).unwrap_or(*max)),
        }
    }

    /// Returns whether the rule only reports refusals.
    pub fn is_shadow(&self) -> bool {
        self.on_exceed == OnExceed::Shadow || self.enforce == Some(0)
    }

    fn text(&self) -> String {
        let mut text = format!("- {{id: {}, {}", self.id, self.effect.text());
        let mut put =
            |key: &str, value: String| write!(text, ", {key}: {value}").expect("writing to a string cannot fail");
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
            OnExceed::Deny => {}
            OnExceed::Shadow => put("on_exceed", "shadow".into()),
            OnExceed::Delay(wait) => put("on_exceed", format!("{{delay: {{max_wait: {}}}}}", format_duration(wait))),
        }
        if self.on_change == OnChange::Reset {
            put("on_change", "reset".into());
        }
        if let Some(Ban { after, within, length: lasts }) = self.ban {
            put(
                "ban",
                format!("{{after: {after}, within: {}, for: {}}}", format_duration(within), format_duration(lasts)),
            );
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

impl Effect {
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

    /// Formats the effect of an override. Limits are written as a list, so that the override inherits nothing from the
    /// rule's own limit.
    fn text_in(&self, rule: &Rule) -> String {
        match (self, &rule.effect) {
            (Self::Limits(limits), _) if limits.len() == 1 => format!("limits: [{{{}}}]", limits[0].text()),
            (Self::Count(count), Effect::Limits(limits)) => {
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
    /// Returns the rules of the domain `d` as a file.
    pub fn text(&self) -> String {
        let rules: String = self.rules.iter().map(Rule::text).collect();
        format!("domain: d\nrules:\n{rules}")
    }

    /// Returns the rule with this id.
    pub fn find(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }
}
