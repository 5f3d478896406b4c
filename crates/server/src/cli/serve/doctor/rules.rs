//! Checks the source of rules: a file, a database, a rules service or an xDS server.

use std::io::Read;
use std::path::Path;

use reqwest::{Method, StatusCode};
use tollgate_engine::rules::{Mistakes, Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use super::super::config::Config;
use super::super::source::{DatabaseConfig, RulesConfig};
use super::DoctorFinding;
use super::running::CALL_TIMEOUT;
use crate::cli::{count_with_noun, files};
use crate::control::Control;
use crate::rules_source::file::parse_all;
use crate::rules_source::poll::FollowConfig;

/// Checks that the rules can be loaded.
pub(super) async fn check_rules_source(config: &Config) -> Vec<DoctorFinding> {
    match &config.rules {
        RulesConfig::Inline => vec![DoctorFinding::ok("rules", "none: requests have inline limits")],
        RulesConfig::File(path) => vec![check_file(path)],
        RulesConfig::Database(from) => check_database(from).await,
        RulesConfig::Service(from) => vec![check_service(from).await],
        RulesConfig::Xds(from) => vec![match from.check_reachable().await {
            Ok(()) => DoctorFinding::ok("rules", format!("the xDS server {from} accepts connections")),
            Err(why) => DoctorFinding::error(
                "rules",
                format!("the xDS server {from} cannot be reached: {why}"),
                "check that it is running, and check its address in --rules and the certificates",
            ),
        }],
    }
}

fn check_file(path: &Path) -> DoctorFinding {
    let read = match files::read_path(path) {
        Ok(read) => read,
        Err(error) => return DoctorFinding::error("rules", format!("{error:#}"), "name a readable file with --rules"),
    };
    let (sources, name): (Vec<_>, _) =
        (read.iter().map(files::RuleFile::as_source).collect(), path.display().to_string());
    check_rules(parse_all(&sources), &name, &format!("run: tollgate check {name}"))
}

/// Checks rules that were read from `name`. `action` is the advice for the user, such as how to list the mistakes.
fn check_rules(rules: Result<Rules, Mistakes>, name: &str, action: &str) -> DoctorFinding {
    let rules = match rules {
        Ok(rules) => rules,
        Err(mistakes) => {
            let number = mistakes.as_slice().len() + mistakes.unlisted_count();
            let first = mistakes.as_slice().first().map(ToString::to_string).unwrap_or_default();
            return DoctorFinding::error(
                "rules",
                format!("{} in {name}: {first}", count_with_noun(number, "mistake")),
                action,
            );
        }
    };
    let found = format!(
        "{} in {}, from {name}",
        count_with_noun(rules.len(), "rule"),
        count_with_noun(rules.domains().len(), "domain")
    );
    let engine = MemoryStore::new(1).ok().and_then(|store| Engine::new(store).ok());
    match engine.map_or(0, |engine| engine.warnings(&rules).len()) {
        0 => DoctorFinding::ok("rules", found),
        number => {
            DoctorFinding::warning("rules", format!("{found}, with {}", count_with_noun(number, "warning")), action)
        }
    }
}

async fn check_database(config: &DatabaseConfig) -> Vec<DoctorFinding> {
    let place = match &config.data {
        Some(data) => data.display().to_string(),
        None => "PostgreSQL".to_owned(),
    };
    match config.data.as_ref().map(|data| std::fs::File::open(data.join("rules.db"))) {
        Some(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return vec![DoctorFinding::ok(
                "database",
                format!("no database in {place} yet; tollgate serve creates it"),
            )];
        }
        // This mistake is reported here, because opening a file of another format would only fail with a connection
        // error.
        Some(Ok(file)) if !may_be_sqlite(&file) => {
            let found = format!("rules.db in {place} is not an SQLite database");
            return vec![DoctorFinding::error(
                "database",
                found,
                "restore it from a backup, or name another directory with --data",
            )];
        }
        Some(_) | None => {}
    }
    let control = match Control::open(config.url.reveal()).await {
        Ok(control) => control,
        Err(error) => {
            let action = match &config.data {
                Some(_) => "check the permissions of the directory, and the disk; or name another one with --data",
                None => "check that the database is running, and check the address, user and password in --database",
            };
            return vec![DoctorFinding::error("database", format!("cannot open {place}: {error}"), action)];
        }
    };
    match control.snapshot().await {
        Ok(set) => {
            let opened = DoctorFinding::ok("database", format!("{place}, revision {}", set.revision));
            let rules = Rules::read(&[Source { name: "database", text: set.rules.as_bytes() }]);
            vec![opened, check_rules(rules, "the database", "run: tollgate rules validate")]
        }
        Err(error) => {
            vec![DoctorFinding::error("database", format!("cannot read {place}: {error}"), "restore it from a backup")]
        }
    }
}

/// Returns false only if the file is readable, not empty, and lacks the SQLite header.
fn may_be_sqlite(file: &std::fs::File) -> bool {
    const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";
    let mut start = Vec::new();
    let read = file.take(SQLITE_HEADER.len() as u64).read_to_end(&mut start);
    read.is_err() || start.is_empty() || start == SQLITE_HEADER
}

async fn check_service(config: &FollowConfig) -> DoctorFinding {
    let url = config.client.url();
    // Requests the snapshot with HEAD, because this request needs the same role as following the service (`node`).
    let answer = config.client.request(Method::HEAD, &["v1", "snapshot"]).timeout(CALL_TIMEOUT).send().await;
    match answer {
        Ok(answer) if answer.status().is_success() => DoctorFinding::ok("rules", format!("followed from {url}")),
        Ok(answer) if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            DoctorFinding::error(
                "rules",
                format!("{url} refuses the token: {}", answer.status()),
                "create one with `tollgate tokens create --role node` and set TOLLGATE_RULES_TOKEN",
            )
        }
        Ok(answer) if answer.status() == StatusCode::NOT_FOUND => DoctorFinding::error(
            "rules",
            format!("{url} has no rules to follow: {}", answer.status()),
            "with --rules, name a tollgate server that keeps its rules in a database",
        ),
        Ok(answer) => DoctorFinding::error(
            "rules",
            format!("{url} answers {}", answer.status()),
            "name a tollgate server with --rules",
        ),
        Err(error) => DoctorFinding::error(
            "rules",
            format!("cannot reach {url}: {}", root_cause(&error)),
            "check that the rules service is running; until then, the last good rules in the data directory are used",
        ),
    }
}

/// Returns the innermost cause of an error, which names the actual reason.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
