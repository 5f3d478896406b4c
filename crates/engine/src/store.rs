//! What the engine asks of whoever keeps the state: a process' own memory, or a server shared by many.
//!
//! The contract is written for both. In memory a decision takes tens of nanoseconds, so nothing here allocates: the
//! questions are borrowed slices, the answers go into buffers that are used again. Over a network a decision takes a
//! round trip, so a call carries as many as there are at hand, each may fail by itself, and a failure says whether
//! anything may have been spent.
//!
//! A store owns atomicity and time, and nothing else. It matches no rules, builds no keys, knows neither shadow rules nor
//! what is to happen when it fails.

mod answers;

use std::fmt;

use tollgate::Limits;
use tollgate::core::{Ask, Stamps, Time, Wall, Window};
use tollgate::ledger::{LimitTable, PlainCharge};

use crate::key;
pub use answers::{Answer, Answers, GroupAnswer};

/// Keeps the state of limits and decides by it.
///
/// - **Groups are all or none.** A group either changes all its states or none of them. A store that cannot hold all of them
///   still at once may take and give back: meanwhile others see less than there is, and nobody ever sees more.
/// - **Groups are independent.** One may fail or be refused without another noticing. Those of one call may be decided at
///   different instants, but in order: a later one sees what an earlier one took.
/// - **The store's time decides**, never the caller's.
/// - **A refusal changes nothing**, except in limits that count refused attempts.
/// - **Numbers may change.** A state written under other numbers of the same key is converted at the first touch, so that
///   what was spent stays spent.
pub trait Store: Send + Sync {
    /// Adds an answer for every group of the batch, in order, to those that `answers` holds already.
    ///
    /// Dropping the future half-way leaves it open which groups were carried out.
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send;

    /// Takes from all of these and answers them as one group, if all of them fit and nothing has to be waited for. `false`: the
    /// fast path does not apply and nothing has happened; call [`run`](Self::run). A store over a network always returns `false`.
    fn try_take_fast(&self, charges: &[PlainCharge<'_>], answers: &mut Answers) -> bool {
        let _ = (charges, answers);
        false
    }

    /// Whether the store can compute these numbers exactly; what is wrong with them otherwise. Asked when rules are loaded,
    /// and when an inline limit is first used.
    ///
    /// # Errors
    /// What would have to be different, for whoever wrote the rule.
    fn check_numbers(&self, limits: &Limits) -> Result<(), String>;

    /// Whether it may fail to answer. The engine remembers what such a store answers, to decide by while it does not.
    fn can_fail(&self) -> bool {
        true
    }

    /// Replaces the state of the charge's key by a new one: what `start` says a new key has, with `held` leases taken of each
    /// limit that hands them out. Only asked of the store that decides while another does not answer, which must answer at once.
    fn begin(&self, numbers: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        let _ = (numbers, charge, start, held);
    }

    /// How many decisions were about keys that found no room of their own; zero where there is always room.
    fn overflowed(&self) -> u64 {
        0
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        (**self).run(batch, answers)
    }

    fn try_take_fast(&self, charges: &[PlainCharge<'_>], answers: &mut Answers) -> bool {
        (**self).try_take_fast(charges, answers)
    }

    fn check_numbers(&self, limits: &Limits) -> Result<(), String> {
        (**self).check_numbers(limits)
    }

    fn can_fail(&self) -> bool {
        (**self).can_fail()
    }

    fn begin(&self, numbers: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        (**self).begin(numbers, charge, start, held);
    }

    fn overflowed(&self) -> u64 {
        (**self).overflowed()
    }
}

/// Groups that are asked together, and the numbers they may meet.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Every set of numbers a state may have been written under.
    pub numbers: &'a (dyn LimitTable + Sync),
    /// In the order in which they are to be decided.
    pub groups: &'a [Group<'a>],
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Charges that pass together or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// What is to be done with all of them.
    pub verb: Verb,
    /// At least one. No two of them have the same key.
    pub charges: &'a [Charge<'a>],
}

/// What is to be done with the charges of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take all or nothing.
    Check,
    /// Say what [`Verb::Check`] would say, and change nothing, not even by making an entry.
    Peek,
    /// Give back the cost, to where [`Charge::stamps`] says it was taken. Each charge by itself: what one does not accept
    /// does not keep another from accepting.
    Refund,
    /// Let the leases that [`Charge::stamps`] name last as long as if they were taken now. Each charge by itself; its answer
    /// says the cost was taken if they were all still held, and nothing otherwise.
    Renew,
    /// Forget what was spent.
    Reset,
}

/// One rule, one key, all its limits, one cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// What is counted, from the one encoder there is: rule and values are in it, so it is unique by itself.
    pub key: &'a [u8],
    /// The id of the limits. It names one immutable set of numbers within this process, and nothing outside of it.
    pub numbers: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// Ids that the same key may have been charged under before, newest first, for stores that keep states of different
    /// sizes in different places. Mostly empty.
    pub earlier: &'a [u32],
    /// How much. A refund is of [`Ask::cost`].
    pub ask: Ask,
    /// Where it was taken, for a refund; without it, only the current window gets anything back.
    pub stamps: Option<&'a Stamps>,
    /// The calendar windows that limits of phase `Given` refer to by position. A store whose time lies in none of them
    /// answers [`StoreError::Stale`].
    pub windows: &'a [Window],
}

impl<'a> Charge<'a> {
    /// Which rule, for messages; empty for an inline limit.
    pub fn rule(&self) -> &'a str {
        key::rule_of(self.key)
    }
}

/// Why a group was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Nothing was sent, so nothing was spent: the store cannot be reached, or is given a rest.
    Unavailable {
        /// What was tried, for the log.
        why: String,
    },
    /// It was sent and no answer came. It may have been carried out, and counts as spent.
    Unknown {
        /// What was waited for, for the log.
        why: String,
    },
    /// The windows handed in do not fit the store's time. Nothing was spent; ask again with those of `store_time`.
    Stale {
        /// What the store's clock says.
        store_time: Time<Wall>,
    },
    /// The store will not do this, however often it is asked. Nothing was spent.
    Rejected {
        /// For the log.
        why: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { why } => write!(f, "the store is unavailable: {why}"),
            Self::Unknown { why } => write!(f, "the store did not answer, the outcome is unknown: {why}"),
            Self::Stale { store_time } => {
                write!(
                    f,
                    "the calendar windows do not fit the store's time, {} s",
                    store_time.as_nanos() / 1_000_000_000
                )
            }
            Self::Rejected { why } => write!(f, "the store rejected the request: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}
