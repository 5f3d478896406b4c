//! Syncs the views of `consistency: eventual` with the store.
//!
//! A payload is frozen when it is sent, and sent again under the same sequence number until the store answers. The
//! script counts each payload exactly once. Keys that were used but not charged are read, so that this node learns
//! about the charges of other nodes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tollgate_core::{Ask, Cost, Limits, Nanos, Now};
use tollgate_engine::store::{Charge, Consistency, StoreError, StoreVerb};
use tollgate_share::tally::{Key, MAX_ITEMS, Payload};

use super::Sharing;
use super::eventual::{ShardedTally, TallyShard};
use super::states::{StateQuery, read_states};
use crate::batcher::ReplyPart;
use crate::lanes::HASH_TAGS;
use crate::params::EncodedLimits;
use crate::request::{GroupKind, MergeHead, QueuedCharge, QueuedGroup, Route, spread_number};
use crate::store::Servers;

/// Minimum time between two syncs.
const MIN_SYNC_INTERVAL: Duration = Duration::from_millis(1);
/// Interval at which idle views are evicted.
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// Maximum number of consecutive rounds in one sync, if not all messages fit into one round.
const MAX_ROUNDS: usize = 64;
/// Time after which an unanswered payload is dropped. The store forgets the node's sequence number an hour later, at
/// the earliest.
const GIVE_UP_AFTER: Nanos = Nanos::from_secs(23 * 3_600);

/// Syncs the keys of a tally until the store is dropped.
pub(super) async fn run(sharing: Weak<Sharing>, tally: Arc<ShardedTally>) {
    let every = Duration::from(tally.every.length());
    let (jitter, mut turn) = (RandomState::new(), 0_u64);
    let (mut last, mut forgotten) = (Instant::now(), Instant::now());
    loop {
        turn += 1;
        // Waits for 90 to 110 % of the interval, so that nodes do not sync at the same time.
        let percent = 90 + jitter.hash_one(turn) % 21;
        tokio::select! {
            () = sleep(every * percent as u32 / 100) => {}
            () = tally.urgent.notified() => sleep_until(last + MIN_SYNC_INTERVAL).await,
        }
        let Some(sharing) = sharing.upgrade() else { return };
        sync(&sharing, &tally).await;
        last = Instant::now();
        if forgotten.elapsed() >= FORGET_EVERY {
            forgotten = last;
            for shard in 0..tally.shards.len() as u8 {
                let at = tally.now();
                tally.lock(shard).tally.forget_idle(at);
            }
        }
    }
}

/// Encoded limits by the memory address of the limits. The messages keep the limits alive, so the addresses stay
/// unique.
type KnownLimits = HashMap<usize, Arc<EncodedLimits>>;

fn limits_address(limits: &Arc<Limits>) -> usize {
    Arc::as_ptr(limits).addr()
}

/// A message for one shard.
enum Message {
    /// A payload, and whether it is recent enough to take balances below zero.
    Merge(Payload, bool),
    Read(Key, Arc<Limits>),
}

/// Sends all unsent charges of a tally and reads all its used keys. Stops early if the store does not answer.
pub(super) async fn sync(sharing: &Sharing, tally: &ShardedTally) {
    let Some(servers) = sharing.servers.upgrade() else { return };
    let _in_turn = tally.syncing.lock().await;
    TallySync { sharing, servers: &servers, tally }.run().await;
}

/// A sync of one tally with the store.
struct TallySync<'a> {
    sharing: &'a Sharing,
    servers: &'a Servers,
    tally: &'a ShardedTally,
}

impl TallySync<'_> {
    async fn run(&self) {
        let Self { sharing, servers, tally } = self;
        for _ in 0..MAX_ROUNDS {
            let mut encoded = KnownLimits::new();
            let (mut messages, mut groups, mut is_full) = (Vec::new(), Vec::new(), false);
            for shard in 0..tally.shards.len() as u8 {
                let before = messages.len();
                is_full |= collect_messages(&mut tally.lock(shard), tally.now(), shard, &mut messages);
                for (_, message) in &messages[before..] {
                    groups.push(self.encode(shard, message, &mut encoded));
                }
            }
            // Encoding cannot fail: all limits with debt were encoded before they were used.
            let groups: Vec<QueuedGroup> = groups.into_iter().flatten().collect();
            if groups.is_empty() || groups.len() != messages.len() {
                return;
            }
            let replies = servers.send(&sharing.config, groups, Instant::now() + sharing.config.deadline).await;
            let mut failed = false;
            for ((shard, message), reply) in messages.into_iter().zip(replies) {
                match reply {
                    Ok(part) => self.apply(shard, &message, &part, &encoded),
                    Err(_) => failed = true,
                }
            }
            if failed || !is_full {
                return;
            }
        }
    }

    fn encode(&self, shard: u8, message: &Message, known: &mut KnownLimits) -> Result<QueuedGroup, StoreError> {
        let lane = self.servers.lane_of_shard(shard);
        let route = Route { lane, ..Route::default() };
        let mut charge = |verb: StoreVerb, key: &Key, limits: &Arc<Limits>, ask: Ask| {
            let encoded = match known.get(&limits_address(limits)) {
                Some(encoded) => encoded.clone(),
                None => {
                    let encoded = EncodedLimits::new(limits).map_err(|why| StoreError::Rejected { why })?;
                    known.entry(limits_address(limits)).or_insert(Arc::new(encoded)).clone()
                }
            };
            let charge = charge_of(key, limits, ask);
            let name = self.servers.key_name(&self.sharing.config.namespace, key, lane);
            Ok(QueuedCharge::new(verb, &charge, 0, name, encoded))
        };
        Ok(match message {
            Message::Read(key, limits) => {
                let charges = vec![charge(StoreVerb::Peek, key, limits, Ask::Exactly(Cost::ZERO))?];
                QueuedGroup { charges, route, kind: GroupKind::Charges, unsent: None }
            }
            Message::Merge(payload, is_recent) => {
                let at = self.tally.now();
                let ask = |cost| if *is_recent { Ask::Regardless(cost) } else { Ask::UpTo(cost) };
                let items = payload.items.iter();
                let charges = items
                    .map(|item| charge(StoreVerb::Check, &item.key, &item.limits, ask(Cost::new(item.cost))))
                    .collect::<Result<_, StoreError>>()?;
                let counter = self.counter_key(shard, lane);
                let age = payload.charged_age(at).as_nanos() / 1_000;
                let kind = GroupKind::Merge(MergeHead { counter, sequence: payload.sequence, age });
                QueuedGroup { charges, route, kind, unsent: None }
            }
        })
    }

    /// Returns the key of this node's merge counter. No limit key has this name: without a cluster, limit keys contain
    /// braces; in a cluster, the part after the tag starts differently.
    fn counter_key(&self, shard: u8, lane: u8) -> Vec<u8> {
        let Self { sharing, tally, .. } = self;
        let (namespace, node, every) = (&sharing.config.namespace, &sharing.node, tally.every.length());
        let tag = if sharing.is_cluster {
            format!("{{{}}}", HASH_TAGS[usize::from(lane) % HASH_TAGS.len()])
        } else {
            String::new()
        };
        format!("{namespace}:{tag}merged:{node}:{every}:{shard}").into_bytes()
    }

    /// Applies the store's answer to a message.
    fn apply(&self, shard: u8, message: &Message, part: &ReplyPart, encoded: &KnownLimits) {
        let mut shard = self.tally.lock(shard);
        let at = self.tally.now();
        let time = shard.record_store_time(part, at);
        let state = |limits: &'_ Arc<Limits>| encoded.get(&limits_address(limits)).cloned();
        match message {
            Message::Read(key, limits) => {
                let Some(encoded) = state(limits) else { return };
                let asked = StateQuery { limits, encoded: &encoded, contains_taken: false };
                let Ok(mut states) = read_states(part.bytes(), &[asked], part.now) else { return };
                if let Some(Some(own)) = states.pop() {
                    shard.tally.learn(key, &Arc::new(own.limits), &own.words, &now_of(key, time), at);
                }
            }
            Message::Merge(payload, is_recent) => {
                shard.tally.acknowledge(payload.sequence);
                // The store had already counted this payload, so the reply contains no states.
                if part.bytes().is_empty() {
                    return;
                }
                let contains_taken = !is_recent;
                let known: Option<Vec<_>> = payload.items.iter().map(|item| state(&item.limits)).collect();
                let Some(known) = known else { return };
                let asked: Vec<_> = payload
                    .items
                    .iter()
                    .zip(&known)
                    .map(|(item, encoded)| StateQuery { limits: &item.limits, encoded, contains_taken })
                    .collect();
                let Ok(states) = read_states(part.bytes(), &asked, part.now) else { return };
                for (item, own) in payload.items.iter().zip(states) {
                    let Some(own) = own else { continue };
                    let now = now_of(&item.key, time);
                    let limits = Arc::new(own.limits);
                    let excess = shard.tally.learn_merged(&item.key, item.cost, &limits, &own.words, &now, at);
                    self.sharing.count_overshoot(&item.key, excess);
                }
            }
        }
    }
}

/// Collects the messages that a shard has to send. Returns whether more messages remain.
fn collect_messages(shard: &mut TallyShard, at: u64, number: u8, messages: &mut Vec<(u8, Message)>) -> bool {
    if shard.tally.payload(at).is_some_and(|payload| payload.age(at) > GIVE_UP_AFTER) {
        shard.tally.drop_payload();
    }
    let payload = shard.tally.payload(at).cloned();
    let mut is_full = shard.tally.is_behind();
    if let Some(payload) = payload {
        let is_recent = payload.is_recent(at);
        messages.push((number, Message::Merge(payload, is_recent)));
    }
    let reads = shard.tally.keys_to_read(MAX_ITEMS);
    is_full |= reads.len() >= MAX_ITEMS;
    messages.extend(reads.into_iter().map(|(key, limits)| (number, Message::Read(key, limits))));
    is_full
}

/// Returns a charge for a sync, which belongs to no request.
pub(super) fn charge_of<'a>(key: &'a [u8], limits: &'a Limits, ask: Ask) -> Charge<'a> {
    let consistency = Consistency::Strict;
    Charge { key, limits_id: 0, limits, earlier: &[], ask, stamps: None, windows: &[], consistency }
}

/// Returns the store time as a `Now`, with the key's spread.
pub(super) fn now_of(key: &[u8], time: u64) -> Now<'static> {
    Now::at(time).with_spread(spread_number(key).wrapping_mul(1_000))
}
