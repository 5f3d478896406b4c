//! Rate-limiting rules, and the engine that applies them to requests.
//!
//! ```text
//!  Request{domain, items} ─▶ RuleSet: matching rules ─▶ charges ─▶ Store ─▶ policy ─▶ Decision
//!                              ▲                         (state, time)   (faults, shadow rules, observing)
//!  rule text ─▶ Rules ─────────┘ replaced as a whole
//! ```
//!
//! - [`rules`] parses rule files: YAML or JSON into checked [`Rules`](rules::Rules), or a list of mistakes.
//! - [`Engine`] loads rules and decides [`Request`]s. [`Decisions`] are data; front ends translate them.
//! - [`store`] is the interface that stores implement; [`MemoryStore`] keeps its states in this process.

pub mod calendar;
mod counter;
mod decision;
mod decision_pool;
mod engine;
mod explain;
pub mod faults;
mod inline;
mod key;
mod memory;
mod meters;
mod receipt;
mod request;
pub mod rules;
mod ruleset;
mod schedule;
pub mod store;
pub mod striped;

pub use counter::{CounterOutcome, RuleOutcome};
pub use decision::{Decision, Decisions, Exactness, LimitReport, MatchEffect, RuleMatch};
pub use decision_pool::PooledDecisions;
pub use engine::{CommitResult, Enforcement, Engine, EngineError, ExplanationContext, TakeMode};
pub use explain::{
    AppliedOverride, BanState, BanStatus, CostSource, CostValue, Explanation, FailedCondition, HumanDuration,
    LimitState, MatchExplanation, MatchResult, OverrideExplanation, OverrideMismatch, OverridePosition, Refill,
    RuleEffect, RuleExplanation, SatisfiedCondition, SkippedOverride,
};
pub use inline::InternedLimits;
pub use memory::MemoryStore;
pub use meters::{Counts, RuleCounts, RuleMeter};
pub use receipt::{BadReceipt, Receipt};
pub use request::{Attribute, InlineLimit, Item, Request, RequestError};
pub use ruleset::{ActiveRule, CandidateRules, RuleSet};
pub use store::Store;

/// Compiles the README example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
