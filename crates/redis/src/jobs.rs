//! Sends groups to cluster servers and follows redirections.
//!
//! A redirected group was not executed, so it is sent again within the deadline, at most three times.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_engine::store::StoreError;

use crate::batcher::{GroupReply, NoReply, ReplyPart};
use crate::cluster::Cluster;
use crate::config::{Config, MAX_CALL_CHARGES};
use crate::primary::{Primary, Ticket};
use crate::request::{QueuedGroup, Route};

/// Maximum number of resends of a group.
const MAX_RESENDS: u8 = 3;

/// Groups to be sent together, with their indexes.
#[derive(Debug, Default)]
pub(crate) struct UnsentGroups {
    indexes: Vec<usize>,
    groups: Vec<QueuedGroup>,
    charges: usize,
    /// Groups that cannot be sent.
    pub(crate) failed: Vec<(usize, StoreError)>,
}

/// Groups that were sent.
pub(crate) struct SentGroups {
    indexes: Vec<usize>,
    ticket: Option<Result<Ticket, StoreError>>,
    failed: Vec<(usize, StoreError)>,
}

impl UnsentGroups {
    pub(crate) fn is_full_for(&self, group: &QueuedGroup) -> bool {
        !self.groups.is_empty() && self.charges + group.weight() > MAX_CALL_CHARGES
    }

    pub(crate) fn push(&mut self, index: usize, group: QueuedGroup) {
        self.charges += group.weight();
        self.indexes.push(index);
        self.groups.push(group);
    }

    /// Queues the groups.
    pub(crate) fn send(self, primary: &Primary) -> SentGroups {
        let ticket = (!self.groups.is_empty()).then(|| primary.send(self.groups));
        SentGroups { indexes: self.indexes, ticket, failed: self.failed }
    }
}

impl SentGroups {
    /// Waits for the answers and calls `answer` with the index of each group.
    pub(crate) async fn await_answers(
        self,
        deadline: Instant,
        config: &Config,
        mut answer: impl FnMut(usize, GroupReply),
    ) {
        let replies = match self.ticket {
            Some(Ok(ticket)) => ticket.await_answers(deadline, config).await,
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

/// A group, or part of a group, that is sent to one server.
pub(crate) struct Job {
    pub(crate) route: Route,
    /// Whether the group has several charges.
    is_divisible: bool,
    /// The redirection target, used instead of the lane's server.
    address: Option<String>,
    resends: u8,
    reply: Option<Result<ReplyPart, JobError>>,
}

enum JobError {
    Failed(StoreError),
    /// The keys are split between two servers, so each charge must be sent separately.
    Split,
}

impl Job {
    pub(crate) fn new(lane: u8, charges: usize) -> Self {
        let route = Route { lane, ..Route::default() };
        Self { route, is_divisible: charges > 1, address: None, resends: 0, reply: None }
    }

    /// Returns whether each charge must be sent separately.
    pub(crate) fn is_split(&self) -> bool {
        matches!(self.reply, Some(Err(JobError::Split)))
    }

    /// Returns the reply.
    ///
    /// # Errors
    /// Fails if the job failed or has no reply.
    pub(crate) fn into_reply(self) -> Result<ReplyPart, StoreError> {
        match self.reply {
            Some(Ok(part)) => Ok(part),
            Some(Err(JobError::Failed(error))) => Err(error),
            Some(Err(JobError::Split)) | None => {
                Err(StoreError::Unavailable { why: "the keys are being moved".to_owned() })
            }
        }
    }

    /// Records a reply, or the next target of a redirected job.
    fn record_reply(&mut self, reply: GroupReply, cluster: &Cluster) {
        let redirected = match reply {
            Ok(part) => return self.reply = Some(Ok(part)),
            Err(NoReply::Failed(error)) => return self.reply = Some(Err(JobError::Failed(error))),
            Err(NoReply::Moved(address)) => {
                cluster.move_lane(self.route.lane.into(), &address);
                (self.address, self.route.asking) = (Some(address.clone()), false);
                address
            }
            Err(NoReply::Ask(address)) => {
                (self.address, self.route.asking, self.route.alone) = (Some(address.clone()), true, true);
                address
            }
            // In a separate call, the group succeeds if all of its keys are on one server.
            Err(NoReply::TryAgain) if !self.route.alone => {
                self.route.alone = true;
                "the same server".to_owned()
            }
            Err(NoReply::TryAgain) if self.is_divisible => return self.reply = Some(Err(JobError::Split)),
            Err(NoReply::TryAgain) => "the same server".to_owned(),
        };
        self.resends += 1;
        if self.resends > MAX_RESENDS {
            let why = format!("redirected more than {MAX_RESENDS} times, last to {redirected}");
            self.reply = Some(Err(JobError::Failed(StoreError::Unavailable { why })));
        }
    }
}

/// Sends indexed groups to a server outside of a cluster, and calls `answer` with each index and reply.
pub(crate) async fn ask_primary(
    primary: &Primary,
    config: &Config,
    groups: impl Iterator<Item = (usize, Result<QueuedGroup, StoreError>)>,
    deadline: Instant,
    mut answer: impl FnMut(usize, Result<ReplyPart, StoreError>),
) {
    let (mut unsent, mut sent) = (UnsentGroups::default(), Vec::with_capacity(1));
    for (index, group) in groups {
        match group {
            Ok(encoded) => {
                if unsent.is_full_for(&encoded) {
                    sent.push(std::mem::take(&mut unsent).send(primary));
                }
                unsent.push(index, encoded);
            }
            Err(error) => unsent.failed.push((index, error)),
        }
    }
    sent.push(unsent.send(primary));
    for outcome in sent {
        outcome
            .await_answers(deadline, config, |index, reply| {
                let unavailable = |why| StoreError::Unavailable { why };
                answer(
                    index,
                    reply.map_err(|error| match error {
                        NoReply::Failed(error) => error,
                        NoReply::Moved(address) | NoReply::Ask(address) => {
                            unavailable(format!("{} redirects to {address}", config.address))
                        }
                        NoReply::TryAgain => unavailable("the keys are being moved".to_owned()),
                    }),
                );
            })
            .await;
    }
}

/// Sent groups, each with the server that received them.
type Dispatched = Vec<(Arc<Primary>, SentGroups)>;

/// Queues every job that has no reply yet. `encode` returns the group of the job with the given index.
pub(crate) fn dispatch_jobs(
    cluster: &Cluster,
    jobs: &mut [Job],
    encode: impl Fn(usize, Route) -> Result<QueuedGroup, StoreError>,
) -> Dispatched {
    let mut unsent_by_primary: Vec<(Arc<Primary>, UnsentGroups)> = Vec::new();
    let mut sent = Dispatched::new();
    for (index, job) in jobs.iter_mut().enumerate().filter(|(_, job)| job.reply.is_none()) {
        let primary = match &job.address {
            Some(address) => cluster.primary_at(address),
            None => cluster.primary(job.route.lane.into()),
        };
        let (primary, encoded) = match (primary, encode(index, job.route)) {
            (Ok(primary), Ok(encoded)) => (primary, encoded),
            (Err(error), _) | (_, Err(error)) => {
                job.reply = Some(Err(JobError::Failed(error)));
                continue;
            }
        };
        let at = unsent_by_primary.iter().position(|(known, _)| Arc::ptr_eq(known, &primary)).unwrap_or_else(|| {
            unsent_by_primary.push((primary.clone(), UnsentGroups::default()));
            unsent_by_primary.len() - 1
        });
        let unsent = &mut unsent_by_primary[at].1;
        if unsent.is_full_for(&encoded) {
            sent.push((primary.clone(), std::mem::take(unsent).send(&primary)));
        }
        unsent.push(index, encoded);
    }
    sent.extend(unsent_by_primary.into_iter().map(|(primary, unsent)| {
        let sent = unsent.send(&primary);
        (primary, sent)
    }));
    sent
}

/// Waits until each job has a reply, following redirections.
pub(crate) async fn collect_replies(
    cluster: &Cluster,
    jobs: &mut [Job],
    mut dispatched: Dispatched,
    encode: impl Fn(usize, Route) -> Result<QueuedGroup, StoreError>,
    deadline: Instant,
) {
    while !dispatched.is_empty() {
        for (primary, sent) in dispatched {
            sent.await_answers(deadline, primary.config(), |index, reply| jobs[index].record_reply(reply, cluster))
                .await;
        }
        dispatched = dispatch_jobs(cluster, jobs, &encode);
    }
}

/// Sends jobs until each job has a reply.
pub(crate) async fn run_jobs(
    cluster: &Cluster,
    jobs: &mut [Job],
    encode: impl Fn(usize, Route) -> Result<QueuedGroup, StoreError>,
    deadline: Instant,
) {
    let dispatched = dispatch_jobs(cluster, jobs, &encode);
    collect_replies(cluster, jobs, dispatched, encode, deadline).await;
}
