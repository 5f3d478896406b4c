//! Simulates leases: nodes with holders, a pool, and faults of nodes, links and the store.

use std::collections::BTreeMap;

use tollgate_share::lease::{Exchange, Grant, Holder, Level, Need, Pool, PoolLimit, TakeResult};

use super::{EventQueue, Random, SimulatedClock, SimulatedLink};
use crate::history::{Bound, Checker};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// A deliberate defect, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDefect {
    /// The unchanged protocol.
    None,
    /// The pool refills up to the burst even while tokens are leased out.
    RefillsLeasedTokens,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseOutcome {
    /// Requested tokens.
    pub requested: u64,
    /// Admitted tokens.
    pub admitted: u64,
    /// Exchanges that reached the pool.
    pub calls: u64,
    /// Admitted requests.
    pub requests: u64,
}

enum LeaseEvent {
    /// A request at a node, with its cost.
    Request(usize, u64),
    ToStore(usize, ExchangeInFlight, Exchange),
    /// The answer to an exchange, and the time at which the pool decided it.
    ToNode(usize, ExchangeInFlight, Grant, u64),
    Deadline(usize, ExchangeInFlight),
    Poll(usize),
    Crash(usize),
    Pause(usize, u64),
    StoreLost,
}

/// A node's exchange in flight. Every exchange has a new number, even after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExchangeInFlight {
    number: u64,
    need: Need,
}

struct LeaseNode {
    holder: Holder,
    clock: SimulatedClock,
    to_store: SimulatedLink,
    to_node: SimulatedLink,
    flight: Option<ExchangeInFlight>,
    waiting: Vec<u64>,
    paused_until: u64,
}

/// One simulation run.
pub struct LeaseSimulation {
    random: Random,
    queue: EventQueue<LeaseEvent>,
    nodes: Vec<LeaseNode>,
    /// The limits of the key: one or two.
    pool_limits: Vec<PoolLimit>,
    pool: Option<Pool>,
    store_clock: SimulatedClock,
    length: u64,
    deadline: u64,
    next_flight: u64,
    next_epoch: u64,
    defect: LeaseDefect,
    /// Admitted amounts, each with its true time and its store time.
    history: Vec<(u64, u64, u64)>,
    /// For each limit, the excess that the faults of this run permit.
    excess: Vec<u64>,
    /// The pool's levels as if no tokens were leased out. Used by [`LeaseDefect::RefillsLeasedTokens`].
    levels_without_leases: Vec<Level>,
    outcome: LeaseOutcome,
}

impl LeaseSimulation {
    /// Draws a run in which every kind of fault may occur.
    pub fn draw(seed: u64, defect: LeaseDefect) -> Self {
        let mut random = Random::new(seed);
        let length = random.between(2, 12) * SECOND;
        let mut pool_limits = vec![draw_pool_limit(&mut random)];
        if random.happens_in_percent(25) {
            pool_limits.push(draw_pool_limit(&mut random));
        }
        let nodes = random.between(1, 6);
        let mut simulation = Self::new(random, pool_limits, nodes as usize, length, defect);
        simulation.draw_faults();
        simulation.draw_requests();
        simulation
    }

    /// Returns a run without faults and with steady demand: `demand` percent of the rate, spread over the nodes.
    pub fn with_steady_demand(seed: u64, burst: u64, rate: u64, nodes: usize, demand: u64) -> Self {
        let random = Random::new(seed);
        let length = 60 * SECOND;
        let pool_limit = PoolLimit::Bucket { count: rate, per: SECOND, burst, max_debt: 0, initial: burst };
        let mut simulation = Self::new(random, vec![pool_limit], nodes, length, LeaseDefect::None);
        for node in &mut simulation.nodes {
            let quick = SimulatedLink::without_loss();
            (node.to_store, node.to_node) = (quick.clone(), quick);
        }
        // Nodes have different shares of the traffic: 1, 1/2, 1/3, …
        let shares: Vec<u64> = (1..=nodes as u64).map(|node| 1_000 / node).collect();
        let all: u64 = shares.iter().sum();
        let count = rate * demand / 100 * length / SECOND;
        for _ in 0..count {
            let mut at = simulation.random.below(all);
            let node = shares.iter().position(|share| at.checked_sub(*share).map(|rest| at = rest).is_none());
            let instant = simulation.random.below(length);
            simulation.queue.add(instant, LeaseEvent::Request(node.unwrap_or(0), 1));
        }
        simulation
    }

    fn new(mut random: Random, pool_limits: Vec<PoolLimit>, nodes: usize, length: u64, defect: LeaseDefect) -> Self {
        let mut queue = EventQueue::default();
        let nodes = (0..nodes)
            .map(|index| {
                queue.add(random.below(20 * MILLI), LeaseEvent::Poll(index));
                LeaseNode {
                    holder: Holder::default(),
                    clock: SimulatedClock::draw(&mut random),
                    to_store: SimulatedLink::draw(&mut random, length),
                    to_node: SimulatedLink::draw(&mut random, length),
                    flight: None,
                    waiting: Vec::new(),
                    paused_until: 0,
                }
            })
            .collect();
        Self {
            queue,
            nodes,
            excess: vec![0; pool_limits.len()],
            pool_limits,
            pool: None,
            store_clock: SimulatedClock::new(1_000_000 * SECOND + random.below(SECOND), 10_000),
            length,
            deadline: random.pick(&[10, 10, 50]) * MILLI,
            next_flight: 0,
            next_epoch: 1,
            defect,
            history: Vec::new(),
            levels_without_leases: Vec::new(),
            outcome: LeaseOutcome::default(),
            random,
        }
    }

    fn draw_faults(&mut self) {
        let (nodes, length) = (self.nodes.len() as u64, self.length);
        while self.random.happens_in_percent(30) {
            let event = LeaseEvent::Crash(self.random.below(nodes) as usize);
            self.queue.add(self.random.below(length), event);
        }
        while self.random.happens_in_percent(30) {
            let (node, pause) = (self.random.below(nodes) as usize, self.random.below(8 * SECOND));
            self.queue.add(self.random.below(length), LeaseEvent::Pause(node, pause));
        }
        if self.random.happens_in_percent(20) {
            self.permit_excess(PoolLimit::capacity);
            self.queue.add(self.random.below(length), LeaseEvent::StoreLost);
        }
        if self.random.happens_in_percent(20) {
            let by = self.random.below(10 * SECOND);
            let at = self.random.below(length);
            if self.random.happens_in_percent(50) {
                self.store_clock.add_step(at, -(by as i64));
                // After a step back, the same window may begin again and count from zero.
                self.permit_excess(|pool_limit| {
                    if matches!(pool_limit, PoolLimit::Window { .. }) { pool_limit.capacity() } else { 0 }
                });
            } else {
                self.store_clock.add_step(at, by as i64);
                self.permit_excess(|pool_limit| step_excess(pool_limit, by));
            }
        }
    }

    /// Adds the excess permitted by a fault to each limit.
    fn permit_excess(&mut self, excess: impl Fn(&PoolLimit) -> u64) {
        for (pool_limit, allowed) in self.pool_limits.iter().zip(&mut self.excess) {
            *allowed += excess(pool_limit);
        }
    }

    fn draw_requests(&mut self) {
        let (nodes, length) = (self.nodes.len() as u64, self.length);
        let burst = self.pool_limits.iter().map(PoolLimit::capacity).min().unwrap_or(1);
        for _ in 0..self.random.between(1, 40) {
            let (node, start) = (self.random.below(nodes) as usize, self.random.below(length));
            let cost = if self.random.happens_in_percent(80) { 1 } else { self.random.between(1, burst) };
            let apart = self.random.pick(&[0, 0, 100_000, MILLI, 10 * MILLI, 200 * MILLI]);
            for number in 0..self.random.between(1, (2 * burst / cost).clamp(1, 80)) {
                self.queue.add(start + number * apart, LeaseEvent::Request(node, cost));
            }
        }
    }

    /// Runs to the end and checks the history.
    ///
    /// # Errors
    /// Returns an error if an interval admitted too much.
    pub fn run(mut self) -> Result<LeaseOutcome, String> {
        while let Some((now, event)) = self.queue.pop() {
            if now > self.length + SECOND {
                break;
            }
            self.handle_event(now, event);
        }
        self.check()?;
        Ok(self.outcome)
    }

    fn handle_event(&mut self, now: u64, event: LeaseEvent) {
        let node = match &event {
            LeaseEvent::Request(node, _)
            | LeaseEvent::ToNode(node, ..)
            | LeaseEvent::Deadline(node, _)
            | LeaseEvent::Poll(node) => Some(*node),
            LeaseEvent::ToStore(..) | LeaseEvent::Crash(_) | LeaseEvent::Pause(..) | LeaseEvent::StoreLost => None,
        };
        // A paused node handles its events later.
        if let Some(until) = node.map(|node| self.nodes[node].paused_until).filter(|until| now < *until) {
            return self.queue.add(until, event);
        }
        match event {
            LeaseEvent::Request(node, cost) => {
                self.outcome.requested += cost;
                self.handle_request(now, node, cost);
            }
            LeaseEvent::ToStore(node, flight, exchange) => self.receive_at_store(now, node, flight, &exchange),
            LeaseEvent::ToNode(node, flight, grant, decided) => self.on_answer(now, node, flight, &grant, decided),
            LeaseEvent::Deadline(node, flight) => self.abandon_exchange(now, node, flight),
            LeaseEvent::Poll(node) => {
                self.queue.add(now + 20 * MILLI, LeaseEvent::Poll(node));
                let local = self.nodes[node].clock.shown_at(now);
                if self.nodes[node].holder.is_exchange_due(local) {
                    self.send(now, node, Need::default());
                }
            }
            LeaseEvent::Crash(node) => {
                self.nodes[node].holder = Holder::default();
                self.nodes[node].flight = None;
                self.nodes[node].waiting.clear();
            }
            LeaseEvent::Pause(node, length) => self.nodes[node].paused_until = now + length,
            LeaseEvent::StoreLost => self.pool = None,
        }
    }

    fn handle_request(&mut self, now: u64, node: usize, cost: u64) {
        let local = self.nodes[node].clock.shown_at(now);
        match self.nodes[node].holder.take(local, cost) {
            TakeResult::Held(reserved) => {
                // Some requests belong to a group that another limit refuses.
                if self.random.happens_in_percent(5) {
                    self.nodes[node].holder.put_back(&reserved);
                } else {
                    self.admit(now, cost);
                }
            }
            TakeResult::Ask => {
                let need = if self.random.happens_in_percent(10) { Need::Hold(cost) } else { Need::Spend(cost) };
                self.send(now, node, need);
            }
            // The request is retried when the exchange in flight is answered.
            TakeResult::Wait => self.nodes[node].waiting.push(cost),
            TakeResult::Refused(_) => {}
        }
    }

    fn admit(&mut self, now: u64, cost: u64) {
        self.outcome.admitted += cost;
        self.outcome.requests += 1;
        self.history.push((now, self.store_clock.shown_at(now), cost));
    }

    fn send(&mut self, now: u64, node: usize, need: Need) {
        self.next_flight += 1;
        let flight = ExchangeInFlight { number: self.next_flight, need };
        let local = self.nodes[node].clock.shown_at(now);
        let exchange = self.nodes[node].holder.exchange(local, need);
        self.nodes[node].flight = Some(flight);
        self.queue.add(now + self.deadline, LeaseEvent::Deadline(node, flight));
        self.send_to_store(now, node, flight, exchange);
    }

    fn send_to_store(&mut self, now: u64, node: usize, flight: ExchangeInFlight, exchange: Exchange) {
        if let Some(arrives) = self.nodes[node].to_store.deliver(&mut self.random, now) {
            self.queue.add(arrives, LeaseEvent::ToStore(node, flight, exchange));
        }
    }

    fn receive_at_store(&mut self, now: u64, node: usize, flight: ExchangeInFlight, exchange: &Exchange) {
        self.outcome.calls += 1;
        let time = self.store_clock.shown_at(now);
        if self.pool.is_none() {
            self.next_epoch += 1;
            self.levels_without_leases.clear();
        }
        let pool = self.pool.get_or_insert_with(|| Pool::new(&self.pool_limits, self.next_epoch, time));
        if self.levels_without_leases.is_empty() {
            self.levels_without_leases.clone_from(&pool.levels);
        }
        if self.defect == LeaseDefect::RefillsLeasedTokens {
            pool.levels.clone_from(&self.levels_without_leases);
        }
        let grant = pool.exchange(&self.pool_limits, time, exchange);
        if self.defect == LeaseDefect::RefillsLeasedTokens {
            // Computes the levels as if no tokens were leased out.
            let spent = match flight.need {
                Need::Spend(_) if grant.refused.is_none() => grant.taken,
                _ => 0,
            };
            let back = exchange.settle.iter().map(|settle| settle.back).sum();
            for (pool_limit, level) in self.pool_limits.iter().zip(&mut self.levels_without_leases) {
                let current = pool_limit.refund(pool_limit.level_at(*level, time), back);
                *level = pool_limit.take(current, time, spent + grant.leased);
            }
            pool.levels.clone_from(&self.levels_without_leases);
        }
        if let Some(arrives) = self.nodes[node].to_node.deliver(&mut self.random, now) {
            self.queue.add(arrives, LeaseEvent::ToNode(node, flight, grant, now));
        }
    }

    fn on_answer(&mut self, now: u64, node: usize, flight: ExchangeInFlight, grant: &Grant, decided: u64) {
        // Answers after the deadline are ignored.
        if self.nodes[node].flight != Some(flight) {
            return;
        }
        self.nodes[node].flight = None;
        let local = self.nodes[node].clock.shown_at(now);
        if self.nodes[node].holder.on_grant(local, grant) {
            match flight.need {
                // The request counts as admitted at the time of the store's decision.
                Need::Spend(cost) if cost > 0 => self.admit(decided, cost),
                Need::Hold(cost) => self.handle_request(now, node, cost),
                _ => {}
            }
        }
        self.retry_waiting_requests(now, node);
    }

    fn abandon_exchange(&mut self, now: u64, node: usize, flight: ExchangeInFlight) {
        if self.nodes[node].flight == Some(flight) {
            self.nodes[node].flight = None;
            self.nodes[node].holder.on_unknown();
            self.retry_waiting_requests(now, node);
        }
    }

    fn retry_waiting_requests(&mut self, now: u64, node: usize) {
        for cost in std::mem::take(&mut self.nodes[node].waiting) {
            self.handle_request(now, node, cost);
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut events: Vec<(u64, u64)> = self.history.iter().map(|(at, _, cost)| (*at, *cost)).collect();
        events.sort_unstable();
        for (pool_limit, excess) in self.pool_limits.iter().zip(&self.excess) {
            let found = match *pool_limit {
                PoolLimit::Bucket { count, per, burst, .. } => {
                    let bound = Bound::new(burst + excess, count, per);
                    Checker::new(&bound).admit_all(&events).err().map(|excess| format!("{excess:?}"))
                }
                PoolLimit::Window { limit, .. } => {
                    let mut windows = BTreeMap::<u64, u64>::new();
                    for (_, time, cost) in &self.history {
                        *windows.entry(pool_limit.window_end(*time)).or_default() += cost;
                    }
                    let over = windows.into_iter().find(|(_, admitted)| *admitted > limit + excess);
                    over.map(|(end, admitted)| format!("{admitted} in the window before {end}"))
                }
            };
            if let Some(found) = found {
                return Err(format!("{pool_limit:?}, E = {excess}, {} nodes: {found}", self.nodes.len()));
            }
        }
        Ok(())
    }
}

fn draw_pool_limit(random: &mut Random) -> PoolLimit {
    let burst = random.pick(&[1, 3, 10, 50, 200, 1_000]);
    if random.happens_in_percent(70) {
        let count = random.pick(&[1, 7, 10, 100, 1_000]);
        PoolLimit::Bucket { count, per: SECOND, burst, max_debt: 0, initial: burst }
    } else {
        let length = random.pick(&[SECOND / 2, SECOND, 3 * SECOND, 60 * SECOND]);
        PoolLimit::Window { limit: burst, length, offset: random.below(length), max_debt: 0, initial: burst }
    }
}

/// Returns the excess that a forward step `σ` of the store's clock permits. For a window, the excess is the limit. For
/// a bucket with rate `r`, the excess is the smaller of `r·σ` and the burst. Proof of `r·σ`: consider a leased slice of
/// tokens that would have expired `τ ≤ σ` after the step. The pool refills `r·(σ − τ)` at the step, and `r·τ` until the
/// nodes stop spending the slice.
fn step_excess(pool_limit: &PoolLimit, by: u64) -> u64 {
    match *pool_limit {
        PoolLimit::Bucket { count, per, burst, .. } => {
            let refill = (u128::from(by) * u128::from(count)).div_ceil(u128::from(per));
            u64::try_from(refill).unwrap_or(u64::MAX).min(burst)
        }
        PoolLimit::Window { limit, .. } => limit,
    }
}

impl std::fmt::Debug for LeaseSimulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("pool_limits", &self.pool_limits)
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
