//! Simulates groups over several places: charges, refunds, and answers that are late or lost.

use std::collections::BTreeMap;

use tollgate_core::{Algorithm, Ask, Cost, Limit, Now, Rate, TokenBucket};
use tollgate_share::parts::{Action, Parts, Reply, Verdict};

use super::{Queue, Random, SimulatedLink};
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
    /// `took` is the time of an admitted charge.
    ToNode {
        group: u64,
        part: usize,
        reply: Reply,
        took: Option<u64>,
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
    /// Intervals from a charge to its refund.
    holds: Vec<(u64, u64)>,
}

struct PartsGroup {
    node: usize,
    places: Vec<usize>,
    parts: Parts,
    cost: u64,
    /// Time of each part's last charge, and the number of the message to it.
    took: Vec<Option<u64>>,
    rounds: Vec<u64>,
    admitted: bool,
}

/// One simulation run.
pub struct PartsSimulation {
    random: Random,
    queue: Queue<PartsEvent>,
    places: Vec<PartsPlace>,
    /// Links between each node and each place, in both directions.
    links: Vec<Vec<(SimulatedLink, SimulatedLink)>>,
    groups: BTreeMap<u64, PartsGroup>,
    next: u64,
    round: u64,
    deadline: u64,
    defect: PartsDefect,
    /// Tokens of admitted groups by place, including those of unknown parts.
    kept: Vec<i64>,
    /// Charges whose answer never arrived, or whose refund was lost or too old.
    lost: Vec<i64>,
    /// Whether any message was lost or late.
    is_faulty: bool,
    answered: u64,
    asked: u64,
}

impl PartsSimulation {
    /// Draws a run.
    pub fn draw(seed: u64, defect: PartsDefect) -> Self {
        let mut random = Random::new(seed);
        let length = random.within(1, 3) * SECOND;
        let places: Vec<PartsPlace> = (0..random.within(2, 4))
            .map(|_| {
                let burst = random.pick(&[1, 2, 5, 20, 100]);
                let rate = Rate::per_second(random.pick(&[1, 10, 100])).unwrap_or_else(|error| panic!("{error}"));
                let limit = TokenBucket::new(rate, burst).map(Limit::from).unwrap_or_else(|error| panic!("{error}"));
                let mut words = vec![0; limit.words()];
                limit.init(&mut *words, &Now::at(SECOND));
                PartsPlace { limit, burst, rate, words, taken: 0, history: Vec::new(), holds: Vec::new() }
            })
            .collect();
        let nodes = random.within(1, 4) as usize;
        let link = |random: &mut Random| (SimulatedLink::draw(random, length), SimulatedLink::draw(random, length));
        let links = (0..nodes).map(|_| places.iter().map(|_| link(&mut random)).collect()).collect();
        let mut queue = Queue::default();
        for _ in 0..random.within(10, 100) {
            let at = SECOND + random.below(length);
            for _ in 0..random.within(1, 4) {
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
            kept: vec![0; count],
            lost: vec![0; count],
            is_faulty: false,
            answered: 0,
            asked: 0,
            random,
        }
    }

    /// Runs to the end and checks each place.
    ///
    /// # Errors
    /// If an interval admitted too much, or tokens are neither refunded nor part of an admitted group.
    pub fn run(mut self) -> Result<(), String> {
        while let Some((now, event)) = self.queue.pop() {
            match event {
                PartsEvent::Group(node) => self.begin(now, node),
                PartsEvent::ToPlace { node, place, group, what } => self.at_place(now, node, place, group, what),
                PartsEvent::ToNode { group, part, reply, took } => self.on_reply(now, group, part, reply, took),
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
        let cost = if self.random.happens_in_percent(80) { 1 } else { self.random.within(1, least) };
        let mut actions = Vec::new();
        let parts = Parts::new(&suspects, &mut actions);
        let (took, rounds) = (vec![None; places.len()], vec![0; places.len()]);
        self.next += 1;
        self.asked += 1;
        self.groups.insert(self.next, PartsGroup { node, places, parts, cost, took, rounds, admitted: false });
        self.carry_out(now, self.next, actions);
    }

    fn carry_out(&mut self, now: u64, number: u64, actions: Vec<Action>) {
        for action in actions {
            let Some(group) = self.groups.get_mut(&number) else { return };
            match action {
                Action::Take(part) | Action::Peek(part) => {
                    self.round += 1;
                    group.rounds[part] = self.round;
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
                    let took = group.took[part].take().unwrap_or(now);
                    self.send(now, number, part, PartsMessage::Refund(took));
                }
                Action::Answer(verdict) => {
                    self.answered += 1;
                    self.answer(now, number, verdict);
                }
            }
        }
    }

    fn answer(&mut self, now: u64, number: u64, verdict: Verdict) {
        let admits = match verdict {
            Verdict::Admitted => true,
            // The rules' policy decides about parts without an answer.
            Verdict::Partial => self.random.happens_in_percent(50),
            Verdict::Rejected | Verdict::Refused | Verdict::Stale => false,
        };
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.admitted = admits;
        let mut actions = Vec::new();
        group.parts.conclude(admits, &mut actions);
        if admits {
            for (part, place) in group.places.iter().enumerate() {
                // The part counts from when its place charged the tokens.
                if let Some(at) = group.took[part] {
                    self.places[*place].history.push((at, group.cost));
                    self.kept[*place] += group.cost as i64;
                }
            }
        }
        self.carry_out(now, number, actions);
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
                    self.lost[place] += group.cost as i64;
                }
            }
        }
    }

    fn at_place(&mut self, now: u64, node: usize, place: usize, number: u64, what: PartsMessage) {
        let Some(group) = self.groups.get(&number) else { return };
        let (cost, part) = (group.cost, group.places.iter().position(|one| *one == place).unwrap_or(0));
        let state = &mut self.places[place];
        let ask = Ask::Exactly(Cost::new(cost));
        let passed = match what {
            PartsMessage::Refund(took) => {
                // A refund older than a call can last would give back tokens that have already refilled.
                if now - took <= 2 * self.deadline {
                    let accepted = state.limit.refund(&mut *state.words, &Now::at(now), Cost::new(cost), None);
                    state.taken -= accepted.get() as i64;
                    state.holds.push((took, now));
                    self.lost[place] += cost as i64 - accepted.get() as i64;
                } else {
                    self.is_faulty = true;
                    self.lost[place] += cost as i64;
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
                let took = (passed && matches!(what, PartsMessage::Take { .. })).then_some(now);
                self.queue.add(at, PartsEvent::ToNode { group: number, part, reply, took });
            }
            None => {
                self.is_faulty = true;
                if passed && matches!(what, PartsMessage::Take { .. }) {
                    self.lost[place] += cost as i64;
                }
            }
        }
    }

    fn on_reply(&mut self, now: u64, number: u64, part: usize, reply: Reply, took: Option<u64>) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        let is_late = group.parts.reply(part) == Some(Reply::Unknown);
        if let Some(decided) = took {
            group.took[part] = took;
            if is_late && group.admitted {
                let place = group.places[part];
                self.places[place].history.push((decided, group.cost));
                self.kept[place] += group.cost as i64;
            }
        }
        let mut actions = Vec::new();
        group.parts.on(part, reply, &mut actions);
        self.carry_out(now, number, actions);
    }

    fn give_up(&mut self, now: u64, number: u64, part: usize, round: u64) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        if group.rounds[part] != round || group.parts.reply(part).is_some() {
            return;
        }
        self.is_faulty = true;
        let mut actions = Vec::new();
        group.parts.on(part, Reply::Unknown, &mut actions);
        self.carry_out(now, number, actions);
    }

    fn check(&self) -> Result<(), String> {
        if self.answered != self.asked {
            return Err(format!("{} of {} groups were answered", self.answered, self.asked));
        }
        for (number, place) in self.places.iter().enumerate() {
            let refill = (u128::from(longest_chain(&place.holds)) * u128::from(place.rate.count()))
                .div_ceil(u128::from(place.rate.per().as_nanos()));
            let bound = Bound::of(place.rate, place.burst + place.burst.min(refill as u64));
            let mut history = place.history.clone();
            history.sort_unstable();
            Checker::new(&bound)
                .admit_all(&history)
                .map_err(|excess| format!("place {number}, B = {}, {}: {excess:?}", place.burst, place.rate))?;
            let spent = self.kept[number] + self.lost[number];
            if !self.is_faulty && place.taken != spent {
                return Err(format!("place {number}: {} taken, {spent} admitted or lost", place.taken));
            }
        }
        Ok(())
    }
}

/// Returns the longest uninterrupted time during which tokens were held that were later refunded.
fn longest_chain(holds: &[(u64, u64)]) -> u64 {
    let mut holds = holds.to_vec();
    holds.sort_unstable();
    let (mut start, mut end, mut longest) = (0, 0, 0);
    for (took, refunded) in holds {
        if took > end {
            start = took;
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
