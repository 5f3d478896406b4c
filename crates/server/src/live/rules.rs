//! `GET /v1/rules`: the rules in force on this server, with their counts.

use serde::Serialize;
use tollgate_engine::rules::{Effect, Rule};
use tollgate_engine::{ActiveRule, Engine, Store};
use utoipa::ToSchema;

/// Maximum page size, in rules.
pub(super) const MAX_PAGE_RULES: usize = 1_000;

/// Default page size, in rules.
pub(super) const DEFAULT_PAGE_RULES: usize = 100;

/// One page of the rules in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RulesInForcePage {
    /// The rules, in the order in which they are evaluated.
    #[schema(inline)]
    items: Vec<RuleInForce>,
    /// The number of rules that match the parameters.
    total: usize,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
}

/// A rule in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RuleInForce {
    /// The domain of the rule.
    domain: String,
    /// The id of the rule, unique within the domain.
    id: String,
    /// Whether this is a shadow rule, which reports and never refuses.
    shadow: bool,
    /// The limits as written in the rule, or one of `unlimited`, `allow` and `deny` if the rule has no limits.
    limits: Vec<String>,
    /// The attributes that the rule counts by.
    per: Vec<String>,
    /// The number of overrides, including expired ones.
    overrides: usize,
    /// The number of matching requests within the limits, since the server started.
    allowed: u64,
    /// The number of matching requests above the limits.
    refused: u64,
    /// The number of requests above the limits that were admitted because this is a shadow rule.
    shadow_refused: u64,
    /// The number of requests decided without the store.
    fallback: u64,
}

/// Selects the rules to list.
#[derive(Debug)]
pub(super) struct RuleFilter {
    /// Search words in lower case. Each word must occur in the domain, id, limits or `per` of the rule.
    words: Vec<String>,
    domain: Option<String>,
    id: Option<String>,
    /// `Some(true)`: only shadow rules. `Some(false)`: only enforced rules.
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

/// Number of rules to search before the task yields to other tasks.
const RULES_PER_STEP: usize = 256;

/// Returns one page of the rules that match a filter. Skips the first `after` matches and returns up to `limit`
/// matches.
pub(super) async fn rules_page<S: Store>(
    engine: &Engine<S>,
    filter: &RuleFilter,
    after: usize,
    limit: usize,
) -> RulesInForcePage {
    let (set, written) = engine.compiled_and_written_rules();
    let (mut items, mut total) = (Vec::new(), 0);
    // `active` and `written` list the rules in the same order.
    let mut active = set.rules();
    for domain in written.domains() {
        for part in domain.rules().chunks(RULES_PER_STEP) {
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
        let counts = active.meter().counts();
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
