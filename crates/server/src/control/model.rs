//! Data types of the rules service, shared by the database, the API and the command line.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_engine::Enforcement;
use tollgate_engine::rules::Mistake;
use utoipa::ToSchema;

/// The author and comment of a change, and the version that the change is expected to replace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The name of the token, or `local` if no token is required.
    pub author: String,
    /// The author's comment.
    pub comment: Option<String>,
    /// The version that the change is based on.
    pub expected: ExpectedVersion,
}

impl Change {
    /// Returns a change by `author`, without a comment, that may replace any version.
    pub fn by_author(author: impl Into<String>) -> Self {
        Self { author: author.into(), ..Self::default() }
    }

    /// Sets the expected version.
    #[must_use]
    pub fn with_expected(self, expected: ExpectedVersion) -> Self {
        Self { expected, ..self }
    }
}

/// The version that the resource must have before a write, from `If-Match` or `If-None-Match`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// The resource may have any version or not exist.
    #[default]
    Anything,
    /// The resource does not exist.
    Absent,
    /// The resource exists, in any version.
    Present,
    /// This version.
    Version(i64),
}

impl ExpectedVersion {
    /// Returns the version, if one is expected.
    pub(super) fn version(self) -> Option<i64> {
        if let Self::Version(version) = self { Some(version) } else { None }
    }

    /// Returns whether the current version meets the precondition. `current` is `None` if the resource does not exist.
    pub(super) fn matches(self, current: Option<i64>) -> bool {
        match self {
            Self::Anything => true,
            Self::Absent => current.is_none(),
            Self::Present => current.is_some(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOutcome<T> {
    /// The value that is stored now.
    pub value: T,
    /// Whether the resource is new.
    pub created: bool,
    /// Whether anything changed. Writing the stored value again changes nothing.
    pub changed: bool,
}

/// Whether to keep or delete stored rules that are missing from a file. Only the domains in the file are affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtherRulesPolicy {
    /// Stored rules that are missing from the file are kept.
    #[default]
    Keep,
    /// Stored rules that are missing from the file are deleted.
    Delete,
}

/// The current version of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredRule {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule within the domain.
    pub id: String,
    /// The version number, which is also the ETag. Numbering continues when a rule is deleted and created again.
    pub version: i64,
    /// Whether nodes receive the rule.
    pub enabled: bool,
    /// The rule as in a rule file, including its id.
    #[schema(value_type = Object)]
    pub rule: Value,
    /// Number of overrides that are stored separately from the rule. Overrides in the text of the rule are not counted.
    #[serde(default)]
    pub overrides: i64,
    /// The name of the token that made this version; shown only to operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// Time of the change, in milliseconds since 1970.
    pub at_ms: i64,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// A version of a rule, current or past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The version number.
    pub version: i64,
    /// The action that created this version.
    pub action: Action,
    /// Whether the rule was enabled in this version.
    pub enabled: bool,
    /// The rule, or none if this version records the deletion of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rule: Option<Value>,
    /// The name of the token that made this version; shown only to operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// Time of the change, in milliseconds since 1970.
    pub at_ms: i64,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// The kind of change to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The resource did not exist before.
    Create,
    /// The resource was changed.
    Update,
    /// The resource was deleted.
    Delete,
    /// An earlier version was restored.
    Rollback,
    /// The rule was enabled: nodes receive it again.
    Enable,
    /// The rule was disabled: nodes no longer receive it.
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

/// Limits that replace the rule's limits for one attribute value, such as one customer. An override is stored
/// separately from its rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredOverride {
    /// The id of the rule.
    pub rule: String,
    /// The value of the attribute, compared literally.
    pub value: String,
    /// The attribute that has the value; by default the first attribute of the rule's `per`. There is no default if
    /// `per` begins with `a or b`.
    pub attribute: String,
    /// The replacement limits: the keys of an override in a file (`limit`, `burst`, `limits`, `unlimited`, …), without
    /// `when` and `until`.
    #[schema(value_type = Object)]
    pub effect: Value,
    /// The expiry time, such as 2030-01-31T18:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The revision of the last change to the override, which is also its ETag.
    pub version: i64,
    /// The name of the token that last changed the override; shown only to operators of the domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// Time of the change, in milliseconds since 1970.
    pub at_ms: i64,
    /// Whether the rule was deleted. The override has no effect until the rule is created again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rule_deleted: bool,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items, in order.
    pub items: Vec<T>,
    /// The `after` parameter for the next page; none on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { items: Vec::new(), next: None }
    }
}

/// The page of a list to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// The `next` value of the previous page, or `None` for the first page.
    pub after: Option<String>,
    /// The maximum number of items: 100 by default, at most 1000.
    pub limit: Option<usize>,
}

/// Filter for the rules of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSearch {
    /// Only rules whose id or text contains this string.
    pub text: Option<String>,
    /// Only enabled rules (`true`) or only disabled rules (`false`).
    pub enabled: Option<bool>,
}

/// A domain that has rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DomainSummary {
    /// The name of the domain.
    pub domain: String,
    /// Number of rules.
    pub rules: i64,
    /// Number of overrides that are stored separately from the domain's rules. Overrides in the text of rules are not
    /// counted.
    #[serde(default)]
    pub overrides: i64,
    /// The revision of the last change to the rules or overrides of the domain.
    #[serde(default)]
    pub revision: i64,
}

/// The changes that applying a rule file makes or would make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// The revision that the plan is based on, which is also the ETag. Send it as `If-Match` to apply exactly this
    /// plan.
    pub revision: i64,
    /// Whether the plan was applied.
    pub applied: bool,
    /// The changes, in file order, with deletions last.
    pub changes: Vec<PlanEntry>,
    /// Number of rules in the file that do not change.
    pub unchanged: usize,
    /// Warnings about rules that are valid but probably mistaken.
    pub warnings: Vec<String>,
}

/// One change of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanEntry {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub id: String,
    /// The kind of change.
    pub action: Action,
    /// The line diff of the rule's text. Each line begins with `-`, `+` or a space.
    pub diff: String,
}

/// The result of validating a rule file: the mistakes and warnings that `tollgate check` would print.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Validation {
    /// Number of rules in the file; 0 if the file has mistakes.
    pub rules: usize,
    /// The first hundred mistakes.
    pub mistakes: Vec<Finding>,
    /// Number of further mistakes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_mistakes: usize,
    /// Warnings about rules that are valid but probably mistaken.
    pub warnings: Vec<Finding>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A mistake or warning in a rule file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// The line number, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    /// What is wrong.
    pub problem: String,
    /// The suggested correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl From<&Mistake> for Finding {
    fn from(mistake: &Mistake) -> Self {
        let Mistake { position, problem, help, .. } = mistake;
        Self { line: position.line, column: position.column, problem: problem.clone(), help: help.clone() }
    }
}

/// The permissions of a token. Each role includes all roles listed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read everything except tokens and the audit log. Request decisions, and refund or settle them.
    Reader,
    /// Follow this service: receive the rules and the token digests.
    Node,
    /// Change overrides, reset counters, use the kill switch, and read the audit log.
    Operator,
    /// Change the rules in the domains of the token.
    Editor,
    /// Do everything, including managing tokens.
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
    /// The id of the token, which is also part of the token itself.
    pub id: String,
    /// The name, permissions and expiry of the token.
    #[serde(flatten)]
    pub grant: TokenGrant,
    /// When the token was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// When the token was revoked, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<i64>,
}

/// The name, permissions and expiry of a token. This is the input for creating a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenGrant {
    /// The name of the token, which is recorded as the author of changes made with the token.
    pub name: String,
    /// The role of the token.
    pub role: Role,
    /// The domains in which the token may change rules and charge limits; all domains if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// When the token expires, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
}

/// A new token. Only this reply contains the secret of the token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token. Send it as `Authorization: Bearer …` over HTTP, or with AUTH over the Redis protocol.
    pub token: String,
    /// The token as it is stored.
    #[serde(flatten)]
    pub stored: StoredToken,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The sequence number of the entry.
    pub seq: i64,
    /// The revision of the change.
    pub revision: i64,
    /// Time of the change, in milliseconds since 1970.
    pub at_ms: i64,
    /// The name of the token that made the change.
    pub author: String,
    /// The kind of resource: `rule`, `override`, `token`, `enforcement`, `key`.
    pub kind: String,
    /// The kind of change.
    pub action: String,
    /// The domain of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The id of the resource.
    pub subject: String,
    /// The author's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The value before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The value after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
}

/// Filter for entries of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditSearch {
    /// Only entries of this domain.
    pub domain: Option<String>,
    /// Only entries by this author.
    pub author: Option<String>,
    /// Only entries about this subject.
    pub subject: Option<String>,
}

/// The rules and tokens for a node, as sent to the node and as stored on its disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The revision of the database.
    pub revision: i64,
    /// The SHA-256 of `rules`, in hexadecimal. A node does not compile rules again if their checksum is unchanged.
    pub checksum: String,
    /// A rule file, as JSON, with overrides inside their rules.
    pub rules: String,
    /// Digests of the valid tokens. Every node accepts these tokens.
    pub tokens: Vec<Verifier>,
    /// The fleet-wide kill switch. This field is omitted while refusals are enforced; older services never send it.
    #[serde(default, skip_serializing_if = "FleetMode::is_enforce")]
    pub mode: FleetMode,
}

/// Whether the whole fleet enforces refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FleetMode {
    /// Each node enforces refusals, unless that node itself is set to observe.
    #[default]
    Enforce,
    /// No node enforces refusals. Refusals are counted and reported, and every request passes.
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

/// The fleet-wide kill switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSwitch {
    /// Whether refusals are enforced.
    pub mode: FleetMode,
}

/// The data with which a node verifies a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verifier {
    /// The SHA-256 of the token, in hexadecimal. A token has 256 random bits, so the digest does not reveal it.
    pub digest: String,
    /// The id of the token.
    pub id: String,
    /// The name, permissions and expiry of the token.
    #[serde(flatten)]
    pub grant: TokenGrant,
}

/// The last report of a node that follows this service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeReport {
    /// The name of the node.
    pub node: String,
    /// The revision that the node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
    /// The last revision that the node refused, and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedRevision>,
    /// Time since the node's last report, in milliseconds.
    pub seen_ms_ago: u64,
}

/// A revision that a node refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedRevision {
    /// The number of the revision.
    pub revision: i64,
    /// The reason.
    pub why: String,
}
