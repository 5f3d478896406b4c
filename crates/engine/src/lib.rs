//! Rules, and what is decided by them.
//!
//! ```text
//!  Request{domain, items} ─▶ RuleSet: which rules are met ─▶ charges ─▶ Store ─▶ policy ─▶ Decision
//!                              ▲                               (state, time)      (faults, shadow, observing)
//!  rule text ─▶ Rules ─────────┘ replaced as a whole
//! ```
//!
//! - [`rules`] reads rule files: YAML or JSON to checked [`Rules`](rules::Rules), or to everything that is wrong with them.
//! - [`Engine`] puts rules in force and decides [`Request`]s. [`Decisions`] are data; front ends put them into protocols.
//! - [`store`] is the contract with whoever keeps the state; [`MemoryStore`] is the one in this process.
//!
//! # Why the contract with stores looks as it does
//!
//! It was written for a table in memory and for a script in Redis at the same time, and each line of it is there for one
//! of them:
//!
//! - *Groups all or none*, because a refused request must spend nothing, and only the store can hold several counters still.
//! - *Batches of groups*, because a round trip costs a thousand times a decision, and because memory is fetched many places at
//!   a time. *Answers for each group by itself*, because a batch is made of strangers.
//! - *Borrowed questions and answers in buffers that are used again*, because a decision in memory must not allocate.
//! - *An id for every set of numbers*, because a state has to remember what it was written under in four bytes; *the limits
//!   themselves as well*, because ids mean nothing outside of the process.
//! - *The store's time*, and calendar windows handed in, because clocks differ and scripts know no calendars; *stale* is
//!   how the one tells the other that they disagree.
//! - *Unavailable* and *unknown* are different failures, because only after the first is it certain that nothing was spent.
//! - *No policy*: a store that fails says so. What happens then is the rule's to say and the engine's to do, in one place.

mod decision;
mod engine;
mod key;
mod memory;
mod meters;
mod receipt;
mod request;
pub mod rules;
mod ruleset;
mod sent;
pub mod store;

pub use decision::{Decision, Decisions, LimitReport, Standing};
pub use engine::{Enforcement, Engine, EngineError};
pub use memory::MemoryStore;
pub use meters::{Counts, RuleCounts, RuleMeter};
pub use receipt::{BadReceipt, Receipt};
pub use request::{Entry, Item, Request, RequestError, Sent};
pub use ruleset::{Matched, RuleSet, RunningRule};
pub use sent::SentLimits;
pub use store::Store;
