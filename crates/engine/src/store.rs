//! The interface between the engine and a store of states, in memory or on a shared server.
//!
//! It is designed for both kinds. In memory a decision takes tens of nanoseconds, so nothing here allocates: charges
//! are borrowed slices, and answers are written to reused buffers. Over a network a decision takes a round trip, so one
//! call contains all groups that are ready. Each group may fail independently, and the error states whether anything
//! may have been spent.
//!
//! A store is responsible for atomicity and time only. It does not match rules or build keys, and does not know shadow
//! rules or `on_fault`.

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
/// - **Groups are all or none.** A group changes either all of its states or none, in one atomic step. Charges of a
///   group that take [up to an amount](Ask::UpTo) all take the same amount: the largest that all of them can take.
/// - **Groups are independent.** One group may fail or be refused without affecting another. The groups of one call may
///   be decided at different instants, but in order: a group sees the charges of earlier groups.
/// - **The store's clock decides**, never the caller's.
/// - **A refusal changes nothing**, with two exceptions: limits that count refused attempts record it, and a state is
///   created for a new key with an initial amount.
/// - **Limits may change.** A state recorded under other limits of the same key is converted at the next charge, so
///   that usage is kept.
pub trait Store: Send + Sync {
    /// Appends an answer for every group of the batch to `answers`, in order.
    ///
    /// If the future is dropped, it is unknown which groups were carried out.
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send;

    /// Decides the charges as one group if this needs no waiting, and returns whether the group was admitted. `None`:
    /// the fast path does not apply and nothing has happened; call [`run`](Self::run). A store over a network always
    /// returns `None`.
    fn try_decide_fast(&self, charges: &[PlainCharge<'_>], answers: &mut Answers) -> Option<bool> {
        let _ = (charges, answers);
        None
    }

    /// Prefetches the states of keys that will be charged soon, each given with its limits. Changes nothing. A remote
    /// store does nothing.
    fn fetch(&self, keys: &[(&Limits, &[u8])]) {
        let _ = keys;
    }

    /// Decides a charge of a rule that is not `strict` as its own group, if this node can do so without waiting.
    /// Returns whether it was admitted. `None`: the fast path does not apply and nothing has happened; call
    /// [`run`](Self::run).
    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        let _ = (charge, answers);
        None
    }

    /// Checks that the store can represent these limits exactly. Called when rules are loaded, and at the first use of
    /// an inline limit.
    ///
    /// # Errors
    /// The required change, for the author of the rule.
    fn check_limits(&self, limits: &Limits) -> Result<(), String>;

    /// Checks that the store supports a consistency mode. Called when rules are loaded.
    ///
    /// # Errors
    /// The required change, for the author of the rule.
    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        let _ = consistency;
        Ok(())
    }

    /// Returns whether the store may fail to answer. If so, the engine records its answers and uses them for local
    /// decisions during an outage.
    fn can_fail(&self) -> bool {
        true
    }

    /// Replaces the state of the charge's key by the initial state of `start`, with `held` leases taken from each
    /// concurrency limit. Called only for the fallback, which must answer immediately.
    fn begin(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        let _ = (limit_table, charge, start, held);
    }

    /// Returns the number, below 64, of the place that keeps the keys of this [`Charge::partition_key`]. A place that
    /// does not answer does not delay repayments to others. Servers may share a number.
    fn place_of(&self, partition_key: &[u8]) -> usize {
        let _ = partition_key;
        0
    }

    /// Returns the number of decisions about keys without an entry of their own; zero if the store is unbounded.
    fn overflowed(&self) -> u64 {
        0
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        (**self).run(batch, answers)
    }

    fn try_decide_fast(&self, charges: &[PlainCharge<'_>], answers: &mut Answers) -> Option<bool> {
        (**self).try_decide_fast(charges, answers)
    }

    fn fetch(&self, keys: &[(&Limits, &[u8])]) {
        (**self).fetch(keys);
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

    fn begin(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        (**self).begin(limit_table, charge, start, held);
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
    /// Refunds the cost at the position given by [`Charge::stamps`]. Charges are independent: if one is not accepted,
    /// the others still may be.
    Refund,
    /// Renews the leases in [`Charge::stamps`], as if they were taken now. Charges are independent. The answer's
    /// `taken` is the cost if all leases were still held, and zero otherwise.
    Renew,
    /// Discards the usage.
    Reset,
}

/// A charge to one key: its limits and a cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key, from the engine's key encoder. It contains rule and values, so it is unique.
    pub key: &'a [u8],
    /// The id of the limits. It identifies one immutable set of limits, and is valid only within this process.
    pub limits_id: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// Earlier limit ids of the same key, newest first, for stores that keep states of different sizes in different
    /// tables. Usually empty.
    pub earlier: &'a [u32],
    /// The amount. A refund returns [`Ask::cost`], for all variants.
    pub ask: Ask,
    /// The position of the charge to refund. Without stamps, only the current window is refunded.
    pub stamps: Option<&'a Stamps>,
    /// The calendar windows that limits with phase `Given` refer to by index. If the store's time is outside of them,
    /// it answers [`StoreError::Stale`].
    pub windows: &'a [Window],
    /// How nodes that share the store agree on this key. A store in a single process ignores it.
    pub consistency: Consistency,
}

impl<'a> Charge<'a> {
    /// Returns the rule id, for messages; empty for an inline limit.
    pub fn rule(&self) -> &'a str {
        key::rule_of(self.key)
    }

    /// Returns the value that selects one of several servers: the first value that the rule counts by, or the rule id
    /// if there is none. Keys with the same first value are kept together, even of different rules.
    pub fn partition_key(&self) -> &'a [u8] {
        key::partition_key(self.key)
    }
}

/// Returns the domain and rule id in a key, for metrics and messages. Both are empty if the key has no rule.
pub fn rule_of_key(key: &[u8]) -> (&[u8], &str) {
    match key::rule_of(key) {
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
    /// The group was sent, but no answer came. It may have been carried out, and counts as spent.
    Unknown {
        /// The reason, for the log.
        why: String,
    },
    /// The calendar windows do not contain the store's time. Nothing was spent; retry with the windows of `store_time`.
    Stale {
        /// The store's time.
        store_time: Time<Wall>,
    },
    /// The store rejects this group permanently. Nothing was spent.
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
