//! Converts commands to operation inputs. Consecutive commands of the same verb in a pipeline form a batch, so that
//! they share round trips to a shared store. A command of an operation that is not a verb forms a batch by itself.
//!
//! `ONCE key` sets the idempotency key. These two words follow the mandatory words and precede the attributes:
//! `TG.CHECK api 1 ONCE 7f3a path /login`. `ONCE` must be in upper case. The first attribute must not be named `ONCE`.

use tollgate::core::Cost;
use tollgate::redis_cell::Throttle;
use tollgate_engine::{Attribute, Store};

use super::throttle::{self, SharedCall};
use super::wire::{Replies, RespFrame, parse_command, parse_integer};
use super::write::{write_error, write_output};
use crate::app::App;
use crate::control::auth::Access;
use crate::net::protocol::Protocol;
use crate::ops::error::{ErrorKind, OpError};
use crate::ops::idempotency::KeyLookup;
use crate::ops::input::{self, Input, LimitsInput, RequestInput};
use crate::ops::run::{Call, Caller, Reply, run};
use crate::ops::view::Output;
use crate::ops::{OPERATIONS, Op, OperationSpec, RespCommand, Verb};

/// Maximum number of commands in a batch.
const MAX_BATCHED_COMMANDS: usize = 64;

/// Consecutive commands of one verb that are run together, or a single command of an operation that is not a verb.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    spec: &'static OperationSpec,
    calls: Vec<Call<'a>>,
    /// The limit of each `CL.THROTTLE` call, which is needed to write its reply. `None` for other calls. Empty if the
    /// batch has no `CL.THROTTLE` call.
    throttles: Vec<Option<Box<Throttle>>>,
    /// The idempotency keys of the calls.
    keys: Vec<&'a [u8]>,
}

/// A command that may be part of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchCommand {
    /// An operation.
    Op(&'static OperationSpec, &'static RespCommand),
    /// `CL.THROTTLE` with a shared store.
    Throttle,
}

impl BatchCommand {
    /// Finds a command by name. Finds `CL.THROTTLE` only if its keys are in a shared store.
    pub(super) fn find<S>(app: &App<S>, name: &[u8]) -> Option<Self> {
        match OperationSpec::find_command(name) {
            Some((spec, command)) => Some(Self::Op(spec, command)),
            None => (app.throttles.is_none() && throttle::is_throttle(name)).then_some(Self::Throttle),
        }
    }

    /// Returns the operation of the command. For `CL.THROTTLE`, this is a check.
    fn spec(self) -> &'static OperationSpec {
        match self {
            Self::Op(spec, _) => spec,
            Self::Throttle => &OPERATIONS[0],
        }
    }
}

impl<'a> Batch<'a> {
    /// Builds a batch from the command in `args`. If that command is a verb, adds the following commands of the same
    /// verb in `input`. Returns the batch and the number of bytes used from `input`. If no batch is returned, the reply
    /// to the first command is already written.
    pub(super) fn collect<S: Store>(
        app: &'a App<S>,
        access: &Access,
        first: BatchCommand,
        args: &mut Vec<&'a [u8]>,
        input: &'a [u8],
        replies: &mut Replies,
    ) -> (Option<Self>, usize) {
        let first_name = args.first().copied();
        let mut batch = Self { spec: first.spec(), calls: Vec::new(), throttles: Vec::new(), keys: Vec::new() };
        match batch.add_command(app, access, first, args) {
            AddOutcome::Added => {}
            AddOutcome::Postponed => return (None, 0),
            AddOutcome::ReplyKnown(reply) => {
                match reply {
                    Ok(reply) => replies.write_throttle_reply(reply),
                    Err(error) => {
                        app.metrics.protocol_counters(Protocol::Resp).count_malformed();
                        replies.write_error_reply(&error);
                    }
                }
                return (None, 0);
            }
        }
        // Nearly all commands have the same name as the first command, and comparing the names saves a lookup of about
        // 200 instructions.
        let find = |name: &[u8]| if Some(name) == first_name { Some(first) } else { BatchCommand::find(app, name) };
        let mut at = 0;
        while matches!(batch.spec.op, Op::Decide(_))
            && batch.calls.len() < MAX_BATCHED_COMMANDS
            && let Ok(RespFrame::Command(len)) = parse_command(&input[at..], args)
            && let Some(next) = args.first().and_then(|name| find(name))
            && next.spec().op == batch.spec.op
            && matches!(batch.add_command(app, access, next, args), AddOutcome::Added)
        {
            at += len;
        }
        (Some(batch), at)
    }

    fn add_command<S: Store>(
        &mut self,
        app: &'a App<S>,
        access: &Access,
        command: BatchCommand,
        args: &mut Vec<&'a [u8]>,
    ) -> AddOutcome {
        match command {
            BatchCommand::Op(spec, command) => {
                let key = remove_idempotency_key(command, args);
                // The batch already contains a call with this key, and the result of that call is not known yet.
                if key.is_some_and(|key| self.keys.contains(&key)) {
                    return AddOutcome::Postponed;
                }
                self.keys.extend(key);
                self.push_call(build_call(app, access, spec, command, key, args), None);
            }
            BatchCommand::Throttle => match throttle::parse_shared_call(app, args) {
                Ok(SharedCall::Decide(input, throttle)) => self.push_call(Call::new(Ok(input)), Some(throttle)),
                Ok(SharedCall::Known(reply)) => return AddOutcome::ReplyKnown(Ok(reply)),
                Err(error) => return AddOutcome::ReplyKnown(Err(error)),
            },
        }
        AddOutcome::Added
    }

    fn push_call(&mut self, call: Call<'a>, throttle: Option<Box<Throttle>>) {
        if throttle.is_some() || !self.throttles.is_empty() {
            self.throttles.resize_with(self.calls.len(), || None);
            self.throttles.push(throttle);
        }
        self.calls.push(call);
    }

    /// Returns whether the batch may wait for capacity.
    pub(super) fn may_wait(&self) -> bool {
        self.spec.op == Op::Acquire
    }

    /// Runs the commands and writes the replies in order.
    pub(super) async fn run<S: Store>(mut self, app: &App<S>, access: &Access, replies: &mut Replies) {
        let caller =
            Caller { protocol: Protocol::Resp, access, is_full: None, format_explanation: ToString::to_string };
        let throttles = &self.throttles;
        run(app, caller, self.spec, &mut self.calls, |Reply { index, result, replayed }| match result {
            Ok(output) => match (throttles.get(index), output) {
                (Some(Some(throttle)), Output::Decision(decision)) => {
                    replies.write_throttle_reply(throttle::throttle_reply(throttle, decision));
                }
                _ => write_output(replies, output, replayed),
            },
            Err(error) => {
                if error.kind != ErrorKind::StoreFailed {
                    app.metrics.protocol_counters(Protocol::Resp).count_malformed();
                }
                write_error(replies, error);
            }
        })
        .await;
    }
}

/// Result of adding a command to a batch.
enum AddOutcome {
    /// The command is part of the batch.
    Added,
    /// The command must run after the batch.
    Postponed,
    /// The command needs no batch, because its reply is already known.
    ReplyKnown(Result<[i64; 5], String>),
}

/// Removes `ONCE key` from the words of a command. Returns the key if it is present.
fn remove_idempotency_key<'a>(command: &RespCommand, args: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let at = command.arity;
    let key = match args.get(at..) {
        Some([b"ONCE", key, ..]) => *key,
        Some(_) | None => return None,
    };
    args.drain(at..at + 2);
    Some(key)
}

/// Builds the call of an operation from the words of a command, without `ONCE key`.
fn build_call<'a, S: Store>(
    app: &'a App<S>,
    access: &Access,
    spec: &OperationSpec,
    command: &RespCommand,
    key: Option<&[u8]>,
    args: &[&'a [u8]],
) -> Call<'a> {
    let read = || {
        let input = build_input(spec.op, command, args)?;
        let key = match key.filter(|_| spec.keyed) {
            None => KeyLookup::NoKey,
            Some(key) => app.idempotency.look_up_or_insert(access, key, (Protocol::Resp, args), app.now())?,
        };
        Ok((input, key))
    };
    match read() {
        Ok((input, key)) => Call { input: Ok(input), key },
        Err(error) => Call::new(Err(error)),
    }
}

/// Builds the input of an operation from the words of a command. The first word is the command name.
fn build_input<'a>(op: Op, command: &RespCommand, args: &[&'a [u8]]) -> Result<Input<'a>, OpError> {
    let usage = || OpError::invalid("", format!("usage: {} {}", command.name.to_lowercase(), command.args));
    let rules = |domain, attributes: &[&'a [u8]]| {
        let (pairs, []) = attributes.as_chunks::<2>() else { return Err(usage()) };
        let attributes = pairs.iter().map(|[name, value]| Attribute { name, value }).collect();
        Ok(LimitsInput::Rules { domain, attributes })
    };
    match (op, args) {
        (Op::Decide(Verb::Drain), [_, domain, attributes @ ..]) => {
            Ok(Input::Request(RequestInput::new(rules(domain, attributes)?, None)))
        }
        (Op::Decide(_) | Op::Reset | Op::Explain, [_, domain, cost, attributes @ ..]) => {
            Ok(Input::Request(RequestInput::new(rules(domain, attributes)?, parse_cost_or_dash(cost)?)))
        }
        (Op::Acquire, [_, domain, cost, wait, attributes @ ..]) => {
            let request = RequestInput::new(rules(domain, attributes)?, parse_cost_or_dash(cost)?);
            let wait = input::parse_wait(parse_integer(wait).and_then(|wait| u64::try_from(wait).ok()))?;
            Ok(Input::Request(RequestInput { wait, ..request }))
        }
        (Op::Refund | Op::Renew, [_, receipt]) => Ok(Input::Receipt(input::parse_receipt(receipt)?, None)),
        (Op::Commit, [_, receipt, cost]) => {
            let receipt = input::parse_receipt(receipt)?;
            Ok(Input::Receipt(receipt, Some(parse_cost(cost).ok_or_else(|| invalid_cost(cost, ""))?)))
        }
        _ => Err(usage()),
    }
}

/// Parses the cost of a request. Returns `None` for `-`, which means the cost set by the rules. The word is mandatory,
/// because an attribute name could otherwise be mistaken for a cost.
fn parse_cost_or_dash(text: &[u8]) -> Result<Option<Cost>, OpError> {
    if text == b"-" {
        return Ok(None);
    }
    parse_cost(text).map(Some).ok_or_else(|| invalid_cost(text, ", or - to use the cost of the rules"))
}

fn parse_cost(text: &[u8]) -> Option<Cost> {
    parse_integer(text).and_then(|cost| u64::try_from(cost).ok()).map(Cost::new)
}

fn invalid_cost(text: &[u8], or: &str) -> OpError {
    let cost = String::from_utf8_lossy(&text[..text.len().min(64)]);
    OpError::invalid("cost", format!("the cost '{cost}' is not a non-negative integer, such as 1{or}"))
}
