//! Simulates the eventual tally: nodes decide from their views, and a store merges their payloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_core::{
    Algorithm, Ask, Cost, FixedWindow, Limit, LimitError, Limits, Nanos, Now, Rate, SlidingSlices, SlidingWindow,
    TokenBucket,
};
use tollgate_share::tally::{Charge, Payload, Tally, merge, with_debt};

use super::{EventQueue, Random, SimulatedClock, SimulatedLink};
use crate::history::{Bound, Checker};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const KEY: &[u8] = b"key";

/// A deliberate defect, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TallyDefect {
    /// The unchanged protocol.
    None,
    /// The store ignores sequence numbers.
    MergedTwice,
    /// A payload whose answer is lost is not resent.
    NotResent,
}

enum TallyEvent {
    Request(usize, u64),
    Sync(usize),
    /// A message to the store: a payload, or a read if there is no payload.
    ToStore(usize, Message),
    ToNode(usize, TallyAnswer),
    Crash(usize),
    Pause(usize, u64),
    StoreLost,
}

#[derive(Clone)]
struct Message {
    /// Id of the sending node. A restarted node has a new id.
    node_id: u64,
    payload: Option<Payload>,
    /// Sending time by the node's clock.
    sent: u64,
}

#[derive(Clone)]
struct TallyAnswer {
    node_id: u64,
    sequence: u64,
    words: Vec<u64>,
    /// The store's time.
    time: u64,
}

struct TallyNode {
    id: u64,
    tally: Tally,
    clock: SimulatedClock,
    to_store: SimulatedLink,
    to_node: SimulatedLink,
    /// Store time minus this node's time, measured at the last answer.
    offset: Option<i128>,
    /// Costs of requests that wait for the first answer about the key.
    waiting: Vec<u64>,
    reading: bool,
    /// Arrival of the last answer, in true time.
    last_answer_at: u64,
    paused_until: u64,
}

/// One simulation run.
pub struct TallySimulation {
    random: Random,
    queue: EventQueue<TallyEvent>,
    nodes: Vec<TallyNode>,
    limits: Arc<Limits>,
    capacity: u64,
    rate: Option<Rate>,
    window: u64,
    words: Option<Vec<u64>>,
    seen: BTreeMap<u64, u64>,
    store_clock: SimulatedClock,
    length: u64,
    sync_every: u64,
    next_id: u64,
    defect: TallyDefect,
    history: Vec<(u64, u64)>,
    /// Amount taken by each incarnation of a node.
    taken: BTreeMap<u64, u64>,
    /// Amount of each incarnation that the store applied.
    applied: BTreeMap<u64, u64>,
    /// Longest time for which a deciding node did not hear from the store.
    longest_silence: u64,
    crashes: u64,
    losses: u64,
    /// Forward and backward steps of the store's clock.
    steps: [Vec<u64>; 2],
}

impl TallySimulation {
    /// Draws a run in which every kind of fault may occur.
    pub fn draw(seed: u64, defect: TallyDefect) -> Self {
        let mut random = Random::new(seed);
        let length = random.between(1, 5) * SECOND;
        let burst = random.pick(&[1, 4, 10, 50, 200]);
        let (limit, rate, window) = draw_limit(&mut random, burst);
        let limits = Arc::new(with_debt(&limit.into()).unwrap_or_else(|| panic!("both algorithms can be merged")));
        let nodes = random.between(1, 6) as usize;
        let mut queue = EventQueue::default();
        let sync_every = random.pick(&[50, 100, 100, 500]) * MILLI;
        let nodes = (0..nodes)
            .map(|index| {
                queue.add(random.below(sync_every), TallyEvent::Sync(index));
                TallyNode {
                    id: index as u64,
                    tally: Tally::default(),
                    clock: SimulatedClock::draw(&mut random),
                    to_store: SimulatedLink::draw(&mut random, length),
                    to_node: SimulatedLink::draw(&mut random, length),
                    offset: None,
                    waiting: Vec::new(),
                    reading: false,
                    last_answer_at: 0,
                    paused_until: 0,
                }
            })
            .collect::<Vec<_>>();
        let mut simulation = Self {
            next_id: nodes.len() as u64,
            nodes,
            queue,
            limits,
            capacity: burst,
            rate,
            window,
            words: None,
            seen: BTreeMap::new(),
            store_clock: SimulatedClock::new(1_000_000 * SECOND + random.below(SECOND), 10_000),
            length,
            sync_every,
            defect,
            history: Vec::new(),
            taken: BTreeMap::new(),
            applied: BTreeMap::new(),
            longest_silence: 0,
            crashes: 0,
            losses: 0,
            steps: [Vec::new(), Vec::new()],
            random,
        };
        simulation.draw_events();
        simulation
    }

    fn draw_events(&mut self) {
        let (nodes, length) = (self.nodes.len() as u64, self.length);
        while self.random.happens_in_percent(25) {
            let event = TallyEvent::Crash(self.random.below(nodes) as usize);
            self.queue.add(self.random.below(length), event);
        }
        while self.random.happens_in_percent(20) {
            let (node, pause) = (self.random.below(nodes) as usize, self.random.below(3 * SECOND));
            self.queue.add(self.random.below(length), TallyEvent::Pause(node, pause));
        }
        if self.random.happens_in_percent(20) {
            let (at, by) = (self.random.below(length), self.random.below(10 * SECOND));
            let is_back = self.random.happens_in_percent(50);
            self.store_clock.add_step(at, if is_back { -(by as i64) } else { by as i64 });
            self.steps[usize::from(is_back)].push(by);
        }
        if self.random.happens_in_percent(15) {
            self.losses = 1;
            self.queue.add(self.random.below(length), TallyEvent::StoreLost);
        }
        for _ in 0..self.random.between(1, 25) {
            let (node, start) = (self.random.below(nodes) as usize, self.random.below(length));
            let cost = if self.random.happens_in_percent(80) { 1 } else { self.random.between(1, self.capacity) };
            let apart = self.random.pick(&[0, 0, MILLI, 10 * MILLI, 200 * MILLI]);
            for number in 0..self.random.between(1, (2 * self.capacity / cost).clamp(1, 60)) {
                if start + number * apart < length {
                    self.queue.add(start + number * apart, TallyEvent::Request(node, cost));
                }
            }
        }
    }

    /// Runs to the end, delivers all messages, and checks the history.
    ///
    /// # Errors
    /// Returns an error if more than the bound was admitted, or a charge was not counted exactly once.
    pub fn run(mut self) -> Result<u64, String> {
        // All messages are delivered after the last request. Pauses last up to three seconds.
        while let Some((now, event)) = self.queue.pop() {
            if now > self.length * 2 + 6 * SECOND {
                break;
            }
            self.handle_event(now, event);
        }
        self.check_counts()?;
        self.check_history()?;
        Ok(self.history.iter().map(|(_, cost)| cost).sum())
    }

    fn handle_event(&mut self, now: u64, event: TallyEvent) {
        let node = match &event {
            TallyEvent::Request(node, _) | TallyEvent::Sync(node) | TallyEvent::ToNode(node, _) => Some(*node),
            TallyEvent::ToStore(..) | TallyEvent::Crash(_) | TallyEvent::Pause(..) | TallyEvent::StoreLost => None,
        };
        // A paused node handles its events later.
        if let Some(until) = node.map(|node| self.nodes[node].paused_until).filter(|until| now < *until) {
            return self.queue.add(until, event);
        }
        match event {
            TallyEvent::Request(node, cost) => self.handle_request(now, node, cost),
            TallyEvent::Sync(node) => {
                self.queue.add(now + self.sync_every, TallyEvent::Sync(node));
                self.sync(now, node);
            }
            TallyEvent::ToStore(node, message) => self.receive_at_store(now, node, &message),
            TallyEvent::ToNode(node, answer) => self.on_answer(now, node, &answer),
            TallyEvent::Crash(node) => {
                self.crashes += 1;
                let state = &mut self.nodes[node];
                (state.tally, state.id, state.offset) = (Tally::default(), self.next_id, None);
                state.waiting.clear();
                state.reading = false;
                self.next_id += 1;
            }
            TallyEvent::Pause(node, length) => self.nodes[node].paused_until = now + length,
            TallyEvent::StoreLost => {
                // The store loses the applied charges together with their sequence numbers, so a resend applies them
                // again.
                self.words = None;
                self.seen.clear();
            }
        }
    }

    /// Returns a node's estimate of the store time.
    fn estimate(&self, now: u64, node: usize) -> u64 {
        let node = &self.nodes[node];
        let local = i128::from(node.clock.shown_at(now));
        u64::try_from(local + node.offset.unwrap_or(0)).unwrap_or(0)
    }

    fn handle_request(&mut self, now: u64, node: usize, cost: u64) {
        let estimate = self.estimate(now, node);
        let local = self.nodes[node].clock.shown_at(now);
        let (now_estimate, ask) = (Now::at(estimate), Ask::Exactly(Cost::new(cost)));
        let charge = Charge { key: KEY, limits: &self.limits, limits_id: None, ask, now: &now_estimate, at: local };
        let state = &mut self.nodes[node];
        match state.tally.take(&charge) {
            Ok(verdict) if verdict.is_admitted() => {
                self.longest_silence = self.longest_silence.max(now - state.last_answer_at);
                *self.taken.entry(state.id).or_default() += cost;
                self.history.push((now, cost));
                if state.tally.is_urgent(KEY) && self.random.happens_in_percent(50) {
                    self.sync(now, node);
                }
            }
            Ok(_) => {}
            Err(_) => {
                state.waiting.push(cost);
                if !state.reading {
                    state.reading = true;
                    self.send(now, node, None);
                }
            }
        }
    }

    fn sync(&mut self, now: u64, node: usize) {
        let local = self.nodes[node].clock.shown_at(now);
        let payload = self.nodes[node].tally.payload(local).cloned();
        // A node with nothing to send reads the state, to learn the other nodes' charges.
        if payload.is_some() || !self.nodes[node].tally.is_empty() || self.nodes[node].reading {
            let sequence = payload.as_ref().map(|payload| payload.sequence);
            self.send(now, node, payload);
            if let (TallyDefect::NotResent, Some(sequence)) = (self.defect, sequence) {
                self.nodes[node].tally.acknowledge(sequence);
            }
        }
    }

    fn send(&mut self, now: u64, node: usize, payload: Option<Payload>) {
        let message = Message { node_id: self.nodes[node].id, payload, sent: self.nodes[node].clock.shown_at(now) };
        // A lower layer sometimes sends a message twice.
        for _ in 0..1 + u64::from(self.random.happens_in_percent(5)) {
            // All messages are delivered after the last request.
            let arrives = if now > self.length + SECOND / 2 {
                Some(now + MILLI)
            } else {
                self.nodes[node].to_store.deliver(&mut self.random, now)
            };
            if let Some(arrives) = arrives {
                self.queue.add(arrives, TallyEvent::ToStore(node, message.clone()));
            }
        }
    }

    fn receive_at_store(&mut self, now: u64, node: usize, message: &Message) {
        let time = self.store_clock.shown_at(now);
        let words = self.words.get_or_insert_with(|| {
            let mut words = vec![0; self.limits.words()];
            self.limits.init(&mut *words, &Now::at(time));
            words
        });
        let seen = self.seen.entry(message.node_id).or_default();
        let mut sequence = 0;
        if let Some(payload) = &message.payload {
            sequence = payload.sequence;
            if payload.sequence > *seen || self.defect == TallyDefect::MergedTwice {
                *seen = payload.sequence;
                let age = payload.charged_age(message.sent).as_nanos();
                for item in &payload.items {
                    let as_of = Now::at(time - age.min(time));
                    merge(&item.limits, words, &as_of, item.cost, payload.is_recent(message.sent));
                    *self.applied.entry(message.node_id).or_default() += item.cost;
                }
            }
        }
        let answer = TallyAnswer { node_id: message.node_id, sequence, words: words.clone(), time };
        let arrives = if now > self.length + SECOND / 2 {
            Some(now + MILLI)
        } else {
            self.nodes[node].to_node.deliver(&mut self.random, now)
        };
        if let Some(arrives) = arrives {
            self.queue.add(arrives, TallyEvent::ToNode(node, answer));
        }
    }

    fn on_answer(&mut self, now: u64, node: usize, answer: &TallyAnswer) {
        let limits = self.limits.clone();
        let state = &mut self.nodes[node];
        if state.id != answer.node_id {
            return;
        }
        let local = state.clock.shown_at(now);
        state.offset = Some(i128::from(answer.time) - i128::from(local));
        state.last_answer_at = now;
        // If a payload is frozen, the answer to a read is older than the unsent charges.
        let is_current = answer.sequence > 0 || state.tally.is_empty() || !state.tally.has_payload_in_flight();
        state.tally.acknowledge(answer.sequence);
        if is_current && !state.tally.has_payload_in_flight() {
            state.tally.learn(KEY, &limits, &answer.words, &Now::at(answer.time), local);
        }
        state.reading = false;
        for cost in std::mem::take(&mut state.waiting) {
            self.handle_request(now, node, cost);
        }
    }

    /// Checks that each charge is applied at most once. Charges of nodes that did not crash must be applied exactly
    /// once, except charges that the tally dropped. Checks nothing if the store lost its state.
    fn check_counts(&self) -> Result<(), String> {
        if self.losses > 0 {
            return Ok(());
        }
        for (id, taken) in &self.taken {
            let applied = self.applied.get(id).copied().unwrap_or(0);
            if applied > *taken {
                return Err(format!("incarnation {id} took {taken}, the store applied {applied}"));
            }
        }
        for node in &self.nodes {
            let (taken, applied) = (self.taken.get(&node.id), self.applied.get(&node.id));
            let missing = taken.copied().unwrap_or(0) - applied.copied().unwrap_or(0);
            if missing != node.tally.dropped_tokens() {
                return Err(format!("{missing} tokens of node {} were never applied", node.id));
            }
        }
        Ok(())
    }

    /// Checks that the excess of a bucket is at most `(N − 1)·(B + r·δ)` plus tolerances. Each crashed node loses its
    /// unsent charges and adds another `B + r·δ`. Each loss of the store's state adds the same amount. The tolerances
    /// are the refills caused by clocks that are up to 1% fast, and by estimates of the store's clock, which vary by
    /// the link delay. A forward step `σ` of the store's clock adds `min(B, r·σ)`. Windows are checked against a bound
    /// per window.
    fn check_history(&self) -> Result<(), String> {
        let delta = self.longest_silence + self.sync_every;
        // A store that lost its state starts full.
        let others = self.nodes.len() as u64 - 1 + self.crashes + self.losses;
        let mut events = self.history.clone();
        events.sort_unstable();
        let Some(rate) = self.rate else {
            let mut windows = BTreeMap::<u64, u64>::new();
            for (at, cost) in &events {
                *windows.entry(self.store_clock.shown_at(*at) / self.window).or_default() += cost;
            }
            let [forward, back] = &self.steps;
            let steps = (forward.len() + back.len()) as u64;
            let bound = self.capacity * (others + 1) * (2 + steps + delta / self.window);
            let over = windows.values().find(|admitted| **admitted > bound);
            return over.map_or(Ok(()), |admitted| Err(format!("{admitted} in a window, at most {bound}")));
        };
        let refill_in = |length: u64| {
            (u128::from(length) * u128::from(rate.count())).div_ceil(u128::from(rate.per().as_nanos())) as u64
        };
        let refill = refill_in(delta);
        let stepped: u64 = self.steps[0].iter().map(|by| refill_in(*by).min(self.capacity)).sum();
        let jitter = u64::from(rate.count()) * 30 / (rate.per().as_nanos() / MILLI).max(1);
        let drift = (others + 1) * (refill.div_ceil(100) + jitter + 2);
        let bound = Bound::from_rate(rate, self.capacity + others * (self.capacity + refill) + drift + stepped);
        Checker::new(&bound)
            .admit_all(&events)
            .map_err(|excess| format!("B = {}, {rate}, {others} others, δ = {delta} ns: {excess:?}", self.capacity))
    }
}

/// Draws a limit of one of the four algorithms. Returns the limit, and its rate if it is a bucket or its length if it
/// is a window.
fn draw_limit(random: &mut Random, burst: u64) -> (Limit, Option<Rate>, u64) {
    let valid = |limit: Result<Limit, LimitError>| limit.unwrap_or_else(|error| panic!("{error}"));
    if random.happens_in_percent(60) {
        let rate = Rate::per_second(random.pick(&[1, 4, 10, 100, 1_000])).unwrap_or_else(|error| panic!("{error}"));
        return (valid(TokenBucket::new(rate, burst).map(Limit::from)), Some(rate), 0);
    }
    let seconds = random.pick(&[1, 3, 60]);
    let length = Nanos::from_secs(seconds);
    let limit = match random.below(3) {
        0 => FixedWindow::new(burst, length).map(Limit::from),
        1 => SlidingWindow::new(burst, length).map(Limit::from),
        _ => SlidingSlices::new(burst, length, Nanos::from_millis(seconds * 100)).map(Limit::from),
    };
    (valid(limit), None, seconds * SECOND)
}

impl std::fmt::Debug for TallySimulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
