//! Sends groups to the servers of a cluster, follows redirections, and decides groups whose keys are at several servers.
//!
//! A group that is redirected was not executed, so it is sent again within the deadline, at most three times.
//!
//! **A group over several lanes** is split into parts, which take at the same time, in one round trip;
//! [`tollgate_share::parts`] decides what follows. If a part has no answer, the others are refunded, and the group has none.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{Ask, Cost, Outcome, Report, Stamps, Time, Wall};
use tollgate_engine::store::{Answer, Answers, Charge, Group, StoreError, StoreVerb};
use tollgate_share::parts::{Action, Parts, Reply as PartReply, Verdict};

use crate::answer::ReplyReader;
use crate::batcher::{GroupReply, NoReply, ReplyPart};
use crate::cluster::Cluster;
use crate::config::{BATCH, Config};
use crate::lanes::lane_of;
use crate::primary::{Primary, Ticket};
use crate::request::{QueuedGroup, Route};
use crate::store::{RedisStore, Reply};

/// How often a group is sent again because of redirections.
const MAX_RESENDS: u8 = 3;

/// Groups that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    indexes: Vec<usize>,
    groups: Vec<QueuedGroup>,
    charges: usize,
    /// Groups that cannot be sent.
    pub(crate) failed: Vec<(usize, StoreError)>,
}

/// Groups that were sent.
pub(crate) struct Sent {
    indexes: Vec<usize>,
    ticket: Option<Result<Ticket, StoreError>>,
    failed: Vec<(usize, StoreError)>,
}

impl Outbox {
    pub(crate) fn is_full_for(&self, group: &QueuedGroup) -> bool {
        !self.groups.is_empty() && self.charges + group.charges.len() > BATCH
    }

    pub(crate) fn push(&mut self, index: usize, group: QueuedGroup) {
        self.charges += group.charges.len();
        self.indexes.push(index);
        self.groups.push(group);
    }

    /// Queues the groups.
    pub(crate) fn send(self, primary: &Primary) -> Sent {
        let ticket = (!self.groups.is_empty()).then(|| primary.send(self.groups));
        Sent { indexes: self.indexes, ticket, failed: self.failed }
    }
}

impl Sent {
    /// Waits for the answers and passes each on with the index of its group.
    pub(crate) async fn redeem(self, deadline: Instant, config: &Config, mut answer: impl FnMut(usize, GroupReply)) {
        let replies = match self.ticket {
            Some(Ok(ticket)) => ticket.redeem(deadline, config).await,
            Some(Err(error)) => Err(error),
            None => Ok(Vec::new()),
        };
        match replies {
            Ok(replies) => self.indexes.into_iter().zip(replies).for_each(|(index, reply)| answer(index, reply)),
            Err(error) => self.indexes.into_iter().for_each(|index| answer(index, Err(NoReply::Failed(error.clone())))),
        }
        self.failed.into_iter().for_each(|(index, error)| answer(index, Err(NoReply::Failed(error))));
    }
}

/// A group, or a part of one, that is sent to one server.
struct Job<'a> {
    verb: StoreVerb,
    charges: &'a [Charge<'a>],
    route: Route,
    /// The server that a redirection names, instead of that of the lane.
    address: Option<String>,
    resends: u8,
    reply: Option<Result<ReplyPart, JobError>>,
}

enum JobError {
    Failed(StoreError),
    /// Its keys are at two servers, so each charge has to be sent by itself.
    Split,
}

impl<'a> Job<'a> {
    fn new(verb: StoreVerb, charges: &'a [Charge<'a>], lane: u8) -> Self {
        let route = Route { lane, ..Route::default() };
        Self { verb, charges, route, address: None, resends: 0, reply: None }
    }

    /// Notes a reply, or where to send the job next.
    fn note(&mut self, reply: GroupReply, cluster: &Cluster) {
        let redirected = match reply {
            Ok(part) => return self.reply = Some(Ok(part)),
            Err(NoReply::Failed(error)) => return self.reply = Some(Err(JobError::Failed(error))),
            Err(NoReply::Moved(address)) => {
                cluster.moved(self.route.lane.into(), &address);
                (self.address, self.route.asking) = (Some(address.clone()), false);
                address
            }
            Err(NoReply::Ask(address)) => {
                (self.address, self.route.asking, self.route.alone) = (Some(address.clone()), true, true);
                address
            }
            // Of several groups in a call, those whose keys are at one server can be decided there.
            Err(NoReply::TryAgain) if !self.route.alone => {
                self.route.alone = true;
                "the same server".to_owned()
            }
            Err(NoReply::TryAgain) if self.charges.len() > 1 => return self.reply = Some(Err(JobError::Split)),
            Err(NoReply::TryAgain) => "the same server".to_owned(),
        };
        self.resends += 1;
        if self.resends > MAX_RESENDS {
            let why = format!("redirected more than {MAX_RESENDS} times, last to {redirected}");
            self.reply = Some(Err(JobError::Failed(StoreError::Unavailable { why })));
        }
    }

    /// Reads the answer.
    fn read(&self) -> Result<PartAnswer, StoreError> {
        let part = match &self.reply {
            Some(Ok(part)) => part,
            Some(Err(JobError::Failed(error))) => return Err(error.clone()),
            Some(Err(JobError::Split)) | None => {
                return Err(StoreError::Unavailable { why: "its keys are being moved".to_owned() });
            }
        };
        let mut answers = Answers::default();
        let group = Group { verb: self.verb, charges: self.charges };
        if ReplyReader::new(part.bytes(), part.now, part.decider).read(&group, &mut answers).is_err() {
            return Err(StoreError::Unknown { why: "the reply of the script is too short".to_owned() });
        }
        let group = answers.group(0)?;
        let charge = |answer: &Answer| ChargeAnswer {
            outcome: answer.outcome,
            taken: answer.taken,
            stamps: group.stamps(answer),
            reports: group.reports(answer).to_vec(),
        };
        Ok(PartAnswer { charges: group.charges().iter().map(charge).collect(), at: group.at() })
    }
}

/// The answer to one charge.
#[derive(Clone, Debug)]
struct ChargeAnswer {
    outcome: Outcome,
    taken: Cost,
    stamps: Stamps,
    reports: Vec<Report>,
}

/// The answer to a part of a group.
#[derive(Debug)]
struct PartAnswer {
    charges: Vec<ChargeAnswer>,
    at: Time<Wall>,
}

impl PartAnswer {
    fn is_admitted(&self) -> bool {
        self.charges.iter().all(|charge| charge.outcome.is_admitted())
    }
}

/// The answer to a group over several lanes.
#[derive(Debug)]
pub(crate) struct Merged {
    charges: Vec<ChargeAnswer>,
    at: Time<Wall>,
}

impl Merged {
    /// Adds it as the answer to the group.
    pub(crate) fn answer(self, answers: &mut Answers) {
        for charge in self.charges {
            answers.charge(charge.outcome, charge.taken, charge.stamps, charge.reports);
        }
        answers.end_group(self.at);
    }
}

/// The part of a group that is in one lane.
struct Part<'a> {
    lane: u8,
    /// The positions of the charges in the group.
    places: Vec<usize>,
    charges: Vec<Charge<'a>>,
}

/// Splits a group by lanes, in ascending order; with `each`, every charge is a part.
fn split<'a>(charges: &[Charge<'a>], each: bool) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(1);
    for (place, charge) in charges.iter().enumerate() {
        let lane = lane_of(charge.placed_by()) as u8;
        match parts.iter_mut().find(|part| part.lane == lane && !each) {
            Some(part) => {
                part.places.push(place);
                part.charges.push(*charge);
            }
            None => parts.push(Part { lane, places: vec![place], charges: vec![*charge] }),
        }
    }
    parts.sort_by_key(|part| part.lane);
    parts
}

impl RedisStore {
    /// Sends all groups without a reply to the servers of a cluster.
    pub(crate) async fn ask_cluster(
        &self,
        cluster: &Cluster,
        groups: &[Group<'_>],
        replies: &mut [Option<Reply>],
        deadline: Instant,
    ) {
        // A group over several lanes may hold tokens until it is refused, which later groups must not see.
        let mut held: HashSet<&[u8]> = HashSet::new();
        let mut together: Vec<(usize, Vec<Part<'_>>)> = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            if replies[index].is_some() {
                continue;
            }
            if !held.is_empty() && group.charges.iter().any(|charge| held.contains(charge.key)) {
                self.ask_together(cluster, groups, std::mem::take(&mut together), replies, deadline).await;
                held.clear();
            }
            let parts = split(group.charges, false);
            if parts.len() > 1 && group.verb == StoreVerb::Check {
                held.extend(group.charges.iter().map(|charge| charge.key));
            }
            together.push((index, parts));
        }
        self.ask_together(cluster, groups, together, replies, deadline).await;
    }

    /// Sends groups, each with its index and parts, at the same time.
    async fn ask_together(
        &self,
        cluster: &Cluster,
        groups: &[Group<'_>],
        together: Vec<(usize, Vec<Part<'_>>)>,
        replies: &mut [Option<Reply>],
        deadline: Instant,
    ) {
        let (open, parts): (Vec<usize>, Vec<Vec<Part<'_>>>) = together.into_iter().unzip();
        let mut jobs = Vec::with_capacity(open.len());
        for (index, parts) in open.iter().zip(&parts) {
            jobs.extend(parts.iter().map(|part| Job::new(groups[*index].verb, &part.charges, part.lane)));
        }
        self.exchange(cluster, &mut jobs, deadline).await;
        let mut jobs = jobs.into_iter();
        for (index, parts) in open.into_iter().zip(&parts) {
            let mut jobs: Vec<Job<'_>> = jobs.by_ref().take(parts.len()).collect();
            let is_split = jobs.iter().any(|job| matches!(job.reply, Some(Err(JobError::Split))));
            replies[index] = Some(if let ([job], false) = (&mut *jobs, is_split) {
                match job.reply.take() {
                    Some(Ok(part)) => Reply::Part(part),
                    Some(Err(JobError::Failed(error))) => Reply::Failed(error),
                    Some(Err(JobError::Split)) | None => {
                        Reply::Failed(StoreError::Unavailable { why: "its keys are being moved".to_owned() })
                    }
                }
            } else {
                let merged = if is_split {
                    self.decide_each(cluster, &groups[index], parts, &jobs, deadline).await
                } else {
                    let answers = jobs.iter().map(Job::read).collect();
                    self.settle(cluster, &groups[index], parts, answers, deadline).await
                };
                merged.map_or_else(Reply::Failed, Reply::Merged)
            });
        }
    }

    /// Decides a group with one part for each charge, because the keys of a lane are at two servers.
    async fn decide_each(
        &self,
        cluster: &Cluster,
        group: &Group<'_>,
        parts: &[Part<'_>],
        jobs: &[Job<'_>],
        deadline: Instant,
    ) -> Result<Merged, StoreError> {
        for (part, job) in parts.iter().zip(jobs) {
            if let Ok(answer) = job.read()
                && group.verb == StoreVerb::Check
            {
                self.refund(cluster, part, &answer, deadline).await?;
            }
        }
        let parts = split(group.charges, true);
        let mut jobs: Vec<Job<'_>> = parts.iter().map(|part| Job::new(group.verb, &part.charges, part.lane)).collect();
        jobs.iter_mut().for_each(|job| job.route.alone = true);
        self.exchange(cluster, &mut jobs, deadline).await;
        let answers = jobs.iter().map(Job::read).collect();
        self.settle(cluster, group, &parts, answers, deadline).await
    }

    /// Sends jobs until each has a reply, following redirections.
    async fn exchange(&self, cluster: &Cluster, jobs: &mut [Job<'_>], deadline: Instant) {
        while jobs.iter().any(|job| job.reply.is_none()) {
            let mut outboxes: Vec<(Arc<Primary>, Outbox)> = Vec::new();
            let mut sent: Vec<(Arc<Primary>, Sent)> = Vec::new();
            for (index, job) in jobs.iter_mut().enumerate().filter(|(_, job)| job.reply.is_none()) {
                let primary = match &job.address {
                    Some(address) => cluster.primary_at(address),
                    None => cluster.primary(job.route.lane.into()),
                };
                let encoded = self.encode(&Group { verb: job.verb, charges: job.charges }, job.route);
                let (primary, encoded) = match (primary, encoded) {
                    (Ok(primary), Ok(encoded)) => (primary, encoded),
                    (Err(error), _) | (_, Err(error)) => {
                        job.reply = Some(Err(JobError::Failed(error)));
                        continue;
                    }
                };
                let at = outboxes.iter().position(|(known, _)| Arc::ptr_eq(known, &primary)).unwrap_or_else(|| {
                    outboxes.push((primary.clone(), Outbox::default()));
                    outboxes.len() - 1
                });
                let outbox = &mut outboxes[at].1;
                if outbox.is_full_for(&encoded) {
                    sent.push((primary.clone(), std::mem::take(outbox).send(&primary)));
                }
                outbox.push(index, encoded);
            }
            sent.extend(outboxes.into_iter().map(|(primary, outbox)| {
                let sent = outbox.send(&primary);
                (primary, sent)
            }));
            for (primary, sent) in sent {
                sent.redeem(deadline, primary.config(), |index, reply| jobs[index].note(reply, cluster)).await;
            }
        }
    }

    /// Decides a group from the answers to its parts.
    async fn settle(
        &self,
        cluster: &Cluster,
        group: &Group<'_>,
        parts: &[Part<'_>],
        first: Vec<Result<PartAnswer, StoreError>>,
        deadline: Instant,
    ) -> Result<Merged, StoreError> {
        if group.verb != StoreVerb::Check {
            let answers = first.into_iter().collect::<Result<Vec<_>, _>>()?;
            return Ok(merge(parts, answers));
        }
        let mut actions = Vec::new();
        let mut machine = Parts::new(&vec![false; parts.len()], &mut actions);
        // The first round, in which all parts take, is over.
        actions.clear();
        let mut answers: Vec<Option<PartAnswer>> = parts.iter().map(|_| None).collect();
        let mut errors: Vec<StoreError> = Vec::new();
        let mut note =
            |at: usize, answer: Result<PartAnswer, StoreError>, machine: &mut Parts, actions: &mut Vec<Action>| {
                machine.on(at, reply_of(&answer), actions);
                match answer {
                    Ok(answer) => return Some(answer),
                    Err(error) => errors.push(error),
                }
                None
            };
        for (at, answer) in first.into_iter().enumerate() {
            if let Some(answer) = note(at, answer, &mut machine, &mut actions) {
                answers[at] = Some(answer);
            }
        }
        let mut verdict = None;
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Refund(at) => {
                        if let Some(answer) = &mut answers[at] {
                            self.refund(cluster, &parts[at], answer, deadline).await?.replace_in(answer);
                        }
                    }
                    Action::Take(at) | Action::Peek(at) => {
                        let mut job = [Job::new(StoreVerb::Check, &parts[at].charges, parts[at].lane)];
                        self.exchange(cluster, &mut job, deadline).await;
                        if let Some(answer) = note(at, job[0].read(), &mut machine, &mut actions) {
                            answers[at] = Some(answer);
                        }
                    }
                    Action::Answer(Verdict::Partial) => {
                        // The rule decides about the request as a whole, so what the other parts took is given back.
                        verdict = Some(Verdict::Partial);
                        machine.conclude(false, &mut actions);
                    }
                    Action::Answer(answer) => verdict = Some(answer),
                }
            }
        }
        let answered =
            |at: usize, answer: Option<PartAnswer>| answer.unwrap_or_else(|| PartAnswer::nothing(&parts[at]));
        let answers = answers.into_iter().enumerate().map(|(at, answer)| answered(at, answer)).collect();
        match verdict {
            Some(Verdict::Admitted) => self.equalise(cluster, parts, answers, deadline).await,
            Some(Verdict::Refused) => Ok(merge(parts, answers)),
            Some(Verdict::Rejected | Verdict::Stale | Verdict::Partial) | None => {
                let error = errors.into_iter().min_by_key(severity);
                Err(error.unwrap_or_else(|| StoreError::Unknown { why: "no verdict about a group".to_owned() }))
            }
        }
    }

    /// Charges that take up to an amount all take the least that any of them can: the others give back the rest.
    async fn equalise(
        &self,
        cluster: &Cluster,
        parts: &[Part<'_>],
        mut answers: Vec<PartAnswer>,
        deadline: Instant,
    ) -> Result<Merged, StoreError> {
        let charges = |answers: &[PartAnswer]| -> Vec<(usize, usize, Cost)> {
            let each = parts.iter().zip(answers).enumerate();
            let up_to = each.flat_map(|(at, (part, answer))| {
                let taken = part.charges.iter().zip(&answer.charges).enumerate();
                taken
                    .filter(|(_, (charge, _))| matches!(charge.ask, Ask::UpTo(_)))
                    .map(move |(n, (_, one))| (at, n, one.taken))
            });
            up_to.collect()
        };
        let up_to = charges(&answers);
        let least = up_to.iter().map(|(_, _, taken)| *taken).min().unwrap_or_default();
        for (at, number, taken) in up_to.into_iter().filter(|(_, _, taken)| *taken > least) {
            let excess = Ask::Exactly(Cost::new(taken.get() - least.get()));
            let one = &answers[at].charges[number];
            let stamps = one.stamps;
            let charge = [Charge { ask: excess, stamps: Some(&stamps), ..parts[at].charges[number] }];
            let mut job = [Job::new(StoreVerb::Refund, &charge, parts[at].lane)];
            self.exchange(cluster, &mut job, deadline).await;
            let refunded = job[0].read()?;
            let charge = &mut answers[at].charges[number];
            charge.taken = least;
            if let Some(one) = refunded.charges.into_iter().next() {
                charge.reports = one.reports;
            }
        }
        Ok(merge(parts, answers))
    }

    /// Refunds what a part took; returns the answer, which has what is left afterwards.
    async fn refund(
        &self,
        cluster: &Cluster,
        part: &Part<'_>,
        answer: &PartAnswer,
        deadline: Instant,
    ) -> Result<Refunded, StoreError> {
        if !answer.is_admitted() || answer.charges.iter().all(|charge| charge.taken == Cost::ZERO) {
            return Ok(Refunded(None));
        }
        let charges: Vec<Charge<'_>> = part
            .charges
            .iter()
            .zip(&answer.charges)
            .map(|(charge, answer)| Charge { ask: Ask::Exactly(answer.taken), stamps: Some(&answer.stamps), ..*charge })
            .collect();
        let mut job = [Job::new(StoreVerb::Refund, &charges, part.lane)];
        self.exchange(cluster, &mut job, deadline).await;
        job[0].read().map(|answer| Refunded(Some(answer)))
    }
}

/// The answer to a refund, if there was anything to refund.
struct Refunded(Option<PartAnswer>);

impl Refunded {
    /// Makes what is left after the refund the answer of a part that takes nothing.
    fn replace_in(self, answer: &mut PartAnswer) {
        let Some(refunded) = self.0 else { return };
        for (charge, refunded) in answer.charges.iter_mut().zip(refunded.charges) {
            (charge.taken, charge.stamps, charge.reports) = (Cost::ZERO, Stamps::default(), refunded.reports);
        }
    }
}

impl PartAnswer {
    /// The answer to a part of which nothing is known, in a group that another part refuses.
    fn nothing(part: &Part<'_>) -> Self {
        let nothing =
            ChargeAnswer { outcome: Outcome::Allow, taken: Cost::ZERO, stamps: Stamps::default(), reports: Vec::new() };
        Self { charges: vec![nothing; part.charges.len()], at: Time::ZERO }
    }
}

/// Returns what a server said about a part.
fn reply_of(answer: &Result<PartAnswer, StoreError>) -> PartReply {
    match answer {
        Ok(answer) if answer.is_admitted() => PartReply::Passed,
        Ok(_) => PartReply::Refused,
        Err(StoreError::Rejected { .. }) => PartReply::Rejected,
        Err(StoreError::Stale { .. }) => PartReply::Stale,
        Err(StoreError::Unavailable { .. }) => PartReply::Unavailable,
        Err(StoreError::Unknown { .. }) => PartReply::Unknown,
    }
}

/// Returns the order in which errors decide about a group.
fn severity(error: &StoreError) -> u8 {
    match error {
        StoreError::Rejected { .. } => 0,
        StoreError::Stale { .. } => 1,
        StoreError::Unavailable { .. } => 2,
        StoreError::Unknown { .. } => 3,
    }
}

/// Puts the answers to all charges back into the order of the group.
fn merge(parts: &[Part<'_>], answers: Vec<PartAnswer>) -> Merged {
    let at = answers.iter().map(|answer| answer.at).max().unwrap_or(Time::ZERO);
    let placed = parts.iter().zip(answers).flat_map(|(part, answer)| part.places.iter().copied().zip(answer.charges));
    let mut placed: Vec<(usize, ChargeAnswer)> = placed.collect();
    placed.sort_by_key(|(place, _)| *place);
    Merged { charges: placed.into_iter().map(|(_, charge)| charge).collect(), at }
}
