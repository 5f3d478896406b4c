//! Installs rules. Every source of rules uses this module to put its rules in force.

use std::sync::Arc;

use tollgate_engine::Store;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use super::status::RuleSetCounts;
use crate::app::App;
use crate::control::model::Snapshot;
use crate::control::sha256_hex;

/// The result of installing a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallOutcome {
    /// The rules of the snapshot are in force.
    New,
    /// The same rules were already in force and were not compiled again. The snapshot's revision, tokens and kill
    /// switch are now in force.
    Unchanged,
    /// The snapshot's rules have mistakes or limits that the store does not support, so the rules in force stay. The
    /// snapshot's tokens and kill switch are now in force, because a mistake in a rule must neither keep a revoked
    /// token valid nor block the kill switch.
    Refused(String),
    /// The snapshot's checksum does not match its rules. Nothing was installed.
    Damaged(String),
}

/// Maximum number of warnings that are logged for each rule set.
const MAX_WARNINGS: usize = 100;

/// Installs a snapshot. Compiles the snapshot's rules on a blocking thread.
pub async fn install_snapshot<S: Store + 'static>(app: &Arc<App<S>>, snapshot: &Arc<Snapshot>) -> InstallOutcome {
    let compiled = tokio::task::spawn_blocking({
        let (app, snapshot) = (app.clone(), snapshot.clone());
        move || compile_snapshot(&app, &snapshot)
    });
    let installed = compiled.await.unwrap_or_else(|error| {
        // A panic of the compiler must not stop a server that has rules in force.
        InstallOutcome::Refused(format!("the rules could not be compiled: {error}"))
    });
    if app.auth.requires_tokens() && snapshot.tokens.is_empty() && !matches!(installed, InstallOutcome::Damaged(_)) {
        tracing::warn!(revision = snapshot.revision, "tokens required but none received; all callers are refused");
    }
    if !matches!(installed, InstallOutcome::Damaged(_)) {
        app.auth.replace_tokens(&snapshot.tokens);
        app.set_fleet_enforcement(snapshot.mode.into());
    }
    match &installed {
        InstallOutcome::New | InstallOutcome::Unchanged => {
            app.source.set_loaded(snapshot.revision, &snapshot.checksum, app.now());
            if installed == InstallOutcome::New {
                let rules = app.engine.rules();
                let (count, version) = (rules.rules().len(), rules.version());
                tracing::info!(revision = snapshot.revision, rules = count, version, "rules loaded");
            }
        }
        InstallOutcome::Refused(why) | InstallOutcome::Damaged(why) => {
            record_refusal(app, snapshot.revision, why);
            tracing::error!(revision = snapshot.revision, "rules refused; the rules in force stay");
        }
    }
    installed
}

/// Counts, records and logs a refusal.
pub(super) fn record_refusal<S: Store>(app: &App<S>, revision: i64, why: &str) {
    app.metrics.count_refused_reload();
    app.source.set_refused(revision, why);
    for line in why.lines() {
        tracing::error!("{line}");
    }
}

fn compile_snapshot<S: Store>(app: &App<S>, snapshot: &Snapshot) -> InstallOutcome {
    let actual = sha256_hex(snapshot.rules.as_bytes());
    if actual != snapshot.checksum {
        return InstallOutcome::Damaged(format!(
            "the rules were damaged: their checksum is {actual}, not {}",
            snapshot.checksum
        ));
    }
    if app.source.status(app.now()).checksum.as_deref() == Some(&*actual) {
        return InstallOutcome::Unchanged;
    }
    let name = format!("revision {}", snapshot.revision);
    // Value files that the rules name are not read, because authors of fleet rules must not be able to read files on
    // every machine.
    let rules =
        Rules::read(&[Source { name: &name, text: snapshot.rules.as_bytes() }]).map(Rules::with_hidden_positions);
    match rules.and_then(|rules| put_in_force(app, &rules)) {
        Ok(_) => {
            app.metrics.count_reload();
            InstallOutcome::New
        }
        Err(mistakes) => InstallOutcome::Refused(mistakes.to_string()),
    }
}

/// Puts rules in force, logs warnings about them, and returns their version.
pub(super) fn put_in_force<S: Store>(app: &App<S>, rules: &Rules) -> Result<u64, Mistakes> {
    // The warnings compare the new rules with the rules in force, so they are computed before the rules are replaced.
    let mut warnings = app.engine.warnings(rules);
    let version = app.engine.put(rules)?;
    app.source.set_counts(RuleSetCounts::of(rules));
    warnings.extend_from_slice(rules.left_out().map(Mistakes::as_slice).unwrap_or_default());
    for warning in warnings.iter().take(MAX_WARNINGS) {
        tracing::warn!("{warning}");
    }
    if warnings.len() > MAX_WARNINGS {
        tracing::warn!("and {} more warnings", warnings.len() - MAX_WARNINGS);
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::model::FleetMode;
    use tollgate_engine::{Enforcement, Engine, MemoryStore};

    fn test_app() -> Arc<App<MemoryStore>> {
        Arc::new(App::new(Engine::new(MemoryStore::new(10).unwrap()).unwrap(), None))
    }

    fn test_snapshot(revision: i64, rules: &str) -> Arc<Snapshot> {
        let checksum = sha256_hex(rules.as_bytes());
        Arc::new(Snapshot { revision, checksum, rules: rules.to_owned(), tokens: Vec::new(), mode: FleetMode::Enforce })
    }

    const VALID_RULES: &str = r#"{"domain":"a","rules":[{"id":"b","limit":"1/s"}]}"#;

    #[tokio::test]
    async fn unchanged_rules_are_not_compiled_again() {
        let app = test_app();
        assert_eq!(install_snapshot(&app, &test_snapshot(1, VALID_RULES)).await, InstallOutcome::New);
        assert_eq!(install_snapshot(&app, &test_snapshot(2, VALID_RULES)).await, InstallOutcome::Unchanged);
        let status = app.source.status(app.now());
        assert_eq!((app.engine.rules().version(), status.revision), (1, Some(2)));
    }

    #[tokio::test]
    async fn fleet_mode_applies_even_with_refused_rules_and_combines_with_the_server_mode() {
        let app = test_app();
        let observe = |revision, rules| {
            Arc::new(Snapshot { mode: FleetMode::Observe, ..(*test_snapshot(revision, rules)).clone() })
        };
        install_snapshot(&app, &observe(1, VALID_RULES)).await;
        assert_eq!(app.engine.enforcement(), Enforcement::Observe);
        app.set_server_enforcement(Enforcement::Enforce);
        assert_eq!(app.engine.enforcement(), Enforcement::Observe, "the fleet observes");
        install_snapshot(&app, &test_snapshot(2, VALID_RULES)).await;
        assert_eq!(app.engine.enforcement(), Enforcement::Enforce);
        install_snapshot(&app, &observe(3, "{")).await;
        assert_eq!(app.engine.enforcement(), Enforcement::Observe, "although the rules were refused");
        app.set_server_enforcement(Enforcement::Observe);
        install_snapshot(&app, &test_snapshot(4, VALID_RULES)).await;
        assert_eq!(app.engine.enforcement(), Enforcement::Observe, "the server observes");
    }

    #[tokio::test]
    async fn bad_rules_never_replace_good_ones() {
        let app = test_app();
        install_snapshot(&app, &test_snapshot(1, VALID_RULES)).await;
        let damaged = Snapshot { rules: VALID_RULES.replace('1', "9"), ..(*test_snapshot(2, VALID_RULES)).clone() };
        for (bad, reason) in [
            (test_snapshot(2, r#"{"domain":"a","rules":[{"id":"b","limt":"1/s"}]}"#), "limt"),
            (test_snapshot(2, "{"), "revision 2:"),
            (
                test_snapshot(
                    2,
                    r#"{"domain":"a","rules":[{"id":"b","limit":"1/s","when":{"k":{"file":"/etc/passwd"}}}]}"#,
                ),
                "reading files is not supported here",
            ),
            (Arc::new(damaged), "checksum"),
        ] {
            let why = match install_snapshot(&app, &bad).await {
                InstallOutcome::Refused(why) | InstallOutcome::Damaged(why) => why,
                installed @ (InstallOutcome::New | InstallOutcome::Unchanged) => panic!("{installed:?}"),
            };
            assert!(why.contains(reason), "{why}");
            let status = app.source.status(app.now());
            assert_eq!((app.engine.rules().version(), status.revision), (1, Some(1)));
            assert_eq!(status.refused.map(|refused| refused.revision), Some(2));
        }
    }
}
