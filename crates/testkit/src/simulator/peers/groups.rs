//! Groups over several homes: every request charges some of the run's keys through `tollgate_peers::group`.

use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost};
use tollgate_peers::NodeId;
use tollgate_peers::ask::{self, Answer, Ask, AskAction, AskCharge, ChargeAnswer};
use tollgate_peers::group::{GroupAction, GroupRun, Home};
use tollgate_peers::homes::{Hop, Route};
use tollgate_peers::mesh::Event as MeshEvent;
use tollgate_peers::table::Verb;
use tollgate_peers::wire::Frame;

use super::{MILLI, PeersDefect, PeersEvent, PeersSimulation};

/// Time after which a request stops waiting for the answer of a home.
pub(super) const GROUP_DEADLINE: u64 = 100 * MILLI;

/// A group that a request has started.
#[derive(Debug)]
pub(super) struct SimulatedGroup {
    host: usize,
    /// The process on which the request was made.
    id: NodeId,
    cost: u64,
    /// Indices of the group's keys.
    keys: Vec<usize>,
    run: GroupRun<()>,
    /// Unanswered asks.
    waiting: u32,
}

impl PeersSimulation {
    /// Returns the keys of the run. The fingerprints of the keys differ only in bits that do not select a shard.
    fn group_keys(&self) -> impl Iterator<Item = Fingerprint> + use<> {
        let (low, high) = self.key.parts();
        (0..self.group_size).map(move |number| Fingerprint::from_parts(low.wrapping_add(number << 20), high))
    }

    /// Makes a request that charges some of the keys.
    pub(super) fn request_group(&mut self, now: u64, host: usize, cost: u64) {
        let chosen = self.random.between(1, (1 << self.group_size) - 1);
        let keys: Vec<usize> = (0..self.group_size as usize).filter(|index| chosen >> index & 1 == 1).collect();
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let id = process.id;
        let amount = Amount::Exactly(Cost::new(cost));
        let home = |key| match process.mesh.homes().route(key, Hop::Origin) {
            Route::Here => Some((None, amount)),
            Route::To(node) => Some((Some(node), amount)),
            Route::Unavailable(_) => None,
        };
        // The rule's `on_fault` would decide here, but it is not simulated.
        let all: Vec<Fingerprint> = self.group_keys().collect();
        let Some(homes) = keys.iter().map(|index| home(all[*index])).collect::<Option<Vec<_>>>() else { return };
        let mut actions = Vec::new();
        let run = GroupRun::new(id, Verb::Check, homes, &mut actions);
        self.next_ask += 1;
        let number = self.next_ask;
        self.groups.insert(number, SimulatedGroup { host, id, cost, keys, run, waiting: 0 });
        self.perform_group_actions(now, number, actions);
    }

    /// Performs the actions of a group, and ends the group when no ask is pending.
    fn perform_group_actions(&mut self, now: u64, number: u64, actions: Vec<GroupAction>) {
        let mut actions: std::collections::VecDeque<GroupAction> = actions.into();
        while let Some(action) = actions.pop_front() {
            let Some(host) = self.groups.get(&number).map(|group| group.host) else { return };
            match action {
                GroupAction::Ask { home, verb, charges } => {
                    let charges = charges.into_iter().map(|index| (index, None)).collect::<Vec<_>>();
                    if let Some(group) = self.groups.get_mut(&number) {
                        group.waiting += 1;
                    }
                    match home {
                        Some(node) => {
                            let ask = self.new_group_ask(number, host, verb, &charges);
                            self.group_asks.insert(ask.id, (number, home));
                            self.queue.add(now + GROUP_DEADLINE, PeersEvent::GiveUp { ask: ask.id });
                            self.send(now, host, node, &Frame::Ask(ask));
                        }
                        None => {
                            let ask = self.new_group_ask(number, host, verb, &charges);
                            let result = self.decide_group_here(now, host, ask);
                            let mut next = Vec::new();
                            self.pass_answer_to_group(number, None, result, &mut next);
                            actions.extend(next);
                        }
                    }
                }
                GroupAction::Return { .. } if self.defect == PeersDefect::GroupNotUndone => {}
                GroupAction::Return { home, verb, charges } => {
                    let charges: Vec<_> =
                        charges.into_iter().map(|(index, cost, stamps)| (index, Some((cost, stamps)))).collect();
                    let ask = self.new_group_ask(number, host, verb, &charges);
                    match home {
                        Some(node) => self.send(now, host, node, &Frame::Ask(ask)),
                        None => drop(self.decide_group_here(now, host, ask)),
                    }
                }
            }
        }
        if self.groups.get(&number).is_some_and(|group| group.waiting == 0)
            && let Some(group) = self.groups.remove(&number)
            && let Ok(answers) = group.run.finish()
            && answers.iter().all(|answer| answer.outcome.is_admitted())
        {
            // The excess is checked for the first key.
            if group.keys.contains(&0) {
                self.history.push((now, group.cost));
            }
            group.keys.iter().for_each(|index| self.group_admitted[*index] += group.cost);
            self.outcome.admitted += group.cost;
        }
    }

    fn new_group_ask(
        &mut self,
        number: u64,
        host: usize,
        verb: Verb,
        charges: &[(usize, Option<(Cost, tollgate_core::Stamps)>)],
    ) -> Ask {
        let all: Vec<Fingerprint> = self.group_keys().collect();
        let group = self.groups.get(&number);
        let (cost, keys) = group.map_or((0, &[][..]), |group| (group.cost, &group.keys));
        let limits = self.hosts[host].process.as_ref().map(|process| process.limits.encoded().clone());
        let charge = |(index, returned): &(usize, Option<(Cost, tollgate_core::Stamps)>)| AskCharge {
            key: all[keys[*index]],
            limits: limits.clone().unwrap_or_default(),
            amount: Amount::Exactly(returned.map_or(Cost::new(cost), |(cost, _)| cost)),
            stamps: returned.map(|(_, stamps)| stamps),
        };
        self.next_ask += 1;
        Ask { id: self.next_ask, hop: Hop::FromOrigin, verb, charges: charges.iter().map(charge).collect() }
    }

    /// Decides the charges whose home is this host.
    fn decide_group_here(&mut self, now: u64, host: usize, ask: Ask) -> Result<Vec<ChargeAnswer>, ()> {
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_ref() else { return Err(()) };
        let ask = Ask { hop: Hop::Last, ..ask };
        let AskAction::Answer { answer, urgent } = ask::receive_ask(process.mesh.homes(), &process.table, &local, ask)
        else {
            return Err(());
        };
        self.record_group_decision(now, host, &answer, urgent);
        answer.result.map(Vec::from_iter).map_err(drop)
    }

    /// Records that a host decided charges of a group.
    pub(super) fn record_group_decision(&mut self, now: u64, host: usize, answer: &Answer, urgent: bool) {
        let charges = answer.result.iter().flatten();
        if charges.clone().any(|charge| charge.taken > Cost::ZERO) {
            self.deciders.extend(self.hosts[host].process.as_ref().map(|process| process.id));
            super::check::check_majority(self, now, host);
        }
        if urgent {
            self.handle_mesh_event(now, host, MeshEvent::Urgent);
        }
    }

    fn pass_answer_to_group(
        &mut self,
        number: u64,
        home: Home,
        result: Result<Vec<ChargeAnswer>, ()>,
        actions: &mut Vec<GroupAction>,
    ) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.waiting -= 1;
            group.run.on(home, result, actions);
        }
    }

    /// Handles an answer at the host that made the request, or at the host that relayed it.
    pub(super) fn receive_group_answer(&mut self, now: u64, host: usize, answer: Answer) {
        if let Some((from, id)) = self.relays.remove(&answer.id) {
            if let Some(peer) = self.hosts[from].process.as_ref().map(|process| process.id) {
                self.send(now, host, peer, &Frame::Answer(Answer { id, ..answer }));
            }
            return;
        }
        self.end_group_ask(now, answer.id, answer.result.map(Vec::from_iter).map_err(drop));
    }

    /// Ends an ask without an answer.
    pub(super) fn abandon_ask(&mut self, now: u64, ask: u64) {
        if self.group_asks.contains_key(&ask) {
            self.faults.unanswered += 1;
            self.end_group_ask(now, ask, Err(()));
        }
    }

    fn end_group_ask(&mut self, now: u64, ask: u64, result: Result<Vec<ChargeAnswer>, ()>) {
        let Some((number, home)) = self.group_asks.remove(&ask) else { return };
        let is_running = self
            .groups
            .get(&number)
            .is_some_and(|group| self.hosts[group.host].process.as_ref().is_some_and(|process| process.id == group.id));
        if !is_running {
            // The requesting process has ended, so the group's charges are never undone.
            self.groups.remove(&number);
            self.faults.unanswered += 1;
            return;
        }
        let mut actions = Vec::new();
        self.pass_answer_to_group(number, home, result, &mut actions);
        self.perform_group_actions(now, number, actions);
    }

    /// Checks that every group charged all of its keys or none. If nothing failed, the charges of each key must
    /// equal the cost of its admitted groups. The bucket does not refill during a run.
    pub(super) fn check_all_or_none(&self, end: u64) -> Result<(), String> {
        if self.group_size < 2 || self.has_faults || self.faults.unanswered + self.faults.joined_without_snapshot > 0 {
            return Ok(());
        }
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(process) = host.process.as_ref().filter(|process| process.is_ready()) else { continue };
            let used: Vec<u64> = self.group_keys().map(|key| process.table.used(key, &host.now(end))).collect();
            if used != self.group_admitted {
                return Err(format!(
                    "host {at} has {used:?} used, and groups were admitted with {:?}",
                    self.group_admitted
                ));
            }
        }
        Ok(())
    }
}
