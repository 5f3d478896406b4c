//! `consistency: eventual`: this node decides by its views of keys, and syncs them with the store.
//!
//! The state machine is [`tollgate_share::tally`]. Here are its clock, its locks and its messages. Each lane has a tally of its own,
//! so that requests for different keys rarely wait for each other, and each `sync_every` has its own set of lanes and its own
//! task.

use std::collections::hash_map;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate_core::{Ask, Cost, Limits, Now, Outcome, Stamps, Time, Verdict, Wall};
use tollgate_engine::Standing;
use tollgate_engine::store::{Answers, Charge, StoreError, SyncEvery};
use tollgate_share::tally::{Bounds, RECENT, Tally, Unread, with_debt_of};

use crate::batcher::ReplyPart;
use crate::lanes::{LANES, part_of};
use crate::params::EncodedLimits;
use crate::request::spread;

/// The most keys with a view, over all lanes of a cycle.
const MAX_KEYS: usize = 1 << 20;
/// The most unsent entries, over all lanes of a cycle.
const MAX_UNSENT: usize = 1 << 18;
/// The most limits that a lane keeps encoded.
const MAX_ENCODED: usize = 1 << 10;

/// The keys of all rules with the same `sync_every`.
pub(super) struct Cycle {
    pub(super) every: SyncEvery,
    pub(super) lanes: Box<[Mutex<Lane>]>,
    /// Notified when something has to be sent at once.
    pub(super) urgent: Notify,
    origin: Instant,
    /// Held while exchanging, so that a payload is sent by one task at a time.
    pub(super) syncing: tokio::sync::Mutex<()>,
}

/// The keys of one lane.
pub(super) struct Lane {
    pub(super) tally: Tally,
    /// The store's time less this node's, in nanoseconds, by the last answer.
    offset: i128,
    indebted: IndebtedLimits,
}

/// Limits, and the same with debt, which views and the store decide by.
pub(super) struct Indebted {
    limits: Limits,
    pub(super) with_debt: Arc<Limits>,
    pub(super) encoded: Arc<EncodedLimits>,
}

impl Indebted {
    fn new(limits: &Limits) -> Result<Self, StoreError> {
        let why = || StoreError::Rejected { why: "these limits cannot be merged".to_owned() };
        let with_debt = with_debt_of(limits, |limits| EncodedLimits::new(limits).is_ok()).ok_or_else(why)?;
        let encoded = EncodedLimits::new(&with_debt).map_err(|why| StoreError::Rejected { why })?;
        Ok(Self { limits: limits.clone(), with_debt: Arc::new(with_debt), encoded: Arc::new(encoded) })
    }
}

/// The limits with debt, by the id of those without.
#[derive(Default)]
struct IndebtedLimits(FxHashMap<u32, Arc<Indebted>>);

impl IndebtedLimits {
    fn of(&mut self, charge: &Charge<'_>) -> Result<&Arc<Indebted>, StoreError> {
        if self.0.len() >= MAX_ENCODED && !self.0.contains_key(&charge.limits_id) {
            self.0.clear();
        }
        match self.0.entry(charge.limits_id) {
            hash_map::Entry::Occupied(known) if known.get().limits == *charge.limits => Ok(known.into_mut()),
            entry => Ok(entry.insert_entry(Arc::new(Indebted::new(charge.limits)?)).into_mut()),
        }
    }
}

impl Lane {
    /// Returns the store's time as this node estimates it.
    fn estimate(&self, at: u64) -> u64 {
        u64::try_from(i128::from(at) + self.offset).unwrap_or(0)
    }

    /// Notes the store's time of an answer that arrives at `at`.
    pub(super) fn note_time(&mut self, part: &ReplyPart, at: u64) -> u64 {
        let time = part.now.saturating_mul(1_000);
        self.offset = i128::from(time) - i128::from(at);
        time
    }
}

/// Why a charge was not decided here.
pub(super) enum Undecided {
    /// Its key has to be read first.
    Unread,
    /// It cannot be decided at all.
    Failed(StoreError),
}

fn unread(_: Unread) -> Undecided {
    Undecided::Unread
}

/// What was taken of a key, so that it can be put back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) taken: Cost,
    pub(super) stamps: Stamps,
    pub(super) outcome: Outcome,
    /// The store's time as this node estimates it.
    pub(super) at: Time<Wall>,
}

impl Cycle {
    /// Creates the lanes, as many as there are places where keys are kept.
    pub(super) fn new(every: SyncEvery, is_cluster: bool) -> Self {
        // On one server a lane only divides the work between threads.
        let count = if is_cluster { LANES } else { LANES / 8 };
        let stale_after = every.length().as_nanos().saturating_mul(2).max(RECENT);
        let bounds = Bounds { keys: MAX_KEYS / count, unsent: MAX_UNSENT / count, stale_after };
        let lane = || Mutex::new(Lane { tally: Tally::new(bounds), offset: 0, indebted: IndebtedLimits::default() });
        Self {
            every,
            lanes: (0..count).map(|_| lane()).collect(),
            urgent: Notify::new(),
            origin: Instant::now(),
            syncing: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns this node's time, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        // A view that has to be read again is renewed at 0, so no time is near it.
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1 << 40)
    }

    pub(super) fn lane_of(&self, charge: &Charge<'_>) -> u8 {
        part_of(charge, spread(charge.key), self.lanes.len())
    }

    pub(super) fn lock(&self, lane: u8) -> MutexGuard<'_, Lane> {
        self.lanes[usize::from(lane)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a charge by the view of its key and takes. What is reported about it is added to `answers`.
    pub(super) fn take(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<Taken, Undecided> {
        let spread = spread(charge.key);
        let mut lane = self.lock(part_of(charge, spread, self.lanes.len()));
        let at = self.now();
        let now = Now::at(lane.estimate(at)).with_spread(spread.wrapping_mul(1_000)).with_windows(charge.windows);
        let Lane { tally, indebted, .. } = &mut *lane;
        if let Some(refused) = refuse_debt(tally, charge, &now, at, answers)? {
            return Ok(refused);
        }
        let limits = &indebted.of(charge).map_err(Undecided::Failed)?.with_debt;
        let taken = tally.decide(charge.key, limits, &now, at, charge.ask, |verdict, own, words| {
            report(charge, limits, verdict, own, words, &now, answers)
        });
        self.wake_if_urgent(tally);
        taken.map_err(unread)
    }

    /// Decides a charge of a group that may still be refused: what is taken is sent after [`confirm`](Self::confirm).
    pub(super) fn reserve(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<Taken, Undecided> {
        let (mut lane, at) = (self.lock(self.lane_of(charge)), self.now());
        let now = now_for(charge, lane.estimate(at));
        let Lane { tally, indebted, .. } = &mut *lane;
        if let Some(refused) = refuse_debt(tally, charge, &now, at, answers)? {
            return Ok(refused);
        }
        let limits = &indebted.of(charge).map_err(Undecided::Failed)?.with_debt;
        let taken = tally.reserve(charge.key, limits, &now, at, charge.ask, |verdict, own, words| {
            report(charge, limits, verdict, own, words, &now, answers)
        });
        taken.map_err(unread)
    }

    /// Has a reserved amount sent.
    pub(super) fn confirm(&self, charge: &Charge<'_>, taken: Cost) {
        let mut lane = self.lock(self.lane_of(charge));
        lane.tally.confirm(charge.key, self.now(), taken);
        self.wake_if_urgent(&mut lane.tally);
    }

    /// Gives back a reserved amount.
    pub(super) fn release(&self, charge: &Charge<'_>, taken: Cost, stamps: Stamps) {
        let mut lane = self.lock(self.lane_of(charge));
        let now = now_for(charge, lane.estimate(self.now()));
        lane.tally.release(charge.key, &now, taken, stamps);
    }

    fn wake_if_urgent(&self, tally: &mut Tally) {
        if tally.take_urgent() {
            self.urgent.notify_one();
        }
    }

    /// Returns what [`take`](Self::take) would, and takes nothing.
    pub(super) fn peek(&self, charge: &Charge<'_>, answers: &mut Answers) -> Result<Taken, Undecided> {
        let mut lane = self.lock(self.lane_of(charge));
        let at = self.now();
        let now = now_for(charge, lane.estimate(at));
        let peeked = lane.tally.peek(charge.key, charge.limits, &now, at, charge.ask, |verdict, own, words| {
            report(charge, charge.limits, verdict, own, words, &now, answers)
        });
        peeked.map_err(unread)
    }

    /// Refunds what was taken, as far as it was not sent; returns how much that is.
    pub(super) fn put_back(&self, charge: &Charge<'_>, taken: Cost, stamps: Stamps) -> u64 {
        let mut lane = self.lock(self.lane_of(charge));
        let now = now_for(charge, lane.estimate(self.now()));
        lane.tally.put_back(charge.key, &now, taken, stamps)
    }

    /// Returns whether the key has to be read before it is decided, with its limits to be sent.
    pub(super) fn to_read(&self, charge: &Charge<'_>) -> Result<Option<Arc<Indebted>>, StoreError> {
        let mut lane = self.lock(self.lane_of(charge));
        if !lane.tally.is_unread(charge.key, self.now()) {
            return Ok(None);
        }
        lane.indebted.of(charge).map(|indebted| Some(indebted.clone()))
    }
}

/// Refuses a charge that may go into debt if its rule allows less debt than a view may have.
fn refuse_debt(
    tally: &mut Tally,
    charge: &Charge<'_>,
    now: &Now<'_>,
    at: u64,
    answers: &mut Answers,
) -> Result<Option<Taken>, Undecided> {
    let Ask::Regardless(_) = charge.ask else { return Ok(None) };
    let refused = tally.peek(charge.key, charge.limits, now, at, charge.ask, |verdict, own, words| {
        (!verdict.is_admitted()).then(|| report(charge, charge.limits, verdict, own, words, now, answers))
    });
    refused.map_err(unread)
}

/// Adds what is reported about a charge under `limits`, whose state is under `own`.
fn report(
    charge: &Charge<'_>,
    limits: &Limits,
    verdict: &Verdict<Stamps>,
    own: &Limits,
    words: &[u64],
    now: &Now<'_>,
    answers: &mut Answers,
) -> Taken {
    let (outcome, cost) = (verdict.outcome(), charge.ask.cost());
    let (taken, stamps) =
        if outcome.is_admitted() { (verdict.taken(), verdict.stamp()) } else { (Cost::ZERO, Stamps::default()) };
    let is_same = std::ptr::eq(limits, own) || limits == own;
    if is_same && limits.as_slice().len() == 1 {
        answers.charge_by(Standing::Eventual, outcome, taken, stamps, [limits.report_short(&words, now, cost)]);
    } else if is_same {
        answers.charge_by(Standing::Eventual, outcome, taken, stamps, limits.reports(words, now, cost));
    } else {
        answers.charge_by(Standing::Eventual, outcome, taken, stamps, limits.reports_from(own, words, now, cost));
    }
    Taken { taken, stamps, outcome, at: now.wall() }
}

fn now_for<'a>(charge: &Charge<'a>, estimate: u64) -> Now<'a> {
    Now::at(estimate).with_spread(spread(charge.key).wrapping_mul(1_000)).with_windows(charge.windows)
}
