//! One task that sends what everybody asks, first come first served, in as few calls as there can be.
//!
//! A request that finds the link idle is sent at once. While a call is under way others queue up, and all of them go into the
//! next call together: the busier the link, the more share the cost of a call, and nobody waits for company.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};
use tollgate_engine::store::StoreError;

use crate::breaker::Breaker;
use crate::config::{BATCH, Config, PROBE_EVERY};
use crate::link::{CallError, Link};
use crate::request::{Call, Entry, answer_end};
use crate::script::Script;

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not known yet: the first connection is being made.
    Connecting,
    /// Requests are sent to it.
    Up,
    /// Requests are not sent to it, until it has been tried out with success.
    Down {
        /// What went wrong last, for the log.
        why: String,
    },
}

/// What was done so far.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) calls: AtomicU64,
    pub(crate) charges: AtomicU64,
    pub(crate) failures: AtomicU64,
}

/// Whole groups of one caller, waiting to be sent.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) entries: Vec<Entry>,
    pub(crate) turn: Arc<Turn>,
    pub(crate) reply: oneshot::Sender<Result<Part, StoreError>>,
}

/// The answer to the groups of one caller.
#[derive(Debug)]
pub(crate) struct Part {
    reply: Arc<Vec<u8>>,
    range: Range<usize>,
    /// The store's time, in microseconds.
    pub(crate) now: u64,
}

impl Part {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.reply[self.range.clone()]
    }
}

/// Who got hold of a request first: the caller who gave up, or the task that sends. So it is always known whether it was sent.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU8);

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;

impl Turn {
    /// Takes the request; `false` if the other side did before. It carries no data, so no ordering is needed.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(QUEUED, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The task.
pub(crate) struct Batcher {
    pub(crate) config: Config,
    pub(crate) script: Arc<Script>,
    /// Ends when nobody can ask any more.
    pub(crate) queue: mpsc::Receiver<Waiting>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) figures: Arc<Figures>,
}

/// Why serving has ended.
enum Ended {
    /// Nobody can ask any more.
    Closed,
    /// The store has to be tried out before anybody is sent to it.
    Failed(String),
}

impl Batcher {
    /// Connects and serves, again and again, until nobody can ask any more.
    pub(crate) async fn run(mut self) {
        while let Some(link) = self.recover().await {
            self.health.send_replace(Health::Up);
            match self.serve(link).await {
                Ended::Closed => return,
                Ended::Failed(why) => {
                    self.health.send_replace(Health::Down { why });
                }
            }
        }
    }

    /// Tries the store until it answers; requests that come meanwhile are turned away. `None` when nobody can ask any more.
    async fn recover(&mut self) -> Option<Link> {
        loop {
            let (config, script) = (self.config.clone(), self.script.clone());
            let attempt = async move { Link::open(&config, &script).await };
            match self.turn_away_during(attempt).await? {
                Ok(link) => return Some(link),
                Err(why) => self.health.send_replace(Health::Down { why }),
            };
            self.turn_away_during(tokio::time::sleep(PROBE_EVERY)).await?;
        }
    }

    async fn turn_away_during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return Some(result),
                waiting = self.queue.recv() => {
                    let error = unavailable(&self.config, &self.health.borrow());
                    // Whoever has given up needs no answer.
                    let _ = waiting?.reply.send(Err(error));
                }
            }
        }
    }

    async fn serve(&mut self, mut link: Link) -> Ended {
        let mut breaker = Breaker::default();
        let mut batch = Vec::new();
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(waiting) => Some(waiting),
                None => self.queue.recv().await,
            };
            let Some(first) = first else { return Ended::Closed };
            left_over = self.gather(first, &mut batch);
            if batch.is_empty() {
                continue;
            }
            let call = Call::new(batch.iter().flat_map(|waiting: &Waiting| &waiting.entries));
            let result = link.call(&call, &self.config).await;
            drop(call);
            self.figures.calls.fetch_add(1, Ordering::Relaxed);
            let failure = match result {
                Ok(reply) => {
                    let short = || CallError::Lost("the answer of the script is too short".to_owned());
                    (!answer(&mut batch, reply)).then(short)
                }
                Err(error) => {
                    self.fail(&mut batch, &error);
                    Some(error)
                }
            };
            self.figures.failures.fetch_add(failure.is_some().into(), Ordering::Relaxed);
            let trips = breaker.note(failure.is_some());
            if let Some(error) = failure
                && (trips || matches!(error, CallError::Lost(_)))
            {
                let why = error.told(&self.config);
                self.turn_away(left_over, &why);
                return Ended::Failed(why);
            }
        }
    }

    /// Everything that is queued, as far as it fits a call; what does not is left over for the next.
    fn gather(&mut self, first: Waiting, batch: &mut Vec<Waiting>) -> Option<Waiting> {
        let mut charges = 0;
        let mut next = Some(first);
        while let Some(waiting) = next.take() {
            if charges > 0 && charges + waiting.entries.len() > BATCH {
                next = Some(waiting);
                break;
            }
            if waiting.turn.take() {
                charges += waiting.entries.len();
                batch.push(waiting);
            }
            next = self.queue.try_recv().ok();
        }
        self.figures.charges.fetch_add(charges as u64, Ordering::Relaxed);
        next
    }

    /// Tells everybody in the batch.
    fn fail(&self, batch: &mut Vec<Waiting>, error: &CallError) {
        let why = format!("{}: {}", self.config.address, error.told(&self.config));
        let told = match error {
            CallError::Refused(_) => StoreError::Unavailable { why },
            CallError::Late | CallError::Lost(_) => StoreError::Unknown { why },
        };
        for waiting in batch.drain(..) {
            // Whoever has given up needs no answer.
            let _ = waiting.reply.send(Err(told.clone()));
        }
    }

    fn turn_away(&self, waiting: Option<Waiting>, why: &str) {
        if let Some(waiting) = waiting {
            let error = unavailable(&self.config, &Health::Down { why: why.to_owned() });
            let _ = waiting.reply.send(Err(error));
        }
    }
}

/// Nothing is sent to a store in this state.
pub(crate) fn unavailable(config: &Config, health: &Health) -> StoreError {
    let address = &config.address;
    StoreError::Unavailable {
        why: match health {
            Health::Up => format!("the connection to {address} is being made anew"),
            Health::Connecting => format!("{address} has not been reached yet"),
            Health::Down { why } => format!("{address} is being given a rest: {why}"),
        },
    }
}

/// Gives everybody in the batch their part of the reply; whether there was one for all.
fn answer(batch: &mut Vec<Waiting>, reply: Vec<u8>) -> bool {
    let mut wide = [0; 8];
    let mut end = reply.get(..7).map(|now| {
        wide[..7].copy_from_slice(now);
        7
    });
    let now = u64::from_le_bytes(wide);
    let reply = Arc::new(reply);
    for waiting in batch.drain(..) {
        let start = end;
        end = end.and_then(|at| answer_end(&reply, &waiting.entries, at));
        let part = match (start, end) {
            (Some(start), Some(end)) => Ok(Part { reply: reply.clone(), range: start..end, now }),
            _ => Err(StoreError::Unknown { why: "the answer of the script is too short".to_owned() }),
        };
        // Whoever has given up needs no answer.
        let _ = waiting.reply.send(part);
    }
    end == Some(reply.len())
}
