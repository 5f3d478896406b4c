//! The store: sends the engine's charges to Redis or Valkey.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_core::Limits;
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Group, StoreError, UnsentFlag};

use crate::answer::ReplyReader;
use crate::batcher::{CallCounters, Health, ReplyPart};
use crate::census::{Membership, run_census};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::durations::DurationHistogram;
use crate::jobs::{Job, ask_primary, run_jobs};
use crate::lanes::HASH_TAGS;
use crate::limits_cache::EncodedLimitsCache;
use crate::link::find_cluster;
use crate::params::{EncodedLimits, refusals_change_nothing};
use crate::parts::MergedAnswer;
use crate::primary::Primary;
use crate::refusals::{self, Refusals, Repetition};
use crate::request::{GroupKind, MAX_GROUP_CHARGES, QueuedCharge, QueuedGroup, Route, is_plain_refusal};
use crate::script::Scripts;
use crate::sharing::{Sharing, SharingStats, is_shared};
use crate::suspects::Suspects;

/// A store in Redis or Valkey, shared by all nodes with the same server and namespace.
///
/// Decisions under `consistency: strict` are exact: the script uses the store's clock, and no two nodes get the same
/// tokens. See [`Config`] for deadlines and [`Health`] for slow or unreachable stores.
pub struct RedisStore {
    pub(crate) config: Arc<Config>,
    pub(crate) servers: Arc<Servers>,
    health: watch::Receiver<Health>,
    nodes: watch::Receiver<u32>,
    membership: Membership,
    pub(crate) counters: Arc<CallCounters>,
    encoded: Arc<EncodedLimitsCache>,
    /// Remembered refusals. `None` if the scripts use a test clock, which is unrelated to the process clock.
    pub(crate) refusals: Option<Arc<Refusals>>,
    /// Recently refused keys, used only in a cluster.
    pub(crate) suspects: Suspects,
    /// Keys that this node decides locally.
    pub(crate) sharing: Arc<Sharing>,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Script calls.
    pub calls: u64,
    /// Charges in these calls.
    pub charges: u64,
    /// Failed calls, and lost refunds of groups that span several servers.
    pub failures: u64,
    /// Time that requests waited, until the answer or the deadline.
    pub durations: DurationHistogram,
}

impl RedisStore {
    /// Connects to a store. Returns when the first attempt has succeeded or failed. A failed connection is retried
    /// until the store is dropped. Without a connection, requests are answered as unavailable.
    ///
    /// Must be called within a tokio runtime with time and I/O enabled. A separate task communicates with the server,
    /// and ends when the store is dropped.
    pub async fn connect(config: Config) -> Self {
        Self::with_scripts(config, Scripts::new()).await
    }

    /// Connects like [`RedisStore::connect`], but with the given scripts, for example scripts with a test clock.
    pub async fn with_scripts(config: Config, scripts: Scripts) -> Self {
        let config = find_cluster(config).await;
        let counters = Arc::new(CallCounters::default());
        let refusals = scripts.is_own_clock.then(|| Arc::new(Refusals::new()));
        let scripts = Arc::new(scripts);
        let servers = match &config.cluster {
            Some(_) => Servers::Cluster(Cluster::start(config.clone(), scripts, counters.clone())),
            None => Servers::One(Box::new(Primary::start(config.clone(), scripts, counters.clone(), None))),
        };
        let servers = Arc::new(servers);
        let (mut health, cluster) = match &*servers {
            Servers::One(primary) => (primary.watch_health(), None),
            Servers::Cluster(cluster) => (cluster.watch_health(), Some(cluster.clone())),
        };
        let (nodes_sender, nodes) = watch::channel(1);
        let (membership, leaving) = Membership::new();
        tokio::spawn(run_census(config.clone(), cluster, nodes_sender, leaving));
        // Fails only if the task has ended. Requests then report this error.
        let _ = health.wait_for(|health| *health != Health::Connecting).await;
        let (encoded, suspects, config) = (Arc::<EncodedLimitsCache>::default(), Suspects::new(), Arc::new(config));
        let sharing = Sharing::new(&servers, &config, &encoded);
        Self { config, servers, health, nodes, membership, counters, encoded, refusals, suspects, sharing }
    }

    /// Returns the current health.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Returns a receiver of health changes.
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Returns a receiver of the node count: the number of nodes with this store and namespace, including this node.
    /// While the store is unreachable, the receiver keeps the last known count.
    pub fn watch_nodes(&self) -> watch::Receiver<u32> {
        self.nodes.clone()
    }

    /// Returns this node's membership in the node count, so that a stopping node can leave.
    pub fn membership(&self) -> Membership {
        self.membership.clone()
    }

    /// Sends all unsent charges and returns all leases. Call this method when the node stops. Completes when the store
    /// has answered or failed.
    pub async fn flush(&self) {
        self.sharing.flush().await;
    }

    /// Returns statistics about the keys that this node decides locally.
    pub fn sharing_stats(&self) -> SharingStats {
        self.sharing.stats()
    }

    /// Returns the statistics so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            calls: read(&self.counters.calls),
            charges: read(&self.counters.charges),
            failures: read(&self.counters.failures),
            durations: self.counters.durations.read(),
        }
    }

    /// Returns the name of a key in the store. In a cluster, the name contains the tag of the lane.
    pub(crate) fn key_name(&self, key: &[u8], lane: u8) -> Vec<u8> {
        self.servers.key_name(&self.config.namespace, key, lane)
    }

    pub(crate) fn encode(&self, group: &Group<'_>, route: Route) -> Result<QueuedGroup, StoreError> {
        let reject = |why: String| StoreError::Rejected { why };
        if group.charges.len() > MAX_GROUP_CHARGES {
            return Err(reject(format!(
                "too many charges in a group: {} (maximum {MAX_GROUP_CHARGES})",
                group.charges.len()
            )));
        }
        // Two charges of the same key would each ignore the other charge.
        let key_at = |position: usize| group.charges[position].key;
        if (1..group.charges.len()).any(|one| (0..one).any(|other| key_at(one) == key_at(other))) {
            return Err(reject("two charges of a group have the same key".to_owned()));
        }
        let mut charges = Vec::with_capacity(group.charges.len());
        for (position, charge) in group.charges.iter().enumerate() {
            let encoded = self.encoded.get(charge).map_err(reject)?;
            let rest = group.charges.len() - 1 - position;
            charges.push(QueuedCharge::new(group.verb, charge, rest, self.key_name(charge.key, route.lane), encoded));
        }
        Ok(QueuedGroup { charges, route, kind: GroupKind::Charges, unsent: None })
    }

    /// Encodes a group with an `unsent` flag, which is set if the caller gives up before the group is sent.
    pub(crate) fn encode_with_unsent_flag(
        &self,
        group: &Group<'_>,
        route: Route,
        unsent: Option<&UnsentFlag>,
    ) -> Result<QueuedGroup, StoreError> {
        Ok(QueuedGroup { unsent: unsent.cloned(), ..self.encode(group, route)? })
    }

    /// Asks the store to decide all groups within the configured deadline.
    pub(crate) async fn ask_store(&self, batch: Batch<'_>, answers: &mut Answers) {
        self.ask_store_by(batch, Instant::now() + self.config.deadline, answers).await;
    }

    /// Asks the store to decide all groups before `deadline`.
    pub(crate) async fn ask_store_by(&self, batch: Batch<'_>, deadline: Instant, answers: &mut Answers) {
        let asked = Instant::now();
        let mut replies: Vec<Option<Reply>> = Vec::with_capacity(batch.groups.len());
        let mut lookups = Vec::with_capacity(batch.groups.len());
        for group in batch.groups {
            let lookup = self.prepare(group, asked);
            let repetition = lookup.and_then(|lookup| self.refusals.as_ref()?.find(group, &lookup));
            replies.push(repetition.map(Reply::Repeated));
            lookups.push(lookup);
        }
        if replies.iter().any(Option::is_none) {
            match &*self.servers {
                Servers::One(primary) => {
                    self.ask_single_server(primary, batch.groups, &mut replies, deadline, answers.unsent_flag()).await;
                }
                Servers::Cluster(cluster) => {
                    self.ask_cluster(cluster, batch.groups, &mut replies, deadline, answers.unsent_flag()).await;
                }
            }
            self.counters.durations.record(asked.elapsed());
            // A check may have been refused just before these groups restored capacity.
            if let Some(refusals) = &self.refusals {
                batch.groups.iter().for_each(|group| refusals.invalidate_group(group));
            }
        }
        for ((group, reply), lookup) in batch.groups.iter().zip(replies).zip(lookups) {
            self.read(group, reply, lookup, answers);
            if let Servers::Cluster(_) = &*self.servers {
                self.suspects.record_result(group, answers, answers.len() - 1, asked);
            }
        }
    }

    /// Sends every group that has no reply yet to the single server.
    async fn ask_single_server(
        &self,
        primary: &Primary,
        groups: &[Group<'_>],
        replies: &mut [Option<Reply>],
        deadline: Instant,
        unsent: Option<&UnsentFlag>,
    ) {
        let open: Vec<usize> = (0..groups.len()).filter(|index| replies[*index].is_none()).collect();
        let encoded = open
            .into_iter()
            .map(|index| (index, self.encode_with_unsent_flag(&groups[index], Route::default(), unsent)));
        let answer = |index: usize, reply: Result<ReplyPart, StoreError>| {
            replies[index] = Some(reply.map_or_else(Reply::Failed, Reply::Single));
        };
        ask_primary(primary, &self.config, encoded, deadline, answer).await;
    }

    /// Drops refusals that the group may make obsolete. Returns a lookup if the group's own refusal may be remembered.
    fn prepare(&self, group: &Group<'_>, asked: Instant) -> Option<refusals::RefusalLookup> {
        let connections = self.counters.connections.load(Ordering::Relaxed);
        let lookup = self.refusals.as_ref()?.prepare(group, connections, asked)?;
        (*self.health.borrow() == Health::Up).then_some(lookup)
    }

    /// Adds the answer to a group.
    fn read(
        &self,
        group: &Group<'_>,
        reply: Option<Reply>,
        lookup: Option<refusals::RefusalLookup>,
        answers: &mut Answers,
    ) {
        let part = match reply {
            Some(Reply::Repeated(repetition)) => return repetition.add_to(answers),
            Some(Reply::Merged(merged)) => return merged.add_to(answers),
            Some(Reply::Single(part)) => part,
            Some(Reply::Failed(error)) => return answers.fail_group(error),
            None => return answers.fail_group(StoreError::Unknown { why: "no reply for a group".to_owned() }),
        };
        if ReplyReader::new(part.bytes(), part.now, part.script_kind).read(group, answers).is_err() {
            return answers.fail_group(StoreError::Unknown { why: "the reply of the script is too short".to_owned() });
        }
        // Remembers a refusal only if every state has the parameters of its charge. A take under other parameters could
        // convert the state.
        if let Some((lookup, refusals)) = lookup.zip(self.refusals.as_ref())
            && is_plain_refusal(part.bytes())
            && let Ok(answer) = answers.group(answers.len() - 1)
            && group.charges.iter().all(|charge| refusals_change_nothing(charge.limits))
        {
            refusals.remember(group, &lookup, &answer, Instant::now());
        }
    }
}

/// The servers that hold the states.
pub(crate) enum Servers {
    One(Box<Primary>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// Returns the name of a key in the store. In a cluster, the name contains the tag of the lane.
    pub(crate) fn key_name(&self, namespace: &str, key: &[u8], lane: u8) -> Vec<u8> {
        let namespace = namespace.as_bytes();
        match self {
            Self::One(_) => [namespace, b":{", key, b"}"].concat(),
            Self::Cluster(_) => {
                let tag = HASH_TAGS.get(usize::from(lane)).copied().unwrap_or_default();
                [namespace, b":{", tag.as_bytes(), b"}", key].concat()
            }
        }
    }

    /// Returns the lane of an in-memory shard. Without a cluster, lanes have no meaning.
    pub(crate) fn lane_of_shard(&self, shard: u8) -> u8 {
        match self {
            Self::One(_) => shard,
            Self::Cluster(cluster) => cluster.lane_of_shard(shard),
        }
    }

    /// Sends groups to the servers of their lanes in parallel. Returns the replies in order.
    pub(crate) async fn send(
        &self,
        config: &Config,
        groups: Vec<QueuedGroup>,
        deadline: Instant,
    ) -> Vec<Result<ReplyPart, StoreError>> {
        match self {
            Self::One(primary) => {
                let missing = || Err(StoreError::Unknown { why: "no reply for a group".to_owned() });
                let mut replies: Vec<_> = groups.iter().map(|_| missing()).collect();
                let groups = groups.into_iter().map(|group| Ok(QueuedGroup { route: Route::default(), ..group }));
                ask_primary(primary, config, groups.enumerate(), deadline, |index, reply| replies[index] = reply).await;
                replies
            }
            Self::Cluster(cluster) => {
                let job = |group: &QueuedGroup| Job::new(group.route.lane, group.charges.len());
                let mut jobs: Vec<Job> = groups.iter().map(job).collect();
                let encode = |index: usize, route| Ok(QueuedGroup { route, ..groups[index].clone() });
                run_jobs(cluster, &mut jobs, encode, deadline).await;
                jobs.into_iter().map(Job::into_reply).collect()
            }
        }
    }
}

/// The reply to a group.
#[derive(Debug)]
pub(crate) enum Reply {
    /// One server answered.
    Single(ReplyPart),
    /// Several servers answered.
    Merged(MergedAnswer),
    /// The group has no answer, or could not be sent.
    Failed(StoreError),
    /// A remembered refusal; the store was not asked.
    Repeated(Repetition),
}

impl Store for RedisStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        if batch.groups.iter().any(is_shared) {
            self.answer_shared(batch, answers).await;
        } else {
            self.ask_store(batch, answers).await;
        }
    }

    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        self.try_decide_here(charge, answers)
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        EncodedLimits::new(limits).map(drop)
    }

    fn place_of(&self, partition_key: &[u8]) -> usize {
        match &*self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.first_lane_of_primary(cluster.lane_of(partition_key).into()),
        }
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
