//! Rules from a rules service, by long polling.
//!
//! The node sends the ETag of its snapshot, and the service holds the request until it has a different snapshot. A
//! change arrives after one network delay. While nothing changes, there is one short response every 30 seconds. With
//! every request, the node reports the revision that it runs and the last revision that it refused.

mod last_good;
mod request;
mod schedule;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};
use tollgate_engine::Store;

use self::last_good::LastGoodFile;
use self::request::{NodeState, PollAnswer, PollTimeouts, fetch_snapshot};
pub use self::schedule::{PollOutcome, pause_after};
use super::{InstallOutcome, install_snapshot};
use crate::app::App;
use crate::client::Client;
use crate::control::model::{RefusedRevision, Snapshot};

/// A rules service to follow.
#[derive(Clone, Debug)]
pub struct FollowConfig {
    /// The client of the service.
    pub client: Client,
    /// The name of this node.
    pub node: String,
    /// The directory for the last good rules, or `None` if they are not stored.
    pub data: Option<PathBuf>,
}

/// A node that follows a service.
#[derive(Debug)]
pub struct Follower<S> {
    app: Arc<App<S>>,
    config: FollowConfig,
    last_good: Option<LastGoodFile>,
    node: NodeState,
    /// The ETag of the last snapshot, even if that snapshot was refused.
    known_etag: Option<String>,
    failures: u32,
    /// The last failure that was logged.
    logged_failure: Option<String>,
}

/// Maximum time that the service holds a request while it waits for a change. Most proxies allow a minute.
const POLL_WAIT: Duration = Duration::from_secs(30);
/// Timeout for the response head, counted from the end of [`POLL_WAIT`].
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the response body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeouts of a long poll. A lost request is detected a few seconds after the service should have answered.
const POLL_TIMEOUTS: PollTimeouts = PollTimeouts { wait: POLL_WAIT, head: HEAD_TIMEOUT, body: BODY_TIMEOUT };
/// Timeout for the head of the first response, and also for its body if the node has rules on disk.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// If the service replies `unchanged` sooner than this, it did not hold the request.
const MIN_HELD_TIME: Duration = Duration::from_secs(1);

impl<S: Store + 'static> Follower<S> {
    /// Installs the rules of the service. If the service is unreachable or its rules are refused, installs the last
    /// good rules on disk.
    ///
    /// # Errors
    /// Returns an error if neither can be installed, because a server without its rules would admit every request.
    pub async fn start(app: Arc<App<S>>, config: FollowConfig) -> anyhow::Result<Self> {
        let url = config.client.url().to_string();
        let last_good = config.data.as_deref().map(|data| LastGoodFile::new(data, &url));
        let node = NodeState { node: config.node.clone(), ..NodeState::default() };
        let mut follower = Self { app, config, last_good, node, known_etag: None, failures: 0, logged_failure: None };
        let on_disk = follower.last_good.as_ref().map_or(Ok(None), LastGoodFile::read);
        let has_some = matches!(on_disk, Ok(Some(_)));
        // Without rules on disk, waits longer for the body, because the snapshot may be large.
        let timeouts = PollTimeouts {
            wait: Duration::ZERO,
            head: START_TIMEOUT,
            body: if has_some { START_TIMEOUT } else { BODY_TIMEOUT },
        };
        // The tokens and the kill switch of a refused snapshot stay in force when the rules on disk are installed.
        let mut refused = None;
        let why = match fetch_snapshot(&follower.config.client, &follower.node, None, timeouts).await {
            Ok(PollAnswer::Snapshot(etag, snapshot)) => match follower.install_and_store(etag, &snapshot).await {
                outcome @ (PollOutcome::Changed | PollOutcome::Unchanged | PollOutcome::NoWait) => {
                    follower.app.metrics.polls.add(outcome, follower.app.now());
                    return Ok(follower);
                }
                outcome @ (PollOutcome::Refused | PollOutcome::Failed) => {
                    refused = (outcome == PollOutcome::Refused).then_some(snapshot);
                    "its rules were refused".to_owned()
                }
            },
            Ok(PollAnswer::Unchanged) => "the answer is 304 to an unconditional request".to_owned(),
            Err(why) => why,
        };
        follower.record_failure(&why);
        follower.app.metrics.polls.add(PollOutcome::Failed, follower.app.now());
        let what = || format!("the rules service {url} cannot be used: {why}");
        let Some((etag, mut snapshot)) = on_disk.with_context(what)? else {
            bail!("{}; there are no earlier rules on disk to start with", what());
        };
        if let Some(refused) = refused {
            snapshot = Arc::new(Snapshot { tokens: refused.tokens.clone(), mode: refused.mode, ..(*snapshot).clone() });
        }
        match install_snapshot(&follower.app, &snapshot).await {
            InstallOutcome::New | InstallOutcome::Unchanged => {
                tracing::warn!(
                    revision = snapshot.revision,
                    "started with the last good rules; the rules service is unavailable"
                );
                follower.node.running = Some(snapshot.revision);
                // Keeps the ETag of a snapshot that was just refused, so that the service does not send it again.
                follower.known_etag = follower.known_etag.or(etag);
                if let Some(refused) = &follower.node.refused {
                    follower.app.source.set_refused(refused.revision, &refused.why);
                }
                Ok(follower)
            }
            InstallOutcome::Refused(why) | InstallOutcome::Damaged(why) => {
                bail!("{}; the earlier rules on disk cannot be used either: {why}", what())
            }
        }
    }

    /// Follows the service and installs every change. Never returns.
    pub async fn follow(mut self) {
        let mut outcome = if self.failures > 0 { PollOutcome::Failed } else { PollOutcome::Changed };
        loop {
            // If no random number is available, the pause has its maximum length.
            sleep(pause_after(outcome, self.failures, getrandom::u64().unwrap_or(u64::MAX))).await;
            let begun = Instant::now();
            outcome = match fetch_snapshot(&self.config.client, &self.node, self.known_etag.as_deref(), POLL_TIMEOUTS)
                .await
            {
                Ok(PollAnswer::Unchanged) => PollOutcome::Unchanged,
                Ok(PollAnswer::Snapshot(etag, snapshot)) => self.install_and_store(etag, &snapshot).await,
                Err(why) => {
                    self.record_failure(&why);
                    PollOutcome::Failed
                }
            };
            if outcome != PollOutcome::Failed {
                self.record_success();
            }
            if outcome == PollOutcome::Unchanged && begun.elapsed() < MIN_HELD_TIME {
                outcome = PollOutcome::NoWait;
            }
            self.app.metrics.polls.add(outcome, self.app.now());
        }
    }

    /// Installs a snapshot and writes it to disk. If the rules of the snapshot are refused, writes only its tokens and
    /// kill switch.
    async fn install_and_store(&mut self, etag: Option<String>, snapshot: &Arc<Snapshot>) -> PollOutcome {
        if let Some(running) = self.node.running.filter(|running| *running > snapshot.revision) {
            tracing::warn!(running, sent = snapshot.revision, "the rules service returned an earlier revision");
        }
        match install_snapshot(&self.app, snapshot).await {
            InstallOutcome::Unchanged if self.node.running == Some(snapshot.revision) && self.known_etag == etag => {
                PollOutcome::Unchanged
            }
            InstallOutcome::New | InstallOutcome::Unchanged => {
                (self.node.running, self.node.refused) = (Some(snapshot.revision), None);
                self.known_etag.clone_from(&etag);
                self.write_to_disk(etag, snapshot.clone()).await;
                PollOutcome::Changed
            }
            InstallOutcome::Refused(why) => {
                self.node.refused = Some(RefusedRevision { revision: snapshot.revision, why });
                self.save_without_rules(snapshot.clone()).await;
                // Keeps the ETag, so that the service does not send the same snapshot again.
                self.known_etag = etag;
                PollOutcome::Refused
            }
            InstallOutcome::Damaged(why) => {
                self.record_failure(&why);
                self.node.refused = Some(RefusedRevision { revision: snapshot.revision, why });
                PollOutcome::Failed
            }
        }
    }

    /// Writes a snapshot to disk. A failure is only logged, because the file matters only if the node restarts while
    /// the service is unreachable.
    async fn write_to_disk(&self, etag: Option<String>, snapshot: Arc<Snapshot>) {
        let written = self.with_last_good_file(move |file| file.write(etag.as_deref(), &snapshot)).await;
        if let Err((error, file)) = written {
            tracing::error!(%error, file, "cannot write the rules to disk; a restart without the service would use older rules");
        }
    }

    /// Writes the tokens and the kill switch of a refused snapshot to disk. After a restart, a revoked token must not
    /// be valid again, and the kill switch must keep its position.
    async fn save_without_rules(&self, snapshot: Arc<Snapshot>) {
        let written = self.with_last_good_file(move |file| file.update_all_but_rules(&snapshot)).await;
        if let Err((error, file)) = written {
            tracing::error!(%error, file, "cannot write the tokens to disk; a restart without the service would use older tokens");
        }
    }

    /// Runs `work` with the last-good file on a blocking thread. Does nothing if rules are not stored. An error
    /// contains the path.
    async fn with_last_good_file(
        &self,
        work: impl FnOnce(&LastGoodFile) -> anyhow::Result<()> + Send + 'static,
    ) -> Result<(), (anyhow::Error, String)> {
        let Some(file) = self.last_good.clone() else { return Ok(()) };
        let path = file.path().display().to_string();
        let done = tokio::task::spawn_blocking(move || work(&file)).await;
        done.unwrap_or_else(|error| Err(error.into())).map_err(|error| (error, path))
    }

    fn record_failure(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.logged_failure.as_deref() != Some(why) {
            tracing::warn!(service = %self.config.client.url(), why, "rules service unavailable; the rules in force stay");
            self.logged_failure = Some(why.to_owned());
        }
    }

    fn record_success(&mut self) {
        self.failures = 0;
        if self.logged_failure.take().is_some() {
            tracing::info!(service = %self.config.client.url(), "rules service available again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lost_request_is_abandoned_soon_after_the_service_should_have_answered() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let (client, begun) = (Client::new(&url, None, None).unwrap(), Instant::now());
        let why = fetch_snapshot(&client, &NodeState::default(), Some("\"1\""), POLL_TIMEOUTS).await.unwrap_err();
        assert_eq!(why, "no answer within 35 s");
        let waited = begun.elapsed();
        assert!((POLL_WAIT..=POLL_WAIT + Duration::from_secs(6)).contains(&waited), "{waited:?}");
    }
}
