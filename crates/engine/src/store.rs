//! The contract between the engine and a store of states: the memory of the process, or a shared
//! server.
//!
//! It is designed for both. In memory a decision takes tens of nanoseconds, so nothing here
//! allocates: charges are borrowed slices, and answers are written to reused buffers. Over a
//! network a decision takes a round trip, so a call carries as many as are ready, each may fail
//! independently, and a failure says whether anything may have been spent.
//!
//! A store owns atomicity and time, and nothing else. It matches no rules, builds no keys, and
//! knows neither shadow rules nor `on_fault`.

mod answers;

use std::fmt;

use tollgate::Limits;
use tollgate::core::{Ask, Stamps, Time, Wall, Window};
use tollgate::ledger::{LimitTable, PlainCharge};

use crate::key;
pub use crate::rules::{Consistency, SyncEvery};
pub use answers::{Answer, Answers, GroupAnswer};

/// Keeps the state of limits and decides by it.
///
/// - **Groups are all or none.** A group changes either all of its states or none, in one atomic step.
///   Charges of a group that take [up to an amount](Ask::UpTo) all take the same amount: the least that
///   any of them can take.
/// - **Groups are independent.** One may fail or be refused without affecting another. Those of one
///   call may be decided at different instants, but in order: a later one sees what an earlier one
///   took.
/// - **The store's time decides**, never the caller's.
/// - **A refusal changes nothing**, except in limits that count refused attempts, and that the states of new keys
///   with an initial amount are created.
/// - **Limits may change.** A state written under other limits of the same key is converted at the
///   first charge, so that usage is kept.
pub trait Store: Send + Sync {
    /// Adds an answer for every group of the batch, in order, to those already in `answers`.
    ///
    /// After the future is dropped, it is unknown which groups were carried out.
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send;

    /// Decides these as one group, if nothing has to be waited for, and returns whether it was
    /// admitted. `None`: the fast path does not apply and nothing has happened; call
    /// [`run`](Self::run). A store over a network always returns `None`.
    fn try_decide_fast(&self, charges: &[PlainCharge<'_>], answers: &mut Answers) -> Option<bool> {
        let _ = (charges, answers);
        None
    }

    /// Begins to fetch the states of keys that are decided about soon, each with its limits. Changes nothing. A store whose
    /// states are elsewhere does nothing.
    fn fetch(&self, keys: &[(&Limits, &[u8])]) {
        let _ = keys;
    }

    /// Decides a charge of a rule that is not strict, as a group of its own, if this node can without waiting, and returns
    /// whether it was admitted. `None`: the fast path does not apply and nothing has happened; call [`run`](Self::run).
    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        let _ = (charge, answers);
        None
    }

    /// Checks that the store can represent these limits exactly. Called when rules are loaded, and
    /// when an inline limit is first used.
    ///
    /// # Errors
    /// What would have to be different, for the author of the rule.
    fn check_limits(&self, limits: &Limits) -> Result<(), String>;

    /// Checks that the store supports a consistency. Called when rules are loaded.
    ///
    /// # Errors
    /// What would have to be different, for the author of the rule.
    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        let _ = consistency;
        Ok(())
    }

    /// Returns whether it may fail to answer. The engine records the answers of such a store, to decide by
    /// while it does not answer.
    fn can_fail(&self) -> bool {
        true
    }

    /// Replaces the state of the charge's key by a new one: the initial state of `start`, with
    /// `held` leases taken of each concurrency limit. Called only for the fallback, which must
    /// answer immediately.
    fn begin(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        let _ = (limit_table, charge, start, held);
    }

    /// Returns the number of decisions about keys without their own entry; zero if the store is unbounded.
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

    fn overflowed(&self) -> u64 {
        (**self).overflowed()
    }
}

/// Groups that are run together, and the limits of their states.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// All limits that a state may have been written under.
    pub limit_table: &'a (dyn LimitTable + Sync),
    /// The groups, in the order in which they are decided.
    pub groups: &'a [Group<'a>],
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Charges that are admitted together or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The operation for all of them.
    pub verb: StoreVerb,
    /// At least one. No two of them have the same key.
    pub charges: &'a [Charge<'a>],
}

/// What to do with the charges of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Takes all or nothing.
    Check,
    /// Returns what [`StoreVerb::Check`] would return, and changes nothing, not even by creating an
    /// entry.
    Peek,
    /// Refunds the cost where [`Charge::stamps`] says it was taken. Each charge independently: if
    /// one does not accept it, others still may.
    Refund,
    /// Renews the leases of [`Charge::stamps`], as if they were taken now. Each charge independently; its answer has
    /// the cost as taken if all of them were still held, and zero otherwise.
    Renew,
    /// Discards the usage.
    Reset,
}

/// A charge of one key: its limits and the cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The key, from the only encoder: rule and values are part of it, so it is unique.
    pub key: &'a [u8],
    /// The id of the limits. It identifies one immutable set of limits within this process, and
    /// nothing outside of it.
    pub limits_id: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// Ids that the same key may have been charged under before, newest first, for stores that keep
    /// states of different sizes in different tables. Usually empty.
    pub earlier: &'a [u32],
    /// The amount. A refund gives back [`Ask::cost`], whichever variant it is.
    pub ask: Ask,
    /// Where it was taken, for a refund; without it, only the current window gets a refund.
    pub stamps: Option<&'a Stamps>,
    /// The calendar windows that limits of phase `Given` refer to by index. A store whose time is
    /// in none of them answers [`StoreError::Stale`].
    pub windows: &'a [Window],
    /// How nodes that share the store agree on this key. A store that nodes do not share ignores it.
    pub consistency: Consistency,
}

impl<'a> Charge<'a> {
    /// Returns the id of the rule, for messages; empty for an inline limit.
    pub fn rule(&self) -> &'a str {
        key::rule_of(self.key)
    }

    /// Returns the value that selects which of several servers keeps its state: the first value that its rule counts
    /// by, so that rules that count by the same value are kept together; the rule if there is none.
    pub fn placed_by(&self) -> &'a [u8] {
        key::placed_by(self.key)
    }
}

/// Returns the domain and the id of the rule of a key, for metrics and messages; both are empty for a key that has none.
pub fn rule_of_key(key: &[u8]) -> (&[u8], &str) {
    match key::rule_of(key) {
        "" => (&[], ""),
        rule => (key::domain_of(key), rule),
    }
}

/// Why a group was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Nothing was sent, so nothing was spent: the store is unreachable, or the circuit breaker is
    /// open.
    Unavailable {
        /// The reason, for the log.
        why: String,
    },
    /// The group was sent and no answer came. It may have been carried out, and counts as spent.
    Unknown {
        /// The reason, for the log.
        why: String,
    },
    /// The calendar windows do not fit the store's time. Nothing was spent; retry with the windows of `store_time`.
    Stale {
        /// The store's time.
        store_time: Time<Wall>,
    },
    /// The store refuses this permanently. Nothing was spent.
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
                    "the calendar windows do not fit the store's time, {} s",
                    store_time.as_nanos() / 1_000_000_000
                )
            }
            Self::Rejected { why } => write!(f, "store rejected the request: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}
