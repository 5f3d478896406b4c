//! The rules service: owners of services define rules, this keeps them, and nodes follow.

pub mod api;
pub mod auth;
pub mod error;
pub mod model;
pub mod origin;

use std::sync::Arc;

use tokio::sync::watch;

pub use error::{Conflict, ControlError};
use model::{
    AuditSearch, Change, Cut, DomainSummary, Entry, Expected, MadeToken, NewToken, Page, Plan, Search, Snapshot,
    StoredOverride, StoredRule, StoredToken, Validation, Version,
};

/// What is returned.
pub type Result<T> = std::result::Result<T, ControlError>;

/// What a write came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Written<T> {
    /// What is there now.
    pub now: T,
    /// Whether there was nothing before.
    pub created: bool,
    /// Whether anything changed: writing what is there already does nothing.
    pub changed: bool,
}

/// Whether rules that a file does not have are deleted, in the domains it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They stay.
    Keep,
    /// They are deleted.
    Delete,
}

/// Rules, their history, tokens and the audit log in a database.
#[derive(Debug)]
pub struct Control {}

#[expect(clippy::unused_async, clippy::todo, unused_variables, missing_docs, clippy::missing_errors_doc)]
impl Control {
    /// Opens the database at `sqlite:PATH?mode=rwc` or `postgres://…` and brings its tables up to date.
    pub async fn open(url: &str) -> Result<Self> {
        todo!()
    }

    /// The revision, whenever it changes, whoever changed it.
    pub fn watch(&self) -> watch::Receiver<i64> {
        todo!()
    }

    pub async fn domains(&self) -> Result<Vec<DomainSummary>> {
        todo!()
    }
    pub async fn rules(&self, domain: &str, search: &Search, cut: &Cut) -> Result<Page<StoredRule>> {
        todo!()
    }
    pub async fn rule(&self, domain: &str, id: &str) -> Result<StoredRule> {
        todo!()
    }
    /// `text` is YAML or JSON, with or without its `id`.
    pub async fn put_rule(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        text: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        todo!()
    }
    /// `patch` is a JSON merge patch (RFC 7396).
    pub async fn patch_rule(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        patch: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        todo!()
    }
    pub async fn delete_rule(&self, change: &Change, domain: &str, id: &str, expected: Expected) -> Result<()> {
        todo!()
    }
    pub async fn set_enabled(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        enabled: bool,
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        todo!()
    }
    /// Newest first.
    pub async fn versions(&self, domain: &str, id: &str, cut: &Cut) -> Result<Page<Version>> {
        todo!()
    }
    pub async fn version(&self, domain: &str, id: &str, version: i64) -> Result<Version> {
        todo!()
    }
    /// Line by line, with `-`, `+` and space.
    pub async fn diff(&self, domain: &str, id: &str, from: i64, to: i64) -> Result<String> {
        todo!()
    }
    pub async fn rollback(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        version: i64,
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        todo!()
    }

    /// Never fails for what is in the text.
    pub async fn validate(&self, text: &[u8]) -> Result<Validation> {
        todo!()
    }
    pub async fn plan(&self, text: &[u8], others: Others) -> Result<Plan> {
        todo!()
    }
    /// One transaction. `expected` is about the revision of everything. `allowed` says in which domains.
    pub async fn apply(
        &self,
        change: &Change,
        text: &[u8],
        others: Others,
        expected: Expected,
        allowed: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Plan> {
        todo!()
    }
    /// A rule file in its one form, which `apply` takes back.
    pub async fn export(&self, domains: &[String]) -> Result<String> {
        todo!()
    }

    pub async fn overrides(&self, domain: &str, id: &str, cut: &Cut) -> Result<Page<StoredOverride>> {
        todo!()
    }
    pub async fn override_for(&self, domain: &str, id: &str, value: &str) -> Result<StoredOverride> {
        todo!()
    }
    /// `text` is an override as in a file, without `when`; with `attribute` if it is not the first one the rule counts by.
    pub async fn put_override(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        value: &str,
        text: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredOverride>> {
        todo!()
    }
    pub async fn delete_override(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        value: &str,
        expected: Expected,
    ) -> Result<()> {
        todo!()
    }

    pub async fn make_token(&self, change: &Change, token: &NewToken) -> Result<MadeToken> {
        todo!()
    }
    pub async fn tokens(&self, cut: &Cut) -> Result<Page<StoredToken>> {
        todo!()
    }
    pub async fn revoke_token(&self, change: &Change, id: &str) -> Result<StoredToken> {
        todo!()
    }

    pub async fn audit(&self, search: &AuditSearch, cut: &Cut) -> Result<Page<Entry>> {
        todo!()
    }
    /// Writes down something that was not done to the database: the kill switch, a reset, a refund.
    pub async fn note(
        &self,
        change: &Change,
        kind: &str,
        action: &str,
        domain: Option<&str>,
        subject: &str,
    ) -> Result<()> {
        todo!()
    }

    /// What nodes are to run now; made once for each revision.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>> {
        todo!()
    }
}
