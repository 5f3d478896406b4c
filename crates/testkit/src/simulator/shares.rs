//! Simulates the local fallback: all nodes or single nodes lose their store from time to time. Each node then admits
//! its share and charges the store afterwards.

use std::collections::BTreeMap;

use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Limit, Limits, Nanos, Now, Rate, Stamps, TokenBucket, Verdict};
use tollgate_share::shares::{
    Arrears, LimitUsage, ShareStart, fits_store_remaining, share_of_node, with_debt_for_arrears,
};

use super::{EventQueue, Random, SimulatedClock};
use crate::history::{Bound, Checker};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// A deliberate defect, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharesDefect {
    /// The unchanged protocol.
    None,
    /// Every fault starts a new share, even if the store has not answered since the last fault.
    ShareAtEveryFault,
    /// The store is never charged for requests admitted during a fault.
    NoArrears,
}

enum SharesEvent {
    /// A request at a node, with its cost.
    Request(usize, u64),
    /// A node charges its arrears to the store.
    Repay(usize),
    /// One node, or all nodes if `None`, lose the store until this time.
    Lost(Option<usize>, u64),
}

struct SharesNode {
    clock: SimulatedClock,
    /// Number of nodes in the fleet, according to this node.
    nodes: u32,
    /// Time until which the node cannot reach the store.
    lost_until: u64,
    /// Whether the current fault has had its first request.
    has_noticed: bool,
    seen: Option<LimitUsage>,
    /// Whether the share was started since the store last answered.
    has_begun: bool,
    share: Option<Vec<u64>>,
    arrears: Arrears,
}

/// One simulation run.
pub struct SharesSimulation {
    random: Random,
    queue: EventQueue<SharesEvent>,
    nodes: Vec<SharesNode>,
    limits: Limits,
    owing: Limits,
    rate: Option<Rate>,
    window: u64,
    store: Vec<u64>,
    /// Whether the store's state was last charged under the limits with debt (`owing`).
    is_owing: bool,
    length: u64,
    max_cost: u64,
    defect: SharesDefect,
    history: Vec<(u64, u64)>,
    /// Length of each fault.
    faults: Vec<u64>,
}

impl SharesSimulation {
    /// Draws a run.
    pub fn draw(seed: u64, defect: SharesDefect) -> Self {
        let mut random = Random::new(seed);
        let length = random.between(1, 20) * SECOND;
        let burst = random.pick(&[1, 4, 10, 50, 200]);
        let (limit, rate, window) = draw_limit(&mut random, burst);
        let limits: Limits = limit.into();
        let count = random.between(1, 6);
        let mut queue = EventQueue::default();
        let nodes = (0..count).map(|_| SharesNode::draw(&mut random, count)).collect::<Vec<_>>();
        // Most costs are small, and no cost exceeds the burst.
        let max_cost = if random.happens_in_percent(60) { 1 } else { random.between(1, burst) };
        let mut faults = Vec::new();
        for _ in 0..random.between(1, 6) {
            let at = random.below(length);
            let lasts = random.pick(&[MILLI, 50 * MILLI, SECOND, 5 * SECOND]);
            let node = random.happens_in_percent(30).then(|| random.below(count) as usize);
            faults.push(lasts);
            queue.add(at, SharesEvent::Lost(node, at + lasts));
        }
        for _ in 0..random.between(1, 40) {
            let (node, start) = (random.below(count) as usize, random.below(length));
            let (cost, apart) = (random.between(1, max_cost), random.pick(&[0, 0, MILLI, 10 * MILLI, 200 * MILLI]));
            for number in 0..random.between(1, (2 * burst / cost).clamp(1, 60)) {
                queue.add(start + number * apart, SharesEvent::Request(node, cost));
            }
        }
        // The store repeatedly fails and recovers, and requests arrive only while the store is down.
        if random.happens_in_percent(30) {
            (0..count as usize).for_each(|node| queue.add(0, SharesEvent::Request(node, 1)));
            for number in 1..random.between(2, 12) {
                let at = number * 300 * MILLI;
                faults.push(5 * MILLI);
                queue.add(at, SharesEvent::Lost(None, at + 5 * MILLI));
                for request in 0..burst.min(100) {
                    queue.add(at + MILLI, SharesEvent::Request((request % count) as usize, 1));
                }
            }
        }
        let owing = with_debt_for_arrears(&limits).unwrap_or_else(|| panic!("both algorithms support debt"));
        let mut store = vec![0; limits.words().max(owing.words())];
        limits.init(&mut *store, &Now::at(STORE_START));
        Self {
            random,
            queue,
            nodes,
            limits,
            owing,
            rate,
            window,
            store,
            is_owing: false,
            length,
            max_cost,
            defect,
            history: Vec::new(),
            faults,
        }
    }

    /// Runs to the end and checks the history. Returns the admitted amount.
    ///
    /// # Errors
    /// Returns an error if more than the bound was admitted.
    pub fn run(mut self) -> Result<u64, String> {
        while let Some((now, event)) = self.queue.pop() {
            match event {
                SharesEvent::Request(node, cost) => self.handle_request(now, node, cost),
                SharesEvent::Repay(node) if self.nodes[node].lost_until <= now => self.charge_arrears(now, node),
                SharesEvent::Repay(_) => {}
                SharesEvent::Lost(node, until) => self.lose_store(now, node, until),
            }
        }
        self.check()?;
        Ok(self.history.iter().map(|(_, cost)| cost).sum())
    }

    fn lose_store(&mut self, now: u64, node: Option<usize>, until: u64) {
        let lost = node.map_or(0..self.nodes.len(), |node| node..node + 1);
        for index in lost {
            let node = &mut self.nodes[index];
            node.has_noticed &= node.lost_until > now;
            node.lost_until = node.lost_until.max(until);
            if self.defect == SharesDefect::ShareAtEveryFault {
                node.has_begun = false;
            }
            // Another request may arrive earlier and charge the arrears itself.
            let later = until + self.random.below(200 * MILLI);
            self.queue.add(later, SharesEvent::Repay(index));
        }
    }

    fn handle_request(&mut self, now: u64, node: usize, cost: u64) {
        if self.nodes[node].lost_until <= now {
            self.charge_arrears(now, node);
            if self.ask_store(now, node, Ask::Exactly(Cost::new(cost))) {
                self.history.push((now, cost));
            }
            return;
        }
        // The first request of a fault may have been applied although its answer was lost.
        if !std::mem::replace(&mut self.nodes[node].has_noticed, true) && self.random.happens_in_percent(50) {
            let _ = self.charge(now, Ask::Exactly(Cost::new(cost)), false);
        }
        if self.nodes[node].admit_without_store(now, cost, &self.limits) {
            self.history.push((now, cost));
        }
    }

    /// Sends a node's request to the store. The node records the reported state.
    fn ask_store(&mut self, now: u64, node: usize, ask: Ask) -> bool {
        let verdict = self.charge(now, ask, false);
        let own = if self.is_owing { &self.owing } else { &self.limits };
        let reported = self.limits.reports_from(own, &*self.store, &Now::at(STORE_START + now), Cost::ONE).next();
        let node = &mut self.nodes[node];
        node.seen = reported.map(|report| LimitUsage::new(&report, node.clock.shown_at(now)));
        node.has_begun = false;
        verdict.is_admitted()
    }

    fn charge_arrears(&mut self, now: u64, node: usize) {
        let state = &mut self.nodes[node];
        let share = share_of_node(&self.limits, state.nodes);
        let due = state.arrears.due(&share.as_slice()[0], state.clock.shown_at(now));
        state.arrears = Arrears::default();
        if due > 0 && self.defect != SharesDefect::NoArrears {
            let _ = self.charge(now, Ask::Regardless(Cost::new(due)), true);
        }
    }

    /// Takes from the store's state, under the limits with debt if `owing` (for arrears). An admitted charge
    /// converts the state to the limits under which it was charged.
    fn charge(&mut self, now: u64, ask: Ask, owing: bool) -> Verdict<Stamps> {
        let now = Now::at(STORE_START + now);
        let (own, under) = match (self.is_owing, owing) {
            (true, true) => (&self.owing, &self.owing),
            (true, false) => (&self.owing, &self.limits),
            (false, true) => (&self.limits, &self.owing),
            (false, false) => (&self.limits, &self.limits),
        };
        let (verdict, adopted) = under.decide_from(own, &mut *self.store, &now, ask);
        if adopted {
            self.is_owing = owing;
        }
        verdict
    }

    /// Checks `E ≤ Σ(⌈B/Nᵢ⌉ + c) + Σ min(B, r·P)`. The first sum is over the nodes. `Nᵢ` is the number of nodes
    /// according to node `i`, and `c` is the largest cost. The second sum is over the faults, of length `P`, and
    /// applies only to buckets.
    fn check(&self) -> Result<(), String> {
        let capacity = self.limits.capacity();
        let shares: u64 = self.nodes.iter().map(|node| capacity.div_ceil(node.nodes.into()) + self.max_cost).sum();
        let mut events = self.history.clone();
        events.sort_unstable();
        let Some(rate) = self.rate else {
            let mut windows = BTreeMap::<u64, u64>::new();
            for (at, cost) in &events {
                *windows.entry((STORE_START + at) / self.window).or_default() += cost;
            }
            let over = windows.values().find(|admitted| **admitted > capacity + shares);
            return over.map_or(Ok(()), |admitted| Err(format!("{admitted} in a window of {capacity}, E = {shares}")));
        };
        let refilled = |length: u64| {
            let refill = u128::from(length) * u128::from(rate.count()) / u128::from(rate.per().as_nanos()) + 1;
            // A node that believes there are fewer nodes refills faster.
            let by_shares: u128 = self.nodes.iter().map(|node| refill.div_ceil(node.nodes.into())).sum();
            u64::try_from(refill.min(capacity.into()) + by_shares.saturating_sub(refill)).unwrap_or(u64::MAX)
        };
        let excess = shares + self.faults.iter().map(|length| refilled(*length)).sum::<u64>();
        let bound = Bound::from_rate(rate, capacity + excess);
        Checker::new(&bound)
            .admit_all(&events)
            .map_err(|over| format!("B = {capacity}, {rate}, {} nodes, E = {excess}: {over:?}", self.nodes.len()))
    }
}

/// Store time at the start of a run. This time lies within a window, not at its boundary.
const STORE_START: u64 = 1_000_000 * SECOND + SECOND / 3;

impl SharesNode {
    fn draw(random: &mut Random, count: u64) -> Self {
        // The node may not have noticed the last change of the node count.
        let known = if random.happens_in_percent(80) { count } else { random.between(count.max(2) - 1, count + 1) };
        Self {
            clock: SimulatedClock::draw(random),
            nodes: u32::try_from(known).unwrap_or(1),
            lost_until: 0,
            has_noticed: false,
            seen: None,
            has_begun: false,
            share: None,
            arrears: Arrears::default(),
        }
    }

    /// Decides without the store, in the same way as `engine/src/engine/fault_policy.rs`.
    fn admit_without_store(&mut self, now: u64, cost: u64, limits: &Limits) -> bool {
        let (at, wall) = (self.clock.shown_at(now), Now::at(STORE_START + now));
        let (share, limit) = (share_of_node(limits, self.nodes), limits.as_slice()[0]);
        if !self.has_begun && self.seen.is_some() || self.share.is_none() {
            let start = ShareStart::new(&share, limits, self.nodes, at, |_| self.seen);
            let start = start.map_or_else(|| share.clone(), |start| start.limits);
            let mut words = vec![0; share.words()];
            start.init(&mut *words, &wall);
            self.share = Some(words);
        }
        self.has_begun = true;
        let Some(words) = &mut self.share else { return false };
        let share_remaining = share.reports(&**words, &wall, Cost::ONE).next().map_or(0, |report| report.remaining);
        let left = self.seen.map_or(limit.capacity(), |seen| seen.left_at(&limit, at));
        let into_debt = cost > share_remaining && fits_store_remaining(cost, share_remaining, left, self.nodes);
        let ask = if into_debt { Ask::Regardless(Cost::new(cost)) } else { Ask::Exactly(Cost::new(cost)) };
        if !share.decide(&mut **words, &wall, ask).is_admitted() {
            return false;
        }
        if let Some(report) = share.reports(&**words, &wall, Cost::ONE).next() {
            self.arrears.add(&share.as_slice()[0], cost, into_debt, &report, at);
        }
        true
    }
}

fn draw_limit(random: &mut Random, burst: u64) -> (Limit, Option<Rate>, u64) {
    if random.happens_in_percent(70) {
        let rate = Rate::per_second(random.pick(&[1, 4, 10, 100])).unwrap_or_else(|error| panic!("{error}"));
        return (TokenBucket::new(rate, burst).unwrap_or_else(|error| panic!("{error}")).into(), Some(rate), 0);
    }
    let window = random.pick(&[1, 3, 60]) * SECOND;
    let limit = FixedWindow::new(burst, Nanos::from_nanos(window)).unwrap_or_else(|error| panic!("{error}"));
    (limit.into(), None, window)
}

impl std::fmt::Debug for SharesSimulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("nodes", &self.nodes.len())
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
