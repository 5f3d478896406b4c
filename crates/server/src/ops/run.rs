//! Runs operations for every protocol: checks rights and idempotency keys, calls the engine, and records metrics and
//! audit-log entries.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tokio::task::yield_now;
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::{Decisions, Enforcement, Explanation, Item, PooledDecisions, Request, Store};

use super::error::OpError;
use super::explain::explain;
use super::idempotency::KeyLookup;
use super::input::{Input, RequestInput};
use super::view::{DecisionView, Output, ViewOptions};
use super::{Op, OperationSpec, Verb, acquire, pages};
use crate::app::App;
use crate::control::NotedAction;
use crate::control::api::{AuditQueue, AuditSlot};
use crate::control::auth::{Access, Scope};
use crate::control::model::Role;
use crate::net::protocol::Protocol;
use crate::observe::metrics::OutcomeTotals;

/// The caller of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The protocol of the connection.
    pub protocol: Protocol,
    /// The rights of the caller.
    pub access: &'a Access,
    /// Set by the front end when its response is full. Relaxed: only the caller's own task uses it.
    pub is_full: Option<&'a AtomicBool>,
    /// Formats an explanation for the protocol.
    pub format_explanation: fn(&Explanation) -> String,
}

impl Caller<'_> {
    /// Returns whether the response is full. The remaining calls are then not run.
    fn is_response_full(&self) -> bool {
        self.is_full.is_some_and(|is_full| is_full.load(Ordering::Relaxed))
    }
}

/// One call of an operation.
#[derive(Debug)]
pub struct Call<'a> {
    /// The input, or an error if the front end could not parse it.
    pub input: Result<Input<'a>, OpError>,
    /// The idempotency key of the call.
    pub key: KeyLookup<'a>,
}

/// The result of one call, for the front end to serialise.
#[derive(Debug)]
pub struct Reply<'r> {
    /// The index of the call.
    pub index: usize,
    /// The output or the error.
    pub result: Result<&'r Output<'r>, &'r OpError>,
    /// Whether this is the stored result of an earlier call with the same idempotency key.
    pub replayed: bool,
}

/// Runs an operation for each call in order, and passes each result to `reply`.
pub async fn run<S: Store>(
    app: &App<S>,
    caller: Caller<'_>,
    spec: &OperationSpec,
    calls: &mut [Call<'_>],
    reply: impl FnMut(Reply<'_>),
) {
    let mut list = ListRun::new(app, caller, spec, calls.len());
    list.run_part(calls, reply).await;
    list.finish();
}

/// Time after which a long list yields to other connections. The clock is read after each decision and after each
/// reply, because deciding a request that matches 256 rules takes longer than this.
pub(crate) const MAX_TURN: Nanos = Nanos::from_micros(100);

/// Maximum number of items in a part of a list. Items are converted to calls one part at a time, and a shared store
/// decides a part in one round trip.
const LIST_PART_SIZE: usize = 64;

/// A list of calls that is run in parts. Between parts, the list may yield to other connections.
struct ListRun<'a, S> {
    app: &'a App<S>,
    caller: Caller<'a>,
    spec: &'a OperationSpec,
    resets: ResetRecord<'a>,
    /// Number of finished calls.
    finished: usize,
    /// Start of the current turn, which lasts from one yield to the next. `None` for a single call, or if the list
    /// yields after every part.
    turn_start: Option<Time<Mono>>,
}

impl<'a, S: Store> ListRun<'a, S> {
    fn new(app: &'a App<S>, caller: Caller<'a>, spec: &'a OperationSpec, count: usize) -> Self {
        let turn_start = (count > 1 && !app.engine.store().can_fail()).then(|| app.now());
        Self { app, caller, spec, resets: ResetRecord::default(), finished: 0, turn_start }
    }

    /// Runs the next part of the list.
    async fn run_part(&mut self, calls: &mut [Call<'_>], mut reply: impl FnMut(Reply<'_>)) {
        let Self { app, caller, spec, .. } = *self;
        if spec.role > Some(Role::Reader) || caller.access.is_limited_to_domains() {
            calls.iter_mut().for_each(|call| check_rights(caller.access, spec, call));
        }
        if let Op::Decide(verb) = spec.op {
            let part = if app.engine.store().can_fail() { LIST_PART_SIZE } else { 1 };
            for part in calls.chunks_mut(part) {
                let start = self.yield_turn().await;
                if caller.is_response_full() {
                    part.iter_mut().for_each(|call| call.input = Err(OpError::response_full()));
                }
                let first = self.finished;
                let (decisions, end) = decide_part(app, caller, verb, part, start).await;
                // Yields here too, because writing the limits of 256 rules takes about half as long as deciding them.
                self.yield_long_turn(end).await;
                let reply = &mut |one: Reply<'_>| reply(Reply { index: first + one.index, ..one });
                reply_to_part(verb, part, &decisions, reply);
                self.finished += part.len();
            }
            return;
        }
        for call in calls {
            if self.finished > 0 {
                yield_now().await;
            }
            if caller.is_response_full() {
                call.input = Err(OpError::response_full());
            }
            let result = match (&call.input, &call.key) {
                (Err(error), _) => Err(error.clone()),
                (Ok(_), KeyLookup::Replay(_)) => Ok(None),
                (Ok(input), KeyLookup::NoKey | KeyLookup::First(_)) => {
                    // Boxed, so that this rare future does not enlarge the future of a check.
                    Box::pin(run_unbatched(app, caller, spec.op, input, &mut self.resets)).await.map(Some)
                }
            };
            reply_and_store(self.finished, call, result, &mut reply);
            self.finished += 1;
        }
    }

    /// Yields to other connections before the next part: after every part for a shared store, otherwise if this turn
    /// has lasted [`MAX_TURN`]. Returns the current time.
    async fn yield_turn(&mut self) -> Time<Mono> {
        if self.turn_start.is_none() && self.finished > 0 {
            yield_now().await;
        }
        self.yield_long_turn(self.app.now()).await
    }

    /// Yields to other connections if this turn has lasted [`MAX_TURN`] at the time `now`. Returns `now`, or the time
    /// after the yield.
    async fn yield_long_turn(&mut self, now: Time<Mono>) -> Time<Mono> {
        if let Some(turn_start) = &mut self.turn_start
            && now.since(*turn_start) >= MAX_TURN
        {
            yield_now().await;
            *turn_start = self.app.now();
            return *turn_start;
        }
        now
    }

    fn finish(self) {
        self.resets.finish(self.caller.access);
    }
}

/// The audit-log entry for the resets of one list.
#[derive(Default)]
struct ResetRecord<'a> {
    /// Slot in the audit-log queue, reserved before the first reset.
    entry: Option<AuditSlot<'a>>,
    count: usize,
    /// The domain of all resets; `None` if there are several domains, or only inline limits.
    domain: Option<String>,
    subject: String,
}

impl<'a> ResetRecord<'a> {
    /// Reserves the audit-log entry before the first reset.
    ///
    /// # Errors
    /// Returns an error if the audit-log queue is full.
    fn reserve<S: Store>(&mut self, app: &'a App<S>) -> Result<(), OpError> {
        if self.entry.is_none() {
            self.entry = app.reserve_audit_slot(AuditQueue::Resets)?;
        }
        Ok(())
    }

    fn add(&mut self, ask: &RequestInput<'_>) {
        let domain = String::from_utf8_lossy(ask.domain());
        let domain = Some(domain.into_owned()).filter(|domain| !domain.is_empty());
        if self.count == 0 {
            (self.domain, self.subject) = (domain, ask.audit_subject());
        } else if self.domain != domain {
            self.domain = None;
        }
        self.count += 1;
    }

    fn finish(self, access: &Access) {
        let Some(entry) = self.entry.filter(|_| self.count > 0) else { return };
        let subject = match self.count {
            1 => self.subject,
            count => format!("{count} requests, the first: {}", self.subject),
        };
        entry.queue_entry(access, NotedAction::Reset, self.domain.as_deref(), &subject);
    }
}

/// Runs an operation for each item of a list, with one idempotency key for the whole list. `call` converts an item to a
/// call.
///
/// Unlike the result of a single call, the results of a list are stored even if nothing took effect.
pub async fn run_list<'a, S: Store, T>(
    app: &App<S>,
    caller: Caller<'_>,
    spec: &OperationSpec,
    key: KeyLookup<'_>,
    items: &'a [T],
    mut call: impl FnMut(&'a T) -> Call<'a>,
    mut reply: impl FnMut(Reply<'_>),
) {
    if let KeyLookup::Replay(results) = &key {
        for (index, result) in results.iter().enumerate() {
            reply(Reply { index, result: result.as_ref(), replayed: true });
        }
        return;
    }
    let mut results = Vec::new();
    let mut list = ListRun::new(app, caller, spec, items.len());
    // Convert the items in parts, so that a long list does not block other connections.
    for part in items.chunks(LIST_PART_SIZE) {
        let mut calls: SmallVec<[Call<'a>; 1]> = part.iter().map(&mut call).collect();
        let note = |one: Reply<'_>| {
            if matches!(key, KeyLookup::First(_)) {
                results.push(one.result.cloned().map(Output::into_owned).map_err(Clone::clone));
            }
            reply(one);
        };
        list.run_part(&mut calls, note).await;
    }
    list.finish();
    key.store(results);
}

/// Replaces the input of a call with an error if the caller lacks the required role in the domain.
fn check_rights(access: &Access, spec: &OperationSpec, call: &mut Call<'_>) {
    let (Ok(input), Some(role)) = (&call.input, spec.role) else { return };
    let allowed = match input {
        // Inline limits belong to no domain, and read operations are allowed in every domain.
        Input::Request(ask) if role == Role::Reader && (ask.domain().is_empty() || !spec.op.changes_counters()) => {
            Ok(())
        }
        Input::Receipt(receipt, _) => receipt
            .domains()
            .filter(|domain| !domain.is_empty())
            .try_for_each(|domain| access.require_role(role, Scope::Domain(&String::from_utf8_lossy(domain)))),
        Input::None => Ok(()),
        Input::Request(_) | Input::Enforcement(_) => input.with_scope(|scope| access.require_role(role, scope)),
    };
    if let Err(denied) = allowed {
        call.input = Err(denied.into());
    }
}

/// Passes the result of a call to `reply` and, if the call took effect, stores it under its idempotency key. If the
/// result is `Ok(None)`, passes the stored result to `reply` instead.
fn reply_and_store(
    index: usize,
    call: &mut Call<'_>,
    result: Result<Option<Output<'_>>, OpError>,
    reply: &mut impl FnMut(Reply<'_>),
) {
    let key = std::mem::take(&mut call.key);
    match (result, key) {
        (Ok(Some(output)), key) => {
            reply(Reply { index, result: Ok(&output), replayed: false });
            if output.is_stored_for_replay() && matches!(key, KeyLookup::First(_)) {
                key.store(vec![Ok(output.into_owned())]);
            }
        }
        (Ok(None), KeyLookup::Replay(results)) => {
            results.iter().for_each(|result| reply(Reply { index, result: result.as_ref(), replayed: true }));
        }
        (Ok(None), KeyLookup::NoKey | KeyLookup::First(_)) => {}
        (Err(error), _) => reply(Reply { index, result: Err(&error), replayed: false }),
    }
}

/// Decides the requests of the calls in one part of a list. `start` is the current time. Returns the decisions and the
/// time after them.
async fn decide_part<S: Store>(
    app: &App<S>,
    caller: Caller<'_>,
    verb: Verb,
    calls: &[Call<'_>],
    start: Time<Mono>,
) -> (PooledDecisions, Time<Mono>) {
    let mut decisions = PooledDecisions::take();
    let mut end = start;
    if let [call] = calls {
        // There is almost always only one request, which needs no lists.
        if let Some(input) = call.request_to_decide() {
            let request = Request { domain: input.domain(), items: &[input.to_item(verb.engine_cost(input.cost))] };
            end = decide_requests(app, caller.protocol, verb, &[request], &mut decisions, start).await;
        }
        return (decisions, end);
    }
    let inputs = calls.iter().filter_map(Call::request_to_decide);
    let items: Vec<(&[u8], Item<'_>)> =
        inputs.map(|input| (input.domain(), input.to_item(verb.engine_cost(input.cost)))).collect();
    let requests: Vec<Request<'_>> =
        items.iter().map(|(domain, item)| Request { domain, items: std::slice::from_ref(item) }).collect();
    if !requests.is_empty() {
        end = decide_requests(app, caller.protocol, verb, &requests, &mut decisions, start).await;
    }
    (decisions, end)
}

/// Replies to the calls that [`decide_part`] decided.
fn reply_to_part(verb: Verb, calls: &mut [Call<'_>], decisions: &Decisions, reply: &mut impl FnMut(Reply<'_>)) {
    let mut decided = decisions.iter();
    for (index, call) in calls.iter_mut().enumerate() {
        let result = match (call.request_to_decide(), &call.input) {
            (_, Err(error)) => Err(error.clone()),
            (None, Ok(_)) => Ok(None),
            (Some(request), Ok(_)) => match decided.next() {
                Some(Ok(decision)) => {
                    let options = ViewOptions {
                        taken: verb.shows_taken(),
                        receipt: request.receipt || verb.always_shows_receipt(),
                    };
                    Ok(Some(Output::Decision(DecisionView::new(decision, options))))
                }
                Some(Err(error)) => Err(error.into()),
                // Unreachable: there is one decision per request.
                None => Err(OpError::invalid("", "the request was not decided")),
            },
        };
        reply_and_store(index, call, result, reply);
    }
}

impl<'a> Call<'a> {
    /// Creates a call without an idempotency key.
    pub fn new(input: Result<Input<'a>, OpError>) -> Self {
        Self { input, key: KeyLookup::NoKey }
    }

    /// Returns the request to decide. Returns `None` if the call has an error or a stored result.
    fn request_to_decide(&self) -> Option<&RequestInput<'a>> {
        match (&self.input, &self.key) {
            (Ok(Input::Request(request)), KeyLookup::NoKey | KeyLookup::First(_)) => Some(request),
            _ => None,
        }
    }
}

/// Decides requests independently and in order. Unless `verb` is a peek, also counts outcomes and the heaviest keys,
/// and logs refusals. `start` is the current time, from which the decision time is measured. Returns the time after the
/// decisions.
pub(crate) async fn decide_requests<S: Store>(
    app: &App<S>,
    protocol: Protocol,
    verb: Verb,
    requests: &[Request<'_>],
    decisions: &mut Decisions,
    start: Time<Mono>,
) -> Time<Mono> {
    let Some(take_mode) = verb.take_mode() else {
        app.engine.peek_batch(requests, decisions).await;
        return app.now();
    };
    app.engine.take_batch(take_mode, requests, decisions).await;
    let end = app.now();
    app.metrics.decision_time.record(end.since(start));
    let mut totals = OutcomeTotals::default();
    for (index, decision) in decisions.iter().enumerate() {
        let Ok(decision) = decision else { continue };
        app.top.count(&decision, end);
        match decision.observed() {
            None if decision.is_admitted() => {
                totals.allowed += 1;
                continue;
            }
            None => totals.denied += 1,
            Some(_) => totals.observed += 1,
        }
        if let Some(refusals) = &app.refusals {
            let explain = || app.engine.explain_decided(&requests[index], decisions, index);
            refusals.log_refusal(protocol, requests[index].domain, &decision, &app.top, explain);
        }
    }
    app.metrics.protocol_counters(protocol).count_decisions(totals);
    end
}

/// Runs an operation that is not batched.
async fn run_unbatched<'a, S: Store>(
    app: &'a App<S>,
    caller: Caller<'_>,
    op: Op,
    input: &Input<'_>,
    resets: &mut ResetRecord<'a>,
) -> Result<Output<'static>, OpError> {
    match (op, input) {
        (Op::Acquire, Input::Request(input)) => {
            let items = [input.to_item(input.cost)];
            let request = Request { domain: input.domain(), items: &items };
            let mut decisions = PooledDecisions::take();
            acquire::acquire(app, caller.protocol, &request, input.wait, &mut decisions).await;
            let view = DecisionView::new(decisions.get(0)?, ViewOptions { taken: false, receipt: true });
            Ok(Output::Decision(view).into_owned())
        }
        // Settling completes an earlier decision, so it needs no further role.
        (Op::Refund, Input::Receipt(receipt, _)) => Ok(Output::Refunded(app.engine.refund(receipt).await?)),
        (Op::Renew, Input::Receipt(receipt, _)) => Ok(Output::Renewed(app.engine.renew(receipt).await?)),
        (Op::Commit, Input::Receipt(receipt, Some(cost))) => {
            Ok(Output::Settled(app.engine.commit(receipt, *cost).await?))
        }
        (Op::Commit, Input::Receipt(_, None)) => {
            Err(OpError::invalid("cost", "a commit needs the actual `cost` of the request"))
        }
        (Op::Reset, Input::Request(input)) => {
            let items = [input.to_item(input.cost)];
            let request = Request { domain: input.domain(), items: &items };
            resets.reserve(app)?;
            let counters = app.engine.reset(&request, &mut PooledDecisions::take()).await?;
            resets.add(input);
            Ok(Output::Reset(counters))
        }
        (Op::Explain, Input::Request(input)) => explain(app, caller, input).await,
        (Op::SetEnforcement, Input::Enforcement(enforcement)) => {
            set_enforcement(app, caller, *enforcement)?;
            Ok(Output::Page(pages::render_page(app, super::ServerPage::Enforcement)))
        }
        (Op::Page(page), _) => Ok(Output::Page(pages::render_page(app, page))),
        // Unreachable: front ends build the input that the operation needs.
        _ => Err(OpError::invalid("", "the input does not fit the operation")),
    }
}

fn set_enforcement<S: Store>(app: &App<S>, caller: Caller<'_>, enforcement: Enforcement) -> Result<(), OpError> {
    let entry = app.reserve_audit_slot(AuditQueue::Switches)?;
    app.set_server_enforcement(enforcement);
    let mode = enforcement.as_str();
    tracing::warn!(mode, author = caller.access.author(), "enforcement was switched");
    if let Some(entry) = entry {
        entry.queue_entry(caller.access, enforcement.into(), None, "server");
    }
    Ok(())
}
