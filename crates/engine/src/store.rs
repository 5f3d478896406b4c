//! The interface between the engine and a store of states, in memory or on a shared server.
//!
//! The interface suits both kinds of stores. In memory a decision takes tens of nanoseconds, so nothing here allocates:
//! charges are borrowed slices, and answers are written to reused buffers. Over a network a decision takes a round
//! trip, so one call contains all groups that are ready. Each group may fail independently, and the error states
//! whether anything may have been spent.
//!
//! A store is responsible for atomicity and time only. A store does not match rules or build keys, and is not aware of
//! shadow rules or `on_fault`.

mod answers;

use std::fmt;

use tollgate::Limits;
use tollgate::core::{Ask, Stamps, Time, Wall, Window};
use tollgate::ledger::{LimitTable, PlainCharge};

use crate::key;
pub use crate::rules::{Consistency, SyncEvery};
pub use answers::{Answer, Answers, GroupAnswer, UnsentFlag};

/// Keeps states and decides groups of charges.
///
/// - **Groups are all or none.** A group changes either all of its states or none, in one atomic step. If the charges
///   ask for [up to an amount](Ask::UpTo), they all take the same amount: the smallest of the requested amounts and the
///   remaining amounts of all limits.
/// - **Groups are independent.** One group may fail or be refused without affecting another. The groups of one call may
///   be decided at different instants, but in order: a group sees the charges of earlier groups.
/// - **The store's clock decides**, never the caller's.
/// - **A refusal changes nothing**, with three exceptions: limits that count refused attempts record the refusal, a
///   state is created for a new key with an initial amount, and a step of the clock is repaired.
/// - **Limits may change.** The next admitted charge converts a state that was recorded under earlier limits of the
///   key, so that its usage is kept.
pub trait Store: Send + Sync {
    /// Appends an answer for every group of the batch to `answers`, in order.
    ///
    /// If the future is dropped, it is unknown which groups were carried out.
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send;

    /// Decides the charges as one group if this needs no waiting, and returns whether the group was admitted. `charge`
    /// converts an element of `charged`, or returns `None` if the element is not a plain charge; so the caller needs no
    /// list of charges. `None`: the fast path does not apply and nothing has happened; call [`run`](Self::run). A store
    /// over a network always returns `None`.
    fn try_decide_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        answers: &mut Answers,
    ) -> Option<bool> {
        let _ = (charged, charge, answers);
        None
    }

    /// Prefetches the states of keys that will be charged soon. Each key is passed with its limits. A remote store does
    /// nothing.
    fn prefetch(&self, keys: &[(&Limits, &[u8])]) {
        let _ = keys;
    }

    /// Decides a single charge of a rule that is not `strict`, if this node can do so without waiting. Returns whether
    /// the charge was admitted. `None`: the fast path does not apply and nothing has happened; call [`run`](Self::run).
    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        let _ = (charge, answers);
        None
    }

    /// Checks that the store can represent these limits exactly. Called when rules are loaded, and at the first use of
    /// an inline limit.
    ///
    /// # Errors
    /// Returns a message that says how the author has to change the rule.
    fn check_limits(&self, limits: &Limits) -> Result<(), String>;

    /// Checks that the store supports a consistency mode. Called when rules are loaded.
    ///
    /// # Errors
    /// Returns a message that says how the author has to change the rule.
    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        let _ = consistency;
        Ok(())
    }

    /// Returns whether the store may fail to answer. If the store may fail, the engine records its answers and uses
    /// them for local decisions during an outage.
    fn can_fail(&self) -> bool {
        true
    }

    /// Replaces the state of the charge's key with the initial state of `start`, and takes `held[i]` slots of the
    /// concurrency limit at index `i`. Called only for the fallback, which must answer immediately.
    fn init_state(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        let _ = (limit_table, charge, start, held);
    }

    /// Returns the number, below 64, of the place (server or lane) that stores this [`Charge::partition_key`]. Several
    /// places may share a number. While a place does not answer, arrears are still charged to the places with other
    /// numbers.
    fn place_of(&self, partition_key: &[u8]) -> usize {
        let _ = partition_key;
        0
    }

    /// Returns the number of decisions about keys that had no entry of their own because the table was full. Zero if
    /// the store is unbounded.
    fn overflowed(&self) -> u64 {
        0
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        (**self).run(batch, answers)
    }

    fn try_decide_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        answers: &mut Answers,
    ) -> Option<bool> {
        (**self).try_decide_fast(charged, charge, answers)
    }

    fn prefetch(&self, keys: &[(&Limits, &[u8])]) {
        (**self).prefetch(keys);
    }

    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        (**self).try_decide_shared(charge, answers)
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        (**self).check_limits(limits)
    }

    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        (**self).check_consistency(consistency)
    }

    fn can_fail(&self) -> bool {
        (**self).can_fail()
    }

    fn init_state(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        (**self).init_state(limit_table, charge, start, held);
    }

    fn place_of(&self, partition_key: &[u8]) -> usize {
        (**self).place_of(partition_key)
    }

    fn overflowed(&self) -> u64 {
        (**self).overflowed()
    }
}

/// Groups that are run together, and the limits needed to read their states.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// All limits under which a state may have been recorded.
    pub limit_table: &'a (dyn LimitTable + Sync),
    /// The groups, in decision order.
    pub groups: &'a [Group<'a>],
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Charges that are decided together, all or none.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The operation for all charges.
    pub verb: StoreVerb,
    /// At least one charge. All keys are different.
    pub charges: &'a [Charge<'a>],
}

/// The operation on the charges of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Takes all or nothing.
    Check,
    /// Returns the answer that [`StoreVerb::Check`] would return. Changes nothing and creates no entries.
    Peek,
    /// Refunds the charge that [`Charge::stamps`] identify. The refunds of a group are independent: the store may
    /// accept some of them and not others.
    Refund,
    /// Renews the leases that [`Charge::stamps`] identify, as if they were taken now. The renewals of a group are
    /// independent. The answer's `taken` is the cost if all leases were still held, and zero otherwise.
    Renew,
    /// Discards the usage.
    Reset,
}

/// A charge to one key: its limits and a cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key, from the engine's key encoder. The key contains the domain and either the rule with the counted values
    /// or the name of an inline limit. So no two counters have the same key.
    pub key: &'a [u8],
    /// The id of the limits. The id identifies one immutable set of limits, and is valid only within this process.
    pub limits_id: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// Earlier limit ids of the same key, newest first, for stores that keep states of different sizes in different
    /// tables. Usually empty.
    pub earlier: &'a [u32],
    /// The amount. A refund gives back [`Ask::cost`], for every variant of [`Ask`].
    pub ask: Ask,
    /// Identifies the charge to refund or the leases to renew. Without stamps, a limit with windows is refunded only in
    /// its current window.
    pub stamps: Option<&'a Stamps>,
    /// The calendar windows that limits with phase `Given` refer to by index. If these windows do not contain the
    /// store's time, the store answers [`StoreError::Stale`].
    pub windows: &'a [Window],
    /// How nodes that share the store agree on this key. A store in a single process ignores this
    /// mode.
    pub consistency: Consistency,
}

impl<'a> Charge<'a> {
    /// Returns the rule id, for messages; empty for an inline limit.
    pub fn rule(&self) -> &'a str {
        key::rule_id_of(self.key)
    }

    /// Returns the value that selects the server: the first value that the rule counts by or, if there is none, the
    /// rule id. Keys with the same first value are on the same server, even if their rules differ.
    pub fn partition_key(&self) -> &'a [u8] {
        key::partition_key(self.key)
    }
}

/// Returns the domain and rule id in a key, for metrics and messages. Both strings are empty if the key has no rule.
pub fn rule_of_key(key: &[u8]) -> (&[u8], &str) {
    match key::rule_id_of(key) {
        "" => (&[], ""),
        rule => (key::domain_of(key), rule),
    }
}

/// Reason why a group was not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The store is unreachable or the circuit breaker is open. Nothing was sent, so nothing was spent.
    Unavailable {
        /// The reason, for the log.
        why: String,
    },
    /// The group was sent, but no answer arrived. The group may have been carried out, and its cost counts as spent.
    Unknown {
        /// The reason, for the log.
        why: String,
    },
    /// The calendar windows do not contain the store's time. Nothing was spent; retry with the windows of `store_time`.
    Stale {
        /// The store's time.
        store_time: Time<Wall>,
    },
    /// The store rejects this group, and would reject it again. Nothing was spent.
    Rejected {
        /// The reason, for the log.
        why: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { why } => write!(f, "store unavailable: {why}"),
            Self::Unknown { why } => write!(f, "no answer from the store, outcome unknown: {why}"),
            Self::Stale { store_time } => {
                write!(
                    f,
                    "the calendar windows do not contain the store's time, {} s",
                    store_time.as_nanos() / 1_000_000_000
                )
            }
            Self::Rejected { why } => write!(f, "store rejected the request: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}
