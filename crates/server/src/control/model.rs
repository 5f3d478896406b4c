//! The data of the rules service, the same for the database, the API and the command line.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_engine::Enforcement;
use tollgate_engine::rules::Mistake;
use utoipa::ToSchema;

/// The author of a change, its comment, and the version that it expects to replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The name of the token, or `local` where no token is required.
    pub author: String,
    /// The author's comment.
    pub comment: Option<String>,
    /// The version that the change is based on.
    pub expected: Expected,
}

impl Change {
    /// Returns a change without a comment that replaces any version.
    pub fn by(author: impl Into<String>) -> Self {
        Self { author: author.into(), ..Self::default() }
    }

    /// Returns the same change with an expected version.
    #[must_use]
    pub fn expecting(self, expected: Expected) -> Self {
        Self { expected, ..self }
    }
}

/// What a writer expects to replace: `If-Match` and `If-None-Match`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any version, or nothing.
    #[default]
    Anything,
    /// Nothing exists yet.
    Nothing,
    /// Any existing version.
    Something,
    /// This version.
    Version(i64),
}

impl Expected {
    /// Returns whether the expectation holds for the version that exists, if any.
    pub(super) fn matches(self, current: Option<i64>) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => current.is_none(),
            Self::Something => current.is_some(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOutcome<T> {
    /// What is stored now.
    pub value: T,
    /// Whether nothing was stored before.
    pub created: bool,
    /// Whether anything changed: writing what is stored already changes nothing.
    pub changed: bool,
}

/// What happens to rules that a file does not contain, in the domains that it contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted.
    Delete,
}

/// A rule as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredRule {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule within the domain.
    pub id: String,
    /// The number of its last change, which is also its ETag. Numbers continue when a rule is deleted and created again.
    pub version: i64,
    /// Whether nodes receive it.
    pub enabled: bool,
    /// The rule, as in a file, with its id.
    #[schema(value_type = Object)]
    pub rule: Value,
    /// How many overrides are stored beside the rule, not counting those in its text.
    #[serde(default)]
    pub overrides: i64,
    /// The name of the token that made this version; only for operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// A version of a rule, current or past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Its number.
    pub version: i64,
    /// The action that made it.
    pub action: Action,
    /// Whether nodes received it.
    pub enabled: bool,
    /// The rule; none if this version is its deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rule: Option<Value>,
    /// The name of the token that made it; only for operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// What was done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The resource did not exist before.
    Create,
    /// It was changed.
    Update,
    /// It was deleted.
    Delete,
    /// An earlier version was made the current one.
    Rollback,
    /// Nodes receive it again.
    Enable,
    /// Nodes do not receive it any more.
    Disable,
}

impl Action {
    /// Returns the action in one word, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Rollback => "rollback",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        let all = [Self::Create, Self::Update, Self::Delete, Self::Rollback, Self::Enable, Self::Disable];
        all.into_iter().find(|action| action.as_str() == word)
    }
}

/// Other limits for one customer: a small resource beside a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredOverride {
    /// The id of its rule.
    pub rule: String,
    /// The value of the attribute, compared literally.
    pub value: String,
    /// The attribute: the first one the rule counts by, unless another is given. It must be given where the rule counts by one
    /// attribute or another.
    pub attribute: String,
    /// What applies instead: the keys of an override in a file (`limit`, `burst`, `limits`, `unlimited`, …) without `when` and `until`.
    #[schema(value_type = Object)]
    pub effect: Value,
    /// When it expires, such as 2030-01-31T18:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The revision of its last change, which is also its ETag.
    pub version: i64,
    /// The name of the token that changed it; only for operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Whether its rule was deleted. Then it applies to nothing until the rule is created again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rule_deleted: bool,
}

/// A part of a list, and where the next part begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items, in order.
    pub items: Vec<T>,
    /// The `after` of the next page; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { items: Vec::new(), next: None }
    }
}

/// Which part of a list to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// The `next` of the previous page; from the beginning if none.
    pub after: Option<String>,
    /// The maximum number of items: 100 by default, at most 1000.
    pub limit: Option<usize>,
}

/// Which rules of a domain to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSearch {
    /// Rules whose id or text contains this.
    pub text: Option<String>,
    /// Enabled rules, or disabled ones.
    pub enabled: Option<bool>,
}

/// A domain that has rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DomainSummary {
    /// Its name.
    pub domain: String,
    /// How many rules it has.
    pub rules: i64,
    /// How many overrides are stored beside its rules, not counting those in their text.
    #[serde(default)]
    pub overrides: i64,
    /// The revision of the last change of its rules and overrides.
    #[serde(default)]
    pub revision: i64,
}

/// What applying a file does, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// The revision the plan is based on, which is also the ETag: send it as `If-Match` to apply exactly this plan.
    pub revision: i64,
    /// Whether it was applied.
    pub applied: bool,
    /// The changes, in the order of the file; deletions come last.
    pub changes: Vec<PlannedChange>,
    /// How many rules of the file do not change.
    pub unchanged: usize,
    /// What is valid but probably a mistake.
    pub warnings: Vec<String>,
}

/// One change of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedChange {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub id: String,
    /// What is done.
    pub action: Action,
    /// The changes in its text, line by line with `-`, `+` and space.
    pub diff: String,
}

/// The result of validating a rule file, as `tollgate check` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Validation {
    /// How many rules the file has; 0 if it has mistakes.
    pub rules: usize,
    /// What is wrong: the first hundred mistakes.
    pub mistakes: Vec<Finding>,
    /// How many more mistakes there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_mistakes: usize,
    /// What is valid but probably a mistake.
    pub warnings: Vec<Finding>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A mistake or warning in a rule file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Its line, from 1.
    pub line: u32,
    /// The character of the line, from 1.
    pub column: u32,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl From<&Mistake> for Finding {
    fn from(mistake: &Mistake) -> Self {
        let Mistake { position, problem, help, .. } = mistake;
        Self { line: position.line, column: position.column, problem: problem.clone(), help: help.clone() }
    }
}

/// What a token permits; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read everything but tokens and the audit log; ask for decisions and settle them.
    Reader,
    /// Follow this service: the rules with the digests of tokens.
    Node,
    /// Change overrides, reset counters, use the kill switch.
    Operator,
    /// Change the rules of the domains of the token.
    Editor,
    /// Everything, including tokens.
    Admin,
}

impl Role {
    /// Returns the role in one word, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Node => "node",
            Self::Operator => "operator",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Reader, Self::Node, Self::Operator, Self::Editor, Self::Admin]
            .into_iter()
            .find(|role| role.as_str() == word)
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredToken {
    /// Its id, which is also part of the token itself.
    pub id: String,
    /// What it permits.
    #[serde(flatten)]
    pub grant: TokenGrant,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<i64>,
}

/// What a token permits, its name and its expiry: everything needed to create one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenGrant {
    /// Its name, which is the author of changes made with it.
    pub name: String,
    /// What it permits.
    pub role: Role,
    /// The domains that it may change and take from; none: all domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// When it expires, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
}

/// A new token. Its secret is returned this once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token, to be sent as `Authorization: Bearer …`, or with AUTH over the Redis protocol.
    pub token: String,
    /// What is stored.
    #[serde(flatten)]
    pub stored: StoredToken,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number in the log.
    pub seq: i64,
    /// The revision of the change.
    pub revision: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// The name of the token that made the change.
    pub author: String,
    /// The kind of resource: `rule`, `override`, `token`, `enforcement`, `key`.
    pub kind: String,
    /// What was done to it.
    pub action: String,
    /// The domain of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The id of the resource.
    pub subject: String,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The value before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The value after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
}

/// Which entries of the audit log to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditSearch {
    /// Of this domain.
    pub domain: Option<String>,
    /// By this author.
    pub author: Option<String>,
    /// About this subject.
    pub subject: Option<String>,
}

/// What a node runs, as it is sent and kept on the node's disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The revision of the database.
    pub revision: i64,
    /// The SHA-256 of `rules`, in hexadecimal: equal rules need not be compiled again.
    pub checksum: String,
    /// A rule file, as JSON, with overrides inside their rules.
    pub rules: String,
    /// The valid tokens, as digests, so that one token works on every node.
    pub tokens: Vec<Verifier>,
    /// The kill switch of the fleet. Left out while refusals are enforced; older services never send it.
    #[serde(default, skip_serializing_if = "FleetMode::is_enforce")]
    pub mode: FleetMode,
}

/// Whether the whole fleet enforces refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FleetMode {
    /// Each node enforces them, unless that node itself is set to observe.
    #[default]
    Enforce,
    /// No node enforces them: refusals are counted and reported, and every request passes.
    Observe,
}

impl FleetMode {
    fn is_enforce(&self) -> bool {
        *self == Self::Enforce
    }
}

impl From<FleetMode> for Enforcement {
    fn from(mode: FleetMode) -> Self {
        match mode {
            FleetMode::Enforce => Self::Enforce,
            FleetMode::Observe => Self::Observe,
        }
    }
}

/// The kill switch of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSwitch {
    /// Whether refusals are enforced.
    pub mode: FleetMode,
}

/// What a node verifies a token with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verifier {
    /// The SHA-256 of the token, in hexadecimal. Tokens are 256 random bits, so the digest does not reveal them.
    pub digest: String,
    /// The id of the token.
    pub id: String,
    /// What it permits.
    #[serde(flatten)]
    pub grant: TokenGrant,
}

/// A node that follows this service, as it last reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// The revision it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
    /// The revision it refused, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedRevision>,
    /// How long ago it reported, in milliseconds.
    pub seen_ms_ago: u64,
}

/// A set of rules that a node refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedRevision {
    /// Its revision.
    pub revision: i64,
    /// The reason.
    pub why: String,
}
