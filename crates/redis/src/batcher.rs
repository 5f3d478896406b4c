//! A task that sends the requests of all callers, first come first served, in as few calls as
//! possible.
//!
//! A request that finds the link idle is sent immediately. While a call is in progress others queue
//! up, and all of them go into the next call together: the busier the link, the more requests share
//! the cost of a call, and none waits for others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};
use tollgate_engine::store::StoreError;

use crate::breaker::Breaker;
use crate::config::{BATCH, Config, PROBE_EVERY};
use crate::durations::DurationCounters;
use crate::link::{CallError, Link};
use crate::request::{Call, QueuedCharge, answer_end};
use crate::script::Script;

/// The health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Unknown: the first connection is being made.
    Connecting,
    /// Requests are sent to it.
    Up,
    /// Requests are not sent to it until a probe succeeds.
    Down {
        /// The last error, for the log.
        why: String,
    },
}

/// Counts of calls.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) charges: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) durations: DurationCounters,
}

/// Whole groups of one caller, waiting to be sent.
#[derive(Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) entries: Vec<QueuedCharge>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) reply: oneshot::Sender<Result<ReplyPart, StoreError>>,
}

/// The answer to the groups of one caller.
#[derive(Debug)]
pub(crate) struct ReplyPart {
    reply: Arc<Vec<u8>>,
    range: Range<usize>,
    /// The store's time, in microseconds.
    pub(crate) now: u64,
}

impl ReplyPart {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.reply[self.range.clone()]
    }
}

/// Claimed either by a caller that gives up or by the task that sends, whichever is first. So it is
/// always known whether a request was sent.
#[derive(Debug, Default)]
pub(crate) struct Claim(AtomicU8);

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;

impl Claim {
    /// Claims the request; `false` if the other side was first. It publishes no data, so no
    /// ordering is needed.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(QUEUED, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The task.
pub(crate) struct Batcher {
    pub(crate) config: Config,
    pub(crate) script: Arc<Script>,
    /// Closed when the store is dropped.
    pub(crate) queue: mpsc::Receiver<QueuedRequest>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) counters: Arc<CallCounters>,
}

/// Why serving ended.
enum ServeEnd {
    /// The store was dropped.
    Closed,
    /// The store must be probed before further requests are sent to it.
    Failed(String),
}

impl Batcher {
    /// Connects and serves repeatedly, until the store is dropped.
    pub(crate) async fn run(mut self) {
        while let Some(link) = self.recover().await {
            self.health.send_replace(Health::Up);
            match self.serve(link).await {
                ServeEnd::Closed => return,
                ServeEnd::Failed(why) => {
                    self.health.send_replace(Health::Down { why });
                }
            }
        }
    }

    /// Probes the store until it answers; requests that arrive meanwhile are refused. `None` when
    /// the store was dropped.
    async fn recover(&mut self) -> Option<Link> {
        loop {
            let (config, script) = (self.config.clone(), self.script.clone());
            let attempt = async move { Link::open(&config, &script).await };
            match self.refuse_during(attempt).await? {
                Ok(link) => return Some(link),
                Err(why) => self.health.send_replace(Health::Down { why }),
            };
            self.refuse_during(tokio::time::sleep(PROBE_EVERY)).await?;
        }
    }

    async fn refuse_during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return Some(result),
                waiting = self.queue.recv() => {
                    let error = unavailable(&self.config, &self.health.borrow());
                    // A caller that gave up needs no answer.
                    let _ = waiting?.reply.send(Err(error));
                }
            }
        }
    }

    async fn serve(&mut self, mut link: Link) -> ServeEnd {
        let mut breaker = Breaker::default();
        let mut batch = Vec::new();
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(waiting) => Some(waiting),
                None => self.queue.recv().await,
            };
            let Some(first) = first else { return ServeEnd::Closed };
            left_over = self.gather(first, &mut batch);
            if batch.is_empty() {
                continue;
            }
            let call = Call::new(batch.iter().flat_map(|waiting: &QueuedRequest| &waiting.entries));
            let result = link.call(&call, &self.config).await;
            drop(call);
            self.counters.calls.fetch_add(1, Ordering::Relaxed);
            let failure = match result {
                Ok(reply) => {
                    let short = || CallError::Lost("the reply of the script is too short".to_owned());
                    (!answer(&mut batch, reply)).then(short)
                }
                Err(error) => {
                    self.fail(&mut batch, &error);
                    Some(error)
                }
            };
            self.counters.failures.fetch_add(failure.is_some().into(), Ordering::Relaxed);
            let trips = breaker.note(failure.is_some());
            if let Some(error) = failure
                && (trips || matches!(error, CallError::Lost(_)))
            {
                let why = error.describe(&self.config);
                self.refuse(left_over, &why);
                return ServeEnd::Failed(why);
            }
        }
    }

    /// Collects everything queued that fits a call; returns the first request that does not.
    fn gather(&mut self, first: QueuedRequest, batch: &mut Vec<QueuedRequest>) -> Option<QueuedRequest> {
        let mut charges = 0;
        let mut next = Some(first);
        while let Some(waiting) = next.take() {
            if charges > 0 && charges + waiting.entries.len() > BATCH {
                next = Some(waiting);
                break;
            }
            if waiting.claim.take() {
                charges += waiting.entries.len();
                batch.push(waiting);
            }
            next = self.queue.try_recv().ok();
        }
        self.counters.charges.fetch_add(charges as u64, Ordering::Relaxed);
        next
    }

    /// Reports the error to every caller in the batch.
    fn fail(&self, batch: &mut Vec<QueuedRequest>, error: &CallError) {
        let why = format!("{}: {}", self.config.address, error.describe(&self.config));
        let error = match error {
            CallError::Refused(_) => StoreError::Unavailable { why },
            CallError::Late | CallError::Lost(_) => StoreError::Unknown { why },
        };
        for waiting in batch.drain(..) {
            // A caller that gave up needs no answer.
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    fn refuse(&self, waiting: Option<QueuedRequest>, why: &str) {
        if let Some(waiting) = waiting {
            let error = unavailable(&self.config, &Health::Down { why: why.to_owned() });
            let _ = waiting.reply.send(Err(error));
        }
    }
}

/// Returns the error for requests while the store is in this state.
pub(crate) fn unavailable(config: &Config, health: &Health) -> StoreError {
    let address = &config.address;
    StoreError::Unavailable {
        why: match health {
            Health::Up => format!("reconnecting to {address}"),
            Health::Connecting => format!("{address} not reached yet"),
            Health::Down { why } => format!("{address} is down: {why}"),
        },
    }
}

/// Gives every caller in the batch its part of the reply; returns whether there was one for all.
fn answer(batch: &mut Vec<QueuedRequest>, reply: Vec<u8>) -> bool {
    let mut wide = [0; 8];
    let mut end = reply.get(..7).map(|now| {
        wide[..7].copy_from_slice(now);
        7
    });
    let now = u64::from_le_bytes(wide);
    let reply = Arc::new(reply);
    for waiting in batch.drain(..) {
        let start = end;
        end = end.and_then(|at| answer_end(&reply, &waiting.entries, at));
        let part = match (start, end) {
            (Some(start), Some(end)) => Ok(ReplyPart { reply: reply.clone(), range: start..end, now }),
            _ => Err(StoreError::Unknown { why: "the reply of the script is too short".to_owned() }),
        };
        // A caller that gave up needs no answer.
        let _ = waiting.reply.send(part);
    }
    end == Some(reply.len())
}
