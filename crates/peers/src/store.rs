//! The store: decides charges locally, or asks the key's home.
//!
//! This node's table decides charges of `eventual` rules and charges whose home is this node. Other charges are sent to
//! their home as an *ask*, which is written at once unless an earlier ask is unanswered (see `outbox.rs`).

mod groups;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use tollgate::fingerprint::{Fingerprint, Secret};
use tollgate_core::{Ask as Amount, Cost, Limits, Stamps, Time, Wall};
use tollgate_engine::store::{Answers, Batch, Charge as EngineCharge, Consistency, Group, StoreError, StoreVerb};
use tollgate_engine::{Exactness, Store};

use crate::NodeId;
use crate::ask::{Answer, Ask, AskCharge, ChargeAnswer, SingleAsk, UndecidedReason};
use crate::config::Config;
use crate::homes::{Hop, Route};
use crate::hub::{Counters, Shared, Stage};
use crate::node;
use crate::pending_asks::{AskError, PendingAsk};
use crate::status::NodeStatus;
use crate::table::{Charge, SharedLimits, Verb, check_limits};
use crate::tls::LinkTls;
use crate::wire::{self, Frame};

/// Maximum time for leaving: the mesh's own timeout plus a margin.
const MAX_LEAVE_TIME: Duration = Duration::from_secs(3);
/// Time for links to write their queues when the node stops.
const MAX_CLOSE_TIME: Duration = Duration::from_millis(500);

/// A store that keeps its state in the memory of all cluster nodes. The nodes exchange their charges.
pub struct PeerStore {
    shared: Arc<Shared>,
    thread: Mutex<Option<PeersThread>>,
}

struct PeersThread {
    stop: oneshot::Sender<()>,
    handle: JoinHandle<()>,
}

/// Ends all asks when the peers thread ends, even by a panic. The peers thread enforces the deadlines, so the callers
/// would otherwise wait forever.
struct EndAsksOnDrop(Arc<Shared>);

impl Drop for EndAsksOnDrop {
    fn drop(&mut self) {
        self.0.asks.close();
    }
}

impl PeerStore {
    /// Starts a thread that listens for other nodes and dials them. The thread ends when the store is dropped.
    ///
    /// # Errors
    /// Fails if the node cannot listen or the thread cannot be started.
    pub fn start(mut config: Config) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        config.set_listen_port(listener.local_addr()?.port());
        let node = NodeId(getrandom::u64().map_err(io::Error::other)?);
        let tls = config.secret.as_ref().map(LinkTls::new).transpose().map_err(io::Error::other)?;
        let secret = Secret::from_points(config.fingerprint_points());
        let shared = Arc::new(Shared::new(config, node, secret));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let running = shared.clone();
        let run = move || {
            let _end = EndAsksOnDrop(running.clone());
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                // An error means that the sender was dropped, which also stops the thread.
                node::run(running, listener, tls, async move { drop(stopped.await) }).await;
            });
            runtime.shutdown_background();
        };
        let handle = std::thread::Builder::new().name("tollgate-peers".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Mutex::new(Some(PeersThread { stop, handle })) })
    }

    /// Returns a receiver of lifecycle stages.
    pub fn watch_stage(&self) -> watch::Receiver<Stage> {
        self.shared.stage.subscribe()
    }

    /// Waits until the node has joined: another node's states have arrived, or no node sent them in time.
    pub async fn wait_until_joined(&self) -> Stage {
        let mut stage = self.watch_stage();
        // The sender lives as long as the store.
        stage.wait_for(|stage| *stage != Stage::Joining).await.map_or(Stage::Left, |stage| *stage)
    }

    /// Leaves the cluster: the node stops being a home and waits until the other nodes acknowledge its charges. Then
    /// closes all links. Returns after at most 3.5 seconds.
    pub async fn leave(&self) {
        self.shared.leave();
        let mut stage = self.watch_stage();
        // On a timeout, the other nodes detect the loss themselves.
        let _ = timeout(MAX_LEAVE_TIME, stage.wait_for(|stage| *stage == Stage::Left)).await;
        self.shared.close();
        let _ = timeout(MAX_CLOSE_TIME, async {
            while !self.shared.outboxes.load().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Returns the number of nodes that share the limits, including this node.
    pub fn node_count(&self) -> u32 {
        self.shared.homes.load().node_count()
    }

    /// Returns whether this node sees a majority of the nodes. Otherwise `on_fault` applies to `strict` rules.
    pub fn has_majority(&self) -> bool {
        self.shared.homes.load().has_majority()
    }

    /// Sets the revision of the active rules and the first bytes of their checksum. Other nodes show both values.
    pub fn set_rules(&self, revision: u64, checksum: u64) {
        *self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner) = (revision, checksum);
    }

    /// Returns the status of this node and its peers.
    pub fn status(&self) -> NodeStatus {
        self.shared.status()
    }

    /// Determines the limits and the deciding node of each charge.
    fn resolve_charges<'a>(&self, group: &Group<'a>) -> Result<SmallVec<[ResolvedCharge<'a>; 1]>, StoreError> {
        let homes = self.shared.homes.load();
        let table = &self.shared.table;
        let part = |charge: &'a EngineCharge<'a>| {
            let limits =
                table.intern_limits(charge.limits_id, charge.limits).map_err(|why| StoreError::Rejected { why })?;
            let key = table.fingerprint(charge.key);
            let at = match is_eventual(charge) {
                true => None,
                false => match homes.route(key, Hop::Origin) {
                    Route::Here => None,
                    Route::To(node) => Some(node),
                    Route::Unavailable(why) => {
                        return Err(StoreError::Unavailable { why: why.as_str().to_owned() });
                    }
                },
            };
            Ok(ResolvedCharge { key, limits, at, charge })
        };
        group.charges.iter().map(part).collect()
    }

    /// Decides charges in this node's table.
    fn decide_here(
        &self,
        verb: Verb,
        parts: &[&ResolvedCharge<'_>],
        mut each: impl FnMut(&ResolvedCharge<'_>, ChargeAnswer),
    ) -> Time<Wall> {
        let now = self.shared.now();
        let charges: Vec<Charge<'_>> = parts.iter().map(|part| part.to_table_charge()).collect();
        let decided = self.shared.table.decide(&now, verb, &charges, |index, decided| {
            let mut answer = ChargeAnswer::new(decided, charges[index].ask.cost());
            if verb == Verb::Peek {
                answer.clear_taken();
            }
            each(parts[index], answer);
        });
        if decided.urgent {
            self.shared.urgent.notify_one();
        }
        if let [part] = parts
            && is_eventual(part.charge)
        {
            self.shared.table.record_limits_id(part.key, &part.limits, part.charge.limits_id);
        }
        now.wall()
    }

    /// Fast path: decides a group of one eventual charge. Returns `None` if the fast path does not apply.
    fn try_decide_here(&self, charge: &EngineCharge<'_>, answers: &mut Answers) -> Option<bool> {
        let (Consistency::Eventual(_), Amount::Exactly(cost)) = (charge.consistency, charge.ask) else { return None };
        let (table, now) = (&self.shared.table, self.shared.now());
        let (outcome, report, urgent) = table.try_check(&now, table.fingerprint(charge.key), charge.limits_id, cost)?;
        let (taken, stamps) =
            if outcome.is_admitted() { (cost, Stamps::default()) } else { (Cost::ZERO, Stamps::of_refusal_by(0)) };
        answers.push_answer_of_exactness(Exactness::Eventual, outcome, taken, stamps, [report]);
        answers.end_group(now.wall());
        if urgent {
            self.shared.urgent.notify_one();
        }
        Some(outcome.is_admitted())
    }

    /// Sends charges to their home.
    fn ask(
        &self,
        node: NodeId,
        verb: Verb,
        charges: Vec<AskCharge>,
        deadline: Instant,
    ) -> Result<PendingAsk<'_>, StoreError> {
        self.send_ask(node, deadline, |id, to| {
            wire::encode(&Frame::Ask(Ask { id, hop: Hop::FromOrigin, verb, charges }), to);
        })
    }

    /// Sends a group with one home to this home.
    fn ask_group(
        &self,
        node: NodeId,
        verb: Verb,
        parts: &[ResolvedCharge<'_>],
        deadline: Instant,
    ) -> Result<PendingAsk<'_>, StoreError> {
        let [part] = parts else {
            return self.ask(node, verb, parts.iter().map(ResolvedCharge::to_ask_charge).collect(), deadline);
        };
        let EngineCharge { ask: amount, stamps, .. } = *part.charge;
        let (key, limits, stamps) = (part.key, &part.limits.encoded()[..], stamps.copied());
        self.send_ask(node, deadline, |id, to| {
            wire::encode_single_ask(&SingleAsk { id, hop: Hop::FromOrigin, verb, key, limits, amount, stamps }, to);
        })
    }

    /// Sends an ask; `encode` appends its frame.
    fn send_ask(
        &self,
        node: NodeId,
        deadline: Instant,
        encode: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<PendingAsk<'_>, StoreError> {
        let unavailable = |why: &str| StoreError::Unavailable { why: why.to_owned() };
        let outboxes = self.shared.outboxes.load();
        let outbox = outboxes.get(&node).ok_or_else(|| unavailable("no link to the key's home"))?;
        let asked = self.shared.asks.register(node, deadline);
        let asked = asked.ok_or_else(|| unavailable("too many requests in flight to peers"))?;
        if !outbox.push_ask(asked.is_only, |to| encode(asked.id, to)) {
            return Err(unavailable("the link queue to the key's home is full"));
        }
        Counters::add(&self.shared.counters.asked, 1);
        Ok(asked)
    }

    /// Waits for the answer to an ask with `count` charges, and calls `each` for every charge in order. `each` is called
    /// only if all charges were decided, and must not wait.
    async fn wait_for_answer(
        &self,
        asked: PendingAsk<'_>,
        verb: Verb,
        count: usize,
        mut each: impl FnMut(&ChargeAnswer),
    ) -> Result<(), StoreError> {
        let unknown = |why: String| StoreError::Unknown { why };
        let read = |answer: Result<&mut Answer, AskError>| match answer.map(|answer| &mut answer.result) {
            Ok(Ok(charges)) if charges.len() == count => {
                for charge in charges {
                    if verb == Verb::Peek {
                        charge.clear_taken();
                    }
                    each(charge);
                }
                Ok(())
            }
            Ok(Ok(_)) => Err(unknown("the key's home answered the wrong number of charges".to_owned())),
            Ok(Err(UndecidedReason::Minority)) => {
                let why = "the key's home does not see a majority of the nodes".to_owned();
                Err(StoreError::Unavailable { why })
            }
            Ok(Err(UndecidedReason::NoHome)) => {
                Err(StoreError::Unavailable { why: "no home for the key is ready".to_owned() })
            }
            Ok(Err(UndecidedReason::BadLimits)) => {
                Err(StoreError::Rejected { why: "the key's home cannot share the key's limits".to_owned() })
            }
            Err(AskError::Lost) => Err(unknown("the link to the key's home ended".to_owned())),
            Err(AskError::Expired) => {
                Err(unknown(format!("no answer from the key's home within {:?}", self.shared.config.deadline)))
            }
        };
        asked.answer(read).await
    }

    async fn answer(&self, batch: Batch<'_>, answers: &mut Answers) {
        let deadline = Instant::now() + self.shared.config.deadline;
        let mut steps: SmallVec<[GroupProgress<'_>; 1]> = SmallVec::new();
        for group in batch.groups {
            let step = self.begin_group(group, deadline, steps.is_empty().then_some(&mut *answers)).await;
            steps.extend(step);
        }
        for step in steps {
            match step {
                GroupProgress::Decided(decided) => decided.write(answers),
                GroupProgress::Failed(error) => answers.fail_group(error),
                GroupProgress::Asked(asked, verb, count) => {
                    let waited = self
                        .wait_for_answer(asked, verb, count, |charge| {
                            push_charge_answer(answers, Exactness::Exact, charge);
                        })
                        .await;
                    match waited {
                        Ok(()) => answers.end_group(self.shared.now().wall()),
                        Err(error) => answers.fail_group(error),
                    }
                }
            }
        }
    }

    /// Starts deciding a group. `answers` is present if no earlier group is pending. Returns `None` if the group was
    /// decided and its answer was written to `answers`.
    async fn begin_group<'s>(
        &'s self,
        group: &Group<'_>,
        deadline: Instant,
        answers: Option<&mut Answers>,
    ) -> Option<GroupProgress<'s>> {
        let parts = match self.resolve_charges(group) {
            Ok(parts) => parts,
            Err(error) => return Some(GroupProgress::Failed(error)),
        };
        let verb = match group.verb {
            StoreVerb::Check => Verb::Check,
            // A peer store has no leases to renew.
            StoreVerb::Peek | StoreVerb::Renew => Verb::Peek,
            StoreVerb::Refund => Verb::Refund,
            StoreVerb::Reset => Verb::Reset,
        };
        let first = parts.first().and_then(|part| part.at);
        if parts.iter().any(|part| part.at != first) {
            return Some(match self.decide_in_order(verb, &parts, deadline).await {
                Ok(decided) => GroupProgress::Decided(decided),
                Err(error) => GroupProgress::Failed(error),
            });
        }
        if let Some(node) = first {
            return Some(match self.ask_group(node, verb, &parts, deadline) {
                Ok(asked) => GroupProgress::Asked(asked, verb, parts.len()),
                Err(error) => GroupProgress::Failed(error),
            });
        }
        let here: Vec<&ResolvedCharge<'_>> = parts.iter().collect();
        let Some(answers) = answers else {
            let mut decided = Vec::with_capacity(here.len());
            let at = self.decide_here(verb, &here, |part, answer| decided.push((part.exactness(), answer)));
            return Some(GroupProgress::Decided(GroupDecision { answers: decided, at }));
        };
        let at = self.decide_here(verb, &here, |part, answer| push_charge_answer(answers, part.exactness(), &answer));
        answers.end_group(at);
        None
    }
}

/// Returns whether the charge's rule is `eventual`, so that this node's own state decides.
fn is_eventual(charge: &EngineCharge<'_>) -> bool {
    matches!(charge.consistency, Consistency::Eventual(_))
}

/// A charge with its resolved limits.
struct ResolvedCharge<'a> {
    key: Fingerprint,
    limits: Arc<SharedLimits>,
    /// The node that decides the charge; `None` for this node.
    at: Option<NodeId>,
    charge: &'a EngineCharge<'a>,
}

impl ResolvedCharge<'_> {
    fn exactness(&self) -> Exactness {
        if is_eventual(self.charge) { Exactness::Eventual } else { Exactness::Exact }
    }

    fn to_table_charge(&self) -> Charge<'_> {
        let EngineCharge { ask, stamps, .. } = *self.charge;
        Charge { key: self.key, limits: &self.limits, ask, stamps: stamps.copied() }
    }

    fn to_ask_charge(&self) -> AskCharge {
        let EngineCharge { ask, stamps, .. } = *self.charge;
        AskCharge { key: self.key, limits: self.limits.encoded().clone(), amount: ask, stamps: stamps.copied() }
    }
}

/// Progress of a group in a batch.
enum GroupProgress<'a> {
    Decided(GroupDecision),
    Asked(PendingAsk<'a>, Verb, usize),
    Failed(StoreError),
}

struct GroupDecision {
    answers: Vec<(Exactness, ChargeAnswer)>,
    at: Time<Wall>,
}

impl GroupDecision {
    fn write(self, answers: &mut Answers) {
        self.answers.iter().for_each(|(exactness, answer)| push_charge_answer(answers, *exactness, answer));
        answers.end_group(self.at);
    }
}

fn push_charge_answer(answers: &mut Answers, exactness: Exactness, answer: &ChargeAnswer) {
    let reports = answer.reports.iter().copied();
    answers.push_answer_of_exactness(exactness, answer.outcome, answer.taken, answer.stamps, reports);
}

impl Store for PeerStore {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        self.answer(batch, answers)
    }

    fn try_decide_shared(&self, charge: &EngineCharge<'_>, answers: &mut Answers) -> Option<bool> {
        self.try_decide_here(charge, answers)
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        check_limits(limits)
    }

    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        match consistency {
            Consistency::Strict | Consistency::Eventual(_) => Ok(()),
            Consistency::Leased => Err("`consistency: leased` needs a Redis store; use strict or eventual".to_owned()),
        }
    }

    fn overflowed(&self) -> u64 {
        self.shared.table.counts().overflowed
    }
}

impl Drop for PeerStore {
    fn drop(&mut self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(PeersThread { stop, handle }) = thread {
            // The thread may already have ended.
            let _ = stop.send(());
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for PeerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerStore").field("shared", &self.shared).finish_non_exhaustive()
    }
}
