//! Local decisions: keys of rules with `consistency: leased` or `eventual`, for which this node does not ask the store
//! on every request.
//!
//! | file | contents |
//! |---|---|
//! | `groups.rs` | groups that this node and the store decide together |
//! | `eventual.rs` | local views, for `consistency: eventual` |
//! | `sync.rs` | the task that syncs views with the store |
//! | `leased.rs` | leases, for `consistency: leased` |
//! | `exchange.rs` | exchanges of leases with the store |
//! | `states.rs` | states in the store's replies |

mod eventual;
mod exchange;
mod groups;
mod leased;
mod states;
mod sync;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::runtime::Handle;
use tollgate::clock::PreciseClock;
use tollgate_engine::store::{Consistency, Group, SyncEvery, rule_of_key};

use crate::config::Config;
use crate::limits_cache::EncodedLimitsCache;
use crate::store::Servers;
use eventual::ShardedTally;
use leased::Leases;

/// Maximum number of rules with a separate overshoot count. Further rules share one count.
const MAX_OVERSHOOT_RULES: usize = 1_000;

/// The keys that this node decides locally.
pub(crate) struct Sharing {
    servers: Weak<Servers>,
    config: Arc<Config>,
    is_cluster: bool,
    /// The runtime of the connections, which outlives the requests. All tasks run on this runtime.
    runtime: Handle,
    /// Random name of this process, so that no two processes share a merge counter.
    node: String,
    /// The clock of the tallies, created here because the first clock of a process takes up to 200 ms.
    clock: Arc<PreciseClock>,
    tallies: TallyList,
    leases: Leases,
    encoded: Arc<EncodedLimitsCache>,
    /// Tokens admitted beyond a limit, by domain and rule.
    overshoot: Mutex<HashMap<(String, String), u64>>,
}

/// An append-only linked list of tallies, searched without a lock. Rules use few different intervals.
type TallyList = OnceLock<Box<TallyNode>>;

struct TallyNode {
    tally: Arc<ShardedTally>,
    next: TallyList,
}

/// Returns whether a group has a charge that is not `consistency: strict`.
pub(crate) fn is_shared(group: &Group<'_>) -> bool {
    group.charges.iter().any(|charge| charge.consistency != Consistency::Strict)
}

impl Sharing {
    /// Creates an empty set of keys. Must be called within a tokio runtime.
    pub(crate) fn new(servers: &Arc<Servers>, config: &Arc<Config>, encoded: &Arc<EncodedLimitsCache>) -> Arc<Self> {
        Arc::new(Self {
            servers: Arc::downgrade(servers),
            config: config.clone(),
            is_cluster: config.cluster.is_some(),
            runtime: Handle::current(),
            node: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            clock: Arc::default(),
            tallies: TallyList::new(),
            leases: Leases::new(config.cluster.is_some()),
            encoded: encoded.clone(),
            overshoot: Mutex::default(),
        })
    }

    /// Returns the tally for this `sync_every`. The first use of an interval creates the tally and starts its sync
    /// task.
    fn tally(self: &Arc<Self>, every: SyncEvery) -> &Arc<ShardedTally> {
        let start = || {
            let tally = Arc::new(ShardedTally::new(every, self.is_cluster, self.clock.clone()));
            self.runtime.spawn(sync::run(Arc::downgrade(self), tally.clone()));
            Box::new(TallyNode { tally, next: TallyList::new() })
        };
        let mut place = &self.tallies;
        loop {
            let node = place.get_or_init(start);
            if node.tally.every == every {
                return &node.tally;
            }
            place = &node.next;
        }
    }

    fn all_tallies(&self) -> impl Iterator<Item = &Arc<ShardedTally>> {
        std::iter::successors(self.tallies.get(), |node| node.next.get()).map(|node| &node.tally)
    }

    /// Sends all unsent charges and returns all leases. Used when this node stops. Completes when the store has
    /// answered or failed.
    pub(crate) async fn flush(self: &Arc<Self>) {
        self.return_leases().await;
        for tally in self.all_tallies() {
            sync::sync(self, tally).await;
        }
    }

    fn count_overshoot(&self, key: &[u8], tokens: u64) {
        if tokens == 0 {
            return;
        }
        let (domain, rule) = rule_of_key(key);
        let mut overshoot = self.overshoot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut name = (String::from_utf8_lossy(domain).into_owned(), rule.to_owned());
        if overshoot.len() >= MAX_OVERSHOOT_RULES && !overshoot.contains_key(&name) {
            // No real domain has an empty name.
            name = (String::new(), "other".to_owned());
        }
        let count = overshoot.entry(name).or_default();
        *count = count.saturating_add(tokens);
    }

    /// Returns the statistics.
    pub(crate) fn stats(&self) -> SharingStats {
        let overshoot = self.overshoot.lock().unwrap_or_else(PoisonError::into_inner);
        let overshoot = overshoot.iter().map(|((domain, rule), tokens)| Overshoot {
            domain: domain.clone(),
            rule: rule.clone(),
            tokens: *tokens,
        });
        let (leased_keys, leased_tokens) = self.leases.count_held();
        let mut shared =
            SharingStats { overshoot: overshoot.collect(), leased_keys, leased_tokens, ..SharingStats::default() };
        shared.overshoot.sort_unstable_by(|one, other| (&one.domain, &one.rule).cmp(&(&other.domain, &other.rule)));
        for tally in self.all_tallies() {
            for shard in 0..tally.shards.len() as u8 {
                let shard = tally.lock(shard);
                shared.views += shard.tally.len();
                shared.dropped = shared.dropped.saturating_add(shard.tally.dropped_tokens());
            }
        }
        shared
    }
}

/// Statistics about the keys that a node decides locally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharingStats {
    /// Tokens that this node admitted beyond a limit under `consistency: eventual`, detected by merging. Sorted by
    /// domain and rule.
    pub overshoot: Vec<Overshoot>,
    /// Number of keys with a local view.
    pub views: usize,
    /// Tokens taken by this node that are no longer sent to the store, because too many charges were unsent or the
    /// charges became too old.
    pub dropped: u64,
    /// Number of keys with held or unreported leases.
    pub leased_keys: usize,
    /// Unspent tokens in held leases.
    pub leased_tokens: u64,
}

/// The overshoot of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overshoot {
    /// The rule's domain.
    pub domain: String,
    /// The rule's id.
    pub rule: String,
    /// Tokens admitted beyond the limit.
    pub tokens: u64,
}
