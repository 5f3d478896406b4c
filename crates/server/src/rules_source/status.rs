//! The source of a node's rules and the result of the last load, for `GET /v1/rules-status`.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tollgate::core::{Mono, Time};
use tollgate_engine::rules::Rules;
use utoipa::ToSchema;

use crate::control::api::{AuditQueues, RulesService};
use crate::control::model::RefusedRevision;

/// The source of rules.
#[derive(Debug, Default)]
pub enum RulesSource {
    /// The database of this process. This process is then also the rules service for other nodes.
    Database(Box<RulesService>),
    /// A file or a folder of files.
    File(PathBuf),
    /// The rules service of another process.
    Service(FollowedService),
    /// An xDS server, by its address.
    Xds(String),
    /// No rules. Requests contain inline limits.
    #[default]
    Inline,
}

/// A rules service that this process follows.
#[derive(Debug)]
pub struct FollowedService {
    /// The address of the service.
    pub url: String,
    /// Queued audit entries for the service.
    pub audit: AuditQueues,
}

/// The source of the rules, and the status of the rules in force.
#[derive(Debug, Default)]
pub struct SourceStatus {
    source: RulesSource,
    /// Locked when rules change and when the status is read, but never during a decision.
    state: Mutex<LoadState>,
}

#[derive(Debug, Default)]
struct LoadState {
    loaded: Option<(i64, String, Time<Mono>)>,
    counts: RuleSetCounts,
    refused: Option<RefusedRevision>,
}

/// Numbers of domains, rules and overrides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSetCounts {
    domains: usize,
    rules: usize,
    overrides: usize,
}

impl RuleSetCounts {
    /// Counts the rules, their overrides, and the domains that have rules.
    pub fn of(rules: &Rules) -> Self {
        let domains = rules.domains().iter().filter(|domain| !domain.rules().is_empty());
        let overrides = rules.domains().iter().flat_map(|domain| domain.rules()).map(|rule| rule.overrides().len());
        Self { domains: domains.count(), rules: rules.len(), overrides: overrides.sum() }
    }
}

/// The status of a node's rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesStatus {
    /// `database`, `none`, the path of a file or folder, or the address of a rules service or an xDS server.
    pub source: String,
    /// The revision in force; for a file, the number of loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Number of domains with rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<usize>,
    /// Number of rules in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<usize>,
    /// Number of overrides, in the text of rules and stored separately, including expired ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<usize>,
    /// The SHA-256 of the rules in force, unless they came from an xDS server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// How long the rules have been in force, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_ms_ago: Option<u64>,
    /// The last refused revision, and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedRevision>,
}

impl SourceStatus {
    /// Creates the status of a source that has loaded nothing yet.
    pub fn new(source: RulesSource) -> Self {
        Self { source, ..Self::default() }
    }

    /// Returns the rules service of this process, or `None` if its rules are not in a database.
    pub fn service(&self) -> Option<&RulesService> {
        if let RulesSource::Database(service) = &self.source { Some(service) } else { None }
    }

    /// Returns the queues of audit entries, if this server has a database or follows a rules service.
    pub fn audit_queues(&self) -> Option<&AuditQueues> {
        match &self.source {
            RulesSource::Database(service) => Some(service.audit_queues()),
            RulesSource::Service(followed) => Some(&followed.audit),
            RulesSource::File(_) | RulesSource::Xds(_) | RulesSource::Inline => None,
        }
    }

    /// Records the numbers of domains, rules and overrides in force.
    pub fn set_counts(&self, counts: RuleSetCounts) {
        self.lock_state().counts = counts;
    }

    /// Records that a revision has been in force since `now`, and clears the last refusal.
    pub fn set_loaded(&self, revision: i64, checksum: &str, now: Time<Mono>) {
        let mut state = self.lock_state();
        (state.loaded, state.refused) = (Some((revision, checksum.to_owned(), now)), None);
    }

    /// Records that a revision was refused. The previous revision stays in force.
    pub fn set_refused(&self, revision: i64, why: &str) {
        self.lock_state().refused = Some(RefusedRevision { revision, why: why.to_owned() });
    }

    /// Returns the status at `now`.
    pub fn status(&self, now: Time<Mono>) -> RulesStatus {
        let state = self.lock_state();
        let counts = state.loaded.as_ref().map(|_| state.counts);
        RulesStatus {
            source: self.to_string(),
            revision: state.loaded.as_ref().map(|(revision, ..)| *revision),
            domains: counts.map(|counts| counts.domains),
            rules: counts.map(|counts| counts.rules),
            overrides: counts.map(|counts| counts.overrides),
            checksum: state.loaded.as_ref().map(|(_, checksum, _)| checksum.clone()).filter(|text| !text.is_empty()),
            loaded_ms_ago: state.loaded.as_ref().map(|(.., at)| now.since(*at).as_nanos() / 1_000_000),
            refused: state.refused.clone(),
        }
    }

    /// Explains why this server has no rules service, and where to change its rules.
    pub fn why_no_service(&self) -> String {
        match &self.source {
            RulesSource::Database(_) => "the rules are in the database of this server".to_owned(),
            RulesSource::File(path) => {
                format!("the rules of this server come from the file {}; change them there", path.display())
            }
            RulesSource::Service(FollowedService { url, .. }) => {
                format!("the rules of this server come from the rules service {url}; send the request there")
            }
            RulesSource::Xds(url) => {
                format!("the rules of this server come from the xDS server {url}; change them there")
            }
            RulesSource::Inline => "this server has no rules; start it with a data directory".to_owned(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for SourceStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            RulesSource::Database(_) => f.write_str("database"),
            RulesSource::File(path) => path.display().fmt(f),
            RulesSource::Service(followed) => f.write_str(&followed.url),
            RulesSource::Xds(url) => f.write_str(url),
            RulesSource::Inline => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::control::api::AuditSink;
    use tokio::runtime::Handle;

    #[tokio::test]
    async fn refused_revision_is_reported_until_another_is_loaded() {
        let client = Client::new("https://rules:8080", None, None).unwrap();
        let audit = AuditQueues::start(AuditSink::Service { client, node: "n".into() }, &Handle::current());
        let url = "https://rules:8080".to_owned();
        let source = SourceStatus::new(RulesSource::Service(FollowedService { url, audit }));
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        assert_eq!((source.status(at(0)).revision, source.status(at(0)).source.as_str()), (None, "https://rules:8080"));
        let text =
            b"domain: a\nrules: [{id: b, limit: 1/s, overrides: [{when: {c: d}, limit: 2/s}]}, {id: e, deny: true}]";
        source.set_counts(RuleSetCounts::of(
            &Rules::read(&[tollgate_engine::rules::Source { name: "a", text }]).unwrap(),
        ));
        source.set_loaded(7, "abc", at(10));
        source.set_refused(8, "a mistake");
        let status = source.status(at(25));
        assert_eq!(
            (status.revision, status.loaded_ms_ago, status.checksum.as_deref()),
            (Some(7), Some(15), Some("abc"))
        );
        assert_eq!((status.domains, status.rules, status.overrides), (Some(1), Some(2), Some(1)));
        assert_eq!(status.refused, Some(RefusedRevision { revision: 8, why: "a mistake".into() }));
        source.set_loaded(9, "", at(30));
        let status = source.status(at(30));
        assert_eq!((status.refused, status.checksum), (None, None));
        assert!(source.why_no_service().contains("https://rules:8080"));
    }
}
