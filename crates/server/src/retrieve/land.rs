//! From a set of rules as it was sent to rules in force, or to a reason why not.

use std::sync::Arc;

use tollgate_engine::Store;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use crate::app::App;
use crate::control::hex::sha256;
use crate::control::model::Snapshot;
use crate::control::origin::Counts;

/// What became of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landed {
    /// It is in force.
    InForce,
    /// Its rules were in force already: nothing was compiled. Its revision and tokens count from now on.
    Same,
    /// It has mistakes or numbers that the store cannot keep. The rules in force stay; its tokens count all the same, since one that
    /// was revoked must not live on by somebody's slip in a rule.
    Refused(String),
    /// It is not what was sent: its checksum does not fit. Nothing of it counts.
    Damaged(String),
}

/// Warnings that are logged, of each set.
const MAX_WARNINGS: usize = 20;

/// Puts a set in force. Compiling is done on a thread of its own, however long it takes.
pub async fn land<S: Store + 'static>(app: &Arc<App<S>>, set: &Arc<Snapshot>) -> Landed {
    let landing = tokio::task::spawn_blocking({
        let (app, set) = (app.clone(), set.clone());
        move || compile(&app, &set)
    });
    let landed = landing.await.unwrap_or_else(|error| {
        // A bug of ours in the compiler must not take down what decides by the rules before.
        Landed::Refused(format!("the rules could not be compiled: {error}"))
    });
    if app.guards.ask() && set.tokens.is_empty() && !matches!(landed, Landed::Damaged(_)) {
        tracing::warn!(revision = set.revision, "tokens are asked for and none came with the rules: nobody is let in");
    }
    match &landed {
        Landed::InForce | Landed::Same => {
            app.guards.replace(&set.tokens);
            app.origin.loaded(set.revision, &set.checksum, app.now());
            if landed == Landed::InForce {
                let rules = app.engine.rules();
                let (count, version) = (rules.rules().len(), rules.version());
                tracing::info!(revision = set.revision, rules = count, version, "rules loaded");
            }
        }
        Landed::Refused(why) => {
            app.guards.replace(&set.tokens);
            refuse(app, set.revision, why);
        }
        Landed::Damaged(why) => refuse(app, set.revision, why),
    }
    landed
}

fn refuse<S: Store>(app: &App<S>, revision: i64, why: &str) {
    app.metrics.reload_refused();
    app.origin.refused(revision, why);
    for line in why.lines() {
        tracing::error!("{line}");
    }
    tracing::error!(revision, "the rules were refused, those before stay in force");
}

fn compile<S: Store>(app: &App<S>, set: &Snapshot) -> Landed {
    let actual = sha256(set.rules.as_bytes());
    if actual != set.checksum {
        return Landed::Damaged(format!(
            "the rules were damaged on the way: their checksum is {actual}, not {}",
            set.checksum
        ));
    }
    if app.origin.status(app.now()).checksum.as_deref() == Some(&*actual) {
        return Landed::Same;
    }
    match put(app, set) {
        Ok(()) => {
            app.metrics.reloaded();
            Landed::InForce
        }
        Err(mistakes) => Landed::Refused(mistakes.to_string()),
    }
}

fn put<S: Store>(app: &App<S>, set: &Snapshot) -> Result<(), Mistakes> {
    let name = format!("revision {}", set.revision);
    // Files that rules name are not read: whoever sets the rules of a fleet is not to look into every machine of it.
    let rules = Rules::read(&[Source { name: &name, text: set.rules.as_bytes() }])?.kept();
    // Before, because they are compared with those in force.
    let warnings = app.engine.warnings(&rules);
    app.engine.put(&rules)?;
    app.origin.counted(Counts::of(&rules));
    for warning in warnings.iter().take(MAX_WARNINGS) {
        tracing::warn!("{warning}");
    }
    if let Some(more) = warnings.len().checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
        tracing::warn!("and {more} more warnings");
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tollgate_engine::{Engine, MemoryStore};

    pub(in crate::retrieve) fn app() -> Arc<App<MemoryStore>> {
        Arc::new(App::new(Engine::new(MemoryStore::new(10).unwrap()).unwrap(), None))
    }

    pub(in crate::retrieve) fn set(revision: i64, rules: &str) -> Arc<Snapshot> {
        let checksum = sha256(rules.as_bytes());
        Arc::new(Snapshot { revision, checksum, rules: rules.to_owned(), tokens: Vec::new() })
    }

    const GOOD: &str = r#"{"domain":"a","rules":[{"id":"b","limit":"1/s"}]}"#;

    #[tokio::test]
    async fn the_same_rules_are_not_compiled_again() {
        let app = app();
        assert_eq!(land(&app, &set(1, GOOD)).await, Landed::InForce);
        assert_eq!(land(&app, &set(2, GOOD)).await, Landed::Same);
        let status = app.origin.status(app.now());
        assert_eq!((app.engine.rules().version(), status.revision), (1, Some(2)));
    }

    #[tokio::test]
    async fn a_bad_set_never_replaces_a_good_one() {
        let app = app();
        land(&app, &set(1, GOOD)).await;
        let damaged = Snapshot { rules: GOOD.replace('1', "9"), ..(*set(2, GOOD)).clone() };
        for (bad, why) in [
            (set(2, r#"{"domain":"a","rules":[{"id":"b","limt":"1/s"}]}"#), "limt"),
            (set(2, "{"), "revision 2:"),
            (
                set(2, r#"{"domain":"a","rules":[{"id":"b","limit":"1/s","when":{"k":{"file":"/etc/passwd"}}}]}"#),
                "files are not read here",
            ),
            (Arc::new(damaged), "checksum"),
        ] {
            let told = match land(&app, &bad).await {
                Landed::Refused(told) | Landed::Damaged(told) => told,
                landed @ (Landed::InForce | Landed::Same) => panic!("{landed:?}"),
            };
            assert!(told.contains(why), "{told}");
            let status = app.origin.status(app.now());
            assert_eq!((app.engine.rules().version(), status.revision), (1, Some(1)));
            assert_eq!(status.refused.map(|refused| refused.revision), Some(2));
        }
    }
}
