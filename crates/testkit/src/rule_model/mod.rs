//! A model of rules: slow, exact, and based on the documents (`docs/rules.md`, `docs/verbs.md`), not on the engine.
//!
//! ```text
//!  RuleSet, as data ──┬─ text() ──▶ the program under test ──▶ Answer ┐
//!                     │                                               ├─ equal, after every step
//!                     └───────────▶ RuleModel ───────────────▶ Answer ┘
//! ```
//!
//! For every limit of every key, the model keeps the parameters of the last *charge* and the amounts counted under them
//! ([`states`]). A request may arrive under other parameters: another override, or a later version of the rule.
//! Every decision follows from two definitions:
//!
//! - `spent(t)` is the amount used at `t` according to the state, under its own parameters.
//! - A request of cost `c` under parameters with capacity `n` is admitted exactly if `spent(t) + c ≤ n` ([`limit`] adds
//!   waits, gaps and debt).
//!
//! An admitted request with a cost of at least 1 converts the spent amount to its own parameters, rounded up to their
//! resolution, and adds its cost (`states::State::convert`). Other requests write only to start a new key with
//! `initial`, or to a log that counts refusals.
//!
//! The rest of the model is in [`decide`] (groups, shadow rules, overrides, costs), [`ban`] and [`settle`] (refunds,
//! reservations, leases). [`random`] generates rule sets and traces from a seed. [`lockstep`] runs the model and a
//! program under test through a trace and compares every answer. [`laws`] compare two runs of the same program.

pub mod ban;
pub mod calendar;
pub mod decide;
pub mod findings;
pub mod general_laws;
pub mod laws;
pub mod limit;
pub mod lockstep;
pub mod memory;
pub mod random;
pub mod rules;
pub mod settle;
pub mod states;
mod text;

use num_rational::Ratio;
use tollgate_core::{Outcome, Report, Retry};

pub use decide::RuleModel;
pub use limit::{Algorithm, Limit, StepAlignment, Windows};
pub use rules::{Ban, Cost, OnChange, OnExceed, Override, Request, Rule, RuleSet, Schedule};

/// An exact number of tokens.
pub type Tokens = Ratio<i128>;

/// Returns a whole number of tokens.
pub fn whole_tokens(count: u64) -> Tokens {
    Tokens::from_integer(count.into())
}

/// Returns the largest integer not above `amount`, but at least 0.
pub fn floor(amount: Tokens) -> u64 {
    u64::try_from(amount.floor().to_integer().max(0)).expect("the traces stay far below 2^64")
}

/// Returns the smallest integer not below `amount`, but at least 0.
pub fn ceil(amount: Tokens) -> u64 {
    u64::try_from(amount.ceil().to_integer().max(0)).expect("the traces stay far below 2^64")
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Takes the cost or refuses.
    Check,
    /// Takes nothing.
    Peek,
    /// Takes as much of the cost as is available.
    TakeUpTo,
    /// Takes the cost, into debt if necessary.
    Charge,
}

/// Answer of the model or of the program under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome of the request.
    pub outcome: Outcome,
    /// Granted amount, or 0 if the request is refused. `None` if the verb does not report an amount.
    pub taken: Option<u64>,
    /// Whether a ban caused the refusal or starts with it.
    pub banned: bool,
    /// Whether a shadow rule would have refused.
    pub shadow_refused: bool,
    /// Every limit that was evaluated, in rule order.
    pub limits: Vec<LimitAnswer>,
}

impl Answer {
    /// Returns a permanent refusal without limits.
    pub const fn denied() -> Self {
        let outcome = Outcome::Deny(Retry::Never);
        Self { outcome, taken: Some(0), banned: false, shadow_refused: false, limits: Vec::new() }
    }
}

/// The state of one limit after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// Id of the limit's rule.
    pub rule: String,
    /// Whether the rule is a shadow rule.
    pub shadow: bool,
    /// Report of the limit.
    pub report: Report,
}
