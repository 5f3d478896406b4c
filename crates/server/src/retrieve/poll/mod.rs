//! Rules from a rules service elsewhere.
//!
//! The node asks for a set other than the one it knows and lets the service wait until there is one, so a change arrives as fast as
//! the network carries it and an unchanged set costs one short answer in half a minute. What it says with every question, which
//! revision it runs and which it would not, is how the service knows.

mod ask;
mod last_good;
mod schedule;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};
use tollgate_engine::Store;

use self::ask::{Answer, Patience, Told, ask};
use self::last_good::LastGood;
pub use self::schedule::{Outcome, pause};
use super::{Landed, land};
use crate::app::App;
use crate::config::FollowConfig;
use crate::control::model::{Refused, Snapshot};

/// A node that follows a service.
#[derive(Debug)]
pub struct Follower<S> {
    app: Arc<App<S>>,
    config: FollowConfig,
    last_good: Option<LastGood>,
    told: Told,
    /// What the service calls the last set that was looked at, whether it runs or was refused.
    known: Option<String>,
    failures: u32,
    /// Why it failed last, as logged.
    why: Option<String>,
}

/// How long the service may wait for a change. Proxies in between mostly allow a minute.
const WAIT: Duration = Duration::from_secs(30);
/// For the answer to begin, beyond that.
const BEGIN: Duration = Duration::from_secs(5);
/// For a set to arrive, once it has begun to.
const REST: Duration = Duration::from_secs(60);
/// For a question that waits for a change: a network that swallowed it is noticed a few seconds after the service should have answered.
const FOLLOWING: Patience = Patience { wait: WAIT, begin: BEGIN, rest: REST };
/// How long a start waits for a service, if there are rules on disk to start with.
const START: Duration = Duration::from_secs(2);
/// An answer that there is nothing new, and that came sooner, was not waited for.
const HELD: Duration = Duration::from_secs(1);

impl<S: Store + 'static> Follower<S> {
    /// Puts in force what the service has, or else what it had when it last answered.
    ///
    /// # Errors
    /// When neither can be had: a start without rules is an open app.
    pub async fn start(app: Arc<App<S>>, config: FollowConfig) -> anyhow::Result<Self> {
        let url = config.client.url().to_string();
        let last_good = config.data.as_deref().map(|data| LastGood::new(data, &url));
        let told = Told { node: config.node.clone(), ..Told::default() };
        let mut follower = Self { app, config, last_good, told, known: None, failures: 0, why: None };
        let on_disk = follower.on_disk();
        let has_some = matches!(on_disk, Ok(Some(_)));
        // Without any on disk it is worth waiting for a large set that has begun to come.
        let patience = Patience { wait: Duration::ZERO, begin: START, rest: if has_some { START } else { REST } };
        // Of a set whose rules are refused, the tokens count.
        let mut tokens = None;
        let away = match ask(&follower.config.client, &follower.told, None, patience).await {
            Ok(Answer::Set(etag, set)) => match follower.take(etag, &set).await {
                outcome @ (Outcome::Changed | Outcome::Unchanged | Outcome::Hasty) => {
                    follower.app.metrics.following.polled(outcome, follower.app.now());
                    return Ok(follower);
                }
                outcome @ (Outcome::Refused | Outcome::Failed) => {
                    tokens = (outcome == Outcome::Refused).then(|| set.tokens.clone());
                    "its rules were refused".to_owned()
                }
            },
            Ok(Answer::Unchanged) => "it answered that nothing has changed, and was not asked for changes".to_owned(),
            Err(why) => why,
        };
        follower.failed(&away);
        follower.app.metrics.following.polled(Outcome::Failed, follower.app.now());
        let what = || format!("the rules service {url} cannot be used: {away}");
        let Some((etag, mut set)) = on_disk.with_context(what)? else {
            bail!("{}; there are no rules on disk from an earlier time to start with", what());
        };
        if let Some(tokens) = tokens {
            set = Arc::new(Snapshot { tokens, ..(*set).clone() });
        }
        match land(&follower.app, &set).await {
            Landed::InForce | Landed::Same => {
                tracing::warn!(
                    revision = set.revision,
                    "started by the rules last known, until the rules service answers"
                );
                follower.told.running = Some(set.revision);
                // One that was just refused is not asked for again; otherwise what is on disk is known.
                follower.known = follower.known.or(etag);
                if let Some(refused) = &follower.told.refused {
                    follower.app.origin.refused(refused.revision, &refused.why);
                }
                Ok(follower)
            }
            Landed::Refused(why) | Landed::Damaged(why) => {
                bail!("{}; the rules on disk from an earlier time cannot be used either: {why}", what())
            }
        }
    }

    /// Follows the service, for ever.
    pub async fn follow(mut self) {
        let mut outcome = if self.failures > 0 { Outcome::Failed } else { Outcome::Changed };
        loop {
            // Without chance all is well too, only less evenly.
            sleep(pause(outcome, self.failures, getrandom::u64().unwrap_or(u64::MAX))).await;
            let begun = Instant::now();
            outcome = match ask(&self.config.client, &self.told, self.known.as_deref(), FOLLOWING).await {
                Ok(Answer::Unchanged) => Outcome::Unchanged,
                Ok(Answer::Set(etag, set)) => self.take(etag, &set).await,
                Err(why) => {
                    self.failed(&why);
                    Outcome::Failed
                }
            };
            if outcome != Outcome::Failed {
                self.answered();
            }
            if outcome == Outcome::Unchanged && begun.elapsed() < HELD {
                outcome = Outcome::Hasty;
            }
            self.app.metrics.following.polled(outcome, self.app.now());
        }
    }

    /// Puts a set in force, or not, and on disk if it is.
    async fn take(&mut self, etag: Option<String>, set: &Arc<Snapshot>) -> Outcome {
        if let Some(running) = self.told.running.filter(|running| *running > set.revision) {
            tracing::warn!(running, sent = set.revision, "the rules service went back to an earlier revision");
        }
        match land(&self.app, set).await {
            Landed::Same if self.told.running == Some(set.revision) && self.known == etag => Outcome::Unchanged,
            Landed::InForce | Landed::Same => {
                (self.told.running, self.told.refused) = (Some(set.revision), None);
                self.known.clone_from(&etag);
                self.keep(etag, set.clone()).await;
                Outcome::Changed
            }
            Landed::Refused(why) => {
                self.told.refused = Some(Refused { revision: set.revision, why });
                self.keep_tokens(set.clone()).await;
                // It does not get better by being sent again.
                self.known = etag;
                Outcome::Refused
            }
            Landed::Damaged(why) => {
                self.failed(&why);
                self.told.refused = Some(Refused { revision: set.revision, why });
                Outcome::Failed
            }
        }
    }

    /// Writes a set to disk. If that fails, only a start while the service is away suffers.
    async fn keep(&self, etag: Option<String>, set: Arc<Snapshot>) {
        let written = self.on_file(move |file| file.write(etag.as_deref(), &set)).await;
        if let Err((error, file)) = written {
            tracing::error!(%error, file, "the rules could not be kept on disk; they are in force, and would be missed at a start without the service");
        }
    }

    /// Writes the tokens of a set to disk, beside the rules that run: one that was revoked is not to be good again after a restart.
    async fn keep_tokens(&self, set: Arc<Snapshot>) {
        let written = self.on_file(move |file| file.write_tokens(&set.tokens)).await;
        if let Err((error, file)) = written {
            tracing::error!(%error, file, "the tokens could not be kept on disk; they are in force, and those before would be at a start without the service");
        }
    }

    /// Does something with the file, if there is to be one, on a thread of its own; why it failed otherwise, and its name.
    async fn on_file(
        &self,
        work: impl FnOnce(&LastGood) -> anyhow::Result<()> + Send + 'static,
    ) -> Result<(), (anyhow::Error, String)> {
        let Some(file) = self.last_good.clone() else { return Ok(()) };
        let path = file.path().display().to_string();
        let done = tokio::task::spawn_blocking(move || work(&file)).await;
        done.unwrap_or_else(|error| Err(error.into())).map_err(|error| (error, path))
    }

    fn on_disk(&self) -> anyhow::Result<Option<(Option<String>, Arc<Snapshot>)>> {
        self.last_good.as_ref().map_or(Ok(None), LastGood::read)
    }

    fn failed(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.why.as_deref() != Some(why) {
            tracing::warn!(service = %self.config.client.url(), why, "the rules service cannot be used, the rules in force stay");
            self.why = Some(why.to_owned());
        }
    }

    fn answered(&mut self) {
        self.failures = 0;
        if self.why.take().is_some() {
            tracing::info!(service = %self.config.client.url(), "the rules service answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    #[tokio::test(start_paused = true)]
    async fn a_question_that_the_network_swallowed_is_given_up_soon_after_the_service_should_have_answered() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let (client, begun) = (Client::new(&url, None, None).unwrap(), Instant::now());
        let why = ask(&client, &Told::default(), Some("\"1\""), FOLLOWING).await.unwrap_err();
        assert_eq!(why, "it did not answer within 35 s");
        let waited = begun.elapsed();
        assert!((WAIT..=WAIT + Duration::from_secs(6)).contains(&waited), "{waited:?}");
    }
}
