//! Where a node's rules come from, and how that went last: what `GET /v1/rules-status` tells, whichever way it is.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tollgate::{Mono, Time};
use tollgate_engine::rules::Rules;
use utoipa::ToSchema;

use super::api::Service;
use super::model::Refused;

/// Where rules come from.
#[derive(Debug, Default)]
pub enum Source {
    /// The database of this process, which is also the rules service of others.
    Service(Box<Service>),
    /// A file.
    File(PathBuf),
    /// The rules service at this address.
    Followed(String),
    /// Nowhere: requests bring their limits along.
    #[default]
    Sent,
}

/// Where the rules come from, and what was last heard of there.
#[derive(Debug, Default)]
pub struct Origin {
    source: Source,
    /// Written when rules change and read when somebody asks: never during a decision.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loaded: Option<(i64, String, Time<Mono>)>,
    counts: Counts,
    refused: Option<Refused>,
}

/// How much of everything there is in rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    domains: usize,
    rules: usize,
    overrides: usize,
}

impl Counts {
    /// Counts what rules are made of; domains without any do not count.
    pub fn of(rules: &Rules) -> Self {
        let domains = rules.domains().iter().filter(|domain| !domain.rules().is_empty());
        let overrides = rules.domains().iter().flat_map(|domain| domain.rules()).map(|rule| rule.overrides().len());
        Self { domains: domains.count(), rules: rules.len(), overrides: overrides.sum() }
    }
}

/// How the rules of a node stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesStatus {
    /// `database`, the path of a file, the address of a rules service, or `none`.
    pub source: String,
    /// The revision that runs; of a file, how often it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// How many domains of what runs have rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<usize>,
    /// How many rules run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<usize>,
    /// How many overrides they have, those in their text and those beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<usize>,
    /// The SHA-256 of what runs, if it came from a rules service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// How long it has been in force, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_ms_ago: Option<u64>,
    /// What came last and would not run, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
}

impl Origin {
    /// Rules that come from `source`; none have come yet.
    pub fn new(source: Source) -> Self {
        Self { source, ..Self::default() }
    }

    /// The rules service of this process, if it is one.
    pub fn service(&self) -> Option<&Service> {
        match &self.source {
            Source::Service(service) => Some(service),
            Source::File(_) | Source::Followed(_) | Source::Sent => None,
        }
    }

    /// So much was put in force, under whatever revision.
    pub fn counted(&self, counts: Counts) {
        self.state().counts = counts;
    }

    /// This revision is in force since `now`; whatever was refused before is of no interest any more.
    pub fn loaded(&self, revision: i64, checksum: &str, now: Time<Mono>) {
        let mut state = self.state();
        (state.loaded, state.refused) = (Some((revision, checksum.to_owned(), now)), None);
    }

    /// This revision would not run; the one before stays.
    pub fn refused(&self, revision: i64, why: &str) {
        self.state().refused = Some(Refused { revision, why: why.to_owned() });
    }

    /// How things stand.
    pub fn status(&self, now: Time<Mono>) -> RulesStatus {
        let state = self.state();
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

    /// Why there is no rules service here, and where there is one.
    pub fn elsewhere(&self) -> String {
        match &self.source {
            Source::Service(_) => "the rules are kept in this process".to_owned(),
            Source::File(path) => {
                format!("the rules of this server come from the file {}; change them there", path.display())
            }
            Source::Followed(url) => {
                format!("the rules of this server come from the rules service {url}; ask that one")
            }
            Source::Sent => "this server keeps no rules; start it with a data directory to keep some".to_owned(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Source::Service(_) => f.write_str("database"),
            Source::File(path) => path.display().fmt(f),
            Source::Followed(url) => f.write_str(url),
            Source::Sent => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_told_until_something_runs() {
        let origin = Origin::new(Source::Followed("https://rules:8080".into()));
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        assert_eq!((origin.status(at(0)).revision, origin.status(at(0)).source.as_str()), (None, "https://rules:8080"));
        let text =
            b"domain: a\nrules: [{id: b, limit: 1/s, overrides: [{when: {c: d}, limit: 2/s}]}, {id: e, deny: true}]";
        origin.counted(Counts::of(&Rules::read(&[tollgate_engine::rules::Source { name: "a", text }]).unwrap()));
        origin.loaded(7, "abc", at(10));
        origin.refused(8, "a mistake");
        let status = origin.status(at(25));
        assert_eq!(
            (status.revision, status.loaded_ms_ago, status.checksum.as_deref()),
            (Some(7), Some(15), Some("abc"))
        );
        assert_eq!((status.domains, status.rules, status.overrides), (Some(1), Some(2), Some(1)));
        assert_eq!(status.refused, Some(Refused { revision: 8, why: "a mistake".into() }));
        origin.loaded(9, "", at(30));
        let status = origin.status(at(30));
        assert_eq!((status.refused, status.checksum), (None, None));
        assert!(origin.elsewhere().contains("https://rules:8080"));
    }
}
