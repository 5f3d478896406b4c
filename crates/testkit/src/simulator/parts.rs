//! Simulates groups over several places: charges, refunds, and answers that are late or lost.

use std::collections::BTreeMap;

use tollgate_core::{Algorithm, Ask, Cost, Limit, Now, Rate, TokenBucket};
use tollgate_share::parts::{Action, Parts, Reply, Verdict};

use super::{EventQueue, Random, SimulatedLink};
use crate::history::{Bound, Checker};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// A deliberate defect, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsDefect {
    /// The unchanged protocol.
    None,
    /// Refunds are applied twice.
    RefundedTwice,
}

enum PartsEvent {
    Group(usize),
    ToPlace {
        node: usize,
        place: usize,
        group: u64,
        what: PartsMessage,
    },
    /// `charged_at` is the time of an admitted charge.
    ToNode {
        group: u64,
        part: usize,
        reply: Reply,
        charged_at: Option<u64>,
    },
    Deadline {
        group: u64,
        part: usize,
        round: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartsMessage {
    Take {
        round: u64,
    },
    Peek {
        round: u64,
    },
    /// Refunds the charge made at this time.
    Refund(u64),
}

struct PartsPlace {
    limit: Limit,
    burst: u64,
    rate: Rate,
    words: Vec<u64>,
    /// Net amount of applied charges and refunds.
    taken: i64,
    history: Vec<(u64, u64)>,
    /// For each refunded charge, the interval from the charge to the refund.
    held_intervals: Vec<(u64, u64)>,
}

struct PartsGroup {
    node: usize,
    places: Vec<usize>,
    parts: Parts,
    cost: u64,
    /// Time of each part's last charge.
    charged_at: Vec<Option<u64>>,
    /// For each part, the number of the last message that asked it.
    ask_numbers: Vec<u64>,
    admitted: bool,
}

/// One simulation run.
pub struct PartsSimulation {
    random: Random,
    queue: EventQueue<PartsEvent>,
    places: Vec<PartsPlace>,
    /// Links between each node and each place, in both directions.
    links: Vec<Vec<(SimulatedLink, SimulatedLink)>>,
    groups: BTreeMap<u64, PartsGroup>,
    next: u64,
    round: u64,
    deadline: u64,
    defect: PartsDefect,
    /// Tokens of admitted groups by place, including parts whose answer came late.
    admitted_tokens: Vec<i64>,
    /// Tokens by place that were charged without an answer, or whose refund was lost or too old.
    lost_tokens: Vec<i64>,
    /// Whether any message was lost or late.
    is_faulty: bool,
    answered: u64,
    asked: u64,
}

impl PartsSimulation {
    /// Draws a run.
    pub fn draw(seed: u64, defect: PartsDefect) -> Self {
        let mut random = Random::new(seed);
        let length = random.between(1, 3) * SECOND;
        let places: Vec<PartsPlace> = (0..random.between(2, 4))
            .map(|_| {
                let burst = random.pick(&[1, 2, 5, 20, 100]);
                let rate = Rate::per_second(random.pick(&[1, 10, 100])).unwrap_or_else(|error| panic!("{error}"));
                let limit = TokenBucket::new(rate, burst).map(Limit::from).unwrap_or_else(|error| panic!("{error}"));
                let mut words = vec![0; limit.words()];
                limit.init(&mut *words, &Now::at(SECOND));
                PartsPlace { limit, burst, rate, words, taken: 0, history: Vec::new(), held_intervals: Vec::new() }
            })
            .collect();
        let nodes = random.between(1, 4) as usize;
        let link = |random: &mut Random| (SimulatedLink::draw(random, length), SimulatedLink::draw(random, length));
        let links = (0..nodes).map(|_| places.iter().map(|_| link(&mut random)).collect()).collect();
        let mut queue = EventQueue::default();
        for _ in 0..random.between(10, 100) {
            let at = SECOND + random.below(length);
            for _ in 0..random.between(1, 4) {
                queue.add(at + random.below(MILLI), PartsEvent::Group(random.below(nodes as u64) as usize));
            }
        }
        let count = places.len();
        Self {
            places,
            links,
            queue,
            groups: BTreeMap::new(),
            next: 0,
            round: 0,
            deadline: 10 * MILLI,
            defect,
            admitted_tokens: vec![0; count],
            lost_tokens: vec![0; count],
            is_faulty: false,
            answered: 0,
            asked: 0,
            random,
        }
    }

    /// Runs to the end and checks each place.
    ///
    /// # Errors
    /// Returns an error if an interval admitted too much, or tokens are neither refunded nor part of an admitted group.
    pub fn run(mut self) -> Result<(), String> {
        while let Some((now, event)) = self.queue.pop() {
            match event {
                PartsEvent::Group(node) => self.begin(now, node),
                PartsEvent::ToPlace { node, place, group, what } => {
                    self.receive_at_place(now, node, place, group, what);
                }
                PartsEvent::ToNode { group, part, reply, charged_at } => {
                    self.on_reply(now, group, part, reply, charged_at);
                }
                PartsEvent::Deadline { group, part, round } => self.give_up(now, group, part, round),
            }
        }
        self.check()
    }

    fn begin(&mut self, now: u64, node: usize) {
        let mut places: Vec<usize> = (0..self.places.len()).collect();
        while places.len() > 1 && self.random.happens_in_percent(30) {
            let drop = self.random.below(places.len() as u64) as usize;
            places.remove(drop);
        }
        let suspects: Vec<bool> = places.iter().map(|_| self.random.happens_in_percent(10)).collect();
        let least = places.iter().map(|place| self.places[*place].burst).min().unwrap_or(1);
        let cost = if self.random.happens_in_percent(80) { 1 } else { self.random.between(1, least) };
        let mut actions = Vec::new();
        let parts = Parts::new(&suspects, &mut actions);
        let (charged_at, ask_numbers) = (vec![None; places.len()], vec![0; places.len()]);
        self.next += 1;
        self.asked += 1;
        self.groups
            .insert(self.next, PartsGroup { node, places, parts, cost, charged_at, ask_numbers, admitted: false });
        self.perform_steps(now, self.next, actions);
    }

    fn perform_steps(&mut self, now: u64, number: u64, actions: Vec<Action>) {
        for action in actions {
            let Some(group) = self.groups.get_mut(&number) else { return };
            match action {
                Action::Take(part) | Action::Peek(part) => {
                    self.round += 1;
                    group.ask_numbers[part] = self.round;
                    let round = self.round;
                    let what = if matches!(action, Action::Take(_)) {
                        PartsMessage::Take { round }
                    } else {
                        PartsMessage::Peek { round }
                    };
                    self.queue.add(now + self.deadline, PartsEvent::Deadline { group: number, part, round });
                    self.send(now, number, part, what);
                }
                Action::Refund(part) => {
                    let charged_at = group.charged_at[part].take().unwrap_or(now);
                    self.send(now, number, part, PartsMessage::Refund(charged_at));
                }
                Action::Answer(verdict) => {
                    self.answered += 1;
                    self.conclude_group(now, number, verdict);
                }
            }
        }
    }

    fn conclude_group(&mut self, now: u64, number: u64, verdict: Verdict) {
        let admits = match verdict {
            Verdict::Admitted => true,
            // The `on_fault` of the rules decides the parts that got no answer. In the simulation, this decision is
            // random.
            Verdict::Partial => self.random.happens_in_percent(50),
            Verdict::Rejected | Verdict::Refused | Verdict::Stale => false,
        };
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.admitted = admits;
        let mut actions = Vec::new();
        group.parts.conclude(admits, &mut actions);
        if admits {
            for (part, place) in group.places.iter().enumerate() {
                // The part counts as admitted at the time at which its place charged the tokens.
                if let Some(at) = group.charged_at[part] {
                    self.places[*place].history.push((at, group.cost));
                    self.admitted_tokens[*place] += group.cost as i64;
                }
            }
        }
        self.perform_steps(now, number, actions);
    }

    fn send(&mut self, now: u64, number: u64, part: usize, what: PartsMessage) {
        let Some(group) = self.groups.get(&number) else { return };
        let (node, place) = (group.node, group.places[part]);
        let arrives = self.links[node][place].0.deliver(&mut self.random, now);
        match arrives {
            Some(at) => {
                let twice = self.defect == PartsDefect::RefundedTwice && matches!(what, PartsMessage::Refund(_));
                for _ in 0..1 + u64::from(twice) {
                    self.queue.add(at, PartsEvent::ToPlace { node, place, group: number, what });
                }
            }
            None => {
                self.is_faulty = true;
                if matches!(what, PartsMessage::Refund(_)) {
                    self.lost_tokens[place] += group.cost as i64;
                }
            }
        }
    }

    fn receive_at_place(&mut self, now: u64, node: usize, place: usize, number: u64, what: PartsMessage) {
        let Some(group) = self.groups.get(&number) else { return };
        let (cost, part) = (group.cost, group.places.iter().position(|one| *one == place).unwrap_or(0));
        let state = &mut self.places[place];
        let ask = Ask::Exactly(Cost::new(cost));
        let passed = match what {
            PartsMessage::Refund(charged_at) => {
                // A refund more than two deadlines after its charge is ignored, which bounds the time for which tokens
                // are held.
                if now - charged_at <= 2 * self.deadline {
                    let accepted = state.limit.refund(&mut *state.words, &Now::at(now), Cost::new(cost), None);
                    state.taken -= accepted.get() as i64;
                    state.held_intervals.push((charged_at, now));
                    self.lost_tokens[place] += cost as i64 - accepted.get() as i64;
                } else {
                    self.is_faulty = true;
                    self.lost_tokens[place] += cost as i64;
                }
                return;
            }
            PartsMessage::Take { .. } => {
                let admitted = state.limit.decide(&mut *state.words, &Now::at(now), ask).is_admitted();
                state.taken += if admitted { cost as i64 } else { 0 };
                admitted
            }
            PartsMessage::Peek { .. } => state.limit.weigh(&*state.words, &Now::at(now), ask).is_admitted(),
        };
        let reply = if passed { Reply::Passed } else { Reply::Refused };
        match self.links[node][place].1.deliver(&mut self.random, now) {
            Some(at) => {
                let charged_at = (passed && matches!(what, PartsMessage::Take { .. })).then_some(now);
                self.queue.add(at, PartsEvent::ToNode { group: number, part, reply, charged_at });
            }
            None => {
                self.is_faulty = true;
                if passed && matches!(what, PartsMessage::Take { .. }) {
                    self.lost_tokens[place] += cost as i64;
                }
            }
        }
    }

    fn on_reply(&mut self, now: u64, number: u64, part: usize, reply: Reply, charged_at: Option<u64>) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        let is_late = group.parts.reply(part) == Some(Reply::Unknown);
        if let Some(decided) = charged_at {
            group.charged_at[part] = charged_at;
            if is_late && group.admitted {
                let place = group.places[part];
                self.places[place].history.push((decided, group.cost));
                self.admitted_tokens[place] += group.cost as i64;
            }
        }
        let mut actions = Vec::new();
        group.parts.on_reply(part, reply, &mut actions);
        self.perform_steps(now, number, actions);
    }

    fn give_up(&mut self, now: u64, number: u64, part: usize, round: u64) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        if group.ask_numbers[part] != round || group.parts.reply(part).is_some() {
            return;
        }
        self.is_faulty = true;
        let mut actions = Vec::new();
        group.parts.on_reply(part, Reply::Unknown, &mut actions);
        self.perform_steps(now, number, actions);
    }

    fn check(&self) -> Result<(), String> {
        if self.answered != self.asked {
            return Err(format!("{} of {} groups were answered", self.answered, self.asked));
        }
        for (number, place) in self.places.iter().enumerate() {
            let refill = (u128::from(longest_held_period(&place.held_intervals)) * u128::from(place.rate.count()))
                .div_ceil(u128::from(place.rate.per().as_nanos()));
            let bound = Bound::from_rate(place.rate, place.burst + place.burst.min(refill as u64));
            let mut history = place.history.clone();
            history.sort_unstable();
            Checker::new(&bound)
                .admit_all(&history)
                .map_err(|excess| format!("place {number}, B = {}, {}: {excess:?}", place.burst, place.rate))?;
            let spent = self.admitted_tokens[number] + self.lost_tokens[number];
            if !self.is_faulty && place.taken != spent {
                return Err(format!("place {number}: {} taken, {spent} admitted or lost", place.taken));
            }
        }
        Ok(())
    }
}

/// Returns the longest uninterrupted time during which at least one of the charges that were refunded later was held.
fn longest_held_period(held_intervals: &[(u64, u64)]) -> u64 {
    let mut held_intervals = held_intervals.to_vec();
    held_intervals.sort_unstable();
    let (mut start, mut end, mut longest) = (0, 0, 0);
    for (charged_at, refunded) in held_intervals {
        if charged_at > end {
            start = charged_at;
        }
        end = end.max(refunded);
        longest = longest.max(end - start);
    }
    longest
}

impl std::fmt::Debug for PartsSimulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("places", &self.places.len()).finish_non_exhaustive()
    }
}
