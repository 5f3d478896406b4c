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

pub mod calendar;
mod counter;
mod decision;
mod engine;
mod explain;
mod inline;
mod key;
mod memory;
mod meters;
mod pool;
mod receipt;
mod request;
pub mod rules;
mod ruleset;
mod schedule;
pub mod store;
pub mod striped;

pub use counter::Counter;
pub use decision::{Decision, Decisions, LimitReport, Standing};
pub use engine::{Enforcement, Engine, EngineError, Settled, Taking};
pub use explain::{
    BanStands, BanState, CostBy, Does, Explained, Explanation, Held, Length, LimitState, Met, NotHeld, OverridePlace,
    Overrides, Overriding, Refill, Unmet, UnmetOverride, Weight, Why,
};
pub use inline::InlineLimits;
pub use memory::MemoryStore;
pub use meters::{Counts, RuleCounts, RuleMeter};
pub use pool::PooledDecisions;
pub use receipt::{BadReceipt, Receipt};
pub use request::{Entry, Inline, Item, Request, RequestError};
pub use ruleset::{Matched, RuleSet, RunningRule};
pub use store::Store;
