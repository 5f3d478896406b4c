//! Decides groups whose keys are on several servers of a cluster.
//!
//! **Parts.** A group that spans several lanes is split into parts. All parts take at the same time, in one round trip;
//! [`tollgate_share::parts`] decides the next steps. If a part has no answer and all other parts took, the other parts
//! are refunded and the whole group counts as unanswered.
//!
//! **Suspects** are recently refused keys. Parts with a suspect take first, while the other parts only peek. Otherwise
//! a caller that is about to be refused would briefly hold tokens that other callers need.
//!
//! **Refunds** are queued before the group is answered. Refunds have their own deadline, because the request's deadline
//! may have passed, and are sent even if the caller gives up. A failed refund is counted and does not stop other
//! refunds. A bucket refills while a token is held, so the store ignores a bucket refund that arrives more than two
//! deadlines after the charge.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout_at};
use tollgate_core::{Ask, Cost, Stamps};
use tollgate_engine::store::{Charge, Group, StoreError, StoreVerb, UnsentFlag};
use tollgate_share::parts::{Action, Parts, Reply as PartReply, Verdict};

use crate::cluster::Cluster;
use crate::jobs::{Job, collect_replies, dispatch_jobs, run_jobs};
use crate::parts::{ChargeAnswer, MergedAnswer, Part, PartAnswer, Refund, merge_answers, split_into_parts};
use crate::request::{QueuedGroup, Route};
use crate::store::{RedisStore, Reply};

impl RedisStore {
    /// Sends every group that has no reply yet to the cluster.
    pub(crate) async fn ask_cluster(
        &self,
        cluster: &Arc<Cluster>,
        groups: &[Group<'_>],
        replies: &mut [Option<Reply>],
        deadline: Instant,
        unsent: Option<&UnsentFlag>,
    ) {
        let asked = Instant::now();
        // A group in several lanes may hold tokens until it is refused. Later groups with the same keys must not be
        // refused because of these tokens, so those groups are sent afterwards.
        let mut held: HashSet<&[u8]> = HashSet::new();
        let mut together: Vec<(usize, Vec<Part<'_>>)> = Vec::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            if replies[index].is_some() {
                continue;
            }
            if !held.is_empty() && group.charges.iter().any(|charge| held.contains(charge.key)) {
                self.ask_in_parallel(cluster, groups, std::mem::take(&mut together), replies, deadline, unsent).await;
                held.clear();
            }
            let parts = split_into_parts(group, |key| cluster.lane_of(key), |key| self.suspects.contains(key, asked));
            if parts.len() > 1 && group.verb == StoreVerb::Check {
                held.extend(group.charges.iter().map(|charge| charge.key));
            }
            together.push((index, parts));
        }
        self.ask_in_parallel(cluster, groups, together, replies, deadline, unsent).await;
    }

    /// Sends groups, each with its index and parts, in parallel.
    async fn ask_in_parallel(
        &self,
        cluster: &Arc<Cluster>,
        groups: &[Group<'_>],
        together: Vec<(usize, Vec<Part<'_>>)>,
        replies: &mut [Option<Reply>],
        deadline: Instant,
        unsent: Option<&UnsentFlag>,
    ) {
        let (open, parts): (Vec<usize>, Vec<Vec<Part<'_>>>) = together.into_iter().unzip();
        let mut asked = Vec::with_capacity(open.len());
        let mut jobs = Vec::with_capacity(open.len());
        for parts in &parts {
            asked.extend(parts.iter().map(|part| part.to_group(part.verb)));
            jobs.extend(parts.iter().map(|part| Job::new(part.lane, part.charges.len())));
        }
        let encode = |job: usize, route| self.encode_with_unsent_flag(&asked[job], route, unsent);
        run_jobs(cluster, &mut jobs, encode, deadline).await;
        let mut jobs = jobs.into_iter();
        for (index, parts) in open.into_iter().zip(&parts) {
            let mut jobs: Vec<Job> = jobs.by_ref().take(parts.len()).collect();
            let is_whole = jobs.len() == 1 && !jobs[0].is_split();
            replies[index] = Some(match jobs.pop() {
                Some(job) if is_whole => job.into_reply().map_or_else(Reply::Failed, Reply::Single),
                last => {
                    jobs.extend(last);
                    let merged = self.decide_from_replies(cluster, &groups[index], parts, jobs, deadline).await;
                    merged.map_or_else(Reply::Failed, Reply::Merged)
                }
            });
        }
    }

    /// Decides a group from the replies to its parts. If the keys of a lane are split between two servers, each charge
    /// in that lane becomes a separate part.
    async fn decide_from_replies(
        &self,
        cluster: &Arc<Cluster>,
        group: &Group<'_>,
        parts: &[Part<'_>],
        jobs: Vec<Job>,
        deadline: Instant,
    ) -> Result<MergedAnswer, StoreError> {
        let is_split = jobs.iter().any(Job::is_split);
        let (mut divided, mut answers, mut took) = (Vec::new(), Vec::new(), Vec::new());
        for (part, job) in parts.iter().zip(jobs) {
            let again = job.is_split() || is_split && group.verb == StoreVerb::Check;
            let answer = PartAnswer::read(&part.to_group(part.verb), job.into_reply());
            if again {
                // For a check, all parts are refunded and take again, at the same time.
                took.extend(answer.ok().map(|answer| (part, answer)));
                divided.extend(part.split_by_charge(group.verb));
                answers.resize_with(divided.len(), || None);
            } else {
                divided.push(part.clone());
                answers.push(Some(answer));
            }
        }
        let refunds = took.iter().flat_map(|(part, answer)| part.refunds_of(answer)).collect();
        self.refund(cluster, refunds, deadline).await;
        let open: Vec<usize> = (0..divided.len()).filter(|at| answers[*at].is_none()).collect();
        let mut jobs: Vec<Job> = open.iter().map(|at| Job::new(divided[*at].lane, 1)).collect();
        jobs.iter_mut().for_each(|job| job.route.alone = true);
        let asked = |job: usize| divided[open[job]].to_group(group.verb);
        run_jobs(cluster, &mut jobs, |job, route| self.encode(&asked(job), route), deadline).await;
        for (number, job) in jobs.into_iter().enumerate() {
            answers[open[number]] = Some(PartAnswer::read(&asked(number), job.into_reply()));
        }
        self.decide_from_answers(cluster, group, &divided, answers.into_iter().flatten().collect(), deadline).await
    }

    /// Decides a group from the answers to its parts.
    async fn decide_from_answers(
        &self,
        cluster: &Arc<Cluster>,
        group: &Group<'_>,
        parts: &[Part<'_>],
        first: Vec<Result<PartAnswer, StoreError>>,
        deadline: Instant,
    ) -> Result<MergedAnswer, StoreError> {
        if group.verb != StoreVerb::Check {
            let answers = first.into_iter().collect::<Result<Vec<_>, _>>()?;
            return Ok(merge_answers(parts, answers));
        }
        let mut actions = Vec::new();
        let is_probed = parts.iter().any(|part| part.verb == StoreVerb::Peek);
        let suspects: Vec<bool> = parts.iter().map(|part| is_probed && part.verb == StoreVerb::Check).collect();
        let mut machine = Parts::new(&suspects, &mut actions);
        // The first round of takes and peeks is already done.
        actions.clear();
        let mut answers: Vec<Option<PartAnswer>> = parts.iter().map(|_| None).collect();
        let mut errors: Vec<StoreError> = Vec::new();
        let mut note =
            |at: usize, answer: Result<PartAnswer, StoreError>, machine: &mut Parts, actions: &mut Vec<Action>| {
                machine.on_reply(at, to_part_reply(&answer), actions);
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
            // Refunds are sent first, so that later takes can use the refunded tokens.
            let (refunds, others): (Vec<Action>, Vec<Action>) =
                std::mem::take(&mut actions).into_iter().partition(|action| matches!(action, Action::Refund(_)));
            self.refund_parts(cluster, parts, &refunds, &mut answers, deadline).await;
            // After peeks, several parts take at the same time. In the ordered round, there is only one take per
            // iteration.
            let takes: Vec<usize> = others.iter().filter_map(part_to_take).collect();
            let asked: Vec<Group<'_>> = takes.iter().map(|at| parts[*at].to_group(StoreVerb::Check)).collect();
            let mut jobs: Vec<Job> =
                takes.iter().map(|at| Job::new(parts[*at].lane, parts[*at].charges.len())).collect();
            run_jobs(cluster, &mut jobs, |job, route| self.encode(&asked[job], route), deadline).await;
            for ((at, asked), job) in takes.iter().zip(&asked).zip(jobs) {
                let answer = PartAnswer::read(asked, job.into_reply());
                if let Some(answer) = note(*at, answer, &mut machine, &mut actions) {
                    answers[*at] = Some(answer);
                }
            }
            for action in others {
                match action {
                    Action::Refund(_) | Action::Take(_) | Action::Peek(_) => {}
                    Action::Answer(Verdict::Partial) => {
                        // The rule's fault policy decides the whole request, so the other parts are refunded.
                        verdict = Some(Verdict::Partial);
                        machine.conclude(false, &mut actions);
                    }
                    Action::Answer(answer) => verdict = Some(answer),
                }
            }
        }
        let answered =
            |at: usize, answer: Option<PartAnswer>| answer.unwrap_or_else(|| PartAnswer::without_charge(&parts[at]));
        let answers = answers.into_iter().enumerate().map(|(at, answer)| answered(at, answer)).collect();
        match verdict {
            Some(Verdict::Admitted) => Ok(self.reduce_to_least(cluster, parts, answers, deadline).await),
            Some(Verdict::Refused) => Ok(merge_answers(parts, answers)),
            Some(Verdict::Rejected | Verdict::Stale | Verdict::Partial) | None => {
                let error = errors.into_iter().min_by_key(error_rank);
                Err(error.unwrap_or_else(|| StoreError::Unknown { why: "no verdict about a group".to_owned() }))
            }
        }
    }

    /// Reduces all `Ask::UpTo` charges to the smallest amount that any of them took, and refunds the excess.
    async fn reduce_to_least(
        &self,
        cluster: &Arc<Cluster>,
        parts: &[Part<'_>],
        mut answers: Vec<PartAnswer>,
        deadline: Instant,
    ) -> MergedAnswer {
        let each = parts.iter().zip(&answers).enumerate();
        let up_to: Vec<(usize, usize, Cost)> = each
            .flat_map(|(at, (part, answer))| {
                let taken = part.charges.iter().zip(&answer.charges).enumerate();
                taken
                    .filter(|(_, (charge, _))| matches!(charge.ask, Ask::UpTo(_)))
                    .map(move |(number, (_, one))| (at, number, one.taken))
            })
            .collect();
        let least = up_to.iter().map(|(_, _, taken)| *taken).min().unwrap_or_default();
        let more: Vec<_> = up_to.into_iter().filter(|(_, _, taken)| *taken > least).collect();
        let refund = |&(at, number, taken): &(usize, usize, Cost)| {
            let excess = Ask::Exactly(Cost::new(taken.get() - least.get()));
            let stamps = Some(&answers[at].charges[number].stamps);
            let charge = Charge { ask: excess, stamps, ..parts[at].charges[number] };
            Refund { lane: parts[at].lane, taken_at: answers[at].at, charge }
        };
        let refunded = self.refund(cluster, more.iter().map(refund).collect(), deadline).await;
        for ((at, number, _), refunded) in more.into_iter().zip(refunded) {
            let charge = &mut answers[at].charges[number];
            charge.taken = least;
            if let Some(refunded) = refunded {
                charge.reports = refunded.reports;
            }
        }
        merge_answers(parts, answers)
    }

    /// Refunds parts. The answers of these parts then report zero taken tokens and the state after the refund.
    async fn refund_parts(
        &self,
        cluster: &Arc<Cluster>,
        parts: &[Part<'_>],
        actions: &[Action],
        answers: &mut [Option<PartAnswer>],
        deadline: Instant,
    ) {
        let took: Vec<usize> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Refund(at) => answers[*at].is_some().then_some(*at),
                Action::Take(_) | Action::Peek(_) | Action::Answer(_) => None,
            })
            .collect();
        let refunds = took.iter().flat_map(|at| answers[*at].iter().flat_map(|answer| parts[*at].refunds_of(answer)));
        let refunds = refunds.collect();
        let mut refunded = self.refund(cluster, refunds, deadline).await.into_iter();
        for at in took {
            let charges = answers[at].iter_mut().flat_map(|answer| &mut answer.charges);
            for charge in charges.filter(|charge| charge.taken > Cost::ZERO) {
                if let Some(refunded) = refunded.next().flatten() {
                    charge.reports = refunded.reports;
                }
                (charge.taken, charge.stamps) = (Cost::ZERO, Stamps::default());
            }
        }
    }

    /// Encodes a refund. The store ignores a refund that arrives too late.
    fn encode_refund(&self, refund: &Refund<'_>) -> Result<QueuedGroup, StoreError> {
        let mut group = self.encode(&refund.to_group(), Route { lane: refund.lane, ..Route::default() })?;
        if let Some(latest) = refund.ignored_after(self.config.deadline) {
            group.charges.iter_mut().for_each(|charge| charge.ignore_after(latest));
        }
        Ok(group)
    }

    /// Refunds charges. Returns one answer per charge: `None` if the refund failed. If an answer is missing at
    /// `deadline`, returns `None` for every charge.
    async fn refund(
        &self,
        cluster: &Arc<Cluster>,
        refunds: Vec<Refund<'_>>,
        deadline: Instant,
    ) -> Vec<Option<ChargeAnswer>> {
        if refunds.is_empty() {
            return Vec::new();
        }
        let mut jobs: Vec<Job> = refunds.iter().map(|refund| Job::new(refund.lane, 1)).collect();
        let encoded: Vec<Result<QueuedGroup, StoreError>> =
            refunds.iter().map(|refund| self.encode_refund(refund)).collect();
        let keys: Vec<Vec<u8>> = refunds.iter().map(|refund| refund.charge.key.to_vec()).collect();
        let (refusals, counters, cluster) = (self.refusals.clone(), self.counters.clone(), cluster.clone());
        let invalidate = move || {
            let refusals = refusals.iter();
            refusals.for_each(|refusals| keys.iter().for_each(|key| refusals.invalidate(key)));
        };
        invalidate();
        let encode =
            move |job: usize, route| encoded[job].clone().map(|group: QueuedGroup| QueuedGroup { route, ..group });
        let dispatched = dispatch_jobs(&cluster, &mut jobs, &encode);
        let refund_deadline = Instant::now() + self.config.deadline;
        let exchanged = tokio::spawn(async move {
            collect_replies(&cluster, &mut jobs, dispatched, encode, refund_deadline).await;
            invalidate();
            let replies: Vec<_> = jobs.into_iter().map(Job::into_reply).collect();
            let lost = replies.iter().filter(|reply| reply.is_err()).count();
            counters.failures.fetch_add(lost as u64, Ordering::Relaxed);
            replies
        });
        let Ok(Ok(replies)) = timeout_at(deadline, exchanged).await else {
            return refunds.iter().map(|_| None).collect();
        };
        let read = |(refund, reply): (&Refund<'_>, _)| PartAnswer::read(&refund.to_group(), reply).ok()?.charges.pop();
        refunds.iter().zip(replies).map(read).collect()
    }
}

fn part_to_take(action: &Action) -> Option<usize> {
    match action {
        Action::Take(at) => Some(*at),
        Action::Peek(_) | Action::Refund(_) | Action::Answer(_) => None,
    }
}

/// Converts an answer for the state machine in [`tollgate_share::parts`].
fn to_part_reply(answer: &Result<PartAnswer, StoreError>) -> PartReply {
    match answer {
        Ok(answer) if answer.is_admitted() => PartReply::Passed,
        Ok(_) => PartReply::Refused,
        Err(StoreError::Rejected { .. }) => PartReply::Rejected,
        Err(StoreError::Stale { .. }) => PartReply::Stale,
        Err(StoreError::Unavailable { .. }) => PartReply::Unavailable,
        Err(StoreError::Unknown { .. }) => PartReply::Unknown,
    }
}

/// Returns the rank of an error. A group reports the lowest-ranked error of its parts.
fn error_rank(error: &StoreError) -> u8 {
    match error {
        StoreError::Rejected { .. } => 0,
        StoreError::Stale { .. } => 1,
        StoreError::Unavailable { .. } => 2,
        StoreError::Unknown { .. } => 3,
    }
}
