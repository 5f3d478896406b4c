//! Decisions that this node makes without asking the store for every request: those about keys of rules whose
//! `consistency` is not `strict`.
//!
//! | file | holds |
//! |---|---|
//! | `groups.rs` | groups of charges, some of which are decided here and some by the store |
//! | `eventual.rs` | the local views that decide keys of `consistency: eventual` |
//! | `sync.rs` | the task that reports what was taken to the store, and learns what others took |
//! | `leased.rs` | the leases that decide keys of `consistency: leased` |
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
use tollgate_engine::store::{Consistency, Group, SyncEvery, rule_of_key};

use crate::config::Config;
use crate::store::Servers;
use eventual::Cycle;
use leased::Leases;

/// The most rules that overshoot is counted for separately: the first ones. That of others is counted together.
const MAX_RULES: usize = 1_000;

/// The keys that this node decides.
pub(crate) struct Sharing {
    servers: Weak<Servers>,
    config: Arc<Config>,
    is_cluster: bool,
    /// Where the tasks run: that of the connections, which outlives the requests.
    runtime: Handle,
    /// Random for each process, so that no two have the same counters of merges.
    node: String,
    cycles: CycleList,
    leases: Leases,
    /// Tokens admitted beyond a limit, by domain and rule.
    overshoot: Mutex<HashMap<(String, String), u64>>,
}

/// The cycles, a list that only grows: finding one takes no lock. Rules have few different intervals.
type CycleList = OnceLock<Box<CycleNode>>;

struct CycleNode {
    cycle: Arc<Cycle>,
    next: CycleList,
}

/// Returns whether a group has a charge that the store does not decide by itself.
pub(crate) fn is_shared(group: &Group<'_>) -> bool {
    group.charges.iter().any(|charge| charge.consistency != Consistency::Strict)
}

impl Sharing {
    /// Creates it without keys. Must be called within a tokio runtime.
    pub(crate) fn new(servers: &Arc<Servers>, config: &Arc<Config>) -> Arc<Self> {
        Arc::new(Self {
            servers: Arc::downgrade(servers),
            config: config.clone(),
            is_cluster: config.cluster.is_some(),
            runtime: Handle::current(),
            node: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
            cycles: CycleList::new(),
            leases: Leases::new(config.cluster.is_some()),
            overshoot: Mutex::default(),
        })
    }

    /// Returns the keys with this `sync_every`; with the first use of an interval, the task that syncs them is started.
    fn cycle(self: &Arc<Self>, every: SyncEvery) -> &Arc<Cycle> {
        let start = || {
            let cycle = Arc::new(Cycle::new(every, self.is_cluster));
            self.runtime.spawn(sync::run(Arc::downgrade(self), cycle.clone()));
            Box::new(CycleNode { cycle, next: CycleList::new() })
        };
        let mut place = &self.cycles;
        loop {
            let node = place.get_or_init(start);
            if node.cycle.every == every {
                return &node.cycle;
            }
            place = &node.next;
        }
    }

    fn all_cycles(&self) -> impl Iterator<Item = &Arc<Cycle>> {
        std::iter::successors(self.cycles.get(), |node| node.next.get()).map(|node| &node.cycle)
    }

    /// Sends what is unsent and returns all leases, for a node that stops. Returns when the store has answered or failed.
    pub(crate) async fn flush(self: &Arc<Self>) {
        self.return_leases().await;
        for cycle in self.all_cycles() {
            self.sync(cycle).await;
        }
    }

    fn count_overshoot(&self, key: &[u8], tokens: u64) {
        if tokens == 0 {
            return;
        }
        let (domain, rule) = rule_of_key(key);
        let mut overshoot = self.overshoot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut name = (String::from_utf8_lossy(domain).into_owned(), rule.to_owned());
        if overshoot.len() >= MAX_RULES && !overshoot.contains_key(&name) {
            // No domain has an empty name.
            name = (String::new(), "other".to_owned());
        }
        let count = overshoot.entry(name).or_default();
        *count = count.saturating_add(tokens);
    }

    /// Returns the counts.
    pub(crate) fn read(&self) -> Shared {
        let overshoot = self.overshoot.lock().unwrap_or_else(PoisonError::into_inner);
        let overshoot = overshoot.iter().map(|((domain, rule), tokens)| Overshoot {
            domain: domain.clone(),
            rule: rule.clone(),
            tokens: *tokens,
        });
        let (leased_keys, leased_tokens) = self.leases.held();
        let mut shared = Shared { overshoot: overshoot.collect(), leased_keys, leased_tokens, ..Shared::default() };
        shared.overshoot.sort_unstable_by(|one, other| (&one.domain, &one.rule).cmp(&(&other.domain, &other.rule)));
        for cycle in self.all_cycles() {
            for lane in 0..cycle.lanes.len() as u8 {
                let lane = cycle.lock(lane);
                shared.views += lane.tally.len();
                shared.dropped = shared.dropped.saturating_add(lane.tally.dropped());
            }
        }
        shared
    }
}

/// What a node decides without asking the store for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Tokens that this node admitted beyond a limit under `consistency: eventual`, as merging showed; by rule, in order of names.
    pub overshoot: Vec<Overshoot>,
    /// The number of keys that are decided by what this node knows of them.
    pub views: usize,
    /// Tokens that this node took and could not count in the store, because there were too many or they became too old.
    pub dropped: u64,
    /// The number of keys of which this node holds leases, or has spent some of them and not reported it.
    pub leased_keys: usize,
    /// Tokens that this node holds in leases.
    pub leased_tokens: u64,
}

/// The overshoot of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overshoot {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub rule: String,
    /// The tokens.
    pub tokens: u64,
}
