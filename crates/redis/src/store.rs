//! The store: sends the charges of the engine to Redis or Valkey.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_core::Limits;
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Group, StoreError};

use crate::answer::ReplyReader;
use crate::batcher::{Batcher, CallCounters, Claim, Health, QueuedRequest, ReplyPart, unavailable};
use crate::census::{Membership, take_part};
use crate::config::{BATCH, Config, QUEUE};
use crate::durations::Durations;
use crate::params::EncodedLimits;
use crate::request::{MAX_CHARGES, QueuedCharge};
use crate::script::Script;

/// A store in Redis or Valkey, shared by all nodes that use the same server and namespace.
///
/// Every decision is exact: the script decides by the store's clock, and no two nodes are ever
/// granted the same tokens. [`Config`] and [`Health`] describe the deadlines, and what happens when
/// the store is slow or unreachable.
pub struct RedisStore {
    config: Arc<Config>,
    queue: mpsc::Sender<QueuedRequest>,
    health: watch::Receiver<Health>,
    nodes: watch::Receiver<u32>,
    membership: Membership,
    counters: Arc<CallCounters>,
    /// Encoded limits, by their id. Read for every charge and written once per set of limits.
    encoded: RwLock<HashMap<u32, Arc<EncodedLimits>>>,
}

/// The counts of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Calls of the script.
    pub calls: u64,
    /// Charges sent with these calls.
    pub charges: u64,
    /// Calls without an answer.
    pub failures: u64,
    /// How long requests waited for their answer, or for the deadline.
    pub durations: Durations,
}

/// Maximum number of encoded limits; beyond it all are dropped and encoded again when needed.
const MAX_ENCODED: usize = 1 << 15;

impl RedisStore {
    /// Connects to a store. Returns when the first connection succeeded or failed; then it is
    /// retried for as long as the store exists, and until it succeeds every request is answered as
    /// unavailable.
    ///
    /// Must be called within a tokio runtime with time and I/O enabled; a task of its own talks to
    /// the server, and ends when the store is dropped.
    pub async fn connect(config: Config) -> Self {
        Self::with_script(config, Script::new()).await
    }

    /// Like [`RedisStore::connect`], with another script: tests replace the clock.
    pub async fn with_script(config: Config, script: Script) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (health_sender, mut health) = watch::channel(Health::Connecting);
        let counters = Arc::new(CallCounters::default());
        let batcher = Batcher {
            config: config.clone(),
            script: Arc::new(script),
            queue: waiting,
            health: health_sender,
            counters: counters.clone(),
        };
        tokio::spawn(batcher.run());
        let (nodes_sender, nodes) = watch::channel(1);
        let (membership, leaving) = Membership::new();
        tokio::spawn(take_part(config.clone(), nodes_sender, leaving));
        // It fails only if the task is gone, and then requests report that.
        let _ = health.wait_for(|health| *health != Health::Connecting).await;
        Self { config: Arc::new(config), queue, health, nodes, membership, counters, encoded: RwLock::default() }
    }

    /// The current health.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Returns a receiver of changes of the health.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Returns a receiver of the number of nodes that use the store and namespace, this one
    /// included; while the store is unreachable, the last known number.
    pub fn watch_nodes(&self) -> watch::Receiver<u32> {
        self.nodes.clone()
    }

    /// The membership of this node in that count, to be given up when it stops.
    pub fn membership(&self) -> Membership {
        self.membership.clone()
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            calls: read(&self.counters.calls),
            charges: read(&self.counters.charges),
            failures: read(&self.counters.failures),
            durations: self.counters.durations.read(),
        }
    }

    /// Returns the name of a key in the store. The braces keep everything that belongs to one key
    /// on one node of a cluster.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.config.namespace.as_bytes(), b":{", key, b"}"].concat()
    }

    fn encoded(&self, charge: &Charge<'_>) -> Result<Arc<EncodedLimits>, String> {
        let known = self.encoded.read().unwrap_or_else(PoisonError::into_inner).get(&charge.limits_id).cloned();
        // Ids wrap around after four billion limits.
        if let Some(encoded) = known.filter(|encoded| encoded.limits() == charge.limits) {
            return Ok(encoded);
        }
        let encoded = Arc::new(EncodedLimits::new(charge.limits)?);
        let mut all = self.encoded.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_ENCODED {
            all.clear();
        }
        all.insert(charge.limits_id, encoded.clone());
        Ok(encoded)
    }

    /// Encodes the charges of a group.
    fn entries(&self, group: &Group<'_>, entries: &mut Vec<QueuedCharge>) -> Result<(), StoreError> {
        let reject = |why: String| StoreError::Rejected { why };
        if group.charges.len() > MAX_CHARGES {
            return Err(reject(format!(
                "too many charges in a group: {} (maximum {MAX_CHARGES})",
                group.charges.len()
            )));
        }
        // Two charges of one key would each be decided without the other.
        let key_at = |place: usize| group.charges[place].key;
        if (1..group.charges.len()).any(|one| (0..one).any(|other| key_at(one) == key_at(other))) {
            return Err(reject("two charges of a group have the same key".to_owned()));
        }
        let first = entries.len();
        for (place, charge) in group.charges.iter().enumerate() {
            let encoded = self.encoded(charge).map_err(|why| {
                entries.truncate(first);
                reject(why)
            })?;
            let rest = group.charges.len() - 1 - place;
            entries.push(QueuedCharge::new(group.verb, charge, rest, self.key(charge.key), encoded));
        }
        Ok(())
    }

    /// Queues charges to be sent.
    fn send(&self, entries: Vec<QueuedCharge>) -> Result<Ticket, StoreError> {
        if let health @ (Health::Connecting | Health::Down { .. }) = &*self.health.borrow() {
            return Err(unavailable(&self.config, health));
        }
        let (reply, answer) = oneshot::channel();
        let claim = Arc::new(Claim::default());
        let ticket = Ticket { claim: claim.clone(), answer };
        let why = match self.queue.try_send(QueuedRequest { entries, claim, reply }) {
            Ok(()) => return Ok(ticket),
            Err(mpsc::error::TrySendError::Full(_)) => format!("the queue is full ({} requests)", QUEUE),
            Err(mpsc::error::TrySendError::Closed(_)) => "the runtime of the connection has ended".to_owned(),
        };
        Err(StoreError::Unavailable { why })
    }

    /// Queues the first groups that fit one call; or returns what is wrong with the first.
    fn send_some(&self, groups: &[Group<'_>]) -> (usize, Result<Ticket, StoreError>) {
        let mut entries = Vec::with_capacity(groups.len().min(BATCH));
        let mut count = 0;
        for group in groups {
            if count > 0 && entries.len() + group.charges.len() > BATCH {
                break;
            }
            match self.entries(group, &mut entries) {
                Ok(()) => count += 1,
                // Those before it are sent; it is the first of the next call.
                Err(_) if count > 0 => break,
                Err(error) => return (1, Err(error)),
            }
        }
        (count, self.send(entries))
    }

    async fn answer(&self, batch: Batch<'_>, answers: &mut Answers) {
        let start = Instant::now();
        let deadline = start + self.config.deadline;
        let mut parts = Vec::with_capacity(1);
        let mut groups = batch.groups;
        while !groups.is_empty() {
            let (count, ticket) = self.send_some(groups);
            let (some, rest) = groups.split_at(count);
            parts.push((some, ticket));
            groups = rest;
        }
        for (groups, ticket) in parts {
            let part = match ticket {
                Ok(ticket) => ticket.redeem(deadline, &self.config).await,
                Err(error) => Err(error),
            };
            read_answers(groups, part, answers);
        }
        self.counters.durations.record(start.elapsed());
    }
}

impl Store for RedisStore {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        self.answer(batch, answers)
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        EncodedLimits::new(limits).map(drop)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("config", &self.config)
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// A queued request. If it is dropped before it was sent, it is not sent.
struct Ticket {
    claim: Arc<Claim>,
    answer: oneshot::Receiver<Result<ReplyPart, StoreError>>,
}

impl Ticket {
    async fn redeem(mut self, deadline: Instant, config: &Config) -> Result<ReplyPart, StoreError> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            // The task has ended, which drops the queue; a call in progress may have been carried
            // out.
            Ok(Err(_)) => Err(StoreError::Unknown { why: "the runtime of the connection has ended".to_owned() }),
            Err(_) if self.claim.take() => {
                Err(StoreError::Unavailable { why: format!("not sent within {:?}", config.deadline) })
            }
            Err(_) => Err(StoreError::Unknown {
                why: format!("no answer from {} within {:?}", config.address, config.deadline),
            }),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.claim.take();
    }
}

/// Reads the answers to `groups` from their part of a reply.
fn read_answers(groups: &[Group<'_>], part: Result<ReplyPart, StoreError>, answers: &mut Answers) {
    let part = match part {
        Ok(part) => part,
        Err(error) => return groups.iter().for_each(|_| answers.fail_group(error.clone())),
    };
    let mut reader = ReplyReader::new(part.bytes(), part.now);
    for group in groups {
        if reader.read(group, answers).is_err() {
            answers.fail_group(StoreError::Unknown { why: "the reply of the script is too short".to_owned() });
        }
    }
}
