//! A task that sends the requests of all callers in FIFO order, in batches. A batch is one write, usually with one call
//! per lane and script.
//!
//! While the link is idle, a request is sent immediately. While a batch is in flight, further requests queue up and are
//! sent together in the next batch. The busier the link, the more requests share the cost of a call; no request waits
//! for a batch to fill. Before the next batch is sent, the callers that were just answered run, so that their next
//! requests join it. If many requests are queued, a second batch is sent before the first batch is answered. The store
//! can then execute one batch while callers receive the answers to the other batch.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tollgate_engine::store::StoreError;

use crate::breaker::Breaker;
use crate::config::{Config, MAX_CALL_CHARGES, PROBE_EVERY};
use crate::durations::DurationCounters;
use crate::link::{CallError, Link};
use crate::request::{Call, QueuedGroup, ScriptKind, build_calls, is_left_to_general};
use crate::script::Scripts;

/// The health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The first connection attempt is in progress.
    Connecting,
    /// Requests are sent to the store.
    Up,
    /// No requests are sent to the store until a probe succeeds.
    Down {
        /// The last error, for the log.
        why: String,
    },
}

/// Call statistics.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    /// Connections made.
    pub(crate) connections: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) charges: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) durations: DurationCounters,
}

/// The queued groups of one caller.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) groups: Vec<QueuedGroup>,
    pub(crate) claim: Arc<Claim>,
    /// Receives the answer to each group, or one error for the whole request.
    pub(crate) reply: oneshot::Sender<Result<Vec<GroupReply>, StoreError>>,
}

impl QueuedRequest {
    fn charge_count(&self) -> usize {
        self.groups.iter().map(QueuedGroup::weight).sum()
    }
}

/// The answer to one group, or the reason why the group has no answer.
pub(crate) type GroupReply = Result<ReplyPart, NoReply>;

/// Reason why a group has no answer.
#[derive(Debug)]
pub(crate) enum NoReply {
    Failed(StoreError),
    /// The group was not executed, because its keys are at this address.
    Moved(String),
    /// The group was not executed, because its keys are being moved to this address. Send the group there, after
    /// `ASKING`.
    Ask(String),
    /// The group was not executed, because some keys of its call are being moved.
    TryAgain,
}

/// The part of a reply that answers one group.
#[derive(Debug)]
pub(crate) struct ReplyPart {
    reply: Arc<Vec<u8>>,
    range: Range<usize>,
    /// The store's time, in microseconds.
    pub(crate) now: u64,
    /// The script that decided the group.
    pub(crate) script_kind: ScriptKind,
}

impl ReplyPart {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.reply[self.range.clone()]
    }
}

/// Resolves the race between a caller that gives up and the task that sends the request. Only one side can claim the
/// request, so a caller that gives up knows whether the request was sent.
#[derive(Debug, Default)]
pub(crate) struct Claim(AtomicU8);

const QUEUED: u8 = 0;
const CLAIMED: u8 = 1;

impl Claim {
    /// Claims the request. Returns `false` if the other side was first. Relaxed ordering is enough, because the claim
    /// publishes no data.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(QUEUED, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The task that batches and sends requests.
pub(crate) struct Batcher {
    pub(crate) config: Config,
    pub(crate) scripts: Arc<Scripts>,
    /// Closed when the store is dropped.
    pub(crate) queue: mpsc::Receiver<QueuedRequest>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) counters: Arc<CallCounters>,
    /// Notified when the health changes.
    pub(crate) changed: Option<Arc<Notify>>,
}

/// Maximum number of batches in flight.
const MAX_BATCHES_IN_FLIGHT: usize = 2;
/// Minimum number of queued charges for a second batch in flight. With fewer queued charges, the second batch waits for
/// the first, so that more charges share the second batch.
const SECOND_BATCH_CHARGES: usize = 64;

/// Maximum number of times that the task lets other tasks run before it sends the next batch. With 64 callers, a call
/// has 62 charges with four passes, 50 with two and 36 with none. A single pass has no effect, because the first request
/// that arrives wakes the task early.
const MAX_YIELDS: usize = 4;

/// Reason why [`Batcher::serve`] returned.
enum ServeEnd {
    /// The store was dropped.
    Closed,
    /// The store failed, and must be probed before further requests are sent.
    Failed(String),
}

impl Batcher {
    /// Connects and serves requests, and reconnects after failures, until the store is dropped.
    pub(crate) async fn run(mut self) {
        while let Some(link) = self.recover().await {
            self.counters.connections.fetch_add(1, Ordering::Relaxed);
            self.set_health(Health::Up);
            match self.serve(link).await {
                ServeEnd::Closed => return,
                ServeEnd::Failed(why) => self.set_health(Health::Down { why }),
            }
        }
    }

    fn set_health(&self, health: Health) {
        self.health.send_replace(health);
        if let Some(changed) = &self.changed {
            changed.notify_one();
        }
    }

    /// Probes the store until it answers, and fails requests in the meantime. Returns `None` if the store was dropped.
    async fn recover(&mut self) -> Option<Link> {
        loop {
            let (config, scripts) = (self.config.clone(), self.scripts.clone());
            let attempt = async move { Link::open(&config, &scripts).await };
            match self.fail_requests_during(attempt).await? {
                Ok(link) => return Some(link),
                Err(why) => self.set_health(Health::Down { why }),
            }
            self.fail_requests_during(tokio::time::sleep(PROBE_EVERY)).await?;
        }
    }

    async fn fail_requests_during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return Some(result),
                waiting = self.queue.recv() => {
                    let error = unavailable_error(&self.config, &self.health.borrow());
                    // The reply channel is closed only if the caller gave up.
                    let _ = waiting?.reply.send(Err(error));
                }
            }
        }
    }

    async fn serve(&mut self, link: Link) -> ServeEnd {
        let sender = Arc::new(BatchSender {
            config: self.config.clone(),
            scripts: self.scripts.clone(),
            counters: self.counters.clone(),
        });
        let mut breaker = Breaker::default();
        let mut calls = JoinSet::new();
        let (mut batch, mut sent) = (Batch::default(), 0);
        loop {
            tokio::select! {
                biased;
                Some(done) = calls.join_next(), if !calls.is_empty() => {
                    // A call that panicked has dropped its reply channels, so its callers get an error.
                    let failure: Option<CallError> = done.ok().flatten();
                    self.counters.failures.fetch_add(failure.is_some().into(), Ordering::Relaxed);
                    let trips = breaker.record_result(failure.is_some());
                    if let Some(error) = failure
                        && (trips || matches!(error, CallError::Lost(_) | CallError::ReadOnly(_)))
                    {
                        let why = error.describe(&self.config);
                        self.fail_batch(batch, &why);
                        // The other call answers its callers itself.
                        calls.detach_all();
                        return ServeEnd::Failed(why);
                    }
                    if batch.has_room() && (sent > 1 || !batch.requests.is_empty()) {
                        self.let_callers_ask().await;
                    }
                }
                request = self.queue.recv(), if batch.has_room() => {
                    let Some(request) = request else {
                        calls.detach_all();
                        return ServeEnd::Closed;
                    };
                    batch.push(request);
                }
            }
            while batch.has_room()
                && let Ok(request) = self.queue.try_recv()
            {
                batch.push(request);
            }
            if calls.is_empty() || calls.len() < MAX_BATCHES_IN_FLIGHT && batch.charges >= SECOND_BATCH_CHARGES {
                let (sender, link, requests) = (sender.clone(), link.clone(), batch.take());
                if !requests.is_empty() {
                    sent = requests.len();
                    calls.spawn(async move { sender.decide(link, requests).await });
                }
            }
        }
    }

    /// Lets the callers that were just answered run, so that their next requests are in the next batch. Without it,
    /// the requests of `n` callers alternate between two batches of `n / 2`. Ends when no further request arrives,
    /// after at most [`MAX_YIELDS`] passes of the scheduler.
    async fn let_callers_ask(&self) {
        let mut queued = self.queue.len();
        for _ in 0..MAX_YIELDS {
            tokio::task::yield_now().await;
            if self.queue.len() == queued {
                return;
            }
            queued = self.queue.len();
        }
    }

    fn fail_batch(&self, batch: Batch, why: &str) {
        for request in batch.requests.into_iter().chain(batch.left_over) {
            let error = unavailable_error(&self.config, &Health::Down { why: why.to_owned() });
            // The reply channel is closed only if the caller gave up.
            let _ = request.reply.send(Err(error));
        }
    }
}

/// Requests to be sent together.
#[derive(Default)]
struct Batch {
    requests: Vec<QueuedRequest>,
    charges: usize,
    /// A request that did not fit into this batch; it starts the next batch.
    left_over: Option<QueuedRequest>,
}

impl Batch {
    fn has_room(&self) -> bool {
        self.charges < MAX_CALL_CHARGES && self.left_over.is_none()
    }

    fn push(&mut self, request: QueuedRequest) {
        let charges = request.charge_count();
        if self.charges > 0 && self.charges + charges > MAX_CALL_CHARGES {
            self.left_over = Some(request);
        } else {
            self.charges += charges;
            self.requests.push(request);
        }
    }

    /// Returns the requests to send now and starts the next batch. Drops requests whose callers gave up.
    fn take(&mut self) -> Vec<QueuedRequest> {
        let mut requests = std::mem::take(&mut self.requests);
        requests.retain(|request| request.claim.take());
        self.charges = 0;
        if let Some(request) = self.left_over.take() {
            self.push(request);
        }
        requests
    }
}

/// Sends batches. Shared by the calls in flight.
struct BatchSender {
    config: Config,
    scripts: Arc<Scripts>,
    counters: Arc<CallCounters>,
}

impl BatchSender {
    /// Sends a batch and answers its callers. Returns the first failure, if any.
    async fn decide(&self, mut link: Link, batch: Vec<QueuedRequest>) -> Option<CallError> {
        self.counters
            .charges
            .fetch_add(batch.iter().map(|request| request.charge_count() as u64).sum(), Ordering::Relaxed);
        let groups: Vec<&QueuedGroup> = batch.iter().flat_map(|request| &request.groups).collect();
        let mut replies: Vec<Option<Result<ReplyPart, CallError>>> = groups.iter().map(|_| None).collect();
        let with_special = self.scripts.special.is_some();
        self.call(&mut link, &groups, &mut replies, with_special).await;
        // The special script did not execute the groups that it left to the general script.
        let left = |reply: &Option<Result<ReplyPart, CallError>>| matches!(reply, Some(Ok(part)) if is_left_to_general(part.bytes()));
        if replies.iter().any(left) {
            replies.iter_mut().filter(|reply| left(reply)).for_each(|reply| *reply = None);
            self.call(&mut link, &groups, &mut replies, false).await;
        }
        let mut failure = None;
        let mut replies = replies.into_iter().map(|reply| match reply {
            Some(Ok(part)) => Ok(part),
            Some(Err(CallError::Moved(address))) => Err(NoReply::Moved(address)),
            Some(Err(CallError::Ask(address))) => Err(NoReply::Ask(address)),
            Some(Err(CallError::TryAgain)) => Err(NoReply::TryAgain),
            Some(Err(error)) => {
                let reported = self.to_store_error(&error);
                failure.get_or_insert(error);
                Err(NoReply::Failed(reported))
            }
            None => Err(NoReply::Failed(StoreError::Unknown { why: "no call for a group".to_owned() })),
        });
        for request in batch {
            // The reply channel is closed only if the caller gave up.
            let _ = request.reply.send(Ok(replies.by_ref().take(request.groups.len()).collect()));
        }
        drop(replies);
        failure
    }

    /// Calls the scripts for every group that has no reply yet, in one write.
    async fn call(
        &self,
        link: &mut Link,
        groups: &[&QueuedGroup],
        replies: &mut [Option<Result<ReplyPart, CallError>>],
        with_special: bool,
    ) {
        let open: Vec<usize> = (0..groups.len()).filter(|index| replies[*index].is_none()).collect();
        let calls = build_calls(open.iter().map(|index| (*index, groups[*index])), with_special);
        self.counters.calls.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let results = link.call(&calls, &self.config).await;
        for (call, result) in calls.iter().zip(results) {
            match result {
                Ok(reply) => split_reply(call, groups, reply, replies),
                Err(error) => call.groups.iter().for_each(|index| replies[*index] = Some(Err(error.clone()))),
            }
        }
    }

    /// Returns the error for a caller whose group was in a failed call.
    fn to_store_error(&self, error: &CallError) -> StoreError {
        let why = format!("{}: {}", self.config.address, error.describe(&self.config));
        match error {
            CallError::Refused(_)
            | CallError::ReadOnly(_)
            | CallError::Moved(_)
            | CallError::Ask(_)
            | CallError::TryAgain => StoreError::Unavailable { why },
            CallError::Late | CallError::Lost(_) | CallError::Unreplicated(_) => StoreError::Unknown { why },
        }
    }
}

/// Returns the error for a request while the store has this health.
pub(crate) fn unavailable_error(config: &Config, health: &Health) -> StoreError {
    let address = &config.address;
    StoreError::Unavailable {
        why: match health {
            Health::Up => format!("reconnecting to {address}"),
            Health::Connecting => format!("{address} not reached yet"),
            Health::Down { why } => format!("{address} is down: {why}"),
        },
    }
}

/// Splits the reply to a call into the answers to its groups.
fn split_reply(
    call: &Call<'_>,
    groups: &[&QueuedGroup],
    reply: Vec<u8>,
    replies: &mut [Option<Result<ReplyPart, CallError>>],
) {
    let mut wide = [0; 8];
    let mut end = reply.get(..7).map(|now| {
        wide[..7].copy_from_slice(now);
        7
    });
    let now = u64::from_le_bytes(wide);
    let reply = Arc::new(reply);
    for &index in &call.groups {
        let start = end;
        end = end.and_then(|at| groups[index].answer_end(&reply, at, call.script_kind));
        replies[index] = Some(match (start, end) {
            (Some(start), Some(end)) => {
                Ok(ReplyPart { reply: reply.clone(), range: start..end, now, script_kind: call.script_kind })
            }
            _ => Err(CallError::Lost("the reply of the script is too short".to_owned())),
        });
    }
}
