//! The rules in force on this server, with their counts: `GET /v1/rules`.

use serde::Serialize;
use tollgate_engine::rules::{Effect, Rule};
use tollgate_engine::{ActiveRule, Engine, Store};
use utoipa::ToSchema;

/// Maximum number of rules of a page, unless the reader asks for fewer.
pub(super) const MAX_RULES: usize = 1_000;

/// The rules of a page by default.
pub(super) const DEFAULT_RULES: usize = 100;

/// A part of the rules in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RulesInForcePage {
    /// The rules, in the order in which they are evaluated.
    #[schema(inline)]
    items: Vec<RuleInForce>,
    /// How many rules match the parameters.
    total: usize,
    /// The `after` of the next page; none at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
}

/// A rule in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RuleInForce {
    /// Its domain.
    domain: String,
    /// Its id within the domain.
    id: String,
    /// Whether it reports and never refuses.
    shadow: bool,
    /// Its limits as written; `unlimited`, `allow` or `deny` if it has none.
    limits: Vec<String>,
    /// The attributes that it counts by.
    per: Vec<String>,
    /// How many overrides are in force.
    overrides: usize,
    /// Matching requests within its limits, since the server started.
    allowed: u64,
    /// Matching requests above its limits.
    refused: u64,
    /// Requests above its limits that passed because it is a shadow rule.
    shadow_refused: u64,
    /// Requests decided without the store.
    fallback: u64,
}

/// Which rules are listed.
#[derive(Debug)]
pub(super) struct RuleFilter {
    /// In lower case; the domain, id, limits or `per` contain all of them.
    words: Vec<String>,
    domain: Option<String>,
    id: Option<String>,
    /// Only shadow rules, or only enforced ones.
    is_shadow: Option<bool>,
}

impl RuleFilter {
    pub(super) fn new(search: &str, domain: Option<String>, id: Option<String>, is_shadow: Option<bool>) -> Self {
        Self { words: search.split_whitespace().map(str::to_lowercase).collect(), domain, id, is_shadow }
    }

    fn matches(&self, domain: &str, rule: &Rule, active: &ActiveRule) -> bool {
        self.domain.as_ref().is_none_or(|wanted| wanted == domain)
            && self.id.as_ref().is_none_or(|wanted| wanted == rule.id())
            && self.is_shadow.is_none_or(|wanted| wanted == active.is_shadow())
            && (self.words.is_empty() || contains_words(domain, rule, &self.words))
    }
}

/// The number of rules searched before the thread does other work.
const PART: usize = 256;

/// Returns the rules that match a filter, from the match with the number `after` on.
pub(super) async fn page<S: Store>(
    engine: &Engine<S>,
    filter: &RuleFilter,
    after: usize,
    limit: usize,
) -> RulesInForcePage {
    let (set, written) = engine.rules_as_written();
    let (mut items, mut total) = (Vec::new(), 0);
    // Both are in the order of the rule files.
    let mut active = set.rules();
    for domain in written.domains() {
        for part in domain.rules().chunks(PART) {
            for (rule, active) in part.iter().zip(active) {
                if filter.matches(domain.name(), rule, active) {
                    total += 1;
                    if total > after && items.len() < limit {
                        items.push(RuleInForce::new(domain.name(), rule, active));
                    }
                }
            }
            active = active.get(part.len()..).unwrap_or_default();
            tokio::task::yield_now().await;
        }
    }
    let end = after.saturating_add(items.len());
    RulesInForcePage { items, total, next: (end < total).then_some(end) }
}

impl RuleInForce {
    fn new(domain: &str, rule: &Rule, active: &ActiveRule) -> Self {
        let counts = active.meter().read();
        Self {
            domain: domain.to_owned(),
            id: rule.id().to_owned(),
            shadow: active.is_shadow(),
            limits: limits_as_written(rule),
            per: rule.per().iter().map(|per| per.text.to_string()).collect(),
            overrides: rule.overrides().len(),
            allowed: counts.allowed,
            refused: counts.refused,
            shadow_refused: counts.shadow_refused,
            fallback: counts.fallback,
        }
    }
}

fn contains_words(domain: &str, rule: &Rule, words: &[String]) -> bool {
    let mut text = format!("{domain}/{} {}", rule.id(), limits_as_written(rule).join(" "));
    rule.per().iter().for_each(|per| text.extend([" ", &per.text]));
    let text = text.to_lowercase();
    words.iter().all(|word| text.contains(word.as_str()))
}

fn limits_as_written(rule: &Rule) -> Vec<String> {
    match rule.effect() {
        Effect::Limits(_) => rule.limits_as_written().iter().map(|words| words.to_string()).collect(),
        Effect::Unlimited => vec!["unlimited".to_owned()],
        Effect::Allow => vec!["allow".to_owned()],
        Effect::Deny => vec!["deny".to_owned()],
    }
}
