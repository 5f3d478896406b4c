//! The operations of the server, independent of any protocol.
//!
//! A front end parses bytes into an [`Input`](input::Input), calls [`run`](run::run) and serialises each
//! [`Output`](view::Output) or [`OpError`](error::OpError). [`OPERATIONS`] lists every operation with its path, its command,
//! the required role, and whether it honours an idempotency key. Routing, the `COMMAND` reply, usage errors and the API
//! description are generated from this table.

pub mod acquire;
pub mod error;
mod explain;
pub mod fields;
pub mod idempotency;
pub mod inline_limit;
pub mod input;
mod pages;
pub mod run;
pub mod view;

use tollgate::core::Cost;
use tollgate_engine::TakeMode;

use crate::control::model::Role;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Decides requests. The requests of a list share round trips to a shared store.
    Decide(Verb),
    /// Takes the cost, waiting until it is available or the deadline passes.
    Acquire,
    /// Settles a reservation at its actual cost.
    Commit,
    /// Undoes the charges of a decision.
    Refund,
    /// Extends the lease of concurrency slots.
    Renew,
    /// Resets the counters of a request to unused.
    Reset,
    /// Explains what a check would decide.
    Explain,
    /// Switches between enforcing and observing.
    SetEnforcement,
    /// Returns a page about the server.
    Page(ServerPage),
}

/// The operations that decide without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Takes the cost or refuses the request.
    Check,
    /// Decides like a check, but takes nothing.
    Peek,
    /// Takes the cost or refuses the request. Returns a receipt with which the reservation can be settled.
    Reserve,
    /// Takes as much of the cost as is available.
    TakeUpTo,
    /// Takes the cost even if the counter goes into debt.
    Charge,
    /// Takes the whole available amount.
    Drain,
}

/// A page about the server. Every caller gets the same page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerPage {
    /// Whether refusals are enforced.
    Enforcement,
    /// Liveness: the process runs.
    Health,
    /// Readiness: the server accepts requests.
    Readiness,
    /// All metrics, for Prometheus.
    Metrics,
    /// The heaviest keys.
    TopKeys,
    /// The source of the rules, and the result of the last load.
    RulesStatus,
    /// The servers that share limits with this server.
    Peers,
    /// The OpenAPI description.
    ApiDescription,
}

impl Op {
    /// Returns whether the operation changes counters.
    pub const fn changes_counters(self) -> bool {
        match self {
            Self::Decide(verb) => verb.take_mode().is_some(),
            Self::Acquire | Self::Commit | Self::Refund | Self::Renew | Self::Reset => true,
            Self::Explain | Self::SetEnforcement | Self::Page(_) => false,
        }
    }
}

impl ServerPage {
    /// Returns the page's media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Enforcement | Self::TopKeys | Self::RulesStatus | Self::Peers | Self::ApiDescription => {
                "application/json"
            }
            Self::Health | Self::Readiness => "text/plain; charset=utf-8",
            Self::Metrics => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Verb {
    /// Returns how the verb takes its cost. Returns `None` if the verb takes nothing.
    pub const fn take_mode(self) -> Option<TakeMode> {
        match self {
            Self::Check | Self::Reserve => Some(TakeMode::Exactly),
            Self::Peek => None,
            Self::TakeUpTo | Self::Drain => Some(TakeMode::UpTo),
            Self::Charge => Some(TakeMode::Regardless),
        }
    }

    /// Returns the cost to pass to the engine. For [`Drain`](Self::Drain), this is the maximum cost, so that the engine
    /// takes the whole available amount.
    pub fn engine_cost(self, cost: Option<Cost>) -> Option<Cost> {
        match self {
            Self::Check | Self::Peek | Self::Reserve | Self::TakeUpTo | Self::Charge => cost,
            Self::Drain => Some(Cost::MAX),
        }
    }

    /// Returns whether the output contains the amount taken. True for verbs that can take an amount other than the cost.
    pub const fn shows_taken(self) -> bool {
        match self {
            Self::Check | Self::Peek | Self::Reserve => false,
            Self::TakeUpTo | Self::Charge | Self::Drain => true,
        }
    }

    /// Returns whether the output always contains a receipt, even if the request does not ask for one.
    pub const fn always_shows_receipt(self) -> bool {
        match self {
            Self::Check | Self::Peek | Self::TakeUpTo | Self::Charge | Self::Drain => false,
            Self::Reserve => true,
        }
    }
}

/// One row of [`OPERATIONS`].
#[derive(Debug)]
pub struct OperationSpec {
    /// The operation. Several rows may name the same operation.
    pub op: Op,
    /// The HTTP path. Pages accept GET and HEAD, all other operations POST.
    pub path: &'static str,
    /// The Redis-protocol command, if the operation has one.
    pub command: Option<RespCommand>,
    /// The role that a token needs; `None` if the operation needs no token.
    pub role: Option<Role>,
    /// Whether an idempotency key is honoured. Operations that change no counters ignore the key.
    pub keyed: bool,
    /// One-line description for users.
    pub summary: &'static str,
}

/// The Redis-protocol command of an operation.
#[derive(Debug)]
pub struct RespCommand {
    /// The name, in upper case.
    pub name: &'static str,
    /// Number of mandatory words, including the name. An optional `ONCE key` follows the mandatory words.
    pub arity: usize,
    /// Usage text for the words after the name.
    pub args: &'static str,
}

/// All operations. The most frequent operation comes first, because lookups are linear.
#[rustfmt::skip]
pub const OPERATIONS: &[OperationSpec] = &[
    verb_spec(Verb::Check, "/v1/check", "TG.CHECK", "Takes the cost of the request, or refuses it and takes nothing"),
    verb_spec(Verb::Peek, "/v1/peek", "TG.PEEK", "Returns what a check would decide, and takes nothing"),
    verb_spec(Verb::TakeUpTo, "/v1/take-up-to", "TG.TAKEUPTO", "Takes as much of the cost as is available"),
    verb_spec(Verb::Charge, "/v1/charge", "TG.CHARGE", "Takes the cost even if too little is left, into debt up to `max_debt`"),
    operation_spec(Op::Decide(Verb::Drain), "/v1/drain", ("TG.DRAIN", 2, DRAIN_ARGS), "Takes all that is available"),
    verb_spec(Verb::Reserve, "/v1/reserve", "TG.RESERVE", "Takes the cost, and returns a receipt to settle later"),
    operation_spec(Op::Acquire, "/v1/acquire", ("TG.ACQUIRE", 4, ACQUIRE_ARGS), "Takes the cost as soon as it is available, or refuses the request when the wait is over"),
    operation_spec(Op::Commit, "/v1/commit", ("TG.COMMIT", 3, COMMIT_ARGS), "Settles a reservation at its actual cost"),
    // Cancel (a reservation), release (a slot) and refund (any decision) are the same operation.
    operation_spec(Op::Refund, "/v1/cancel", ("TG.CANCEL", 2, RECEIPT_ARGS), "Cancels a reservation"),
    operation_spec(Op::Refund, "/v1/release", ("TG.RELEASE", 2, RECEIPT_ARGS), "Releases a slot"),
    operation_spec(Op::Renew, "/v1/renew", ("TG.RENEW", 2, RECEIPT_ARGS), "Extends the lease of a slot"),
    operation_spec(Op::Refund, "/v1/refund", ("TG.REFUND", 2, RECEIPT_ARGS), "Refunds what a decision took"),
    OperationSpec { role: Some(Role::Operator), ..operation_spec(Op::Reset, "/v1/reset", ("TG.RESET", 3, REQUEST_ARGS), "Resets counters; for operators") },
    OperationSpec { keyed: false, ..operation_spec(Op::Explain, "/v1/explain", ("TG.EXPLAIN", 3, UNKEYED_REQUEST_ARGS), "Explains what a check would decide, and takes nothing") },
    OperationSpec { op: Op::SetEnforcement, role: Some(Role::Operator), ..page_spec(ServerPage::Enforcement, "/v1/enforcement", "The kill switch of this server; for operators") },
    page_spec(ServerPage::Enforcement, "/v1/enforcement", "Whether refusals are enforced"),
    OperationSpec { role: None, ..page_spec(ServerPage::Health, "/healthz", "Whether the server runs") },
    OperationSpec { role: None, ..page_spec(ServerPage::Readiness, "/readyz", "Whether the server accepts requests") },
    page_spec(ServerPage::TopKeys, "/v1/top", "The heaviest keys, by rule"),
    page_spec(ServerPage::Metrics, "/metrics", "All counters, for Prometheus"),
    page_spec(ServerPage::RulesStatus, "/v1/rules-status", "The source of the rules, and the result of the last load"),
    page_spec(ServerPage::Peers, "/v1/peers", "The servers that share limits with this one, with `--store peers://…`"),
    page_spec(ServerPage::ApiDescription, "/openapi.json", "This description"),
];

/// The row of the operation `check`.
pub const CHECK_SPEC: &OperationSpec = &OPERATIONS[0];

const DRAIN_ARGS: &str = "<domain> [ONCE <key>] [<name> <value> ...]";
const REQUEST_ARGS: &str = "<domain> <cost or -> [ONCE <key>] [<name> <value> ...]";
const UNKEYED_REQUEST_ARGS: &str = "<domain> <cost or -> [<name> <value> ...]";
const ACQUIRE_ARGS: &str = "<domain> <cost or -> <wait_ms> [ONCE <key>] [<name> <value> ...]";
const RECEIPT_ARGS: &str = "<receipt> [ONCE <key>]";
const COMMIT_ARGS: &str = "<receipt> <cost> [ONCE <key>]";

const fn operation_spec(
    op: Op,
    path: &'static str,
    (name, arity, args): (&'static str, usize, &'static str),
    summary: &'static str,
) -> OperationSpec {
    OperationSpec {
        op,
        path,
        command: Some(RespCommand { name, arity, args }),
        role: Some(Role::Reader),
        keyed: true,
        summary,
    }
}

const fn verb_spec(verb: Verb, path: &'static str, name: &'static str, summary: &'static str) -> OperationSpec {
    let keyed = verb.take_mode().is_some();
    let args = if keyed { REQUEST_ARGS } else { UNKEYED_REQUEST_ARGS };
    OperationSpec { keyed, ..operation_spec(Op::Decide(verb), path, (name, 3, args), summary) }
}

const fn page_spec(page: ServerPage, path: &'static str, summary: &'static str) -> OperationSpec {
    OperationSpec { op: Op::Page(page), path, command: None, role: Some(Role::Reader), keyed: false, summary }
}

impl OperationSpec {
    /// Finds a Redis-protocol command by name, ignoring case.
    pub fn find_command(name: &[u8]) -> Option<(&'static Self, &'static RespCommand)> {
        let mut commands = OPERATIONS.iter().filter_map(|spec| Some((spec, spec.command.as_ref()?)));
        commands.find(|(_, command)| command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns the accepted HTTP methods.
    pub const fn methods(&self) -> &'static [&'static str] {
        if matches!(self.op, Op::Page(_)) { &["GET", "HEAD"] } else { &["POST"] }
    }
}
