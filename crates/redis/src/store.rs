//! The store: what the engine asks of it, sent to Redis or Valkey.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_core::Limits;
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Group, StoreError};

use crate::answer::Reader;
use crate::batcher::{Batcher, Figures, Health, Part, Turn, Waiting, unavailable};
use crate::census::{Membership, take_part};
use crate::config::{BATCH, Config, QUEUE};
use crate::params::EncodedLimits;
use crate::request::{Entry, MAX_CHARGES};
use crate::script::Script;

/// State in Redis or Valkey, shared by all nodes that use the same server and namespace.
///
/// Every decision is exact: the script decides by the store's clock, and no two nodes are ever granted the same tokens. What a
/// call may take, what happens when the store is slow or gone, and how it comes back is said at [`Config`] and [`Health`].
pub struct RedisStore {
    config: Arc<Config>,
    queue: mpsc::Sender<Waiting>,
    health: watch::Receiver<Health>,
    nodes: watch::Receiver<u32>,
    membership: Membership,
    figures: Arc<Figures>,
    /// Limits as the script takes them, by their id. Read for every charge and written once per set of numbers.
    encoded: RwLock<HashMap<u32, Arc<EncodedLimits>>>,
}

/// What a store has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// How often the script was called.
    pub calls: u64,
    /// How many charges were sent with these calls.
    pub charges: u64,
    /// How many calls brought no answer.
    pub failures: u64,
}

/// How many sets of numbers are remembered at a time; beyond that all are forgotten and made anew when next needed.
const MAX_ENCODED: usize = 1 << 15;

impl RedisStore {
    /// A store at this address. Returns when the first connection stands or has failed; in the latter case it is tried again
    /// for as long as the store exists, and until then every request is told that the store is unavailable.
    ///
    /// Must be called within a tokio runtime with time and input enabled; a task of its own talks to the server, and ends when
    /// the store is dropped.
    pub async fn connect(config: Config) -> Self {
        Self::with_script(config, Script::new()).await
    }

    /// [`RedisStore::connect`] with another script: tests replace the clock.
    pub async fn with_script(config: Config, script: Script) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (health_sender, mut health) = watch::channel(Health::Connecting);
        let figures = Arc::new(Figures::default());
        let batcher = Batcher {
            config: config.clone(),
            script: Arc::new(script),
            queue: waiting,
            health: health_sender,
            figures: figures.clone(),
        };
        tokio::spawn(batcher.run());
        let (nodes_sender, nodes) = watch::channel(1);
        let (membership, leaving) = Membership::new();
        tokio::spawn(take_part(config.clone(), nodes_sender, leaving));
        // It only fails if the task is gone, and then requests say so.
        let _ = health.wait_for(|health| *health != Health::Connecting).await;
        Self { config: Arc::new(config), queue, health, nodes, membership, figures, encoded: RwLock::default() }
    }

    /// How the store is at the moment.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// A receiver that is told when that changes.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// How many nodes use the store and namespace at the moment, this one included; when the store is gone, how many did last.
    pub fn watch_nodes(&self) -> watch::Receiver<u32> {
        self.nodes.clone()
    }

    /// This node's place in that count, which it gives up when it stops.
    pub fn membership(&self) -> Membership {
        self.membership.clone()
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let read = |figure: &std::sync::atomic::AtomicU64| figure.load(Ordering::Relaxed);
        Counts {
            calls: read(&self.figures.calls),
            charges: read(&self.figures.charges),
            failures: read(&self.figures.failures),
        }
    }

    /// The name of a key in the store. The braces keep whatever belongs to one key on one node of a cluster.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.config.namespace.as_bytes(), b":{", key, b"}"].concat()
    }

    fn encoded(&self, charge: &Charge<'_>) -> Result<Arc<EncodedLimits>, String> {
        let known = self.encoded.read().unwrap_or_else(PoisonError::into_inner).get(&charge.numbers).cloned();
        // Ids may come round again after four billion limits.
        if let Some(encoded) = known.filter(|encoded| encoded.limits() == charge.limits) {
            return Ok(encoded);
        }
        let encoded = Arc::new(EncodedLimits::new(charge.limits)?);
        let mut all = self.encoded.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_ENCODED {
            all.clear();
        }
        all.insert(charge.numbers, encoded.clone());
        Ok(encoded)
    }

    /// The charges of a group, ready to be sent.
    fn entries(&self, group: &Group<'_>, entries: &mut Vec<Entry>) -> Result<(), StoreError> {
        let reject = |why: String| StoreError::Rejected { why };
        if group.charges.len() > MAX_CHARGES {
            return Err(reject(format!("a group of {} charges, at most {MAX_CHARGES} are sent", group.charges.len())));
        }
        // Two charges on one key would each be decided without the other.
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
            entries.push(Entry::new(group.verb, charge, rest, self.key(charge.key), encoded));
        }
        Ok(())
    }

    /// Queues charges to be sent.
    fn send(&self, entries: Vec<Entry>) -> Result<Ticket, StoreError> {
        if let health @ (Health::Connecting | Health::Down { .. }) = &*self.health.borrow() {
            return Err(unavailable(&self.config, health));
        }
        let (reply, answer) = oneshot::channel();
        let turn = Arc::new(Turn::default());
        let ticket = Ticket { turn: turn.clone(), answer };
        let why = match self.queue.try_send(Waiting { entries, turn, reply }) {
            Ok(()) => return Ok(ticket),
            Err(mpsc::error::TrySendError::Full(_)) => format!("{} requests are waiting already", QUEUE),
            Err(mpsc::error::TrySendError::Closed(_)) => "the runtime of its connection has ended".to_owned(),
        };
        Err(StoreError::Unavailable { why })
    }

    /// The groups from the first on that fit one call, queued; or what is wrong with the first.
    fn send_some(&self, groups: &[Group<'_>]) -> (usize, Result<Ticket, StoreError>) {
        let mut entries = Vec::with_capacity(groups.len().min(BATCH));
        let mut count = 0;
        for group in groups {
            if count > 0 && entries.len() + group.charges.len() > BATCH {
                break;
            }
            match self.entries(group, &mut entries) {
                Ok(()) => count += 1,
                // Those before it go ahead; it is the first of the next.
                Err(_) if count > 0 => break,
                Err(error) => return (1, Err(error)),
            }
        }
        (count, self.send(entries))
    }

    async fn answer(&self, batch: Batch<'_>, answers: &mut Answers) {
        let deadline = Instant::now() + self.config.deadline;
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
            tell(groups, part, answers);
        }
    }
}

impl Store for RedisStore {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        self.answer(batch, answers)
    }

    fn check_numbers(&self, limits: &Limits) -> Result<(), String> {
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

/// A request that was queued. Dropped before it was sent, it is not sent.
struct Ticket {
    turn: Arc<Turn>,
    answer: oneshot::Receiver<Result<Part, StoreError>>,
}

impl Ticket {
    async fn redeem(mut self, deadline: Instant, config: &Config) -> Result<Part, StoreError> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            // The task has ended, which drops what is queued; what it was sending may have been carried out.
            Ok(Err(_)) => Err(StoreError::Unknown { why: "the runtime of its connection has ended".to_owned() }),
            Err(_) if self.turn.take() => {
                Err(StoreError::Unavailable { why: format!("it was not sent within {:?}", config.deadline) })
            }
            Err(_) => {
                Err(StoreError::Unknown { why: format!("{} was silent for {:?}", config.address, config.deadline) })
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.turn.take();
    }
}

/// Reads the answers to `groups` from their part of a reply.
fn tell(groups: &[Group<'_>], part: Result<Part, StoreError>, answers: &mut Answers) {
    let part = match part {
        Ok(part) => part,
        Err(error) => return groups.iter().for_each(|_| answers.fail_group(error.clone())),
    };
    let mut reader = Reader::new(part.bytes(), part.now);
    for group in groups {
        if reader.read(group, answers).is_err() {
            answers.fail_group(StoreError::Unknown { why: "the answer of the script is too short".to_owned() });
        }
    }
}
