//! What the rules service keeps, and what is asked of it: plain data, the same for the database, the API and the command line.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_engine::rules::Mistake;
use utoipa::ToSchema;

/// Who changes something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the token, or `local` where none is asked for.
    pub author: String,
    /// What for, in the author's words.
    pub comment: Option<String>,
}

/// What a writer takes for granted about what is there: `If-Match` and `If-None-Match`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there is replaced.
    #[default]
    Anything,
    /// Nothing is there yet.
    Nothing,
    /// Something is there, whatever it is.
    Something,
    /// This version is there.
    Version(i64),
}

impl Expected {
    /// Whether it is so, where the version `current` is, or nothing.
    pub(super) fn holds(self, current: Option<i64>) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => current.is_none(),
            Self::Something => current.is_some(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// A rule as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredRule {
    /// Whose rule it is.
    pub domain: String,
    /// What it is known by within the domain.
    pub id: String,
    /// How often it was changed, which is also its ETag. Numbers go on when a rule is deleted and made again.
    pub version: i64,
    /// Whether nodes are given it.
    pub enabled: bool,
    /// The rule, as in a file, with its id.
    #[schema(value_type = Object)]
    pub rule: Value,
    /// How many overrides it has beside it, besides those that are written in it.
    #[serde(default)]
    pub overrides: i64,
    /// Who made this version.
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// A version of a rule, current or past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Which.
    pub version: i64,
    /// What made it.
    pub action: Action,
    /// Whether nodes were given it.
    pub enabled: bool,
    /// The rule; none if this is the version in which it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rule: Option<Value>,
    /// Who made it.
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// What was done to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It was not there before.
    Create,
    /// It was changed.
    Update,
    /// It is not there any more.
    Delete,
    /// An earlier version was made the current one.
    Rollback,
    /// Nodes are given it again.
    Enable,
    /// Nodes are not given it any more.
    Disable,
}

/// Other numbers for one customer: a small resource beside a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredOverride {
    /// The rule it belongs to.
    pub rule: String,
    /// For whom: the value of the attribute, taken as it is.
    pub value: String,
    /// The attribute; the first one the rule counts by, unless another was given. Where that is one or another, it has to be given.
    pub attribute: String,
    /// What applies instead: the keys of an override in a file (`limit`, `burst`, `limits`, `unlimited`, …) without `when` and `until`.
    #[schema(value_type = Object)]
    pub effect: Value,
    /// When it ends by itself, as a time like 2030-01-31T18:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The revision in which it was last changed, which is also its ETag.
    pub version: i64,
    /// Who changed it.
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Whether its rule was deleted. Then it applies to nothing, until the rule comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rule_deleted: bool,
}

/// A part of a list, and where the next one begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// In order.
    pub items: Vec<T>,
    /// Give this as `after` to go on; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// What was given as `next`; from the beginning if there is none.
    pub after: Option<String>,
    /// At most so many; a hundred unless said otherwise, a thousand at most.
    pub limit: Option<usize>,
}

/// Which rules of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Whose id or text contains this.
    pub text: Option<String>,
    /// Those that are enabled, or those that are not.
    pub enabled: Option<bool>,
}

/// A domain that has rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DomainSummary {
    /// Its name.
    pub domain: String,
    /// How many rules it has.
    pub rules: i64,
    /// How many overrides they have beside them, besides those that are written in them.
    #[serde(default)]
    pub overrides: i64,
    /// The revision in which one of its rules or overrides was last changed.
    #[serde(default)]
    pub revision: i64,
}

/// What applying a file does, or would do. In the order of the file; deletions come last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// The revision it was made against, and of the API's ETag: apply with `If-Match` to be sure that nothing changed in between.
    pub revision: i64,
    /// Whether it was carried out.
    pub applied: bool,
    /// What changes. Rules that stay as they are, are only counted.
    pub changes: Vec<Planned>,
    /// How many stay.
    pub unchanged: usize,
    /// What is valid and yet probably not meant.
    pub warnings: Vec<String>,
}

/// One change of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// Whose rule.
    pub domain: String,
    /// Which.
    pub id: String,
    /// What is done.
    pub action: Action,
    /// What changes in its text, line by line with `-`, `+` and space.
    pub diff: String,
}

/// What a text was found to be, as `tollgate check` tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Validation {
    /// How many rules it has; none if it has mistakes.
    pub rules: usize,
    /// What is wrong.
    pub mistakes: Vec<Finding>,
    /// What is valid and yet probably not meant.
    pub warnings: Vec<Finding>,
}

/// One thing found in a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
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
        let Mistake { place, problem, help, .. } = mistake;
        Self { line: place.line, column: place.column, problem: problem.clone(), help: help.clone() }
    }
}

/// What a token may do; each may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at everything but tokens; ask for decisions and settle them, which is their other half.
    Reader,
    /// Overrides, reset, the kill switch.
    Operator,
    /// Rules of the domains it is given.
    Editor,
    /// Everything, tokens included.
    Admin,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredToken {
    /// What it is called by, in lists and to revoke it; the beginning of the token itself.
    pub id: String,
    /// Whose it is; the author of what is done with it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The domains whose rules and overrides it may change; none: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<i64>,
}

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The domains whose rules and overrides it may change; none: all of them.
    #[serde(default)]
    pub domains: Vec<String>,
    /// When it ends by itself, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<i64>,
}

/// A token that was just made. Its secret is told this once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// To be sent as `Authorization: Bearer …`, or with AUTH over the Redis protocol.
    pub token: String,
    /// What is kept of it.
    #[serde(flatten)]
    pub stored: StoredToken,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Its place in the log.
    pub seq: i64,
    /// The revision it made.
    pub revision: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who.
    pub author: String,
    /// What kind of thing: `rule`, `override`, `token`, `enforcement`, `key`.
    pub kind: String,
    /// What was done to it.
    pub action: String,
    /// Whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Which.
    pub subject: String,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// As it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// As it is since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
}

/// Which lines of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditSearch {
    /// Of this domain.
    pub domain: Option<String>,
    /// By this author.
    pub author: Option<String>,
    /// About this subject.
    pub subject: Option<String>,
}

/// What a node is to run, as it is sent over and kept on its disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The revision of the database.
    pub revision: i64,
    /// The SHA-256 of `rules`, in hexadecimal: the same rules need not be compiled again.
    pub checksum: String,
    /// A rule file, as JSON, overrides put into their rules.
    pub rules: String,
    /// Tokens that are good, as digests, so that one token works everywhere.
    pub tokens: Vec<Verifier>,
}

/// What a token is known by to whoever checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verifier {
    /// The SHA-256 of the token, in hexadecimal. Tokens are 256 random bits, so nobody finds one from it.
    pub digest: String,
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where it may change things; empty: everywhere.
    #[serde(default)]
    pub domains: Vec<String>,
    /// When it ends by itself, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<i64>,
}

/// A node that follows this service, as it last told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeReport {
    /// What it calls itself.
    pub node: String,
    /// The revision it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
    /// The revision it would not run, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// How long ago it asked, in milliseconds.
    pub seen_ms_ago: u64,
}

/// A set of rules a node would not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refused {
    /// Its revision.
    pub revision: i64,
    /// Why.
    pub why: String,
}
